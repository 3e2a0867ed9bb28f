"""What cleaning must leave, one record at a time with a dict: written from the rules, not from the product.

``clean`` says it for a partition directory as it lies there: for each new segment its batches with all their
records, and the entries of its ``.txnindex``. Batches whose bytes the rules fix have their ``raw`` bytes.
``tests/golden/test_oracle.py`` holds it to what Kafka's own cleaner made of its logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.cleaning.naive import (
    CODEC,
    CONTROL,
    HORIZON,
    LOG_APPEND,
    TRANSACTIONAL,
    Aborted,
    Batch,
    Producer,
    Segment,
    producers_at_end,
    read_partition,
)
from tests.support.records.twin import Record

SPAN = (1 << 31) - 1
SUPERSEDED, TOMBSTONES, ABORTED, KEYLESS, MARKERS = (
    "superseded",
    "tombstones",
    "aborted",
    "keyless",
    "markers",
)


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What a cleaning goes by: times in ms.

    ``checkpoint``: where the last one ended, None for a first one. ``high_watermark`` None: the log's end.
    ``key_limit``: how many keys are known before the pass ends, which only Kafka's map does.
    """

    now_ms: int
    checkpoint: int | None = None
    log_start: int = 0
    high_watermark: int | None = None
    delete_retention_ms: int = 86_400_000
    producer_expiration_ms: int = 86_400_000
    min_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    index_bytes: int = 10 << 20
    key_limit: int | None = None


@dataclass(kw_only=True)
class NewSegment:
    """A segment that cleaning makes of its ``sources``."""

    batches: list[Batch] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class Expected:
    """What must be there below ``end`` by base offset, and why records went (``removed``)."""

    first_dirty: int
    end: int
    segments: dict[int, NewSegment] = field(default_factory=dict)
    removed: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> list[Batch]:
        """All batches, in order."""
        return [batch for segment in self.segments.values() for batch in segment.batches]


def clean(partition: Path, rules: Cleaning) -> Expected:
    """Clean a whole log, as it is on disk."""
    log = read_partition(partition)
    return _Pass(log, producers_at_end(partition, log), rules).run()


