"""``siltstone explain``: what a cleaning would do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.cli.output import note, size_text, write_json, write_line, write_table
from siltstone.commands import review
from siltstone.commands.explain_page import page, time_text
from siltstone.compaction.explain.explaining import TOP
from siltstone.compaction.explain.model import Explanation, LogExplanation
from siltstone.compaction.report import FAILED, UNCLEANABLE

_MANY = Parameter(negative=(), consume_multiple=False)
_FLAG = Parameter(negative=())
GROUPS_MOST = 12
"""Groups of a log in the tables for people; the page and the JSON have them all."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    """The flags of ``siltstone explain``.

    Parameters
    ----------
    topic
        Only this topic; may be given several times.
    config
        A topic setting, key=value; may be given several times; needs --topic.
    config_file
        A file of lines topic:key=value.
    policy_from_metadata
        The topics' own settings, from the broker's __cluster_metadata-0 (KRaft) or Siltstone's list.
    broker_config
        The broker's server.properties, for what neither a topic nor a broker's dynamic setting says.
    now_ms
        The clock for lags, horizons and producer expiry, in ms; default: the wall clock.
    force
        Say what clean --force would do.
    drop_keyless
        Say what clean --drop-keyless would do.
    high_watermark
        "end": logs without an entry in replication-offset-checkpoint have no other replica.
    show_keys
        Show the hottest keys; they are masked otherwise.
    top
        So many of the hottest keys of each log.
    no_spark
        Look in this process.
    master
        The Spark master, or a Spark Connect server, sc://HOST:PORT.
    spill_dir
        Where Spark puts what does not fit in memory.
    """

    topic: Annotated[tuple[str, ...], _MANY] = ()
    config: Annotated[tuple[str, ...], _MANY] = ()
    config_file: Path | None = None
    policy_from_metadata: Annotated[bool, _FLAG] = False
    broker_config: Path | None = None
    now_ms: int | None = None
    force: Annotated[bool, _FLAG] = False
    drop_keyless: Annotated[bool, _FLAG] = False
    high_watermark: str | None = None
    show_keys: Annotated[bool, _FLAG] = False
    top: int = TOP
    no_spark: Annotated[bool, _FLAG] = False
    master: str = review.DEFAULT_MASTER
    spill_dir: Path | None = None


def explain(
    directories: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    flags: ExplainFlags | None = None,
    html: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
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
    flags = flags or ExplainFlags()
    given = {each.name: getattr(flags, each.name) for each in fields(flags)}
    topics = given.pop("topic")
    found = review.explain(review.ExplainRequest(directories=directories, topics=topics, **given))
    if html is not None:
        files.write_new(html, page(found).encode())
    if json_:
        write_json(found.to_json())
    else:
        _show(found)
    return 1 if any(log.status in (FAILED, UNCLEANABLE) for log in found.logs) else 0


def _show(found: Explanation) -> None:
    names = ("log", "state", "dirty", "before", "after", "records", "superseded", "tombstones", "aborted")
    columns = (*names, "keyless", "markers", "keys", "passes")
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
    gone = [
        log.removed.get(name) or None
        for name in ("superseded", "tombstones", "aborted", "keyless", "markers")
    ]
    return [
        log.name,
        log.status,
        None if log.dirty_ratio is None else f"{log.dirty_ratio:.3f}",
        size_text(log.bytes_before),
        None if log.bytes_after is None else size_text(log.bytes_after),
        log.records.get("total"),
        *gone,
        log.distinct_keys,
        None if log.kafka is None else log.kafka.passes,
    ]


def _show_log(log: LogExplanation) -> None:
    bounds = ", ".join(f"{bound.name} {bound.offset:,}" for bound in log.bounds)
    span = f"{log.first_dirty_offset:,} to {log.first_uncleanable_offset:,}"
    write_line(f"{log.name}: dirty offsets {span}, bounded by {bounds}")
    if log.kafka is not None:
        passes = "1 pass" if log.kafka.passes == 1 else f"at least {log.kafka.passes} passes"
        write_line(
            f"{log.name}: Kafka would need {passes}: {log.distinct_dirty_keys:,} dirty keys, its map holds "
            f"{log.kafka.map_keys:,} ({size_text(log.kafka.buffer_bytes)})"
        )
    going = ", ".join(f"{name} {size_text(size)}" for name, size in log.removed_bytes.items() if size)
    write_line(f"{log.name}: record bytes: kept {size_text(log.kept_bytes)}{', ' if going else ''}{going}")
    for each in log.tombstones_waiting:
        when = "have no delete horizon yet" if each.at_ms < 0 else f"may go from {time_text(each.at_ms)} UTC"
        write_line(f"{log.name}: {each.tombstones:,} tombstones ({size_text(each.bytes)}) {when}")
    groups = [
        (
            f"{g.base_offset:,}",
            g.segments,
            size_text(g.bytes_before),
            size_text(g.bytes_after),
            g.records_after,
        )
        for g in log.groups[:GROUPS_MOST]
    ]
    more = len(log.groups) - len(groups)
    title = f"{log.name}: groups" + (f" ({more} more)" if more else "")
    write_table(title, ("base offset", "segments", "before", "after", "records stay"), groups)
    keys = [
        (k.key, k.key_size, k.records, k.superseded, size_text(k.superseded_bytes), k.last_offset)
        for k in log.hottest_keys
    ]
    if keys:
        names = ("hottest key", "key bytes", "records", "superseded", "their bytes", "last offset")
        write_table(f"{log.name}: hottest keys", names, keys)
