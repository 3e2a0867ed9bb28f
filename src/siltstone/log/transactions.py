"""The transactions of a log: aborted batches, empty markers, and whether markers and ``.txnindex`` agree.

Kafka's ``CleanedTransactionMetadata``. The ``.txnindex`` files of the whole log list the aborted
transactions; a transaction's batches are between its first offset and its marker. A marker's transaction is
*empty* when no batch of it was read in this pass, not even one that the pass discards: such a marker gets a
delete horizon, and is discarded once that has passed.

The state continues over segments and segment groups, which different tasks rewrite. So extraction sums up for
each input split how it left the producers, and ``carried_by_group`` combines these summaries::

    input splits ── TransactionScan ──► summaries ── carried_by_group ──► Carried, one for each group's start
    a group      ── TransactionScan, from its Carried on ──► aborted batches, empty markers, new .txnindex

An index has no checksum, and a reader that trusts a wrong one loses committed data. Kafka does not check it;
here every entry is compared with the batches::

    offset     5     6     7     8       9      10
    producer   data  data  data  ABORT   data   COMMIT         the only entry that is right: first 5, last 8

    a COMMIT in the range of an entry; an ABORT in it but at its end; an entry whose end is no ABORT;
    data without an entry before an ABORT, or before the data of an entry             each is a contradiction

A cleaning discards an aborted transaction's data first, in a later pass the entry, and the marker last. So an
entry without data is sound, and an entry without its marker is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.control import marker_of
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeaders,
    Bytes,
    Flags,
    Int32,
    Int64,
)
from siltstone.base.records.varint import read_int16
from siltstone.log.indexes import TRANSACTION_ENTRY, AbortedTransaction, Entries, read_entries
from siltstone.log.lookup import batch_headers, read_batch
from siltstone.log.names import segment_file
from siltstone.log.segments import Segment

Kinds = npt.NDArray[np.int8]
DATA, COMMIT, ABORT, OTHER, EMPTY, INVALID_CONTROL = range(6)
"""Kinds of batches. EMPTY: a control batch that an earlier cleaning has emptied."""
CLOSED, OPEN, OBSERVED, UNLISTED, LISTED = range(5)
"""Kinds of a summary's rows: (first offset of the split, kind, id). The id is a producer id; in OBSERVED rows
it is the offset of the abort marker.

UNLISTED: the producer's first batch in the split is an abort marker that no index has. LISTED: it belongs to
a transaction that an index has.
"""
_HOW_TO_REPAIR = "; run siltstone recover --check to rebuild the index"
NOT_LISTED = "producer {producer} aborted a transaction with data that no .txnindex names" + _HOW_TO_REPAIR
COMMITTED = "producer {producer} committed a transaction that a .txnindex names as aborted" + _HOW_TO_REPAIR
BEGINS_ELSEWHERE = (
    "a .txnindex names an aborted transaction of producer {producer} that begins elsewhere in the log"
    + _HOW_TO_REPAIR
)
ENDS_ELSEWHERE = (
    "a .txnindex names an aborted transaction of producer {producer} that does not end where its marker is"
    + _HOW_TO_REPAIR
)
UNENDED = (
    "producer {producer} has transactional data below offset {end} and no marker in the log, but the newest "
    ".snapshot has no open transaction for it; move that .snapshot out of the directory, so that the one "
    "before it is loaded"
)
_CONTRADICTIONS = (NOT_LISTED, COMMITTED, BEGINS_ELSEWHERE, ENDS_ELSEWHERE)
_NOT_LISTED, _COMMITTED, _BEGINS_ELSEWHERE, _ENDS_ELSEWHERE = range(4)
"""Numbers of the contradictions, for the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A log's aborted transactions, by producer id and first offset: int64 arrays, and the index's entries.

    ``last_offset`` is the marker's, so all are different. A producer's ranges do not overlap.
    """

    producer_id: Int64
    first_offset: Int64
    last_offset: Int64
    entries: Entries

    @classmethod
    def of(cls, data: bytes, path: str = "") -> Aborted:
        """From the bytes of ``.txnindex`` files, joined in any order.

        Raises CorruptFileError, with ``path``, for entries that cannot be of one log.
        """
        entries = np.frombuffer(data, TRANSACTION_ENTRY)
        entries = entries[np.lexsort((entries["first_offset"], entries["producer_id"]))]
        named = ("producer_id", "first_offset", "last_offset")
        producer_id, first_offset, last_offset = (entries[name].astype(np.int64) for name in named)
        overlaps = (producer_id[1:] == producer_id[:-1]) & (first_offset[1:] <= last_offset[:-1])
        if overlaps.any():
            producer = int(producer_id[1:][np.argmax(overlaps)])
            reason = f"the .txnindex files name aborted transactions of producer {producer} that overlap"
            raise CorruptFileError(path, 0, reason + _HOW_TO_REPAIR)
        markers, counts = np.unique(last_offset, return_counts=True)
        if (counts > 1).any():
            reason = f"the .txnindex files name two transactions that end at offset {markers[counts > 1][0]}"
            raise CorruptFileError(path, 0, reason + _HOW_TO_REPAIR)
        return cls(
            producer_id=producer_id, first_offset=first_offset, last_offset=last_offset, entries=entries
        )

    @classmethod
    def among(cls, transactions: Iterable[AbortedTransaction], path: str = "") -> Aborted:
        """From transactions in any order. Raises CorruptFileError."""
        return cls.of(np.array([(0, *each) for each in transactions], TRANSACTION_ENTRY).tobytes(), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of the transactions where a group starts.

    ``unended``: producers with data that no index has as aborted and whose marker comes later. ``observed``:
    the marker's offset of each aborted transaction whose data was read before.
    """

    unended: tuple[int, ...] = ()
    observed: tuple[int, ...] = ()


