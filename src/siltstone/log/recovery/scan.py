"""Scans one segment at startup: where its valid batches end, and which of its indexes are wrong.

``SegmentScan`` is Kafka's ``LogSegment.recover``, ``impossible_indexes`` is ``LogSegment.sanityCheck``. The
scan ends at the first damage, where a crash may have interrupted a write: an impossible size or magic byte, a
wrong checksum, a batch that ends beyond the file. A base offset that is not above the last offset of the
batch before is an error instead: both batches are whole, and nothing tells which of them is right.

``check_tail`` is enough for a segment after a clean shutdown. It reads only the last batches, from one of the
last index entries on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.checksum import BAD_CHECKSUM, first_bad_checksum
from siltstone.base.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeaders, Bytes, Int64
from siltstone.base.records.scan import ScanEnd, scan_batches
from siltstone.log.indexes import (
    ENTRY_OF_KIND,
    ENTRY_STRUCTS,
    LARGEST_RELATIVE_OFFSET,
    OFFSET_ENTRY,
    AbortedTransaction,
    IndexBuilder,
    NamedFile,
    differs_from_log,
    encode_aborted,
    entries_before_damage,
    read_entries,
    sanity_check,
)
from siltstone.log.names import INDEX_KINDS, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.segments import Segment, Window, windows
from siltstone.log.transactions import (
    AbortedTransactions,
    TransactionScan,
    combine_summaries,
    read_transaction_indexes,
)

_TAIL_SIZE_MIN = 64 << 10
"""Bytes that ``check_tail`` reads at least, if the segment has them: it starts at an index entry that is at
least so far from the segment's end."""
_TAIL_ENTRIES_MAX = 64
"""Index entries that ``check_tail`` reads at most to find that entry."""
_TAIL_SIZE_MAX = 16 << 20
"""Bytes that ``check_tail`` reads at most; a larger tail needs a scan of the segment."""
_UNWRITTEN_OFFSET = "the first bytes of the batch's base offset were never written"
_RESTORE_ADVICE = "restore the partition from a replica, or move it away, and recover again"

PartitionFiles = Mapping[str, files.FileStat]
"""The files of a partition directory: name → status."""


def apply_batches(
    states: ProducerStates, batches: BatchHeaders, data: Bytes, path: str = ""
) -> list[AbortedTransaction]:
    """Apply the batches that change ``states``; returns the transactions that were aborted.

    ``data`` has the bytes of ``batches``. Raises CorruptRecordError for an invalid marker.
    """
    rows = state_changing_rows(batches)
    return states.update(batches if len(rows) == len(batches) else batches[rows], data, path)


def state_changing_rows(batches: BatchHeaders) -> Int64:
    """The rows of the batches that have to be applied to get the producers' states, ascending.

    In a run of consecutive data batches of a producer with the same epoch and transactional bit, these are
    the first batch, which may open a transaction, and the last, which overwrites what the others set. All
    markers are among the rows.
    """
    rows = np.flatnonzero(batches["producer_id"] >= 0)
    if len(rows) < 3:
        return rows
    # A stable sort puts the batches of each producer side by side, in the order of the log.
    producers = batches["producer_id"][rows]
    order = np.argsort(producers, kind="stable")
    producers, sorted_rows = producers[order], rows[order]
    flags = batches["attributes"][sorted_rows] & (CONTROL_BIT | TRANSACTIONAL_BIT)
    is_first_of_run = np.empty(len(rows) + 1, bool)
    is_first_of_run[0] = is_first_of_run[-1] = True
    is_first_of_run[1:-1] = (
        (producers[1:] != producers[:-1])
        | (flags[1:] != flags[:-1])
        | ((flags[1:] & CONTROL_BIT) != 0)
        | (np.diff(batches["producer_epoch"][sorted_rows]) != 0)
    )
    # A batch is the last of a run if the next one is the first of a run.
    return np.sort(sorted_rows[is_first_of_run[:-1] | is_first_of_run[1:]])


