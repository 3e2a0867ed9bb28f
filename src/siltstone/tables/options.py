"""What a table over log directories is asked for: ``ReadOptions``, checked once and for all.

Names and meanings are those of Spark's Kafka source (``KafkaSourceProvider``) where it has them; ours are
``path``, ``view``, ``tombstones``, ``asOfOffset``, ``asOfTimestamp``, ``isolation``, ``columns``,
``badBatches``, ``includeBatchMetadata``, ``maxPartitionBytes`` and ``maxDecompressedMessageBytes``. What is
given as a text is read by ``OPTIONS``: a new option is a row there and a field here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from siltstone.errors import UsageError
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition
from siltstone.records.codecs import DEFAULT_LIMIT
from siltstone.tables.choice import (
    EARLIEST,
    LATEST,
    Bound,
    Choice,
    parse_assign,
    parse_numbers,
    refuse_several,
)
from siltstone.tables.given import (
    Option,
    boolean,
    directory,
    duration_ms,
    number,
    one_of,
    parse_options,
    size,
    time_ms,
    words,
)

LOG, LATEST_VIEW, COMPACTED = "log", "latest", "compacted"
RECORDS = "records"
_OTHER_TABLES = (
    "batches offsetIndex timeIndex transactionIndex producerSnapshots leaderEpochs checkpoints "
    "consumerOffsets transactionState"
).split()
DEFAULT_PARTITION_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A table. ``paths``: log directories of one broker, or one partition's.

    ``starting`` and ``ending`` are bounds of offsets or times; None is the log's own side. ``as_of`` holds
    for all views: offsets are inclusive, times in ms too. ``columns`` None: all but the headers. Sizes are
    in bytes; ``max_*`` and ``min_*`` of None: no such bound.
    """

    paths: tuple[str, ...]
    choice: Choice = field(default_factory=Choice)
    starting: Bound | None = None
    ending: Bound | None = None
    latest_without_match: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_records_per_partition: int | None = None
    max_decompressed_message_bytes: int = DEFAULT_LIMIT
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    view: str = LOG
    keep_tombstones: bool = False
    as_of: Bound | None = None
    isolation: str = READ_COMMITTED
    quarantine: bool = False
    batch_metadata: bool = False
    table: str = RECORDS
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
        """From texts by name, whatever their case. Raises UsageError that says what is allowed.

        ``streaming``: for ``readStream``, where a side may be "latest" and there is no ending.
        """
        found = parse_options(given, OPTIONS)
        choice = Choice(**{name: found.pop(name) for name in _CHOICE if name in found})
        refuse_several(choice)
        paths = found.pop("path", ()) or _paths(given)
        if not paths:
            raise UsageError("option 'path' is missing: give a Kafka log directory or one partition's")
        options = cls(
            paths=paths,
            choice=choice,
            starting=_side(found, "starting"),
            ending=_side(found, "ending"),
            as_of=_as_of(found),
            **found,
        )
        _refuse_contradictions(options, streaming)
        return options


_CHOICE = ("assign", "subscribe", "pattern")


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """Several directories, as Spark hands on ``load([…])``, or the location of a catalog's table."""
    texts = {name.lower(): text for name, text in given.items()}
    listed = json.loads(texts.get("paths", "[]")) or [texts[name] for name in ("location",) if name in texts]
    return tuple(directory(each) for each in listed)


def _side(found: dict[str, Any], side: str) -> Bound | None:
    """Spark's precedence: one time for all, then times, then offsets."""
    given: list[Bound | None] = [found.pop(f"{side}_{kind}", None) for kind in ("time", "times", "offsets")]
    return next((bound for bound in given if bound is not None), None)


def _as_of(found: dict[str, Any]) -> Bound | None:
    offset: Bound | None = found.pop("as_of_offset", None)
    time: Bound | None = found.pop("as_of_time", None)
    if offset is not None and time is not None:
        raise UsageError("give asOfOffset or asOfTimestamp, not both")
    return offset if offset is not None else time


