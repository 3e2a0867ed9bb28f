"""Producers as of a log's end: the newest sound snapshot, and the tail behind it."""

from __future__ import annotations

from pathlib import Path

from siltstone.base.records.control import end_transaction_marker
from siltstone.log.names import segment_file
from siltstone.log.producers import (
    ProducerEntry,
    ProducerStates,
    load_producers,
    read_snapshot,
    write_snapshot,
)
from siltstone.log.segments import list_segments
from tests.support import golden_sets
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec, batch, one


def entry(producer: int, last_offset: int, **more: int) -> ProducerEntry:
    fields = {
        "producer_epoch": 0,
        "last_sequence": 0,
        "offset_delta": 0,
        "timestamp_ms": 100,
        "coordinator_epoch": -1,
        "open_transaction_offset": -1,
    }
    return ProducerEntry(producer_id=producer, last_offset=last_offset, **{**fields, **more})


def of(offset: int, producer: int, sequence: int = 0, count: int = 1, **shape: object) -> bytes:
    rows = [Rec(offset=offset + i, key=b"k", timestamp=1000 + offset) for i in range(count)]
    return batch(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence, **shape)


def state_of(partition: Path) -> ProducerStates:
    return load_producers(partition, list_segments(partition))


def known(state: ProducerStates) -> dict[int, ProducerEntry]:
    return {entry.producer_id: entry for entry in state.entries()}


def test_without_a_snapshot_the_whole_log_counts(tmp_path: Path) -> None:
    log = {0: [of(0, 1), of(1, 2, count=3)], 4: [one(4, "x"), of(5, 1, 7)]}
    state = state_of(logs.write_log(tmp_path / "log", log))
    assert state.end_offset == 6
    assert {who: e.last_offset for who, e in known(state).items()} == {1: 5, 2: 3}
    assert known(state)[2].last_sequence == 2 and known(state)[2].offset_delta == 2
    assert known(state)[1].last_sequence == 7


def test_the_tail_after_an_old_snapshot_is_read(tmp_path: Path) -> None:
    log = {0: [of(0, 1)], 1: [of(1, 2)], 2: [of(2, 3), of(3, 2, 1)]}
    partition = logs.write_log(tmp_path / "log", log)
    (partition / segment_file(1, "snapshot")).write_bytes(write_snapshot([entry(1, 0), entry(9, 0)]))
    state = state_of(partition)
    assert {who: e.last_offset for who, e in known(state).items()} == {1: 0, 2: 3, 3: 2, 9: 0}


def test_a_snapshot_in_mid_segment_is_continued(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path / "log", {0: [of(0, 1), of(1, 1, 1), of(2, 2)]})
    (partition / segment_file(2, "snapshot")).write_bytes(write_snapshot([entry(1, 1, timestamp_ms=77)]))
    state = state_of(partition)
    assert known(state)[1].timestamp_ms == 77
    assert known(state)[2].last_offset == 2


def test_the_newest_sound_snapshot_wins(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path / "log", {0: [of(0, 1)], 5: [of(5, 2)], 8: []})
    (partition / segment_file(5, "snapshot")).write_bytes(write_snapshot([entry(1, 0, timestamp_ms=5)]))
    (partition / segment_file(8, "snapshot")).write_bytes(b"garbage that is long enough")
    (partition / segment_file(9, "snapshot", ".deleted")).write_bytes(write_snapshot([]))
    state = state_of(partition)
    assert known(state)[1].timestamp_ms == 5
    assert set(known(state)) == {1, 2}
    assert state.end_offset == 8


def test_recent_producers_and_those_in_a_transaction_are_active(tmp_path: Path) -> None:
    producers = {1: entry(1, 0, timestamp_ms=100), 2: entry(2, 1, timestamp_ms=101)}
    producers[3] = entry(3, 2, timestamp_ms=0, open_transaction_offset=2)
    state = ProducerStates(3, producers.values())
    assert [e.producer_id for e in state.active(200, 100)] == [2, 3]
    assert state.first_open_transaction() == 2
    assert ProducerStates().first_open_transaction() is None


