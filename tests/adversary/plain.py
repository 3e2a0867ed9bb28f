"""A partition as a plain reader sees it: every ``.log`` file from its first byte on, nothing else.

No index, snapshot, checkpoint or ``.txnindex`` is looked at, so that what is forged there cannot mislead it,
and nothing of the product is imported. Which transaction committed is told by the markers alone. A parsed
batch is remembered by its bytes: a case reads the same batches many times.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from tests.support.records import twin

CODEC, LOG_APPEND, TRANSACTIONAL, CONTROL, HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
HEADER = struct.Struct(">qiibIhiqqqhii")
MAX_BATCHES = 40_000
NOWHERE = 1 << 63
COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
_SEGMENT = re.compile(r"^(\d{20})\.log\Z", re.ASCII)


class DamagedError(ValueError):
    """Bytes that are no sound batch."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a reader sees of a record; ``producer``: id, epoch and sequence, -1 each where there is none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    producer: tuple[int, int, int]
    control: bool
    transactional: bool

    @property
    def commits(self) -> bool | None:
        """Of a marker: does it commit? None for what is no marker."""
        if not self.control or self.key is None or len(self.key) < 4:
            return None
        kind = struct.unpack(">hh", self.key[:4])[1]
        return bool(kind) if kind in (0, 1) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A sound batch of v2, or an entry of v0 and v1 (``magic`` tells); offsets of the latter are its
    records'."""

    base_offset: int
    last_offset: int
    magic: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    records: tuple[Record, ...]

    @property
    def horizon(self) -> int | None:
        """The delete horizon that it is stamped with."""
        stamped = self.magic == 2 and self.attributes & HORIZON
        return self.base_timestamp if stamped else None


@dataclass(slots=True, kw_only=True)
class Segment:
    """A ``.log`` file: its sound batches with their positions, and where damage begins (None: nowhere)."""

    base_offset: int
    data: bytes
    modified_ms: int
    batches: list[tuple[int, Batch]] = field(default_factory=list)
    damaged_at: int | None = None

    @property
    def end_offset(self) -> int:
        """One above its last sound batch; its base without any."""
        return self.batches[-1][1].last_offset + 1 if self.batches else self.base_offset


_known: dict[bytes, Batch | None] = {}


def parse(raw: bytes) -> Batch | None:
    """The batch, or None where its checksum, lengths, counts or offsets do not hold."""
    if raw not in _known:
        if len(_known) > MAX_BATCHES:
            _known.clear()
        try:
            _known[raw] = _modern(raw) if raw[16] == 2 else _old(raw)
        except Exception:  # whatever the libraries of the codecs raise of bytes that make no sense
            _known[raw] = None
    return _known[raw]


def _modern(raw: bytes) -> Batch:
    base, _, _, _, checksum, attributes, delta, first, newest, producer, epoch, sequence, count = (
        HEADER.unpack_from(raw)
    )
    if checksum != crc32c(raw[21:]) or delta < 0 or count < 0:
        raise DamagedError
    records, position, last = [], 0, -1
    body = twin.decompress(attributes & CODEC, raw[61:]) if count else raw[61:]
    for _ in range(count):
        offset_delta, time_delta, key, value, headers, position = _record(body, position)
        if not last < offset_delta <= delta:
            raise DamagedError
        last = offset_delta
        records.append(
            Record(
                base + offset_delta,
                newest if attributes & LOG_APPEND else _wrapped(first + time_delta),
                key,
                value,
                headers,
                (producer, epoch, _sequence(sequence, offset_delta)),
                bool(attributes & CONTROL),
                bool(attributes & TRANSACTIONAL),
            )
        )
    if position != len(body):
        raise DamagedError
    return Batch(
        base_offset=base,
        last_offset=base + delta,
        magic=2,
        attributes=attributes,
        base_timestamp=first,
        max_timestamp=newest,
        producer_id=producer,
        producer_epoch=epoch,
        records=tuple(records),
    )


