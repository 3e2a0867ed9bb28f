"""The pieces of a cleaning that an engine spreads: plain data in, plain data out.

``LogWork`` is all that a task has to know of one log. The pieces, in the order of the data's way::

    extract                        input splits    → entries by bucket, and what was seen in them
    keys.merge_bucket              one bucket      → its retained offsets (``retained_by_group``)
    carried_between                all summaries   → what each group starts with, of transactions
    staging.rewrite_group          one group       → a staged segment, verified

None of these raises for what is wrong with a log: it reports a ``LogFailure``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import KeyColumns
from siltstone.base.records.decode import decode_record_keys
from siltstone.base.records.layout import CONTROL_BIT, Flags
from siltstone.compaction.extraction import (
    Decoded,
    Extracted,
    Group,
    LogFailure,
    aborted_of,
    decoded,
    failure_of,
)
from siltstone.compaction.input_splits import UNLIMITED, InputSplit, Pacer, paced_windows, whole
from siltstone.compaction.keys import EntryBlob, KeyCollector, MergedBucket, by_base
from siltstone.compaction.rewrite import Rules
from siltstone.log.segments import Segment, unchanged
from siltstone.log.transactions import (
    NOTHING,
    Carried,
    TransactionScan,
    carried_by_group,
    left_unended,
    refuse_other_ends,
)

KEYLESS = "has {count} records without a key, which cleaning would remove; say --drop-keyless to allow it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """One log's cleaning: sizes in bytes, times in ms, offsets absolute.

    ``staging``: folder for new files, None for a dry run. ``end``: the first uncleanable offset.
    ``producers``: (producer id, last data offset or -1, producer epoch) of those that are alive,
    ascending. ``aborted``: the entries of the log's ``.txnindex`` files, those above ``end`` too.
    ``message_sets``: a segment of it begins with v0 or v1. ``legacy_horizon_ms``: tombstones of those stay in
    segments that were modified later. ``map_end``: records from it on all stay; Kafka's map ends where it is
    full, ours does not, so only a comparison with Kafka sets it. ``tombstones_from``: tombstones from it on
    stay at any age (``log.ledger.store``). ``above``: the segments from ``end`` on, where markers of
    transactions may be that began below. ``may_cut``: tasks may extract parts of a segment.
    ``batch_limit``: what one batch may decompress to (``max.decompressed.message.bytes``).
    ``io_bytes_per_second``: what one task may read and write.
    """

    name: str
    segments: tuple[Segment, ...]
    groups: tuple[Group, ...]
    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    producers: tuple[tuple[int, int, int], ...]
    aborted: bytes = b""
    above: tuple[Segment, ...] = ()
    may_cut: bool = True
    legacy_horizon_ms: int = 0
    message_sets: bool = False
    map_end: int = LONG_MAX
    tombstones_from: int = LONG_MAX
    index_interval: int
    index_bytes: int
    drop_keyless: bool
    staging: str | None
    hash_key: tuple[int, int]
    window_size: int
    memory_bytes: int
    batch_limit: int = DEFAULT_LIMIT
    io_bytes_per_second: float = UNLIMITED

    def rules(self) -> Rules:
        """The rules that the rewriter goes by."""
        return Rules(
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            end=min(self.end, self.map_end),
            map_end=self.map_end,
            tombstones_from=self.tombstones_from,
            producers=np.array(self.producers, np.int64).reshape(-1, 3),
        )

    @property
    def size(self) -> int:
        """Bytes of its segments."""
        return sum(segment.size for segment in self.segments)

    def transactions(self, carried: Carried = NOTHING) -> TransactionScan:
        """Goes along with the batches of a segment, or of a group that starts with what is carried."""
        return TransactionScan(aborted_of(self.aborted), carried)

    def keeps_legacy_tombstones(self, segment: int) -> bool:
        """Do tombstones of v0 and v1 in segment number ``segment`` stay?"""
        return keeps_legacy_tombstones(self.segments[segment].modified_ms, self.legacy_horizon_ms)

    @property
    def splits(self) -> list[InputSplit]:
        """One for each of its segments."""
        return whole(self.segments, self.end)

    def offsets_of(self, segment: int) -> tuple[int, int]:
        """The offsets that segment number ``segment`` may hold: [its base, the next one's base)."""
        following = self.segments[segment + 1].base_offset if segment + 1 < len(self.segments) else self.end
        return self.segments[segment].base_offset, following


def keeps_legacy_tombstones(modified_ms: int, horizon_ms: int) -> bool:
    """Do the tombstones of a v0 or v1 segment stay, by its modification time? Equal to the horizon they go.

    (Kafka's ``Cleaner.cleanInto`` up to 3.x, where the segment's time decided for all formats.)
    """
    return modified_ms > horizon_ms


def extract(
    work: LogWork, splits: Sequence[InputSplit], buckets: int, capacity: int, found: Extracted
) -> Iterator[EntryBlob]:
    """The keys of some splits of the log, ascending, as blobs of entries.

    ``capacity`` bounds the entries kept in memory. ``found`` is filled on the way; when it has a failure in
    the end, the blobs are not to be used.
    """
    collector = KeyCollector(
        hash_key=work.hash_key,
        first_dirty=work.first_dirty,
        buckets=buckets,
        capacity=capacity,
        expected=sum(split.end - split.first for split in splits),
    )
    try:
        scratch = Scratch()
        for split in splits:
            yield from _extract_split(work, split, scratch, collector, found)
        yield from collector.finish()
    except Exception as error:
        found.failure = failure_of(error)


def _extract_split(
    work: LogWork, split: InputSplit, scratch: Scratch, collector: KeyCollector, found: Extracted
) -> Iterator[EntryBlob]:
    segment, scan = work.segments[split.segment], work.transactions()
    pacer, span = Pacer(work.io_bytes_per_second), (split.start, split.behind)
    with unchanged(segment) as reader:
        windows = paced_windows(reader, work.window_size, pacer, span=span)
        offsets, limit = (split.first, split.end), work.batch_limit
        for each in decoded(segment.path, windows, offsets, decode_record_keys, scratch=scratch, limit=limit):
            columns = each.columns
            found.records += len(columns)
            keyed = columns.key_size >= 0
            mapped = _mapped(work, scan, each, segment.path, found)
            found.keyless += int(np.count_nonzero(~keyed if mapped is None else mapped & ~keyed))
            yield from collector.add(columns, keyed if mapped is None else mapped & keyed)
    scan.refuse_unmarked(split.first, split.end, segment.path)
    summary = scan.summary(split.first)
    if len(summary):
        found.summaries.append(summary)


def _mapped(
    work: LogWork, scan: TransactionScan, some: Decoded[KeyColumns], path: str, found: Extracted
) -> Flags | None:
    """Which records go into the map of keys (bool, one a record), None for all: not those of aborted
    transactions, control records, and what lies beyond the end of a map."""
    window, batches, columns = some
    followed, mapped = scan.follow(window.data, batches, path=path, origin=window.origin), None
    if followed is not None:
        found.transactional = True
        aborted, _ = followed
        mapped = ~(aborted | ((batches["attributes"] & CONTROL_BIT) != 0))[columns.batch]
    if work.map_end < work.end:
        below = columns.offset < work.map_end
        mapped = below if mapped is None else mapped & below
    return mapped


def retained_by_group(
    work: LogWork, retained: MergedBucket
) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.uint32]]]]:
    """A bucket's retained offsets as (group index, offsets relative to the group's base: uint32,
    unordered)."""
    offsets, bounds = by_base(
        retained.offsets, np.array([group.base_offset for group in work.groups], np.int64)
    )
    for number, group in enumerate(work.groups):
        mine = offsets[bounds[number] : bounds[number + 1]]
        if len(mine):
            yield group.index, mine


def check_keyless(work: LogWork, found: Extracted) -> LogFailure | None:
    """Records without a key go only when that is allowed."""
    if found.keyless and not work.drop_keyless:
        return LogFailure(status="skipped", reason=KEYLESS.format(count=found.keyless))
    return None


def carried_between(work: LogWork, found: Extracted) -> dict[int, Carried]:
    """What each group starts with, of transactions; all of the log was extracted.

    Takes the summaries out of ``found``, and puts failure into it: also where a transaction is open that
    planning knew nothing of.
    """
    summaries, found.summaries = found.summaries, []
    try:
        bases, directory = [group.base_offset for group in work.groups], work.segments[0].directory
        carried = carried_by_group(summaries, bases, directory)
        unended = left_unended(summaries, aborted_of(work.aborted), work.end)
        refuse_other_ends(unended, work.end, work.above, directory)
        return carried
    except Exception as error:
        found.failure = found.failure or failure_of(error)
        return {}
