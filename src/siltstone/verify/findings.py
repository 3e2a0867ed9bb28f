"""The findings of a check: problems by kind, counts of records, and the verdict on a log.

``PROBLEM_KINDS`` says what each kind means. The first few problems of each kind are listed, the others are
only counted. Keys and values never appear: a record is named by its offset. After a correct cleaning
``LogVerdict.problems`` is empty.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError, CorruptFileError, SourceChangedError
from siltstone.log.names import HasTopicPartition

EXAMPLES = 5
"""How many problems of one kind are listed for each log; the others are only counted."""

REASONS = ("superseded", "tombstones", "aborted", "keyless", "markers", "expired")
"""The reasons of a discard, by which records are counted. The cleaner's own list is not imported, so that
the check stays independent of the cleaner."""


class KeyReason(NamedTuple):
    """A reason to discard a record with a key, and the two problems that there may be with that reason, each
    (kind, detail).

    ``name``: one of ``REASONS``. ``if_lost``: a record was discarded, but this reason does not hold for it,
    or not yet. ``if_retained``: a record was retained that had to be discarded for this reason.
    """

    name: str
    if_lost: tuple[str, str]
    if_retained: tuple[str, str]


SUPERSEDED, TOMBSTONE = range(2)
"""Indexes in ``KEY_REASONS``. An entry of ``verify.keys`` has one of them. There SUPERSEDED is also the value
of a record without a reason of its own: only a later record of its key can justify that it was discarded."""
KEY_REASONS = (
    KeyReason(
        "superseded",
        ("lost", "no later record of its key is there, and it is not in AFTER"),
        ("superseded_kept", "a later record of its key was cleaned with it"),
    ),
    KeyReason(
        "tombstones",
        ("tombstone_lost", "it is not in AFTER, and its delete horizon has not passed"),
        ("tombstone_kept", "its delete horizon has passed, and it is still there"),
    ),
)

PROBLEM_KINDS = {
    # Files
    "log_missing": "a log of BEFORE is not in AFTER",
    "log_unknown": "a log of AFTER is not in BEFORE",
    "unsafe_file": "a link, a device or the like in place of a file, so nothing of the log is checked",
    "topic_id": "AFTER has another topic id, or a damaged one",
    "leftover": "a file of an unfinished swap, or an index without its segment",
    "unreadable": "AFTER cannot be read, or has no sound batches there: checksum, size, magic or records",
    "before_damaged": "BEFORE cannot be read, or has no sound batches there; nothing after is checked",
    "unchecked": "the check of the log failed: its job on Spark failed",
    "snapshot": "the newest producer snapshot is missing or changed",
    "leader_epochs": "the leader epochs are missing, damaged or changed",
    "checkpoint": "the cleaner checkpoint moved backwards, or lies where nothing may be cleaned",
    # Order and place
    "order": "batches or records are not in ascending order of offsets",
    "segment_bounds": "a batch has offsets that its segment cannot have",
    "segment_name": "a segment has the name of an offset at which no segment began",
    "segment_missing": "whole segments are missing, and retention may not have deleted them",
    "end_moved": "the log ends at another offset",
    # Batches
    "batch_unknown": "a batch that BEFORE does not have, or that begins or ends at another offset",
    "header_changed": "a header field that cleaning preserves changed",
    "batch_changed": "the bytes of a batch changed that loses no record and needs no delete horizon",
    "beyond_range": "something changed above the cleaned range",
    "batch_times": "base or largest timestamp of a rewritten batch is not that of its records",
    "empty_batch": "an emptied batch is more than its header, or need not be there",
    "sequence_lost": "the last batch of an active producer is missing",
    "last_batch_lost": "the batch with the last offset of the cleaned range is missing",
    "not_converted": "a message set (v0, v1) stayed in the cleaned range",
    # Records
    "record_unknown": "a record that BEFORE does not have, or has in another batch",
    "key_changed": "a record has another key",
    "value_changed": "a record has another value",
    "headers_changed": "a record has other headers",
    "timestamp_changed": "a record has another timestamp",
    "lost": "the last value of a key is missing",
    "lost_unkeyed": "a record is missing, and no reason to discard it holds",
    "superseded_kept": "a record stayed that a later one of its key supersedes",
    "keyless_kept": "a record without a key stayed in the cleaned range",
    # Tombstones
    "tombstone_lost": "a tombstone was discarded before its delete horizon",
    "tombstone_kept": "a tombstone stayed although its delete horizon has passed",
    "unstamped": "a tombstone stayed without a delete horizon in its batch",
    "horizon_changed": "a delete horizon changed",
    "needless_horizon": "a delete horizon in a batch that needs none",
    "horizons_differ": "new delete horizons differ, or are not the cleaning's time plus delete.retention.ms",
    # Transactions
    "aborted_kept": "a record of an aborted transaction stayed in the cleaned range",
    "marker_lost": "a transaction's marker was discarded too early",
    "marker_kept": "a marker stayed whose transaction is empty and whose horizon has passed",
    "marker_stamp": "a marker has a delete horizon while its transaction has data, or none without",
    "aborted_entry": "the index of aborted transactions lacks an entry, or has a wrong one",
    # Indexes
    "index": "an offset index leads a reader past a record, is missing, or is not what its log gives",
    "time_index": "a time index leads a reader past a record, is missing, or is not what its log gives",
}
"""Every kind of problem and what it means."""


FileError = CorruptFileError | SourceChangedError | OSError
FILE_ERRORS = (CorruptFileError, SourceChangedError, OSError)
"""The errors of reading a log's file that is damaged, has changed since it was listed, or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. ``kind``: one of ``PROBLEM_KINDS``; ``path`` and ``position`` (bytes), or ``offset``:
    where it is, None if that is not known."""

    kind: str
    detail: str
    offset: int | None = None
    path: str | None = None
    position: int | None = None

    def __str__(self) -> str:
        position = self.position is not None and f"byte {self.position}"
        offset = self.offset is not None and f"offset {self.offset}"
        place = ", ".join(part for part in (self.path, position, offset) if part)
        return ": ".join(part for part in (self.kind, place, self.detail) if part)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Problems and counts of one log, or of a part of it.

    ``problem_counts``: kind → how many problems. ``counts``: how many records there are "before" and "after",
    and how many were discarded for each of ``REASONS``; "keys": how many distinct keys. ``is_complete``: all
    batches could be read. ``notes``: remarks that are no problems. ``KINDS``: the kinds of problems that
    there may be, with what they mean.
    """

    KINDS: ClassVar[Mapping[str, str]] = PROBLEM_KINDS
    problems: list[Problem] = field(default_factory=list)
    problem_counts: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        kind: str,
        detail: str,
        *,
        offset: int | None = None,
        path: str | None = None,
        position: int | None = None,
        times: int = 1,
    ) -> None:
        """Add a problem. ``times``: how many problems of its kind to count, of which this is the first."""
        assert kind in self.KINDS, kind
        if times and self.problem_counts[kind] < EXAMPLES:
            problem = Problem(kind=kind, detail=detail, offset=offset, path=path, position=position)
            self.problems.append(problem)
        self.problem_counts[kind] += times

    def add_offsets(
        self, kind: str, detail: str, offsets: npt.NDArray[np.integer], path: str | None = None
    ) -> None:
        """Add a problem at all of ``offsets``: list it for the first one, count it for all."""
        if len(offsets):
            self.add(kind, detail, offset=int(offsets[0]), path=path, times=len(offsets))

    def add_error(self, kind: str, error: FileError, path: str | None = None) -> None:
        """Add the error as a problem of this ``kind``. ``path``: that of the file that was read, for an
        OSError without a path."""
        if isinstance(error, OSError):
            self.add(kind, error.strerror or str(error), path=error.filename or path)
        else:
            detail = f"{error.reason}; {error.advice}" if error.advice else error.reason
            self.add(kind, detail, path=error.path, position=error.position)

    @contextlib.contextmanager
    def reporting_as(self, kind: str, path: str | None = None) -> Iterator[None]:
        """Add an error of ``FILE_ERRORS`` in the ``with`` block as a problem of this ``kind``. ``path``: as
        for ``add_error``."""
        try:
            yield
        except FILE_ERRORS as error:
            self.add_error(kind, error, path)

    def merge(self, other: Findings) -> None:
        """Add the findings of another part of the log."""
        for problem in other.problems:
            if sum(listed.kind == problem.kind for listed in self.problems) < EXAMPLES:
                self.problems.append(problem)
        self.problem_counts += other.problem_counts
        self.counts += other.counts
        self.is_complete = self.is_complete and other.is_complete


