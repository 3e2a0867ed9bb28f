"""The library's face: ``st.Log``, ``st.open``, ``st.append``; and reading a directory without touching it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    DirectoryLockedError,
    DirectoryRefusedError,
    InvalidRecordError,
    NotALogDirectoryError,
    UnknownTopicError,
    UsageError,
)
from siltstone.log import names
from siltstone.log.checkpoints import LeaderEpochs, read_checkpoint
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import LogReader
from siltstone.log.validation import Origin
from siltstone.runtime.producing import batch_of
from siltstone.runtime.topics import TOPICS_FILE
from tests.support import golden_sets
from tests.support.errors import raises_error
from tests.support.log.driving import client_batch
from tests.support.log.managed import NOW, append, names_in, opened, values
from tests.support.log.model import Stored

EVENTS = TopicPartition("events", 0)


def state_of(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes and time."""
    return {
        str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()
    }


def test_importing_the_package_loads_no_heavy_library() -> None:
    script = "import sys, siltstone; print({'numpy', 'numba', 'pyspark', 'pyarrow'} & set(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'Lob'"):
        _ = st.Lob  # type: ignore[attr-defined]
    assert set(st.__all__) == set(st._EXPORTS)


# One partition


def test_records_of_one_partition_are_appended_and_read(tmp_path: Path) -> None:
    with st.Log(tmp_path / "events-0") as log:
        assert log.append(key=b"k", value=b"v", sync=True) == 0
        assert log.log.recovery_point == 1
    assert names_in(tmp_path) >= {"events-0", names.CLEAN_SHUTDOWN, names.RECOVERY_CHECKPOINT}
    assert not {names.META_PROPERTIES, TOPICS_FILE} & names_in(tmp_path)


@pytest.mark.parametrize("codec", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_went_in(tmp_path: Path, codec: str) -> None:
    clock = ManualClock(NOW)
    with st.Log(tmp_path / "events-0", config={"compression.type": codec}, clock=clock, upkeep=False) as log:
        appended = log.append_many(
            [
                st.NewRecord(key=b"a", value=b"1" * 100, headers={"h": b"x", "n": None}),
                st.NewRecord(value=b"2", timestamp=NOW - 5),
                st.NewRecord(key=b"", headers=[("h", b"1"), ("h", b"2")]),
            ]
        )
        assert (appended.first_offset, appended.last_offset) == (0, 2)
        assert log.append(b"last") == 3
        rows = [(record.offset, record.timestamp, record.key, record.value, record.headers) for record in log]
    assert rows == [
        (0, NOW, b"a", b"1" * 100, ((b"h", b"x"), (b"n", None))),
        (1, NOW - 5, None, b"2", ()),
        (2, NOW, b"", None, ((b"h", b"1"), (b"h", b"2"))),
        (3, NOW, None, b"last", ()),
    ]


def test_a_log_that_is_opened_again_continues_where_it_stopped(tmp_path: Path) -> None:
    with st.Log(tmp_path / "events-0") as log:
        log.append_many(st.NewRecord(key=b"%d" % number) for number in range(10))
        assert log.delete_records(4) == 4
    assert read_checkpoint(tmp_path / names.LOG_START_CHECKPOINT) == {EVENTS: 4}
    with st.Log(tmp_path / "events-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (4, 10)
        assert [record.key for record in log] == [b"%d" % number for number in range(4, 10)]
        assert log.append(key=b"10") == 10
        assert [record.offset for record in log.records("latest")] == []
        assert log.read(9).size > 0


def test_invalid_paths_settings_and_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryRefusedError, match="TOPIC-N"):
        st.Log(tmp_path / "events")
    with pytest.raises(UsageError):
        st.Log(tmp_path / "events-0", config={"nonsense": "1"})
    with st.Log(tmp_path / "events-0", config={"cleanup.policy": "compact"}) as log:
        with pytest.raises(InvalidRecordError):
            log.append(b"no key")
        with raises_error(UsageError, advice="record"):
            log.append_many([])
        with pytest.raises(DirectoryLockedError):
            st.Log(tmp_path / "other-0")
        assert log.append(b"v", key=b"k") == 0
    (tmp_path / "link-0").symlink_to(tmp_path / "events-0")
    with pytest.raises(NotALogDirectoryError):
        st.Log(tmp_path / "link-0")
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_other_files_in_the_log_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    with st.Log(tmp_path / "events-0") as log:
        log.append(b"v")
    assert (tmp_path / "notes.txt").read_text() == "mine" and "folder" in names_in(tmp_path)


def test_appends_go_on_with_the_leader_epoch_that_the_log_has(tmp_path: Path) -> None:
    with st.Log(tmp_path / "events-0", clock=ManualClock(NOW)) as log:
        log.append(b"0")
        batch = batch_of([st.NewRecord(value=b"1")], "producer", NOW)
        log.log.append(batch, origin=Origin.COORDINATOR, leader_epoch=4)
        log.append(b"2")
        assert [record.leader_epoch for record in log] == [0, 4, 4]
    assert LeaderEpochs(tmp_path / "events-0").entries == ((0, 0), (4, 1))


# Whole directories


def test_directories_are_opened_to_append_with_mode_a_only(tmp_path: Path) -> None:
    with st.open(tmp_path / "logs", "a") as logs:
        logs.topics.create("users", partitions=2, config={"cleanup.policy": "compact"})
        assert st.append(logs["users", 1], [st.NewRecord(key=b"k", value=b"v")], sync=True).last_offset == 0
        assert logs["users", 1].recovery_point == 1
    with raises_error(UsageError, about="'w'", advice="'a'"):
        st.open(tmp_path / "logs", "w")  # type: ignore[call-overload]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        append(manager[EVENTS], 5)
        manager.delete_records(EVENTS, 2)
    before, changes = state_of(tmp_path), list[files.Operation]()
    with files.observe(changes.append), st.open(tmp_path) as logs:
        assert list(logs) == [EVENTS, TopicPartition("events", 1)] and len(logs) == 2
        log = logs["events", 0]
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 5, 5)
        assert [record.offset for record in LogReader(log).records()] == [2, 3, 4]
        assert log.read(3).size > 0
        place = log.offset_for_time(NOW)
        assert place is not None and place.offset == 2
        assert list(LogReader(logs["events", 1])) == []
        assert EVENTS in logs and TopicPartition("x", 0) not in logs
        with pytest.raises(UnknownTopicError):
            _ = logs["x", 0]
    assert changes == [] and state_of(tmp_path) == before


