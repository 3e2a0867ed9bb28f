"""The transactions of a log: aborted batches, empty markers, and whether markers and ``.txnindex`` agree.

Kafka's ``CleanedTransactionMetadata``. The ``.txnindex`` files of the whole log list the aborted
transactions; a transaction's batches are between its first offset and its marker. A marker's transaction is
*empty* if no batch of it was read in this cleaning, not even one that the cleaning discards: such a marker
gets a delete horizon (KIP-534), and is discarded once that has passed.

Kafka's cleaner reads a log in order, in one thread. Here different tasks rewrite its segment groups, and a
transaction may lie in several of them. So extraction summarises the producers' state at the end of each input
split, and ``carried_by_group`` combines the summaries to the state that each group starts with::

    input splits ── TransactionScan ──► summaries ── carried_by_group ──► Carried, one for each group's start
    a group      ── TransactionScan, from its Carried on ──► aborted batches, empty markers, new .txnindex

An index has no checksum, and a reader that trusts a wrong one loses committed data. Kafka does not check it;
here every entry is compared with the batches::

    offset     5     6     7     8       9      10
    producer   data  data  data  ABORT   data   COMMIT         the only entry that is right: first 5, last 8

    contradictions       a COMMIT in the range of an entry (COMMITTED)
                         an ABORT in that range, but not at its end; an entry that ends at no ABORT
                         (ENDS_ELSEWHERE)
                         data without an entry before an ABORT (NOT_LISTED)
                         data without an entry before the data of an entry (BEGINS_ELSEWHERE)

Cleanings discard an aborted transaction's data first, a later one the entry, and the marker last. So an entry
without data is right, and an entry without its marker is not.
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
from siltstone.base.records.control import read_batch_marker
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
from siltstone.log.indexes import TRANSACTION_ENTRY, AbortedTransaction, Entries, encode_aborted, read_entries
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
NOT_LISTED, COMMITTED, BEGINS_ELSEWHERE, ENDS_ELSEWHERE = range(4)
CONTRADICTIONS = (
    "producer {producer} aborted a transaction with data that no .txnindex lists",
    "producer {producer} committed a transaction that a .txnindex lists as aborted",
    "a .txnindex lists an aborted transaction of producer {producer} that begins elsewhere in the log",
    "a .txnindex lists an aborted transaction of producer {producer} that does not end at its marker",
)
"""How batches and ``.txnindex`` can contradict each other, by the numbers above."""


def _index_error(path: str, position: int, reason: str) -> CorruptFileError:
    advice = "run siltstone recover --check to rebuild the .txnindex files"
    return CorruptFileError(path, position, reason, advice=advice)


def contradiction(number: int, producer: int, path: str, position: int = 0) -> CorruptFileError:
    """The error for a contradiction (``NOT_LISTED`` …) that was noticed at a batch of ``producer``."""
    return _index_error(path, position, CONTRADICTIONS[number].format(producer=producer))


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
            reason = f"the .txnindex files list aborted transactions of producer {producer} that overlap"
            raise _index_error(path, 0, reason)
        markers, counts = np.unique(last_offset, return_counts=True)
        if (counts > 1).any():
            reason = f"the .txnindex files list two transactions that end at offset {markers[counts > 1][0]}"
            raise _index_error(path, 0, reason)
        return cls(
            producer_id=producer_id, first_offset=first_offset, last_offset=last_offset, entries=entries
        )

    @classmethod
    def among(cls, transactions: Iterable[AbortedTransaction], path: str = "") -> Aborted:
        """From transactions in any order. Raises CorruptFileError."""
        return cls.of(encode_aborted(transactions), path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of the transactions where a group starts.

    ``open_producers``: those with data that no index lists as aborted and whose marker comes later.
    ``observed``: the marker's offset of each aborted transaction whose data was read before.
    """

    open_producers: tuple[int, ...] = ()
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
    """For each producer, bool.

    ``has_open``: it has data that no index lists and no marker has ended yet. ``in_scan``: this scan has a
    batch of it. ``unlisted``: the first one was an abort marker that no index lists; ``listed_first``: it was
    of a transaction that an index lists.
    """

    has_open: Flags
    in_scan: Flags
    unlisted: Flags
    listed_first: Flags


class _Index(NamedTuple):
    """The aborted transactions, and for each producer the rows [first, end) of its own."""

    first_offset: Int64
    last_offset: Int64
    bounds: Int64


class _Matched(NamedTuple):
    """For each aborted transaction, bool: was its data read, its marker, and its marker after its data."""

    data: Flags
    marker: Flags
    both: Flags


