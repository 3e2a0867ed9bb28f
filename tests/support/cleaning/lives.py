"""Random lives of logs: appended to through the product's own log, cleaned, appended to again.

A ``Life`` is data that Hypothesis draws and prints; ``Living`` carries it out in a log directory of its own,
so that indexes, ``.txnindex`` files and snapshots are those that a running log leaves. Keyless records come
in as they do in practice: the topic was not compacted when they were written.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction import work as splits
from siltstone.log.lookup import batch_headers
from siltstone.log.partition import PartitionLog
from siltstone.log.segments import Segment
from siltstone.log.validation import Origin
from tests.support.cleaning import oracle
from tests.support.cleaning.logs import DAY, NOW, WHERE, Rec
from tests.support.golden_sets import read_checkpoint, write_checkpoint
from tests.support.log.batches import of_records
from tests.support.log.driving import open_log

HOUR = 3_600_000
EXPIRATION = DAY
KEYS = (None, b"", *(b"key-%d" % number for number in range(12)))
PLAIN, IDEMPOTENT, TRANSACTIONAL = (-1,), (10, 11), (20, 21, 22)
BUMPING = 22
"""This producer's markers have the next epoch (KIP-890), so that it has no data batch afterwards."""
AGES = (0, 1, 50, HOUR, DAY - 1, 3 * DAY)


@dataclass(frozen=True, kw_only=True)
class Append:
    """One batch; a record is (number of its key, kind of its value, age in ms)."""

    producer: int
    records: tuple[tuple[int, int, int], ...]
    codec: int = 0


@dataclass(frozen=True, kw_only=True)
class End:
    """A transaction's marker, also for a producer that has none open."""

    producer: int
    commit: bool


@dataclass(frozen=True)
class DeleteRecords:
    """The log start goes up to so many per cent of the log."""

    per_cent: int