class _Pass:
    """One pass over a log."""

    def __init__(self, log: Mapping[int, Segment], producers: Mapping[int, Producer], rules: Cleaning):
        self.log, self.rules, self.producers = log, rules, producers
        self.alive = {
            who: known
            for who, known in producers.items()
            if known.open_from >= 0 or rules.now_ms - known.time_ms < rules.producer_expiration_ms
        }
        self.aborted = sorted(entry for segment in log.values() for entry in segment.aborted)
        self.first_dirty = _first_dirty(log, rules)
        self.end = _end(log, producers, self.first_dirty, rules)
        # producers with a committed batch read since their last marker
        self.producers_with_data: set[int] = set()
        self.read_of: set[Aborted] = set()  # aborted transactions that a batch was read of
        self.expected = Expected(first_dirty=self.first_dirty, end=self.end)

    def run(self) -> Expected:
        """Take every segment below the end."""
        if not self._is_dirty():
            if self.end <= self.first_dirty:
                self.end = _end(self.log, self.producers, self.first_dirty, self.rules, idle=True)
                self.first_dirty = self.end
            if not self._tombstones_are_due():
                return self.expected
        self.latest, self.known_to = self._latest()
        self.expected.end = self.known_to + 1
        covered = [segment for base, segment in self.log.items() if base <= self.known_to]
        for group in groups(covered, self.end, self.rules):
            self.new = NewSegment(sources=[segment.base_offset for segment in group])
            self.expected.segments[group[0].base_offset] = self.new
            for segment in group:
                for batch in segment.batches:
                    self._take(batch, self._keeps_old_tombstones(segment))
        return self.expected

    def _is_dirty(self) -> bool:
        first = max((base for base in self.log if base <= self.first_dirty), default=min(self.log))
        return self.first_dirty < self.end and any(
            segment.size for base, segment in self.log.items() if first <= base < self.end
        )

    def _tombstones_are_due(self) -> bool:
        """An idle log is cleaned, which Kafka does not do, once nothing that was stamped has to wait."""
        clean_part = [segment for base, segment in self.log.items() if base < self.first_dirty]
        stamped = [b for segment in clean_part for b in segment.batches if b.count and b.horizon is not None]
        return all((batch.horizon or 0) <= self.rules.now_ms for batch in stamped) and any(
            batch.control or any(record.value is None and record.key is not None for record in batch.records)
            for batch in stamped
        )

    def _latest(self) -> tuple[dict[bytes, int], int]:
        """The newest offset of each key of the dirty part, and up to where that is known."""
        latest: dict[bytes, int] = {}
        known_to = self.first_dirty - 1
        for batch in self._batches_below_end():
            if not batch.control and not self._of_aborted(batch):
                for record in batch.records:
                    if record.key is None or record.offset < self.first_dirty:
                        continue
                    if len(latest) == self.rules.key_limit:
                        return latest, known_to
                    latest[record.key] = known_to = record.offset
            known_to = max(known_to, batch.last_offset)
        return latest, max(known_to, self.end - 1)

    def _batches_below_end(self) -> list[Batch]:
        return [batch for base, segment in self.log.items() if base < self.end for batch in segment.batches]

    def _of_aborted(self, batch: Batch) -> Aborted | None:
        """The aborted transaction that a data batch is part of."""
        for entry in self.aborted if batch.transactional else ():
            inside = entry.first_offset <= batch.last_offset <= entry.last_offset
            if inside and entry.producer_id == batch.producer_id:
                return entry
        return None

    def _take(self, batch: Batch, keeps_old_tombstones: bool) -> None:
        if batch.control:
            self._take_marker(batch)
            return
        entry = self._of_aborted(batch)
        if entry is not None:
            self.read_of.add(entry)
            self.expected.removed[ABORTED] += len(batch.records)
            self._emptied(batch)
            return
        if batch.transactional:
            self.producers_with_data.add(batch.producer_id)
        retained = [record for record in batch.records if self._stays(record, batch, keeps_old_tombstones)]
        if retained:
            self.new.batches.append(self._rewritten(batch, retained))
        else:
            self._emptied(batch)

    def _take_marker(self, batch: Batch) -> None:
        data_is_gone = self._no_data_was_read(batch)
        past = batch.horizon is not None and batch.horizon <= self.rules.now_ms
        if not batch.records or (data_is_gone and past):
            self.expected.removed[MARKERS] += len(batch.records)
            self._emptied(batch)
        elif data_is_gone and batch.horizon is None:
            self.new.batches.append(self._stamped(batch, batch.records))
        else:
            self.new.batches.append(batch)

    def _no_data_was_read(self, marker: Batch) -> bool:
        """May a marker go, as far as its transaction's data is concerned? An abort that does not takes its
        index entry along."""
        if marker.commits is None:
            return not marker.records
        if marker.commits:
            was_read = marker.producer_id in self.producers_with_data
            self.producers_with_data.discard(marker.producer_id)
            return not was_read
        for entry in self.read_of:
            if (entry.producer_id, entry.last_offset) == (marker.producer_id, marker.base_offset):
                self.new.aborted.append(entry)
                return False
        return True

    def _stays(self, record: Record, batch: Batch, keeps_old_tombstones: bool) -> bool:
        if record.offset > self.known_to:
            return True
        if record.key is None:
            self.expected.removed[KEYLESS] += 1
            return False
        if record.offset < self.latest.get(record.key, -1):
            self.expected.removed[SUPERSEDED] += 1
            return False
        over = batch.horizon is not None and self.rules.now_ms >= batch.horizon
        if record.value is None and (over if batch.magic == 2 else not keeps_old_tombstones):
            self.expected.removed[TOMBSTONES] += 1
            return False
        return True

    def _keeps_old_tombstones(self, segment: Segment) -> bool:
        """v0 and v1 go by the segments' times."""
        clean_part = [other for base, other in self.log.items() if base < self.first_dirty]
        horizon = clean_part[-1].modified_ms - self.rules.delete_retention_ms if clean_part else 0
        return segment.modified_ms > horizon

    def _rewritten(self, batch: Batch, retained: Sequence[Record]) -> Batch:
        if batch.horizon is None and any(record.value is None for record in retained):
            return self._stamped(batch, retained)
        if len(retained) == batch.count and batch.magic == 2:
            return batch
        return _rebuilt(batch, retained, batch.horizon)

    def _stamped(self, batch: Batch, records: Sequence[Record]) -> Batch:
        return _rebuilt(batch, records, self.rules.now_ms + self.rules.delete_retention_ms)

    def _emptied(self, batch: Batch) -> None:
        """A batch without records stays only where a sequence or an offset would be lost with it."""
        who = self.alive.get(batch.producer_id) if batch.producer_id >= 0 else None
        needed = batch.last_offset == self.end - 1
        if who is not None and who.last_offset >= 0:
            needed |= who.last_offset == batch.last_offset
        elif who is not None:
            needed |= batch.control and batch.producer_epoch == who.epoch
        if needed:
            attributes = batch.attributes & ~(CODEC | HORIZON)
            empty = replace(batch, attributes=attributes, base_timestamp=-1, records=(), count=0)
            self.new.batches.append(replace(empty, magic=2, raw=None))