@kernel
def _follow(
    batches: _Batches, producers: _Producers, index: _Index, matched: _Matched, aborted: Flags, empty: Flags
) -> tuple[int, int]:
    """Apply transactional and control batches in order (``CleanedTransactionMetadata.onBatchRead`` and
    ``onControlBatchRead``). Returns which batch contradicts the index, -1 for none, and the contradiction.

    Updates ``producers`` and ``matched``; fills ``aborted`` and ``empty``, one a batch of the window.
    """
    rows, kinds, producer_rows, base_offset, last_offset = batches
    has_open, in_scan, unlisted, listed_first = producers
    first_aborted, last_aborted, bounds = index
    has_data, has_marker, has_both = matched
    for i in range(len(rows)):
        row, producer, kind = rows[i], producer_rows[i], kinds[i]
        if kind >= OTHER:
            # No marker; one that an earlier cleaning emptied stays an empty one.
            empty[row] = kind == EMPTY
            continue
        # 1. Is the batch in the range [first offset, marker] of an entry of its producer? These ranges do not
        # overlap, so it can only be the last one that begins at or below the batch.
        low, high = bounds[producer, 0], bounds[producer, 1]
        entry = low + np.searchsorted(first_aborted[low:high], last_offset[i], side="right") - 1
        listed = entry >= low and last_aborted[entry] >= base_offset[i]
        # 2. Can that be, after the producer's earlier batches?
        if listed:
            if kind == COMMIT:
                return i, COMMITTED
            # Open data that no index lists belongs to this transaction too: the entry begins too late.
            if has_open[producer] or first_aborted[entry] > base_offset[i]:
                return i, BEGINS_ELSEWHERE
            listed_first[producer] |= not in_scan[producer]
        elif kind == ABORT:
            # An abort without an entry is right only if an earlier cleaning removed its data.
            if has_open[producer]:
                return i, NOT_LISTED
            unlisted[producer] |= not in_scan[producer]
        in_scan[producer] = True
        # 3. Data: aborted if it is listed. An entry ends at its marker, which is a batch of its own, so not
        # within data.
        if kind == DATA:
            if listed and last_aborted[entry] <= last_offset[i]:
                return i, ENDS_ELSEWHERE
            aborted[row] = listed
            if listed:
                has_data[entry] = True
            else:
                has_open[producer] = True
        # 4. A marker: it ends the producer's transaction, and is empty if no data of it was read.
        elif kind == COMMIT:
            empty[row] = not has_open[producer]
            has_open[producer] = False
        elif listed:
            if last_aborted[entry] != base_offset[i]:
                return i, ENDS_ELSEWHERE
            has_marker[entry] = True
            # Without data in this pass the entry is not written again.
            empty[row] = not has_data[entry]
            has_both[entry] = has_data[entry]
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
            raise _index_error(path, int(np.argmax(bad)) * entries.itemsize, reason)


class TransactionScan:
    """Follows the transactions of batches in log order, window by window, from ``carried`` on."""

    def __init__(self, aborted: Aborted, carried: Carried = NOTHING) -> None:
        self._aborted = aborted
        self._ids = np.array(sorted(carried.open_producers), np.int64)
        has_open = np.ones(len(self._ids), np.bool_)
        self._producers = _Producers(has_open, *np.zeros((3, len(self._ids)), np.bool_))
        has_data = np.isin(aborted.last_offset, np.array(carried.observed, np.int64))
        self._matched = _Matched(has_data, *np.zeros((2, len(aborted.last_offset)), np.bool_))

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
            raise CorruptFileError(path, position, "the key of a control record is invalid")
        producer_rows, bounds = self._producer_rows(selected["producer_id"])
        aborted, empty = np.zeros((2, len(batches)), np.bool_)
        arguments = _Batches(
            rows, kinds, producer_rows, selected["base_offset"].copy(), selected["last_offset"].copy()
        )
        index = _Index(self._aborted.first_offset, self._aborted.last_offset, bounds)
        bad, number = _follow(arguments, self._producers, index, self._matched, aborted, empty)
        if bad >= 0:
            producer, position = selected["producer_id"][bad], origin + int(selected["position"][bad])
            raise contradiction(number, producer, path, position)
        return aborted, empty

    def _producer_rows(self, producer_ids: Int64) -> tuple[Int64, Int64]:
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
    def open_producers(self) -> tuple[int, ...]:
        """Producers with data that no index lists and whose marker was not read yet."""
        return tuple(self._ids[self._producers.has_open].tolist())

    def refuse_unmarked(self, first: int, end: int, path: str) -> None:
        """Call when all batches of [first, end) were followed: raises CorruptFileError, with ``path``, for an
        entry whose marker should have been among them."""
        due = (self._aborted.last_offset >= first) & (self._aborted.last_offset < end)
        due &= ~self._matched.marker
        if due.any():
            raise contradiction(ENDS_ELSEWHERE, int(self._aborted.producer_id[np.argmax(due)]), path)

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
        """The state after a scan from offset ``first`` on: int64[n, 3], rows as at ``OPEN``."""
        producers = self._producers
        parts = (
            (CLOSED, self._ids[producers.in_scan & ~producers.has_open]),
            (OPEN, self._ids[producers.in_scan & producers.has_open]),
            (OBSERVED, self._aborted.last_offset[self._matched.data]),
            (UNLISTED, self._ids[producers.unlisted]),
            (LISTED, self._ids[producers.listed_first]),
        )
        rows = [np.column_stack((np.full((len(v), 2), (first, kind)), v)) for kind, v in parts]
        return np.concatenate(rows).astype(np.int64)

    def ended_transactions(self) -> bytes:
        """The ``.txnindex`` of the batches that were followed, by the marker's offset: the aborted
        transactions whose data and then marker were read."""
        ended = self._aborted.entries[self._matched.both]
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
    # ``ids``: all producer ids and marker offsets; ``has_open`` and ``has_data`` are columns beside them.
    ids, id_rows = np.unique(rows[:, 2], return_inverse=True)
    has_open, has_data = np.zeros((2, len(ids)), np.bool_)
    firsts, starts = np.unique(rows[:, 0], return_index=True)
    ends, split = [*starts[1:].tolist(), len(rows)], 0
    by_group: dict[int, Carried] = {}
    for group, end_split in enumerate([*np.searchsorted(firsts, bases).tolist(), len(firsts)]):
        for part in map(slice, starts[split:end_split], ends[split:end_split]):
            _add_split(rows[part, 1], id_rows[part], ids, has_open, has_data, name)
        split = end_split
        if group < len(bases):
            # Markers below the group's base were read before it and are not needed in it.
            markers = ids[has_data & (ids >= bases[group])]
            by_group[group] = Carried(
                open_producers=tuple(ids[has_open].tolist()), observed=tuple(markers.tolist())
            )
    return {group: carried for group, carried in by_group.items() if carried != NOTHING}


