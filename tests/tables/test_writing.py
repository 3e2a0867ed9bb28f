"""A write, step by step: its records are in the logs once, all of them, or none."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    CorruptMessageError,
    DirectoryLockedError,
    DirectoryRefusedError,
    InvalidTimestampError,
    MessageTooLargeError,
    NotALogDirectoryError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.build import Spans, encode_headers
from siltstone.base.records.hashing import partition_for_key, partitions_for_keys
from siltstone.base.records.layout import Bytes
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.tables import commit
from siltstone.tables.commit import WRITES_FILE, WRITES_MAX, Write, load_writes, staged_batches, store_write
from siltstone.tables.writing import (
    WriteOptions,
    abort_plan,
    commit_plan,
    header_spans_of,
    record_rows,
    spans_of,
    stage_task,
)
from tests.support.cleaning.logs import one
from tests.support.errors import raises_error
from tests.support.tables.writes import (
    CLOCK,
    NOW,
    TYPES,
    job,
    left_over,
    numbered,
    planned,
    records,
    rows,
    staged,
    values,
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory with a topic of three partitions and one of one."""
    path = tmp_path / "logs"
    with LogManager.open([path], clock=CLOCK) as manager:
        manager.topics.create("users", 3)
        manager.topics.create("one", 1)
    return path


def set_config(path: Path, topic: str, **config: str) -> None:
    with LogManager.open([path], clock=CLOCK) as manager:
        manager.topics.alter(topic, {key.replace("_", "."): text for key, text in config.items()})


def batches_of(path: Path, topic: str) -> list[tuple[int, int]]:
    """(records, attributes) of each batch of partition 0."""
    with ReadOnlyLogs([path], clock=CLOCK) as logs:
        _, batches, _ = logs[TopicPartition(topic, 0)].read(0, 1 << 30).batches()
    return list(zip(batches["count"].tolist(), batches["attributes"].tolist(), strict=True))


def strings(spans: Spans) -> list[bytes | None]:
    places = zip(spans.start.tolist(), spans.size.tolist(), strict=True)
    return [spans.data[start : start + size].tobytes() if size >= 0 else None for start, size in places]


# The records in the log


def test_seconds_out_of_the_range_of_milliseconds_are_the_nearest_in_it() -> None:
    longest = (1 << 63) - 1
    times = pa.array([-longest - 1, -1, NOW, longest], pa.timestamp("s"))
    given = pa.record_batch({"value": pa.array([b"v"] * 4), "timestamp": times})
    maximum = longest // 1000 * 1000
    assert record_rows(given, 0).timestamp.tolist() == [-maximum, -1000, NOW * 1000, maximum]


def test_every_column_of_a_record_is_written(logs: Path) -> None:
    given = [
        {"key": b"a", "value": b"1", "timestamp": NOW * 1000 + 999, "headers": [{"key": "h", "value": b"x"}]},
        {"key": None, "value": b"", "timestamp": None, "headers": []},
        {"key": b"", "value": None, "timestamp": (NOW - 5) * 1000, "headers": None},
        {"key": b"b", "value": b"2", "timestamp": 0, "headers": [{"key": "é", "value": None}] * 2},
    ]
    job(logs, [rows(*given)], topic="one")
    found = records(logs, "one")
    assert [(each.key, each.value) for each in found] == [
        (b"a", b"1"),
        (None, b""),
        (b"", None),
        (b"b", b"2"),
    ]
    assert [each.timestamp for each in found] == [NOW, NOW, NOW - 5, 0]
    assert [each.headers for each in found] == [((b"h", b"x"),), (), (), (("é".encode(), None),) * 2]
    assert [each.offset for each in found] == [0, 1, 2, 3]


def test_records_keep_the_order_of_tasks_and_rows(logs: Path) -> None:
    plan = planned(logs, topic="one")
    tasks = [[numbered(0, 50), numbered(50, 30)], [], [numbered(80, 20)]]
    found = staged(plan, *tasks)
    commit_plan(plan, reversed(found), clock=CLOCK)
    assert values(logs, "one") == [b"v%d" % n for n in range(100)]
    assert left_over(logs) == []