Event = Append | End | DeleteRecords


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is appended, how much time passes, and how it is cleaned then.

    ``rolls``: events between two rolls, in turn; ``leaves_open``: transactions that are open stay so;
    ``unreplicated``: offsets above the high watermark.
    """

    events: tuple[Event, ...]
    rolls: tuple[int, ...] = (3,)
    leaves_open: bool = True
    later_ms: int = 0
    log_append_time: bool = False
    unreplicated: int = 0
    min_lag_ms: int = 0
    retention_ms: int = DAY
    segment_bytes: int = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Life:
    """The rounds of a log, and how the work on it is spread when it is not all done in one go."""

    rounds: tuple[Round, ...]
    interval: int = 4096
    in_waves: bool = False
    buckets: int = 1


def _appends(producers: Sequence[int]) -> st.SearchStrategy[Event]:
    records = st.tuples(st.integers(0, len(KEYS) - 1), st.integers(0, 3), st.sampled_from(AGES))
    keyed = st.tuples(st.integers(1, len(KEYS) - 1), st.integers(0, 3), st.just(0))
    some = st.one_of(
        st.lists(records, min_size=1, max_size=1),
        st.lists(keyed, min_size=1, max_size=4),
        st.lists(records, min_size=2, max_size=5),
        st.lists(keyed, min_size=20, max_size=24),
    )
    return st.builds(
        Append,
        producer=st.sampled_from(producers),
        records=some.map(tuple),
        codec=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    )


def lives(transactions: bool = True) -> st.SearchStrategy[Life]:
    """Logs of one to three rounds."""
    ends: list[st.SearchStrategy[Event]] = [
        st.builds(End, producer=st.sampled_from(TRANSACTIONAL), commit=st.booleans())
    ]
    without_transactions = _appends(PLAIN + IDEMPOTENT)
    mixed = _appends(TRANSACTIONAL)
    event = st.one_of(without_transactions, mixed, *ends) if transactions else without_transactions
    return st.builds(
        Life,
        rounds=st.tuples(_rounds(event, 4), st.lists(_rounds(event, 0), max_size=2)).map(
            lambda drawn: (drawn[0], *drawn[1])
        ),
        interval=st.sampled_from([0, 200, 4096]),
        in_waves=st.booleans(),
        buckets=st.integers(1, 5),
    )


def _rounds(event: st.SearchStrategy[Event], minimum: int) -> st.SearchStrategy[Round]:
    deletes = st.builds(DeleteRecords, st.integers(0, 90))
    events = st.tuples(
        st.lists(event, min_size=minimum, max_size=24)
        if minimum
        else st.just([]) | st.lists(event, max_size=24),
        st.lists(deletes, max_size=1),
        st.integers(0, 3),
    )
    return st.builds(
        Round,
        events=events.map(lambda drawn: (*drawn[0], *(drawn[1] if drawn[2] == 3 else ()))),
        rolls=st.sampled_from([(1,), (2,), (3, 1), (4, 1, 2)]),
        leaves_open=st.sampled_from([False, False, True]),
        later_ms=st.sampled_from([0, 1000, HOUR, HOUR, DAY // 2, 2 * DAY]),
        log_append_time=st.sampled_from([False, False, True]),
        unreplicated=st.sampled_from([0, 0, 0, 0, 1, 9]),
        min_lag_ms=st.sampled_from([0, 0, 0, 0, HOUR]),
        retention_ms=st.sampled_from([0, 1000, 1000, DAY // 2, 100 * DAY]),
        segment_bytes=st.sampled_from([1, 500, 2000, 1 << 20]),
    )


@dataclass(kw_only=True)
class _Producer:
    epoch: int = 0
    sequence: int = 0
    open: bool = False
    heard_ms: int = NOW


class Living:
    """Carries out a life, round by round, in ``root``."""

    def __init__(self, root: Path, life: Life) -> None:
        self.root, self.partition, self._life = root, root / str(WHERE), life
        self.clock = ManualClock(NOW)
        self._producers = {who: _Producer() for who in (*IDEMPOTENT, *TRANSACTIONAL)}
        self._written = 0
        self._dated: set[Path] = set()
        self.partition.mkdir(parents=True)
        (root / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")

    def write(self, round_: Round) -> None:
        """Open the log, append, close it, put down its checkpoints; afterwards it is time to clean."""
        log = open_log(self.partition, self._config(round_), self.clock, clean=True, log_start=self._start())
        rolls = itertools.accumulate(itertools.islice(itertools.cycle(round_.rolls), len(round_.events)))
        rolled_before = {*rolls}
        for number, event in enumerate(round_.events):
            if number in rolled_before:
                log.log.roll()
            self._do(log.log, event)
        for producer in TRANSACTIONAL:
            if self._producers[producer].open and not round_.leaves_open:
                self._end(log.log, End(producer=producer, commit=producer % 2 == 0))
        log.log.close()
        self._put("log-start-offset-checkpoint", log.log.log_start_offset)
        committed = max(log.log.log_end_offset - round_.unreplicated, log.log.log_start_offset)
        self._put("replication-offset-checkpoint", committed)
        for path in sorted(self.partition.glob("*.log")):
            if path not in self._dated or path.stem == f"{log.log.view.segments[-1].base_offset:020}":
                os.utime(path, ns=(self.clock.now_ms() * 1_000_000,) * 2)
        self._dated = {*self.partition.glob("*.log")}
        self.clock.advance(round_.later_ms)

    def _config(self, round_: Round) -> LogConfig:
        return replace(
            LogConfig(),
            message_timestamp_type="LogAppendTime" if round_.log_append_time else "CreateTime",
            index_interval_bytes=self._life.interval,
            segment_bytes=6000,
            producer_id_expiration_ms=EXPIRATION,
        )

    def _start(self) -> int:
        return self._entry("log-start-offset-checkpoint") or 0

    def _entry(self, name: str) -> int | None:
        return read_checkpoint(self.root / name).get((WHERE.topic, WHERE.partition))

    def _put(self, name: str, offset: int) -> None:
        write_checkpoint(self.root / name, {(WHERE.topic, WHERE.partition): offset})

    def _do(self, log: PartitionLog, event: Event) -> None:
        match event:
            case Append():
                self._append(log, event)
            case End():
                self._end(log, event)
            case DeleteRecords():
                start, end = log.log_start_offset, log.high_watermark
                log.delete_records(start + (end - start) * event.per_cent // 100)

    def _append(self, log: PartitionLog, event: Append) -> None:
        now = self.clock.now_ms()
        records = []
        for offset, (key, kind, age) in enumerate(event.records):
            self._written += 1
            value = (None, b"", b"%d" % self._written, b"%d " % self._written * 12)[kind]
            headers = ((b"h", None), (b"n", b"%d" % offset)) if kind == 3 else ()
            records.append(
                Rec(offset=offset, key=KEYS[key], value=value, timestamp=now - age, headers=headers)
            )
        log.append(of_records(records, codec=event.codec, **self._identity(event)))
        self.clock.advance(1)

    def _identity(self, event: Append) -> dict[str, object]:
        """A producer goes on with its sequence."""
        if event.producer < 0:
            return {}
        who = self._heard(event.producer)
        sequence, who.sequence = who.sequence, who.sequence + len(event.records)
        transactional = event.producer in TRANSACTIONAL
        who.open |= transactional
        return {
            "producer_id": event.producer,
            "producer_epoch": who.epoch,
            "base_sequence": sequence,
            "transactional": transactional,
        }

    def _heard(self, producer: int) -> _Producer:
        """One that may have been forgotten begins anew."""
        who, now = self._producers[producer], self.clock.now_ms()
        if now - who.heard_ms >= EXPIRATION and not who.open:
            who.epoch, who.sequence = who.epoch + 1, 0
        who.heard_ms = now
        return who

    def _end(self, log: PartitionLog, event: End) -> None:
        who = self._heard(event.producer)
        if event.producer == BUMPING:
            who.epoch, who.sequence = who.epoch + 1, 0
        marker = end_transaction_marker(
            is_commit=event.commit,
            producer_id=event.producer,
            producer_epoch=who.epoch,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        log.append(marker, origin=Origin.COORDINATOR)
        who.open = False
        self.clock.advance(1)

    def settings(self, round_: Round) -> dict[str, object]:
        """The topic's settings as the cleaning is told them."""
        return {
            "delete.retention.ms": round_.retention_ms,
            "segment.bytes": round_.segment_bytes,
            "min.compaction.lag.ms": round_.min_lag_ms,
            "index.interval.bytes": self._life.interval,
            "producer.id.expiration.ms": EXPIRATION,
        }

    def rules(self, round_: Round) -> oracle.Cleaning:
        """The same for the oracle, with the checkpoints as they are now."""
        return oracle.Cleaning(
            now_ms=self.clock.now_ms(),
            checkpoint=self._entry("cleaner-offset-checkpoint"),
            log_start=self._start(),
            high_watermark=self._entry("replication-offset-checkpoint"),
            delete_retention_ms=round_.retention_ms,
            producer_expiration_ms=EXPIRATION,
            min_lag_ms=round_.min_lag_ms,
            segment_bytes=round_.segment_bytes,
        )