def epochs_of(batches: BatchHeaders) -> list[tuple[int, int]]:
    """(leader epoch, the base offset of the first batch that has it) wherever the epoch changes; ``batches``
    has at least one batch."""
    epochs = batches["leader_epoch"]
    rows = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    return [(int(epochs[row]), int(batches["base_offset"][row])) for row in rows]


def read_epochs(segment: Segment) -> list[tuple[int, int]]:
    """The leader epochs of a segment's batches up to its first damage; no checksum is verified.

    Raises OSError."""
    epochs = []
    with contextlib.suppress(CorruptRecordError), files.Reader(segment.path) as reader:
        for window in windows(reader, verify=False):
            epochs += epochs_of(window.batches)
    return epochs


class SegmentScan:
    """A scan of a segment's ``.log``; call ``run`` once. Its results:

    ``size``: how many bytes are valid. ``next_offset``: the offset after the last valid batch. ``damage``:
    what ended the scan, None if the whole file is valid. ``skipped``: batches with wrong checksums that were
    skipped. ``gaps``: how often offsets are missing between two batches. ``aborted``: the transactions whose
    abort markers are in the segment. ``epochs``: (leader epoch, the offset at which it begins). ``indexes``:
    the indexes that the batches need.
    """

    def __init__(
        self, segment: Segment, config: LogConfig, *, offset_limit: int, skip_corrupt: bool = False
    ) -> None:
        """``offset_limit``: all offsets of the segment must be below it. ``skip_corrupt``: continue after a
        batch with a wrong checksum, instead of ending the scan there.
        """
        base, interval = segment.base_offset, config.index_interval_bytes
        self.indexes = IndexBuilder(base, interval, config.segment_index_bytes)
        self.size, self.next_offset, self.gaps = 0, base, 0
        self.damage: CorruptFileError | None = None
        self.skipped: list[CorruptFileError] = []
        self.aborted: list[AbortedTransaction] = []
        self.epochs: list[tuple[int, int]] = []
        self._segment, self._offset_limit, self._skip_corrupt = segment, offset_limit, skip_corrupt

    def run(self, states: ProducerStates) -> None:
        """Read the ``.log`` up to its end or its first damage, and apply its batches to ``states``.

        Raises CorruptRecordError for offsets that decrease or cannot belong to the segment, OSError.
        """
        for window in self._valid_batches():
            # ``skip_corrupt`` is for durable segments, in which a crash leaves no unwritten bytes.
            batches = window.batches if self._skip_corrupt else self._before_unwritten_offset(window)
            if not len(batches):
                return
            self._refuse_wrong_offsets(batches, window.origin)
            self.indexes.add_batches(batches)
            try:
                self.aborted += apply_batches(states, batches, window.data, self._segment.path)
            except CorruptRecordError as error:
                position = window.origin + error.position
                raise CorruptRecordError(error.path, position, error.reason, advice=error.advice) from None
            self.epochs += epochs_of(batches)
            self.size = window.origin + int(batches["position"][-1]) + int(batches["size"][-1])
            self.next_offset = int(batches["last_offset"][-1]) + 1
            if len(batches) < len(window.batches):
                return

    def _valid_batches(self) -> Iterator[Window]:
        """Read the batches with right checksums; set ``damage`` and ``skipped``."""
        path = self._segment.path
        with files.Reader(path) as reader:
            unchecked_windows = windows(reader, verify=False)
            while True:
                try:
                    window = next(unchecked_windows, None)
                except CorruptRecordError as error:
                    self.damage = error.with_traceback(None)  # with a traceback it would keep the window
                    return
                if window is None:
                    return
                unchecked_batches = window.batches
                while (bad_row := first_bad_checksum(window.data, unchecked_batches)) is not None:
                    if bad_row:
                        valid = unchecked_batches[:bad_row]
                        yield Window(data=window.data, batches=valid, origin=window.origin)
                    position = window.origin + int(unchecked_batches["position"][bad_row])
                    damage = CorruptRecordError(path, position, BAD_CHECKSUM)
                    if not self._skip_corrupt:
                        self.damage = damage
                        return
                    self.skipped.append(damage)
                    unchecked_batches = unchecked_batches[bad_row + 1 :]
                if len(unchecked_batches):
                    yield Window(data=window.data, batches=unchecked_batches, origin=window.origin)

    def _before_unwritten_offset(self, window: Window) -> BatchHeaders:
        """The batches before the first one whose base offset a crash left incomplete, which is damage.

        No checksum covers the base offset. If a batch begins in the last 1 to 8 bytes of a disk block, a
        crash can lose the write of that block alone. Then these bytes of the base offset are zeros, and the
        rest of the batch, in the next block, is valid.
        """
        batches = window.batches
        expected_bases = self._expected_bases(batches)
        decreasing = np.flatnonzero(batches["base_offset"] < expected_bases)
        if not len(decreasing):
            return batches
        row = int(decreasing[0])
        base, expected = int(batches["base_offset"][row]), int(expected_bases[row])
        # Offsets are big-endian: with zeros as its first bytes, the stored offset is the expected offset's
        # low bytes.
        if not any(base == expected & ((1 << bits) - 1) for bits in range(0, 64, 8)):
            return batches
        position = window.origin + int(batches["position"][row])
        self.damage = CorruptRecordError(self._segment.path, position, _UNWRITTEN_OFFSET)
        return batches[:row]

    def _expected_bases(self, batches: BatchHeaders) -> Int64:
        """The base offset of each batch if no offset is missing before it: int64[n]."""
        return np.append(np.int64(self.next_offset), batches["last_offset"][:-1] + 1)

    def _refuse_wrong_offsets(self, batches: BatchHeaders, origin: int) -> None:
        """Raise CorruptRecordError for an offset that decreases or cannot be in the segment; count the
        gaps."""
        bases, lasts, expected = batches["base_offset"], batches["last_offset"], self._expected_bases(batches)
        self.gaps += int(np.count_nonzero(bases != expected))
        invalid = np.flatnonzero((bases < expected) | (lasts >= self._offset_limit))
        if not len(invalid):
            return
        row = int(invalid[0])
        base, last, minimum = int(bases[row]), int(lasts[row]), int(expected[row])
        if base >= minimum:
            reason = f"offset {last} cannot be in this segment, whose offsets are below {self._offset_limit}"
        elif base < self._segment.base_offset:
            reason = f"base offset {base} is below {self._segment.base_offset}, the segment's first offset"
        else:
            reason = f"base offset {base} is not above {minimum - 1}, the last offset of the batch before it"
        position = origin + int(batches["position"][row])
        raise CorruptRecordError(self._segment.path, position, reason, advice=_RESTORE_ADVICE)


