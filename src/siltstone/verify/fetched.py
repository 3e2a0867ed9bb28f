"""Checks the batches of one log as a running broker sends them: ``siltstone verify --bootstrap-server``.

There is no state before a cleaning to compare with, and no file: each batch is checked by itself, and for its
place in the log::

    checksum ─► records: codec, sizes, count ─► offsets rise, log start to high watermark ─► times

Segments, indexes, checkpoints and snapshots are not seen, nor whether the last value of each key is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import BAD_CHECKSUM, checksums_hold
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.layout import BatchHeaders, Int64
from siltstone.log.names import HasTopicPartition
from siltstone.log.segments import Window
from siltstone.verify.findings import EXAMPLES, Problem

FETCHED_PROBLEM_KINDS = {
    "unreadable": "a batch cannot be read: checksum, size, magic or records, whose offsets must ascend",
    "order": "batches are not in ascending order of offsets",
    "bounds": "batches do not lie between the log start and the high watermark, or do not reach it",
    "batch_times": "the largest timestamp of a batch is not that of its records",
    "refused": "the broker does not send the partition, or not all of it",
}
"""Every kind of problem and what it means."""
NOT_SEEN = (
    "a broker does not show segments, indexes, checkpoints and snapshots, nor what a cleaning removed: "
    "siltstone verify BEFORE AFTER checks these in directories"
)


@dataclass(slots=True, kw_only=True)
class FetchedVerdict(HasTopicPartition):
    """The verdict on one log. ``log_start_offset``, ``high_watermark``: None if the broker does not tell;
    ``bytes``: of the batches; ``largest_timestamp``: in ms, None without a record that has one. ``found``
    counts problems by kind, of which ``problems`` are the first few."""

    topic: str
    partition: int
    log_start_offset: int | None = None
    high_watermark: int | None = None
    batches: int = 0
    records: int = 0
    bytes: int = 0
    largest_timestamp: int | None = None
    problems: list[Problem] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """The check found no problem."""
        return not self.found

    def add(self, kind: str, detail: str, *, offset: int | None = None, position: int | None = None) -> None:
        """Add a problem; ``position``: in bytes from the first batch that was read."""
        assert kind in FETCHED_PROBLEM_KINDS, kind
        if self.found[kind] < EXAMPLES:
            self.problems.append(Problem(kind=kind, detail=detail, offset=offset, position=position))
        self.found[kind] += 1

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {"status": "ok" if self.is_sound else "problems", **asdict(self), "found": dict(self.found)}


class FetchedCheck:
    """Checks the windows of one log in turn, from ``start`` up to ``end``, its high watermark."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.verdict = FetchedVerdict(
            topic=topic, partition=partition, log_start_offset=start, high_watermark=end
        )
        self._start, self._end = start, end
        self._last_offset = -1
        self._scratch = Scratch()

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the start before the first one."""
        return max(self._last_offset + 1, self._start)

    def check(self, window: Window) -> None:
        """Check the next batches."""
        self.verdict.batches += len(window.batches)
        self.verdict.bytes += int(window.batches["size"].sum(dtype=np.int64))
        self._check_places(window.batches)
        is_valid = checksums_hold(window.data, window.batches)
        for batch in window.batches[~is_valid]:
            self._add_unreadable(window, batch, BAD_CHECKSUM)
        valid = window.batches[is_valid]
        for part in slices_within(window.data, valid):
            self._check_records(window, valid[part])

    def continue_at(self, start: int) -> None:
        """The log starts there now, beyond the batches that were checked."""
        self.verdict.notes.append(f"the log start moved to offset {start} while the log was read")
        self._start = start

    def finish(self) -> FetchedVerdict:
        """The verdict, after the last window."""
        if self.verdict.is_sound and self._start < self._end and self.next_offset < self._end:
            detail = f"the batches end at offset {self._last_offset}, below the high watermark {self._end}"
            self.verdict.add("bounds", detail, offset=self._last_offset)
        return self.verdict

    def _check_places(self, batches: BatchHeaders) -> None:
        last = batches["last_offset"]
        before = np.append(self._last_offset, last[:-1])
        for row in np.flatnonzero(batches["base_offset"] <= before)[:EXAMPLES].tolist():
            detail = f"it follows offset {before[row]}"
            self.verdict.add("order", detail, offset=int(batches["base_offset"][row]))
        is_outside = (last < self._start) | (last >= self._end)
        for row in np.flatnonzero(is_outside)[:EXAMPLES].tolist():
            detail = f"a batch up to offset {last[row]} is not within {self._start} to {self._end}"
            self.verdict.add("bounds", detail, offset=int(batches["base_offset"][row]))
        self._last_offset = max(self._last_offset, int(last.max(initial=-1)))

    def _check_records(self, window: Window, batches: BatchHeaders) -> None:
        """Check the records of batches; those of each batch alone if one of them cannot be decoded."""
        try:
            columns = decode_records(window.data, batches, self._scratch)
        except CorruptRecordError as error:
            if len(batches) == 1:
                self._add_unreadable(window, batches[0], error.reason)
                return
            for number in range(len(batches)):
                self._check_records(window, batches[number : number + 1])
            return
        self.verdict.records += len(columns)
        self._check_times(batches, columns)

    def _check_times(self, batches: BatchHeaders, columns: RecordColumns) -> None:
        if not len(columns):
            return
        largest: Int64 = np.full(len(batches), -1, np.int64)
        np.maximum.at(largest, columns.batch, columns.timestamp)
        stored, counts = batches["max_timestamp"], np.bincount(columns.batch, minlength=len(batches))
        # Kafka sets a batch's largest timestamp; of message sets it only has to be as large.
        is_wrong = (counts > 0) & ((stored < largest) | ((stored != largest) & (batches["magic"] == 2)))
        for row in np.flatnonzero(is_wrong)[:EXAMPLES].tolist():
            detail = f"its header has {stored[row]}, its records {largest[row]}"
            self.verdict.add("batch_times", detail, offset=int(batches["base_offset"][row]))
        newest = int(largest.max())
        if newest >= 0:
            self.verdict.largest_timestamp = max(newest, self.verdict.largest_timestamp or 0)

    def _add_unreadable(self, window: Window, batch: Any, reason: str) -> None:
        position = window.origin + int(batch["position"])
        self.verdict.add("unreadable", reason, offset=int(batch["base_offset"]), position=position)
