"""The state machine's rules: what is done to an open log, and what of it the model says.

``LogMachine`` holds a log in a directory of its own, the model beside it, and a clock that stands still until
it is told. fsyncs are not carried out: nothing here crashes the machine that the tests run on.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    LogError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
)
from siltstone.base.records.control import end_transaction_marker
from siltstone.log import retention
from siltstone.log.partition import AppendResult, PartitionLog
from siltstone.log.validation import Origin
from tests.support import in_memory
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.log import driving
from tests.support.log.model import ABORT, COMMIT, Batch, Model, Producer, Stored

KEYS = [b"a", b"b", b"c", b"", None]
VALUES = [b"", b"1", b"value", b"longer" * 4, None]
CODECS = [0, 0, 0, 1, 2, 3, 4]
PRODUCERS = [7, 8]
RECORDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES), st.integers(-30, 30)), min_size=1, max_size=4
)
FIRST_SETTINGS = {
    "segment.bytes": 400,
    "index.interval.bytes": 0,
    "delete.retention.ms": 500,
    "retention.ms": -1,
    "cleanup.policy": "compact",
}
CHANGES = [
    ("segment.bytes", 250),
    ("segment.bytes", 800),
    ("index.interval.bytes", 150),
    ("cleanup.policy", "delete"),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact,delete"),
    ("retention.bytes", 900),
    ("retention.bytes", -1),
    ("retention.ms", 300),
    ("retention.ms", -1),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.type", "CreateTime"),
    ("compression.type", "gzip"),
    ("compression.type", "producer"),
    ("segment.index.bytes", 24),
]
Drafts = list[tuple[bytes | None, bytes | None, int]]


class LogRules(RuleBasedStateMachine):
    """What is done; how it is checked is ``LogMachine``'s."""

    log: PartitionLog

    def __init__(self) -> None:
        super().__init__()
        self._no_sync = mock.patch.object(os, "fsync", lambda descriptor: None)
        self._no_sync.start()
        self._folder = tempfile.TemporaryDirectory(dir=in_memory.FOLDER)
        self.directory = Path(self._folder.name) / str(WHERE)
        self.directory.mkdir()
        self.clock = ManualClock(NOW)
        self.settings: dict[str, object] = dict(FIRST_SETTINGS)
        self.model = Model()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
        self._no_sync.stop()
        self._folder.cleanup()

    @property
    def config(self) -> driving.LogConfig:
        return driving.log_config(self.settings)

    @initialize()
    def begin(self) -> None:
        self.log = driving.open_log(self.directory, self.config, self.clock).log

    # Appending

    def _records(self, drafts: Drafts) -> tuple[Stored, ...]:
        compacts = "compact" in str(self.settings["cleanup.policy"])
        appended = self.settings.get("message.timestamp.type") == "LogAppendTime"
        return tuple(
            Stored(
                self.model.end + number,
                b"k" if key is None and compacts else key,
                value,
                self.clock.now_ms() + (0 if appended else delta),
            )
            for number, (key, value, delta) in enumerate(drafts)
        )

    def _send(self, batch: Batch, codec: int = 0, *, sync: bool = False) -> AppendResult:
        data = driving.client_batch(
            batch.records,
            codec=codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.epoch,
            base_sequence=batch.sequence,
            transactional=batch.transactional,
        )
        return self.log.append(data, sync=sync)

    def _accepted(self, batch: Batch, appended: AppendResult) -> None:
        assert (appended.first_offset, appended.last_offset) == (batch.base, batch.last)
        assert not appended.is_duplicate
        self.model.append(batch)

    def _batch(self, drafts: Drafts, **producer: object) -> Batch:
        records = self._records(drafts)
        last = self.model.end + len(records) - 1
        return Batch(base=self.model.end, last=last, records=records, **producer)  # type: ignore[arg-type]

    @rule(drafts=RECORDS, codec=st.sampled_from(CODECS), sync=st.booleans())
    def append(self, drafts: Drafts, codec: int, sync: bool) -> None:
        batch = self._batch(drafts)
        self._accepted(batch, self._send(batch, codec, sync=sync))
        if sync:
            assert self.log.recovery_point == self.model.end

    @rule(seed=st.integers(0, 1 << 32), count=st.integers(3, 12))
    def append_many(self, seed: int, count: int) -> None:
        """Some batches more, of any kind, without a choice of Hypothesis's for each of them."""
        rng = random.Random(seed)
        for _ in range(count):
            drafts = [
                (rng.choice(KEYS), rng.choice(VALUES), rng.randint(-30, 30)) for _ in range(rng.randint(1, 3))
            ]
            if rng.random() < 0.6:
                self.append(drafts, rng.choice(CODECS), sync=False)
            else:
                self.append_idempotent(drafts, rng.choice(PRODUCERS), rng.random() < 0.5, rng.random() < 0.1)
            self.clock.advance(rng.randint(0, 30))

    @rule(drafts=RECORDS, who=st.sampled_from(PRODUCERS), transactional=st.booleans(), fresh=st.booleans())
    def append_idempotent(self, drafts: Drafts, who: int, transactional: bool, fresh: bool) -> None:
        if who in self.model.unsure:
            return
        known = self.model.producers.get(who)
        if known is not None and known.opened is not None:
            transactional, fresh = True, False
        epoch, sequence = self._next_of(who, known, fresh)
        batch = self._batch(
            drafts,
            producer_id=who,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional and self.transactions,
        )
        self._accepted(batch, self._send(batch))

    @initialize(transactions=st.booleans())
    def choose(self, transactions: bool) -> None:
        self.transactions = transactions
        self.epochs: dict[int, int] = {}

    def _next_of(self, who: int, known: Producer | None, fresh: bool) -> tuple[int, int]:
        if known is not None and not fresh and known.epoch == self.epochs.get(who):
            return known.epoch, known.next_sequence
        self.epochs[who] = self.epochs.get(who, -1) + 1
        return self.epochs[who], 0

    @precondition(lambda self: any(producer.sent for producer in self.model.producers.values()))
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        """A producer that heard no answer sends a batch once more: it gets the same offsets."""
        who = data.draw(st.sampled_from([w for w, p in sorted(self.model.producers.items()) if p.sent]))
        batch = data.draw(st.sampled_from(self.model.producers[who].sent))
        compacts = "compact" in str(self.settings["cleanup.policy"])
        if compacts and any(record.key is None for record in batch.records):
            return
        appended = self._send(batch)
        assert appended.is_duplicate
        assert (appended.first_offset, appended.last_offset) == (batch.base, batch.last)

    @precondition(lambda self: any(producer.sent for producer in self.model.producers.values()))
    @rule(drafts=RECORDS, data=st.data(), gap=st.integers(1, 5), old=st.booleans())
    def append_out_of_order(self, drafts: Drafts, data: st.DataObject, gap: int, old: bool) -> None:
        who = data.draw(st.sampled_from([w for w, p in sorted(self.model.producers.items()) if p.sent]))
        known = self.model.producers[who]
        old = old and known.epoch > 0
        batch = self._batch(
            drafts,
            producer_id=who,
            epoch=known.epoch - old,
            sequence=known.next_sequence + gap,
            transactional=known.opened is not None,
        )
        with pytest.raises(InvalidProducerEpochError if old else OutOfOrderSequenceError):
            self._send(batch)

    @precondition(lambda self: any(p.opened is not None for p in self.model.producers.values()))
    @rule(data=st.data(), commit=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        opened = [w for w, p in sorted(self.model.producers.items()) if p.opened is not None]
        who = data.draw(st.sampled_from(opened))
        known = self.model.producers[who]
        marker = end_transaction_marker(
            is_commit=commit,
            producer_id=who,
            producer_epoch=known.epoch,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms(),
        )
        end = self.model.end
        key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
        appended = self.log.append(marker, origin=Origin.COORDINATOR)
        batch = Batch(
            base=end,
            last=end,
            records=(Stored(end, key, value, self.clock.now_ms()),),
            producer_id=who,
            epoch=known.epoch,
            marker=COMMIT if commit else ABORT,
        )
        self._accepted(batch, appended)

    @rule(kind=st.sampled_from(["checksum", "keyless", "time", "cut", "two", "large"]))
    def append_refused(self, kind: str) -> None:
        """Nothing is written of what is not accepted."""
        now = self.clock.now_ms()
        key, time = (None, now) if kind == "keyless" else (b"k", now + (1 << 40) * (kind == "time"))
        good = driving.client_batch(
            [Stored(0, key, random.Random(1).randbytes(9000 * (kind == "large")), time)]
        )
        data = bytearray(good.tobytes())
        if kind == "checksum":
            data[-1] ^= 1
        elif kind in ("cut", "two"):
            data = data[:-1] if kind == "cut" else data + data
        is_time_ours = self.settings.get("message.timestamp.type") == "LogAppendTime"
        if kind == "keyless" and "compact" not in str(self.settings["cleanup.policy"]):
            return
        if kind == "time" and is_time_ours:
            return
        with pytest.raises(InvalidRecordError if kind in ("keyless", "two", "cut") else LogError):
            self.log.append(data)

    # Rolling, flushing, settings, time

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end

    @rule()
    def roll(self) -> None:
        self.log.roll()
        assert self.log.view.segments[-1].base_offset <= self.model.end

    @rule(change=st.sampled_from(CHANGES))
    def change_settings(self, change: tuple[str, object]) -> None:
        self.settings[change[0]] = change[1]
        self.log.update_config(self.config)

    @rule(by_ms=st.sampled_from([1, 40, 600]))
    def wait(self, by_ms: int) -> None:
        self.clock.advance(by_ms)

    # What makes it shorter

    @rule(part=st.floats(0, 0.4), minus_one=st.sampled_from([True] + 5 * [False]))
    def delete_records(self, part: float, minus_one: bool) -> None:
        stable = self.log.last_stable_offset
        before = self.model.start + int(part * (stable - self.model.start))
        whole = minus_one and stable == self.model.readable
        self.model.raise_start(self.model.readable if whole else before)
        assert self.log.delete_records(-1 if whole else before) == self.model.start
        with pytest.raises(OffsetOutOfRangeError):
            self.log.delete_records(self.model.readable + 1)

    @rule(unlink=st.booleans())
    def retain(self, unlink: bool) -> None:
        view = self.log.view
        facts = retention.segment_metadata(view)
        decisions = retention.segments_to_delete(
            facts,
            now_ms=self.clock.now_ms(),
            config=self.config,
            log_start_offset=view.log_start_offset,
            high_watermark=min(view.high_watermark, view.last_stable_offset),
        )
        for fact, decision in zip(facts, decisions, strict=False):
            assert fact.base_offset == decision.base_offset
            assert fact.end_offset <= self.model.readable
        renamed = self.log.delete_oldest_segments(len(decisions))
        if decisions:
            self.model.raise_start(facts[len(decisions) - 1].end_offset)
        assert len(self.log.view.segments) == 1 or self.log.view.segments[1].base_offset > self.model.start
        for path in renamed if unlink else ():
            path.unlink()

    @rule(part=st.floats(0.5, 1))
    def truncate(self, part: float) -> None:
        offset = self.model.start + int(part * (self.model.end - self.model.start))
        assert self.log.truncate_to(offset) == (offset < self.model.end)
        if offset < self.model.end:
            self.model.truncate(offset)

    @precondition(lambda self: len(self.log.view.segments) > 12)
    @rule(forward=st.integers(0, 9))
    def restart(self, forward: int) -> None:
        offset = self.model.end + forward
        self.log.truncate_fully_and_start_at(offset)
        self.model.restart(offset)
        self.model.start = offset
        self.model.unsure.clear()
        self.epochs.clear()

    @rule(part=st.sampled_from([None, 0.0, 0.3, 0.9, 1.0]))
    def set_high_watermark(self, part: float | None) -> None:
        model = self.model
        model.high_watermark = None if part is None else model.start + int(part * (model.end - model.start))
        self.log.set_high_watermark(model.high_watermark)
