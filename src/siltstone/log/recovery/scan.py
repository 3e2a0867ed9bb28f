"""Reads one segment at startup: where its log ends validly, and whether its indexes are possible.

Kafka's ``LogSegment.recover`` (``SegmentScan``) and ``sanityCheck`` (``impossible_indexes``). Damage (an
impossible size or magic byte, a wrong checksum, a batch that goes on beyond the file) is where a crash may
have cut a write: it ends the scan. An offset that decreases is no damage, since its batch is whole: nothing
says which of the two batches is right, so that is an error.

``check_tail`` is the small version for a log that was stopped cleanly: it starts at one of the last index
entries, so that the bytes read are bounded.
"""

from __future__ import annotations

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
from siltstone.log.names import SEGMENT_KINDS, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.segments import Segment, Window, windows
from siltstone.log.transactions import (
    AbortedTransactions,
    TransactionScan,
    combine_summaries,
    read_transaction_indexes,
)

_TAIL = 64 << 10
"""Bytes at a segment's end that are read after a clean stop, and those up to the index entry before them."""
_TAIL_ENTRIES = 64
_LARGEST_TAIL = 16 << 20
UNWRITTEN = "the first bytes of the batch's base offset were never written"
_RESTORE = "restore the partition from a replica, or move it away, and recover again"

Listing = Mapping[str, files.FileStat]
"""The files of a partition directory."""


def apply_batches(
    states: ProducerStates, batches: BatchHeaders, data: Bytes, path: str = ""
) -> list[AbortedTransaction]:
    """Apply batches of ``data`` to ``states``, as far as they change them; returns the transactions that they
    aborted.

    Raises CorruptRecordError for an invalid marker.
    """
    rows = state_changing_rows(batches)
    return states.update(batches if len(rows) == len(batches) else batches[rows], data, path)


def state_changing_rows(batches: BatchHeaders) -> Int64:
    """Rows that change a producer's state: of consecutive batches of one producer with the same epoch and
    flags the first and the last.

    The last one overwrites what those in between set, and they open no transaction that the first has not
    opened. Ascending; all markers are among them.
    """
    rows = np.flatnonzero(batches["producer_id"] >= 0)
    if len(rows) < 3:
        return rows
    producers = batches["producer_id"][rows]
    order = np.argsort(producers, kind="stable")
    producers, sorted_rows = producers[order], rows[order]
    flags = batches["attributes"][sorted_rows] & (CONTROL_BIT | TRANSACTIONAL_BIT)
    starts = np.empty(len(rows) + 1, bool)
    starts[0] = starts[-1] = True
    starts[1:-1] = (
        (producers[1:] != producers[:-1])
        | (flags[1:] != flags[:-1])
        | ((flags[1:] & CONTROL_BIT) != 0)
        | (np.diff(batches["producer_epoch"][sorted_rows]) != 0)
    )
    return np.sort(sorted_rows[starts[:-1] | starts[1:]])


