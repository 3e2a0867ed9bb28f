"""``siltstone clean`` cleans the compacted topics of Kafka log directories; ``siltstone undo`` restores what
``clean --keep-originals`` kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cyclopts import Parameter

from siltstone.base.config import ConfigSource
from siltstone.base.errors import UsageError, shown_path
from siltstone.cli import fleet as fleets
from siltstone.cli import output
from siltstone.cli.watch import watch_logs
from siltstone.commands import clean as cleaning
from siltstone.commands.engines import log_bytes
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.fleet import FleetOptions
from siltstone.compaction.inplace.expiry import would_change
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, REASONS, SKIPPED, LogResult, failures


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFlags(cleaning.CleanRequest):
    """The request as flags; the directories are arguments."""

    directories: output.FromArguments = ()
    topics: output.Topics = ()


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags(FleetOptions):
    """The options of a fleet as flags."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """The flags that say what is printed.

    Parameters
    ----------
    verbose
        Show skipped logs, segments, seconds, ignored files and the settings of each log, too; with --fleet,
        the logs of each broker.
    quiet
        Show only what failed.
    json
        Print one JSON document instead of the table; one object a line for each snapshot with --watch, for
        each broker with --fleet.
    """

    verbose: output.Verbose = False
    quiet: output.Quiet = False
    json: output.Json = False


def clean(
    directories: output.Directories = (),
    /,
    *,
    dir_: output.DirFlag = (),
    stores: output.StoreFlags = output.StoreFlags(),
    flags: CleanFlags = CleanFlags(),
    fleet: FleetFlags = FleetFlags(),
    output_flags: OutputFlags = OutputFlags(),
    all_topics: bool = False,
    watch: bool = False,
    interval: float | None = None,
) -> int:
    """Clean the compacted topics of stopped Kafka log directories.

    Choose --in-place (the result is swapped in, crash-safe), --out NEW (a cleaned copy) or --dry-run, which
    changes nothing. --watch only shows the state of the logs, also beside a running broker or cleaner.
    --fleet cleans many brokers, each with its own locks and settings, and shows a row for each.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    dir_
        The same as DIRECTORIES; repeat it for more.
    all_topics
        With --in-place: clean all compacted topics without asking.
    watch
        Show how clean the logs are and what was cleaned, until Ctrl-C; locks and changes nothing.
    interval
        With --watch: seconds between two snapshots; default: 2.
    """
    output.refuse_if(fleet.fleet and stores.remote, "--fleet does not go with --remote", "clean one broker")
    if fleet.fleet:
        watches = watch or interval is not None
        _refuse_with_fleet(bool(directories or dir_), flags, all_topics=all_topics, watch=watches)
        return _clean_fleet(flags, fleet, output_flags)
    advice = "pass --fleet, or leave it out"
    output.refuse_if(fleet.brokers_at_once is not None, "--brokers-at-once is only for --fleet", advice)
    request = replace(flags, directories=output.named_directories(directories, dir_, stores.remote))
    if watch:
        return watch_logs(request, interval, json=output_flags.json)
    output.refuse_if(interval is not None, "--interval is only for --watch", "pass --watch, or no --interval")
    began = time.monotonic()
    outcome = _clean(request, all_topics=all_topics, quiet=output_flags.quiet or output_flags.json)
    return 1 if outcome is None else _write(request, outcome, time.monotonic() - began, output_flags)


def _write(
    request: cleaning.CleanRequest, outcome: cleaning.CleanOutcome, seconds: float, flags: OutputFlags
) -> int:
    """Print what was done; returns the exit status."""
    if flags.json:
        output.write_json(_document(request, outcome))
    else:
        _show(request, outcome, seconds, verbose=flags.verbose, quiet=flags.quiet)
    return _exit_status(outcome)


def _clean_fleet(request: CleanFlags, options: FleetFlags, flags: OutputFlags) -> int:
    """Clean the brokers of a fleet; the exit status."""
    return fleets.clean_fleet(
        request,
        options,
        show_broker=partial(_show_broker, request) if flags.verbose else None,
        document=partial(_document, request) if flags.json else None,
        quiet=flags.quiet,
    )


def _refuse_with_fleet(has_directories: bool, request: CleanFlags, *, all_topics: bool, watch: bool) -> None:
    """Raises UsageError for what does not go with --fleet."""
    output.refuse_if(
        has_directories,
        "--fleet is passed, and log directories",
        "put its pattern in quotes, so that the shell does not expand it",
    )
    output.refuse_if(watch, "--fleet does not go with --watch", "watch the log directories of one broker")
    output.refuse_if(
        request.changes_every_topic and not all_topics,
        "--in-place would clean all compacted topics of all brokers",
        "pass --topic TOPIC for some of them, or --all-topics; --dry-run shows what would be cleaned",
    )


def _show_broker(request: cleaning.CleanRequest, outcome: cleaning.CleanOutcome, seconds: float) -> None:
    """Show the logs of one broker of a fleet."""
    _show(request, outcome, seconds, verbose=True, quiet=False)


def _clean(request: cleaning.CleanRequest, *, all_topics: bool, quiet: bool) -> cleaning.CleanOutcome | None:
    """Clean, after a question if no flag says that all topics are meant; None if the answer was not yes."""
    asks = request.changes_every_topic and not all_topics
    confirm = partial(_confirm, rolls=request.roll) if asks else None
    try:
        with output.RunProgress(quiet=quiet) as progress:
            return cleaning.clean(request, progress=progress, confirm=confirm)
    except _DeclinedError:
        output.note("nothing was changed")
        return None


def _exit_status(outcome: cleaning.CleanOutcome) -> int:
    """1 if a log failed or the audit could not be written, which a note on standard error says; else 0."""
    if outcome.report_error is not None:
        output.note(f"the audit was not written: {outcome.report_error}; standard output has the results")
    return 1 if failures(outcome.results) or outcome.report_error is not None else 0


class _DeclinedError(Exception):
    """The question whether to clean was not answered with yes."""


def _confirm(states: Sequence[LogState], options: PlanOptions, *, rolls: bool) -> None:
    """Ask on a terminal whether all compacted logs are to be cleaned in place; do not ask if only partition
    directories were named, or if no log would change. ``rolls``: the active segments of all logs are rolled
    first, so all logs change. Raises _DeclinedError for no. Without a terminal raises UsageError, even if no
    log would change."""
    selected = [state for state in states if state.may_be_cleaned]
    if not selected or all(state.directory.is_partition_subset for state in selected):
        return
    output.refuse_if(
        not (sys.stdin.isatty() and sys.stderr.isatty()),
        f"--in-place would clean all compacted topics: {_logs_text(selected)}",
        "pass --topic TOPIC for some of them, or --all-topics; --dry-run shows what would be cleaned",
    )
    changed = selected if rolls else [state for state in selected if would_change(state, options)]
    if not changed:
        return
    for topic in sorted({state.topic_partition.topic for state in changed}):
        of_topic = [state for state in changed if state.topic_partition.topic == topic]
        output.note(f"{topic}: {counted(len(of_topic), 'log')}, {size_text(log_bytes(of_topic))}")
    others = len(selected) - len(changed)
    unchanged = f" ({others:,} of {len(selected):,} compacted logs need no cleaning)" if others else ""
    sys.stderr.write(f"siltstone: clean {_logs_text(changed)} in place{unchanged}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise _DeclinedError


def _logs_text(states: Sequence[LogState]) -> str:
    """Logs as ``4 logs of 2 topics, 1.2 MB``."""
    topics = {state.topic_partition.topic for state in states}
    logs, size = counted(len(states), "log"), size_text(log_bytes(states))
    return f"{logs} of {counted(len(topics), 'topic')}, {size}"


def _document(request: cleaning.CleanRequest, outcome: cleaning.CleanOutcome) -> dict[str, object]:
    return {
        "run": outcome.run,
        "dry_run": request.dry_run,
        "engine": outcome.engine,
        "logs": [result.to_json() for result in outcome.results],
        "passed_over": outcome.passed_over,
        "notes": outcome.notes,
        "report_error": outcome.report_error,
        "kept_originals": outcome.kept,
        "out": None if outcome.out is None else shown_path(outcome.out),
    }


def _discarded(reason: str, result: LogResult) -> int | None:
    """How many records of a log were discarded for a reason; None, an empty cell, for 0."""
    return result.discarded.counts[reason] or None


_COLUMNS: dict[str, Callable[[LogResult], object]] = {
    "log": lambda log: log.topic_partition,
    "status": lambda log: output.status_text(log.status),
    "segments": lambda log: output.change_text(log.segments_before, log.segments_after),
    "bytes": lambda log: output.change_text(log.bytes_before, log.bytes_after, size_text),
    "records": lambda log: output.change_text(log.records_before, log.records_after),
    **{reason: partial(_discarded, reason) for reason in REASONS},
    "seconds": lambda log: f"{log.seconds:.2f}" if log.seconds else None,
}
"""The columns of the table, from left to right: a heading, and what a log's cell shows."""
_VERBOSE_COLUMNS = ("segments", "seconds")
"""Columns that only ``--verbose`` shows."""


