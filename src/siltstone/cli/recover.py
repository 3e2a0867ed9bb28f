"""``siltstone recover``: bring log directories into order after a crash."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from siltstone.base.errors import UsageError
from siltstone.commands import clean
from siltstone.log.recovery import directories as status
from siltstone.log.recovery.directories import DirectoryRecovery, LogRecovery

_STYLE = {
    status.RECOVERED: "green",
    status.DAMAGED: "red",
    status.REFUSED: "red",
    status.FAILED: "red",
    status.SKIPPED: "yellow",
}
_FLAG = Parameter(negative=())


def recover(
    directories: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    config: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=False)] = (),
    broker_config: Annotated[Path | None, Parameter(negative=())] = None,
    check: bool | None = None,
    threads: int = 2,
    now_ms: int | None = None,
    dry_run: Annotated[bool, _FLAG] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Bring Kafka log directories into order after a crash, as a broker's start and stop would.

    Interrupted swaps are finished, logs are cut at the first bad batch that was not yet flushed, indexes and
    producer snapshots are built again. What is bad and was flushed is left as it is and reported.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    config
        A setting of the logs, key=value, such as index.interval.bytes; may be given several times.
    broker_config
        The broker's server.properties, for what no topic says; it may say where the metadata log is, too.
    check
        Read what was flushed too and report what is wrong in it; default: after an unclean stop.
    threads
        Logs at one time, for each directory (num.recovery.threads.per.data.dir).
    now_ms
        The clock for the expiry of producers, in ms; default: the wall clock.
    dry_run
        Say what would be done, change nothing.
    json_
        Print one JSON document instead of the table.
    """
    if threads < 1:
        raise UsageError(f"--threads {threads}: must be at least 1")
    with _Bars() as bars:
        done = clean.recover(
            directories,
            config=config,
            broker_config=broker_config,
            now_ms=now_ms,
            threads=threads,
            check=check,
            dry_run=dry_run,
            progress=bars,
        )
    return _tell(done, as_json=json_, dry_run=dry_run)


class _Bars:
    """A progress bar a directory, on standard error; plain silence where that is no terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, directory: str, done: int, total: int) -> None:
        """Show that ``done`` of a directory's ``total`` logs are done."""
        if directory not in self._tasks:
            self._tasks[directory] = self._progress.add_task(directory, total=total)
        self._progress.update(self._tasks[directory], completed=done, total=total)


def _tell(done: Sequence[DirectoryRecovery], *, as_json: bool, dry_run: bool) -> int:
    """Print what came of it; the exit status."""
    if as_json:
        sys.stdout.write(json.dumps(_document(done, dry_run=dry_run)) + "\n")
    else:
        _show(done, dry_run=dry_run)
    return 1 if any(each.is_bad for each in done) else 0


def _document(done: Sequence[DirectoryRecovery], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "logs": [_log(log) for each in done for log in each.logs],
        "directories": [
            {"path": str(each.path), "clean": each.was_clean, "offline": each.offline, "notes": each.notes}
            for each in done
        ],
        "passed_over": [
            {"path": item.path, "reason": item.reason} for each in done for item in each.passed_over
        ],
    }


def _log(log: LogRecovery) -> dict[str, Any]:
    found = log.recovered
    return {
        "topic": log.where.topic,
        "partition": log.where.partition,
        "log_start_offset": found.log_start_offset if found else None,
        "log_end_offset": found.log_end_offset if found else None,
        "truncated_bytes": found.truncated_bytes if found else 0,
        "rebuilt_indexes": list(found.rebuilt_indexes) if found else [],
        "finished_swaps": list(found.finished_swaps) if found else [],
        "removed_files": list(found.removed_files) if found else [],
        "status": log.status,
        "reason": log.reason,
        "damage": [
            {"path": each.path, "position": each.position, "reason": each.reason} for each in log.damage
        ],
    }


def _show(done: Sequence[DirectoryRecovery], *, dry_run: bool) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    title = "what would be recovered (dry run: nothing was changed)" if dry_run else "recovered"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("log", "status", "start", "end", "bytes cut off", "indexes", "swaps", "files removed"):
        table.add_column(name, justify="left" if name in ("log", "status") else "right", overflow="fold")
    for log in (log for each in done for log in each.logs):
        table.add_row(*_row(log))
    console.print(table)
    for each in done:
        for log in each.logs:
            if log.reason:
                _say(console, f"{log.where}: {log.status}: {log.reason}")
        for note in each.notes:
            _say(console, note)
        if each.offline is not None:
            _say(console, f"{each.path}: offline: {each.offline}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _row(log: LogRecovery) -> list[str]:
    name, shown = str(log.where), f"[{_STYLE.get(log.status, 'dim')}]{log.status}[/]"
    found = log.recovered
    if found is None:
        return [name, shown]
    counts = (
        found.truncated_bytes,
        len(found.rebuilt_indexes),
        len(found.finished_swaps),
        len(found.removed_files),
    )
    offsets = (found.log_start_offset, found.log_end_offset)
    return [name, shown, *(f"{n:,}" for n in offsets), *(f"{n:,}" if n else "" for n in counts)]
