"""Observing in this process, bucket after bucket: memory is bounded, a large log is read several times."""

from __future__ import annotations

from collections.abc import Sequence

from siltstone.cleaner.explanation.explaining import Sight
from siltstone.cleaner.explanation.observing import Bins, Observed, Words, observe
from siltstone.cleaner.explanation.tallying import TALLY_BYTES, KeyTally, tally
from siltstone.cleaner.work import LogWork, trouble_of
from siltstone.errors import SiltstoneError

MEMORY_BYTES = 1 << 30


def buckets_of(work: LogWork, memory_bytes: int = MEMORY_BYTES, at_least: int = 1) -> int:
    """Buckets so that one is tallied within that memory; a log's span of offsets bounds its records."""
    span = work.end - work.segments[0].base_offset
    return max(at_least, -(-span * TALLY_BYTES // memory_bytes))


def observe_here(
    works: Sequence[tuple[LogWork, Bins]], top: int, memory_bytes: int = MEMORY_BYTES
) -> dict[str, Sight]:
    """One log after another."""
    return {work.name: _sight(work, bins, top, memory_bytes) for work, bins in works}


def _sight(work: LogWork, bins: Bins, top: int, memory_bytes: int) -> Sight:
    sight = Sight(observed=Observed(bins=bins.count), tally=KeyTally())
    buckets = buckets_of(work, memory_bytes)
    try:
        for bucket in range(buckets):
            seen, blobs = Observed(bins=bins.count), list[Words]()
            for _, entries in observe(work, range(len(work.segments)), buckets, bins, seen, bucket):
                blobs.append(entries)
            sight.tally.add(tally(blobs, work.first_dirty, bins, top), top)
            sight.observed = seen
    except (SiltstoneError, OSError) as error:
        sight.trouble = trouble_of(error)
    return sight