NOTHING = Carried()


@kernel
def _kinds(
    rows: Int64,
    batches: BatchHeaders,
    data: Bytes,
    first_record: Int64,
    key_start: Int32,
    key_size: Int32,
    kinds: Kinds,
) -> None:
    """Fill ``kinds`` for the batches ``rows``. A control record's key is an int16 version and
    an int16 type (``ControlRecordType``: 0 ABORT, 1 COMMIT)."""
    for i in range(len(rows)):
        header = batches[rows[i]]
        record = first_record[i]
        if header.attributes & CONTROL_BIT == 0:
            kinds[i] = DATA
        elif header.count == 0:
            kinds[i] = EMPTY
        elif key_size[record] < 4 or read_int16(data, key_start[record]) < 0:
            kinds[i] = INVALID_CONTROL
        else:
            type_ = read_int16(data, key_start[record] + 2)
            kinds[i] = ABORT if type_ == 0 else COMMIT if type_ == 1 else OTHER


class _Batches(NamedTuple):
    """Transactional and control batches in order: rows of the window's directory, kinds, rows of the
    producers' table."""

    row: Int64
    kind: Kinds
    producer: Int64
    base_offset: Int64
    last_offset: Int64


class _Producers(NamedTuple):
    """For each producer, bool: has it data that no index has and no marker has ended yet; has this scan seen
    it; and was its first batch an abort marker that no index has, or of a transaction that one has."""

    opened: Flags
    touched: Flags
    unlisted: Flags
    listed_first: Flags


class _Index(NamedTuple):
    """The aborted transactions, and for each producer the rows [first, behind the last) of its own."""

    first_offset: Int64
    last_offset: Int64
    bounds: Int64


class _Met(NamedTuple):
    """For each aborted transaction, bool: was its data read, its marker, and its marker after its data."""

    observed: Flags
    marked: Flags
    ended: Flags