def check_tail(segment: Segment) -> int | None:
    """The offset after a segment's last batch; None if the whole segment has to be scanned.

    It has to be scanned if one of the last batches is invalid, if an index entry does not fit these batches,
    or if they have more than ``_TAIL_SIZE_MAX`` bytes. Raises OSError.
    """
    if not segment.size:
        return segment.base_offset
    start, entries = _tail_entries(segment)
    tail = segment.size - start
    if not 0 < tail <= _TAIL_SIZE_MAX:
        return None
    data = np.frombuffer(files.read_slice(segment.path, start, tail), np.uint8)
    scan = scan_batches(data)
    batches = scan.batches
    if len(data) != tail or scan.outcome != ScanEnd.CLEAN or first_bad_checksum(data, batches) is not None:
        return None
    bases, lasts = batches["base_offset"], batches["last_offset"]
    if bases[0] < segment.base_offset or (bases[1:] <= lasts[:-1]).any():
        return None
    if lasts[-1] - segment.base_offset > LARGEST_RELATIVE_OFFSET:
        return None
    # A batch begins at an entry's position, and its last offset is not above the entry's. It may be below
    # that: an entry for several batches that were appended together has the last offset of the last of them.
    rows = np.searchsorted(batches["position"], entries["position"] - start)
    fits = rows < len(batches)
    rows = np.minimum(rows, len(batches) - 1)
    fits &= batches["position"][rows] == entries["position"] - start
    fits &= lasts[rows] <= entries["relative_offset"] + segment.base_offset
    return int(lasts[-1]) + 1 if fits.all() else None


