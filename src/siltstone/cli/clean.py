"""``siltstone clean``: clean the compacted topics of Kafka log directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from siltstone.base.config import ConfigSource
from siltstone.base.errors import UsageError
from siltstone.cli.output import (
    FromArguments,
    Json,
    ProgressBars,
    Topics,
    first_of,
    note,
    write_json,
    write_line,
    write_table,
)
from siltstone.cli.watch import watch_logs
from siltstone.commands import clean as cleaning
from siltstone.commands.explain_page import size_text
from siltstone.compaction import report as status
from siltstone.compaction.report import REASONS, LogResult, failures

_STYLE = {
    status.CLEANED: "green",
    status.UNCLEANABLE: "red",
    status.FAILED: "red",
    status.SKIPPED: "yellow",
}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFlags(cleaning.CleanRequest):
    """The request as flags; the directories are arguments."""

    directories: FromArguments = ()
    topics: Topics = ()
    stop_after_minutes: Annotated[float | None, Parameter(name="--stop-after")] = None


def clean(
    directories: list[Path],
    /,
    *,
    flags: CleanFlags | None = None,
    watch: bool = False,
    interval: float | None = None,
    json_: Json = False,
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
    request = replace(flags or CleanFlags(), directories=directories)
    if watch:
        return watch_logs(request, interval, json=json_)
    if interval is not None:
        raise UsageError("--interval goes with --watch")
    with ProgressBars() as bars:
        done = cleaning.clean(
            request, progress=lambda log, stage, tasks, total: bars(f"{log} {stage}", tasks, total)
        )
    if json_:
        write_json(_document(request, done))
    else:
        _show(request, done)
    if done.report_error is not None:
        note(f"the report was not written: {done.report_error}; the logs are as shown on standard output")
    return 1 if failures(done.results) or done.report_error is not None else 0


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


def _records(result: LogResult) -> str:
    known = (result.records_before, result.records_after)
    return _change(*("" if count is None else f"{count:,}" for count in known))


def _discarded(reason: str) -> Callable[[LogResult], object]:
    return lambda result: result.removed.counts[reason] or None


_COLUMNS: Mapping[str, Callable[[LogResult], object]] = {
    "log": lambda result: result.where,
    "status": lambda result: Text(result.status, _STYLE.get(result.status, "dim")),
    "segments": lambda result: _change(str(result.segments_before), str(result.segments_after)),
    "bytes": lambda result: _change(size_text(result.bytes_before), size_text(result.bytes_after)),
    "records": _records,
    **{reason: _discarded(reason) for reason in REASONS},
    "seconds": lambda result: f"{result.seconds:.2f}" if result.seconds else "",
}
"""The table's columns: what each shows of a log."""


def _show(request: cleaning.CleanRequest, done: cleaning.CleanReport) -> None:
    title = "what would be cleaned (dry run: nothing was changed)" if request.dry_run else "cleaned"
    rows = [[shown(result) for shown in _COLUMNS.values()] for result in done.results]
    write_table(title, tuple(_COLUMNS), rows, left=2)
    _show_reasons(done.results)
    _show_settings(done.results)
    for each_note in done.notes:
        write_line(each_note)
    for each in done.passed_over:
        write_line(f"passed over: {each.path} ({each.reason})")
    if done.kept is not None:
        write_line(f"originals kept; to put them back: siltstone undo {done.kept}")


def _show_settings(results: Sequence[LogResult]) -> None:
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
        write_line(f"settings of {', '.join(logs)}: {text}")


def _show_reasons(results: Sequence[LogResult]) -> None:
    """Why logs were not cleaned, the same reason once."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.reason:
            by_reason.setdefault((result.status, result.reason), []).append(str(result.where))
        for each_note in result.notes:
            write_line(f"{result.where}: {each_note}")
    for (state, reason), logs in by_reason.items():
        write_line(f"{state}: {first_of(logs)}: {reason}")
