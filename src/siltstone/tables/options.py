"""The options of a table over log directories: texts by name, parsed into ``ReadOptions`` and checked once.

::

    {"path": "/kafka", "subscribe": "users", "view": "latest"}        texts, as Spark passes them
        │ OPTIONS: a row for each name: how its text is parsed, and the field that it sets
        ▼
    ReadOptions(paths, selection, starting, ending, view, …)          values; contradictions are refused

Names and meanings are those of Spark's Kafka source (``KafkaSourceProvider``) where it has them; ``path``,
``view``, ``tombstones``, ``asOfOffset``, ``asOfTimestamp``, ``isolation``, ``columns``, ``badBatches``,
``includeBatchMetadata``, ``maxPartitionBytes`` and ``maxDecompressedMessageBytes`` are Siltstone's. A new
option is a row of ``OPTIONS`` and a field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec

from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition

# Parsing, the same for reading, streaming and writing. Names are not case-sensitive. A parser raises
# UsageError with what is wrong with a text and what is allowed; ``parse_options`` adds the option's name.

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_QUANTITY = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_BYTES = {"": 1} | {unit: 1 << 10 * "bkmgt".index(unit[0]) for unit in "b k kb m mb g gb t tb".split()}
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME_UNITS = "s sec second seconds m min minute minutes h hour hours d day days".split()
_MS = {"": 1, "ms": 1} | {unit: _UNIT_MS[unit[0]] for unit in _TIME_UNITS}


@dataclass(frozen=True, slots=True)
class Option:
    """``name`` as documented, ``parse`` for its text (raises UsageError), and the ``field`` that it sets."""

    name: str
    parse: Callable[[str], Any]
    field: str


IGNORED = frozenset("location paths provider owner comment external serialization.format".split())
"""Options that Spark adds itself, such as properties of a table in a catalog: ignored unless they are
known."""


def parse_options(
    raw_options: Mapping[str, str], options: tuple[Option, ...], ignored: frozenset[str] = IGNORED
) -> dict[str, Any]:
    """Values by field; of several options for one field the last row of ``options`` wins.

    Raises UsageError for an unknown name or a text that is not allowed.
    """
    known = {option.name.lower(): option for option in options}
    by_name = {name.lower(): text for name, text in raw_options.items()}
    for name in raw_options:
        if name.lower() not in (*known, *ignored) and not name.lower().startswith(("option.", "transient_")):
            raise _unknown(name, known)
    values: dict[str, Any] = {}
    for name, option in known.items():
        if name in by_name:
            try:
                values[option.field] = option.parse(by_name[name])
            except UsageError as error:
                reason = f"option {option.name}={by_name[name]!r}: {error.reason}"
                raise UsageError(reason, advice=error.advice) from None
    return values


def _unknown(name: str, known: Mapping[str, Option]) -> UsageError:
    if name.lower().startswith("kafka."):
        is_isolation = name.lower() == "kafka.isolation.level"
        return UsageError(
            f"option {name!r} is for a broker, and siltstone reads directories",
            advice="set 'isolation'" if is_isolation else "set 'path' to a Kafka log directory",
        )
    nearest = difflib.get_close_matches(name.lower(), sorted(known), 1, 0.5)
    advice = f"did you mean {known[nearest[0]].name!r}?" if nearest else "docs/tables.md lists the options"
    return UsageError(f"unknown option {name!r}", advice=advice)


def directory(text: str) -> str:
    """A directory's path: the text itself, or a ``file:`` URI, as Spark's catalog writes it."""
    if not text.startswith("file:"):
        return text
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost"):
        raise UsageError("the directory is on another machine", advice="set a path of this machine")
    return unquote(uri.path)


def number(minimum: int = 0) -> Callable[[str], int]:
    """A whole number of at least ``minimum``."""
    kind = Annotated[int, msgspec.Meta(ge=minimum)]

    def parse(text: str) -> int:
        try:
            return msgspec.convert(text.strip(), kind, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(str(error), advice=f"set a whole number >= {minimum}") from None

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """One of some words, in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise UsageError("the value is not allowed", advice=f"set {' or '.join(allowed)}")
        return text.lower()

    return parse