@kernel
def _entry_of(first_aborted: Int64, low: int, high: int, offset: int) -> int:
    """The last of one producer's entries [low, high) that begins at or below ``offset``; ``low`` - 1 without
    one. A producer's ranges do not overlap, so only this entry can hold the offset."""
    while low < high:
        middle = (low + high) // 2
        if first_aborted[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel
def _follow(
    batches: _Batches, producers: _Producers, index: _Index, met: _Met, aborted: Flags, empty: Flags
) -> tuple[int, int]:
    """Apply transactional and control batches in order. Returns which batch contradicts the index, -1 for
    none, and the contradiction's number in ``_CONTRADICTIONS``.

    Updates ``producers`` and ``met``; fills ``aborted`` and ``empty``, one a batch of the window.
    """
    rows, kinds, places, base_offset, last_offset = batches
    opened, touched, unlisted, listed_first = producers
    first_aborted, last_aborted, bounds = index
    observed, marked, ended = met
    for i in range(len(rows)):
        row, producer, kind = rows[i], places[i], kinds[i]
        if kind >= OTHER:
            # No marker; one that an earlier cleaning emptied stays an empty one.
            empty[row] = kind == EMPTY
            continue
        # An entry holds this batch if its range [first, marker] reaches to it.
        low = bounds[producer, 0]
        entry = _entry_of(first_aborted, low, bounds[producer, 1], last_offset[i])
        listed = entry >= low and last_aborted[entry] >= base_offset[i]
        if listed:
            # Unended data that no index has belongs to this transaction too: the entry begins too late.
            if kind == COMMIT:
                return i, _COMMITTED
            if opened[producer] or first_aborted[entry] > base_offset[i]:
                return i, _BEGINS_ELSEWHERE
            listed_first[producer] |= not touched[producer]
        elif kind == ABORT:
            # Without an entry an abort is sound only if its data was cleaned away before.
            if opened[producer]:
                return i, _NOT_LISTED
            unlisted[producer] |= not touched[producer]
        touched[producer] = True
        if kind == DATA:
            # An entry ends at its marker, which is a batch of its own, so not within data.
            if listed and last_aborted[entry] <= last_offset[i]:
                return i, _ENDS_ELSEWHERE
            aborted[row] = listed
            if listed:
                observed[entry] = True
            else:
                opened[producer] = True
        elif kind == COMMIT:
            empty[row] = not opened[producer]
            opened[producer] = False
        elif listed:
            if last_aborted[entry] != base_offset[i]:
                return i, _ENDS_ELSEWHERE
            # Without data in this pass the marker is empty, and its entry is not written again.
            marked[entry] = True
            empty[row] = not observed[entry]
            ended[entry] = observed[entry]
        else:
            empty[row] = True
    return -1, 0


def transaction_indexes(segments: Sequence[Segment], end_offset: int | None = None) -> bytes:
    """The entries of all segments' ``.txnindex`` files; ``end_offset``: the log's, None where unknown.

    Checks that an entry is in the segment of its marker and that no two overlap. Raises CorruptFileError,
    OSError.
    """
    parts = []
    bases = [segment.base_offset for segment in segments]
    for segment, end in zip(segments, [*bases[1:], end_offset], strict=True):
        if segment.transaction_index_size:
            path = Path(segment.directory) / segment_file(segment.base_offset, "txnindex")
            raw = files.read_slice(path, 0, segment.transaction_index_size)  # the active one may be growing
            entries = read_entries(raw, "txnindex", str(path))
            _refuse_impossible(entries, str(path), segment.base_offset, end)
            parts.append(entries.tobytes())
    joined = b"".join(parts)
    if joined:
        Aborted.of(joined, segments[0].directory)
    return joined


def _refuse_impossible(entries: Entries, path: str, base_offset: int, end: int | None) -> None:
    """Raises CorruptFileError for entries that a segment with offsets [base_offset, end) cannot have."""
    first, last = entries["first_offset"].astype(np.int64), entries["last_offset"].astype(np.int64)
    outside = (last < base_offset) | (False if end is None else last >= end)
    stable = entries["last_stable_offset"].astype(np.int64)
    for bad, reason in (
        (first >= last, "a transaction ends before it begins"),
        ((first < 0) | (entries["producer_id"] < 0), "a transaction without a producer, or below offset 0"),
        (outside, "a transaction ends in another segment, or beyond the log's end"),
        ((stable < 0) | (stable > last + 1), "a last stable offset that cannot have been"),
    ):
        if bad.any():
            raise CorruptFileError(path, int(np.argmax(bad)) * entries.itemsize, reason + _HOW_TO_REPAIR)


class TransactionScan:
    """Follows the transactions of batches in log order, window by window, from ``carried`` on."""

    def __init__(self, aborted: Aborted, carried: Carried = NOTHING) -> None:
        self._aborted = aborted
        self._ids = np.array(sorted(carried.unended), np.int64)
        opened = np.ones(len(self._ids), np.bool_)
        self._producers = _Producers(opened, *np.zeros((3, len(self._ids)), np.bool_))
        observed = np.isin(aborted.last_offset, np.array(carried.observed, np.int64))
        self._met = _Met(observed, *np.zeros((2, len(aborted.last_offset)), np.bool_))

    def follow(
        self, window: Bytes, batches: BatchHeaders, *, path: str = "", origin: int = 0
    ) -> tuple[Flags, Flags] | None:
        """Which batches were aborted, and which are markers of empty transactions: bool, one a batch.

        ``batches`` are rows of a scan over ``window``. None without a transactional or control batch.
        ``path`` and ``origin`` are for errors. Raises CorruptRecordError for a control batch that cannot be
        decoded, and CorruptFileError for a damaged control record, or a contradiction to the index.
        """
        concerned = (batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
        rows = np.flatnonzero(concerned & (batches["magic"] == 2))
        if not len(rows):
            return None
        selected = batches[rows]
        kinds = np.empty(len(rows), np.int8)
        control = rows[(selected["attributes"] & CONTROL_BIT) != 0]
        # Only control batches are decoded: a marker's type is in its record's key.
        columns = decode_record_keys(window, batches[control], path=path, origin=origin)
        first = np.searchsorted(columns.batch, np.searchsorted(control, rows))
        _kinds(rows, batches, columns.data, first, columns.key_start, columns.key_size, kinds)
        if (kinds == INVALID_CONTROL).any():
            position = origin + int(selected["position"][np.argmax(kinds == INVALID_CONTROL)])
            raise CorruptFileError(path, position, "a control record's key makes no sense")
        place, bounds = self._places(selected["producer_id"])
        aborted, empty = np.zeros((2, len(batches)), np.bool_)
        arguments = _Batches(
            rows, kinds, place, selected["base_offset"].copy(), selected["last_offset"].copy()
        )
        index = _Index(self._aborted.first_offset, self._aborted.last_offset, bounds)
        bad, which = _follow(arguments, self._producers, index, self._met, aborted, empty)
        if bad >= 0:
            reason = _CONTRADICTIONS[which].format(producer=selected["producer_id"][bad])
            raise CorruptFileError(path, origin + int(selected["position"][bad]), reason)
        return aborted, empty

    def _places(self, producer_ids: Int64) -> tuple[Int64, Int64]:
        """Rows of the producers' table, with new producers added, and the bounds of their entries."""
        table = np.union1d(self._ids, producer_ids)
        if len(table) != len(self._ids):
            # The table is sorted by producer id, so new producers move the rows of the others.
            grown = np.zeros((len(self._producers), len(table)), np.bool_)
            grown[:, np.searchsorted(table, self._ids)] = self._producers
            self._ids, self._producers = table, _Producers(*grown)
        left = np.searchsorted(self._aborted.producer_id, table)
        right = np.searchsorted(self._aborted.producer_id, table, side="right")
        return np.searchsorted(table, producer_ids), np.column_stack((left, right))

    @property
    def unended(self) -> tuple[int, ...]:
        """Producers with data that no index has and whose marker was not read yet."""
        return tuple(self._ids[self._producers.opened].tolist())

    def refuse_unmarked(self, first: int, end: int, path: str) -> None:
        """Call when all batches of [first, end) were followed: raises CorruptFileError, with ``path``, for an
        entry whose marker should have been among them."""
        due = (self._aborted.last_offset >= first) & (self._aborted.last_offset < end) & ~self._met.marked
        if due.any():
            producer = int(self._aborted.producer_id[np.argmax(due)])
            raise CorruptFileError(path, 0, ENDS_ELSEWHERE.format(producer=producer))

    def aborted_among(self, window: Bytes, batches: BatchHeaders, *, path: str, origin: int) -> Flags:
        """Which batches were aborted, for ``read_committed`` readers: bool, one a batch.

        ``batches`` are all of their range of offsets. Raises CorruptFileError where the index and the markers
        among them contradict each other.
        """
        followed = self.follow(window, batches, path=path, origin=origin)
        first, end = int(batches["base_offset"][0]), int(batches["last_offset"][-1]) + 1
        self.refuse_unmarked(first, end, path)
        return np.zeros(len(batches), np.bool_) if followed is None else followed[0]

    def summary(self, first: int) -> Int64:
        """The state behind a scan from offset ``first`` on: int64[n, 3], rows as at ``OPEN``."""
        met = self._producers
        parts = (
            (CLOSED, self._ids[met.touched & ~met.opened]),
            (OPEN, self._ids[met.touched & met.opened]),
            (OBSERVED, self._aborted.last_offset[self._met.observed]),
            (UNLISTED, self._ids[met.unlisted]),
            (LISTED, self._ids[met.listed_first]),
        )
        rows = [np.column_stack((np.full((len(v), 2), (first, kind)), v)) for kind, v in parts]
        return np.concatenate(rows).astype(np.int64)

    def ended_transactions(self) -> bytes:
        """The ``.txnindex`` of the batches that were followed, by the marker's offset: the aborted
        transactions whose data and then marker were read."""
        ended = self._aborted.entries[self._met.ended]
        return ended[np.argsort(ended["last_offset"], kind="stable")].tobytes()


def carried_by_group(summaries: Sequence[Int64], bases: Sequence[int], name: str = "") -> dict[int, Carried]:
    """What each group starts with, by group, without groups that start with nothing.

    ``summaries``: of all input splits of the log, in any order; no split extends over one of the groups'
    ``bases`` (offsets, ascending). ``name`` is for errors. Raises CorruptFileError for a contradiction to the
    index that shows only when splits are combined.
    """
    if not summaries:
        return {}
    rows = np.concatenate(summaries)
    # Splits by their first offset; the rows of a split stay in order.
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    values, where = np.unique(rows[:, 2], return_inverse=True)
    opened, observed = np.zeros((2, len(values)), np.bool_)
    firsts, begins = np.unique(rows[:, 0], return_index=True)
    ends, taken = [*begins[1:].tolist(), len(rows)], 0
    by_group: dict[int, Carried] = {}
    for group, behind in enumerate([*np.searchsorted(firsts, bases).tolist(), len(firsts)]):
        for split in range(taken, behind):
            part = slice(begins[split], ends[split])
            _add_split(rows[part, 1], where[part], values, opened, observed, name)
        taken = behind
        if group < len(bases):
            # Markers below the group's base were read before it and are not needed in it.
            markers = values[observed & (values >= bases[group])]
            by_group[group] = Carried(
                unended=tuple(values[opened].tolist()), observed=tuple(markers.tolist())
            )
    return {group: carried for group, carried in by_group.items() if carried != NOTHING}


def expected_markers(summaries: Sequence[Int64], aborted: Aborted, end: int) -> dict[int, int | None]:
    """The producers that the input splits, up to offset ``end``, leave with data whose marker is above.

    By id: the offset of the abort marker in the index, None without an entry: it must be a commit marker.
    """
    rows = np.concatenate([np.empty((0, 3), np.int64), *summaries])
    met = np.isin(aborted.last_offset, rows[rows[:, 1] == OBSERVED, 2]) & (aborted.last_offset >= end)
    aborts = zip(aborted.producer_id[met].tolist(), aborted.last_offset[met].tolist(), strict=True)
    rows = rows[(rows[:, 1] == CLOSED) | (rows[:, 1] == OPEN)]
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    is_last = np.append(rows[1:, 2] != rows[:-1, 2], np.ones(min(len(rows), 1), np.bool_))
    opened: list[int] = rows[is_last & (rows[:, 1] == OPEN), 2].tolist()
    return {**dict.fromkeys(opened), **dict(aborts)}


def refuse_unexpected_markers(
    unended: Mapping[int, int | None], end: int, above: Sequence[Segment], directory: str
) -> None:
    """Check that transactions with data below offset ``end`` end as ``unended`` expects.

    Their markers are in the segments ``above``, whose headers are read up to the last marker. A transaction
    without one is open, although the snapshot lacks it. Raises CorruptFileError, OSError.
    """
    waiting = dict(unended)
    for segment in above if waiting else ():
        with files.Reader(segment.path) as reader:
            for headers in batch_headers(reader, end=segment.size):
                _strike_ended(waiting, reader, headers)
                if not waiting:
                    return
    if waiting:
        raise CorruptFileError(directory, 0, UNENDED.format(producer=min(waiting), end=end))


def _strike_ended(waiting: dict[int, int | None], reader: files.Reader, headers: BatchHeaders) -> None:
    """Remove the producers from ``waiting`` whose marker is among the batches; refuse another marker."""
    control = ((headers["attributes"] & CONTROL_BIT) != 0) & (headers["magic"] == 2) & (headers["count"] > 0)
    markers = control & np.isin(headers["producer_id"], np.array(list(waiting), np.int64))
    for row in np.flatnonzero(markers).tolist():
        producer, origin = headers["producer_id"].item(row), headers["position"].item(row)
        data, one = read_batch(reader, headers[row : row + 1])
        # The first marker of a producer ends its transaction; later ones are of others.
        marker = marker_of(data, one, 0, reader.path, origin)
        if marker is None or producer not in waiting:
            continue
        listed = waiting.pop(producer)
        if marker.commit != (listed is None):
            reason = COMMITTED if marker.commit else NOT_LISTED
        elif listed is not None and listed != one["base_offset"].item():
            reason = ENDS_ELSEWHERE
        else:
            continue
        raise CorruptFileError(reader.path, origin, reason.format(producer=producer))


def _add_split(kinds: Int64, where: Int64, values: Int64, opened: Flags, observed: Flags, name: str) -> None:
    """Apply one input split's summary; ``opened`` and ``observed`` are columns beside ``values``."""
    for kind, reason in ((UNLISTED, NOT_LISTED), (LISTED, BEGINS_ELSEWHERE)):
        chosen = where[kinds == kind]
        if opened[chosen].any():
            producer = int(values[chosen[np.argmax(opened[chosen])]])
            raise CorruptFileError(name, 0, reason.format(producer=producer))
    opened[where[kinds == CLOSED]] = False
    opened[where[kinds == OPEN]] = True
    observed[where[kinds == OBSERVED]] = True
