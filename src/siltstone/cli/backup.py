"""``siltstone backup`` and ``siltstone restore``: log directories in an object store, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from siltstone.base.errors import UsageError
from siltstone.base.files.backups import restore_points
from siltstone.cli import output
from siltstone.commands import backup as backups
from siltstone.commands.explain_page import counted, size_text


@dataclass(frozen=True, kw_only=True)
class BackupFlags(output.DirFlags):
    """The flags of ``siltstone backup``.

    Parameters
    ----------
    live
        A broker may keep running: take no lock; the first start on a restore recovers as after a crash.
    keep
        How many backups stay; older ones are removed, with what only they have.
    take_over
        Write although another backup seems to be running: for use after one that has died.
    dry_run
        Show what would be put, change nothing.
    """

    live: bool = False
    keep: int | None = None
    take_over: bool = False
    dry_run: bool = False


def backup(
    places: Sequence[str] = (),
    /,
    *,
    flags: BackupFlags = BackupFlags(),
    json_: output.Json = False,
) -> int:
    """Back up log directories to an object store: siltstone backup DIR… s3://BUCKET/PREFIX.

    Only what is new is put. Each backup is a restore point, which is there as a whole or not at all.

    Parameters
    ----------
    places
        The log directories, also as --dir, and then the address: s3://, gs:// or abfs://.
    json_
        Print one JSON document.
    """
    output.refuse_if(not places, "no address", "pass DIR… and s3://BUCKET/PREFIX")
    flags = flags.at([Path(place) for place in places[:-1]])
    output.refuse_if(not flags.dir, "no log directory", "pass DIR… before the address, or --dir DIR")
    request = backups.BackupRequest(
        directories=tuple(flags.dir),
        target=Path(places[-1]),
        is_live=flags.live,
        keep=flags.keep,
        takes_over=flags.take_over,
        dry_run=flags.dry_run,
    )
    with output.progress_bars() as show:
        result = backups.backup(request, progress=show)
    if json_:
        output.write_json(result.to_json())
        return 0
    verb = "would put" if result.dry_run else "put"
    output.write_lines(
        f"backup {result.backup_id}{' (dry run: nothing was changed)' if result.dry_run else ''}: "
        f"{counted(result.files, 'file')}, {size_text(result.bytes)}; {verb} "
        f"{counted(result.new_chunks, 'chunk')}, {size_text(result.new_bytes)}",
        *(f"removed backup {name}" for name in result.pruned),
    )
    output.note(*(f"passed over: {name}" for name in result.passed_over))
    return 0


def restore(
    source: Path,
    target: Path | None = None,
    /,
    *,
    at: str | None = None,
    list_: bool = False,
    dry_run: bool = False,
    storage_option: output.StorageOptions = (),
    json_: output.Json = False,
) -> int:
    """Restore log directories from a backup: siltstone restore s3://BUCKET/PREFIX NEW.

    Every chunk is checked. NEW appears when it is complete; several log directories become folders of it.

    Parameters
    ----------
    source
        The address of the backups.
    target
        A new directory.
    at
        A backup, or a time (ISO 8601, UTC): the newest backup made by then. Default: the newest.
    list_
        List the backups, restore nothing.
    dry_run
        Show what would be restored.
    storage_option
        An option of the object store, NAME=VALUE; repeat it for more.
    json_
        Print one JSON document.
    """
    if list_:
        return _list(source, json_=json_)
    if target is None:
        raise UsageError("no directory", advice="pass a new directory, or --list")
    with output.progress_bars() as show:
        result = backups.restore(source, target, at=at, dry_run=dry_run, progress=show)
    if json_:
        output.write_json(result.to_json())
    else:
        _show_restored(result)
    return 0


def _show_restored(result: backups.RestoreResult) -> None:
    verb = "would restore" if result.dry_run else "restored"
    output.write_lines(
        f"{verb} backup {result.backup_id} of {_time(result.time_ms)}: "
        f"{counted(result.files, 'file')}, {size_text(result.bytes)}",
        *result.directories,
    )
    if result.needs_recovery:
        output.note("the first start on it recovers the logs, as after a crash")


def _list(source: Path, *, json_: bool) -> int:
    points = restore_points(source)
    rows = [
        {
            "backup_id": point.backup_id,
            "time_ms": point.time_ms,
            "host": point.host,
            "live": point.is_live,
            "partitions": backups.partitions_of(point),
            "bytes": point.size,
            "directories": [directory.path for directory in point.directories],
        }
        for point in points
    ]
    if json_:
        output.write_json({"backups": rows})
        return 0
    names = ("backup", "made", "live", "partitions", "bytes", "directories")
    cells = (
        [
            row["backup_id"],
            _time(point.time_ms),
            "yes" if point.is_live else None,
            row["partitions"],
            point.size,
            ", ".join(directory.path for directory in point.directories),
        ]
        for point, row in zip(points, rows, strict=True)
    )
    output.write_table("backups", names, cells, left=3)
    return 0


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
