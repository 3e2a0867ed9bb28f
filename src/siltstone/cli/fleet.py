"""``siltstone clean --fleet`` and ``siltstone undo --fleet``: many brokers in one run, a row for each."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from siltstone.cli import output
from siltstone.commands import fleet as fleet_command
from siltstone.commands.clean import CleanOutcome, CleanRequest
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.policies import NO_BROKER_CONFIG
from siltstone.compaction.report import CLEANED, FAILED

ShowBroker = Callable[[CleanOutcome, float], None]
"""Shows the logs of one broker, and how many seconds its cleaning took."""
Document = Callable[[CleanOutcome], dict[str, object]]
"""The JSON of a cleaning of one broker."""


def clean_fleet(
    request: CleanRequest,
    options: fleet_command.FleetOptions,
    *,
    show_broker: ShowBroker | None,
    document: Document | None,
    quiet: bool,
) -> int:
    """Clean the brokers; the exit status. ``show_broker``: shows each broker's logs as it ends, with
    ``--verbose``; ``document``: makes the object that is printed for each broker instead, with ``--json``."""
    began = time.monotonic()
    with output.RunProgress(quiet=quiet or document is not None) as progress:
        fleet: fleet_command.Fleet | None = None  # it and ``show_progress`` refer to each other

        def show_progress(brokers: int, logs: int) -> None:
            if fleet is not None:
                progress.show(f"{brokers:,}/{len(fleet.brokers):,} brokers · {counted(logs, 'log')} done")

        def on_broker(result: fleet_command.BrokerResult, outcome: CleanOutcome) -> None:
            if document is not None:
                output.write_json(_broker_document(result, document(outcome)), flush=True)
            elif show_broker is not None and not quiet:
                progress.hide()
                output.write_lines(f"{result.broker}:")
                show_broker(outcome, result.seconds)

        fleet = fleet_command.Fleet(request, options, progress=show_progress)
        is_complete = False
        try:
            fleet.clean(on_broker)
            is_complete = True
        finally:  # also after an interrupt: brokers that ended are cleaned
            progress.hide()
            if is_complete or fleet.results:
                _finish(request, fleet, time.monotonic() - began, as_json=document is not None, quiet=quiet)
    return 1 if any(result.status == FAILED for result in fleet.results) else 0


def _finish(
    request: CleanRequest, fleet: fleet_command.Fleet, seconds: float, *, as_json: bool, quiet: bool
) -> None:
    """Print the last JSON object, or the table with the lines below it."""
    if as_json:
        output.write_json(_total_document(request, fleet))
    elif quiet:
        output.note(*output.reason_lines(_reasons(fleet.results, only_failed=True)))
    else:
        _show(request, fleet, seconds)


def _broker_document(result: fleet_command.BrokerResult, document: dict[str, object]) -> dict[str, object]:
    """The object of one broker: what ``clean --json`` prints for it, and the broker's own keys."""
    return {
        "broker": result.broker,
        "directories": result.directories,
        "status": result.status,
        "reason": result.reason,
        "failure": result.failure,
        "now_ms": result.now_ms,
        "seconds": round(result.seconds, 3),
        **document,
    }


def _total_document(request: CleanRequest, fleet: fleet_command.Fleet) -> dict[str, object]:
    statuses = [result.status for result in fleet.results]
    return {
        "run": fleet.run,
        "dry_run": request.dry_run,
        "engine": fleet.engine,
        "total": {
            "brokers": len(fleet.brokers),
            "ended": len(statuses),
            "brokers_failed": statuses.count(FAILED),
            "logs": fleet.totals.logs,
            "cleaned": fleet.totals.cleaned,
            "failed": fleet.totals.failed,
            "bytes_before": fleet.totals.bytes_before,
            "bytes_after": fleet.totals.bytes_after,
            "records_removed": fleet.totals.removed,
        },
    }


_COLUMNS: dict[str, Callable[[fleet_command.BrokerResult], object]] = {
    "broker": lambda result: result.broker,
    "status": lambda result: output.status_text(result.status),
    "logs": lambda result: result.totals.logs or None,
    "cleaned": lambda result: result.totals.cleaned or None,
    "failed": lambda result: result.totals.failed or None,
    "bytes": lambda result: (
        output.change_text(result.totals.bytes_before, result.totals.bytes_after, size_text)
        if result.totals.cleaned
        else None
    ),
    "removed": lambda result: result.totals.removed or None,
    "seconds": lambda result: f"{result.seconds:.2f}" if result.seconds else None,
}
"""The columns of the table, from left to right: a heading, and what a broker's cell shows."""


