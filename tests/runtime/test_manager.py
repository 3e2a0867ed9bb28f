"""Log directories in service: opening and closing, several of them, upkeep as time passes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock, SystemClock
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    NotALogDirectoryError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicError,
)
from siltstone.base.records.fetch_results import decode_multi_message_set_send, encode_multi_message_set_send
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, read_properties, write_checkpoint
from siltstone.log.directory import LogDirectory
from siltstone.log.fetch import read
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager
from tests.support.counted_reads import CountedReads
from tests.support.errors import raises_error
from tests.support.log.managed import MINUTE, NOW, append, failing, names_in, opened, opened_files, values

EVENTS = TopicPartition("events", 0)
HOUR = 60 * MINUTE


# Opening and closing


def test_a_new_directory_and_its_identity(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b", config={"node.id": "7"}) as manager:
        assert len(manager) == 0 and not manager.offline
        assert names_in(tmp_path / "a") == {".lock", names.META_PROPERTIES}
    first, second = (read_properties(tmp_path / each / names.META_PROPERTIES) for each in "ab")
    assert first["version"] == "1" and first["node.id"] == second["node.id"] == "7"
    assert first["cluster.id"] == second["cluster.id"] and len(first["cluster.id"]) == 22
    assert first["directory.id"] != second["directory.id"]
    assert (tmp_path / "a" / names.CLEAN_SHUTDOWN).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    before = (tmp_path / "a" / names.META_PROPERTIES).read_bytes()
    with opened(tmp_path / "a", tmp_path / "c") as manager:
        assert names.CLEAN_SHUTDOWN not in names_in(tmp_path / "a")
    assert (tmp_path / "a" / names.META_PROPERTIES).read_bytes() == before
    assert read_properties(tmp_path / "c" / names.META_PROPERTIES)["cluster.id"] == first["cluster.id"]


@pytest.mark.parametrize(
    ("config", "node"), [({}, "0"), ({"broker.id": "5"}, "5"), ({"broker.id": "5", "node.id": "0"}, "0")]
)
def test_a_new_directory_has_the_brokers_number(tmp_path: Path, config: dict[str, str], node: str) -> None:
    opened(tmp_path, config=config).close()
    assert read_properties(tmp_path / names.META_PROPERTIES)["node.id"] == node


def test_directories_of_others_are_refused_and_keep_their_clean_shutdown_marker(tmp_path: Path) -> None:
    for each in "ab":
        opened(tmp_path / each).close()
    with pytest.raises(DirectoryRefusedError, match=r"cluster\.id"):
        opened(tmp_path / "a", tmp_path / "b")
    with pytest.raises(DirectoryRefusedError, match="node 0"):
        opened(tmp_path / "a", config={"node.id": "3"})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(NotALogDirectoryError):
        opened(tmp_path / "home")
    with opened(tmp_path / "a"), pytest.raises(DirectoryLockedError):
        opened(tmp_path / "a")
    assert all((tmp_path / each / names.CLEAN_SHUTDOWN).exists() for each in "ab")
    assert names_in(tmp_path / "home") == {"letter.txt"}


def test_records_checkpoints_and_marker_across_a_clean_close(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        append(manager[EVENTS], 3)
        append(manager["events", 0], 2)
        manager.delete_records(EVENTS, 2)
    written = {
        name: read_checkpoint(tmp_path / name)
        for name in (names.RECOVERY_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.LOG_START_CHECKPOINT)
    }
    other = TopicPartition("events", 1)
    assert written == {
        names.RECOVERY_CHECKPOINT: {EVENTS: 5, other: 0},
        names.REPLICATION_CHECKPOINT: {EVENTS: 5, other: 0},
        names.LOG_START_CHECKPOINT: {EVENTS: 2},
    }
    assert {f"{5:020d}.snapshot", names.PARTITION_METADATA} < names_in(tmp_path / "events-0")
    with opened(tmp_path) as manager:
        log = manager[EVENTS]
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (2, 5, 5)
        with pytest.raises(OffsetOutOfRangeError):
            log.read(1)
    assert LogDirectory.open(tmp_path).had_clean_shutdown


def test_a_clean_start_does_not_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each partition the active segment's tail, the ends of the indexes, and the small files once."""
    with opened(tmp_path, config={"segment.bytes": "30000"}) as manager:
        manager.topics.create("events", partitions=4)
        for topic_partition in manager:
            for _ in range(60):
                append(manager[topic_partition], 1, size=1000)
        assert all(len(manager[topic_partition].view.segments) > 2 for topic_partition in manager)
    counted = CountedReads(monkeypatch)
    with opened_files() as opens:
        manager = opened(tmp_path)
    inside = [Path(path) for path in opens if "events-" in path]
    logs = [path for path in inside if path.suffix == ".log"]
    active = [manager[topic_partition].view.segments[-1].path() for topic_partition in manager]
    assert sorted(logs) == sorted(active), "no closed segment, and each active one once"
    assert len([path for path in inside if path.suffix == ".snapshot"]) <= len(manager)
    assert counted.total / len(manager) < 20_000
    manager.close()


