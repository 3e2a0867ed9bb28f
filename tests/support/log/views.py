"""Views of partition directories as they lie there, and logs made at random for reading tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base.config import LogConfig
from siltstone.log.fetch import LogView
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.names import TopicPartition
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import list_segments
from tests.support.cleaning.logs import WHERE, Rec, batch, write_segment
from tests.support.records import twin


@dataclass
class FixedLog:
    """A log that somebody else moves on."""

    view: LogView
    topic_partition: TopicPartition = WHERE


def view_of(
    directory: Path,
    *,
    log_start: int | None = None,
    high_watermark: int | None = None,
    last_stable_offset: int | None = None,
    end: int | None = None,
) -> LogView:
    """The directory's segments as an open log has them; the end is behind the last batch unless told."""
    segments = tuple(LiveSegment(segment, LogConfig(), created_ms=0) for segment in list_segments(directory))
    leo = _end_of(directory, segments[-1].base_offset) if end is None else end
    mark = leo if high_watermark is None else high_watermark
    return LogView(
        segments=segments,
        log_start_offset=segments[0].base_offset if log_start is None else log_start,
        log_end_offset=leo,
        high_watermark=mark,
        last_stable_offset=mark if last_stable_offset is None else last_stable_offset,
        active_size=segments[-1].size,
    )


def _end_of(directory: Path, empty: int) -> int:
    """The offset behind the last batch; ``empty`` without one."""
    for path in sorted(directory.glob("*.log"), reverse=True):
        batches = list(twin.decode_log(path.read_bytes()))
        if batches:
            return batches[-1].last + 1
    return empty


def entries_of(directory: Path) -> Iterator[tuple[int, twin.Batch]]:
    """(base of its segment, the twin's batch) of a whole directory, in log order."""
    for path in sorted(directory.glob("*.log")):
        for entry in twin.decode_log(path.read_bytes()):
            yield int(path.stem), entry


def write_segments(directory: Path, segments: dict[int, Sequence[bytes]], interval: int = 4096) -> Path:
    """A partition directory with these segments, by base offset, and their indexes."""
    directory.mkdir(parents=True, exist_ok=True)
    for base, batches in segments.items():
        write_segment(directory, base, b"".join(batches), interval)
    return directory


def write_aborted(directory: Path, base: int, entries: Sequence[tuple[int, int, int, int]]) -> None:
    """A segment's ``.txnindex``: (producer id, first offset, last offset, last stable offset)."""
    rows = np.array([(0, *entry) for entry in entries], TRANSACTION_ENTRY)
    (directory / f"{base:020}.txnindex").write_bytes(rows.tobytes())


def random_batch(source: random.Random, offset: int) -> tuple[bytes, int]:
    """A batch or message set entry at or after ``offset``, and the offset behind it. Times go up and down."""
    count = source.choice([1, 1, 2, 3, 7])
    offsets = [offset]
    while len(offsets) < count:
        offsets.append(offsets[-1] + source.choice([1, 1, 1, 2, 5]))
    times = [source.randrange(1, 60) for _ in offsets]
    value = bytes(source.randrange(0, 120))
    magic = source.choice([0, 1, 2, 2, 2])
    codec = source.randrange(0, 5)
    if magic == 2 or codec == twin.ZSTD:
        shape: dict[str, object] = {"codec": codec, "log_append": source.random() < 0.3}
        last = offsets[-1] + source.choice([0, 0, 0, 3])
        if source.random() < 0.1:
            return batch([], base_offset=offset, last_offset=last), last + 1
        records = [
            Rec(offset=at, key=b"key %d" % (at % 7), value=value, timestamp=time)
            for at, time in zip(offsets, times, strict=True)
        ]
        return batch(records, last_offset=last, **shape), last + 1
    if codec == twin.NONE:
        return twin.message(offset, b"key", value, magic=magic, timestamp=times[0]), offset + 1
    first = 0 if magic == 0 else offset
    inner = b"".join(
        twin.message(at - first, b"key", value, magic=magic, timestamp=time)
        for at, time in zip(offsets, times, strict=True)
    )
    log_append = magic == 1 and source.random() < 0.3
    return (
        twin.wrapper(
            offsets[-1],
            inner,
            codec,
            magic=magic,
            timestamp=max(times),
            attributes=twin.LOG_APPEND if log_append else 0,
        ),
        offsets[-1] + 1,
    )


def random_segments(source: random.Random, batches: int) -> dict[int, list[bytes]]:
    """Segments with batches of all formats, gaps in and between them; a segment may be empty."""
    offset = source.choice([0, 0, 5])
    segments: dict[int, list[bytes]] = {offset: []}
    base = offset
    for _ in range(batches):
        if source.random() < 0.25:
            offset += source.choice([0, 0, 4, 30])
            if offset > base:
                base = offset
                segments[base] = []
        offset += source.choice([0, 0, 0, 1, 6])
        raw, offset = random_batch(source, offset)
        segments[base].append(raw)
    return segments
