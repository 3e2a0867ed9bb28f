"""A compacted log against a list and a dict: appended to, compacted, expired, opened again, read meanwhile.

The list is what was appended, the dict what compactions must leave. A reader may begin before a compaction
and end after several: it sees the ledger that it began with, then the originals behind it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.compaction.ledger.work import CompactionSettings
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog
from tests.support.cleaning.logs import NOW, WHERE, Rec
from tests.support.ledger.driving import How, as_seen, compact, in_ledger
from tests.support.ledger.oracle import Model, Seen
from tests.support.log.batches import of_records
from tests.support.log.driving import open_log
from tests.support.thoroughness import examples

KEYS = st.sampled_from([None, b"", *(b"%d" % number for number in range(9))])
VALUES = st.sampled_from([None, b"", b"1", b"2" * 90, b"3" * 400])
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=100)
RECORDS = st.lists(st.tuples(KEYS, VALUES, st.integers(-5, 5)), min_size=1, max_size=6)


class CompactedLog(RuleBasedStateMachine):
    """The steps, and what must hold after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / str(WHERE)
        self.directory.mkdir()
        self.appended: list[Seen] = []
        self.reading: tuple[CompactedReader, list[Seen], list[Seen], int] | None = None
        self.log = self.opened(0)

    def opened(self, log_start: int) -> PartitionLog:
        return open_log(self.directory, CONFIG, ManualClock(NOW), log_start=log_start).log

    @initialize(by_time=st.booleans(), retain_null_key=st.booleans())
    def begin(self, by_time: bool, retain_null_key: bool) -> None:
        self.model = Model(by_time=by_time, retain_null_key=retain_null_key)

    @property
    def end(self) -> int:
        return len(self.appended)

    @rule(records=RECORDS, codec=st.sampled_from([0, 0, 2, 4]))
    def append(self, records: list[tuple[bytes | None, bytes | None, int]], codec: int) -> None:
        appended = [
            Rec(offset=number, key=key, value=value, timestamp=NOW + time)
            for number, (key, value, time) in enumerate(records)
        ]
        self.log.append(of_records(appended, codec=codec))
        base = self.end
        self.appended += [
            Seen(offset=base + r.offset, timestamp=r.timestamp, key=r.key, value=r.value, leader_epoch=0)
            for r in appended
        ]

    @precondition(lambda self: self.model.best)
    @rule(data=st.data(), time=st.integers(-5, 5))
    def delete_a_key(self, data: st.DataObject, time: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.best)))
        self.append([(key, None, time)], 0)

    @rule(
        spread=st.booleans(),
        buckets=st.sampled_from([1, 4]),
        maximum=st.integers(1, 4),
        segment_bytes=st.sampled_from([1000, 1 << 30]),
    )
    def compact(self, spread: bool, buckets: int, maximum: int, segment_bytes: int) -> None:
        sizes = CompactionSettings(segment_bytes=segment_bytes, max_runs=maximum)
        result = compact(self.log, self.model, How(spread=spread, buckets=buckets, settings=sizes))
        assert result.changed is (self.end > self.model.horizon)
        self.model.add(self.appended[self.model.horizon :], self.end)

    @rule()
    def roll(self) -> None:
        if self.log.view.segments[-1].size:
            self.log.roll()

    @rule()
    def expire_originals(self) -> None:
        """All segments that nobody needs any more."""
        held = LedgerStore(self.directory).first_needed_offset() or 0
        if self.reading is not None:
            held = min(held, max(self.reading[0].offset, self.reading[3]))
        bases = [segment.base_offset for segment in self.log.view.segments[1:]]
        for path in self.log.delete_oldest_segments(sum(base <= held for base in bases)):
            path.unlink()

    @rule()
    def open_again(self) -> None:
        start = self.log.log_start_offset
        self.finish_reading()
        self.log.close()
        self.log = self.opened(start)

    @precondition(lambda self: self.reading is None)
    @rule(polls=st.integers(0, 3))
    def begin_reading(self, polls: int) -> None:
        reader = CompactedReader(self.log, buffer_bytes=200)
        expected, horizon, records_read = self.model.view(), self.model.horizon, list[Seen]()
        if not expected and not horizon:
            return
        self.reading = (reader, expected, records_read, horizon)
        self._read(polls)

    def _read(self, polls: int) -> None:
        assert self.reading is not None
        reader, _, records_read, _ = self.reading
        for _ in range(polls):
            polled = reader.poll(max_bytes=200)
            if polled is None:
                return
            records_read += [_of(polled, row) for row in range(len(polled))]

    @precondition(lambda self: self.reading is not None)
    @rule()
    def finish_reading(self) -> None:
        if self.reading is None:
            return
        self._read(10_000)
        _, expected, records_read, horizon = self.reading
        assert records_read == expected + self.appended[horizon:]
        self.reading = None

    @invariant()
    def the_ledger_is_the_dict(self) -> None:
        if hasattr(self, "model"):
            assert in_ledger(self.directory) == self.model.view()

    @invariant()
    def the_view_is_the_dict_and_the_rest_of_the_list(self) -> None:
        if hasattr(self, "model"):
            read = [as_seen(record) for record in CompactedReader(self.log).records()]
            assert read == self.model.view() + self.appended[self.model.horizon :]

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)


def _of(polled: object, row: int) -> Seen:
    columns = polled.columns  # type: ignore[attr-defined]
    return Seen(
        offset=int(columns.offset[row]),
        timestamp=int(columns.timestamp[row]),
        key=columns.key(row),
        value=columns.value(row),
        leader_epoch=0,
    )


@pytest.mark.random
def test_the_ledger_is_a_dict_and_the_view_adds_the_rest_of_a_list() -> None:
    run_state_machine_as_test(
        CompactedLog,
        settings=settings(
            max_examples=examples(20),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