def test_nothing_is_written_when_nothing_has_changed(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=3)
        append(manager[EVENTS])
    changes: list[files.Operation] = []
    with files.observe(changes.append):
        opened(tmp_path).close()
    inside = {(verb, Path(path).name) for verb, path, _ in changes}
    assert {name for _, name in inside} <= {".lock", names.CLEAN_SHUTDOWN, f"{names.CLEAN_SHUTDOWN}.tmp"} | {
        tmp_path.name
    }


def test_a_crash_is_recovered_from(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.topics.create("events", partitions=2)
    append(manager[EVENTS], 3)
    manager[EVENTS].flush()
    manager._abandon()
    with (tmp_path / "events-0" / f"{0:020d}.log").open("ab") as log:
        log.write(b"torn")
    with opened(tmp_path) as manager:
        assert values(manager[EVENTS]) == 3
        assert manager.topics.names() == ["events"] and len(manager) == 2


def test_a_log_with_damaged_metadata_is_refused_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        append(manager[EVENTS], 3)
    (tmp_path / "events-0" / names.PARTITION_METADATA).write_bytes(b"nonsense")
    with opened(tmp_path) as manager:
        assert list(manager) == [TopicPartition("events", 1)]
        with pytest.raises(StorageError):
            manager.get(EVENTS)
    assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT)[EVENTS] == 3


def test_kafkas_metadata_log_and_leftovers_are_left_alone(stopped_broker: tuple[Path, Path]) -> None:
    data0, data1 = stopped_broker
    metadata = {path: path.stat().st_mtime_ns for path in (data0 / "__cluster_metadata-0").iterdir()}
    before = {
        name: read_checkpoint(data0 / name)
        for name in (names.RECOVERY_CHECKPOINT, names.LOG_START_CHECKPOINT)
    }
    clock = ManualClock(NOW)
    with opened(data0, data1, clock=clock) as manager:
        assert len(manager) == 16 and not manager.refused
        assert TopicPartition(names.CLUSTER_METADATA, 0) not in manager
        assert manager["users", 0].log_end_offset == 758
        assert manager["events.cd", 0].log_start_offset == 33
        assert manager.topics.describe("ledger").partitions == (0, 1)
    assert metadata == {path: path.stat().st_mtime_ns for path in (data0 / "__cluster_metadata-0").iterdir()}
    for name, entries in before.items():
        assert read_checkpoint(data0 / name) == entries
    assert "siltstone-topics.json" not in names_in(data0)