def test_a_keys_partition_is_that_of_kafkas_partitioner_unless_a_column_has_another(logs: Path) -> None:
    job(logs, [numbered(0, 300)], topic="users")
    for partition in range(3):
        keys = [record.key for record in records(logs, "users", partition)]
        assert keys == [b"k%d" % n for n in range(300) if partition_for_key(b"k%d" % n, 3) == partition]
    told = [{"key": b"k", "value": b"%d" % n, "partition": n % 3 if n < 6 else None} for n in range(8)]
    before = [len(records(logs, "users", partition)) for partition in range(3)]
    job(logs, [rows(*told)], topic="users")
    more = [values(logs, "users", partition)[before[partition] :] for partition in range(3)]
    expected = [[b"%d" % n for n in range(6) if n % 3 == partition] for partition in range(3)]
    expected[partition_for_key(b"k", 3)] += [b"6", b"7"]
    assert more == expected


def test_keyless_records_of_a_batch_stay_together_and_batches_take_turns(logs: Path) -> None:
    keyless = [rows(*[{"key": None, "value": b"%d" % turn}] * 5) for turn in range(6)]
    job(logs, keyless, topic="users")
    counts = [len(records(logs, "users", partition)) for partition in range(3)]
    assert counts == [10, 10, 10]


def test_the_column_topic_has_each_records_topic(logs: Path) -> None:
    given = [{"topic": ["one", "users"][n % 2], "value": b"%d" % n, "partition": 0} for n in range(6)]
    job(logs, [rows(*given)])
    assert values(logs, "one") == [b"0", b"2", b"4"]
    assert values(logs, "users") == [b"1", b"3", b"5"]


def test_a_partition_directory_is_written_to_by_itself(logs: Path) -> None:
    job(logs / "one-0", [numbered(0, 3)])
    assert values(logs, "one") == [b"v0", b"v1", b"v2"]


def test_a_topic_is_made_in_a_new_directory(tmp_path: Path) -> None:
    job(tmp_path / "new", [numbered(0, 10, partition=4)], topic="made", partitions="5")
    assert len(values(tmp_path / "new", "made", 4)) == 10
    job(tmp_path / "new", [numbered(0, 10, partition=4)], topic="made", partitions="5")
    assert len(values(tmp_path / "new", "made", 4)) == 20


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_have_the_requested_codec_and_about_the_requested_size(logs: Path, codec: str) -> None:
    given = rows(*[{"value": b"x" * 900} for _ in range(100)])
    job(logs, [given], topic="one", compression=codec, batchSize="10k")
    found = batches_of(logs, "one")
    assert {attributes for _, attributes in found} == {["none", "gzip", "snappy", "lz4", "zstd"].index(codec)}
    assert [count for count, _ in found] == [10] * 10
    assert len(values(logs, "one")) == 100


def test_the_topics_own_codec_is_used_and_a_large_record_is_a_batch_by_itself(logs: Path) -> None:
    set_config(logs, "one", compression_type="zstd")
    job(logs, [rows(*[{"value": b"y" * size} for size in (10, 5000, 10)])], topic="one", batchSize="1k")
    assert batches_of(logs, "one") == [(1, 4), (1, 4), (1, 4)]


def test_partitions_and_spans_are_those_of_plain_functions() -> None:
    rng = random.Random(11)
    keys = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(23)) for _ in range(500)]
    spans, found = Spans.of(keys), np.empty(500, np.int32)
    partitions_for_keys(spans.data, spans.start, spans.size, 7, found)
    assert found.tolist() == [-1 if key is None else partition_for_key(key, 7) for key in keys]
    for kind in (pa.binary(), pa.large_binary()):
        some = spans_of(pa.array(keys, kind)[7:400])
        assert strings(some) == keys[7:400]
    pairs = [None if rng.random() < 0.2 else [("k" * rng.randrange(1, 90), b"v")] * rng.randrange(3)] * 9
    lists = [None if pair is None else [{"key": k, "value": v} for k, v in pair] for pair in pairs]
    spans = header_spans_of(pa.array(lists, TYPES["headers"])[1:8])
    expected = [encode_headers([(k.encode(), v) for k, v in pair or []]) for pair in pairs[1:8]]
    assert strings(spans) == expected


