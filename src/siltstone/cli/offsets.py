"""``siltstone get-offsets``, ``log-dirs`` and ``delete-records``, as Kafka's tools of these names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from siltstone.base.errors import UsageError
from siltstone.cli.output import (
    NUMBER_OR_WORD,
    Directories,
    Json,
    Topic,
    note,
    place_of,
    write_json,
    write_line,
)
from siltstone.commands.offsets import (
    PartitionOffset,
    describe_log_dirs,
    list_offsets,
    parse_time,
    read_offsets,
    select_partitions,
)
from siltstone.commands.offsets import delete_records as delete


def get_offsets(
    *,
    dir: Directories = (),
    topic: Topic = None,
    partitions: str | None = None,
    topic_partitions: str | None = None,
    time: Annotated[str, NUMBER_OR_WORD] = "latest",
    exclude_internal_topics: bool = False,
    json_: Json = False,
) -> int:
    """Show offsets of partitions by time, a line topic:partition:offset each, as kafka-get-offsets does.

    Locks nothing and changes nothing. A partition without a record that late has no line. Exit status 1 when
    one cannot be read; the others are shown.

    Parameters
    ----------
    dir
        A log directory; several of one broker (log.dirs) by giving it several times.
    topic
        A topic, or a regular expression; default: all.
    partitions
        0,2-4,7-: numbers and ranges, their upper ends not in them.
    topic_partitions
        a:0,b:2-4,c: topics with partitions.
    time
        ms since 1970, -1 or latest, -2 or earliest, -3 or max-timestamp.
    exclude_internal_topics
        Leave out topics that a broker keeps for itself.
    json_
        Print one JSON document instead.
    """
    place = place_of(dir)
    when = parse_time(time)
    snapshot = place.snapshot()
    wheres = select_partitions(
        snapshot,
        topic=topic,
        partitions=partitions,
        topic_partitions=topic_partitions,
        exclude_internal=exclude_internal_topics,
    )
    found = list_offsets(snapshot, wheres, when)
    _show_offsets(found, when, as_json=json_)
    note(*snapshot.notes, *(f"{each.where}: {each.failure}" for each in found if each.failure))
    return 1 if any(each.failure for each in found) else 0


def _show_offsets(found: Sequence[PartitionOffset], when: int, *, as_json: bool) -> None:
    if as_json:
        write_json({"time": when, "partitions": [each.to_json() for each in found]})
        return
    for each in found:
        if each.offset is not None:
            write_line(f"{each.where.topic}:{each.where.partition}:{each.offset}")


def log_dirs(
    *,
    dir: Directories = (),
    describe: bool = False,
    topic_list: str | None = None,
    json_: Json = False,
) -> int:
    """Show the partitions of each log directory with their sizes, as kafka-log-dirs --describe does.

    Always JSON, in Kafka's shape. Locks nothing and changes nothing. Exit status 1 when a directory cannot
    be read; its error is there, and the others are.

    Parameters
    ----------
    dir
        A log directory; several of one broker (log.dirs) by giving it several times.
    describe
        There is nothing else to choose; as in Kafka.
    topic_list
        Only these topics, with commas between them.
    json_
        The same.
    """
    place = place_of(dir)
    if not describe:
        raise UsageError("give --describe")
    topics = [name.strip() for name in (topic_list or "").split(",") if name.strip()]
    found = describe_log_dirs(place, topics)
    write_line(json.dumps(found))
    return 1 if any(each["error"] for broker in found["brokers"] for each in broker["logDirs"]) else 0


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
        write_json({"dry_run": dry_run, "partitions": [each.to_json("low_watermark") for each in done]})
    else:
        _show_deleted(done, dry_run=dry_run)
    return 1 if any(each.failure for each in done) else 0


def _show_deleted(done: list[PartitionOffset], *, dry_run: bool) -> None:
    write_line("Records that would be deleted:" if dry_run else "Records delete operation completed:")
    for each in done:
        said = f"error: {each.failure}" if each.failure else f"low_watermark: {each.offset}"
        write_line(f"partition: {each.where}\t{said}")
