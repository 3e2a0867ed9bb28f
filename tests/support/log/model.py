"""A log as plain lists and dicts: what the state machine holds an open log to.

Offsets, times in ms, and Kafka's rules for producers, transactions and cleaning, one record at a time and
written from the rules, not from the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 5
"""How many of a producer's batches are recognised when they come again."""
COMMIT, ABORT = "commit", "abort"


class Stored(NamedTuple):
    """A record as it must be read."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What was appended at one time. ``marker``: it ends a transaction, by ``COMMIT`` or ``ABORT``."""

    base: int
    last: int
    records: tuple[Stored, ...]
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    marker: str | None = None


@dataclass(kw_only=True)
class Producer:
    """What a log knows of a producer: ``sent`` are its last batches, the newest last."""

    epoch: int
    sent: list[Batch] = field(default_factory=list)
    opened: int | None = None

    @property
    def next_sequence(self) -> int:
        """The first sequence of its next batch."""
        if not self.sent:
            return 0
        return self.sent[-1].sequence + self.sent[-1].last - self.sent[-1].base + 1


class Model:
    """A log: ``start`` and ``end``, ``batches`` as they were appended, ``removed_offsets`` by cleanings.

    ``checkpoint`` is the cleaner's; ``horizons`` are when a batch's tombstones may go, by its base offset.
    Of what lies below ``known_from`` a log that was cut or opened need not know the producers. ``unsure``:
    those of them that had a transaction open; nobody is to send anything as one of them.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.batches: list[Batch] = []
        self.producers: dict[int, Producer] = {}
        self.removed_offsets: set[int] = set()
        self.checkpoint: int | None = None
        self.horizons: dict[int, int] = {}
        self.high_watermark: int | None = None
        self.known_from = 0
        self.unsure: set[int] = set()

    # What is there

    @property
    def readable(self) -> int:
        """Up to where uncommitted reads go."""
        return self.end if self.high_watermark is None else max(self.high_watermark, self.start)

    @property
    def stable(self) -> int:
        """Up to where committed reads go: a transaction that began below the start holds it there."""
        opened = [producer.opened for producer in self.producers.values() if producer.opened is not None]
        return max(self.start, min([self.readable, *opened]))

    def records(self, first: int, end: int | None = None) -> list[Stored]:
        """The records of whole batches below ``end``, from offset ``first`` on; the log start holds."""
        limit = self.end if end is None else end
        return [
            record
            for batch in self.batches
            if batch.last < limit
            for record in batch.records
            if record.offset >= max(first, self.start) and record.offset not in self.removed_offsets
        ]

    def committed(self, first: int, end: int) -> list[Stored]:
        """The same without markers and without what was aborted."""
        marks: dict[int, list[Batch]] = {}
        for batch in self.batches:
            if batch.marker:
                marks.setdefault(batch.producer_id, []).append(batch)
        aborted, inside = set(), {record.offset for record in self.records(first, end)}
        for batch in self.batches:
            ended = next((m for m in marks.get(batch.producer_id, ()) if m.base > batch.base), None)
            if batch.marker or (batch.transactional and ended is not None and ended.marker == ABORT):
                aborted.add(batch.base)
        return [
            record
            for batch in self.batches
            if batch.base not in aborted
            for record in batch.records
            if record.offset in inside
        ]

    def at_time(self, timestamp: int) -> Stored | None:
        """The first record at or after a time, None where it is not readable."""
        record = next((record for record in self.records(self.start) if record.timestamp >= timestamp), None)
        return record if record is not None and record.offset < self.readable else None

    def has_transactions(self, first: int, end: int) -> bool:
        """Is there anything in ``[first, end)`` that this version's cleaner leaves alone?"""
        return any(b.transactional or b.marker for b in self.batches if first <= b.base < end)

    # What is done to it

    def append(self, batch: Batch) -> None:
        """A batch at the end."""
        assert batch.base == self.end
        self.batches.append(batch)
        self.end = batch.last + 1
        self._meet(batch)

    def _meet(self, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        known = self.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self.producers[batch.producer_id] = Producer(epoch=batch.epoch)
        if batch.marker:
            known.opened = None
            return
        known.sent = [*known.sent, batch][-REMEMBERED:]
        if batch.transactional and known.opened is None:
            known.opened = batch.base

    def truncate(self, offset: int) -> None:
        """Nothing at or above ``offset`` is left of what came in whole batches."""
        remaining = [batch for batch in self.batches if batch.last < offset]
        self.restart(offset, remaining)

    def restart(self, end: int, remaining: Sequence[Batch] = ()) -> None:
        """The log ends at ``end`` now and has only ``remaining``."""
        self.batches = list(remaining)
        self.known_from = max(self.known_from, self.start)
        self.end, self.start = end, min(self.start, end)
        self.removed_offsets = {offset for offset in self.removed_offsets if offset < end}
        bases = {batch.base for batch in self.batches}
        self.horizons = {base: at for base, at in self.horizons.items() if base in bases}
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, end)
        if self.checkpoint is not None:
            self.checkpoint = min(self.checkpoint, end)
        self.producers = {}
        for batch in self.batches:
            self._meet(batch)
        self._forget()
        self._forget_below()
        self._keep_producers(
            lambda last: any(record.offset not in self.removed_offsets for record in last.records)
        )

    def lose_tail(self, end: int) -> None:
        """A crash took what lies at and above ``end``; the log start does not go back with it."""
        start = self.start
        self.truncate(end)
        self.start = start

    def reopened(self, active_base: int, end: int, *, clean: bool) -> None:
        """A start: the end is behind the last batch, and nobody says what is replicated.

        The last batch may be one that cleaning took away whole and that a truncation made the last one. What
        lies below the log start may be forgotten after a crash, and after a truncation into a batch: the log
        ends behind its last batch then, and what was put down of producers at its old end does not count.
        """
        lasts = [self.start, active_base, *(batch.last + 1 for batch in self.batches)]
        ends = [record.offset + 1 for record in self.records(self.start)]
        assert max([self.start, active_base, *ends]) <= end <= max(lasts)
        self.batches = [batch for batch in self.batches if batch.last < end]
        self.removed_offsets = {offset for offset in self.removed_offsets if offset < end}
        self.checkpoint = None if self.checkpoint is None else min(self.checkpoint, end)
        last = max((batch.last + 1 for batch in self.batches), default=0)
        is_sure = clean and end == self.end and last >= self.start
        self.end, self.high_watermark = end, None
        self._forget()
        if not is_sure:
            self.known_from = self.start
            self._forget_below()

    def _forget_below(self) -> None:
        """Nobody is sure to be known who sent nothing from ``known_from`` on."""
        above = [batch for batch in self.batches if batch.last >= self.known_from]
        for who, known in self.producers.items():
            if known.opened is not None and known.opened < self.known_from:
                bases = (batch.base for batch in above if batch.producer_id == who and batch.transactional)
                known.opened = next((base for base in bases if base > known.opened), None)
                if known.opened is None:
                    self.unsure.add(who)
        for who in self.unsure:
            self.producers.pop(who, None)
        self._keep_producers(lambda last: last.last >= self.known_from)

    def _forget(self) -> None:
        """Of each producer only the last batch is sure to be known."""
        for known in self.producers.values():
            known.sent = known.sent[-1:]

    def _keep_producers(self, is_known: Callable[[Batch], bool]) -> None:
        """Producers are only sure to be known by a last batch that is there.

        One that was cleaned away, because a later one was the last then, is gone when that is cut off.
        """
        self.producers = {
            who: known
            for who, known in self.producers.items()
            if known.opened is not None or (known.sent and is_known(known.sent[-1]))
        }

    def raise_start(self, offset: int) -> None:
        """The log starts at ``offset`` or above."""
        self.start = max(self.start, offset)

    @property
    def first_dirty(self) -> int:
        """Up to where the log is clean."""
        known = self.checkpoint is not None and self.start <= self.checkpoint <= self.end
        return self.checkpoint if known and self.checkpoint is not None else self.start

    def dirty(self, end: int) -> list[Stored]:
        """The records below ``end`` that no cleaning has seen."""
        return [
            record
            for batch in self.batches
            for record in batch.records
            if self.first_dirty <= record.offset < end and record.offset not in self.removed_offsets
        ]

    def clean(self, end: int, now_ms: int, delete_retention_ms: int) -> None:
        """Clean up to ``end``, which no batch straddles; the checkpoint is the caller's to move."""
        latest = {record.key: record.offset for record in self.dirty(end) if record.key is not None}
        for batch in self.batches:
            if batch.base < end:
                self._clean_batch(batch, latest, now_ms, delete_retention_ms)

    def _clean_batch(
        self, batch: Batch, latest: dict[bytes | None, int], now_ms: int, delete_retention_ms: int
    ) -> None:
        horizon, tombstones = self.horizons.get(batch.base), 0
        for record in batch.records:
            if record.offset in self.removed_offsets:
                continue
            due = record.value is None and horizon is not None and now_ms >= horizon
            if record.key is None or record.offset < latest.get(record.key, -1) or due:
                self.removed_offsets.add(record.offset)
            elif record.value is None:
                tombstones += 1
        if tombstones and horizon is None:
            self.horizons[batch.base] = now_ms + delete_retention_ms