@dataclass(slots=True, kw_only=True)
class LogVerdict(HasTopicPartition):
    """The verdict on one log; the names are those of the JSON report. ``first_dirty_offset``,
    ``cleaned_end_offset``: those of ``LogPair``, None without one. ``removed``: how many records were
    discarded, by reason. ``found``: how many problems there are, by kind; ``problems``: the first few of each
    kind."""

    topic: str
    partition: int
    first_dirty_offset: int | None = None
    cleaned_end_offset: int | None = None
    records_before: int = 0
    records_after: int = 0
    distinct_keys: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """The check found no problem."""
        return not self.found

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {"status": "ok" if self.is_sound else "problems", **asdict(self)}


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The verdict on all logs of two directories."""

    logs: list[LogVerdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """The check found no problem in any log."""
        return all(log.is_sound for log in self.logs)

    def raise_for_errors(self) -> None:
        """Raise CheckFailedError, with the first problem, unless all logs are sound."""
        for log in self.logs:
            if not log.is_sound:
                kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(log.found.items()))
                reason = f"{log.problems[0]} (all problems: {kinds})"
                raise CheckFailedError(
                    reason, path=log.name, advice="restore the log from before the cleaning"
                )

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "status": "ok" if self.is_sound else "problems",
            "logs": [log.to_json() for log in self.logs],
            "notes": self.notes,
        }
