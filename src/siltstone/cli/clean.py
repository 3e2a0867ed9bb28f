"""``siltstone clean`` cleans the compacted topics of Kafka log directories; ``siltstone undo`` puts back what
``clean --keep-originals`` kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base.config import ConfigSource
from siltstone.cli import output
from siltstone.cli.watch import watch_logs
from siltstone.commands import clean as cleaning
from siltstone.commands.explain_page import size_text
from siltstone.compaction.report import NOTHING_TO_DO, REASONS, SKIPPED, LogResult, failures


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFlags(cleaning.CleanRequest):
    """The request as flags; the directories are arguments."""

    directories: output.FromArguments = ()
    topics: output.Topics = ()
    stop_after_minutes: Annotated[float | None, Parameter(name="--stop-after")] = None


def clean(
    directories: list[Path],
    /,
    *,
    flags: CleanFlags = CleanFlags(),
    watch: bool = False,
    interval: float | None = None,
    json_: output.Json = False,
) -> int:
    """Clean the compacted topics of stopped Kafka log directories, as a Spark job.

    Choose --in-place (the result is swapped in, crash-safe) or --out NEW (a cleaned copy); --dry-run shows
    the result and changes nothing. --watch only shows the state of the logs, repeatedly, also beside a
    running broker or cleaner.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    watch
        Show how clean the logs are and what was cleaned, until Ctrl-C; locks and changes nothing.
    interval
        With --watch: seconds between two snapshots; default: 2.
    json_
        Print one JSON document instead of the table; with --watch, one object a line for each snapshot.
    """
    request = replace(flags, directories=directories)
    if watch:
        return watch_logs(request, interval, json=json_)
    output.refuse_if(interval is not None, "--interval goes with --watch", "pass --watch, or no --interval")
    with output.progress_bars() as show:
        done = cleaning.clean(request, progress=lambda log, stage, *counts: show(f"{log} {stage}", *counts))
    if json_:
        output.write_json(_document(request, done))
    else:
        _show(request, done)
    if done.report_error is not None:
        output.note(f"the audit was not written: {done.report_error}; standard output has the results")
    return 1 if failures(done.results) or done.report_error is not None else 0


def _document(request: cleaning.CleanRequest, done: cleaning.CleanOutcome) -> dict[str, object]:
    return {
        "run": done.run,
        "dry_run": request.dry_run,
        "engine": done.engine,
        "logs": [result.to_json() for result in done.results],
        "passed_over": done.passed_over,
        "notes": done.notes,
        "report_error": done.report_error,
        "kept_originals": done.kept,
    }


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _discarded(reason: str, result: LogResult) -> int | None:
    return result.discarded.counts[reason] or None


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


_COLUMNS: dict[str, Callable[[LogResult], object]] = {
    "log": lambda log: log.topic_partition,
    "status": lambda log: output.status_text(log.status),
    "segments": lambda log: _change(str(log.segments_before), str(log.segments_after)),
    "bytes": lambda log: _change(size_text(log.bytes_before), size_text(log.bytes_after)),
    "records": lambda log: _change(_count(log.records_before), _count(log.records_after)),
    **{reason: partial(_discarded, reason) for reason in REASONS},
    "seconds": lambda log: f"{log.seconds:.2f}" if log.seconds else None,
}
"""The columns of the table, from left to right: a heading, and what a log's cell shows."""


def _show(request: cleaning.CleanRequest, done: cleaning.CleanOutcome) -> None:
    title = "what would be cleaned (dry run: nothing was changed)" if request.dry_run else "cleaned"
    rows = ([cell(result) for cell in _COLUMNS.values()] for result in done.results)
    output.write_table(title, list(_COLUMNS), rows, left=2)
    output.write_lines(
        *(f"{result.topic_partition}: {text}" for result in done.results for text in result.notes)
    )
    reasons = (
        ((result.status, result.reason), result.topic_partition) for result in done.results if result.reason
    )
    output.write_lines(*output.reason_lines(reasons))
    settings = output.grouped(_settings(done.results))
    output.write_lines(*(f"settings of {', '.join(logs)}: {text}" for text, logs in settings.items()))
    output.write_lines(*done.notes)
    output.write_lines(*(f"passed over: {item.path} ({item.reason})" for item in done.passed_over))
    if done.kept is not None:
        output.write_lines(f"originals kept; to put them back: siltstone undo {done.kept}")


def _settings(results: Sequence[LogResult]) -> Iterator[tuple[str, object]]:
    """The settings, with their sources, that are not defaults, for each log that was to be cleaned."""
    for result in results:
        chosen = ", ".join(
            f"{name}={','.join(s.value) if isinstance(s.value, tuple) else s.value} ({s.source})"
            for name, s in result.settings.items()
            if s.origin is not ConfigSource.DEFAULT_CONFIG
        )
        if chosen and result.status not in (SKIPPED, NOTHING_TO_DO):
            yield chosen, result.topic_partition


def undo(
    run: Path,
    /,
    *,
    topics: output.Topics = (),
    dry_run: bool = False,
    json_: output.Json = False,
) -> int:
    """Put back the segments that a run of clean --keep-originals replaced, and the cleaner checkpoint.

    Refused once a log was appended to, rolled or cleaned since; a later run in the way is named.

    Parameters
    ----------
    run
        The run's folder, KEEP/RUN, as clean printed it.
    topics
        Only this topic; repeat it for more.
    dry_run
        Check everything, show what would be put back, change nothing.
    json_
        Print one JSON document.
    """
    restored = cleaning.undo(run, topics, dry_run=dry_run)
    if json_:
        logs = [{"directory": path, "restored": names} for path, names in restored.items()]
        output.write_json({"dry_run": dry_run, "logs": logs})
    else:
        verb = "would be restored" if dry_run else "restored"
        for path, names in restored.items():
            done = f"{len(names)} segments {verb}" if names else "nothing to undo"
            output.write_lines(f"{path}: {done}")
    return 0