def expected_markers(summaries: Sequence[Int64], aborted: Aborted, end: int) -> dict[int, int | None]:
    """The producers that the input splits, up to offset ``end``, leave with data whose marker is above.

    By id: the offset of the abort marker in the index, None without an entry: it must be a commit marker.
    """
    rows = np.concatenate([np.empty((0, 3), np.int64), *summaries])
    open_ = np.isin(aborted.last_offset, rows[rows[:, 1] == OBSERVED, 2]) & (aborted.last_offset >= end)
    aborts = zip(aborted.producer_id[open_].tolist(), aborted.last_offset[open_].tolist(), strict=True)
    # A producer's last split decides: rows by producer, then by the split's offset.
    rows = rows[(rows[:, 1] == CLOSED) | (rows[:, 1] == OPEN)]
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    is_last = np.append(rows[1:, 2] != rows[:-1, 2], np.ones(min(len(rows), 1), np.bool_))
    open_producers: list[int] = rows[is_last & (rows[:, 1] == OPEN), 2].tolist()
    return {**dict.fromkeys(open_producers), **dict(aborts)}


def refuse_unexpected_markers(
    expected: Mapping[int, int | None], end: int, above: Sequence[Segment], directory: str
) -> None:
    """Check that transactions with data below offset ``end`` end as ``expected`` says.

    Their markers are in the segments ``above``, whose headers are read up to the last marker. A transaction
    without one is open, although the snapshot lacks it. Raises CorruptFileError, OSError.
    """
    pending = dict(expected)
    for segment in above if pending else ():
        with files.Reader(segment.path) as reader:
            for headers in batch_headers(reader, end=segment.size):
                _remove_ended(pending, reader, headers)
                if not pending:
                    return
    if pending:
        reason = (
            f"producer {min(pending)} has transactional data below offset {end} and no marker in the log, "
            "but the newest .snapshot has no open transaction of it"
        )
        advice = "move that .snapshot out of the directory, so that the one before it is loaded"
        raise CorruptFileError(directory, 0, reason, advice=advice)


def _remove_ended(pending: dict[int, int | None], reader: files.Reader, headers: BatchHeaders) -> None:
    """Remove the producers from ``pending`` whose marker is among the batches; refuse another marker."""
    control = ((headers["attributes"] & CONTROL_BIT) != 0) & (headers["magic"] == 2) & (headers["count"] > 0)
    markers = control & np.isin(headers["producer_id"], np.array(list(pending), np.int64))
    for row in np.flatnonzero(markers).tolist():
        producer, origin = headers["producer_id"].item(row), headers["position"].item(row)
        data, one = read_batch(reader, headers[row : row + 1])
        # The first marker of a producer ends its transaction; later ones are of others.
        marker = read_batch_marker(data, one, 0, reader.path, origin)
        if marker is None or producer not in pending:
            continue
        listed = pending.pop(producer)
        if marker.is_commit != (listed is None):
            raise contradiction(COMMITTED if marker.is_commit else NOT_LISTED, producer, reader.path, origin)
        if listed is not None and listed != one["base_offset"].item():
            raise contradiction(ENDS_ELSEWHERE, producer, reader.path, origin)


def _add_split(kinds: Int64, id_rows: Int64, ids: Int64, has_open: Flags, has_data: Flags, name: str) -> None:
    """Apply one input split's summary to ``has_open`` and ``has_data``. Raises CorruptFileError."""
    for kind, number in ((UNLISTED, NOT_LISTED), (LISTED, BEGINS_ELSEWHERE)):
        chosen = id_rows[kinds == kind]
        if has_open[chosen].any():
            raise contradiction(number, int(ids[chosen[np.argmax(has_open[chosen])]]), name)
    has_open[id_rows[kinds == CLOSED]] = False
    has_open[id_rows[kinds == OPEN]] = True
    has_data[id_rows[kinds == OBSERVED]] = True