def _columns(*, dry_run: bool, verbose: bool) -> dict[str, Callable[[LogResult], object]]:
    """The columns; a dry run says what it would do."""
    columns = {name: cell for name, cell in _COLUMNS.items() if verbose or name not in _VERBOSE_COLUMNS}
    if dry_run:
        would = {CLEANED: "would_clean"}
        columns["status"] = lambda log: output.status_text(would.get(log.status, log.status))
    return columns


def _show(
    request: cleaning.CleanRequest,
    outcome: cleaning.CleanOutcome,
    seconds: float,
    *,
    verbose: bool,
    quiet: bool,
) -> None:
    if quiet:
        output.note(*output.reason_lines(_reasons(failures(outcome.results))))
        return
    shown = [
        result
        for result in outcome.results
        if verbose or result.status != SKIPPED or len(outcome.results) == 1
    ]
    if shown:
        title = "what would be cleaned (dry run: nothing was changed)" if request.dry_run else ""
        columns = _columns(dry_run=request.dry_run, verbose=verbose)
        rows = (
            [cell(result) for cell in columns.values()]
            for result in sorted(shown, key=lambda log: (log.topic, log.partition))
        )
        output.write_table(title, list(columns), rows, left=2)
    output.write_wrapped(
        *(f"{result.topic_partition}: {text}" for result in shown for text in result.notes),
        *output.reason_lines(_reasons(outcome.results)),
    )
    if verbose:
        settings = output.grouped(_settings(outcome.results))
        output.write_wrapped(*(f"settings of {', '.join(logs)}: {text}" for text, logs in settings.items()))
        output.write_lines(*(f"passed over: {item.path} ({item.reason})" for item in outcome.passed_over))
    if outcome.kept is not None:
        output.write_lines(f"originals kept; to restore them: siltstone undo {outcome.kept}")
    output.write_lines(f"{_summary(request, outcome)}, {seconds:.1f} s{_copy_text(outcome)}")
    output.note(*outcome.notes)


