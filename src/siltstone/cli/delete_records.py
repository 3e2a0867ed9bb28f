"""``siltstone delete-records``: move log starts up, as kafka-delete-records does."""

from __future__ import annotations

from pathlib import Path

from siltstone.base.errors import UsageError
from siltstone.cli.output import Directories, Json, place_of, write_json, write_line
from siltstone.commands.offsets import RecordsDeleted, read_offsets
from siltstone.commands.offsets import delete_records as delete


def delete_records(
    *,
    dir: Directories = (),
    offset_json_file: Path | None = None,
    dry_run: bool = False,
    json_: Json = False,
) -> int:
    """Delete the records below given offsets, as kafka-delete-records does.

    The logs start there from now on, durably; whole segments below go when retention is checked next. Exit
    status 1 when a partition was refused; the others are done.

    Parameters
    ----------
    dir
        A log directory; several of one broker (log.dirs) by giving it several times.
    offset_json_file
        {"partitions": [{"topic": "a", "partition": 0, "offset": 5}], "version": 1}; offset -1: everything.
    dry_run
        Say what would come of it, change nothing.
    json_
        Print one JSON document instead.
    """
    place = place_of(dir)
    if offset_json_file is None:
        raise UsageError("say what to delete with --offset-json-file")
    done = delete(place, read_offsets(offset_json_file), dry_run=dry_run)
    if json_:
        write_json({"dry_run": dry_run, "partitions": [_document(each) for each in done]})
    else:
        _show(done, dry_run=dry_run)
    return 1 if any(each.trouble for each in done) else 0


def _document(each: RecordsDeleted) -> dict[str, object]:
    return {
        "topic": each.where.topic,
        "partition": each.where.partition,
        "low_watermark": each.low_watermark,
        "error": each.trouble,
    }


def _show(done: list[RecordsDeleted], *, dry_run: bool) -> None:
    write_line("Records that would be deleted:" if dry_run else "Records delete operation completed:")
    for each in done:
        said = f"error: {each.trouble}" if each.trouble else f"low_watermark: {each.low_watermark}"
        write_line(f"partition: {each.where}\t{said}")
