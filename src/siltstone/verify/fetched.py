"""Checks the batches of one log as a running broker sends them: ``siltstone verify --bootstrap-server``.

There is no state before a cleaning to compare with, and no file: each batch is checked by itself, and for its
place in the log::

    offsets rise, log start to high watermark ─► checksum ─► records: codec, sizes, count ─► timestamps

The check sees no segments, indexes, checkpoints and snapshots. It cannot tell whether the log still has the
last value of each key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import BAD_CHECKSUM, checksums_hold
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import slices_within
from siltstone.base.records.layout import BatchHeaders, Flags, Int64
from siltstone.log.names import HasTopicPartition
from siltstone.log.segments import Window
from siltstone.verify.findings import EXAMPLES, Findings, Problem

FETCHED_PROBLEM_KINDS = {
    "unreadable": "a batch cannot be read: checksum, size, magic or records, whose offsets must ascend",
    "order": "batches are not in ascending order of offsets",
    "bounds": "batches do not lie between the log start and the high watermark, or do not reach it",
    "batch_times": "the largest timestamp of a batch is not that of its records",
    "refused": "the broker does not send the partition, or not all of it",
}
"""Every kind of problem of a ``FetchedVerdict`` and what it means."""
NOT_SEEN = (
    "a broker does not show segments, indexes, checkpoints and snapshots, nor what a cleaning removed: "
    "siltstone verify BEFORE AFTER checks these in directories"
)


class FetchedFindings(Findings):
    """The findings of a check of fetched batches: a position is in bytes from the first batch that was
    read."""

    __slots__ = ()
    KINDS = FETCHED_PROBLEM_KINDS


@dataclass(slots=True, kw_only=True)
class FetchedVerdict(HasTopicPartition):
    """The verdict on one log. ``log_start_offset``, ``high_watermark``: None if the broker sends nothing of
    the log; ``bytes``: those of the batches; ``largest_timestamp``: in ms, None if no record has one.
    ``found``: how many problems there are, by kind; ``problems``: the first few of each kind."""

    topic: str
    partition: int
    log_start_offset: int | None = None
    high_watermark: int | None = None
    batches: int = 0
    records: int = 0
    bytes: int = 0
    largest_timestamp: int | None = None
    problems: list[Problem] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """The check found no problem."""
        return not self.found

    @classmethod
    def refused(cls, topic: str, partition: int, reason: str) -> FetchedVerdict:
        """The verdict on a log of which the broker sends nothing."""
        problem = Problem(kind="refused", detail=reason)
        return cls(topic=topic, partition=partition, problems=[problem], found={"refused": 1})

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {"status": "ok" if self.is_sound else "problems", **asdict(self)}


class FetchedCheck:
    """Checks one log: call ``check`` with its windows in turn, then ``finish``. ``start``: the log start
    offset; ``end``: the high watermark."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.verdict = FetchedVerdict(
            topic=topic, partition=partition, log_start_offset=start, high_watermark=end
        )
        self.findings = FetchedFindings()
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
        self._check_offsets(window.batches)
        is_valid = checksums_hold(window.data, window.batches)
        for batch in window.batches[~is_valid]:
            self._add_unreadable(window, batch, BAD_CHECKSUM)
        valid = window.batches[is_valid]
        for part in slices_within(window.data, valid):
            self._check_records(window, valid[part])

    def continue_at(self, start: int) -> None:
        """Continue at ``start``, where the log begins now: records that were not checked yet were deleted."""
        self.findings.notes.append(f"the log start moved to offset {start} while the log was read")
        self._start = start

    def finish(self) -> FetchedVerdict:
        """The verdict, after the last window."""
        findings, verdict = self.findings, self.verdict
        if not findings.problem_counts and self._start < self._end and self.next_offset < self._end:
            detail = f"the batches end at offset {self._last_offset}, below the high watermark {self._end}"
            findings.add("bounds", detail, offset=self._last_offset)
        verdict.problems, verdict.notes = findings.problems, findings.notes
        verdict.found = dict(findings.problem_counts)
        return verdict

    def _add_batches(
        self, kind: str, batches: BatchHeaders, is_wrong: Flags, detail_of: Callable[[int], str]
    ) -> None:
        """Add a problem of each wrong batch. ``detail_of``: says what is wrong with the batch in a row."""
        rows = np.flatnonzero(is_wrong)
        for row in rows[:EXAMPLES].tolist():
            self.findings.add(kind, detail_of(row), offset=int(batches["base_offset"][row]))
        if len(rows) > EXAMPLES:
            self.findings.problem_counts[kind] += len(rows) - EXAMPLES

    def _check_offsets(self, batches: BatchHeaders) -> None:
        """Do the batches follow each other, within the log's bounds?"""
        last = batches["last_offset"]
        previous_last = np.append(self._last_offset, last[:-1])
        is_out_of_order = batches["base_offset"] <= previous_last
        is_outside = (last < self._start) | (last >= self._end)
        self._add_batches(
            "order", batches, is_out_of_order, lambda row: f"it follows offset {previous_last[row]}"
        )
        bounds = f"is not within {self._start} to {self._end}"
        self._add_batches(
            "bounds", batches, is_outside, lambda row: f"a batch up to offset {last[row]} {bounds}"
        )
        self._last_offset = max(self._last_offset, int(last.max(initial=-1)))

    def _check_records(self, window: Window, batches: BatchHeaders) -> None:
        """Check the records of batches. If a batch cannot be decoded, all are decoded one by one: the error
        names only the first one."""
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
        """Is each batch's largest timestamp that of its records?"""
        if not len(columns):
            return
        largest: Int64 = np.full(len(batches), -1, np.int64)
        np.maximum.at(largest, columns.batch, columns.timestamp)
        stored, counts = batches["max_timestamp"], np.bincount(columns.batch, minlength=len(batches))
        # In a v2 batch it must be exactly that; in a message set it may be larger.
        is_wrong = (counts > 0) & ((stored < largest) | ((stored != largest) & (batches["magic"] == 2)))
        self._add_batches(
            "batch_times",
            batches,
            is_wrong,
            lambda row: f"its header has {stored[row]}, its records {largest[row]}",
        )
        newest = int(largest.max())
        if newest >= 0:
            self.verdict.largest_timestamp = max(newest, self.verdict.largest_timestamp or 0)

    def _add_unreadable(self, window: Window, batch: Any, reason: str) -> None:
        position = window.origin + int(batch["position"])
        self.findings.add("unreadable", reason, offset=int(batch["base_offset"]), position=position)
