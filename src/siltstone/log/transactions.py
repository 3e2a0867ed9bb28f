"""The transactions of a log: aborted batches, empty markers, and whether markers and ``.txnindex`` agree.

This module does the work of Kafka's ``CleanedTransactionMetadata``. The ``.txnindex`` files of a log list its
aborted transactions. The batches of a transaction lie between its first offset and its marker (the COMMIT or
ABORT batch that ends it). A transaction is *empty* if a cleaning reads no data batch of it, not even one that
it discards. The marker of an empty transaction gets a delete horizon (KIP-534). A cleaning after that time
discards the marker.

Kafka's cleaner reads a log in order, in one thread. Here different tasks rewrite the ranges of a log (segment
groups, or parts of them), and a transaction may lie in several ranges. So a task summarises the transactions
of each input split, and ``combine_summaries`` computes from all summaries the state that each range starts
with::

    input splits ── TransactionScan ──► summaries ── combine_summaries ──► one TransactionState a range
    a range      ── TransactionScan, from its state on ──► aborted batches, empty markers, new .txnindex

An index has no checksum, and a reader that trusts a wrong one loses committed data. Kafka does not check it.
Here every entry is compared with the batches. A batch is *listed* if it lies in the range of an entry of its
producer::

    offset     5     6     7     8       9      10
    producer   data  data  data  ABORT   data   COMMIT         the only correct entry: first 5, last 8

    COMMITTED            a listed COMMIT
    ENDS_ELSEWHERE       a listed ABORT below the entry's last offset, or an entry that ends at no ABORT
    NOT_LISTED           an ABORT that is not listed, after data that is not listed
    BEGINS_ELSEWHERE     listed data after data of the same transaction that is not listed

A cleaning first discards an aborted transaction's data, a later cleaning discards its entry, and the marker
goes last. So an entry without data is correct, and an entry without its marker is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.control import ABORT as ABORT_TYPE
from siltstone.base.records.control import COMMIT as COMMIT_TYPE
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

BatchKinds = npt.NDArray[np.int8]
DATA, COMMIT, ABORT, OTHER, EMPTY, INVALID_CONTROL = range(6)
"""Kinds of batches. OTHER: a control batch that is no marker, such as a leader change. EMPTY: a control batch
whose record an earlier cleaning has removed. INVALID_CONTROL: one whose key is damaged."""
CLOSED_PRODUCER, OPEN_PRODUCER, ABORT_WITH_DATA, FIRST_UNLISTED, FIRST_LISTED = range(5)
"""Kinds of the rows of a split's summary. A row is (first offset of the split, kind, id).

