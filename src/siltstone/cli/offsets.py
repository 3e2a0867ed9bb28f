"""``siltstone get-offsets``, ``log-dirs`` and ``delete-records``, as Kafka's tools of these names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands import offsets as commands


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GetOffsetsFlags(output.TopicFlags):
    """The flags of ``siltstone get-offsets``.

    Parameters
    ----------
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
    """

    partitions: str | None = None
    topic_partitions: str | None = None
    time: Annotated[str, output.NUMBER_OR_WORD] = "latest"
    exclude_internal_topics: bool = False


def get_offsets(*, flags: GetOffsetsFlags = GetOffsetsFlags(), json_: output.Json = False) -> int:
    """Show offsets of partitions by time, a line topic:partition:offset each, as kafka-get-offsets does.

    Locks nothing and changes nothing. A partition without a record that late has no line. Exit status 1 when
    one cannot be read; the others are shown.

    Parameters
    ----------
    json_
        Print one JSON document instead.
    """
    place = output.directories_of(flags.dir)
    time = commands.parse_time(flags.time)
    snapshot = place.snapshot()
    selected = commands.select_partitions(
        snapshot,
        topic=flags.topic,
        partitions=flags.partitions,
        topic_partitions=flags.topic_partitions,
        exclude_internal=flags.exclude_internal_topics,
    )
    offsets = commands.list_offsets(snapshot, selected, time)
    if json_:
        output.write_json({"time": time, "partitions": [partition.to_json() for partition in offsets]})
    else:
        for partition in offsets:
            if partition.offset is not None:
                output.write_lines(f"{partition.where.topic}:{partition.where.partition}:{partition.offset}")
    failures = [f"{partition.where}: {partition.failure}" for partition in offsets if partition.failure]
    output.note(*snapshot.notes, *failures)
    return 1 if failures else 0


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
    place = output.directories_of(dir)
    output.refuse_if(not describe, "give --describe")
    topics = [name.strip() for name in (topic_list or "").split(",") if name.strip()]
    document = commands.describe_log_dirs(place, topics)
    output.write_lines(json.dumps(document))
    return (
        1
        if any(directory["error"] for broker in document["brokers"] for directory in broker["logDirs"])
        else 0
    )


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
        {"partitions": [{"topic": "a", "partition": 0, "offset": 5}], "version": 1}; -1: the high watermark.
    dry_run
        Say what would come of it, change nothing.
    json_
        Print one JSON document instead.
    """
    place = output.directories_of(dir)
    if offset_json_file is None:
        raise UsageError("say what to delete with --offset-json-file")
    deleted = commands.delete_records(place, commands.read_offsets(offset_json_file), dry_run=dry_run)
    if json_:
        output.write_json(
            {"dry_run": dry_run, "partitions": [partition.to_json("low_watermark") for partition in deleted]}
        )
    else:
        output.write_lines(
            "Records that would be deleted:" if dry_run else "Records delete operation completed:"
        )
        for partition in deleted:
            outcome = (
                f"error: {partition.failure}" if partition.failure else f"low_watermark: {partition.offset}"
            )
            output.write_lines(f"partition: {partition.where}\t{outcome}")
    return 1 if any(partition.failure for partition in deleted) else 0
