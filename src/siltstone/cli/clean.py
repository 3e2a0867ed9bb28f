"""``siltstone clean``: clean the compacted topics of Kafka log directories."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from siltstone.base.config import ConfigSource
from siltstone.base.errors import UsageError
from siltstone.cli.output import note, size_text
from siltstone.cli.watch import watch_logs
from siltstone.commands import clean as cleaning
from siltstone.compaction import report as status
from siltstone.compaction.report import LogResult, failures

_STYLE = {
    status.CLEANED: "green",
    status.UNCLEANABLE: "red",
    status.FAILED: "red",
    status.SKIPPED: "yellow",
}
_MANY = Parameter(negative=(), consume_multiple=False)
_FLAG = Parameter(negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CleanFlags:
    """The flags of ``siltstone clean``.

    Parameters
    ----------
    in_place
        Swap the cleaned segments in.
    out
        Write a cleaned copy of DIR to this new directory instead.
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
        Clean what is cleanable, whatever the dirty ratio.
    drop_keyless
        Allow that records without a key are removed.
    keep_originals
        Keep hard links of all that is replaced, below this directory; undone with: siltstone undo.
    high_watermark
        "end": logs without an entry in replication-offset-checkpoint have no other replica; clean them.
    max_extra_bytes
        Most bytes of new files at one time; default: a quarter of what is free.
    stop_after
        Start nothing new after so many minutes.
    report
        Write an audit (settings with sources, reasons, SHA-256 of every file before and after) here.
    dry_run
        Compute everything, change nothing.
    no_spark
        Clean in this process, one log after another: a start of Spark costs seconds.
    master
        The Spark master.
    spill_dir
        Where Spark puts what does not fit in memory.
    """

    in_place: Annotated[bool, _FLAG] = False
    out: Path | None = None
    topic: Annotated[tuple[str, ...], _MANY] = ()
    config: Annotated[tuple[str, ...], _MANY] = ()
    config_file: Path | None = None
    policy_from_metadata: Annotated[bool, _FLAG] = False
    broker_config: Path | None = None
    now_ms: int | None = None
    force: Annotated[bool, _FLAG] = False
    drop_keyless: Annotated[bool, _FLAG] = False
    keep_originals: Path | None = None
    high_watermark: str | None = None
    max_extra_bytes: int | None = None
    stop_after: float | None = None
    report: Path | None = None
    dry_run: Annotated[bool, _FLAG] = False
    no_spark: Annotated[bool, _FLAG] = False
    master: str = cleaning.DEFAULT_MASTER
    spill_dir: Path | None = None

    def request(self, directories: Sequence[Path]) -> cleaning.CleanRequest:
        """What is asked of the application. Raises UsageError."""
        if self.max_extra_bytes is not None and self.max_extra_bytes <= 0:
            raise UsageError(f"--max-extra-bytes {self.max_extra_bytes}: must be over 0")
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        topics, minutes = given.pop("topic"), given.pop("stop_after")
        return cleaning.CleanRequest(
            directories=directories, topics=topics, stop_after_minutes=minutes, **given
        )


def clean(
    directories: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    flags: CleanFlags | None = None,
    watch: Annotated[bool, _FLAG] = False,
    interval: float | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Clean the compacted topics of stopped Kafka log directories, as a Spark job.

    Choose --in-place (the result is swapped in, crash-safe) or --out NEW (a cleaned copy); --dry-run shows
    what would come of it and changes nothing. --watch only looks, again and again, beside a running broker or
    cleaner.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    watch
        Show how clean the logs are and what was cleaned, until Ctrl-C; locks and changes nothing.
    interval
        With --watch: seconds between two looks; default: 2.
    json_
        Print one JSON document instead of the table; with --watch, one object a line for each look.
    """
    request = (flags or CleanFlags()).request(directories)
    if watch:
        return watch_logs(request, interval, json=json_)
    if interval is not None:
        raise UsageError("--interval goes with --watch")
    with _Bars() as bars:
        done = cleaning.clean(request, progress=bars)
    if json_:
        sys.stdout.write(json.dumps(_document(request, done)) + "\n")
    else:
        _show(request, done)
    if done.report_error is not None:
        note(f"the report was not written: {done.report_error}; the logs are as shown on standard output")
    return 1 if failures(done.results) or done.report_error is not None else 0