def _tail_entries(segment: Segment) -> tuple[int, npt.NDArray[np.void]]:
    """(the position at which a segment's tail starts, the entries of the offset index in the tail).

    The tail starts at the last entry with at least ``_TAIL_SIZE_MIN`` bytes after it, among the last
    ``_TAIL_ENTRIES_MAX`` entries. If no entry has so many bytes after it, the tail starts at the first of
    these entries, or, if the index has fewer entries, at the segment's start.
    """
    width = OFFSET_ENTRY.itemsize
    count = min(segment.offset_index_size // width, _TAIL_ENTRIES_MAX)
    path = f"{segment.directory}/{segment_file(segment.base_offset, 'index')}"
    raw = files.read_slice(path, segment.offset_index_size - count * width, count * width) if count else b""
    entries = np.frombuffer(raw, OFFSET_ENTRY).astype([("relative_offset", "i8"), ("position", "i8")])
    early = np.flatnonzero(entries["position"] <= segment.size - _TAIL_SIZE_MIN)
    if not len(early) and count < _TAIL_ENTRIES_MAX:
        return 0, entries
    first = int(early[-1]) if len(early) else 0
    return int(entries["position"][first]), entries[first:]


# The indexes of a segment. An index has no checksum, so its entries are checked. ``impossible_indexes`` needs
# only the index: after a clean shutdown it checks the size and the last entry, else all entries.
# ``wrong_indexes`` compares each entry with the log, and ``indexes_contradict_markers`` compares
# the transaction indexes with the markers. An index that fails is rebuilt.


def impossible_indexes(
    segment: Segment, offset_limit: int, listing: PartitionFiles, *, all_entries: bool
) -> list[str]:
    """The names of a segment's indexes that are missing or have impossible entries. Raises OSError.

    ``offset_limit``: all offsets of the segment are below it. ``all_entries``: check all entries, not only
    the last one.
    """
    impossible = []
    for kind in INDEX_KINDS:
        name = segment_file(segment.base_offset, kind)
        size = listing[name].size if name in listing else 0
        # A segment without aborted transactions has no transaction index.
        is_possible = name in listing or kind == "txnindex"
        if size:
            is_possible = _last_is_possible(segment, kind, name, size, offset_limit)
            is_possible = is_possible and (not all_entries or _all_are_possible(segment, kind, offset_limit))
        if not is_possible:
            impossible.append(name)
    return impossible


def _last_is_possible(segment: Segment, kind: str, name: str, size: int, offset_limit: int) -> bool:
    """Is ``size``, an index's size in bytes, a whole number of entries? Can the last entry be one of this
    segment's? ``name``: of the index file."""
    width = ENTRY_OF_KIND[kind].itemsize
    if size % width:
        return False
    raw = files.read_slice(f"{segment.directory}/{name}", size - width, width)
    if kind == "txnindex":
        return raw[:2] == b"\0\0"  # the version
    if raw == bytes(width):
        return False  # a broker preallocates an index with zeros, and a clean shutdown truncates them
    relative_offset: int
    if kind == "index":
        relative_offset, position = ENTRY_STRUCTS[kind].unpack(raw)
        is_possible = 0 <= position < segment.size
    else:
        timestamp, relative_offset = ENTRY_STRUCTS[kind].unpack(raw)
        is_possible = timestamp >= -1 and segment.size > 0
    return is_possible and 0 <= relative_offset < offset_limit - segment.base_offset


def _all_are_possible(segment: Segment, kind: str, offset_limit: int) -> bool:
    """Do all entries of an index ascend, and are their offsets in the segment?"""
    index = _named_index(segment, kind)
    data = files.read_bytes(index.path)
    entries, damage = entries_before_damage(data, index)
    if damage or len(entries) * entries.itemsize != len(data) or any(sanity_check(index, entries)):
        return False
    return kind != "txnindex" or not (entries["last_offset"] >= offset_limit).any()


def _named_index(segment: Segment, kind: str) -> NamedFile:
    path = f"{segment.directory}/{segment_file(segment.base_offset, kind)}"
    return NamedFile(path=path, kind=kind, base_offset=segment.base_offset)


def wrong_indexes(
    segment: Segment,
    listing: PartitionFiles,
    aborted: Sequence[AbortedTransaction],
    *,
    exact_transactions: bool,
) -> list[str]:
    """The names of a segment's indexes that contradict its log, which is undamaged. Raises OSError.

    ``aborted``: the aborted transactions by the markers in the log. The transaction index may have more
    (cleaning removes an aborted transaction from the log before its entry), unless ``exact_transactions``.
    """
    wrong = []
    for kind in ("index", "timeindex"):
        name = segment_file(segment.base_offset, kind)
        if name in listing and differs_from_log(_named_index(segment, kind), segment.path):
            wrong.append(name)
    name = segment_file(segment.base_offset, "txnindex")
    data = files.read_bytes(f"{segment.directory}/{name}") if name in listing else b""
    differs = exact_transactions and name in listing and data != encode_aborted(aborted)
    if differs or not _has_entries(data, aborted):
        wrong.append(name)
    return wrong


def _has_entries(data: bytes, aborted: Sequence[AbortedTransaction]) -> bool:
    """Has a transaction index an entry for each aborted transaction, with all of its offsets?"""
    try:
        entries = read_entries(data, "txnindex").tolist()
    except CorruptFileError:
        return False
    # An entry's first offset may be below that of the first batch in the log: a cleaning may have discarded
    # the transaction's first batches.
    first_offsets = {(producer, last): first for _, producer, first, last, _ in entries}
    return all(first_offsets.get((producer, last), last + 1) <= first for producer, first, last, _ in aborted)


def indexes_contradict_markers(segments: Sequence[Segment]) -> bool:
    """Do the transaction indexes of a log contradict its markers?

    Reads the whole log if an index has an entry. If batches are damaged, transactions that span several
    segments are not checked. Raises OSError.
    """
    try:
        aborted = AbortedTransactions.from_entries(read_transaction_indexes(segments))
        if not len(aborted.entries):
            return False
        ends = [*(segment.base_offset for segment in segments[1:]), LONG_MAX]
        summaries = [
            _transactions_of(segment, end, aborted) for segment, end in zip(segments, ends, strict=True)
        ]
        undamaged = [summary for summary in summaries if summary is not None]
        if len(undamaged) == len(summaries):
            combine_summaries(undamaged, [])  # raises CorruptFileError for a contradiction
    except CorruptFileError:
        return True
    return False


def _transactions_of(segment: Segment, end: int, aborted: AbortedTransactions) -> Int64 | None:
    """The summary of a segment's transactions (see ``log.transactions``), None if a batch is damaged.

    Raises CorruptFileError where the segment's markers contradict ``aborted``.
    """
    scan = TransactionScan(aborted)
    with files.Reader(segment.path) as reader:
        try:
            for window in windows(reader, verify=False):
                scan.follow(window.data, window.batches, path=segment.path, origin=window.origin)
        except CorruptRecordError:
            return None
    scan.refuse_missing_markers(segment.base_offset, end, segment.path)
    return scan.summary(segment.base_offset)