def test_a_single_open_partition_leaves_the_others_and_their_checkpoints_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        for topic_partition in manager:
            append(manager[topic_partition], 2)
    other = TopicPartition("events", 1)
    with LogManager.open([tmp_path], clock=ManualClock(NOW), only=EVENTS) as manager:
        assert list(manager) == [EVENTS]
        append(manager[EVENTS])
        with pytest.raises(UnknownTopicError):
            manager.get_or_create(TopicPartition("events", 7))
        with pytest.raises(DirectoryRefusedError):
            manager.topics.create("more")
    assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT) == {EVENTS: 3, other: 2}
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()
    (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    LogManager.open([tmp_path], clock=ManualClock(NOW), only=EVENTS).close()
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists(), "the other one may still be torn"


# Several directories


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", partitions=5)
        assert sorted(len(directory.logs) for directory in manager.directories) == [2, 3]
        manager.get_or_create(TopicPartition("more", 3))
        assert manager.get_or_create(TopicPartition("more", 3)) is manager["more", 3]
        assert sorted(len(directory.logs) for directory in manager.directories) == [3, 3]
    with opened(a, b) as manager:
        assert len(manager) == 6


def test_a_directory_that_fails_goes_offline_alone(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    clock = ManualClock(NOW)
    manager = opened(a, b, clock=clock)
    manager.topics.create("events", partitions=4)
    of_a = sorted(manager.directories[0].logs)
    of_b = sorted(manager.directories[1].logs)
    for topic_partition in manager:
        append(manager[topic_partition], 2)
    manager.flush()
    append(manager[of_a[0]])
    with failing(a, "fsync"), pytest.raises(StorageError):
        manager[of_a[0]].flush()
    manager.tick()
    assert list(manager.offline) == [a] and list(manager) == of_b
    for topic_partition in of_a:
        with raises_error(StorageError, path=str(topic_partition), about=str(a)):
            manager.get(topic_partition)
        with pytest.raises(StorageError):
            manager.get_or_create(topic_partition)
    append(manager[of_b[0]])
    manager.topics.create("later", partitions=2)
    assert {path.name for path in b.iterdir()} >= {"later-0", "later-1"}
    manager.close()
    assert not (a / names.CLEAN_SHUTDOWN).exists() and (b / names.CLEAN_SHUTDOWN).exists()
    with opened(a, b) as manager:
        assert not manager.offline and len(manager) == 6
        assert [values(manager[topic_partition]) for topic_partition in of_b] == [3, 2]
        assert min(values(manager[topic_partition]) for topic_partition in of_a) == 2


def test_a_directory_that_cannot_be_opened_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    opened(a, b).close()
    with failing(a):
        manager = opened(a, b)
    assert list(manager.offline) == [a]
    manager.topics.create("events")
    manager.close()
    with failing(a), raises_error(StorageError, about=str(a)):
        opened(a)
    with opened(a, b) as manager:
        assert not manager.offline and list(manager) == [EVENTS]
        assert (a / "siltstone-topics.json").read_bytes() == (b / "siltstone-topics.json").read_bytes()


@pytest.mark.parametrize("name", ["siltstone-topics.json", names.META_PROPERTIES])
def test_a_directory_whose_own_file_cannot_be_read_is_offline_and_the_others_serve(
    tmp_path: Path, name: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", 2)
        for topic_partition in manager:
            append(manager[topic_partition])
    (a / name).rename(tmp_path / "kept")
    (a / name).mkdir()  # reading it fails with an OSError
    before = names_in(a)
    with opened(a, b) as manager:
        assert list(manager.offline) == [a] and "directory" in manager.offline[a]
        assert list(manager) == [TopicPartition("events", 1)]
        with pytest.raises(StorageError):
            manager.get_or_create(EVENTS)
        append(manager["events", 1])
    assert names_in(a) == before and names.CLEAN_SHUTDOWN in before
    with raises_error(StorageError, about=str(a)):
        opened(a)
    (a / name).rmdir()
    (tmp_path / "kept").rename(a / name)
    with opened(a, b) as manager:
        assert not manager.offline and [values(log) for log in manager["events"].logs()] == [1, 2]


def test_a_directory_that_goes_offline_while_its_registry_is_read_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    opened(a, b).close()
    read_bytes, failed = files.read_bytes, list[str]()

    def fail(path: Path | str, *limit: int) -> bytes:
        is_registry = str(path) == str(a / "siltstone-topics.json")
        if is_registry or (failed and str(path).startswith(str(a))):
            failed.append(str(path))
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path, *limit)

    monkeypatch.setattr(files, "read_bytes", fail)
    with opened(a, b) as manager:
        assert list(manager.offline) == [a] and failed == [str(a / "siltstone-topics.json")]


def test_a_partition_whose_directory_cannot_be_read_takes_its_log_directory_offline_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", 2)
    stat = files.stat

    def fail(path: Path, **options: bool) -> files.FileStat:
        if str(path).startswith(str(a / "events-0")):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, **options)

    monkeypatch.setattr(files, "stat", fail)
    with opened(a, b) as manager:
        assert list(manager.offline) == [a] and list(manager) == [TopicPartition("events", 1)]


def test_a_start_that_no_directory_survives_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Else a server would run, and answer each request with an error."""
    a, b = tmp_path / "a", tmp_path / "b"
    opened(a, b).close()
    for directory in (a, b):
        (directory / names.CLEANER_CHECKPOINT).mkdir()  # it is read when the logs are open
    with raises_error(StorageError, about=f"{a} (Is a directory), {b} (Is a directory)"):
        opened(a, b)
    (a / names.CLEANER_CHECKPOINT).rmdir()
    with opened(a, b) as manager:
        assert list(manager.offline) == [b]
        manager.directories[0].go_offline("the disk is gone")
        for change in (lambda: manager.topics.create("events"), lambda: manager.create_partitions("x", [0])):
            with raises_error(StorageError, about=f"{a} (the disk is gone)"):
                change()


def test_a_start_that_is_refused_blames_no_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events")
    for directory in (a, b):
        (directory / "siltstone-topics.json").write_bytes(b"{}")
    with pytest.raises(CorruptFileError):
        opened(a, b)
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    for directory in (a, b):
        (directory / "siltstone-topics.json").unlink()
    with opened(a, b) as manager:  # the locks were released
        assert list(manager) == [EVENTS]


def test_a_full_disk_takes_nothing_offline(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events")
        with failing(tmp_path, "write", error=errno.ENOSPC), pytest.raises(StorageError):
            append(manager[EVENTS])
        manager.tick()
        append(manager[EVENTS])
        assert not manager.offline and values(manager[EVENTS]) == 1


def test_a_partition_of_a_directory_that_was_not_passed_is_not_created_again(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", partitions=2)
        elsewhere = next(iter(manager.directories[1].logs))
    with opened(a) as manager:
        assert len(manager) == 1
        for call in (manager.get, manager.get_or_create):
            with raises_error(StorageError, path=str(elsewhere)):
                call(elsewhere)
    with opened(a, b) as manager:
        assert len(manager) == 2


# As time passes


def test_the_periodic_tasks_and_their_times(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    config = {"log.initial.task.delay.ms": "1000", "log.retention.check.interval.ms": "10000"}
    with opened(tmp_path, clock=clock, config=config) as manager:
        assert manager.tick() == []
        clock.advance(1000)
        assert sorted(manager.tick()) == [
            "checkpoint-log-starts",
            "checkpoint-recovery-points",
            "expire-producers",
            "retention",
        ]
        clock.advance(10_000)
        assert manager.tick() == ["retention"]
        clock.advance(50_000)
        assert sorted(manager.tick()) == ["checkpoint-log-starts", "checkpoint-recovery-points", "retention"]


def test_retention_deletes_segments_and_unlinks_their_files_later(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        config = {"segment.bytes": "200", "retention.ms": str(HOUR), "file.delete.delay.ms": "60000"}
        manager.topics.create("events", config=config)
        log = manager[EVENTS]
        for minute in range(4):
            append(log, 1, NOW + minute * MINUTE, size=100)
        view, folder = log.view, tmp_path / "events-0"
        clock.advance(HOUR + MINUTE + 1)
        manager.tick()
        assert [segment.base_offset for segment in log.view.segments] == [2, 3]
        assert (log.log_start_offset, log.log_end_offset) == (2, 4)
        deleted = {name for name in names_in(folder) if name.endswith(".deleted")}
        assert f"{0:020d}.log.deleted" in deleted and f"{1:020d}.timeindex.deleted" in deleted
        assert read(view, 0, 1000).batches()[1]["base_offset"].tolist() == [0], "a reader goes on"
        clock.advance(59_999)
        manager.upkeep.write_log_starts()
        assert "unlink-deleted-files" not in manager.tick()
        clock.advance(1)
        assert "unlink-deleted-files" in manager.tick()
        assert not [name for name in names_in(folder) if name.endswith(".deleted")]
        assert read(view, 1, 1000).batches()[1]["base_offset"].tolist() == [1], "even now"
    assert read_checkpoint(tmp_path / names.LOG_START_CHECKPOINT) == {}


def test_flush_ms_also_without_further_appends(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        manager.topics.create("events", config={"flush.ms": "5000"})
        manager.topics.create("lazy")
        append(manager[EVENTS])
        append(manager["lazy", 0])
        clock.advance(4999)
        assert manager.tick() == []
        assert manager[EVENTS].recovery_point == 0
        clock.advance(1)
        assert manager.tick() == ["flush"]
        assert (manager[EVENTS].recovery_point, manager["lazy", 0].recovery_point) == (1, 0)
        append(manager[EVENTS])
        manager.topics.alter("events", {"flush.ms": "100"})
        clock.advance(100)
        manager.tick()
        assert manager[EVENTS].recovery_point == 2


def test_upkeep_and_flushes_go_on_after_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock(NOW + 24 * HOUR)
    with opened(tmp_path, clock=clock) as manager:
        manager.topics.create("events", config={"flush.ms": "5000"})
        manager.topics.create("lazy")
        manager.tick()
        for topic in ("events", "lazy"):
            append(manager[topic, 0], timestamp=clock.now_ms())
        clock.time_ms = NOW
        manager.tick()
        clock.advance(5000)
        assert manager.tick() == ["flush"]
        assert (manager[EVENTS].recovery_point, manager["lazy", 0].recovery_point) == (1, 0)
        clock.advance(5 * MINUTE)
        assert "retention" in manager.tick()


def test_checkpoints_are_written_periodically_if_an_entry_has_changed(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        manager.topics.create("events")
        append(manager[EVENTS], 4)
        manager[EVENTS].flush()
        clock.advance(MINUTE)
        manager.tick()
        assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT) == {EVENTS: 4}
        changes: list[files.Operation] = []
        clock.advance(MINUTE)
        with files.observe(changes.append):
            manager.tick()
        assert changes == []


def test_delete_records_is_durable_when_it_returns(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.topics.create("events")
    append(manager[EVENTS], 4)
    manager.flush()
    assert manager.delete_records(EVENTS, 3) == 3
    assert read_checkpoint(tmp_path / names.LOG_START_CHECKPOINT) == {EVENTS: 3}
    with pytest.raises(OffsetOutOfRangeError):
        manager.delete_records(EVENTS, 5)
    assert manager.delete_records(EVENTS, 1) == 3
    manager._abandon()
    with opened(tmp_path) as manager:
        assert (manager[EVENTS].log_start_offset, manager[EVENTS].log_end_offset) == (3, 4)


@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_all_records_are_deleted_durably_whatever_the_policy(tmp_path: Path, policy: str) -> None:
    root, where = tmp_path / "logs", TopicPartition("a", 0)
    with opened(root) as manager:
        manager.topics.create("a", 1, {"cleanup.policy": policy, "segment.bytes": "100"})
        for _ in range(5):
            append(manager.get(where))
        assert manager.delete_all_records(where) == 5
        assert values(manager.get(where)) == 0 and manager.get(where).size == 0
        assert manager.delete_all_records(where) == 5, "again: nothing happens"
        assert append(manager.get(where)).first_offset == 5
    with opened(root) as manager:
        assert (manager.get(where).log_start_offset, values(manager.get(where))) == (5, 1)


def test_files_that_wait_for_their_removal_can_be_removed_at_once(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path / "logs", clock=clock) as manager:
        manager.topics.create("a", 1, {"segment.bytes": "100", "retention.ms": "1000"})
        where = TopicPartition("a", 0)
        for _ in range(5):
            append(manager.get(where))
        clock.advance(2000)
        manager.upkeep.delete_old_segments()
        folder = manager.get(where).directory
        staged = folder / ".siltstone" / "RUN" / "x.log"
        staged.parent.mkdir(parents=True)
        staged.write_bytes(b"x")
        assert any(name.endswith(".deleted") for name in names_in(folder))
        with manager.files_at_rest(where) as log:
            assert log is manager.get(where) and manager.cleaning_states.begin(where) is None
            manager.remove_leftovers(where)
        assert not any(name.endswith(".deleted") for name in names_in(folder)) and not staged.exists()
        clock.advance(2 * MINUTE)
        manager.tick()  # what was to remove them finds nothing


def test_delete_records_on_a_failing_disk_takes_the_directory_offline(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.topics.create("events")
    append(manager[EVENTS], 4)
    checkpoint = tmp_path / f"{names.LOG_START_CHECKPOINT}.tmp"
    with failing(checkpoint), raises_error(StorageError, path=tmp_path):
        manager.delete_records(EVENTS, 3)
    assert list(manager.offline) == [tmp_path]
    manager.close()
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    with opened(tmp_path) as manager:
        assert manager[EVENTS].log_start_offset == 0


def test_a_truncation_lowers_the_checkpoints(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", config={"cleanup.policy": "compact", "segment.bytes": "200"})
        log = manager[EVENTS]
        for _ in range(6):
            append(log, 1, size=100)
        manager.flush()
        manager.upkeep.write_recovery_points()
        write_checkpoint(tmp_path / names.CLEANER_CHECKPOINT, {EVENTS: 5, TopicPartition("x", 0): 1})
        assert manager.truncate_to(EVENTS, 3)
        assert not manager.truncate_to(EVENTS, 3)
        assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT) == {EVENTS: 3}
        assert read_checkpoint(tmp_path / names.REPLICATION_CHECKPOINT) == {EVENTS: 3}
        assert read_checkpoint(tmp_path / names.CLEANER_CHECKPOINT)[EVENTS] == 3
        manager.truncate_fully_and_start_at(EVENTS, 100)
        assert read_checkpoint(tmp_path / names.REPLICATION_CHECKPOINT) == {EVENTS: 100}
        append(log)
    with opened(tmp_path) as manager:
        assert (manager[EVENTS].log_start_offset, manager[EVENTS].log_end_offset) == (100, 101)


def test_a_damaged_cleaner_checkpoint_does_not_stop_a_truncation_half_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as empty, as for the cleaner; before, the other checkpoints kept offsets beyond the end."""
    with opened(tmp_path) as manager:
        manager.topics.create("events")
        append(manager[EVENTS], 6)
        append(manager[EVENTS], 6)
        manager.flush()
        manager.upkeep.write_recovery_points()
        (tmp_path / names.CLEANER_CHECKPOINT).write_bytes(b"nonsense")
        assert manager.truncate_to(EVENTS, 6)
        assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT) == {EVENTS: 6}
        assert read_checkpoint(tmp_path / names.REPLICATION_CHECKPOINT) == {EVENTS: 6}
        served = manager.directory_of(EVENTS)
        assert served.cleaner_checkpoint() == served.cleaner_checkpoint() == {}
        assert caplog.text.count("counts as empty") == 1
        served.write_cleaner_checkpoint(EVENTS, 3)
        assert (
            served.cleaner_checkpoint() == read_checkpoint(tmp_path / names.CLEANER_CHECKPOINT) == {EVENTS: 3}
        )


