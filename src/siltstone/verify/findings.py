"""The findings of a check: problems by kind, counts of records, and the verdict on a log.

``PROBLEM_KINDS`` says what each kind means. Of each kind the first few problems are listed, the others are
counted. Keys and values never appear: a record is named by its offset. ``LogVerdict.problems`` is empty for a
cleaning that kept all its promises.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import CheckFailedError, CorruptFileError

EXAMPLES = 5
"""So many problems of one kind are listed for each log; the others are only counted."""

REASONS = ("superseded", "tombstones", "aborted", "keyless", "markers", "expired")
"""Reasons of a discard, by which the check counts records; not the cleaner's own list, on purpose."""


class KeyReason(NamedTuple):
    """A reason to discard a record with a key, and the problems that it can have: (kind, detail).

    ``name``: of ``REASONS``. ``if_lost``: a record is gone that has this reason, but not yet, or does not
    have it at all. ``if_kept``: a record is there that had to be discarded for this reason.
    """

    name: str
    if_lost: tuple[str, str]
    if_kept: tuple[str, str]


SUPERSEDED, TOMBSTONE = range(2)
"""The numbers of ``KEY_REASONS``, which a key's entry has; 0 is also that of a record without a reason."""
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
    "unsafe_file": "a link, a device or the like in the place of a file, so nothing of the log is checked",
    "topic_id": "AFTER has another topic id",
    "leftover": "a file of an unfinished swap, or an index without its segment",
    "unreadable": "bytes of AFTER that are no sound batches: checksum, size, magic or records",
    "before_damaged": "bytes of BEFORE that are no sound batches, so nothing behind them is checked",
    "unchecked": "the check broke off, so nothing is known of the log: its job on Spark failed",
    "snapshot": "the newest producer snapshot is missing or another one",
    "leader_epochs": "the leader epochs are missing or others",
    "checkpoint": "the cleaner checkpoint went back, or lies where nothing may be cleaned",
    # Order and place
    "order": "batches or records are not in ascending order of offsets",
    "segment_bounds": "a batch lies outside of what its segment may hold",
    "segment_name": "a segment is named after an offset at which no segment began",
    "segment_missing": "whole segments are gone, and nothing says that retention took them",
    "end_moved": "the log ends at another offset",
    # Batches
    "batch_unknown": "a batch that was not there, or that begins or ends elsewhere",
    "header_changed": "a header field that cleaning keeps is another one",
    "batch_changed": "a batch that loses nothing and needs no stamp is not the same bytes",
    "beyond_range": "something changed above the cleaned range",
    "batch_times": "base or largest timestamp of a rewritten batch is not that of its records",
    "empty_batch": "an emptied batch is not as emptied batches are, or need not be there",
    "sequence_lost": "the last batch of a producer that is alive is gone",
    "last_batch_lost": "the batch with the last offset of the cleaned range is gone",
    "not_converted": "a message set (v0, v1) was left in the cleaned range",
    # Records
    "record_unknown": "a record that was not there, or sits in another batch",
    "key_changed": "a record has another key",
    "value_changed": "a record has another value",
    "headers_changed": "a record has other headers",
    "timestamp_changed": "a record has another timestamp",
    "lost": "the last value of a key is gone",
    "lost_unkeyed": "a record is gone for no reason that cleaning has",
    "superseded_kept": "a record stayed that a later one of its key supersedes",
    "keyless_kept": "a record without a key stayed in the cleaned range",
    # Tombstones
    "tombstone_lost": "a tombstone is gone before its delete horizon",
    "tombstone_kept": "a tombstone stayed although its delete horizon has passed",
    "unstamped": "a tombstone stayed without a delete horizon in its batch",
    "horizon_changed": "a delete horizon is another one than before",
    "needless_horizon": "a delete horizon in a batch that needs none",
    "horizons_differ": "new delete horizons of one pass are not the same, or not now and delete.retention.ms",
    # Transactions
    "aborted_kept": "a record of an aborted transaction stayed in the cleaned range",
    "marker_lost": "a transaction's marker is gone too early",
    "marker_kept": "a marker stayed whose transaction is empty and whose horizon has passed",
    "marker_stamp": "a marker has a horizon while data of its transaction was there, or has none without",
    "aborted_entry": "the index of aborted transactions misses an entry, or has one that is wrong",
    # Indexes
    "index": "an offset index leads a reader past a record, is missing, or is not what its log gives",
    "time_index": "a time index leads a reader past a record, is missing, or is not what its log gives",
}
"""Every kind of problem and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem: ``path`` and ``position`` (bytes) or ``offset`` where they are known, else None."""

    kind: str
    detail: str
    offset: int | None = None
    path: str | None = None
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.path is None else self.path
        where += "" if self.position is None else f", byte {self.position}"
        where += "" if self.offset is None else f"{', ' if where else ''}offset {self.offset}"
        return f"{self.kind}: {where}{': ' if where else ''}{self.detail}"


@dataclass(slots=True, kw_only=True)
class Findings:
    """Problems of one log, or of a part of it, and counts of records by what became of them.

    ``complete`` is False where damage kept some of it from being read. ``notes``: what is odd and no problem.
    """

    problems: list[Problem] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    complete: bool = True
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
        """Note a problem; ``times``: how many there are of which this is the first."""
        assert kind in PROBLEM_KINDS, kind
        if times and self.found[kind] < EXAMPLES:
            problem = Problem(kind=kind, detail=detail, offset=offset, path=path, position=position)
            self.problems.append(problem)
        self.found[kind] += times

    def add_offsets(
        self, kind: str, detail: str, offsets: npt.NDArray[np.integer], path: str | None = None
    ) -> None:
        """Note a problem of the ``offsets``: the first of them, and how many there are."""
        if len(offsets):
            self.add(kind, detail, offset=int(offsets[0]), path=path, times=len(offsets))

    def add_error(self, kind: str, error: CorruptFileError) -> None:
        """Note what is corrupt as a problem of this ``kind``."""
        detail = f"{error.reason}; {error.advice}" if error.advice else error.reason
        self.add(kind, detail, path=error.path, position=error.position)

    @contextlib.contextmanager
    def noting(self, kind: str) -> Iterator[None]:
        """Note a CorruptFileError of the block as a problem of this ``kind``."""
        try:
            yield
        except CorruptFileError as error:
            self.add_error(kind, error)

    def merge(self, other: Findings) -> None:
        """Add the findings of another part of the log."""
        for problem in other.problems:
            if sum(known.kind == problem.kind for known in self.problems) < EXAMPLES:
                self.problems.append(problem)
        self.found += other.found
        self.counts += other.counts
        self.complete = self.complete and other.complete


@dataclass(slots=True, kw_only=True)
class LogVerdict:
    """The verdict on one log. Counts are of records; ``removed`` by reason; ``found`` counts problems by
    kind, of which ``problems`` are the first few."""

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
        """Raises CheckFailedError, with the first problem, unless all is sound."""
        for log in self.logs:
            if not log.is_sound:
                kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(log.found.items()))
                raise CheckFailedError(
                    f"{log.problems[0]} (all problems: {kinds})",
                    path=f"{log.topic}-{log.partition}",
                    advice="restore the log from before the cleaning",
                )

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for ``json``."""
        return {
            "status": "ok" if self.is_sound else "problems",
            "logs": [log.to_json() for log in self.logs],
            "notes": self.notes,
        }
