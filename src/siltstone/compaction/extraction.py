"""What both kinds of compaction share of reading a log: its records, window by window, checked on the way.

The functions here raise for what is wrong with a log. A task's functions make a ``LogFailure`` of it
(``failure_of``), so that one bad log does not stop the others of the same job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from siltstone.base.errors import CorruptFileError, SiltstoneError
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import KeyColumns, RecordColumns
from siltstone.base.records.inflate import pieces
from siltstone.base.records.layout import Directory, Int64
from siltstone.log.segments import Window
from siltstone.log.transactions import Aborted

Columns = TypeVar("Columns", KeyColumns, RecordColumns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """Why a log is not compacted: a status of the report (skipped, uncleanable, failed) and the reason."""

    status: str
    reason: str


def failure_of(error: Exception) -> LogFailure:
    """The failure that an error means: damage is uncleanable, the environment's errors are failures."""
    if isinstance(error, CorruptFileError):
        return LogFailure(status="uncleanable", reason=str(error))
    if isinstance(error, SiltstoneError):
        return LogFailure(status="failed", reason=str(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return LogFailure(status="failed", reason=f"{where}{error.strerror or error}")
    return LogFailure(status="failed", reason=f"{type(error).__name__}: {error}")


class HasFailure(Protocol):
    """A report of a piece of work, which may have failed."""

    @property
    def failure(self) -> LogFailure | None:
        """Why it did, None where it did not."""
        ...


def first_failure(reports: Iterable[HasFailure]) -> LogFailure | None:
    """The first failure among some reports."""
    return next((each.failure for each in reports if each.failure is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Segments ``first`` up to ``last`` (not included) of a log, which one task writes anew: offsets
    [base, end)."""

    index: int
    first: int
    last: int
    base_offset: int
    end_offset: int


@dataclass(slots=True, kw_only=True)
class Extracted:
    """What was seen in some segments: counts of records, and the first failure.

    ``transactional``: a batch of a transaction, or a marker. ``summaries``: how each segment left
    transactions. In a compaction beside the originals only records in its range count; ``aborted``: of
    aborted transactions; ``size``: bytes of their batches; ``entries``: of keys, those that were handed on.
    """

    records: int = 0
    keyed: int = 0
    keyless: int = 0
    aborted: int = 0
    size: int = 0
    entries: int = 0
    transactional: bool = False
    failure: LogFailure | None = None
    summaries: list[Int64] = field(default_factory=list, repr=False)

    def add(self, other: Extracted) -> None:
        """Sum up; the first failure stays."""
        for name in ("records", "keyed", "keyless", "aborted", "size", "entries"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.transactional |= other.transactional
        self.failure = self.failure or other.failure
        self.summaries += other.summaries


@functools.lru_cache(maxsize=4)
def aborted_of(data: bytes) -> Aborted:
    """The log's aborted transactions in order, made out once for all segments of a task."""
    return Aborted.of(data)


class Decoded(NamedTuple, Generic[Columns]):
    """Some batches of a window, and their records."""

    window: Window
    batches: Directory
    columns: Columns


def decoded(
    path: str,
    windows: Iterable[Window],
    offsets: tuple[int, int],
    decode: Callable[..., Columns],
    *,
    scratch: Scratch | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Iterator[Decoded[Columns]]:
    """All records of a segment's ``windows``, in slices of about 8 MiB decompressed (``inflate.pieces``).

    ``offsets``: what the segment may hold, [base, end). ``decode`` is ``decode_records`` or
    ``decode_record_keys``; ``limit``: what one batch may decompress to. Raises CorruptFileError for offsets
    that do not ascend or lie outside, and what ``decode`` raises.
    """
    following, scratch = offsets[0], scratch or Scratch()
    for window in windows:
        before, following = following, refuse_disorder(path, window, following, offsets[1])
        for part in pieces(window.data, window.batches):
            batches = window.batches[part]
            columns = decode(window.data, batches, scratch, limit=limit, path=path, origin=window.origin)
            before = _refuse_inner_disorder(path, window, batches, columns, before)
            yield Decoded(window, batches, columns)


def refuse_disorder(path: str, window: Window, following: int, end: int) -> int:
    """Batches must ascend inside [following, end); returns the offset after the last one.

    Raises CorruptFileError for the first that does not.
    """
    base, last = window.batches["base_offset"], window.batches["last_offset"]
    before = np.concatenate((np.array([following], np.int64), last[:-1] + 1))
    bad = np.flatnonzero((base < before) | (last >= end))
    if len(bad):
        row = int(bad[0])
        raise CorruptFileError(
            path,
            window.origin + int(window.batches["position"][row]),
            f"offsets {base[row]} to {last[row]} are out of order or outside [{following}, {end})",
        )
    return int(last[-1]) + 1


def _refuse_inner_disorder(
    path: str, window: Window, batches: Directory, columns: KeyColumns, following: int
) -> int:
    """The offsets inside message sets (v0, v1) must ascend over entries too; returns the one after the last.

    Raises CorruptFileError.
    """
    if (batches["magic"] < 2).any():
        before = np.concatenate((np.array([following - 1], np.int64), columns.offset[:-1]))
        bad = np.flatnonzero(columns.offset <= before)
        if len(bad):
            position = window.origin + int(batches["position"][columns.batch[bad[0]]])
            raise CorruptFileError(path, position, f"offset {columns.offset[bad[0]]} is out of order")
    return int(batches["last_offset"][-1]) + 1
