"""``siltstone log-dirs``: what lies in each log directory, as kafka-log-dirs shows it."""

from __future__ import annotations

import json

from siltstone.base.errors import UsageError
from siltstone.cli.output import Directories, Json, place_of, write_line
from siltstone.commands.offsets import describe_log_dirs


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
