"""A partition directory read the slow way, in plain Python and with nothing of the product.

Batches come from ``tests.support.records.twin`` (checksums are looked at there), headers, ``.txnindex`` and
``.snapshot`` files from here. A batch of two logs is the same when all fields but ``raw`` are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.records import twin

LOG_APPEND, TRANSACTIONAL, CONTROL, HORIZON, CODEC = 0x08, 0x10, 0x20, 0x40, 0x07
_HEADER = struct.Struct(">qiibIhiqqqhii")
_ABORTED = struct.Struct(">hqqqq")
_PRODUCER = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch as stored, or an entry of the formats v0 and v1 in the same terms (``magic`` tells).

    ``base_timestamp`` is the raw field; a record's ``size`` is 0. ``raw`` are the bytes, None where the rules
    do not fix them.
    """

    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    records: tuple[twin.Record, ...] = ()
    count: int = 0
    magic: int = 2
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def control(self) -> bool:
        """Is it a control batch, as a transaction's marker is?"""
        return bool(self.attributes & CONTROL)

    @property
    def transactional(self) -> bool:
        """Does it belong to a transaction?"""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def horizon(self) -> int | None:
        """When its tombstones, or its marker, may go; None before it was stamped."""
        return self.base_timestamp if self.attributes & HORIZON else None

    @property
    def commits(self) -> bool | None:
        """Of a marker: does it commit? None for what is no marker, or was emptied."""
        if not self.control or not self.records or self.records[0].key is None:
            return None
        kind = struct.unpack(">hh", self.records[0].key[:4])[1]
        return bool(kind) if kind in (0, 1) else None


@dataclass(frozen=True, order=True, kw_only=True)
class Aborted:
    """An entry of a ``.txnindex``."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A segment's files."""

    base_offset: int
    batches: tuple[Batch, ...]
    aborted: tuple[Aborted, ...]
    modified_ms: int
    size: int
    offset_index_size: int
    time_index_size: int


@dataclass(kw_only=True)
class Producer:
    """What is known of a producer; offsets are -1 where there are none."""

    epoch: int
    last_offset: int
    time_ms: int
    open_from: int = -1


def batches_of(data: bytes) -> list[Batch]:
    """All batches of a log's bytes; every one must be whole and have the right checksum."""
    batches, end = [], 0
    for entry in twin.decode_log(data):
        raw = data[entry.position : entry.position + entry.size]
        assert entry.valid, f"checksum of the batch at byte {entry.position}"
        batches.append(_modern(raw, entry) if entry.magic == 2 else _old(raw, entry))
        end = entry.position + entry.size
    assert end == len(data), f"bytes left over at {end}"
    return batches


def _modern(raw: bytes, entry: twin.Batch) -> Batch:
    base, _, leader_epoch, magic, _, attributes, delta, *rest = _HEADER.unpack_from(raw)
    return Batch(
        base_offset=base,
        last_offset=base + delta,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=rest[0],
        max_timestamp=rest[1],
        producer_id=rest[2],
        producer_epoch=rest[3],
        base_sequence=rest[4],
        count=rest[5],
        records=_sizeless(entry),
        magic=magic,
        raw=raw,
    )


def _old(raw: bytes, entry: twin.Batch) -> Batch:
    """An entry of v0 or v1: its offset is the last record's."""
    time = struct.unpack_from(">q", raw, 18)[0] if entry.magic else -1
    return Batch(
        base_offset=entry.records[0].offset,
        last_offset=entry.last,
        attributes=raw[17],
        base_timestamp=time,
        max_timestamp=time,
        count=len(entry.records),
        records=_sizeless(entry),
        magic=entry.magic,
        raw=raw,
    )


def _sizeless(entry: twin.Batch) -> tuple[twin.Record, ...]:
    return tuple(replace(record, size=0) for record in entry.records)


def read_partition(partition: Path) -> dict[int, Segment]:
    """Every segment by its base offset, ascending."""
    return {int(path.stem): _segment(path) for path in sorted(partition.glob("*.log"))}


def _segment(path: Path) -> Segment:
    data = path.read_bytes()
    return Segment(
        base_offset=int(path.stem),
        batches=tuple(batches_of(data)),
        aborted=tuple(parse_aborted(path.with_suffix(".txnindex"))),
        modified_ms=path.stat().st_mtime_ns // 1_000_000,
        size=len(data),
        offset_index_size=_size(path.with_suffix(".index")),
        time_index_size=_size(path.with_suffix(".timeindex")),
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def parse_aborted(path: Path) -> Iterator[Aborted]:
    """A ``.txnindex``'s entries; none where there is no file."""
    for version, *entry in _ABORTED.iter_unpack(path.read_bytes() if path.exists() else b""):
        assert version == 0, path
        yield Aborted(
            producer_id=entry[0], first_offset=entry[1], last_offset=entry[2], last_stable_offset=entry[3]
        )


def newest_snapshot(partition: Path, log_end: int) -> tuple[int, dict[int, Producer]]:
    """(where to go on from, the producers known there); offset -1 and nobody without a snapshot."""
    bases = [int(path.stem) for path in partition.glob("*.snapshot") if int(path.stem) <= log_end]
    if not bases:
        return -1, {}
    data = (partition / f"{max(bases):020}.snapshot").read_bytes()
    version, checksum, count = struct.unpack_from(">hII", data)
    assert version == 1 and checksum == twin.crc32c(data[6:]) and len(data) == 10 + count * _PRODUCER.size
    producers = {}
    for who, epoch, _, last, _, time, _, opened in _PRODUCER.iter_unpack(data[10:]):
        producers[who] = Producer(epoch=epoch, last_offset=last, time_ms=time, open_from=opened)
    return max(bases), producers


def producers_at_end(partition: Path, segments: dict[int, Segment]) -> dict[int, Producer]:
    """The producers as of the log's end: the newest snapshot, and what was appended since."""
    batches = [batch for segment in segments.values() for batch in segment.batches]
    end = batches[-1].last_offset + 1 if batches else 0
    start, known = newest_snapshot(partition, max(end, *segments))
    for batch in batches:
        if batch.producer_id < 0 or batch.base_offset < start or (batch.control and batch.commits is None):
            continue
        who = known.setdefault(batch.producer_id, Producer(epoch=-1, last_offset=-1, time_ms=-1))
        if who.epoch != batch.producer_epoch:
            who.epoch, who.last_offset = batch.producer_epoch, -1
        who.time_ms = batch.max_timestamp
        if batch.control:
            who.open_from = -1
            continue
        who.last_offset = batch.last_offset
        if batch.transactional and who.open_from < 0:
            who.open_from = batch.base_offset
    return known