class _Bars:
    """A progress bar a stage, on standard error; plain silence where that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, log: str, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` tasks of a stage are done."""
        key = (log, stage)
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(f"{log} {stage}", total=total)
        self._progress.update(self._tasks[key], completed=done, total=total)


def _document(request: cleaning.CleanRequest, done: cleaning.CleanReport) -> dict[str, object]:
    return {
        "run": done.run,
        "dry_run": request.dry_run,
        "engine": done.engine,
        "logs": [result.to_json() for result in done.results],
        "passed_over": [{"path": each.path, "reason": each.reason} for each in done.passed_over],
        "notes": done.notes,
        "report_error": done.report_error,
        "kept_originals": None if done.kept is None else str(done.kept),
    }


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _row(result: LogResult) -> list[str]:
    records = [
        "" if count is None else f"{count:,}" for count in (result.records_before, result.records_after)
    ]
    gone = result.removed
    counts = [f"{n:,}" if n else "" for n in (gone.superseded, gone.tombstones, gone.keyless, gone.expired)]
    return [
        str(result.where),
        f"[{_STYLE.get(result.status, 'dim')}]{result.status}[/]",
        _change(str(result.segments_before), str(result.segments_after)),
        _change(size_text(result.bytes_before), size_text(result.bytes_after)),
        _change(*records),
        *counts,
        f"{result.seconds:.2f}" if result.seconds else "",
    ]


def _show(request: cleaning.CleanRequest, done: cleaning.CleanReport) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    title = "what would be cleaned (dry run: nothing was changed)" if request.dry_run else "cleaned"
    table = Table(title=title, title_justify="left", header_style="bold")
    names = (
        "log",
        "status",
        "segments",
        "bytes",
        "records",
        "superseded",
        "tombstones",
        "keyless",
        "expired",
        "seconds",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("log", "status") else "right", overflow="fold")
    for result in done.results:
        table.add_row(*_row(result))
    console.print(table)
    _show_reasons(console, done.results)
    _show_settings(console, done.results)
    for each_note in done.notes:
        console.print(each_note, style="dim", markup=False, highlight=False, soft_wrap=True)
    for each in done.passed_over:
        console.print(f"passed over: {each.path} ({each.reason})", style="dim", markup=False, highlight=False)
    if done.kept is not None:
        console.print(
            f"originals kept; to put them back: siltstone undo {done.kept}", markup=False, highlight=False
        )


def _show_settings(console: Console, results: Sequence[LogResult]) -> None:
    """What was set, and where; the rest are Kafka's defaults."""
    by_settings: dict[str, list[str]] = {}
    for result in results:
        chosen = [
            f"{name}={','.join(s.value) if isinstance(s.value, tuple) else s.value} ({s.source})"
            for name, s in result.settings.items()
            if s.origin is not ConfigSource.DEFAULT_CONFIG
        ]
        if chosen and result.status not in (status.SKIPPED, status.NOTHING_TO_DO):
            by_settings.setdefault(", ".join(chosen), []).append(str(result.where))
    for text, logs in by_settings.items():
        console.print(
            f"settings of {', '.join(logs)}: {text}",
            style="dim",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _show_reasons(console: Console, results: Sequence[LogResult]) -> None:
    """Why logs were not cleaned, the same reason once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.reason:
            by_reason.setdefault((result.status, result.reason), []).append(str(result.where))
        for each_note in result.notes:
            console.print(f"{result.where}: {each_note}", markup=False, highlight=False)
    for (state, reason), logs in by_reason.items():
        shown = ", ".join(logs[:4]) + (f" and {len(logs) - 4} more" if len(logs) > 4 else "")
        console.print(f"{state}: {shown}: {reason}", markup=False, highlight=False, soft_wrap=True)