# Once: repeated jobs and attempts


def test_a_job_that_runs_twice_with_its_id_leaves_no_duplicates(logs: Path) -> None:
    first = job(logs, [numbered(0, 10)], topic="one", writeId="backfill")
    again = job(logs, [numbered(0, 10)], topic="one", writeId="backfill")
    assert again == first
    assert first.ranges == {"one-0": (0, 10)}
    assert len(values(logs, "one")) == 10
    job(logs, [numbered(0, 10)], topic="one", writeId="another")
    job(logs, [numbered(0, 10)], topic="one")
    assert len(values(logs, "one")) == 30


def test_two_jobs_of_one_id_at_the_same_time_write_once(logs: Path) -> None:
    plans = [planned(logs, topic="one", writeId="same") for _ in range(2)]
    found = [staged(plan, [numbered(0, 5)]) for plan in plans]
    for plan, outputs in zip(plans, found, strict=True):
        commit_plan(plan, outputs, clock=CLOCK)
    assert len(values(logs, "one")) == 5
    assert left_over(logs) == []


def test_only_reported_attempts_are_committed(logs: Path) -> None:
    plan = planned(logs, topic="one")
    late = stage_task(plan, [numbered(0, 5)], task=0, clock=CLOCK)
    won = stage_task(plan, [numbered(0, 5)], task=0, clock=CLOCK)
    assert late.stem != won.stem
    commit_plan(plan, [won], clock=CLOCK)
    assert len(values(logs, "one")) == 5
    assert left_over(logs) == []


def test_an_attempt_that_fails_leaves_no_file(logs: Path) -> None:
    plan = planned(logs, topic="one", batchSize="100")

    def broken() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 100)
        raise RuntimeError("the task died")

    with pytest.raises(RuntimeError):
        stage_task(plan, broken(), task=0, clock=CLOCK)
    assert [path for path in logs.rglob("*") if path.suffix in (".batches", ".directory")] == []
    assert values(logs, "one") == []


def test_a_streams_epochs_are_written_once_each(logs: Path) -> None:
    for epoch in (0, 1, 1, 0, 2):
        plan = planned(logs, topic="one")
        found = staged(plan, [numbered(epoch * 10, 10)])
        commit_plan(plan, found, write_id="query", epoch=epoch, clock=CLOCK)
    assert values(logs, "one") == [b"v%d" % n for n in range(30)]
    assert [(write.write_id, write.epoch) for write in load_writes(logs)] == [("query", 2)]


def test_the_newest_writes_are_kept_up_to_a_number(tmp_path: Path) -> None:
    writes: list[Write] = []
    for number in range(WRITES_MAX + 5):
        entry = Write(write_id=f"w{number}", is_done=True, ranges={})
        writes = [*writes, entry] if number else [entry]
    kept = store_write(tmp_path, writes, Write(write_id="last", is_done=True, ranges={}))
    assert len(kept) == WRITES_MAX
    assert load_writes(tmp_path) == kept
    assert kept[-1].write_id == "last"


# Not at all: failures


def test_a_refused_append_rolls_the_whole_write_back(logs: Path) -> None:
    job(logs, [numbered(0, 3, partition=0)], topic="users")
    late = NOW * 1000 + 100 * 86_400_000_000
    good = [{"key": b"k", "value": b"%d" % n, "partition": n % 3, "timestamp": NOW * 1000} for n in range(9)]
    bad = [*good, {"key": b"k", "value": b"late", "partition": 2, "timestamp": late}]
    with pytest.raises(InvalidTimestampError):
        job(logs, [rows(*good)], [rows(*bad)], topic="users", writeId="bad")
    assert [len(values(logs, "users", partition)) for partition in range(3)] == [3, 0, 0]
    assert [write.write_id for write in load_writes(logs)] == []
    job(logs, [rows(*good)], topic="users", writeId="bad")
    assert [len(values(logs, "users", partition)) for partition in range(3)] == [6, 3, 3]