def _show(request: CleanRequest, fleet: fleet_command.Fleet, seconds: float) -> None:
    columns = dict(_COLUMNS)
    if request.dry_run:
        would = {CLEANED: "would_clean"}
        columns["status"] = lambda result: output.status_text(would.get(result.status, result.status))
    title = "what would be cleaned (dry run: nothing was changed)" if request.dry_run else ""
    results = sorted(fleet.results, key=lambda result: _by_number(result.broker))
    rows = ([cell(result) for cell in columns.values()] for result in results)
    output.write_table(title, list(columns), rows, left=2)
    output.write_wrapped(*output.reason_lines(_reasons(results)))
    if any(result.kept is not None for result in results) and request.keep_originals is not None:
        for pattern in _kept_patterns(request.keep_originals, fleet):
            output.write_lines(f"originals kept; to put them back: siltstone undo --fleet {pattern}")
    output.write_lines(f"{_summary(request, fleet)}, {seconds:.1f} s")
    if any(NO_BROKER_CONFIG in result.notes for result in results):
        output.note(NO_BROKER_CONFIG)


def _by_number(name: str) -> list[tuple[str, int]]:
    """A sort key, by which broker2 comes before broker10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _reasons(
    results: Sequence[fleet_command.BrokerResult], *, only_failed: bool = False
) -> Iterator[tuple[tuple[str, str], object]]:
    """((Status, reason), name) of brokers with a reason, and of their logs that failed."""
    for result in results:
        if result.reason and (result.status == FAILED or not only_failed):
            yield (result.status, result.reason), result.broker
        for log in result.failed:
            yield (log.status, log.reason), f"{result.broker} {log.topic_partition}"


def _kept_patterns(folder: Path, fleet: fleet_command.Fleet) -> list[str]:
    """Patterns of the folders of this run's originals, quoted for a shell: one for each depth of the brokers'
    names (``a/b`` has two parts), since ``*`` matches no slash."""
    # Where the folder's own name has a character of patterns, [ ] makes it a plain one.
    keep = re.sub(r"([*?[])", r"[\1]", str(folder.absolute()))
    depths = sorted({result.broker.count("/") + 1 for result in fleet.results if result.kept is not None})
    names = ["/".join("*" * depth) for depth in depths]
    if fleet_command.BROKER_PLACEHOLDER in keep:
        return [
            shlex.quote(f"{keep.replace(fleet_command.BROKER_PLACEHOLDER, name)}/{fleet.run}")
            for name in names
        ]
    return [shlex.quote(f"{keep}/{name}/{fleet.run}") for name in names]


def _summary(request: CleanRequest, fleet: fleet_command.Fleet) -> str:
    """``39,800 of 40,000 logs of 400 brokers cleaned: 9 GB → 3 GB, 3,400 records removed; in-process``."""
    totals, brokers = fleet.totals, counted(len(fleet.brokers), "broker")
    logs = counted(totals.logs, "log")
    verb = "would be cleaned" if request.dry_run else "cleaned"
    text = f"{f'{totals.cleaned:,}' if totals.cleaned else 'none'} of {logs} of {brokers} {verb}"
    if totals.cleaned:
        sizes = f"{size_text(totals.bytes_before)} → {size_text(totals.bytes_after)}"
        text += f": {sizes}, {counted(totals.removed, 'record')} removed"
    failed = sum(result.status == FAILED for result in fleet.results)
    text += f"; {counted(failed, 'broker')} with failures" if failed else ""
    left = len(fleet.brokers) - len(fleet.results)
    text += f"; {left:,} not begun or interrupted" if left else ""
    return text + ("" if fleet.engine is None else f"; {fleet.engine}")


def undo_fleet(patterns: Sequence[str], topics: Sequence[str], *, dry_run: bool, as_json: bool) -> int:
    """Undo the runs of brokers; the exit status."""
    verb, has_failed = "would be restored" if dry_run else "restored", False
    for result in fleet_command.undo_fleet(patterns, topics, dry_run=dry_run):
        has_failed |= result.failure is not None
        if as_json:
            logs = [{"directory": path, "restored": names} for path, names in result.restored.items()]
            output.write_json(
                {
                    "broker": result.broker,
                    "folder": result.folder,
                    "dry_run": dry_run,
                    "logs": logs,
                    "reason": "" if result.failure is None else result.failure.reason,
                    "failure": None if result.failure is None else result.failure.details,
                },
                flush=True,
            )
        elif result.failure is not None:
            output.write_wrapped(f"{result.broker}: failed: {result.failure.reason}")
        else:
            segments = sum(map(len, result.restored.values()))
            logs_text = counted(sum(map(bool, result.restored.values())), "log")
            done = f"{counted(segments, 'segment')} of {logs_text} {verb}"
            output.write_lines(f"{result.broker}: {done if segments else 'nothing to undo'}")
    return 1 if has_failed else 0