def test_sequences_wrap_around(tmp_path: Path) -> None:
    biggest = (1 << 31) - 1
    state = state_of(logs.write_log(tmp_path / "log", {0: [of(0, 1, biggest - 1, count=4)]}))
    assert known(state)[1].last_sequence == 1


def test_an_open_transaction_and_its_marker(tmp_path: Path) -> None:
    began = [of(0, 1), of(1, 7, transactional=True), of(2, 7, 1, transactional=True)]
    state = state_of(logs.write_log(tmp_path / "open", {0: began}))
    assert state.first_open_transaction() == 1
    commit = end_transaction_marker(
        is_commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=4, timestamp_ms=1003
    )
    marker = (3).to_bytes(8, "big") + commit.tobytes()[8:]
    ended = state_of(logs.write_log(tmp_path / "ended", {0: [*began, marker]}))
    assert ended.first_open_transaction() is None
    assert known(ended)[7].last_offset == 2
    assert known(ended)[7].coordinator_epoch == 4


def test_the_state_at_each_of_kafkas_snapshots(golden: Path, tmp_path: Path) -> None:
    """Kafka's last snapshot is what comes out of the log without it."""
    compared = 0
    for name in ("idempotent", "idempotent_gzip", "txn"):
        case = golden_sets.load_case(golden, name)
        topic_partition = golden_sets.stage_round(case, case.rounds[0], tmp_path / name)
        partition = golden_sets.partition_directory(case, topic_partition)
        newest = max(partition.glob("*.snapshot"))
        kafkas = {producer.producer_id: producer for producer in read_snapshot(newest.read_bytes())}
        for path in partition.glob("*.snapshot"):
            path.unlink()
        state = state_of(partition)
        assert state.end_offset == int(newest.stem)
        for who, theirs in kafkas.items():
            ours = known(state)[who]
            fields = (
                "producer_epoch",
                "last_sequence",
                "last_offset",
                "offset_delta",
                "timestamp_ms",
                "coordinator_epoch",
            )
            assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]
            assert ours.open_transaction_offset == theirs.open_transaction_offset
            compared += 1
    assert compared > 3


def test_a_snapshot_beyond_the_logs_end_is_not_used(tmp_path: Path) -> None:
    log = {0: [of(0, 1)], 1: [of(1, 2), of(2, 3, transactional=True)]}
    partition = logs.write_log(tmp_path / "log", log)
    (partition / segment_file(1, "snapshot")).write_bytes(write_snapshot([entry(1, 0)]))
    for offset in (4, 1 << 40):
        (partition / segment_file(offset, "snapshot")).write_bytes(write_snapshot([entry(3, 2)]))
        state = state_of(partition)
        assert (state.first_open_transaction(), state.end_offset) == (2, 3)
        assert sorted(known(state)) == [1, 2, 3]
    (partition / segment_file(3, "snapshot")).write_bytes(write_snapshot([entry(3, 2)]))
    assert list(known(state_of(partition))) == [3]  # at the end itself it may be one


def test_a_snapshot_below_the_first_segment_is_of_a_log_that_is_gone(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path / "log", {5: [of(5, 1)], 6: [of(6, 2)]})
    stale = entry(9, 3, open_transaction_offset=3)
    (partition / segment_file(4, "snapshot")).write_bytes(write_snapshot([stale]))
    state = state_of(partition)
    assert state.first_open_transaction() is None and sorted(known(state)) == [1, 2]


def test_a_snapshot_that_knows_of_later_offsets_is_not_used(tmp_path: Path) -> None:
    log = {0: [of(0, 1)], 1: [of(1, 3, transactional=True)], 2: [of(2, 2)]}
    partition = logs.write_log(tmp_path / "log", log)
    (partition / segment_file(1, "snapshot")).write_bytes(write_snapshot([entry(1, 0)]))
    senseless: list[list[ProducerEntry]] = [
        [entry(1, 2)],
        [entry(1, 1, open_transaction_offset=2)],
        [entry(1, -2)],
        [entry(1, 1, open_transaction_offset=-2)],
        [entry(1, 0), entry(1, 1)],
        [entry(-1, 0)],
    ]
    for producers in senseless:
        (partition / segment_file(2, "snapshot")).write_bytes(write_snapshot(producers))
        assert state_of(partition).first_open_transaction() == 1
