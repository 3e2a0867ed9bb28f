"""``siltstone get-offsets``: offsets of partitions by time, as kafka-get-offsets prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

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
from siltstone.commands.offsets import OffsetFound, list_offsets, parse_time, select_partitions


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
    look = place.look()
    wheres = select_partitions(
        look,
        topic=topic,
        partitions=partitions,
        topic_partitions=topic_partitions,
        exclude_internal=exclude_internal_topics,
    )
    found = list_offsets(look, wheres, when)
    _show(found, when, as_json=json_)
    note(*look.notes, *(f"{each.where}: {each.trouble}" for each in found if each.trouble))
    return 1 if any(each.trouble for each in found) else 0


def _show(found: Sequence[OffsetFound], when: int, *, as_json: bool) -> None:
    if as_json:
        write_json({"time": when, "partitions": [_document(each) for each in found]})
        return
    for each in found:
        if each.offset is not None:
            write_line(f"{each.where.topic}:{each.where.partition}:{each.offset}")


def _document(each: OffsetFound) -> dict[str, object]:
    return {
        "topic": each.where.topic,
        "partition": each.where.partition,
        "offset": each.offset,
        "error": each.trouble,
    }
