"""``siltstone get-offsets``, ``log-dirs`` and ``delete-records``, as Kafka's tools of these names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands import offsets as commands


def get_offsets(
    *,
    dir: output.Directories = (),
    topic: output.Topic = None,
    partitions: str | None = None,
    topic_partitions: str | None = None,
    time: Annotated[str, output.NUMBER_OR_WORD] = "latest",
    exclude_internal_topics: bool = False,
    json_: output.Json = False,
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
    place = output.place_of(dir)
    when = commands.parse_time(time)
    look = place.look()
    wheres = commands.select_partitions(
        look,
        topic=topic,
        partitions=partitions,
        topic_partitions=topic_partitions,
        exclude_internal=exclude_internal_topics,
    )
    found = commands.list_offsets(look, wheres, when)
    if json_:
        output.write_json({"time": when, "partitions": [each.to_json() for each in found]})
    else:
        shown = (each for each in found if each.offset is not None)
        output.write_lines(*(f"{each.where.topic}:{each.where.partition}:{each.offset}" for each in shown))
    output.note(*look.notes, *(f"{each.where}: {each.failure}" for each in found if each.failure))
    return 1 if any(each.failure for each in found) else 0


def log_dirs(
    *,
    dir: output.Directories = (),
    describe: bool = False,
    topic_list: str | None = None,
    json_: output.Json = False,
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
    place = output.place_of(dir)
    output.refuse_if(not describe, "give --describe")
    topics = [name.strip() for name in (topic_list or "").split(",") if name.strip()]
    found = commands.describe_log_dirs(place, topics)
    output.write_lines(json.dumps(found))
    return 1 if any(each["error"] for broker in found["brokers"] for each in broker["logDirs"]) else 0


def delete_records(
    *,
    dir: output.Directories = (),
    offset_json_file: Path | None = None,
    dry_run: bool = False,
    json_: output.Json = False,
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
    place = output.place_of(dir)
    if offset_json_file is None:
        raise UsageError("say what to delete with --offset-json-file")
    done = commands.delete_records(place, commands.read_offsets(offset_json_file), dry_run=dry_run)
    if json_:
        output.write_json(
            {"dry_run": dry_run, "partitions": [each.to_json("low_watermark") for each in done]}
        )
    else:
        output.write_lines(
            "Records that would be deleted:" if dry_run else "Records delete operation completed:"
        )
        for each in done:
            outcome = f"error: {each.failure}" if each.failure else f"low_watermark: {each.offset}"
            output.write_lines(f"partition: {each.where}\t{outcome}")
    return 1 if any(each.failure for each in done) else 0
