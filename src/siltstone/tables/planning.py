"""``plan``: options and filters → splits, for every view."""

from __future__ import annotations

from siltstone.errors import UsageError
from siltstone.tables.bounds import find_ranges
from siltstone.tables.latest import find_winners, with_winners
from siltstone.tables.opened import open_logs
from siltstone.tables.options import COMPACTED, LATEST_VIEW, ReadOptions
from siltstone.tables.predicate import EVERYTHING, Predicate
from siltstone.tables.splits import Split, split_ranges


def plan(options: ReadOptions, predicate: Predicate = EVERYTHING) -> list[Split]:
    """Open the directories, find what is to be read, and cut it into splits; none where there is nothing.

    ``predicate`` only leaves out what cannot hold. For ``view=latest`` the log is read here once. Raises what
    opening raises, UsageError, OffsetOutOfRangeError.
    """
    logs = open_logs(options)
    ranges = find_ranges(logs, options)
    chosen = predicate.chosen(logs)
    if options.view == COMPACTED:
        raise UsageError("view=compacted is not there yet")
    narrowed = {where: predicate.narrowed(ranges[where], log) for where, log in chosen.items()}
    splits = split_ranges(chosen, narrowed, options)
    if options.view == LATEST_VIEW:
        winners = find_winners(chosen, {where: ranges[where] for where in chosen}, options)
        splits = with_winners(splits, winners)
    return splits
