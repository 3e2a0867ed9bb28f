"""What is timed: whole processes (cold), jobs on a session that runs (warm), pieces, and the machine.

Every cleaning works on a copy of the generated directory whose closed segments are hard links: the swap
renames and unlinks names, and writes only new files. Making and dropping copies is never timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.generate import SEGMENT_BYTES, WHERE, Generated
from siltstone.base import files
from siltstone.base.config import Config, parse_assignments
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.compaction.engine import Engine, bucket_count, entry_capacity
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.expiry import count_records
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log, staging_folder
from siltstone.compaction.keys import EntryBlob, KeyCollector, merge_bucket
from siltstone.compaction.staging import GroupReport, rewrite_range
from siltstone.compaction.work import Extracted, extract, retained_by_range
from siltstone.log.directory import LogDirectory
from siltstone.log.segments import list_segments, windows

SETTINGS = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", f"segment.bytes={SEGMENT_BYTES}")
NOW_MS = 1_710_000_000_000


class WrongResultError(Exception):
    """A cleaning did not leave what it should have left."""


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds of the repetitions of one thing, and the bytes it went through."""

    size: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, object]:
        """Numbers for machines."""
        return {
            "bytes": self.size,
            "seconds": [round(second, 4) for second in self.seconds],
            "median_seconds": round(self.median, 4),
            "median_gb_per_second": round(self.size / self.median / 1e9, 4),
        }


@contextlib.contextmanager
def fresh_copy(folder: Path) -> Iterator[Path]:
    """A copy of ``folder``/log to clean, gone afterwards; what is dirty on the disk is settled first."""
    copy = folder / f"copy-{os.getpid()}"
    shutil.rmtree(copy, ignore_errors=True)
    (copy / str(WHERE)).mkdir(parents=True)
    active = max(path.name for path in (folder / "log" / str(WHERE)).glob("*.log")).removesuffix(".log")
    for source in (folder / "log").rglob("*"):
        target = copy / source.relative_to(folder / "log")
        if source.is_file() and source.suffix and not source.name.startswith((active, ".")):
            os.link(source, target)
        elif source.is_file():
            shutil.copy2(source, target)
    os.sync()
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def check(directory: Path, generated: Generated) -> None:
    """Are there as many records as there must be? Raises WrongResultError."""
    counts = [count_records(segment) for segment in list_segments(directory / str(WHERE))]
    records = sum(count or 0 for count in counts)
    if records != generated.expected_records:
        raise WrongResultError(f"{records} records after cleaning, {generated.expected_records} expected")


def cold(folder: Path, generated: Generated, repetitions: int) -> Times:
    """The command as a process of its own, Python, Java and Spark started for it."""
    times = Times(size=generated.closed_size)
    for _ in range(repetitions):
        with fresh_copy(folder) as copy:
            command = [str(Path(sys.executable).with_name("siltstone")), "clean", str(copy), "--in-place"]
            command += ["--topic", WHERE.topic, "--now-ms", str(NOW_MS), "--json", "--engine=spark"]
            command += [part for setting in SETTINGS for part in ("--config", setting)]
            began = time.perf_counter()
            completed = subprocess.run(command, capture_output=True, text=True, check=False)
            times.seconds.append(time.perf_counter() - began)
            _check_report(completed)
            check(copy, generated)
    return times


def _check_report(completed: subprocess.CompletedProcess[str]) -> None:
    if completed.returncode:
        raise WrongResultError(
            f"siltstone clean ended with {completed.returncode}: {completed.stderr.strip()}"
        )
    (log,) = json.loads(completed.stdout)["logs"]
    if log["status"] != "cleaned":
        raise WrongResultError(f"{log['status']}: {log['reason']}")


def state_of(directory: LogDirectory) -> LogState:
    """The one log of a generated directory, to be compacted."""
    config = Config(parse_assignments(SETTINGS, "bench"))
    return LogState(
        topic_partition=WHERE, path=directory.partitions[WHERE], directory=directory, config=config
    )


def clean_once(engine: Engine, folder: Path, generated: Generated) -> float:
    """One cleaning in place of a fresh copy: seconds, from the lock to the checkpoint."""
    with fresh_copy(folder) as copy:
        began = time.perf_counter()
        with LogDirectory.open(copy) as directory:
            cleaner = Cleaner(lambda: engine, InPlace("bench"), RunLimits(whole_log_bytes=1))
            (result,) = cleaner.run([state_of(directory)], PlanOptions(now_ms=NOW_MS))
        seconds = time.perf_counter() - began
        if result.status != "cleaned":
            raise WrongResultError(f"{result.status}: {result.reason}")
        check(copy, generated)
    return seconds


def warm(engine: Engine, folder: Path, generated: Generated, repetitions: int) -> Times:
    """Cleanings on a session that runs already."""
    return Times(
        size=generated.closed_size,
        seconds=[clean_once(engine, folder, generated) for _ in range(repetitions)],
    )