class SegmentScan:
    """A scan of a segment's log: ``run`` it once. ``size`` bytes are valid, the next record gets
    ``next_offset``.

    ``damage``: what ended the scan, None at a clean end. ``skipped``: batches with wrong checksums that were
    skipped. ``gaps``: how often offsets are missing between two batches. ``aborted``: the transactions that
    were aborted in it. ``epochs``: leader epochs and the offsets at which they begin.
    """

    def __init__(
        self, segment: Segment, config: LogConfig, *, limit_offset: int, keep_going: bool = False
    ) -> None:
        """``limit_offset``: all offsets are below. ``keep_going``: wrong checksums are noted and skipped."""
        base, interval = segment.base_offset, config.index_interval_bytes
        self.indexes = IndexBuilder(base, interval, config.segment_index_bytes)
        self.size, self.next_offset, self.gaps = 0, base, 0
        self.damage: CorruptFileError | None = None
        self.skipped: list[CorruptFileError] = []
        self.aborted: list[AbortedTransaction] = []
        self.epochs: list[tuple[int, int]] = []
        self._segment, self._limit, self._keep_going = segment, limit_offset, keep_going

    def run(self, states: ProducerStates) -> None:
        """Read the log up to its end or its first damage; its batches are applied to ``states``.

        Raises CorruptRecordError where offsets decrease or cannot belong to the segment, OSError.
        """
        for window in self._valid_batches():
            batches = window.batches if self._keep_going else self._before_unwritten(window)
            if not len(batches):
                return
            self._refuse_disorder(batches, window.origin)
            self.indexes.add_batches(batches)
            try:
                self.aborted += apply_batches(states, batches, window.data, self._segment.path)
            except CorruptRecordError as error:
                position = window.origin + error.position
                raise CorruptRecordError(error.path, position, error.reason) from None
            epochs = batches["leader_epoch"]
            for row in np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1)).tolist():
                self.epochs.append((int(epochs[row]), int(batches["base_offset"][row])))
            self.size = window.origin + int(batches["position"][-1]) + int(batches["size"][-1])
            self.next_offset = int(batches["last_offset"][-1]) + 1
            if len(batches) < len(window.batches):
                return

    def _valid_batches(self) -> Iterator[Window]:
        """Batches with right checksums; what ends or interrupts them goes to ``damage`` or ``skipped``."""
        path = self._segment.path
        with files.Reader(path) as reader:
            unchecked = windows(reader, verify=False)
            while True:
                try:
                    window = next(unchecked, None)
                except CorruptRecordError as error:
                    self.damage = error.with_traceback(None)
                    return
                if window is None:
                    return
                rest = window.batches
                while (bad := first_bad_checksum(window.data, rest)) is not None:
                    if bad:
                        yield Window(data=window.data, batches=rest[:bad], origin=window.origin)
                    position = window.origin + int(rest["position"][bad])
                    damage = CorruptRecordError(path, position, BAD_CHECKSUM)
                    if not self._keep_going:
                        self.damage = damage
                        return
                    self.skipped.append(damage)
                    rest = rest[bad + 1 :]
                if len(rest):
                    yield Window(data=window.data, batches=rest, origin=window.origin)

    def _before_unwritten(self, window: Window) -> BatchHeaders:
        """The batches before the first one whose base offset was not written, which is damage.

        No checksum covers the base offset. Where a batch begins in the last bytes of a block, and that block
        is the only one that was not written, the first bytes of the offset are zeros and all the rest is
        valid.
        """
        batches = window.batches
        expected = self._expected(batches)
        decreasing = np.flatnonzero(batches["base_offset"] < expected)
        if not len(decreasing):
            return batches
        row = int(decreasing[0])
        base, whole = int(batches["base_offset"][row]), int(expected[row])
        # Big-endian: unwritten first bytes leave the low bytes of the offset that was to be written.
        if not any(base == whole & ((1 << bits) - 1) for bits in range(0, 64, 8)):
            return batches
        position = window.origin + int(batches["position"][row])
        self.damage = CorruptRecordError(self._segment.path, position, UNWRITTEN)
        return batches[:row]

    def _expected(self, batches: BatchHeaders) -> Int64:
        """The offset at which each batch begins unless there is a gap before it: int64[n]."""
        return np.append(np.int64(self.next_offset), batches["last_offset"][:-1] + 1)

    def _refuse_disorder(self, batches: BatchHeaders, origin: int) -> None:
        bases, lasts, expected = batches["base_offset"], batches["last_offset"], self._expected(batches)
        self.gaps += int(np.count_nonzero(bases != expected))
        invalid = np.flatnonzero((bases < expected) | (lasts >= self._limit))
        if not len(invalid):
            return
        row = int(invalid[0])
        base, last, minimum = int(bases[row]), int(lasts[row]), int(expected[row])
        if base >= minimum:
            reason = f"offset {last} cannot be in this segment, whose offsets are below {self._limit}"
        elif base < self._segment.base_offset:
            reason = f"base offset {base} is below {self._segment.base_offset}, the segment's first offset"
        else:
            reason = f"base offset {base} is not above {minimum - 1}, the last offset of the batch before it"
        position = origin + int(batches["position"][row])
        raise CorruptRecordError(self._segment.path, position, reason, advice=_RESTORE)


def check_tail(segment: Segment) -> int | None:
    """The next offset of a segment whose tail is valid; None where it is not.

    Also None if an index entry in the tail does not fit its batches, or the tail is larger than
    ``_LARGEST_TAIL``: then the whole segment has to be scanned. Raises OSError.
    """
    if not segment.size:
        return segment.base_offset
    start, entries = _tail_entries(segment)
    tail = segment.size - start
    if not 0 < tail <= _LARGEST_TAIL:
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
    # A batch begins at an entry's position, and does not end above its offset: an entry may be of a whole
    # append of several batches.
    rows = np.searchsorted(batches["position"], entries["position"] - start)
    fits = rows < len(batches)
    rows = np.minimum(rows, len(batches) - 1)
    fits &= batches["position"][rows] == entries["position"] - start
    fits &= lasts[rows] <= entries["relative_offset"] + segment.base_offset
    return int(lasts[-1]) + 1 if fits.all() else None


