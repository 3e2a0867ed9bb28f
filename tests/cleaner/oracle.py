"""What cleaning must leave, one record at a time with a dict: written from the rules, not from the product.

For record batches without transactions. A batch is what a reader sees of it; ``raw`` are its bytes, since
an untouched batch is copied byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.cleaner.logs import Header, headers_of, records_in
from tests.records.twin import Record

LOG_APPEND, HORIZON, CODEC = 0x08, 0x40, 0x07


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch as stored; ``raw`` is None where its bytes are not fixed by the rules."""

    header: Header
    records: tuple[Record, ...]
    raw: bytes | None

    @property
    def horizon(self) -> int | None:
        """When its tombstones may go, None before it was stamped."""
        return self.header.base_timestamp if self.header.attributes & HORIZON else None


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What a cleaning goes by: times in ms, the dirty part is [first_dirty, end)."""

    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    producer_expiration_ms: int


@dataclass(kw_only=True)
class Expected:
    """The batches that must be left below the end, and the reasons why records went."""

    batches: list[Batch]
    superseded: int = 0
    tombstones: int = 0
    keyless: int = 0


def read(data: bytes) -> list[Batch]:
    """A log's bytes as batches."""
    return [Batch(header=header, records=tuple(records_in(raw)), raw=raw) for header, raw in headers_of(data)]


def clean(log: Sequence[Batch], rules: Cleaning) -> Expected:
    """Clean the whole log (``log`` has the uncleanable part too: producers live there)."""
    latest = {
        record.key: record.offset
        for batch in log
        for record in batch.records
        if record.key is not None and rules.first_dirty <= record.offset < rules.end
    }
    alive = _last_batches(log, rules)
    expected = Expected(batches=[])
    for batch in log:
        if batch.header.base_offset >= rules.end:
            break
        kept = [record for record in batch.records if _stays(record, batch, latest, rules, expected)]
        header = batch.header
        at_the_end = header.last_offset == rules.end - 1
        if kept:
            expected.batches.append(_kept(batch, kept, rules))
        elif at_the_end or alive.get(header.producer_id) == header.last_offset:
            expected.batches.append(_emptied(batch))
    return expected


def _last_batches(log: Sequence[Batch], rules: Cleaning) -> dict[int, int]:
    """The last offset of each producer that has been heard of lately."""
    last, heard = {}, {}
    for batch in log:
        if batch.header.producer_id >= 0:
            last[batch.header.producer_id] = batch.header.last_offset
            heard[batch.header.producer_id] = batch.header.max_timestamp
    return {who: last[who] for who in last if rules.now_ms - heard[who] < rules.producer_expiration_ms}


def _stays(
    record: Record, batch: Batch, latest: dict[bytes | None, int], rules: Cleaning, expected: Expected
) -> bool:
    if record.key is None:
        expected.keyless += 1
        return False
    if record.offset < latest.get(record.key, -1):
        expected.superseded += 1
        return False
    if record.value is None and batch.horizon is not None and rules.now_ms >= batch.horizon:
        expected.tombstones += 1
        return False
    return True


def _kept(batch: Batch, kept: list[Record], rules: Cleaning) -> Batch:
    new_stamp = batch.horizon is None and any(record.value is None for record in kept)
    if len(kept) == len(batch.records) and not new_stamp:
        return batch
    attributes, base_time = batch.header.attributes, kept[0].timestamp
    if new_stamp:
        attributes, base_time = attributes | HORIZON, rules.now_ms + rules.delete_retention_ms
    elif batch.horizon is not None:
        base_time = batch.horizon
    appended = bool(attributes & LOG_APPEND)
    biggest = batch.header.max_timestamp if appended else max(record.timestamp for record in kept)
    header = replace(
        batch.header,
        attributes=attributes,
        base_timestamp=base_time,
        max_timestamp=biggest,
        count=len(kept),
    )
    return Batch(header=header, records=tuple(kept), raw=None)


def _emptied(batch: Batch) -> Batch:
    attributes = batch.header.attributes & ~CODEC & ~HORIZON
    return Batch(
        header=replace(batch.header, attributes=attributes, base_timestamp=-1, count=0), records=(), raw=None
    )