def _wrapped(value: int) -> int:
    """As a sum of two 64-bit integers."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _sequence(first: int, delta: int) -> int:
    """Sequences go on from 0 behind the largest."""
    return first if first < 0 else (first + delta) % (1 << 31)


Parts = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...], int]


def _record(data: bytes, start: int) -> Parts:
    """(offset delta, timestamp delta, key, value, headers, next position)."""
    size, position = twin.read_varint(data, start)
    end = position + size
    if size < 1 or end > len(data):
        raise DamagedError
    time_delta, position = twin.read_varint(data, position + 1, 64)
    offset_delta, position = twin.read_varint(data, position)
    key, position = _take(data, position)
    value, position = _take(data, position)
    count, position = twin.read_varint(data, position)
    if not 0 <= count <= size:
        raise DamagedError
    headers = []
    for _ in range(count):
        name, position = _take(data, position)
        content, position = _take(data, position)
        if name is None:
            raise DamagedError
        headers.append((name, content))
    if position != end:
        raise DamagedError
    return offset_delta, time_delta, key, value, tuple(headers), end


def _take(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = twin.read_varint(data, position)
    if size < -1 or position + max(size, 0) > len(data):
        raise DamagedError
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def _old(raw: bytes) -> Batch:
    entries = list(twin.decode_log(raw))
    if len(entries) != 1 or not entries[0].valid or not entries[0].records:
        raise DamagedError
    records = tuple(
        Record(record.offset, record.timestamp, record.key, record.value, (), (-1, -1, -1), False, False)
        for record in entries[0].records
    )
    return Batch(
        base_offset=records[0].offset,
        last_offset=entries[0].last,
        magic=raw[16],
        attributes=raw[17],
        base_timestamp=-1,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=-1,
        producer_epoch=-1,
        records=records,
    )


def scan(base_offset: int, data: bytes, modified_ms: int = 0) -> Segment:
    """All batches of a log's bytes; behind a bad one the next is looked for where its length says."""
    segment = Segment(base_offset=base_offset, data=data, modified_ms=modified_ms)
    position = 0
    while position < len(data):
        size = struct.unpack_from(">i", data, position + 8)[0] + 12 if position + 17 <= len(data) else 0
        is_complete = size >= 26 and data[position + 16] <= 2 and position + size <= len(data)
        if is_complete and data[position + 16] == 2:
            is_complete = size >= HEADER.size
        batch = parse(data[position : position + size]) if is_complete else None
        if batch is None and segment.damaged_at is None:
            segment.damaged_at = position
        if not is_complete:
            break
        if batch is not None:
            segment.batches.append((position, batch))
        position += size
    return segment


@dataclass(slots=True, kw_only=True)
class Log:
    """A partition as it lies there.

    ``odd``: segment names that are no regular file. ``states``: what became of the transaction that a record
    is of, by offset; ``open_from``: the first offset of one without an end. ``disordered_from``: the base of
    the first segment whose offsets go back, or do not lie in it.
    """

    path: Path
    segments: dict[int, Segment]
    odd: list[str]
    records: dict[int, Record] = field(default_factory=dict)
    batch_of: dict[int, Batch] = field(default_factory=dict)
    segment_of: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    open_from: int | None = None
    disordered_from: int = NOWHERE

    @property
    def ascends(self) -> bool:
        """Do offsets ascend, each within its segment?"""
        return self.disordered_from == NOWHERE

    def below(self, base: int) -> Log:
        """The log without its segments from ``base`` on."""
        segments = {start: segment for start, segment in self.segments.items() if start < base}
        part = Log(path=self.path, segments=segments, odd=[])
        _collect(part)
        _end_transactions(part)
        return part

    def cut_at_disorder(self) -> Log:
        """The log as recovery leaves it that ends it at the first batch whose offsets go back."""
        sound = self.below(self.disordered_from)
        old, last = self.segments[self.disordered_from], sound.end_offset - 1
        positions = []
        for position, batch in old.batches:
            if batch.base_offset <= last or batch.base_offset < old.base_offset:
                positions.append(position)
                break
            last = batch.last_offset
        if positions:
            sound.segments[old.base_offset] = scan(old.base_offset, old.data[: positions[0]], old.modified_ms)
        again = Log(path=self.path, segments=sound.segments, odd=[])
        _collect(again)
        _end_transactions(again)
        return again

    @property
    def damaged(self) -> list[Segment]:
        """The segments with damage."""
        return [segment for segment in self.segments.values() if segment.damaged_at is not None]

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ends = [max(segment.base_offset, segment.end_offset) for segment in self.segments.values()]
        return max(ends, default=0)

    @property
    def active(self) -> int:
        """The base of the active segment."""
        return max(self.segments, default=0)

    def batches(self) -> Iterator[Batch]:
        """All sound batches in order of their files."""
        return (batch for segment in self.segments.values() for _, batch in segment.batches)

    def logs(self) -> dict[int, bytes]:
        """The bytes of every ``.log``."""
        return {base: segment.data for base, segment in self.segments.items()}


