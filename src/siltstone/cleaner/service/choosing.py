"""Which logs are cleaned next, and which of them together (``LogCleanerManager.grabFilthiestCompactedLog``).

The filthiest first. Small ones go together, since a job costs about the same for one and for a hundred; a
large one goes alone. Logs whose cleaning has failed come last and go alone, so that they hold up nobody. All
pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from siltstone.cleaner.service.open_logs import Candidate
from siltstone.log.names import TopicPartition

LOGS_AT_ONCE = 1000


def in_turn(candidates: Sequence[Candidate], failures: Mapping[TopicPartition, int]) -> list[Candidate]:
    """The eligible ones, best first."""
    eligible = [each for each in candidates if each.is_eligible]
    return sorted(
        eligible, key=lambda each: (failures.get(each.where, 0), -each.range.dirty_ratio, each.where)
    )


def next_batch(
    turn: Sequence[Candidate],
    failures: Mapping[TopicPartition, int],
    *,
    workers: int,
    small_bytes: int,
    run_bytes: int,
) -> list[Candidate]:
    """Those that one of ``workers`` cleans in one run: a large one (over ``small_bytes``), or small ones up
    to ``run_bytes`` and to the worker's share."""
    if not turn:
        return []
    first = turn[0]
    if first.size > small_bytes or failures.get(first.where):
        return [first]
    small = [each for each in turn if each.size <= small_bytes and not failures.get(each.where)]
    share = min(max(-(-len(small) // workers), 1), LOGS_AT_ONCE)
    batch, used = [first], first.size
    for each in small[1:share]:
        used += each.size
        if used > run_bytes:
            break
        batch.append(each)
    return batch