CLOSED_PRODUCER, OPEN_PRODUCER: at the split's end the producer has no open data, or has some (data that is
not listed and whose marker comes later). FIRST_UNLISTED: the producer's first batch in the split is an ABORT
that is not listed. FIRST_LISTED: that batch is listed. In these rows the id is the producer id.
ABORT_WITH_DATA: the split has data of the aborted transaction whose marker has the offset ``id``.
"""
NOT_LISTED, COMMITTED, BEGINS_ELSEWHERE, ENDS_ELSEWHERE = range(4)
CONTRADICTIONS = (
    "producer {producer} aborted a transaction with data that no .txnindex lists",
    "producer {producer} committed a transaction that a .txnindex lists as aborted",
    "a .txnindex lists an aborted transaction of producer {producer} that begins elsewhere in the log",
    "a .txnindex lists an aborted transaction of producer {producer} that does not end at its marker",
)
"""The reason of the error for each contradiction between batches and ``.txnindex`` (NOT_LISTED …)."""


def _index_error(path: str, position: int, reason: str) -> CorruptFileError:
    """The error for a ``.txnindex`` that is damaged, or that the batches contradict."""
    advice = "run siltstone recover --check to rebuild the .txnindex files"
    return CorruptFileError(path, position, reason, advice=advice)


def contradiction_error(kind: int, producer_id: int, path: str, position: int = 0) -> CorruptFileError:
    """The error for a contradiction of this kind (``NOT_LISTED`` …) at a batch of the producer."""
    return _index_error(path, position, CONTRADICTIONS[kind].format(producer=producer_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransactions:
    """A log's aborted transactions, sorted by producer id and first offset: arrays with one row a
    transaction.

    ``last_offset`` is the offset of the ABORT marker, so it differs in all rows. The offset ranges of a
    producer's rows do not overlap. ``entries``: the entries of the ``.txnindex`` files, in the same order.
    """

    producer_id: Int64
    first_offset: Int64
    last_offset: Int64
    entries: Entries

    @classmethod
    def from_entries(cls, data: bytes, path: str = "") -> AbortedTransactions:
        """The transactions that ``.txnindex`` files list; ``data``: the bytes of the files, in any order.

        Raises CorruptFileError, with ``path``, for entries that cannot be of one log.
        """
        entries = np.frombuffer(data, TRANSACTION_ENTRY)
        entries = entries[np.lexsort((entries["first_offset"], entries["producer_id"]))]
        names = ("producer_id", "first_offset", "last_offset")
        producer_id, first_offset, last_offset = (entries[name].astype(np.int64) for name in names)
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
    def from_transactions(
        cls, transactions: Iterable[AbortedTransaction], path: str = ""
    ) -> AbortedTransactions:
        """The object for ``transactions``, in any order. Raises CorruptFileError as ``from_entries`` does."""
        return cls.from_entries(encode_aborted(transactions), path)


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """The state of a log's transactions at an offset: where a range or a read starts.

    ``open_producers``: the ids of producers with data below the offset that no index lists as aborted, and
    whose marker comes later. ``aborts_with_data``: the offset of the marker of each aborted transaction with
    data below the offset.
    """

    open_producers: tuple[int, ...] = ()
    aborts_with_data: tuple[int, ...] = ()


NO_TRANSACTIONS = TransactionState()


@kernel
def _fill_kinds(
    rows: Int64,
    batches: BatchHeaders,
    data: Bytes,
    first_record: Int64,
    key_start: Int32,
    key_size: Int32,
    kinds: BatchKinds,
) -> None:
    """Fill ``kinds`` for the batches ``rows``. ``first_record``: for a control batch, the row of its record
    in ``key_start`` (a position in ``data``) and ``key_size`` (bytes); for a data batch it has no meaning.
    The key of a control record is an int16 version and an int16 type (``ControlRecordType``).
    """
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
            marker_type = read_int16(data, key_start[record] + 2)
            kinds[i] = ABORT if marker_type == ABORT_TYPE else COMMIT if marker_type == COMMIT_TYPE else OTHER


class _Batches(NamedTuple):
    """Transactional and control batches in log order. ``row``: of the window's batch headers;
    ``producer_row``: of ``_Producers``."""

    row: Int64
    kind: BatchKinds
    producer_row: Int64
    base_offset: Int64
    last_offset: Int64


class _Producers(NamedTuple):
    """One bool a producer, sorted by producer id.

    ``has_open``: it has data that is not listed and whose marker was not read yet. ``was_seen``: this scan
    has read a batch of it. ``first_unlisted``: the first such batch was an ABORT that is not listed;
    ``first_listed``: that batch was listed.
    """

    has_open: Flags
    was_seen: Flags
    first_unlisted: Flags
    first_listed: Flags


class _Index(NamedTuple):
    """The aborted transactions, sorted by producer; ``bounds`` (int64[producers, 2]): the rows [first, end)
    of each producer."""

    first_offset: Int64
    last_offset: Int64
    bounds: Int64


class _EntriesRead(NamedTuple):
    """Flags of aborted transactions, one bool for each: data of it was read; its marker was read; first data
    of it and then its marker was read."""

    has_data: Flags
    has_marker: Flags
    has_marker_after_data: Flags


@kernel
def _follow(
    batches: _Batches,
    producers: _Producers,
    index: _Index,
    entries_read: _EntriesRead,
    aborted: Flags,
    empty: Flags,
) -> tuple[int, int]:
    """Apply transactional and control batches in log order (``CleanedTransactionMetadata.onBatchRead`` and
    ``onControlBatchRead``). Returns the first batch that contradicts the index (-1: none), and how it does.

    Updates ``producers`` and ``entries_read``; fills ``aborted`` and ``empty``, one a batch of the window.
    """
    rows, kinds, producer_rows, base_offsets, last_offsets = batches
    has_open, was_seen, first_unlisted, first_listed = producers
    first_aborted, last_aborted, bounds = index
    has_data, has_marker, has_marker_after_data = entries_read
    for i in range(len(rows)):
        row, producer, kind = rows[i], producer_rows[i], kinds[i]
        if kind >= OTHER:
            # The batch ends no transaction now. A marker that an earlier cleaning emptied stays empty.
            empty[row] = kind == EMPTY
            continue
        # 1. Is the batch in the range [first offset, marker] of an entry of its producer? These ranges do not
        # overlap, so it can only be the last one that begins at or below the batch's last offset.
        low, high = bounds[producer, 0], bounds[producer, 1]
        entry = low + np.searchsorted(first_aborted[low:high], last_offsets[i], side="right") - 1
        listed = entry >= low and last_aborted[entry] >= base_offsets[i]
        # 2. Does that agree with the producer's earlier batches?
        if listed:
            if kind == COMMIT:
                return i, COMMITTED
            # Open data that no index lists belongs to this transaction too: the entry begins too late.
            if has_open[producer] or first_aborted[entry] > base_offsets[i]:
                return i, BEGINS_ELSEWHERE
            first_listed[producer] |= not was_seen[producer]
        elif kind == ABORT:
            # An ABORT without an entry is correct only if no data of its transaction is left: an earlier
            # cleaning removed that.
            if has_open[producer]:
                return i, NOT_LISTED
            first_unlisted[producer] |= not was_seen[producer]
        was_seen[producer] = True
        # 3. Data is aborted if it is listed. An entry ends at its marker, which is a batch of its own, so no
        # entry ends within data.
        if kind == DATA:
            if listed and last_aborted[entry] <= last_offsets[i]:
                return i, ENDS_ELSEWHERE
            aborted[row] = listed
            if listed:
                has_data[entry] = True
            else:
                has_open[producer] = True
        # 4. A marker ends the producer's transaction, which is empty if no data of it was read.
        elif kind == COMMIT:
            empty[row] = not has_open[producer]
            has_open[producer] = False
        elif listed:
            if last_aborted[entry] != base_offsets[i]:
                return i, ENDS_ELSEWHERE
            has_marker[entry] = True
            # The new index (``completed_index``) gets only entries whose data was read.
            empty[row] = not has_data[entry]
            has_marker_after_data[entry] = has_data[entry]
        else:
            empty[row] = True
    return -1, 0


def read_transaction_indexes(segments: Sequence[Segment], end_offset: int | None = None) -> bytes:
    """The bytes of all segments' ``.txnindex`` files, joined; ``end_offset``: the log's, None if unknown.

    Checks that each entry is in the segment of its marker, and that no entries of a producer overlap. Raises
    CorruptFileError, OSError.
    """
    parts = []
    bases = [segment.base_offset for segment in segments]
    for segment, end in zip(segments, [*bases[1:], end_offset], strict=True):
        if segment.transaction_index_size:
            path = Path(segment.directory) / segment_file(segment.base_offset, "txnindex")
            # The active segment's index may be growing: read no more than was there when it was listed.
            data = files.read_slice(path, 0, segment.transaction_index_size)
            entries = read_entries(data, "txnindex", str(path))
            _refuse_impossible_entries(entries, str(path), segment.base_offset, end)
            parts.append(entries.tobytes())
    joined = b"".join(parts)
    if joined:
        AbortedTransactions.from_entries(joined, segments[0].directory)
    return joined


def _refuse_impossible_entries(entries: Entries, path: str, base_offset: int, end: int | None) -> None:
    """Raise CorruptFileError for entries that a segment with offsets [base_offset, end) cannot have."""
    first, last = entries["first_offset"].astype(np.int64), entries["last_offset"].astype(np.int64)
    outside = (last < base_offset) | (False if end is None else last >= end)
    last_stable = entries["last_stable_offset"].astype(np.int64)
    for impossible, reason in (
        (first >= last, "a transaction ends before it begins"),
        ((first < 0) | (entries["producer_id"] < 0), "a transaction without a producer, or below offset 0"),
        (outside, "a transaction ends in another segment, or beyond the log's end"),
        ((last_stable < 0) | (last_stable > last + 1), "an impossible last stable offset"),
    ):
        if impossible.any():
            raise _index_error(path, int(np.argmax(impossible)) * entries.itemsize, reason)


class TransactionScan:
    """Follows the transactions of a log from ``start_state`` on: pass its batches in order, by windows."""

    def __init__(self, aborted: AbortedTransactions, start_state: TransactionState = NO_TRANSACTIONS) -> None:
        self._aborted = aborted
        self._producer_ids = np.array(sorted(start_state.open_producers), np.int64)
        has_open = np.ones(len(self._producer_ids), np.bool_)
        self._producers = _Producers(has_open, *np.zeros((3, len(self._producer_ids)), np.bool_))
        has_data = np.isin(aborted.last_offset, np.array(start_state.aborts_with_data, np.int64))
        self._entries_read = _EntriesRead(has_data, *np.zeros((2, len(aborted.last_offset)), np.bool_))

    def follow(
        self, data: Bytes, batches: BatchHeaders, *, path: str = "", origin: int = 0
    ) -> tuple[Flags, Flags] | None:
        """Which batches were aborted, and which are markers of empty transactions: two bool[batches].

        Returns None if no batch is transactional or a control batch. ``batches`` are rows of a scan over
        ``data``. ``path`` and ``origin``, the position of ``data`` in that file, are for errors. Raises
        CorruptRecordError for a control batch that cannot be decoded, and CorruptFileError for a damaged
        control record, or where a batch contradicts the index.
        """
        has_flag = (batches["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0
        rows = np.flatnonzero(has_flag & (batches["magic"] == 2))
        if not len(rows):
            return None
        selected = batches[rows]
        kinds = np.empty(len(rows), np.int8)
        control = rows[(selected["attributes"] & CONTROL_BIT) != 0]
        # Only control batches are decoded: a marker's type is in its record's key.
        columns = decode_record_keys(data, batches[control], path=path, origin=origin)
        # ``columns.batch`` ascends: the inner search finds a batch's row among the control batches, the outer
        # one that batch's first record.
        first_record = np.searchsorted(columns.batch, np.searchsorted(control, rows))
        _fill_kinds(rows, batches, columns.data, first_record, columns.key_start, columns.key_size, kinds)
        if (kinds == INVALID_CONTROL).any():
            position = origin + int(selected["position"][np.argmax(kinds == INVALID_CONTROL)])
            raise CorruptFileError(path, position, "the key of a control record is invalid")
        producer_rows, bounds = self._producer_rows(selected["producer_id"])
        aborted, empty = np.zeros((2, len(batches)), np.bool_)
        arguments = _Batches(
            rows, kinds, producer_rows, selected["base_offset"].copy(), selected["last_offset"].copy()
        )
        index = _Index(self._aborted.first_offset, self._aborted.last_offset, bounds)
        bad, contradiction = _follow(arguments, self._producers, index, self._entries_read, aborted, empty)
        if bad >= 0:
            producer_id, position = selected["producer_id"][bad], origin + int(selected["position"][bad])
            raise contradiction_error(contradiction, producer_id, path, position)
        return aborted, empty

    def _producer_rows(self, producer_ids: Int64) -> tuple[Int64, Int64]:
        """The row of each batch's producer in ``_Producers``, and the bounds of ``_Index``. Adds producers
        that are new."""
        table = np.union1d(self._producer_ids, producer_ids)
        if len(table) != len(self._producer_ids):
            # Rows are sorted by producer id, so new producers move the rows of the others.
            grown = np.zeros((len(self._producers), len(table)), np.bool_)
            grown[:, np.searchsorted(table, self._producer_ids)] = self._producers
            self._producer_ids, self._producers = table, _Producers(*grown)
        starts = np.searchsorted(self._aborted.producer_id, table)
        ends = np.searchsorted(self._aborted.producer_id, table, side="right")
        return np.searchsorted(table, producer_ids), np.column_stack((starts, ends))

    @property
    def open_producers(self) -> tuple[int, ...]:
        """The ids of producers with data that no index lists and whose marker was not read yet."""
        return tuple(self._producer_ids[self._producers.has_open].tolist())

    def refuse_missing_markers(self, first_offset: int, end_offset: int, path: str) -> None:
        """Raise CorruptFileError, with ``path``, for an entry whose marker should be at an offset in
        [``first_offset``, ``end_offset``) and is not. Call it after ``follow`` has read all batches there."""
        last_offset = self._aborted.last_offset
        is_missing = (
            (last_offset >= first_offset) & (last_offset < end_offset) & ~self._entries_read.has_marker
        )
        if is_missing.any():
            producer_id = int(self._aborted.producer_id[np.argmax(is_missing)])
            raise contradiction_error(ENDS_ELSEWHERE, producer_id, path)

    def find_aborted(self, data: Bytes, batches: BatchHeaders, *, path: str, origin: int) -> Flags:
        """Which batches were aborted, for ``read_committed`` readers: bool, one a batch.

        ``batches`` must be consecutive batches of the log: a marker that the caller left out counts as
        missing. Raises CorruptFileError where the index contradicts their markers.
        """
        followed = self.follow(data, batches, path=path, origin=origin)
        end_offset = int(batches["last_offset"][-1]) + 1
        self.refuse_missing_markers(int(batches["base_offset"][0]), end_offset, path)
        return np.zeros(len(batches), np.bool_) if followed is None else followed[0]

    def summary(self, first_offset: int) -> Int64:
        """The summary of the input split that begins at ``first_offset``, after ``follow`` has read all of
        it: int64[n, 3], rows as ``CLOSED_PRODUCER`` describes them."""
        producers = self._producers
        parts = (
            (CLOSED_PRODUCER, self._producer_ids[producers.was_seen & ~producers.has_open]),
            (OPEN_PRODUCER, self._producer_ids[producers.was_seen & producers.has_open]),
            (ABORT_WITH_DATA, self._aborted.last_offset[self._entries_read.has_data]),
            (FIRST_UNLISTED, self._producer_ids[producers.first_unlisted]),
            (FIRST_LISTED, self._producer_ids[producers.first_listed]),
        )
        rows = [np.column_stack((np.full((len(ids), 2), (first_offset, kind)), ids)) for kind, ids in parts]
        return np.concatenate(rows).astype(np.int64)

    def completed_index(self) -> bytes:
        """The new ``.txnindex`` for the batches that were followed: the entries of which first data and then
        the marker was read, sorted by the marker's offset."""
        completed = self._aborted.entries[self._entries_read.has_marker_after_data]
        return completed[np.argsort(completed["last_offset"], kind="stable")].tobytes()