def _copy_text(outcome: cleaning.CleanOutcome) -> str:
    """Where the copy is, and whether a log of it was cleaned; empty without a copy."""
    if outcome.out is None:
        return ""
    is_cleaned = any(result.status == CLEANED for result in outcome.results)
    what = "cleaned copy" if is_cleaned else "copy, with all logs as they were,"
    return f"; the {what} is {shown_path(outcome.out)}"


def _reasons(results: Iterable[LogResult]) -> Iterator[tuple[tuple[str, str], object]]:
    """((status, reason), log) of each result with a reason, for ``output.reason_lines``."""
    for result in results:
        if result.reason:
            yield (result.status, result.reason), result.topic_partition


def _summary(request: cleaning.CleanRequest, outcome: cleaning.CleanOutcome) -> str:
    """``12 of 14 logs cleaned: 480 kB → 210 kB, 3,400 records removed; in-process``."""
    cleaned = [result for result in outcome.results if result.status == CLEANED]
    verb = "would be cleaned" if request.dry_run else "cleaned"
    of_all = f"of {counted(len(outcome.results), 'log')} {verb}"
    engine = "" if outcome.engine is None else f"; {outcome.engine}"
    if not cleaned:
        return f"none {of_all}{engine}"
    before, after = (sum(getattr(log, name) for log in cleaned) for name in ("bytes_before", "bytes_after"))
    removed = sum(sum(log.discarded.counts.values()) for log in cleaned)
    sizes = f"{size_text(before)} → {size_text(after)}"
    return f"{len(cleaned):,} {of_all}: {sizes}, {counted(removed, 'record')} removed{engine}"


def _settings(results: Sequence[LogResult]) -> Iterator[tuple[str, object]]:
    """((its settings that are not defaults, with their sources), log) of each log that was to be cleaned, for
    ``output.grouped``."""
    for result in results:
        chosen = ", ".join(
            f"{name}={','.join(setting.value) if isinstance(setting.value, tuple) else setting.value} "
            f"({setting.source})"
            for name, setting in result.settings.items()
            if setting.config_source is not ConfigSource.DEFAULT_CONFIG
        )
        if chosen and result.status not in (SKIPPED, NOTHING_TO_DO):
            yield chosen, result.topic_partition


def undo(
    run: Path | None = None,
    /,
    *,
    fleet: Sequence[str] = (),
    topics: output.Topics = (),
    dry_run: bool = False,
    json_: output.Json = False,
) -> int:
    """Restore the segments that a run of clean --keep-originals replaced, and the cleaner checkpoint.

    A log that was appended to, rolled or cleaned since the run is refused; the error names a later
    run, which has to be undone first.

    Parameters
    ----------
    run
        The run's folder, KEEP/RUN, as clean printed it.
    fleet
        A pattern, in quotes, of the runs' folders of many brokers: 'KEEP/*/RUN'; repeat it for more.
    topics
        Only this topic; repeat it for more.
    dry_run
        Check everything, show what would be restored, change nothing.
    json_
        Print one JSON document; with --fleet, one object a line for each broker.
    """
    if fleet:
        output.refuse_if(run is not None, "--fleet is passed, and RUN", "put its pattern in quotes")
        return fleets.undo_fleet(fleet, topics, dry_run=dry_run, as_json=json_)
    if run is None:
        raise UsageError("no run", advice="pass KEEP/RUN, or --fleet 'KEEP/*/RUN'")
    restored = cleaning.undo(run, topics, dry_run=dry_run)
    if json_:
        logs = [{"directory": path, "restored": names} for path, names in restored.items()]
        output.write_json({"dry_run": dry_run, "logs": logs})
    else:
        verb = "would be restored" if dry_run else "restored"
        for path, names in restored.items():
            text = f"{counted(len(names), 'segment')} {verb}" if names else "nothing to undo"
            output.write_lines(f"{path}: {text}")
    return 0