def _is(word: str, other: str) -> Callable[[str], bool]:
    """Is it ``word`` rather than ``other``?"""
    return lambda text: one_of(word, other)(text) == word


def size(text: str) -> int:
    """Bytes, with Spark's units: ``128m``, ``1g``, ``65536``."""
    return _quantity(text, _BYTES, 1, "a size such as 128m")


def duration_ms(text: str) -> int:
    """Milliseconds from ``15m``, ``10s``, ``500ms``; a bare number is ms."""
    return _quantity(text, _MS, 0, "a duration such as 15m")


def _quantity(text: str, units: Mapping[str, int], minimum: int, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in units or int(match[1]) < minimum:
        raise UsageError("the value has no known unit, or is too small", advice=f"set {example}")
    return int(match[1]) * units[match[2].lower()]


def time_ms(text: str) -> int:
    """Milliseconds since 1970 from themselves or from an ISO 8601 date or time; UTC where it has no zone."""
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        advice = "set milliseconds since 1970, or a time such as 2026-01-01T12:00:00Z"
        raise UsageError("the value is no time", advice=advice) from None
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def words(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    listed = tuple(word.strip() for word in text.split(",") if word.strip())
    if not listed:
        raise UsageError("the list is empty", advice="set at least one name, separated by commas")
    return listed


# The partitions and the offsets that a table has, chosen as in Spark's Kafka source.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection:
    """Partitions by name: at most one field is set, none for all partitions. ``pattern`` has to match the
    whole topic."""

    assign: tuple[TopicPartition, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None

    def has(self, topic_partition: TopicPartition) -> bool:
        """Is this partition selected, whether it exists or not?"""
        if self.assign is not None:
            return topic_partition in self.assign
        if self.subscribe is not None:
            return topic_partition.topic in self.subscribe
        return self.pattern is None or re.fullmatch(self.pattern, topic_partition.topic) is not None

    def of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The selected ones among those of a directory, ascending.

        Raises UnknownTopicError for one that is named and not among them; a pattern may match nothing.
        """
        present = sorted(partitions)
        topics = {topic_partition.topic for topic_partition in present}
        missing = [
            str(topic_partition) for topic_partition in self.assign or () if topic_partition not in present
        ]
        missing += [topic for topic in self.subscribe or () if topic not in topics]
        if missing:
            raise UnknownTopicError(
                "no such topic or partition in the directory",
                path=", ".join(missing),
                advice="siltstone topics --describe shows what there is",
            )
        return [topic_partition for topic_partition in present if self.has(topic_partition)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimit:
    """The start or the end of a read: ``every`` for all partitions, or ``by_partition``; offsets (also
    ``EARLIEST_TIMESTAMP`` or ``LATEST_TIMESTAMP``) or times in ms."""

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def of(self, topic_partition: TopicPartition) -> int:
        """A partition's limit. Raises KeyError for one that ``by_partition`` leaves out."""
        return self.by_partition[topic_partition] if self.every is None else self.every

    def is_offset(self, offset: int) -> bool:
        """Is it this offset for some partition?"""
        return not self.is_time and offset in (self.every, *self.by_partition.values())


_Number = Annotated[int, msgspec.Meta(ge=0)]


def _json(text: str, kind: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"not the expected JSON: {error}", advice=f"set JSON such as {example}") from None


def _assign(text: str) -> tuple[TopicPartition, ...]:
    topics = _json(text, dict[str, list[_Number]], '{"topicA":[0,1],"topicB":[2]}')
    return tuple(
        sorted({TopicPartition(topic, number) for topic, listed in topics.items() for number in listed})
    )


def _limits(text: str, minimum: int, *, is_time: bool = False) -> OffsetLimit:
    """``{"topicA":{"0":23,"1":-2}}``, numbers from ``minimum`` on."""
    topics = _json(text, dict[str, dict[_Number, int]], '{"topicA":{"0":23,"1":345}}')
    limits = {
        TopicPartition(topic, number): limit for topic in topics for number, limit in topics[topic].items()
    }
    for topic_partition, limit in limits.items():
        if limit < minimum:
            advice = f"set numbers >= {minimum} for all partitions"
            raise UsageError(f"{limit} of {topic_partition} is not allowed", advice=advice)
    return OffsetLimit(by_partition=limits, is_time=is_time)


LOG, LATEST_VIEW, COMPACTED = VIEWS = ("log", "latest", "compacted")
RECORDS = "records"
_OTHER_TABLES = (
    "batches offsetIndex timeIndex transactionIndex producerSnapshots leaderEpochs checkpoints "
    "consumerOffsets transactionState"
).split()
SET_PATH = "set it to a Kafka log directory, or to the directory of one partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a query reads. ``paths``: log directories of one broker, or one partition's.

    ``starting``, ``ending``: offsets or times; None: the log start offset, and the readable end. ``as_of`` is
    for the views log and latest; its offset or its time in ms is included. ``latest_without_match``: if no
    record is as late as the starting time, start at the end. ``fail_on_data_loss``: deleted offsets are an
    error. Of the bounds of a split, and of a stream's micro-batch, None is no bound. ``columns`` None: all
    but the headers. ``quarantine``: a batch that cannot be read is a row with the reason, instead of an
    error. Sizes are in bytes, ``max_decompressed_message_bytes`` of one batch.
    """

    paths: tuple[str, ...]
    selection: PartitionSelection = PartitionSelection()
    starting: OffsetLimit | None = None
    ending: OffsetLimit | None = None
    as_of: OffsetLimit | None = None
    latest_without_match: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_partition_bytes: int = 128 << 20
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    max_decompressed_message_bytes: int = DEFAULT_DECOMPRESSION_LIMIT
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    view: str = LOG
    keep_tombstones: bool = False
    isolation: str = READ_COMMITTED
    quarantine: bool = False
    batch_metadata: bool = False
    table: str = RECORDS

    @classmethod
    def of(cls, raw_options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
        """From texts by name. Raises UsageError.

        ``streaming``: for ``readStream``, which may start at "latest" and has no end.
        """
        for names in (("assign", "subscribe", "subscribePattern"), ("asOfOffset", "asOfTimestamp")):
            if sum(name.lower() in map(str.lower, names) for name in raw_options) > 1:
                reason = f"several of {', '.join(names)} are set"
                raise UsageError(reason, advice=f"set one of {', '.join(names)}")
        values = parse_options(raw_options, OPTIONS)
        if not values.get("paths"):
            raise UsageError("option 'path' is missing", advice=SET_PATH)
        selected = {name: values.pop(name) for name in ("assign", "subscribe", "pattern") if name in values}
        options = cls(selection=PartitionSelection(**selected), **values)
        _refuse_contradictions(options, streaming)
        return options


def _refuse_contradictions(options: ReadOptions, streaming: bool) -> None:
    is_log, is_records = options.view == LOG, options.table == RECORDS
    if streaming and (not is_log or options.as_of is not None or options.ending is not None):
        raise UsageError("a stream has view=log, no asOf and no ending", advice="use a batch query for these")
    if options.ending is not None and options.as_of is not None:
        raise UsageError("an ending and asOf are both set", advice="set one of the two")
    if options.view == COMPACTED and options.as_of is not None:
        reason = "view=compacted has no asOf: a ledger has only its last state"
        raise UsageError(reason, advice="set view=latest")
    if options.keep_tombstones and options.view != LATEST_VIEW:
        reason = "tombstones=keep is for view=latest; view=log has all tombstones"
        raise UsageError(reason, advice="set view=latest, or leave tombstones out")
    if options.quarantine and not is_log:
        reason = "badBatches=quarantine is for view=log: a bad batch may have the last value of a key"
        raise UsageError(reason, advice="set view=log")
    if options.batch_metadata and not (is_log and is_records):
        raise UsageError("includeBatchMetadata is for records with view=log", advice="leave it out")
    if not is_records and (options.columns is not None or options.include_headers or streaming):
        reason = f"table={options.table} has columns of its own, and is no stream"
        raise UsageError(reason, advice="choose columns with select, in a batch query")
    if not streaming and options.starting is not None and options.starting.is_offset(LATEST_TIMESTAMP):
        reason = "a batch query cannot start at the latest offset"
        raise UsageError(reason, advice="set another offset in startingOffsets")
    if options.ending is not None and options.ending.is_offset(EARLIEST_TIMESTAMP):
        reason = "a query cannot end at the earliest offset"
        raise UsageError(reason, advice="set another offset in endingOffsets")


def _offset_limit(text: str) -> OffsetLimit:
    """``earliest``, ``latest`` or JSON by partition."""
    words_of_limits = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
    every = words_of_limits.get(text.strip().lower())
    return _limits(text, EARLIEST_TIMESTAMP) if every is None else OffsetLimit(every=every)


def _times(text: str) -> OffsetLimit:
    return _limits(text, 0, is_time=True)


def _one_time(text: str) -> OffsetLimit:
    return OffsetLimit(every=time_ms(text), is_time=True)


def _as_of_offset(text: str) -> OffsetLimit:
    """An offset for every partition, or JSON by partition."""
    return _limits(text, 0) if text.strip().startswith("{") else OffsetLimit(every=number()(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        advice = "set a regular expression of Python's module re"
        raise UsageError(f"not a regular expression: {error}", advice=advice) from None
    return text


_boolean = _is("true", "false")
OPTIONS: tuple[Option, ...] = (
    Option("location", lambda text: (directory(text),), "paths"),
    Option("paths", lambda text: tuple(map(directory, _json(text, list[str], '["/a","/b"]'))), "paths"),
    Option("path", lambda text: (directory(text),), "paths"),
    Option("assign", _assign, "assign"),
    Option("subscribe", words, "subscribe"),
    Option("subscribePattern", _pattern, "pattern"),
    Option("startingOffsets", _offset_limit, "starting"),
    Option("startingOffsetsByTimestamp", _times, "starting"),
    Option("startingTimestamp", _one_time, "starting"),
    Option("endingOffsets", _offset_limit, "ending"),
    Option("endingOffsetsByTimestamp", _times, "ending"),
    Option("endingTimestamp", _one_time, "ending"),
    Option("startingOffsetsByTimestampStrategy", _is("latest", "error"), "latest_without_match"),
    Option("failOnDataLoss", _boolean, "fail_on_data_loss"),
    Option("minPartitions", number(1), "min_partitions"),
    Option("maxPartitionBytes", size, "max_partition_bytes"),
    Option("maxRecordsPerPartition", number(1), "max_records_per_partition"),
    Option("maxDecompressedMessageBytes", size, "max_decompressed_message_bytes"),
    Option("includeHeaders", _boolean, "include_headers"),
    Option("columns", words, "columns"),
    Option("view", one_of(*VIEWS), "view"),
    Option("tombstones", _is("keep", "drop"), "keep_tombstones"),
    Option("asOfOffset", _as_of_offset, "as_of"),
    Option("asOfTimestamp", _one_time, "as_of"),
    Option("isolation", one_of(READ_COMMITTED, READ_UNCOMMITTED), "isolation"),
    Option("badBatches", _is("quarantine", "fail"), "quarantine"),
    Option("includeBatchMetadata", _boolean, "batch_metadata"),
    Option("table", one_of(RECORDS, *map(str.lower, _OTHER_TABLES)), "table"),
    Option("maxOffsetsPerTrigger", number(1), "max_offsets_per_trigger"),
    Option("minOffsetsPerTrigger", number(1), "min_offsets_per_trigger"),
    Option("maxTriggerDelay", duration_ms, "max_trigger_delay_ms"),
)
"""Every option for reading, in Spark's spelling. A later row wins over an earlier one of its field, as in
Spark: one time over times by partition over offsets, ``path`` over the several of ``load([…])`` over a
catalog's location."""