def combine_summaries(
    summaries: Sequence[Int64], bases: Sequence[int], path: str = ""
) -> dict[int, TransactionState]:
    """The state that each range starts with, by the range's number; ranges without any state are left out.

    ``summaries``: of all input splits of the log, in any order. ``bases``: the ranges' base offsets,
    ascending; no split extends over one of them. Raises CorruptFileError, with ``path``, for a contradiction
    to the index between batches of different splits.
    """
    if not summaries:
        return {}
    rows = np.concatenate(summaries)
    # Splits by their first offset; the rows of a split stay in order.
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    # ``ids``: all producer ids and marker offsets, together. ``has_open`` says of producers, ``has_data`` of
    # markers what holds so far; each has an element for every number in ``ids``, which may be both an id and
    # an offset.
    ids, id_rows = np.unique(rows[:, 2], return_inverse=True)
    has_open, has_data = np.zeros((2, len(ids)), np.bool_)
    split_offsets, starts = np.unique(rows[:, 0], return_index=True)
    ends, applied = [*starts[1:].tolist(), len(rows)], 0  # ``applied``: how many splits
    by_range: dict[int, TransactionState] = {}
    for number, end_split in enumerate([*np.searchsorted(split_offsets, bases).tolist(), len(split_offsets)]):
        for part in map(slice, starts[applied:end_split], ends[applied:end_split]):
            _apply_summary(rows[part, 1], id_rows[part], ids, has_open, has_data, path)
        applied = end_split
        # The last round applies the splits of the last range, only to check them.
        if number < len(bases):
            # The range does not read markers below its base.
            markers = ids[has_data & (ids >= bases[number])]
            by_range[number] = TransactionState(
                open_producers=tuple(ids[has_open].tolist()), aborts_with_data=tuple(markers.tolist())
            )
    return {number: state for number, state in by_range.items() if state != NO_TRANSACTIONS}


