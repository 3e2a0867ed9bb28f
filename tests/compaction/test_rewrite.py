"""What one cleaning does to single batches: cases made by hand, each with its numbers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.report import CLEANED, FAILED, SKIPPED, UNCLEANABLE
from siltstone.compaction.staging import StagedVerifier
from tests.support.cleaning import logs
from tests.support.cleaning.logs import DAY, NOW, RECORD_TIME, Header, Rec, batch, headers_of, one, records_in
from tests.support.failures import assert_failed, assert_uncleanable

HORIZON = 0x40


def cleaned(tmp_path: Path, *batches: bytes, end: int, **config: object) -> list[tuple[Header, bytes]]:
    """The batches of a log of one segment after its cleaning up to ``end``."""
    partition = logs.write_log(tmp_path / "log", {0: batches, end: [one(end, "active")]})
    result = logs.run(tmp_path / "log", config={k.replace("_", "."): v for k, v in config.items()})
    assert result.status == CLEANED, result.reason
    return list(headers_of(logs.logs_of(partition)[0]))


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(tmp_path: Path) -> None:
    for codec in range(5):
        rows = [Rec(offset=i, key=b"k%d" % i, timestamp=RECORD_TIME - i) for i in range(3)]
        source = batch(rows, codec=codec, leader_epoch=4)
        ((_, rewritten),) = cleaned(tmp_path / str(codec), source, end=3)
        assert rewritten == source


def test_a_rebuilt_batch_keeps_its_range_and_its_producer(tmp_path: Path) -> None:
    rows = [
        Rec(offset=0, key=b"a", timestamp=900),
        Rec(offset=1, key=b"b", timestamp=500),
        Rec(offset=2, key=b"c", timestamp=700),
        Rec(offset=3, key=b"a", timestamp=400),
        Rec(offset=5, key=b"z", timestamp=300),
    ]
    source = batch(rows, last_offset=7, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=40)
    ((header, rewritten), _) = cleaned(tmp_path, source, one(8, "z"), end=9)
    assert header == Header(
        base_offset=0,
        last_offset=7,
        leader_epoch=3,
        attributes=0,
        base_timestamp=500,
        max_timestamp=700,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        count=3,
    )
    assert [(r.offset, r.timestamp) for r in records_in(rewritten)] == [(1, 500), (2, 700), (3, 400)]


def test_a_tombstone_is_stamped_once_and_its_records_keep_their_times(tmp_path: Path) -> None:
    source = batch([Rec(offset=0, key=b"a"), Rec(offset=1, key=b"b", value=None, timestamp=RECORD_TIME + 9)])
    path, config = tmp_path / "log", {"delete.retention.ms": 1000}
    partition = logs.write_log(path, {0: [source], 2: [one(2, "x")], 3: [one(3, "active")]})
    logs.run(path, config=config, now_ms=NOW)
    first = logs.logs_of(partition)[0]
    header, _ = next(headers_of(first))
    assert header.attributes == HORIZON and header.base_timestamp == NOW + 1000
    assert [r.timestamp for r in records_in(first)][:2] == [RECORD_TIME, RECORD_TIME + 9]

    logs.write_segment(partition, 4, one(4, "y"))
    logs.run(path, config=config, now_ms=NOW + 999)
    assert logs.logs_of(partition)[0].startswith(first)

    logs.write_segment(partition, 5, one(5, "z"))
    result = logs.run(path, config=config, now_ms=NOW + 1000)
    assert result.discarded.tombstones == 1
    header, rewritten = next(headers_of(logs.logs_of(partition)[0]))
    assert [r.offset for r in records_in(rewritten)] == [0]
    assert header.attributes == HORIZON and header.base_timestamp == NOW + 1000


def test_tombstones_survive_their_first_pass_without_retention(tmp_path: Path) -> None:
    rows = cleaned(tmp_path, one(0, "a", None), end=1, delete_retention_ms=0)
    assert [(h.count, h.base_timestamp) for h, _ in rows] == [(1, NOW)]


def test_superseded_tombstones_are_counted_as_superseded(tmp_path: Path) -> None:
    stamped = batch([Rec(offset=0, key=b"a", value=None)], delete_horizon_ms=NOW - 1)
    logs.write_log(tmp_path / "log", {0: [stamped, one(1, "a")], 2: [one(2, "active")]})
    removed = logs.run(tmp_path / "log").discarded
    assert (removed.superseded, removed.tombstones) == (1, 0)


def test_log_append_time_stays_the_batchs(tmp_path: Path) -> None:
    rows = [Rec(offset=0, key=b"a", timestamp=7), Rec(offset=1, key=b"b", timestamp=900)]
    ((header, rewritten), _) = cleaned(tmp_path, batch(rows, log_append=True), one(2, "b"), end=3)
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (8, 900, 900)
    assert [(r.offset, r.timestamp) for r in records_in(rewritten)] == [(0, 900)]


@pytest.mark.parametrize("codec", range(5))
def test_a_rebuilt_batch_keeps_its_codec(tmp_path: Path, codec: int) -> None:
    rows = [Rec(offset=i, key=b"k%d" % i, value=b"v" * 500) for i in range(4)]
    ((header, rewritten), _) = cleaned(tmp_path, batch(rows, codec=codec), one(4, "k1"), end=5)
    assert header.attributes == codec
    assert [r.offset for r in records_in(rewritten)] == [0, 2, 3]


# empty batches


def test_the_last_offset_before_the_end_stays_as_an_empty_batch(tmp_path: Path) -> None:
    """In no golden set: a tail without keys, so that nothing of it stays but the offset."""
    tail = batch([Rec(offset=1, key=None, timestamp=55), Rec(offset=2, key=None)], codec=1, leader_epoch=6)
    rows = cleaned(tmp_path, one(0, "a"), tail, end=3)
    assert rows[1][0] == Header(
        base_offset=1,
        last_offset=2,
        leader_epoch=6,
        attributes=0,
        base_timestamp=-1,
        max_timestamp=RECORD_TIME,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=0,
    )
    assert len(rows[1][1]) == 61


def test_an_empty_batch_is_discarded_when_it_is_not_the_last_any_more(tmp_path: Path) -> None:
    path = tmp_path / "log"
    partition = logs.write_log(path, {0: [one(0, "a"), one(1, None)], 2: [one(2, "b")]})
    logs.run(path)
    assert [h.count for h, _ in headers_of(logs.logs_of(partition)[0])] == [1, 0]
    logs.write_segment(partition, 3, one(3, "c"))
    logs.run(path)
    assert [h.base_offset for h, _ in headers_of(logs.logs_of(partition)[0])] == [0, 2]


@pytest.mark.parametrize(("silent_ms", "stays"), [(0, True), (DAY - 1, True), (DAY, False)])
def test_a_live_producers_last_batch_stays_as_an_empty_one(
    tmp_path: Path, silent_ms: int, stays: bool
) -> None:
    who = {"producer_id": 4, "producer_epoch": 1, "leader_epoch": 2}
    older = batch([Rec(offset=0, key=b"a", timestamp=NOW - silent_ms)], base_sequence=0, **who)
    last = batch([Rec(offset=1, key=b"a", timestamp=NOW - silent_ms)], base_sequence=1, **who)
    rows = cleaned(tmp_path, older, last, one(2, "a"), end=3)
    assert [h.base_offset for h, _ in rows] == ([1, 2] if stays else [2])
    if stays:
        emptied = rows[0][0]
        assert (emptied.count, emptied.base_sequence, emptied.producer_epoch, emptied.max_timestamp) == (
            0,
            1,
            1,
            NOW - silent_ms,
        )


def test_a_producer_that_wrote_later_keeps_no_empty_batch(tmp_path: Path) -> None:
    def of(offset: int) -> bytes:
        rows = [Rec(offset=offset, key=b"a", timestamp=NOW)]
        return batch(rows, producer_id=4, producer_epoch=0, base_sequence=offset)

    partition = logs.write_log(tmp_path / "log", {0: [of(0), one(1, "a")], 2: [of(2)]})
    logs.run(tmp_path / "log")
    assert [h.base_offset for h, _ in headers_of(logs.logs_of(partition)[0])] == [1]


def test_a_segment_that_loses_everything_becomes_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = {0: [one(0, "a")], 1: [one(1, "a")], 2: [one(2, "active")]}
    partition = logs.write_log(path, log)
    logs.run(path, config={"segment.bytes": 1})
    for kind in ("log", "index", "timeindex"):
        assert (partition / f"{0:020d}.{kind}").read_bytes() == b""
    stamp = (partition / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    assert stamp == NOW - 10 * DAY


# refusals


def test_keyless_records_go_only_when_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.write_log(path, {0: [one(0, None), one(1, "a")], 2: [one(2, "b")]})
    before = logs.tree(path)
    result = logs.run(path, drop_keyless=False)
    assert result.status == SKIPPED and "1 records without a key" in result.reason
    assert logs.tree(path) == before
    assert logs.run(path).discarded.keyless == 1


@pytest.mark.parametrize("way", ["whole", "spread"])
def test_damage_in_the_middle_makes_a_log_uncleanable(tmp_path: Path, way: str) -> None:
    path = tmp_path / "log"
    partition = logs.write_log(path, {0: [one(0, "a")], 1: [one(1, "b")], 2: [one(2, "c")]})
    data = bytearray(logs.logs_of(partition)[1])
    data[-1] ^= 1
    (partition / f"{1:020d}.log").write_bytes(data)
    before = logs.tree(path)
    limits = logs.one_group_a_wave(path, {"segment.bytes": 1}) if way == "spread" else None
    result = logs.run(path, limits=limits, config={"segment.bytes": 1})
    assert_uncleanable(result, partition / f"{1:020d}.log", position=0, about="checksum")
    assert logs.tree(path) == before


def test_batches_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    partition = logs.write_log(path, {0: [one(1, "a"), one(0, "b")], 2: [one(2, "c")]})
    position = len(one(1, "a"))
    assert_uncleanable(logs.run(path), partition / f"{0:020d}.log", position=position, about="out of order")


def test_a_source_that_changes_after_the_plan_is_not_swapped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    partition = logs.write_log(path, {0: [one(0, "a"), one(1, "a")], 2: [one(2, "b")]})
    source = partition / f"{0:020d}.log"

    class Late(InProcessEngine):
        def clean_whole(self, works):
            os.utime(source, ns=(1, 1))
            return super().clean_whole(works)

    result = logs.run(path, engine=Late)
    assert_failed(result, "SOURCE_CHANGED", about=source.name)
    assert logs.offsets(partition) == [0, 1, 2]


@pytest.mark.parametrize("flaw", ["byte", "short", "index"])
def test_a_written_segment_that_does_not_read_back_is_not_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    path = tmp_path / "log"
    partition = logs.write_log(path, {0: [one(0, "a"), one(1, "a")], 2: [one(2, "b")]})
    before = logs.tree(path)
    finish = StagedVerifier.finish

    def spoilt(self, size, record_count, indexes):
        (target,) = partition.glob(f".siltstone/*/*.{'index' if flaw == 'index' else 'log'}")
        data = target.read_bytes()
        spoilt_data = {"byte": data[:-1] + b"!", "short": data[:-1], "index": data + bytes(8)}
        target.write_bytes(spoilt_data[flaw])
        return finish(self, size, record_count, indexes)

    monkeypatch.setattr(StagedVerifier, "finish", spoilt)
    result = logs.run(path)
    assert result.status in (FAILED, UNCLEANABLE)
    shutil.rmtree(partition / ".siltstone", ignore_errors=True)
    assert logs.tree(path) == before
