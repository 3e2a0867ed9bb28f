"""``siltstone clean --watch``: a table of the logs again and again, or a JSON object a line, until Ctrl-C."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from siltstone.base import interruption
from siltstone.base.clock import Clock, ManualClock, SystemClock, duration_text, resolve_now_ms, time_text
from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands.clean import CleanRequest
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.policies import LogOptions
from siltstone.commands.watch import STATES, Watch, WatchedLog, WatchSnapshot
from siltstone.compaction.report import Cleaning

DEFAULT_INTERVAL = 2.0
INTERVAL_MAX = 86_400.0
_ROWS_MAX = 40
"""The most rows of a page (``render``) where standard output is no terminal."""
_REASONS_MAX = 8
"""Lines of reasons and notes below the table."""
_WATCH_OPTIONS = {"directories", *(option.name for option in fields(LogOptions))}
"""The fields of a request that choose logs and settings; the others say how to clean."""
_STYLE = {"uncleanable": "red", "unreadable": "red", "due": "yellow", "cleaning": "green", "changing": "dim"}
_COLUMNS = "log,state,policy,clean,dirty,ratio,overdue,last cleaning".split(",")


def watch_logs(request: CleanRequest, interval: float | None, *, json: bool) -> int:
    """Show the logs every ``interval`` seconds until an interrupt; returns the exit status for that.

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
    """Raises UsageError for a flag that says how to clean."""
    for option in fields(request):
        if option.name not in _WATCH_OPTIONS and getattr(request, option.name) != option.default:
            flag = option.name.replace("_", "-")
            reason = f"--watch changes nothing, so --{flag} has no effect"
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
                live.update(render(snapshot, with_skipped, console.height), refresh=True)
    else:
        for snapshot in snapshots:
            output.write_rendered(render(snapshot, with_skipped, wraps=True), output.WIDEST)
            sys.stdout.flush()


def render(
    snapshot: WatchSnapshot, with_skipped: bool = False, rows_max: int = _ROWS_MAX, *, wraps: bool = False
) -> RenderableType:
    """A table, the most urgent logs first; below it reasons, notes and the total: ``rows_max`` rows in all.

    ``with_skipped``: skipped logs have rows, too. ``wraps``: long reasons and notes take several lines;
    otherwise, as on a screen, they are cut.
    """
    directories = ", ".join(
        f"{path} (in use)" if is_in_use else path for path, is_in_use in snapshot.directories.items()
    )
    title = f"{time_text(snapshot.at_ms)}  {directories}"
    if snapshot.error is not None:
        return Text(f"{title.strip()}: {snapshot.error}", style="red")
    logs = sorted((log for log in snapshot.logs if with_skipped or log.state != "skipped"), key=_urgency)
    lines = [*output.reason_lines(_reasons(snapshot)), *snapshot.notes]
    if len(lines) > _REASONS_MAX:
        lines = [*lines[:_REASONS_MAX], f"and {len(lines) - _REASONS_MAX} other reasons; --json has all"]
    logs_max = max(rows_max - len(lines) - 4, 1)  # 4 rows: the title, the headings, the total, the cursor
    if len(logs) > logs_max:
        lines.insert(0, f"and {len(logs) - logs_max + 1} other logs; --topic chooses, --json has all")
        logs = logs[: logs_max - 1]
    text_columns = (0, 1, 2, len(_COLUMNS) - 1)
    table = output.new_table(title, _COLUMNS, (_cells(log, snapshot.at_ms) for log in logs), text_columns)
    if wraps:
        lines = [part for line in lines for part in output.wrapped(line)]
    notes = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
    return Group(table, *notes, Text(_total(snapshot), style="bold"))


def _urgency(log: WatchedLog) -> tuple[int, float, object]:
    """A sort key: the most urgent state first, then the highest dirty ratio."""
    ratio = 0.0 if log.snapshot is None else log.snapshot.range.dirty_ratio
    return STATES.index(log.state), -ratio, log.topic_partition


def _cells(log: WatchedLog, now_ms: int) -> list[object]:
    state = Text(log.state.replace("_", " "), _STYLE.get(log.state, ""))
    head = [log.topic_partition, state, log.policy_text or None]
    if log.snapshot is None:
        return [*head, None, None, None, None, _last_cleaning_text(log, now_ms)]
    cleanable = log.snapshot.range
    minimum = "" if log.min_ratio is None else f" / {log.min_ratio.value}"
    return [
        *head,
        size_text(cleanable.clean_bytes),
        size_text(cleanable.cleanable_bytes),
        f"{cleanable.dirty_ratio:.3f}{minimum}",
        duration_text(cleanable.overdue_ms / 1000) if cleanable.is_overdue else None,
        _last_cleaning_text(log, now_ms),
    ]


def _last_cleaning_text(log: WatchedLog, now_ms: int) -> str:
    """``3 min ago 1.2 GB → 300.0 MB``, and the status of a later cleaning that failed."""
    texts = []
    if log.last_cleaning is not None:
        result = log.last_cleaning.result
        sizes = f"{size_text(result.bytes_before)} → {size_text(result.bytes_after)}"
        texts.append(f"{_ago(log.last_cleaning, now_ms)} {sizes}")
    if log.last_failure is not None:
        texts.append(f"{_ago(log.last_failure, now_ms)} {log.last_failure.result.status}")
    return "; ".join(texts)


def _ago(cleaning: Cleaning, now_ms: int) -> str:
    return f"{duration_text(max(now_ms - cleaning.began_ms, 0) / 1000)} ago"


def _reasons(snapshot: WatchSnapshot) -> Iterator[tuple[tuple[str, str], object]]:
    for log in snapshot.logs:
        if log.reason:
            yield (log.state, log.reason), log.topic_partition
        if log.last_failure is not None and log.last_failure.result.reason not in ("", log.reason):
            yield ("last failure", log.last_failure.result.reason), log.topic_partition


def _total(snapshot: WatchSnapshot) -> str:
    total = snapshot.total()
    states = ", ".join(f"{count} {state}" for state, count in total.states.items())
    overdue = f"; most overdue {duration_text(total.overdue_ms / 1000)}" if total.overdue_ms else ""
    logs = counted(total.logs, "log")
    return (
        f"total: {logs} ({states or 'none'}): {size_text(total.clean_bytes)} clean, "
        f"{size_text(total.dirty_bytes)} dirty, ratio {total.dirty_ratio:.3f}{overdue}"
    )