def expected_markers(
    summaries: Sequence[Int64], aborted: AbortedTransactions, end: int
) -> dict[int, int | None]:
    """The markers that must be at or above offset ``end``, where the input splits of ``summaries`` end.

    The keys are the ids of the producers that have data below ``end`` of a transaction that ends at or above
    it. The value is the offset of the ABORT in the index. It is None if no index lists the data: then the
    marker must be a COMMIT.
    """
    rows = np.concatenate([np.empty((0, 3), np.int64), *summaries])
    ends_above = np.isin(aborted.last_offset, rows[rows[:, 1] == ABORT_WITH_DATA, 2]) & (
        aborted.last_offset >= end
    )
    producer_ids, markers = aborted.producer_id[ends_above], aborted.last_offset[ends_above]
    # A producer's last split decides: rows by producer, then by the split's offset.
    rows = rows[(rows[:, 1] == CLOSED_PRODUCER) | (rows[:, 1] == OPEN_PRODUCER)]
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    is_last = np.append(rows[1:, 2] != rows[:-1, 2], np.ones(min(len(rows), 1), np.bool_))
    open_producers: list[int] = rows[is_last & (rows[:, 1] == OPEN_PRODUCER), 2].tolist()
    return {
        **dict.fromkeys(open_producers),
        **dict(zip(producer_ids.tolist(), markers.tolist(), strict=True)),
    }


