"""How an engine is spoken to, and the one that needs no Spark.

The in-process engine calls the pieces one after another; ``siltstone.spark.compact`` spreads the same pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.ledger.key_index import KeysPart
from siltstone.compaction.ledger.staging import (
    FoldedKeys,
    FoldWork,
    WrittenGroup,
    fold_group,
    fold_keys,
    rewrite_group,
)
from siltstone.compaction.ledger.work import (
    CompactionWork,
    Merged,
    bucket_count,
    by_group,
    extract,
    merge_bucket,
)
from siltstone.compaction.work import Extracted, LogFailure, first_failure


@dataclass(slots=True, kw_only=True)
class Compacted:
    """What an engine did for a tail: sums over all buckets, the groups in order.

    ``retained``: records that were to be written, by group, keyless ones too. ``hidden``: generation →
    offsets that it loses (int64, ascending within a part). ``keys``: parts of the new key index.
    """

    found: Extracted = field(default_factory=Extracted)
    arrived: int = 0
    deleted: int = 0
    beaten: int = 0
    retained: dict[int, int] = field(default_factory=dict)
    hidden: dict[int, list[Int64]] = field(default_factory=dict)
    keys: list[KeysPart] = field(default_factory=list)
    groups: list[WrittenGroup] = field(default_factory=list)
    failure: LogFailure | None = None

    def add_merged(self, merged: Merged) -> None:
        """Sum up a bucket; its retained offsets are counted apart, by group."""
        self.arrived += merged.arrived
        self.deleted += merged.deleted
        self.beaten += merged.beaten
        self.keys += [] if merged.keys is None else [merged.keys]
        self.failure = self.failure or merged.failure
        for generation, offsets in merged.hidden.items():
            self.hidden.setdefault(generation, []).append(offsets)

    def expect(self, group: int, count: int) -> None:
        """So many more records are to be written in a group."""
        self.retained[group] = self.retained.get(group, 0) + count

    def first_failure(self) -> LogFailure | None:
        """The first failure that anything had."""
        return first_failure((self.found, self, *self.groups))


@dataclass(slots=True, kw_only=True)
class Folded:
    """What an engine did for generations that become one."""

    keys: list[FoldedKeys] = field(default_factory=list)
    groups: list[WrittenGroup] = field(default_factory=list)

    def first_failure(self) -> LogFailure | None:
        """The first failure that anything had."""
        return first_failure((*self.keys, *self.groups))


class CompactionEngine(Protocol):
    """What the compactor asks of whoever spreads the work. Calls raise EngineError when it is lost."""

    @property
    def workers(self) -> int:
        """How many tasks run at one time."""
        ...

    def compact_whole(self, work: CompactionWork) -> Compacted:
        """A tail in one task."""
        ...

    def compact_spread(self, work: CompactionWork) -> Compacted:
        """A tail over all workers."""
        ...

    def fold(self, work: FoldWork) -> Folded:
        """Generations into one: its segments and its key index's parts."""
        ...


def compact_in_one_go(work: CompactionWork, attempt: str) -> Compacted:
    """Extract, merge and rewrite a whole tail in this process."""
    done = Compacted()
    blobs, kept = apart(extract(work, range(len(work.sources)), 1, done.found))
    if done.found.failure is None:
        done.add_merged(merged := merge_bucket(work, blobs.get(0, []), 0, 1, attempt))
        _rewrite(work, [merged.retained, *kept], attempt, done)
    return done


def apart(
    found: Iterable[EntryBlob | Int64],
) -> tuple[dict[int, list[EntryBlob]], list[Int64]]:
    """Entries by bucket, and offsets of keyless records that stay."""
    blobs: dict[int, list[EntryBlob]] = {}
    kept: list[Int64] = []
    for each in found:
        if isinstance(each, EntryBlob):
            blobs.setdefault(each.bucket, []).append(each.kept())
        else:
            kept.append(each)
    return blobs, kept


def _rewrite(work: CompactionWork, parts: list[Int64], attempt: str, done: Compacted) -> None:
    """Write every group that has retained offsets, up to the first that fails."""
    if done.first_failure() is not None:
        return
    retained = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    for group, offsets in by_group(work.groups, retained):
        done.expect(group, len(offsets))
        done.groups.append(rewrite_group(work, work.groups[group], offsets, attempt))
        if done.groups[-1].failure is not None:
            return


class InProcessCompactionEngine:
    """Everything here and now, one piece after another; both ways of spreading, without spreading."""

    workers = 1

    def __init__(self, buckets: int = 1) -> None:
        self._buckets = buckets
        self._attempts = map(str, itertools.count())

    def compact_whole(self, work: CompactionWork) -> Compacted:
        """In one go."""
        return compact_in_one_go(work, next(self._attempts))

    def compact_spread(self, work: CompactionWork) -> Compacted:
        """Source by source, bucket by bucket, group by group, as a cluster would."""
        buckets, done, attempt = bucket_count(work, self._buckets), Compacted(), next(self._attempts)
        blobs: dict[int, list[EntryBlob]] = {}
        kept: list[Int64] = []
        for number in range(len(work.sources)):
            found = Extracted()
            more, offsets = apart(extract(work, [number], buckets, found))
            done.found.add(found)
            kept += offsets
            for bucket, each in more.items():
                blobs.setdefault(bucket, []).extend(each)
        for bucket in range(buckets):
            merged = merge_bucket(work, blobs.pop(bucket, []), bucket, buckets, attempt)
            done.add_merged(merged)
            kept.append(merged.retained)
        _rewrite(work, kept, attempt, done)
        return done

    def fold(self, work: FoldWork) -> Folded:
        """Bucket by bucket, group by group."""
        done, attempt = Folded(), next(self._attempts)
        buckets = 1 << (self._buckets - 1).bit_length()
        done.keys = [fold_keys(work, bucket, buckets, attempt) for bucket in range(buckets)]
        done.groups = [fold_group(work, group, attempt) for group in work.groups]
        return done


# What a compaction has done, as data.


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDiscarded:
    """Records of the tail that are not in the ledger, by reason.

    ``superseded``: another record of the key won. ``deleted``: a null or empty value, which deletes its key
    and is itself not kept. ``keyless``: without a key, where those are not retained. ``aborted``: of aborted
    transactions. Control records are no records here.
    """

    superseded: int = 0
    deleted: int = 0
    keyless: int = 0
    aborted: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.superseded + self.deleted + self.keyless + self.aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A compaction that succeeded; sizes in bytes, ``seconds`` of the whole call.

    ``changed``: a new ledger was committed; False where there was nothing new, and the ledger is as it was
    (``ledger_id`` None: there never was one). ``horizon``: the first offset that the ledger does not cover.
    ``entries`` and ``size`` are the ledger's. ``read_records`` and ``read_bytes`` are the tail's, ``written``
    its records that went into the ledger: ``read_records == written + removed.total``. ``written_bytes``: of
    the new generation's logs. ``hidden``: records of the ledger before it that this one no longer shows.
    ``folded``: generations that were put together anew.
    """

    ledger_id: int | None
    horizon: int
    entries: int = 0
    size: int = 0
    changed: bool = False
    read_records: int = 0
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    removed: TailDiscarded = TailDiscarded()
    hidden: int = 0
    folded: tuple[int, ...] = ()
    seconds: float = 0.0