def test_a_refused_epoch_leaves_the_earlier_ones_written(logs: Path) -> None:
    def written_as(epoch: int, *batches: pa.RecordBatch) -> Write:
        plan = planned(logs, batches[0].schema.names, topic="one")
        return commit_plan(plan, staged(plan, batches), write_id="query", epoch=epoch, clock=CLOCK)

    written = written_as(2, numbered(0, 3))
    with pytest.raises(InvalidTimestampError):
        written_as(3, rows({"key": b"k", "value": b"late", "timestamp": NOW * 1000 + 100 * 86_400_000_000}))
    assert load_writes(logs) == [written]
    written_as(2, numbered(0, 3))
    assert len(values(logs, "one")) == 3
    written_as(3, numbered(3, 3))
    assert len(values(logs, "one")) == 6


def test_a_locked_directory_is_refused_when_planning_and_at_the_commit(logs: Path) -> None:
    plan = planned(logs, topic="one")
    found = staged(plan, [numbered(0, 5)])
    with LogManager.open([logs], clock=CLOCK):
        with raises_error(DirectoryLockedError, path=logs, about=".lock", advice="stop the broker"):
            planned(logs, topic="one")
        with pytest.raises(DirectoryLockedError):
            commit_plan(plan, found, clock=CLOCK)
    assert values(logs, "one") == []
    commit_plan(plan, found, clock=CLOCK)
    assert len(values(logs, "one")) == 5