@contextlib.contextmanager
def planned_cleaning(folder: Path) -> Iterator[tuple[PlannedLog, InPlace]]:
    """A cleaning of a fresh copy, planned and set up."""
    with fresh_copy(folder) as copy, LogDirectory.open(copy) as directory:
        state = state_of(directory)
        planned = plan_log(
            state, directory.checkpoints(), PlanOptions(now_ms=NOW_MS), staging_folder(state.path, "bench")
        )
        assert isinstance(planned, PlannedLog)
        destination = InPlace("bench")
        destination.setup_log(planned)
        yield planned, destination


def pieces(folder: Path, generated: Generated) -> dict[str, Times]:
    """The stages one after another on one core, without Spark; the kernels by themselves."""
    times: dict[str, Times] = {}
    timed = _timed(times, generated.closed_size)
    with planned_cleaning(folder) as (planned, destination):
        work, extracted = planned.work, Extracted()
        buckets = bucket_count(work, 2)
        blobs: list[EntryBlob] = timed(
            "extract",
            lambda: [
                blob.copied() for blob in extract(work, work.splits, buckets, entry_capacity(work), extracted)
            ],
        )
        merged = timed("merge", lambda: [_merge(blobs, bucket, buckets) for bucket in range(buckets)])
        retained: dict[int, list[np.ndarray[tuple[int], np.dtype[np.uint32]]]] = {}
        for winners in merged:
            for group_range, offsets in retained_by_range(work, winners):
                retained.setdefault(group_range.group, []).append(offsets)
        groups: list[GroupReport] = timed(
            "rewrite, fsync, check",
            lambda: [
                rewrite_range(
                    work, part, np.concatenate([np.empty(0, np.uint32), *retained.get(part.group, [])]), "0"
                ).groups[0]
                for part in work.ranges
            ],
        )
        timed("swap, checkpoint", lambda: _swap(destination, planned, groups))
    with planned_cleaning(folder) as (planned, _):
        _kernels(planned, times)
    return times


def _timed(times: dict[str, Times], size: int) -> Callable[..., object]:
    def run(name: str, action: Callable[[], object]) -> object:
        began = time.perf_counter()
        result = action()
        times[name] = Times(size=size, seconds=[time.perf_counter() - began])
        return result

    return run


def _merge(blobs: list[EntryBlob], bucket: int, buckets: int):
    return merge_bucket([blob for blob in blobs if blob.bucket == bucket], bucket, buckets)


def _swap(destination: InPlace, planned: PlannedLog, groups: list[GroupReport]) -> None:
    destination.commit_groups(planned, groups)
    destination.commit_log(planned)


def _kernels(planned: PlannedLog, times: dict[str, Times]) -> None:
    """On the first segment: checksums with reading, decoding, hashing, and de-duplication."""
    segment, scratch = planned.work.segments[0], Scratch()
    collector = KeyCollector(hash_key=planned.work.hash_key, first_dirty=0, buckets=1, capacity=1 << 22)
    spent = dict.fromkeys(("read, checksums", "decode", "hash"), 0.0)
    with files.Reader(segment.path) as reader:
        began = time.perf_counter()
        for window in windows(reader, window_size=planned.work.limits.window_size):
            read = time.perf_counter()
            columns = decode_records(window.data, window.batches, scratch)
            decoded = time.perf_counter()
            list(collector.add(columns, columns.key_size >= 0))
            hashed = time.perf_counter()
            spent["read, checksums"] += read - began
            spent["decode"] += decoded - read
            spent["hash"] += hashed - decoded
            began = hashed
    for name, seconds in spent.items():
        times[f"one segment: {name}"] = Times(size=segment.size, seconds=[seconds])
    began = time.perf_counter()
    list(collector.finish())
    times["one segment: the rest of de-duplicating"] = Times(
        size=segment.size, seconds=[time.perf_counter() - began]
    )


def machine(folder: Path, generated: Generated) -> dict[str, Times]:
    """Plain reading of the closed segments, and writing what is left of them with fsync; one core."""
    buffer = np.zeros(4 << 20, np.uint8)
    read = Times(size=generated.closed_size)
    for _ in range(3):
        began = time.perf_counter()
        for path in sorted((folder / "log" / str(WHERE)).glob("*.log")):
            with files.Reader(path) as reader:
                position = 0
                while got := reader.read_into(buffer, position):
                    position += got
        read.seconds.append(time.perf_counter() - began)
    size = generated.closed_size * generated.distinct_keys // generated.cleaned_records
    write = Times(size=size)
    for _ in range(3):
        path = folder / f"plain-{os.getpid()}"
        began = time.perf_counter()
        with files.Writer(path) as writer:
            for start in range(0, size, len(buffer)):
                writer.write(buffer[: min(len(buffer), size - start)])
            writer.sync()
        write.seconds.append(time.perf_counter() - began)
        path.unlink()
    return {"read (page cache)": read, "write + fsync of the output's size": write}
