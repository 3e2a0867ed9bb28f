"""`recover_directories`: markers, checkpoints, and one bad log or disk among good ones."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.log.directory import LogDirectory
from siltstone.log.names import TopicPartition
from siltstone.log.recovery import directories as recovery_directories
from siltstone.log.recovery.directories import (
    DirectoryRecovery,
    LogRecovery,
    RecoveryOptions,
    recover_directories,
)
from tests.support.cleaning.logs import one, tree, write_segment
from tests.support.golden_sets import read_checkpoint, write_checkpoint

NOW = 1_700_000_001_000
MARKER = ".kafka_cleanshutdown"
POINTS, STARTS = "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"
MARKS = "replication-offset-checkpoint"


def write(path: Path, topics: str = "a b c", *, clean: bool = True) -> Path:
    """A log directory with one partition of two segments, 20 records, for each topic."""
    for topic in topics.split():
        partition = path / f"{topic}-0"
        partition.mkdir(parents=True)
        for base in (0, 10):
            write_segment(partition, base, b"".join(one(base + i, "k", "v") for i in range(10)))
    (path / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")
    write_checkpoint(path / POINTS, {(topic, 0): 20 for topic in topics.split()})
    if clean:
        (path / MARKER).write_text('{"version":0,"brokerEpoch":17}')
    return path


def recover(*paths: Path, close: bool = True, **options: object) -> list[DirectoryRecovery]:
    recovery_options = RecoveryOptions(
        config_of=lambda topic_partition: LogConfig(), now_ms=NOW, mark_clean_shutdown=close, **options
    )  # type: ignore[arg-type]
    opened = [LogDirectory.open(path) for path in paths]
    try:
        return recover_directories(opened, recovery_options)
    finally:
        for directory in opened:
            directory.close()


def logs_of(recovery: DirectoryRecovery) -> dict[str, LogRecovery]:
    return {log.topic_partition.topic: log for log in recovery.logs}


def damage(path: Path, at: int = 80) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def make_go_back(partition: Path) -> None:
    with (partition / f"{10:020d}.log").open("ab") as log:
        log.write(one(15, "k", "v"))


def test_a_clean_directory_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "log")
    recover(path)
    before = tree(path)
    (recovery,) = recover(path)
    assert recovery.was_clean and recovery.offline is None and not recovery.needs_attention
    assert {log.status for log in recovery.logs} == {"nothing_to_do"}
    assert tree(path) == before
    assert (path / MARKER).read_text() == '{"version":0,"brokerEpoch":17}'


def test_the_marker_is_gone_while_logs_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log")
    marker_exists = []
    real = recovery_directories.recover_partition

    def watching(*arguments: object, **named: object) -> object:
        marker_exists.append((path / MARKER).exists())
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery_directories, "recover_partition", watching)
    recover(path, close=False)
    assert marker_exists == [False] * 3
    assert not (path / MARKER).exists()


def test_after_a_crash_the_marker_has_no_brokers_epoch(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    (recovery,) = recover(path)
    assert not recovery.was_clean
    assert (path / MARKER).read_text() == '{"version":0,"brokerEpoch":-1}'


def test_checkpoints_say_what_was_found(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    write_checkpoint(path / POINTS, {("a", 0): 3, ("b", 0): 20, ("deleted", 0): 99})
    write_checkpoint(path / STARTS, {("a", 0): 5, ("b", 0): 0, ("c", 0): 15, ("deleted", 0): 7})
    write_checkpoint(path / MARKS, {("a", 0): 12, ("b", 0): 20, ("elsewhere", 1): 4})
    log = path / "b-0" / f"{10:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    recover(path)
    assert read_checkpoint(path / POINTS) == {("a", 0): 20, ("b", 0): 19, ("c", 0): 20}
    assert read_checkpoint(path / STARTS) == {("a", 0): 5, ("c", 0): 15}
    assert read_checkpoint(path / MARKS) == {("a", 0): 12, ("b", 0): 19, ("elsewhere", 1): 4}


def test_a_log_without_a_recovery_point_is_recovered_from_its_first_record(tmp_path: Path) -> None:
    (tmp_path / "log" / "a-0").mkdir(parents=True)
    path = write(tmp_path / "log", topics="", clean=False)
    for base in (0, 1):
        write_segment(path / "a-0", base, one(base, "k", "v"))
    damage(path / "a-0" / f"{0:020d}.log", at=-1)
    (recovery,) = recover(path)
    recovered = logs_of(recovery)["a"].recovered
    assert recovered is not None and recovered.log_end_offset == 0


def test_checkpoints_that_make_no_sense_are_taken_for_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    (path / POINTS).write_bytes(b"\xff\xfe")
    (path / STARTS).write_text("0\n5\n")
    (recovery,) = recover(path)
    assert len(recovery.notes) == 2 and str(path / POINTS) in recovery.notes[0]
    assert read_checkpoint(path / POINTS) == {("a", 0): 20, ("b", 0): 20, ("c", 0): 20}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_log_that_is_refused_stops_no_other(tmp_path: Path, threads: int) -> None:
    path = write(tmp_path / "log", clean=False)
    make_go_back(path / "b-0")
    (recovery,) = recover(path, threads=threads)
    logs = logs_of(recovery)
    assert (logs["a"].status, logs["b"].status, logs["c"].status) == ("recovered", "refused", "recovered")
    assert "base offset 15" in logs["b"].reason and logs["b"].recovered is None
    assert Path(logs["b"].damage[0].path).name == f"{10:020d}.log"
    assert read_checkpoint(path / POINTS)[("b", 0)] == 20
    assert recovery.needs_attention and not (path / MARKER).exists()


def test_damage_below_the_recovery_point_is_reported_where_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    damage(path / "c-0" / f"{0:020d}.log")
    (recovery,) = recover(path, check=None)
    log = logs_of(recovery)["c"]
    assert log.status == "damaged" and "left as it is" in log.reason
    assert log.recovered is not None and log.recovered.log_end_offset == 20
    assert (path / MARKER).exists()
    (recovery,) = recover(path, check=None)
    assert logs_of(recovery)["c"].status == "nothing_to_do"
    (recovery,) = recover(path, check=True)
    assert logs_of(recovery)["c"].status == "damaged"


def test_the_first_damage_comes_before_other_notes(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "a", clean=False)
    for at in (80, 300):
        damage(path / "a-0" / f"{0:020d}.log", at)
    (path / "a-0" / "leader-epoch-checkpoint").write_bytes(b"\xff")
    (recovery,) = recover(path, check=None)
    log = logs_of(recovery)["a"]
    first, second = log.damage
    assert first.position < second.position
    begin = f"corrupt below the recovery point, left as it is: {first} and 1 more; leader-epoch-checkpoint"
    assert log.reason.startswith(begin)


def failing_at(path: Path) -> Callable[[files.Operation], None]:
    def observer(operation: files.Operation) -> None:
        if operation[1].startswith(str(path)):
            raise OSError(errno.EIO, "Input/output error", operation[1])

    return observer


def test_a_disk_that_fails_goes_offline_alone(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good", "a b", clean=False), write(tmp_path / "bad", "c d e", clean=False)
    with files.observe(failing_at(bad / "d-0")):
        first, second = recover(good, bad)
    assert first.offline is None and (good / MARKER).exists()
    assert second.offline is not None and "Input/output error" in second.offline
    assert str(bad / "d-0") in second.offline
    assert {log.topic_partition.topic: log.status for log in second.logs}["d"] == "failed"
    assert logs_of(second)["e"].status == "failed" and "offline" in logs_of(second)["e"].reason
    assert [log.topic_partition.topic for log in second.logs] == ["c", "d", "e"]
    assert not (bad / MARKER).exists()
    assert read_checkpoint(bad / POINTS) == {(topic, 0): 20 for topic in "cde"}


def test_a_marker_that_cannot_be_removed_takes_the_directory_offline(tmp_path: Path) -> None:
    path = write(tmp_path / "log")
    with files.observe(failing_at(path / MARKER)):
        (recovery,) = recover(path)
    assert recovery.offline is not None and MARKER in recovery.offline
    assert [log.status for log in recovery.logs] == ["failed"] * 3
    assert (path / MARKER).exists()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    log = path / "b-0" / f"{10:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    before = tree(path)
    (recovery,) = recover(path, dry_run=True)
    recovered = logs_of(recovery)["b"].recovered
    assert recovered is not None and recovered.log_end_offset == 19 and recovered.truncated_bytes > 0
    after = tree(path)
    after.pop(".lock", None)
    assert after == before


def test_one_partition_alone_leaves_the_marker_and_the_others_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "log", clean=False)
    write_checkpoint(path / POINTS, {("a", 0): 3, ("b", 0): 4})
    (one_done,) = recover(path / "a-0")
    assert [log.topic_partition for log in one_done.logs] == [TopicPartition("a", 0)]
    assert read_checkpoint(path / POINTS) == {("a", 0): 20, ("b", 0): 4}
    assert not (path / MARKER).exists()


def test_a_folder_that_is_no_brokers_gets_no_checkpoints(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "a", clean=False)
    (path / "meta.properties").unlink()
    (path / POINTS).unlink()
    (recovery,) = recover(path)
    assert logs_of(recovery)["a"].recovered is not None
    assert [entry.name for entry in path.iterdir()] == ["a-0"]


def test_the_metadata_log_is_left_alone(stopped_broker: tuple[Path, Path]) -> None:
    for path in stopped_broker:
        (path / MARKER).unlink()
    metadata = stopped_broker[0] / "__cluster_metadata-0"
    before = tree(metadata)
    first, second = recover(*stopped_broker, check=None, threads=2)
    assert logs_of(first)["__cluster_metadata"].status == "skipped"
    assert tree(metadata) == before
    assert not first.needs_attention and not second.needs_attention
    assert all((path / MARKER).exists() for path in stopped_broker)
    for path in stopped_broker:
        assert {log.recovered.log_end_offset for log in (*first.logs, *second.logs) if log.recovered} >= set(
            read_checkpoint(path / POINTS).values()
        )
