"""A log against a plain list: appended to, flushed, rolled, read, cut, deleted from, cleaned, opened again.

Hypothesis draws the steps; ``machine`` carries them out and tells ``model``, and after each of them the log
must be what the model says. A failing run prints its steps, smallest first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from siltstone.base.errors import OffsetOutOfRangeError
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.names import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from tests.support.cleaning import logs
from tests.support.cleaning.logs import WHERE
from tests.support.log import driving
from tests.support.log.index_checks import check_indexes
from tests.support.log.machine import LogRules
from tests.support.thoroughness import examples


class LogMachine(LogRules):
    """The rules that open the log again or clean it, and what must hold after every step."""

    # Cleaning

    def _may_clean(self) -> bool:
        policy = str(self.settings["cleanup.policy"])
        first, active = self.log.view.segments[0].base_offset, self.log.view.segments[-1].base_offset
        return "compact" in policy and not self.model.has_transactions(first, active)

    @precondition(lambda self: self._may_clean())
    @rule()
    def clean_while_open(self) -> None:
        now_ms, end = self.clock.now_ms(), self.log.view.segments[-1].base_offset
        for path in self.directory.glob("*.deleted"):
            path.unlink()
        cleaned = driving.clean_open_log(
            self.log, self.settings, now_ms=now_ms, checkpoint=self.model.checkpoint
        )
        self._cleaned(cleaned, end)

    @precondition(lambda self: self._may_clean())
    @rule()
    def clean_while_closed(self) -> None:
        path, end = self.directory.parent, self.log.view.segments[-1].base_offset
        self.log.close()
        for name, offset in (
            (CLEANER_CHECKPOINT, self.model.checkpoint),
            (LOG_START_CHECKPOINT, self.model.start),
            (REPLICATION_CHECKPOINT, 1 << 40),
        ):
            write_checkpoint(path / name, {} if offset is None else {WHERE: offset})
        # Retention by time and size has a rule of its own; what lies below the start is read by nobody.
        config = {**self.settings, "cleanup.policy": "compact"}
        result = logs.run(path, config=config, now_ms=self.clock.now_ms())
        if result.status == "uncleanable":  # a truncation cut into a batch, and what was left was deleted
            assert "is above the log's end" in result.reason and self.model.start == self.model.end
        else:
            assert result.status in ("cleaned", "nothing_to_do"), result
        compacted = result.status == "cleaned" and not any("not compacted" in note for note in result.notes)
        now = read_checkpoint(path / CLEANER_CHECKPOINT).get(WHERE)
        self._cleaned(now if compacted else None, end)
        self._open(clean=True)

    def _cleaned(self, cleaned: int | None, limit: int) -> None:
        """The checkpoint, which may lie beyond the active segment; None where nothing was to be cleaned."""
        retention = int(str(self.settings["delete.retention.ms"]))
        if cleaned is None:
            assert not self.model.dirty(limit)
            return
        assert limit <= cleaned <= max(limit, self.model.first_dirty)
        self.model.clean(limit, self.clock.now_ms(), retention)
        self.model.checkpoint = cleaned

    # Opening again

    def _open(self, *, clean: bool, recovery_point: int = 0) -> None:
        opened = driving.open_log(
            self.directory,
            self.config,
            self.clock,
            clean=clean,
            recovery_point=recovery_point,
            log_start=self.model.start,
        )
        self.log = opened.log
        assert not opened.recovered.damage
        assert not list(self.directory.glob("*.deleted"))
        active = self.log.view.segments[-1].base_offset
        self.model.reopened(active, self.log.log_end_offset, clean=clean)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        check_indexes(self.directory)
        self._open(clean=True)

    @rule(point=st.sampled_from([0, 1]), lost=st.floats(0, 1))
    def reopen_after_a_crash(self, point: int, lost: float) -> None:
        """Nobody closes the log; of the active segment's unsynced bytes some are lost."""
        recovery_point = self.log.recovery_point * point
        self._abandon()
        synced = self.synced_bytes()
        active = self.log.view.segments[-1]
        size = active.size - int(lost * (active.size - synced))
        self.model.lose_tail(self.batches_in(active.path(), size))
        with open(active.path(), "r+b") as file:
            file.truncate(size)
        self._open(clean=False, recovery_point=recovery_point)

    def _abandon(self) -> None:
        for segment in self.log.view.segments:
            segment.close_for_append()

    def synced_bytes(self) -> int:
        """Bytes of the active segment that were synced for certain."""
        active = self.log.view.segments[-1]
        data = active.path().read_bytes()
        return sum(
            len(raw) for header, raw in logs.headers_of(data) if header.last_offset < self.log.recovery_point
        )

    def batches_in(self, path: Path, size: int) -> int:
        """The offset behind the last whole batch in the first ``size`` bytes of a segment."""
        end, position = int(path.stem), 0
        for header, raw in logs.headers_of(path.read_bytes()):
            position += len(raw)
            if position > size:
                break
            end = header.last_offset + 1
        return end

    # Reading

    @rule(part=st.floats(0, 1), max_bytes=st.sampled_from([1, 90, 200, 1 << 20]), whole=st.booleans())
    def read(self, part: float, max_bytes: int, whole: bool) -> None:
        model = self.model
        offset = model.start + int(part * (model.end - model.start))
        fetched = self.log.read(offset, max_bytes, min_one_batch=whole)
        records, last = driving.fetched(fetched)
        expected = model.records(offset, model.readable)
        if last is None:
            assert not expected or not whole
            return
        assert len(fetched.batches()[0]) <= max_bytes or len(fetched.batches()[1]) == 1
        assert [record for record in records if record.offset >= offset] == [
            record for record in expected if record.offset <= last
        ]

    @rule()
    def read_outside(self) -> None:
        for offset in (self.model.start - 1, self.model.end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset)

    @rule(max_bytes=st.sampled_from([150, 1 << 20]))
    def read_committed(self, max_bytes: int) -> None:
        records = driving.read_all(self.log, max_bytes=max_bytes, isolation=READ_COMMITTED)
        assert records == self.model.committed(self.model.start, self.log.last_stable_offset)

    @rule(by_ms=st.integers(-700, 60))
    def look_up_time(self, by_ms: int) -> None:
        place = self.log.offset_for_time(self.clock.now_ms() + by_ms)
        expected = self.model.at_time(self.clock.now_ms() + by_ms)
        actual = None if place is None else (place.offset, place.timestamp)
        assert actual == (None if expected is None else (expected.offset, expected.timestamp))

    # What holds after every step

    @invariant()
    def the_bounds_are_the_models(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        assert log.offline is None
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.high_watermark == model.readable
        assert log.last_stable_offset <= model.stable
        assert log.recovery_point <= model.end
        bases = [segment.base_offset for segment in log.view.segments]
        assert bases == sorted(set(bases))
        assert len(bases) == 1 or bases[0] <= model.start

    @invariant()
    def every_record_is_there(self) -> None:
        if hasattr(self, "log"):
            assert driving.read_all(self.log) == self.model.records(self.model.start, self.model.readable)


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=examples(200),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
