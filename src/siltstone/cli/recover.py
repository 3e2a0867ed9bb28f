"""``siltstone recover``: the recovery of log directories after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from siltstone.cli import output
from siltstone.commands import clean
from siltstone.log.recovery.directories import RECOVERED, DirectoryRecovery, LogRecovery


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverFlags:
    """The flags of ``siltstone recover``.

    Parameters
    ----------
    config
        A setting of the logs, key=value, such as index.interval.bytes; repeat it for more.
    broker_config
        The broker's server.properties: for settings that a topic does not have, and for the path of the
        metadata log.
    check
        Also check what was flushed, and report damage in it; default: after an unclean shutdown.
    threads
        Logs recovered at the same time, for each directory (num.recovery.threads.per.data.dir).
    now_ms
        The clock for the expiry of producers, in ms; default: the wall clock.
    dry_run
        Show what would be done, change nothing.
    """

    config: Sequence[str] = ()
    broker_config: Path | None = None
    check: Annotated[bool | None, Parameter(negative="--no-check")] = None
    threads: int = 2
    now_ms: int | None = None
    dry_run: bool = False


def recover(
    directories: output.Directories = (),
    /,
    *,
    dir_: output.DirFlag = (),
    storage_option: output.StorageOptions = (),
    flags: RecoverFlags = RecoverFlags(),
    json_: output.Json = False,
) -> int:
    """Recover Kafka log directories after a crash, as a broker's start and stop would.

    Interrupted swaps are completed, logs are truncated before the first bad batch that was not yet flushed,
    indexes and producer snapshots are rebuilt. Bad batches that were flushed are left as they are, and
    reported.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory;
        also as --dir.
    dir_
        The same as DIRECTORIES; repeat it for more.
    storage_option
        An option of the object store of an s3://, gs:// or abfs:// directory, NAME=VALUE; repeat it for more.
    json_
        Print one JSON document instead of the table.
    """
    output.refuse_if(flags.threads < 1, f"--threads {flags.threads}: is below 1", "pass 1 or more")
    with output.progress_bars() as show:
        recoveries = clean.recover(
            output.named_directories(directories, dir_), **asdict(flags), progress=show
        )
    if json_:
        output.write_json(_document(recoveries, dry_run=flags.dry_run))
    else:
        _show(recoveries, dry_run=flags.dry_run)
    return 1 if any(directory.needs_attention for directory in recoveries) else 0


def _document(recoveries: Sequence[DirectoryRecovery], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "logs": [_log_document(log) for directory in recoveries for log in directory.logs],
        "directories": [
            {
                "path": directory.path,
                "clean": directory.was_clean,
                "offline": directory.offline,
                "notes": directory.notes,
            }
            for directory in recoveries
        ],
        "passed_over": [item for directory in recoveries for item in directory.passed_over],
    }


def _log_document(log: LogRecovery) -> dict[str, Any]:
    """The JSON object of one log."""
    recovered = log.recovered
    return {
        **output.plain(log.topic_partition),
        "log_start_offset": recovered and recovered.log_start_offset,
        "log_end_offset": recovered and recovered.log_end_offset,
        "truncated_bytes": recovered.truncated_bytes if recovered else 0,
        "rebuilt_indexes": recovered.rebuilt_indexes if recovered else (),
        "finished_swaps": recovered.finished_swaps if recovered else (),
        "removed_files": recovered.removed_files if recovered else (),
        "status": log.status,
        "reason": log.reason,
        "damage": [{"path": bad.path, "position": bad.position, "reason": bad.reason} for bad in log.damage],
    }


def _show(recoveries: Sequence[DirectoryRecovery], *, dry_run: bool) -> None:
    title = "what would be recovered (dry run: nothing was changed)" if dry_run else "recovered"
    names = ("log", "status", "start", "end", "bytes cut off", "indexes", "swaps", "files removed")
    logs = (log for directory in recoveries for log in directory.logs)
    output.write_table(title, names, (_row(log, dry_run=dry_run) for log in logs), left=2)
    for directory in recoveries:
        for log in directory.logs:
            if log.reason:
                status = _status(log, dry_run=dry_run).replace("_", " ")
                output.write_wrapped(f"{log.topic_partition}: {status}: {log.reason}")
        if directory.offline is not None:
            output.write_wrapped(f"{directory.path}: offline: {directory.offline}")
    output.note(*(text for directory in recoveries for text in directory.notes))


def _status(log: LogRecovery, *, dry_run: bool) -> str:
    """The log's status; a dry run says what it would be."""
    return "would_recover" if dry_run and log.status == RECOVERED else log.status


def _row(log: LogRecovery, *, dry_run: bool) -> list[object]:
    document = _log_document(log)
    changes = (len(document[name]) for name in ("rebuilt_indexes", "finished_swaps", "removed_files"))
    counts = (document["truncated_bytes"], *changes)
    offsets = (document["log_start_offset"], document["log_end_offset"])
    return [
        log.topic_partition,
        output.status_text(_status(log, dry_run=dry_run)),
        *offsets,
        *(count or None for count in counts),
    ]
