"""What a compacted view holds, one record at a time with a dict: from the rules, not from the product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cleaning.naive import LOG_APPEND, Aborted, Batch, read_partition
from tests.support.records import twin


@dataclass(frozen=True, order=True, kw_only=True)
class Seen:
    """A record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    leader_epoch: int = -1

    @property
    def deletes(self) -> bool:
        """Null and empty values delete their key."""
        return not self.value


@dataclass(kw_only=True)
class Removed:
    """Why records went."""

    superseded: int = 0
    deleted: int = 0
    keyless: int = 0


@dataclass(kw_only=True)
class Model:
    """A topic's compacted view. ``best``: the winning record of each key, deleting ones too."""

    by_time: bool = False
    retain_null_key: bool = False
    best: dict[bytes, Seen] = field(default_factory=dict)
    keyless: list[Seen] = field(default_factory=list)
    horizon: int = 0

    def add(self, records: list[Seen], horizon: int) -> Removed:
        """Compact these too, which lie below ``horizon``; why those of them that went did."""
        before = dict(self.best)
        lacking = 0
        for record in records:
            if record.key is None:
                lacking += 1
                if self.retain_null_key:
                    self.keyless.append(record)
                continue
            previous = self.best.get(record.key)
            if previous is None or not self.by_time or record.timestamp >= previous.timestamp:
                self.best[record.key] = record
            if not self.by_time and record.deletes:
                del self.best[record.key]
        self.horizon = horizon
        written = [record for key, record in self.best.items() if before.get(key) != record]
        retained = sum(not record.deletes for record in written)
        deleted = self._deleted(records)
        return Removed(
            superseded=len(records) - lacking - retained - deleted,
            deleted=deleted,
            keyless=0 if self.retain_null_key else lacking,
        )

    def _deleted(self, records: list[Seen]) -> int:
        """How many of the records are the last word on their key, and delete it."""
        if self.by_time:
            offsets = {record.offset for record in records}
            return sum(record.deletes and record.offset in offsets for record in self.best.values())
        last = {record.key: record for record in records if record.key is not None}
        return sum(record.deletes for record in last.values())

    def view(self) -> list[Seen]:
        """What a reader of the ledger sees."""
        return sorted([record for record in self.best.values() if not record.deletes] + self.keyless)


def committed(partition: Path, start: int, end: int) -> list[Seen]:
    """The records in [start, end) that no transaction took back, in order."""
    segments = read_partition(partition)
    aborted = [entry for segment in segments.values() for entry in segment.aborted]
    batches = [batch for segment in segments.values() for batch in segment.batches]
    records = [record for batch in batches for record in _records(batch, aborted)]
    return [record for record in records if start <= record.offset < end]


def aborted_records(partition: Path, start: int, end: int) -> int:
    """How many records in [start, end) a transaction took back."""
    segments = read_partition(partition)
    aborted = [entry for segment in segments.values() for entry in segment.aborted]
    batches = [batch for segment in segments.values() for batch in segment.batches]
    taken = [batch for batch in batches if not batch.control and _is_aborted(batch, aborted)]
    return sum(start <= record.offset < end for batch in taken for record in batch.records)


def _records(batch: Batch, aborted: list[Aborted]) -> Iterator[Seen]:
    if not batch.control and not _is_aborted(batch, aborted):
        yield from seen_in(batch)


def seen_in(batch: Batch) -> Iterator[Seen]:
    """A batch's records as a reader sees them."""
    for record in batch.records:
        yield _seen(record, batch)


def _seen(record: twin.Record, batch: Batch) -> Seen:
    log_append = batch.magic > 0 and batch.attributes & LOG_APPEND
    return Seen(
        offset=record.offset,
        timestamp=batch.max_timestamp if log_append else record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        leader_epoch=batch.leader_epoch,
    )


def _is_aborted(batch: Batch, aborted: list[Aborted]) -> bool:
    return batch.transactional and any(
        entry.producer_id == batch.producer_id
        and entry.first_offset <= batch.base_offset <= entry.last_offset
        for entry in aborted
    )
