"""``siltstone get-offsets``, ``log-dirs`` and ``delete-records``, as Kafka's tools of these names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from siltstone.base.errors import UsageError
from siltstone.cli import output
from siltstone.commands import offsets as commands


@dataclass(frozen=True, kw_only=True)
class GetOffsetsFlags(output.TopicFlags, output.ServerFlags):
    """The flags of ``siltstone get-offsets``.

    Parameters
    ----------
    topic
        A topic, or a regular expression; default: all.
    partitions
        0,2-4,7-: numbers and ranges; the upper end of a range is excluded.
    topic_partitions
        Topics with partitions, as in a:0,b:2-4,c
    time
        ms since 1970, -1 or latest, -2 or earliest, -3 or max-timestamp.
    exclude_internal_topics
        Leave out the broker's internal topics.
    """

    partitions: str | None = None
    topic_partitions: str | None = None
    time: Annotated[str, output.NUMBER_OR_WORD] = "latest"
    exclude_internal_topics: bool = False


def get_offsets(
    directories: output.Directories = (),
    /,
    *,
    flags: GetOffsetsFlags = GetOffsetsFlags(),
    json_: output.Json = False,
) -> int:
    """Show offsets of partitions by time, a line topic:partition:offset each, as kafka-get-offsets does.

    Locks nothing and changes nothing. A partition that has no record of --time or later has no line. Exit
    status 1 when one cannot be read; the others are shown.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        Print one JSON document instead.
    """
    flags = flags.at(directories)
    time, broker = commands.parse_time(flags.time), flags.remote()
    snapshot = None if broker is not None else flags.broker_directories().snapshot()
    source = broker or snapshot
    assert source is not None
    selected = commands.select_partitions(
        source,
        topic=flags.topic,
        partitions=flags.partitions,
        topic_partitions=flags.topic_partitions,
        exclude_internal=flags.exclude_internal_topics,
    )
    if broker is not None:
        offsets, notes = list(broker.offsets(selected, time).values()), list[str]()
    else:
        assert snapshot is not None
        offsets, notes = commands.list_offsets(snapshot, selected, time), snapshot.notes
    if json_:
        output.write_json({"time": time, "partitions": [partition.to_json() for partition in offsets]})
    else:
        for partition in offsets:
            if partition.offset is not None:
                output.write_lines(
                    f"{partition.topic_partition.topic}:{partition.topic_partition.partition}:{partition.offset}"
                )
    failures = [
        f"{partition.topic_partition}: {partition.failure}" for partition in offsets if partition.failure
    ]
    output.note(*notes, *failures)
    return 1 if failures else 0


@dataclass(frozen=True, kw_only=True)
class LogDirsFlags(output.DirFlags, output.ServerFlags):
    """The flags of ``siltstone log-dirs``.

    Parameters
    ----------
    describe
        Show the directories: the only action, which must be named, as in Kafka.
    topic_list
        Only these topics, separated by commas.
    broker_list
        With --bootstrap-server: only these brokers, by their numbers, separated by commas.
    """

    describe: bool = False
    topic_list: str | None = None
    broker_list: str | None = None

    def document(self) -> dict[str, Any]:
        """The JSON document, in Kafka's shape. Raises SiltstoneError."""
        config, topics = self.client_properties(), _words(self.topic_list)
        if self.bootstrap_server is None:
            is_set = self.broker_list is not None
            output.refuse_if(is_set, "--broker-list is only for --bootstrap-server", "leave it out")
            return commands.describe_log_dirs(self.broker_directories(), topics)
        from siltstone.broker.remote_log_dirs import describe_log_dirs

        numbers = _words(self.broker_list)
        is_wrong = not all(word.isascii() and word.isdigit() for word in numbers)
        output.refuse_if(is_wrong, "--broker-list has a word that is no number", "pass numbers, as in 0,1")
        return describe_log_dirs(self.bootstrap_server, config, topics, list(map(int, numbers)))


def _words(text: str | None) -> list[str]:
    """The words between the commas; none for None."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def log_dirs(
    directories: output.Directories = (),
    /,
    *,
    flags: LogDirsFlags = LogDirsFlags(),
    json_: output.Json = False,
) -> int:
    """Show the partitions of each log directory with their sizes, as kafka-log-dirs --describe does.

    Always JSON, in Kafka's shape. Locks nothing and changes nothing. Exit status 1 when a directory cannot
    be read: it has an error, and the others are shown.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        No effect: the output is JSON without it, too.
    """
    flags = flags.at(directories)
    output.refuse_if(not flags.describe, "no action", "pass --describe")
    document = flags.document()
    output.write_lines(json.dumps(document))
    log_dirs = [directory for broker in document["brokers"] for directory in broker["logDirs"]]
    return 1 if any(directory["error"] for directory in log_dirs) else 0


@dataclass(frozen=True, kw_only=True)
class DeleteRecordsFlags(output.DirFlags, output.ServerFlags):
    """The flags of ``siltstone delete-records`` that say where the records are."""


def delete_records(
    directories: output.Directories = (),
    /,
    *,
    flags: DeleteRecordsFlags = DeleteRecordsFlags(),
    offset_json_file: Path | None = None,
    dry_run: bool = False,
    json_: output.Json = False,
) -> int:
    """Delete the records below given offsets, as kafka-delete-records does.

    Locks the directories, but not for --dry-run. The logs start there from now on, durably; segments that are
    entirely below are removed when retention is checked next. Exit status 1 when a partition was refused; the
    others are done.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    offset_json_file
        {"partitions": [{"topic": "a", "partition": 0, "offset": 5}], "version": 1}; -1: the high watermark.
    dry_run
        Show the result, change nothing.
    json_
        Print one JSON document instead.
    """
    flags = flags.at(directories)
    broker = flags.remote()
    broker_directories = None if broker is not None else flags.broker_directories()
    if offset_json_file is None:
        raise UsageError("no offsets", advice="pass --offset-json-file FILE")
    offsets = commands.read_offsets(offset_json_file)
    if broker is not None:
        deleted = broker.delete_records(offsets, dry_run=dry_run)
    else:
        assert broker_directories is not None
        deleted = commands.delete_records(broker_directories, offsets, dry_run=dry_run)
    if json_:
        partitions = [partition.to_json("low_watermark") for partition in deleted]
        output.write_json({"dry_run": dry_run, "partitions": partitions})
    else:
        title = "Records that would be deleted:" if dry_run else "Records delete operation completed:"
        output.write_lines(title)
        for partition in deleted:
            failure, offset = partition.failure, partition.offset
            outcome = f"error: {failure}" if failure else f"low_watermark: {offset}"
            output.write_lines(f"partition: {partition.topic_partition}\t{outcome}")
    return 1 if any(partition.failure for partition in deleted) else 0