def splits_of_any_size(patch: pytest.MonkeyPatch) -> None:
    """Let tasks cut segments and groups wherever an index names a batch, however small they are."""
    patch.setattr(splits, "MIN_SPLIT_BYTES", 1)
    patch.setattr(splits, "MIN_CUT_BYTES", 1)
    patch.setattr(splits, "_NEAR_BOUNDARY_DIVISOR", 1 << 30)


def cut_at_every_batch(patch: pytest.MonkeyPatch) -> None:
    """Let groups be cut into a range for every batch, however small they are."""
    splits_of_any_size(patch)
    patch.setattr(splits, "_MIN_SHARES", 0)
    patch.setattr(splits, "splits_by_task", _split_at_every_batch)


def _split_at_every_batch(
    segments: Sequence[Segment], end: int, tasks: int, *, may_cut: bool
) -> list[list[splits.InputSplit]]:
    """A task for every batch, as if the index named each."""
    cut = []
    for split in splits.whole_segments(segments, end):
        segment = segments[split.segment]
        with files.Reader(segment.path) as reader:
            headers = list(batch_headers(reader, end=segment.size))
        starts, offsets = (
            [number for part in headers for number in part[field].tolist()][1:]
            for field in ("position", "base_offset")
        )
        for start, stop, first, last in zip(
            [0, *starts],
            [*starts, segment.size],
            [split.first_offset, *offsets],
            [*offsets, split.end_offset],
            strict=True,
        ):
            part = replace(
                split, start_position=start, end_position=stop, first_offset=first, end_offset=last
            )
            cut.append([part])
    return cut