def read(partition: Path) -> Log:
    """Read a partition; one that is not there, or is no directory, has no segments."""
    segments, odd = {}, []
    for name in sorted(os.listdir(partition)) if partition.is_dir() else ():
        named = _SEGMENT.match(name)
        if named is None or int(named[1]) >= NOWHERE:  # no offset is that large
            continue
        facts = os.lstat(partition / name)
        if not stat.S_ISREG(facts.st_mode):
            odd.append(name)
            continue
        base = int(named[1])
        segments[base] = scan(base, (partition / name).read_bytes(), facts.st_mtime_ns // 1_000_000)
    log = Log(path=partition, segments=segments, odd=odd)
    _collect(log)
    _end_transactions(log)
    return log


def with_finished_swaps(log: Log) -> Log:
    """The log as it is once its ``.swap`` files are in their places: each takes the place of every segment
    that lies within its offsets (Kafka's ``LogLoader``)."""
    segments = dict(log.segments)
    for path in sorted(log.path.glob("*.log.swap")):
        if not _SEGMENT.match(path.name.removesuffix(".swap")) or not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        swap = scan(int(path.name[:20]), path.read_bytes(), os.lstat(path).st_mtime_ns // 1_000_000)
        end = max(swap.end_offset, swap.base_offset + 1)
        segments = {base: segment for base, segment in segments.items() if not swap.base_offset <= base < end}
        segments[swap.base_offset] = swap
    swapped_log = Log(path=log.path, segments=dict(sorted(segments.items())), odd=log.odd)
    _collect(swapped_log)
    _end_transactions(swapped_log)
    return swapped_log


def _collect(log: Log) -> None:
    """Records by offset; offsets must ascend, and lie within their segment."""
    last = -1
    bases = [*log.segments, 1 << 63]
    for number, (base, segment) in enumerate(log.segments.items()):
        for _, batch in segment.batches:
            if (
                batch.base_offset <= last
                or batch.base_offset < base
                or batch.last_offset >= bases[number + 1]
            ):
                log.disordered_from = min(log.disordered_from, base)
            last = max(last, batch.last_offset)
            for record in batch.records:
                log.records[record.offset] = record
                log.batch_of[record.offset] = batch
                log.segment_of[record.offset] = base


def _end_transactions(log: Log) -> None:
    """A transaction is what its producer wrote up to its next marker."""
    waiting: dict[int, list[Batch]] = {}
    for batch in log.batches():
        if batch.magic < 2 or batch.producer_id < 0:
            continue
        if batch.attributes & CONTROL:
            commits = batch.records[0].commits if batch.records else None
            if commits is not None:
                _settle(log, waiting.pop(batch.producer_id, []), COMMITTED if commits else ABORTED)
        elif batch.attributes & TRANSACTIONAL:
            waiting.setdefault(batch.producer_id, []).append(batch)
    for batches in waiting.values():
        _settle(log, batches, OPEN)
        first = batches[0].base_offset
        log.open_from = first if log.open_from is None else min(log.open_from, first)


def _settle(log: Log, batches: list[Batch], state: str) -> None:
    for batch in batches:
        for record in batch.records:
            log.states[record.offset] = state


def last_values(log: Log, below: int) -> dict[bytes, int]:
    """The offset of the last committed record of every key below an offset."""
    return {
        record.key: offset
        for offset, record in sorted(log.records.items())
        if offset < below
        and record.key is not None
        and not record.control
        and log.states.get(offset, COMMITTED) == COMMITTED
    }