def _tail_entries(segment: Segment) -> tuple[int, npt.NDArray[np.void]]:
    """The position at which the tail of a segment starts, and the offset index's entries in it.

    It starts at the last entry with ``_TAIL`` bytes or more after it, or at the first one that is read.
    """
    width = OFFSET_ENTRY.itemsize
    count = min(segment.offset_index_size // width, _TAIL_ENTRIES)
    path = f"{segment.directory}/{segment_file(segment.base_offset, 'index')}"
    raw = files.read_slice(path, segment.offset_index_size - count * width, count * width) if count else b""
    entries = np.frombuffer(raw, OFFSET_ENTRY).astype([("relative_offset", "i8"), ("position", "i8")])
    early = np.flatnonzero(entries["position"] <= segment.size - _TAIL)
    if not len(early) and count < _TAIL_ENTRIES:
        return 0, entries
    first = int(early[-1]) if len(early) else 0
    return int(entries["position"][first]), entries[first:]


# The indexes of a segment: an index has no checksum, so its entries are checked for what they claim.
#
# ``impossible_indexes`` checks the size and the last entry, for a start after a clean stop, or all entries;
# ``wrong_indexes`` compares each entry with the log, and ``contradict_markers`` all transaction indexes with
# the markers. An index that fails is rebuilt.


def impossible_indexes(
    segment: Segment, limit_offset: int, listing: Listing, *, all_entries: bool
) -> list[str]:
    """The names of a segment's indexes that are missing or have impossible entries. Raises OSError.

    ``limit_offset``: all offsets of the segment are below. ``all_entries``: read them all, not the last
    alone.
    """
    impossible = []
    for kind in SEGMENT_KINDS[1:]:
        name = segment_file(segment.base_offset, kind)
        size = listing[name].size if name in listing else 0
        possible = name in listing or kind == "txnindex"
        if size:
            possible = _last_is_possible(segment, kind, name, size, limit_offset)
            possible = possible and (not all_entries or _all_are_possible(segment, kind, limit_offset))
        if not possible:
            impossible.append(name)
    return impossible


def _last_is_possible(segment: Segment, kind: str, name: str, size: int, limit_offset: int) -> bool:
    width = ENTRY_OF_KIND[kind].itemsize
    if size % width:
        return False
    raw = files.read_slice(f"{segment.directory}/{name}", size - width, width)
    if kind == "txnindex":
        return raw[:2] == b"\0\0"
    if raw == bytes(width):
        return False  # an index is preallocated, and a clean stop truncates the zeros
    relative: int
    if kind == "index":
        relative, position = ENTRY_STRUCTS[kind].unpack(raw)
        possible = 0 <= position < segment.size
    else:
        timestamp, relative = ENTRY_STRUCTS[kind].unpack(raw)
        possible = timestamp >= -1 and segment.size > 0
    return possible and 0 <= relative < limit_offset - segment.base_offset


def _all_are_possible(segment: Segment, kind: str, limit_offset: int) -> bool:
    """Do all entries ascend, within the segment?"""
    index = _named_index(segment, kind)
    data = files.read_bytes(index.path)
    entries, damage = entries_before_damage(data, index)
    if damage or len(entries) * entries.itemsize != len(data) or any(sanity_check(index, entries)):
        return False
    return kind != "txnindex" or not (entries["last_offset"] >= limit_offset).any()


def _named_index(segment: Segment, kind: str) -> NamedFile:
    path = f"{segment.directory}/{segment_file(segment.base_offset, kind)}"
    return NamedFile(path=path, kind=kind, base_offset=segment.base_offset)


def wrong_indexes(
    segment: Segment, listing: Listing, aborted: Sequence[AbortedTransaction], *, exact_transactions: bool
) -> list[str]:
    """The names of an undamaged segment's indexes that differ from its log. Raises OSError.

    ``aborted``: what the transaction index should list, by the log. It may list more unless
    ``exact_transactions``: cleaning removes the data of an aborted transaction before its entry.
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
    """Does a transaction index have all ``aborted`` transactions, none of them shortened?"""
    try:
        entries = read_entries(data, "txnindex").tolist()
    except CorruptFileError:
        return False
    listed = {(producer, last): first for _, producer, first, last, _ in entries}
    return all(listed.get((producer, last), last + 1) <= first for producer, first, last, _ in aborted)


def contradict_markers(segments: Sequence[Segment]) -> bool:
    """Do the transaction indexes of a log contradict the markers in it?

    Reads the whole log if there is an entry. If batches are damaged, transactions over several segments are
    not checked. Raises OSError.
    """
    try:
        aborted = AbortedTransactions.from_entries(read_transaction_indexes(segments))
        if not len(aborted.entries):
            return False
        ends = [*(segment.base_offset for segment in segments[1:]), LONG_MAX]
        summaries = [
            _transactions_of(segment, end, aborted) for segment, end in zip(segments, ends, strict=True)
        ]
        whole = [summary for summary in summaries if summary is not None]
        if len(whole) == len(summaries):
            combine_summaries(whole, [])
    except CorruptFileError:
        return True
    return False


def _transactions_of(segment: Segment, end: int, aborted: AbortedTransactions) -> Int64 | None:
    """The summary of a segment's transactions, None if it is damaged. Raises CorruptFileError."""
    scan = TransactionScan(aborted)
    with files.Reader(segment.path) as reader:
        try:
            for window in windows(reader, verify=False):
                scan.follow(window.data, window.batches, path=segment.path, origin=window.origin)
        except CorruptRecordError:
            return None
    scan.refuse_missing_markers(segment.base_offset, end, segment.path)
    return scan.summary(segment.base_offset)