def _refuse_contradictions(options: ReadOptions, streaming: bool) -> None:
    if streaming and (options.view != LOG or options.as_of is not None or options.ending is not None):
        raise UsageError("a stream reads view=log without an ending and without asOf")
    if options.ending is not None and options.as_of is not None:
        raise UsageError("give asOfOffset or asOfTimestamp, or an ending, not both")
    if options.view == COMPACTED and options.as_of is not None:
        raise UsageError("view=compacted has no asOf: a ledger knows only its last state; use view=latest")
    if options.keep_tombstones and options.view != LATEST_VIEW:
        raise UsageError("tombstones=keep is for view=latest; the log shows them anyway")
    if options.quarantine and options.view != LOG:
        raise UsageError("badBatches=quarantine is for view=log: a lost batch may hold a key's last value")
    if options.batch_metadata and (options.view != LOG or options.table != RECORDS):
        raise UsageError("includeBatchMetadata is for the records of view=log")
    if options.table != RECORDS and (options.columns is not None or options.include_headers or streaming):
        raise UsageError(f"table={options.table} has columns of its own, and is no stream: use select")
    if not streaming and options.starting is not None and LATEST in _offsets(options.starting):
        raise UsageError("startingOffsets: a batch query cannot start at the latest offset")
    if options.ending is not None and EARLIEST in _offsets(options.ending):
        raise UsageError("endingOffsets: a query cannot end at the earliest offset")


def _offsets(bound: Bound) -> list[int]:
    return [] if bound.is_time else [bound.every or 0, *bound.each.values()]


def _offset_bound(text: str) -> Bound:
    """``earliest``, ``latest`` or JSON by partition."""
    if text.strip().lower() in ("earliest", "latest"):
        return Bound(every=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    return Bound(each=parse_numbers(text, EARLIEST))


def _times(text: str) -> Bound:
    return Bound(each=parse_numbers(text, 0), is_time=True)


def _one_time(text: str) -> Bound:
    return Bound(every=time_ms(text), is_time=True)


def _as_of_offset(text: str) -> Bound:
    """An offset for every partition, or JSON by partition."""
    if text.strip().startswith("{"):
        return Bound(each=parse_numbers(text, 0))
    return Bound(every=number()(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


OPTIONS: tuple[Option, ...] = (
    Option("path", lambda text: (directory(text),), "path"),
    Option("assign", parse_assign, "assign"),
    Option("subscribe", words, "subscribe"),
    Option("subscribePattern", _pattern, "pattern"),
    Option("startingTimestamp", _one_time, "starting_time"),
    Option("startingOffsetsByTimestamp", _times, "starting_times"),
    Option("startingOffsets", _offset_bound, "starting_offsets"),
    Option("endingTimestamp", _one_time, "ending_time"),
    Option("endingOffsetsByTimestamp", _times, "ending_times"),
    Option("endingOffsets", _offset_bound, "ending_offsets"),
    Option(
        "startingOffsetsByTimestampStrategy",
        lambda text: one_of("error", "latest")(text) == "latest",
        "latest_without_match",
    ),
    Option("failOnDataLoss", boolean, "fail_on_data_loss"),
    Option("minPartitions", number(1), "min_partitions"),
    Option("maxPartitionBytes", size, "max_partition_bytes"),
    Option("maxRecordsPerPartition", number(1), "max_records_per_partition"),
    Option("maxDecompressedMessageBytes", size, "max_decompressed_message_bytes"),
    Option("includeHeaders", boolean, "include_headers"),
    Option("columns", words, "columns"),
    Option("view", one_of(LOG, LATEST_VIEW, COMPACTED), "view"),
    Option("tombstones", lambda text: one_of("drop", "keep")(text) == "keep", "keep_tombstones"),
    Option("asOfOffset", _as_of_offset, "as_of_offset"),
    Option("asOfTimestamp", _one_time, "as_of_time"),
    Option("isolation", one_of(READ_COMMITTED, READ_UNCOMMITTED), "isolation"),
    Option("badBatches", lambda text: one_of("fail", "quarantine")(text) == "quarantine", "quarantine"),
    Option("includeBatchMetadata", boolean, "batch_metadata"),
    Option("table", one_of(RECORDS, *map(str.lower, _OTHER_TABLES)), "table"),
    Option("maxOffsetsPerTrigger", number(1), "max_offsets_per_trigger"),
    Option("minOffsetsPerTrigger", number(1), "min_offsets_per_trigger"),
    Option("maxTriggerDelay", duration_ms, "max_trigger_delay_ms"),
)
"""Every option for reading, in Spark's spelling; ``view=compacted`` is the ledger and the tail behind it."""

__all__ = ["COMPACTED", "LATEST_VIEW", "LOG", "OPTIONS", "ReadOptions", "TopicPartition"]