def refuse_unexpected_markers(
    expected: Mapping[int, int | None], end: int, segments_above: Sequence[Segment], directory: str
) -> None:
    """Check that the transactions with data below offset ``end`` end as ``expected_markers`` says.

    Reads the headers of ``segments_above`` up to the last of these markers. If a marker is missing, the
    transaction is open, and the newest producer snapshot, which does not list it, is wrong. Raises
    CorruptFileError, OSError.
    """
    pending = dict(expected)
    for segment in segments_above if pending else ():
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
    """Remove from ``pending`` the producers whose marker is among the batches of ``headers``. Raises
    CorruptFileError for a marker other than the expected one."""
    control = ((headers["attributes"] & CONTROL_BIT) != 0) & (headers["magic"] == 2) & (headers["count"] > 0)
    is_marker = control & np.isin(headers["producer_id"], np.array(list(pending), np.int64))
    for row in np.flatnonzero(is_marker).tolist():
        producer_id, origin = headers["producer_id"].item(row), headers["position"].item(row)
        data, batch = read_batch(reader, headers[row : row + 1])
        # The first marker of a producer ends its transaction; later ones end other transactions.
        marker = read_batch_marker(data, batch, 0, reader.path, origin)
        if marker is None or producer_id not in pending:
            continue
        abort_offset = pending.pop(producer_id)
        if marker.is_commit != (abort_offset is None):
            contradiction = COMMITTED if marker.is_commit else NOT_LISTED
            raise contradiction_error(contradiction, producer_id, reader.path, origin)
        if abort_offset is not None and abort_offset != batch["base_offset"].item():
            raise contradiction_error(ENDS_ELSEWHERE, producer_id, reader.path, origin)


def _apply_summary(
    kinds: Int64, id_rows: Int64, ids: Int64, has_open: Flags, has_data: Flags, path: str
) -> None:
    """Apply one input split's summary to ``has_open`` and ``has_data``. Raises CorruptFileError.

    ``kinds`` and ``id_rows``: one a row of the summary; ``id_rows`` are rows of the three other arrays.
    """
    for kind, contradiction in ((FIRST_UNLISTED, NOT_LISTED), (FIRST_LISTED, BEGINS_ELSEWHERE)):
        chosen = id_rows[kinds == kind]
        if has_open[chosen].any():
            producer_id = int(ids[chosen[np.argmax(has_open[chosen])]])
            raise contradiction_error(contradiction, producer_id, path)
    has_open[id_rows[kinds == CLOSED_PRODUCER]] = False
    has_open[id_rows[kinds == OPEN_PRODUCER]] = True
    has_data[id_rows[kinds == ABORT_WITH_DATA]] = True