def test_reading_beside_a_process_that_appends(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.topics.create("events", config={"segment.bytes": "300"})
    for number in range(7):
        append(manager[EVENTS], 1, NOW + number, size=100)
    with st.open(tmp_path) as logs:
        assert logs[EVENTS].log_end_offset == 7
        assert len(list(LogReader(logs[EVENTS]).records())) == 7
    append(manager[EVENTS])
    with st.open(tmp_path) as logs:
        assert logs[EVENTS].log_end_offset == 8
    manager.close()


@pytest.mark.parametrize("tail", [b"torn", bytes(500), b"\x00" * 8 + b"\x00\x00\x01\x00" + b"x" * 30])
def test_a_torn_tail_is_not_seen(tmp_path: Path, tail: bytes) -> None:
    manager = opened(tmp_path)
    manager.topics.create("events")
    for _ in range(3):
        append(manager[EVENTS], 2)
    manager._abandon()
    with (tmp_path / "events-0" / f"{0:020d}.log").open("ab") as log:
        log.write(tail)
    before = state_of(tmp_path)
    with st.open(tmp_path) as logs:
        assert logs[EVENTS].log_end_offset == 6
        assert [record.offset for record in LogReader(logs[EVENTS]).records()] == list(range(6))
        assert logs[EVENTS].read(4).batches()[2] == 0
    assert state_of(tmp_path) == before


def test_a_damaged_index_is_not_used_for_reading(tmp_path: Path) -> None:
    with opened(tmp_path, config={"index.interval.bytes": "100"}) as manager:
        manager.topics.create("events")
        for _ in range(9):
            append(manager[EVENTS], 1, size=200)
    for kind in ("index", "timeindex"):
        (tmp_path / "events-0" / f"{0:020d}.{kind}").write_bytes(b"\x7f" * 36)
    with st.open(tmp_path) as logs:
        assert [record.offset for record in LogReader(logs[EVENTS], 7).records()] == [7, 8]


def test_records_deleted_past_an_open_transaction_hold_no_reader_back(tmp_path: Path) -> None:
    """Kafka's first unstable offset is never below the log start (``UnifiedLog``)."""
    opening = client_batch(
        [Stored(0, b"k", b"v", NOW)] * 2,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    with opened(tmp_path) as manager:
        manager.topics.create("events")
        manager[EVENTS].append(opening)
        append(manager[EVENTS], 4)
        assert manager[EVENTS].view.last_stable_offset == 0
        assert manager.delete_records(EVENTS, 3) == 3
        assert manager[EVENTS].view.last_stable_offset == 3
        assert list(LogReader(manager[EVENTS], isolation="read_committed").records()) == []
    with ReadOnlyLogs([tmp_path]) as logs:
        assert logs[EVENTS].view.last_stable_offset == 3
    with opened(tmp_path) as manager:
        assert manager[EVENTS].view.last_stable_offset == 3


def test_every_golden_log_reads_the_same_both_ways(golden: Path, tmp_path: Path) -> None:
    for name in ("basic", "txn", "mixed", "delete_records_compact", "tombstones"):
        case = golden_sets.load_case(golden, name)
        topic_partition = golden_sets.stage_round(case, case.rounds[0], tmp_path / name)
        with ReadOnlyLogs([topic_partition]) as logs:
            log = logs[case.topic, case.partition]
            by_reading = list(LogReader(log, isolation="read_committed").records())
            facts = (log.log_start_offset, log.log_end_offset, log.view.last_stable_offset)
        with opened(topic_partition) as manager:
            live = manager[case.topic, case.partition]
            assert facts == (live.log_start_offset, live.log_end_offset, live.last_stable_offset)
            assert by_reading == list(LogReader(live, isolation="read_committed").records())


def test_one_partition_directory_can_be_read(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "basic" / "before", tmp_path / "basic-0")
    with st.open(tmp_path / "basic-0") as logs:
        assert list(logs) == [TopicPartition("basic", 0)]
        assert len(list(LogReader(logs["basic", 0]).records())) > 100


def test_an_interrupted_swap_has_to_be_recovered_before_reading(tmp_path: Path) -> None:
    with opened(tmp_path, config={"segment.bytes": "300"}) as manager:
        manager.topics.create("events")
        for _ in range(3):
            append(manager[EVENTS], 1, size=150)
    (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    folder = tmp_path / "events-0"
    shutil.copy(folder / f"{0:020d}.log", folder / f"{0:020d}.log.swap")
    with st.open(tmp_path) as logs, pytest.raises(DirectoryRefusedError, match="siltstone recover"):
        _ = logs[EVENTS]
    with opened(tmp_path) as manager:
        assert values(manager[EVENTS]) == 3