def _rebuilt(batch: Batch, records: Sequence[Record], horizon: int | None) -> Batch:
    """With other records or a stamp; one of the old formats becomes a batch of its own."""
    appended = bool(batch.attributes & LOG_APPEND) and batch.magic > 0
    old = batch.magic < 2
    attributes = batch.attributes & (CODEC | (LOG_APPEND if appended else 0))
    if not old:
        attributes |= batch.attributes & (TRANSACTIONAL | CONTROL)
    return replace(
        batch,
        magic=2,
        raw=None,
        attributes=attributes | (HORIZON if horizon is not None else 0),
        base_offset=records[0].offset if old else batch.base_offset,
        last_offset=records[-1].offset if old else batch.last_offset,
        base_timestamp=records[0].timestamp if horizon is None else horizon,
        max_timestamp=batch.max_timestamp if appended else max(record.timestamp for record in records),
        records=tuple(records),
        count=len(records),
    )


def _first_dirty(log: Mapping[int, Segment], rules: Cleaning) -> int:
    start = max(rules.log_start, min(log))
    batches = [batch for segment in log.values() for batch in segment.batches]
    end = max(*log, batches[-1].last_offset + 1 if batches else 0)
    if rules.checkpoint is None or not start <= rules.checkpoint <= end:
        return start
    return rules.checkpoint


def _end(
    log: Mapping[int, Segment],
    producers: Mapping[int, Producer],
    first_dirty: int,
    rules: Cleaning,
    *,
    idle: bool = False,
) -> int:
    """The first uncleanable offset: the base of the segment that holds the least of what bounds it.

    ``idle``: only the clean part is to be cleaned, which the same bounds hold for.
    """
    bases = list(log)
    bounds = [bases[-1], *(who.open_from for who in producers.values() if who.open_from >= 0)]
    if rules.high_watermark is not None:
        bounds.append(rules.high_watermark)
    if rules.min_lag_ms > 0:
        first = max((base for base in bases if base <= first_dirty), default=bases[0])
        dirty = [segment for base, segment in log.items() if first <= base < bases[-1]]
        young = [
            segment.base_offset for segment in dirty if _newest(segment) > rules.now_ms - rules.min_lag_ms
        ]
        bounds += young[:1]
    uncleanable = min(first_dirty, *bounds) if idle else max(first_dirty, min(bounds))
    return max(base for base in bases if base <= uncleanable or base == bases[0])


def _newest(segment: Segment) -> int:
    """A segment's largest timestamp, its file's time where it has none."""
    newest = max((batch.max_timestamp for batch in segment.batches), default=-1)
    return newest if newest >= 0 else segment.modified_ms


def groups(segments: Sequence[Segment], end: int, rules: Cleaning) -> list[list[Segment]]:
    """Neighbours that become one segment each, by their sizes before."""
    grouped: list[list[Segment]] = []
    for number, segment in enumerate(segments):
        if segment.base_offset >= end:
            break
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        group = [*grouped[-1], segment] if grouped else []
        if (
            group
            and sum(member.size for member in group) <= rules.segment_bytes
            and sum(member.offset_index_size for member in group) <= rules.index_bytes
            and sum(member.time_index_size for member in group) <= rules.index_bytes
            and (segment.size == 0 or min(following, end) - 1 - group[0].base_offset <= SPAN)
        ):
            grouped[-1] = group
        else:
            grouped.append([segment])
    return grouped