def test_an_aborted_job_leaves_nothing(logs: Path) -> None:
    plan = planned(logs, topic="one")
    staged(plan, [numbered(0, 5)])
    abort_plan(plan)
    assert left_over(logs) == []
    assert values(logs, "one") == []


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_appended", [True, False])
def test_an_abort_leaves_the_files_of_a_commit_that_failed_half_way(
    logs: Path, monkeypatch: pytest.MonkeyPatch, is_appended: bool, is_stream: bool
) -> None:
    """Spark aborts a job whose commit fails. On a full disk the entry could be neither done nor taken back,
    and each later write was refused, since its staged files were missing."""
    plan = planned(logs, topic="one")
    found = staged(plan, [numbered(0, 5)])
    replace_file = commit._replace_file

    def fills_the_disk(root: Path, writes: list[Write]) -> list[Write]:
        if all(write.is_done for write in writes):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace_file(root, writes)

    def cannot_append(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(commit, "_replace_file", fills_the_disk)
        if not is_appended:
            patch.setattr(commit, "_append", cannot_append)
        commit_plan(plan, found, clock=CLOCK)
    abort_plan(planned(logs, topic="one"), found) if is_stream else abort_plan(plan)
    job(logs, [numbered(5, 1)], topic="one")
    assert values(logs, "one") == [b"v%d" % number for number in range(6)]
    assert left_over(logs) == []


def test_a_write_whose_staged_files_cannot_be_removed_is_done(
    logs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit failed with all records in the logs, so the job was run again and wrote them twice."""

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_tree", refused)
        assert job(logs, [numbered(0, 5)], topic="one").is_done
    assert len(values(logs, "one")) == 5
    assert "completed write" in caplog.text and "Permission denied" in caplog.text


def test_an_abort_removes_the_other_folders_if_one_cannot_be_removed(logs: Path, tmp_path: Path) -> None:
    tasks = [planned(logs, topic=topic) for topic in ("one", "users", "one")]
    found = [output for plan in tasks for output in staged(plan, [numbered(0, 5)])]
    theirs = Path(tasks[1].staging_folder).parent
    theirs.rename(tmp_path / "elsewhere")
    theirs.symlink_to(tmp_path / "elsewhere")
    with raises_error(DirectoryRefusedError, path=theirs):
        abort_plan(tasks[0], found)
    assert left_over(logs) == ["users-0/.siltstone-writes"]
    assert len(list((tmp_path / "elsewhere").rglob("*.batches"))) == 1


@pytest.mark.parametrize("ending", ["batches", "directory"])
@pytest.mark.parametrize("spoil", ["gone", "cut", "flipped"])
def test_missing_or_changed_staged_files_are_refused(logs: Path, ending: str, spoil: str) -> None:
    plan = planned(logs, topic="one")
    found = staged(plan, [numbered(0, 5)])
    path = Path(f"{found[0].stem}.{ending}")
    if spoil == "gone":
        path.unlink()
    elif spoil == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    if spoil == "gone":
        with raises_error(DirectoryRefusedError, path=path, advice="file system"):
            commit_plan(plan, found, clock=CLOCK)
    elif ending == "batches" and spoil == "flipped":
        with raises_error(CorruptMessageError, about="checksum"):
            commit_plan(plan, found, clock=CLOCK)
    else:
        with raises_error(CorruptFileError, path=path, position=0, advice="run the job again"):
            commit_plan(plan, found, clock=CLOCK)
    assert values(logs, "one") == []
    assert load_writes(logs) == []


@pytest.mark.parametrize("text", ["[" * 100_000, '"\xff"'], ids=["deep", "no UTF-8"])
def test_a_damaged_list_of_writes_is_an_error_of_this_file(logs: Path, text: str) -> None:
    (logs / WRITES_FILE).write_bytes(f'{{"version": 1, "writes": [], "x": {text}'.encode("latin-1"))
    with raises_error(CorruptFileError, path=logs / WRITES_FILE, position=0, advice="older copy"):
        planned(logs, topic="one", writeId="backfill")


@pytest.mark.parametrize(
    ("field", "number"), [("topic", 7), ("topic", -1), ("position", 1 << 40), ("size", -5), ("size", None)]
)
def test_a_manifest_that_is_not_of_its_batches_is_refused(logs: Path, field: str, number: int | None) -> None:
    """Whoever can forge the list of writes has the manifest's checksum, too."""
    found = staged(planned(logs, topic="one"), [numbered(0, 5)])[0]
    manifest = found.manifest().copy()
    manifest[field][0] = number or 0
    raw = manifest.tobytes() if number else manifest.tobytes()[:-1]
    Path(f"{found.stem}.directory").write_bytes(raw)
    forged = Write(
        write_id="half", ranges={"one-0": (0, 5)}, staged=(replace(found, manifest_crc=crc32c(raw)),)
    )
    store_write(logs, [], forged)
    with raises_error(CorruptFileError, path=f"{found.stem}.directory", position=0):
        job(logs, [numbered(0, 5)], topic="one")


def test_staged_files_of_an_abandoned_job_are_removed_after_a_week(logs: Path) -> None:
    old, young = planned(logs, topic="one"), planned(logs, topic="one")
    staged(old, [numbered(0, 5)])
    staged(young, [numbered(0, 5)])
    os.utime(old.staging_folder, ns=((NOW - 8 * 86_400_000) * 1_000_000,) * 2)
    os.utime(young.staging_folder, ns=(NOW * 1_000_000,) * 2)
    job(logs, [numbered(0, 5)], topic="one")
    assert not Path(old.staging_folder).exists()
    assert Path(young.staging_folder).exists()


def test_an_interrupted_write_is_refused_if_the_log_was_cleaned_since(logs: Path) -> None:
    plan = planned(logs, topic="one")
    found = staged(plan, [numbered(0, 5)])
    ranges = {"one-0": (0, 5)}
    store_write(logs, [], Write(write_id="half", ranges=ranges, staged=tuple(found)))
    with LogManager.open([logs], clock=CLOCK) as manager:
        manager.directories[0].write_cleaner_checkpoint(TopicPartition("one", 0), 3)
    with raises_error(DirectoryRefusedError, path="one-0", about="half", advice="siltstone-writes.json"):
        job(logs, [numbered(0, 5)], topic="one")


def test_an_interrupted_write_is_refused_by_name_if_its_partition_or_its_files_are_gone(logs: Path) -> None:
    found = staged(planned(logs, topic="users"), [numbered(0, 9)])
    ranges = {f"users-{partition}": (0, 3) for partition in range(3)}
    store_write(logs, [], Write(write_id="half", ranges=ranges, staged=tuple(found)))
    with raises_error(DirectoryRefusedError, path="users-0", about="half", advice="not to a partition's"):
        job(logs / "one-0", [numbered(0, 5)])
    Path(f"{found[0].stem}.batches").unlink()
    with raises_error(DirectoryRefusedError, about="missing", advice="remove the entry half"):
        job(logs, [numbered(0, 5)], topic="one")
    with LogManager.open([logs], clock=CLOCK) as manager:
        manager.topics.delete("users")
    with raises_error(DirectoryRefusedError, path="users-0", about="half", advice="siltstone-writes.json"):
        job(logs, [numbered(0, 5)], topic="one")


def test_an_interrupted_write_is_refused_if_a_topic_of_it_was_created_again(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its missing batches were appended to the new topic."""
    both = [{"topic": name, "key": b"k", "value": b"v", "partition": 0} for name in ("one", "users")]
    killed_after_appends(1, monkeypatch, lambda: job(logs, [rows(*both)], writeId="half"))
    (entry,) = load_writes(logs)
    deleted = "users" if entry.staged[0].stem.startswith("one") else "one"  # not that of the staged files
    with LogManager.open([logs], clock=CLOCK) as manager:
        partitions = len(manager.topics.partitions_of(deleted))
        manager.topics.delete(deleted)
        manager.topics.create(deleted, partitions)
    with raises_error(DirectoryRefusedError, path=f"{deleted}-0", about="created again", advice=WRITES_FILE):
        job(logs, [numbered(0, 1)], topic="one")
    assert values(logs, deleted) == []
    assert load_writes(logs) == [entry]


def test_an_interrupted_write_is_completed_by_the_next_one_after_later_records(logs: Path) -> None:
    plan = planned(logs, topic="one", batchSize="100")
    found = staged(plan, [numbered(0, 10)])
    ranges = {"one-0": (0, 10)}
    store_write(logs, [], Write(write_id="half", ranges=ranges, staged=tuple(found)))
    with LogManager.open([logs], clock=CLOCK) as manager:
        _, batch, _ = next(staged_batches(found[0]))
        manager["one", 0].append(batch)
    job(logs, [numbered(100, 2)], topic="one")
    assert values(logs, "one") == [*(b"v%d" % n for n in range(10)), b"v100", b"v101"]
    assert job(logs, [numbered(0, 10)], topic="one", writeId="half").is_done
    assert len(values(logs, "one")) == 12


def append_by_another_producer(logs: Path, value: str) -> None:
    with LogManager.open([logs], clock=CLOCK) as manager:
        manager["one", 0].append(one(0, None, value))


def killed_after_appends(count: int, monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> None:
    """Run ``write`` until it has appended ``count`` batches, and end it there as a kill does."""
    append, left = PartitionLog.append, itertools.count(count, -1)

    def killed(self: PartitionLog, data: Bytes) -> object:
        if next(left) == 0:
            raise KeyboardInterrupt
        return append(self, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartitionLog, "append", killed)
        write()


def test_a_write_that_is_interrupted_again_and_again_among_later_records_is_there_once(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half() -> Write:
        return job(logs, [numbered(0, 10)], topic="one", writeId="half", batchSize="40")

    for turn in range(4):
        killed_after_appends(2, monkeypatch, half)
        append_by_another_producer(logs, f"other {turn}")
    assert half().is_done
    others = [b"other %d" % turn for turn in range(4)]
    found = values(logs, "one")
    assert [value for value in found if value not in others] == [b"v%d" % n for n in range(10)]
    assert [value for value in found if value in others] == others
    assert left_over(logs) == []


@pytest.mark.parametrize("codecs", [("none", "zstd", "lz4"), ("gzip", "uncompressed", "snappy")])
def test_a_write_that_is_interrupted_between_changes_of_compression_is_there_once(
    logs: Path, monkeypatch: pytest.MonkeyPatch, codecs: tuple[str, str, str]
) -> None:
    header = [{"key": "h", "value": b"x"}, {"key": "none", "value": None}]
    batch = rows(
        *({"key": b"k" * n or None, "value": b"v%d" % n * 99, "headers": header[: n % 3]} for n in range(10))
    )
    plan = planned(logs, batch.schema.names, topic="one", batchSize="40", compression=codecs[0])
    found = staged(plan, [batch])
    set_config(logs, "one", compression_type=codecs[1], message_timestamp_type="LogAppendTime")
    killed_after_appends(2, monkeypatch, lambda: commit_plan(plan, found, clock=CLOCK))
    set_config(logs, "one", compression_type=codecs[2])
    killed_after_appends(2, monkeypatch, lambda: job(logs, [numbered(0, 1)], topic="one"))
    set_config(logs, "one", compression_type="producer")
    job(logs, [numbered(100, 1)], topic="one")
    assert values(logs, "one") == [*(b"v%d" % n * 99 for n in range(10)), b"v100"]
    assert len({attributes for _, attributes in batches_of(logs, "one")}) > 2


def interrupted(logs: Path, monkeypatch: pytest.MonkeyPatch, *, is_of_earlier_version: bool = False) -> None:
    """A write of ten records to the topic one that ended at its commit point, as a kill ends it."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(commit, "_append", killed)
        job(logs, [numbered(0, 10)], topic="one", writeId="half")
    (entry,) = load_writes(logs)
    (stored,) = entry.staged
    if is_of_earlier_version:
        old = replace(stored, stem=str(logs / stored.stem))
        store_write(logs, [], replace(entry, staged=(old,)))


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_a_copied_directory_completes_a_write_from_its_own_files(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_earlier_version: bool
) -> None:
    interrupted(logs, monkeypatch, is_of_earlier_version=is_of_earlier_version)
    original = left_over(logs)
    copy = shutil.copytree(logs, tmp_path / "elsewhere" / "copy")
    whole = [b"v%d" % n for n in range(10)]
    job(copy, [numbered(100, 1)], topic="one")
    assert values(copy, "one") == [*whole, b"v100"] and left_over(copy) == []
    assert left_over(logs) == original
    job(logs, [numbered(200, 1)], topic="one")
    assert values(logs, "one") == [*whole, b"v200"] and left_over(logs) == []


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_a_moved_directory_completes_a_write(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_earlier_version: bool
) -> None:
    interrupted(logs, monkeypatch, is_of_earlier_version=is_of_earlier_version)
    moved = logs.rename(tmp_path / "moved")
    job(moved, [numbered(100, 1)], topic="one")
    assert values(moved, "one") == [*(b"v%d" % n for n in range(10)), b"v100"] and left_over(moved) == []


@pytest.mark.parametrize(
    "stem",
    [
        "/{}/0",
        "{}/0",
        "one-0/../{}/0",
        "one-0/.siltstone-writes/../../{}/0",
        "/.siltstone-writes/{}/0",
        "one-0/.siltstone-writes/w/\0",
    ],
)
def test_staged_files_outside_of_the_directory_are_left_alone(logs: Path, tmp_path: Path, stem: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    found = staged(planned(logs, topic="one"), [numbered(0, 5)])[0]
    for ending in ("batches", "directory"):
        shutil.copy(f"{found.stem}.{ending}", outside / f"0.{ending}")
    forged = replace(found, stem=stem.format(str(outside).strip("/")))
    store_write(logs, [], Write(write_id="half", ranges={"one-0": (0, 5)}, staged=(forged,)))
    with raises_error(CorruptFileError, path=logs / WRITES_FILE, about="not in the directory"):
        job(logs, [numbered(0, 5)], topic="one")
    assert values(logs, "one") == [] and len(list(outside.iterdir())) == 2


# Refusals


@pytest.mark.parametrize(
    ("names", "options", "about", "advice"),
    [
        (("key",), {"topic": "one"}, "value", "null values are tombstones"),
        (("key", "value", "age"), {"topic": "one"}, "'age'", "value"),
        (("value",), {}, "topic", "column topic"),
        (("value",), {"topic": "one", "codec": "zstd"}, "'codec'", "docs/tables.md"),
        (("value",), {"topic": "one", "compression": "brotli"}, "compression='brotli'", "none or gzip"),
        (("value",), {"topic": "one", "batchSize": "much"}, "batchSize='much'", "128m"),
        (("value",), {"partitions": "3"}, "partitions", "option topic"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_anything_is_written(
    logs: Path, names: tuple[str, ...], options: dict[str, str], about: str, advice: str
) -> None:
    with raises_error(UsageError, about=about, advice=advice):
        planned(logs, names, **options)


def test_a_missing_topic_is_refused_unless_partitions_are_set(logs: Path) -> None:
    with raises_error(UnknownTopicError, path=logs, about="'none'", advice="partitions"):
        planned(logs, ("value",), topic="none")


def test_a_new_directory_needs_the_options_topic_and_partitions(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with raises_error(NotALogDirectoryError, path=tmp_path / name, advice="topic and partitions"):
            planned(tmp_path / name, ("value",), topic="made")
    (tmp_path / "empty" / "file").touch()
    with raises_error(NotALogDirectoryError, path=tmp_path / "empty") as raised:
        planned(tmp_path / "empty", ("value",), topic="made")
    assert "partitions" not in (raised.value.advice or "")
    assert not (tmp_path / "new").exists()


def test_partitions_are_not_created_in_a_partitions_directory(logs: Path) -> None:
    for name, topic in (("one-0", "one"), ("one-0", "made"), ("made-0", "made")):
        with raises_error(UsageError, path=logs / name, about="partitions", advice=str(logs)):
            planned(logs / name, ("value",), topic=topic, partitions="1")
    assert not (logs / "made-0").exists()
    job(logs / "logs-0", [numbered(0, 2)], topic="made", partitions="1")  # the name of a log directory, too
    assert values(logs / "logs-0", "made") == [b"v0", b"v1"]


def test_rows_that_fit_no_record_are_refused_by_the_task(logs: Path) -> None:
    def refused(batch: pa.RecordBatch, about: str, advice: str, **options: str) -> UsageError:
        plan = planned(logs, batch.schema.names, **options)
        with raises_error(UsageError, about=about, advice=advice) as raised:
            stage_task(plan, [batch], task=0, clock=CLOCK)
        return raised.value

    refused(numbered(0, 1, partition=3), "partition 3", "0, 1, 2", topic="users")
    beyond = pa.RecordBatch.from_pydict({"value": [b""], "partition": [1 << 32]})
    refused(beyond, "partition 4294967296", "0, 1, 2", topic="users")
    refused(rows({"topic": "none", "value": b""}), "topic 'none'", "siltstone topics --create")
    refused(rows({"topic": None, "value": b""}), "topic", "option topic")
    numbers = pa.RecordBatch.from_pydict({"value": pa.array([[1]])})
    refused(numbers, "list<item: int64>", "string or binary", topic="one")
    nameless = rows({"value": b"", "headers": [{"key": None, "value": b""}]})
    refused(nameless, "header", "key", topic="one")
    set_config(logs, "one", cleanup_policy="compact")
    assert refused(rows({"value": b""}), "key", "key", topic="one").path == "one"


def test_a_record_over_the_topics_maximum_is_refused_by_the_task(logs: Path) -> None:
    plan = planned(logs, ("value",), topic="one")
    with raises_error(MessageTooLargeError, path="one", about="max.message.bytes", advice="raise"):
        stage_task(plan, [rows({"value": b"x" * 2_000_000})], task=0, clock=CLOCK)


def test_an_internal_topic_is_not_written_to(tmp_path: Path) -> None:
    with LogManager.open([tmp_path / "logs"], clock=CLOCK) as manager:
        manager.get_or_create(TopicPartition("__consumer_offsets", 0))
    with raises_error(UnknownTopicError, about="__consumer_offsets"):
        planned(tmp_path / "logs", topic="__consumer_offsets")


def test_names_of_options_are_not_case_sensitive() -> None:
    found = WriteOptions.of({"PATH": "/x", "batchsize": "64k", "CheckpointLocation": "/c", "writeid": "7"})
    with raises_error(UsageError, about="'path'", advice="log directory"):
        WriteOptions.of({"topic": "one"})
    assert found == WriteOptions(path="/x", batch_bytes=64 << 10, write_id="7")
