"""``plan``: options and filters → splits, for every view."""

from __future__ import annotations

import contextlib

from siltstone.tables.bounds import find_ranges
from siltstone.tables.compacted import CompactedLog
from siltstone.tables.latest import find_winners, with_winners
from siltstone.tables.opened import open_logs
from siltstone.tables.options import COMPACTED, LATEST_VIEW, ReadOptions
from siltstone.tables.predicate import EVERYTHING, Predicate
from siltstone.tables.splits import Split, split_ranges, split_sources


def plan(options: ReadOptions, predicate: Predicate = EVERYTHING) -> list[Split]:
    """Open the directories, find what is to be read, and cut it into splits; none where there is nothing.

    ``predicate`` only leaves out what cannot hold. For ``view=latest`` the log is read here once. Raises what
    opening raises, UsageError, OffsetOutOfRangeError, LedgerError.
    """
    if options.view == COMPACTED:
        return _plan_compacted(options, predicate)
    logs = open_logs(options)
    ranges = find_ranges(logs, options)
    chosen = predicate.chosen(logs)
    narrowed = {where: predicate.narrowed(ranges[where], log) for where, log in chosen.items()}
    splits = split_ranges(chosen, narrowed, options)
    if options.view == LATEST_VIEW:
        winners = find_winners(chosen, {where: ranges[where] for where in chosen}, options)
        splits = with_winners(splits, winners)
    return splits


def _plan_compacted(options: ReadOptions, predicate: Predicate) -> list[Split]:
    """The ledgers are held while it is planned; a task finds out when its files went since."""
    with contextlib.ExitStack() as held:
        logs = {where: held.enter_context(CompactedLog(log)) for where, log in open_logs(options).items()}
        ranges = find_ranges(logs, options)
        return split_sources(
            [
                source
                for where, log in predicate.chosen(logs).items()
                for source in logs[where].sources(predicate.narrowed(ranges[where], log))
            ],
            options,
        )
