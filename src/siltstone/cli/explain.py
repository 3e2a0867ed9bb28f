"""``siltstone explain``: what a cleaning would do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cyclopts import Parameter

from siltstone.base import files
from siltstone.base.clock import time_text
from siltstone.base.errors import UsageError
from siltstone.cli.output import (
    FromArguments,
    Json,
    Topics,
    note,
    write_json,
    write_line,
    write_table,
)
from siltstone.commands import review
from siltstone.commands.explain_page import size_text
from siltstone.compaction.explain import Explanation, LogExplanation
from siltstone.compaction.report import CLEANING_REASONS, FAILED, UNCLEANABLE

GROUPS_MOST = 12
"""Groups of a log in the tables for people; the page and the JSON have them all."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFlags(review.ExplainRequest):
    """The request as flags; the directories are arguments."""

    directories: FromArguments = ()
    topics: Topics = ()


def explain(
    directories: list[Path],
    /,
    *,
    flags: ExplainFlags | None = None,
    html: Path | None = None,
    json_: Json = False,
) -> int:
    """Show what clean would do with Kafka log directories, and why: a dry run with everything that it saw.

    For each log what goes and why, groups, what bounds the range, the passes that Kafka would need, distinct
    and hottest keys, and since when its bytes could have been free. Nothing is locked or changed.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    html
        Write a page with plots to this new file.
    json_
        Print one JSON document.
    """
    if html is not None and files.exists(html):
        raise UsageError(f"--html {html}: is there already; name a new file")
    if html is not None:
        from siltstone.commands.explain_page import page
    found = review.explain(replace(flags or ExplainFlags(), directories=directories))
    if html is not None:
        files.write_new(html, page(found).encode())
    if json_:
        write_json(found.to_json())
    else:
        _show(found)
    return 1 if any(log.status in (FAILED, UNCLEANABLE) for log in found.logs) else 0


def _show(found: Explanation) -> None:
    names = ("log", "state", "dirty", "before", "after", "records")
    columns = (*names, *CLEANING_REASONS, "keys", "passes")
    write_table("what cleaning would do", columns, [_row(log) for log in found.logs], left=2)
    for log in found.logs:
        if log.reason:
            write_line(f"{log.name}: {log.status}: {log.reason}")
        for text in log.notes:
            write_line(f"{log.name}: {text}")
        if log.is_explained:
            _show_log(log)
    for path, reason in found.passed_over:
        write_line(f"passed over: {path} ({reason})")
    note(*found.notes)


def _row(log: LogExplanation) -> Sequence[object]:
    discarded = [log.outcome.removed.get(reason) or None for reason in CLEANING_REASONS]
    return [
        log.name,
        log.status,
        None if log.range.dirty_ratio is None else f"{log.range.dirty_ratio:.3f}",
        size_text(log.bytes_before),
        None if log.bytes_after is None else size_text(log.bytes_after),
        log.outcome.records.get("total"),
        *discarded,
        log.keys.distinct_keys,
        None if log.keys.kafka is None else log.keys.kafka.passes,
    ]


def _show_log(log: LogExplanation) -> None:
    found, outcome, kafka = log.range, log.outcome, log.keys.kafka
    bounds = ", ".join(f"{bound.name} {bound.offset:,}" for bound in found.bounds)
    span = f"{found.first_dirty_offset:,} to {found.first_uncleanable_offset:,}"
    write_line(f"{log.name}: dirty offsets {span}, bounded by {bounds}")
    if kafka is not None:
        passes = "1 pass" if kafka.passes == 1 else f"at least {kafka.passes} passes"
        write_line(
            f"{log.name}: Kafka would need {passes}: {log.keys.distinct_dirty_keys:,} dirty keys, its map "
            f"holds {kafka.map_keys:,} ({size_text(kafka.buffer_bytes)})"
        )
    going = "".join(f", {name} {size_text(size)}" for name, size in outcome.removed_bytes.items() if size)
    write_line(f"{log.name}: record bytes: kept {size_text(outcome.kept_bytes)}{going}")
    for each in outcome.tombstones_waiting:
        when = "have no delete horizon yet" if each.at_ms < 0 else f"may go from {time_text(each.at_ms)}"
        write_line(f"{log.name}: {each.tombstones:,} tombstones ({size_text(each.bytes)}) {when}")
    groups = [
        (
            f"{g.base_offset:,}",
            g.segments,
            size_text(g.bytes_before),
            size_text(g.bytes_after),
            g.records_after,
        )
        for g in outcome.groups[:GROUPS_MOST]
    ]
    more = len(outcome.groups) - len(groups)
    title = f"{log.name}: groups" + (f" ({more} more)" if more else "")
    write_table(title, ("base offset", "segments", "before", "after", "records stay"), groups)
    keys = [
        (k.key, k.key_size, k.records, k.superseded, size_text(k.superseded_bytes), k.last_offset)
        for k in log.keys.hottest_keys
    ]
    if keys:
        names = ("hottest key", "key bytes", "records", "superseded", "their bytes", "last offset")
        write_table(f"{log.name}: hottest keys", names, keys)
