"""``siltstone clean --watch``: a table of the logs again and again, or a JSON object a line, until Ctrl-C."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from siltstone.base import interruption
from siltstone.base.clock import Clock, ManualClock, SystemClock, resolve_now_ms, time_text
from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands.clean import CleanRequest
from siltstone.commands.explain_page import size_text
from siltstone.commands.policies import LogOptions
from siltstone.commands.watch import STATES, Watch, WatchedLog, WatchSnapshot
from siltstone.compaction.report import Cleaning

DEFAULT_INTERVAL = 2.0
INTERVAL_MAX = 86_400.0
_WIDTH = 170
_WATCH_OPTIONS = {"directories", *(option.name for option in fields(LogOptions))}
"""The fields of a request that choose logs and settings; the others say how to clean."""
_FLAG_NAMES = {"stop_after_minutes": "stop_after"}
_STYLE = {"uncleanable": "red", "unreadable": "red", "due": "yellow", "cleaning": "green", "changing": "dim"}
_COLUMNS = "log,state,policy,clean,dirty,ratio,checkpoint,uncleanable,overdue,last cleaning".split(",")


def watch_logs(request: CleanRequest, interval: float | None, *, json: bool) -> int:
    """Show the logs every ``interval`` seconds until an interrupt; its exit status.

    Raises UsageError, SiltstoneError, OSError.
    """
    seconds = DEFAULT_INTERVAL if interval is None else interval
    is_valid = math.isfinite(seconds) and 0 < seconds <= INTERVAL_MAX
    advice = f"pass seconds, over 0 and up to {INTERVAL_MAX:.0f}"
    output.refuse_if(not is_valid, f"--interval {seconds:g}: is out of range", advice)
    _refuse_cleaning(request)
    clock: Clock = SystemClock()
    if request.now_ms is not None:
        clock = ManualClock(resolve_now_ms(request.now_ms, clock))
    try:
        watch = Watch(request.directories, request, clock)
        _show_all(_snapshots(watch, seconds), bool(request.topics), json=json)
    except KeyboardInterrupt:
        return interruption.current().status
    return 0


def _refuse_cleaning(request: CleanRequest) -> None:
    for option in fields(request):
        if option.name not in _WATCH_OPTIONS and getattr(request, option.name) != option.default:
            flag = _FLAG_NAMES.get(option.name, option.name).replace("_", "-")
            reason = f"--watch changes nothing, so it does not go with --{flag}"
            advice = "clean without --watch, and watch from another terminal"
            raise UsageError(reason, advice=advice)


def _snapshots(watch: Watch, seconds: float) -> Iterator[WatchSnapshot]:
    while True:
        yield watch.snapshot()
        pause(seconds)


def pause(seconds: float) -> None:
    """Wait before the logs are read again."""
    time.sleep(seconds)


def _show_all(snapshots: Iterable[WatchSnapshot], with_skipped: bool, *, json: bool) -> None:
    console = Console()
    if json:
        for snapshot in snapshots:
            output.write_json(snapshot.to_json(), flush=True)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for snapshot in snapshots:
                live.update(render(snapshot, with_skipped), refresh=True)
    else:
        console = Console(width=_WIDTH)
        for snapshot in snapshots:
            console.print(render(snapshot, with_skipped))
            console.file.flush()


def render(snapshot: WatchSnapshot, with_skipped: bool = False) -> RenderableType:
    """A table, the most urgent logs first; below it reasons, notes and the total.

    ``with_skipped``: skipped logs have rows, too.
    """
    places = ", ".join(f"{path} (in use)" if used else path for path, used in snapshot.directories.items())
    title = f"{time_text(snapshot.at_ms)}  {places}"
    if snapshot.error is not None:
        return Text(f"{title.strip()}: {snapshot.error}", style="red")
    rows = [log for log in snapshot.logs if with_skipped or log.state != "skipped"]
    table = output.new_table(
        title, _COLUMNS, map(_cells, sorted(rows, key=_urgency)), (0, 1, 2, len(_COLUMNS) - 1)
    )
    lines = [Text(line, style="dim") for line in (*output.reason_lines(_reasons(snapshot)), *snapshot.notes)]
    return Group(table, *lines, Text(_total(snapshot), style="bold"))


def _urgency(log: WatchedLog) -> tuple[int, float, object]:
    ratio = 0.0 if log.snapshot is None else log.snapshot.range.dirty_ratio
    return STATES.index(log.state), -ratio, log.topic_partition


def _cells(log: WatchedLog) -> list[object]:
    policy = log.policy and f"{log.policy_text} ({log.policy.source})"
    head = [log.topic_partition, Text(log.state, _STYLE.get(log.state, "")), policy]
    if log.snapshot is None:
        return [*head, None, None, None, log.checkpoint, None, None, _last(log)]
    bounds = log.snapshot.range
    minimum = "" if log.min_ratio is None else f" / {log.min_ratio.value}"
    return [
        *head,
        size_text(bounds.clean_bytes),
        size_text(bounds.cleanable_bytes),
        f"{bounds.dirty_ratio:.3f}{minimum}",
        log.checkpoint,
        bounds.end,
        f"{bounds.overdue_ms / 1000:,.0f} s" if bounds.is_overdue else None,
        _last(log),
    ]


def _last(log: WatchedLog) -> str:
    text = "" if log.last_cleaning is None else _cleaning(log.last_cleaning)
    if log.last_failure is not None:
        failed = log.last_failure
        text += f"{'; ' if text else ''}{time_text(failed.began_ms)} {failed.result.status}"
    return text


def _cleaning(cleaning: Cleaning) -> str:
    result = cleaning.result
    discarded = ", ".join(f"{count:,} {name}" for name, count in result.discarded.counts.items() if count)
    return (
        f"{time_text(cleaning.began_ms)} {size_text(result.bytes_before)} → {size_text(result.bytes_after)} "
        f"({cleaning.recopy_percent:.1f} %) in {result.seconds:.1f} s: {discarded or 'nothing'} removed"
    )


def _reasons(snapshot: WatchSnapshot) -> Iterator[tuple[tuple[str, str], object]]:
    for log in snapshot.logs:
        if log.reason:
            yield (log.state, log.reason), log.topic_partition
        if log.last_failure is not None and log.last_failure.result.reason not in ("", log.reason):
            yield ("last failure", log.last_failure.result.reason), log.topic_partition


def _total(snapshot: WatchSnapshot) -> str:
    total = snapshot.total()
    states = ", ".join(f"{count} {state}" for state, count in total.states.items())
    late = f"; most overdue {total.overdue_ms / 1000:,.0f} s" if total.overdue_ms else ""
    return (
        f"total: {total.logs} logs ({states or 'none'}): {size_text(total.clean_bytes)} clean, "
        f"{size_text(total.dirty_bytes)} dirty, ratio {total.dirty_ratio:.3f}{late}"
    )
