"""``siltstone recover``: bring log directories into order after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from siltstone.cli.output import Json, plain, progress_bars, refuse_if, write_json, write_lines, write_table
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


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverFlags:
    """The flags of ``siltstone recover``.

    Parameters
    ----------
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
    """

    config: Sequence[str] = ()
    broker_config: Path | None = None
    check: Annotated[bool | None, Parameter(negative="--no-check")] = None
    threads: int = 2
    now_ms: int | None = None
    dry_run: bool = False


def recover(
    directories: list[Path],
    /,
    *,
    flags: RecoverFlags = RecoverFlags(),
    json_: Json = False,
) -> int:
    """Bring Kafka log directories into order after a crash, as a broker's start and stop would.

    Interrupted swaps are finished, logs are cut at the first bad batch that was not yet flushed, indexes and
    producer snapshots are built again. What is bad and was flushed is left as it is and reported.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    json_
        Print one JSON document instead of the table.
    """
    refuse_if(flags.threads < 1, f"--threads {flags.threads}: must be at least 1")
    with progress_bars() as show:
        done = clean.recover(directories, **asdict(flags), progress=show)
    if json_:
        write_json(_document(done, dry_run=flags.dry_run))
    else:
        _show(done, dry_run=flags.dry_run)
    return 1 if any(directory.is_bad for directory in done) else 0


def _document(done: Sequence[DirectoryRecovery], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "logs": [_log(log) for directory in done for log in directory.logs],
        "directories": [
            {
                "path": directory.path,
                "clean": directory.was_clean,
                "offline": directory.offline,
                "notes": directory.notes,
            }
            for directory in done
        ],
        "passed_over": [item for directory in done for item in directory.passed_over],
    }


def _log(log: LogRecovery) -> dict[str, Any]:
    recovered = log.recovered
    return {
        **plain(log.where),
        "log_start_offset": recovered and recovered.log_start_offset,
        "log_end_offset": recovered and recovered.log_end_offset,
        "truncated_bytes": recovered.truncated_bytes if recovered else 0,
        "rebuilt_indexes": recovered.rebuilt_indexes if recovered else (),
        "finished_swaps": recovered.finished_swaps if recovered else (),
        "removed_files": recovered.removed_files if recovered else (),
        "status": log.status,
        "reason": log.reason,
        "damage": log.damage,
    }


def _show(done: Sequence[DirectoryRecovery], *, dry_run: bool) -> None:
    title = "what would be recovered (dry run: nothing was changed)" if dry_run else "recovered"
    names = ("log", "status", "start", "end", "bytes cut off", "indexes", "swaps", "files removed")
    write_table(title, names, [_row(log) for directory in done for log in directory.logs], left=2)
    for directory in done:
        for log in directory.logs:
            if log.reason:
                write_lines(f"{log.where}: {log.status}: {log.reason}")
        write_lines(*directory.notes)
        if directory.offline is not None:
            write_lines(f"{directory.path}: offline: {directory.offline}")


def _row(log: LogRecovery) -> list[object]:
    document = _log(log)
    changes = (len(document[name]) for name in ("rebuilt_indexes", "finished_swaps", "removed_files"))
    return [
        log.where,
        Text(log.status, _STYLE.get(log.status, "dim")),
        document["log_start_offset"],
        document["log_end_offset"],
        *(count or None for count in (document["truncated_bytes"], *changes)),
    ]
