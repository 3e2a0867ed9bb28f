"""Small logs made by hand: batches, segments with their indexes, a log directory around them, a run.

A log is written as ``{base offset: [batch, …]}``; the segment with the highest base is the active one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base.config import Config, parse_assignments
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch, encode_headers
from siltstone.base.records.layout import HEADER
from siltstone.base.records.scan import ScanEnd, scan_batches
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import Destination, InPlace
from siltstone.compaction.inplace.execution import new_file_bytes, retained_file_bytes, shuffle_spill_bytes
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log
from siltstone.compaction.report import LogResult
from siltstone.log.directory import LogDirectory
from siltstone.log.indexes import IndexBuilder
from siltstone.log.names import TopicPartition, segment_file
from tests.support.golden_sets import write_checkpoint
from tests.support.records import twin

NOW = 1_800_000_000_000
DAY = 86_400_000
WHERE = TopicPartition("topic", 0)
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
RECORD_TIME = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True)
class Rec:
    """One record of a log made by hand."""

    offset: int
    key: bytes | None
    value: bytes | None = b"value"
    timestamp: int = RECORD_TIME
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fields of a batch header, but for size and checksum."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


def batch(records: Sequence[Rec], *, last_offset: int | None = None, **shape: object) -> bytes:
    """One batch; ``shape`` are the fields of ``NewBatchHeader``."""
    base = shape.pop("base_offset", records[0].offset if records else 0)
    built = build_batch(
        NewBatchHeader(base_offset=base, **shape),  # type: ignore[arg-type]
        offset=np.array([record.offset for record in records], np.int64),
        timestamp=np.array([record.timestamp for record in records], np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
        headers=Spans.of([encode_headers(record.headers) for record in records]),
        last_offset=last_offset,
    )
    return built.tobytes()


def one(offset: int, key: str | None, value: str | None = "value", **shape: object) -> bytes:
    """A batch of one record."""
    encoded = None if key is None else key.encode()
    return batch([Rec(offset=offset, key=encoded, value=None if value is None else value.encode())], **shape)


def write_segment(
    partition: Path, base: int, data: bytes, interval: int = 4096, room: int = 10 << 20
) -> None:
    """A segment's log with the indexes that belong to it."""
    (partition / segment_file(base, "log")).write_bytes(data)
    scan = scan_batches(np.frombuffer(bytearray(data), np.uint8))
    assert scan.outcome == ScanEnd.CLEAN
    builder = IndexBuilder(base, interval, room)
    builder.add_batches(scan.batches)
    indexes = builder.finish()
    (partition / segment_file(base, "index")).write_bytes(indexes["index"])
    (partition / segment_file(base, "timeindex")).write_bytes(indexes["timeindex"])


def write_log(
    path: Path,
    segments: Mapping[int, Sequence[bytes]],
    *,
    checkpoint: int | None = None,
    high_watermark: int | None = 1 << 40,
    log_start: int | None = None,
    modified_ms: Mapping[int, int] | None = None,
    interval: int = 4096,
) -> Path:
    """A log directory with one partition, ``topic-0``; returns the partition's directory."""
    partition = path / str(WHERE)
    partition.mkdir(parents=True)
    for base, batches in segments.items():
        write_segment(partition, base, b"".join(batches), interval)
        stamp = (modified_ms or {}).get(base, NOW - 10 * DAY + base) * 1_000_000
        os.utime(partition / segment_file(base, "log"), ns=(stamp, stamp))
    (path / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")
    for name, offset in (
        ("cleaner-offset-checkpoint", checkpoint),
        ("replication-offset-checkpoint", high_watermark),
        ("log-start-offset-checkpoint", log_start),
    ):
        if offset is not None:
            write_checkpoint(path / name, {(WHERE.topic, WHERE.partition): offset})
    return partition


def settings(changes: Mapping[str, object] | None = None) -> Config:
    """A compacted topic's settings."""
    return Config(parse_assignments([f"{k}={v}" for k, v in {**CONFIG, **(changes or {})}.items()], "test"))


def run(
    path: Path,
    *,
    config: Mapping[str, object] | None = None,
    now_ms: int = NOW,
    engine: Callable[[], Engine] = InProcessEngine,
    destination: Destination | None = None,
    limits: RunLimits | None = None,
    **choices: bool,
) -> LogResult:
    """Clean the directory's only log in place, keyless records dropped; the directory is locked meanwhile."""
    options = PlanOptions(now_ms=now_ms, **{"drop_keyless": True, "force": True, **choices})
    with LogDirectory.open(path) as directory:
        ((topic_partition, partition),) = directory.partitions.items()
        state = LogState(
            topic_partition=topic_partition, path=partition, directory=directory, config=settings(config)
        )
        (result,) = Cleaner(engine, destination or InPlace("run"), limits or RunLimits()).run(
            [state], options
        )
    return result


def one_group_a_wave(
    path: Path, config: Mapping[str, object] | None = None, now_ms: int = NOW, *, times: int = 1
) -> RunLimits:
    """Limits under which a log is spread, in waves of one group, with room for ``times`` the largest."""
    with LogDirectory.open(path) as directory:
        ((topic_partition, partition),) = directory.partitions.items()
        state = LogState(
            topic_partition=topic_partition, path=partition, directory=directory, config=settings(config)
        )
        choices = PlanOptions(now_ms=now_ms, force=True, drop_keyless=True)
        plan = plan_log(state, directory.checkpoints(), choices, None)
    if not isinstance(plan, PlannedLog):
        return RunLimits(whole_log_bytes=0)
    work = plan.work
    largest = max(new_file_bytes(work, group) for group in work.groups)
    room = times * largest + shuffle_spill_bytes(work) + retained_file_bytes(work)
    return RunLimits(whole_log_bytes=0, max_extra_bytes=room, wave_bytes=1)


def logs_of(partition: Path) -> dict[int, bytes]:
    """The bytes of every segment's log."""
    return {int(path.stem): path.read_bytes() for path in sorted(partition.glob("*.log"))}


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory and what is in it."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
    }


def headers_of(data: bytes) -> Iterator[tuple[Header, bytes]]:
    """Each batch's header and its whole bytes."""
    position = 0
    while position < len(data):
        fields = HEADER.unpack_from(data, position)
        size = fields[1] + 12
        yield (
            Header(
                base_offset=fields[0],
                last_offset=fields[0] + fields[6],
                leader_epoch=fields[2],
                attributes=fields[5],
                base_timestamp=fields[7],
                max_timestamp=fields[8],
                producer_id=fields[9],
                producer_epoch=fields[10],
                base_sequence=fields[11],
                count=fields[12],
            ),
            data[position : position + size],
        )
        position += size


def records_in(data: bytes) -> list[twin.Record]:
    """All records of a log's bytes by the twin, checksums checked."""
    records = []
    end = 0
    for entry in twin.decode_log(data):
        assert entry.valid, f"checksum at {entry.position}"
        records += entry.records
        end = entry.position + entry.size
    assert end == len(data)
    return records


def offsets(partition: Path) -> list[int]:
    """The offsets of all records of a partition, in log order."""
    return [record.offset for data in logs_of(partition).values() for record in records_in(data)]