def test_a_manager_with_its_own_threads_closes_in_order(tmp_path: Path) -> None:
    """With its own threads: a roll's flush in the background, ticks by the clock, an orderly end."""
    with LogManager.open([tmp_path]) as manager:
        manager.start()
        manager.start()
        manager.topics.create("events", config={"segment.bytes": "300", "flush.ms": "1"})
        for _ in range(20):
            append(manager[EVENTS], 1, SystemClock().now_ms(), size=100)
    assert values(opened(tmp_path)[EVENTS]) == 20


def test_an_append_that_rolls_while_the_logs_are_closed_is_kept(tmp_path: Path) -> None:
    """The threads end before the last log is closed; the flush of a roll has none to run in then."""
    with LogManager.open([tmp_path], clock=ManualClock(NOW)) as manager:
        manager.topics.create("events", config={"segment.bytes": "300"})
        append(manager[EVENTS], size=100)
        manager._end_threads()
        for _ in range(5):
            append(manager[EVENTS], size=100)
        manager[EVENTS].roll()
        assert values(manager[EVENTS]) == 6 and len(manager[EVENTS].view.segments) > 2
    with opened(tmp_path) as manager:
        assert values(manager[EVENTS]) == 6 and manager.directories[0].had_clean_shutdown


def test_several_fetches_are_answered_by_a_multi_message_set_send(tmp_path: Path) -> None:
    """Worked example 19: 4-byte total length, 2-byte error code, MessageSetSends."""
    with opened(tmp_path / "a") as manager:
        log, nowhere = manager.get_or_create(EVENTS), TopicPartition("nowhere", 0)
        append(log, 2)
        result = manager.fetch([(EVENTS, 0, 1 << 20), (nowhere, 0, 100), (EVENTS, 99, 100)])
        frame = b"".join(encode_multi_message_set_send(result.results, result.error_code))
        first, *failed = decode_multi_message_set_send(frame).results
        assert first.messages.tobytes() == read(log.view, 0, 1 << 20).batches()[0].tobytes() != b""
        assert first.error_code == 0
        assert [(each.error_code, len(each.messages)) for each in failed] == [(3, 0), (1, 0)]
