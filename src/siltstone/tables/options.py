"""The options of a table over log directories: ``ReadOptions``, checked once when they are parsed.

Names and meanings are those of Spark's Kafka source (``KafkaSourceProvider``) where it has them; ours are
``path``, ``view``, ``tombstones``, ``asOfOffset``, ``asOfTimestamp``, ``isolation``, ``columns``,
``badBatches``, ``includeBatchMetadata``, ``maxPartitionBytes`` and ``maxDecompressedMessageBytes``. A new
option is a row of ``OPTIONS`` and a field here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition

# Options as a data source gets them: texts by names whose case does not count. The same for reading,
# streaming and writing.

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_QUANTITY = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_BYTES = {"": 1} | {unit: 1 << 10 * "bkmgt".index(unit[0]) for unit in "b k kb m mb g gb t tb".split()}
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME_UNITS = "s sec second seconds m min minute minutes h hour hours d day days".split()
_MS = {"": 1, "ms": 1} | {unit: _UNIT_MS[unit[0]] for unit in _TIME_UNITS}


@dataclass(frozen=True, slots=True)
class Option:
    """``name`` as people write it, ``parse`` for its text (ValueError: what is wrong with it), and the field
    that holds the value."""

    name: str
    parse: Callable[[str], Any]
    field: str


IGNORED = frozenset("location paths provider owner comment external serialization.format".split())
"""What Spark passes on by itself: a catalog's properties of a table among them."""


def parse_options(
    texts: Mapping[str, str], table: tuple[Option, ...], ignored: frozenset[str] = IGNORED
) -> dict[str, Any]:
    """Values by field; of several options for one field the last of the table counts.

    Raises UsageError for an unknown name or a text that is not allowed.
    """
    known = {option.name.lower(): option for option in table}
    by_name = {name.lower(): text for name, text in texts.items()}
    for name in texts:
        if name.lower() not in (*known, *ignored) and not name.lower().startswith(("option.", "transient_")):
            raise UsageError(_unknown(name, known))
    values: dict[str, Any] = {}
    for name, option in known.items():
        if name in by_name:
            try:
                values[option.field] = option.parse(by_name[name])
            except (ValueError, msgspec.ValidationError) as error:
                raise UsageError(f"option {option.name}={by_name[name]!r}: {error}") from None
    return values


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    if name.lower() == "kafka.isolation.level":
        return f"option {name!r}: here it is 'isolation'"
    if name.lower().startswith("kafka."):
        return f"option {name!r}: siltstone reads directories ('path') and talks to no broker"
    nearest = difflib.get_close_matches(name.lower(), sorted(known), 1, 0.5)
    return f"unknown option {name!r}" + (f"; did you mean {known[nearest[0]].name!r}?" if nearest else "")


def directory(text: str) -> str:
    """A directory's name: itself, or a ``file:`` URI, as Spark's catalog writes it."""
    if not text.startswith("file:"):
        return text
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost"):
        raise ValueError("give a directory of this machine")
    return unquote(uri.path)


def number(least: int = 0) -> Callable[[str], int]:
    """A whole number of at least ``least``."""
    kind = Annotated[int, msgspec.Meta(ge=least)]
    return lambda text: msgspec.convert(text.strip(), kind, strict=False)


def one_of(*allowed: str) -> Callable[[str], str]:
    """One of some words, in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"give {' or '.join(allowed)}")
        return text.lower()

    return parse


def _is(word: str, other: str) -> Callable[[str], bool]:
    """Is it ``word``, and not ``other``?"""
    return lambda text: one_of(word, other)(text) == word


def size(text: str) -> int:
    """Bytes, with Spark's endings: ``128m``, ``1g``, ``65536``."""
    return _quantity(text, _BYTES, 1, "a size such as 128m")


def duration_ms(text: str) -> int:
    """Milliseconds from ``15m``, ``10s``, ``500ms``; a bare number is ms."""
    return _quantity(text, _MS, 0, "a duration such as 15m")


def _quantity(text: str, units: Mapping[str, int], least: int, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in units or int(match[1]) < least:
        raise ValueError(f"give {example}")
    return int(match[1]) * units[match[2].lower()]


def time_ms(text: str) -> int:
    """Milliseconds since 1970 from themselves or from an ISO 8601 date or time; UTC where it has no zone."""
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("give milliseconds since 1970, or a time such as 2026-01-01T12:00:00Z") from None
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def words(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    listed = tuple(word.strip() for word in text.split(",") if word.strip())
    if not listed:
        raise ValueError("give at least one, separated by commas")
    return listed


# Which partitions of a directory a table is over, and from where to where, as Spark's Kafka source has it.

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a side of the log, in Kafka and in Spark's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection:
    """Partitions by name: at most one field is set, none for all partitions. ``pattern`` has to match the
    whole topic."""

    assign: tuple[TopicPartition, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None

    def has(self, where: TopicPartition) -> bool:
        """Is this partition chosen, whether it exists or not?"""
        if self.assign is not None:
            return where in self.assign
        if self.subscribe is not None:
            return where.topic in self.subscribe
        return self.pattern is None or re.fullmatch(self.pattern, where.topic) is not None

    def of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The chosen ones among those of a directory, ascending.

        Raises UnknownTopicError for one that is named and not among them; a pattern may match nothing.
        """
        present = sorted(partitions)
        topics = {where.topic for where in present}
        for what, missing in (
            ("partition", [str(where) for where in self.assign or () if where not in present]),
            ("topic", [topic for topic in self.subscribe or () if topic not in topics]),
        ):
            if missing:
                raise UnknownTopicError(f"{', '.join(missing)}: there is no such {what} in the directory")
        return [where for where in present if self.has(where)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimit:
    """One side of what is read: ``every`` for all partitions, or ``by_partition``; offsets or times in ms.

    Offsets may be ``EARLIEST`` or ``LATEST``.
    """

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def of(self, where: TopicPartition) -> int:
        """A partition's limit. Raises KeyError for one that ``by_partition`` leaves out."""
        return self.by_partition[where] if self.every is None else self.every

    def is_offset(self, offset: int) -> bool:
        """Is it this offset for some partition?"""
        return not self.is_time and offset in (self.every, *self.by_partition.values())


_Number = Annotated[int, msgspec.Meta(ge=0)]


def _json(text: str, kind: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"is no JSON such as {example}: {error}") from None


def _assign(text: str) -> tuple[TopicPartition, ...]:
    topics = _json(text, dict[str, list[_Number]], '{"topicA":[0,1],"topicB":[2]}')
    return tuple(
        sorted({TopicPartition(topic, number) for topic, listed in topics.items() for number in listed})
    )


def _limits(text: str, least: int, *, is_time: bool = False) -> OffsetLimit:
    """``{"topicA":{"0":23,"1":-2}}``, numbers from ``least`` on."""
    topics = _json(text, dict[str, dict[_Number, int]], '{"topicA":{"0":23,"1":345}}')
    limits = {
        TopicPartition(topic, number): limit for topic in topics for number, limit in topics[topic].items()
    }
    for where, limit in limits.items():
        if limit < least:
            raise ValueError(f"{where}: {limit} is not allowed here")
    return OffsetLimit(by_partition=limits, is_time=is_time)


LOG, LATEST_VIEW, COMPACTED = VIEWS = ("log", "latest", "compacted")
RECORDS = "records"
_OTHER_TABLES = (
    "batches offsetIndex timeIndex transactionIndex producerSnapshots leaderEpochs checkpoints "
    "consumerOffsets transactionState"
).split()
DEFAULT_PARTITION_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimits:
    """From where to where is read: offsets or times; None is the log's own side.

    ``as_of`` holds for all views: offsets are inclusive, times in ms too. ``latest_without_match``: where no
    record is as late as the starting time, start at the end. ``fail_on_data_loss``: offsets that were deleted
    are an error.
    """

    starting: OffsetLimit | None = None
    ending: OffsetLimit | None = None
    as_of: OffsetLimit | None = None
    latest_without_match: bool = False
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How what is read is cut for tasks; sizes in bytes, None: no such bound."""

    min_partitions: int | None = None
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_records_per_partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggers:
    """How much a stream's micro-batch takes; None: no such bound."""

    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A table. ``paths``: log directories of one broker, or one partition's. ``columns`` None: all but the
    headers. ``max_decompressed_message_bytes``: of one batch."""

    paths: tuple[str, ...]
    selection: PartitionSelection = PartitionSelection()
    offsets: OffsetLimits = OffsetLimits()
    splitting: Splitting = Splitting()
    triggers: Triggers = Triggers()
    max_decompressed_message_bytes: int = DEFAULT_LIMIT
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    view: str = LOG
    keep_tombstones: bool = False
    isolation: str = READ_COMMITTED
    quarantine: bool = False
    batch_metadata: bool = False
    table: str = RECORDS

    @classmethod
    def of(cls, texts: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
        """From texts by name, whatever their case. Raises UsageError that says what is allowed.

        ``streaming``: for ``readStream``, where a side may be "latest" and there is no ending.
        """
        for names in (("assign", "subscribe", "subscribePattern"), ("asOfOffset", "asOfTimestamp")):
            if sum(name.lower() in map(str.lower, names) for name in texts) > 1:
                raise UsageError(f"give one of {' and '.join(names)}, not several")
        values = parse_options(texts, OPTIONS)
        if not values.get("paths"):
            raise UsageError("option 'path' is missing: give a Kafka log directory or one partition's")
        options = cls(
            selection=_part_of(PartitionSelection, values),
            offsets=_part_of(OffsetLimits, values),
            splitting=_part_of(Splitting, values),
            triggers=_part_of(Triggers, values),
            **values,
        )
        _refuse_contradictions(options, streaming)
        return options


Part = TypeVar("Part", PartitionSelection, OffsetLimits, Splitting, Triggers)


def _part_of(kind: type[Part], values: dict[str, Any]) -> Part:
    """Take the fields of a part out of ``values``."""
    return kind(**{part.name: values.pop(part.name) for part in fields(kind) if part.name in values})


def _refuse_contradictions(options: ReadOptions, streaming: bool) -> None:
    limits = options.offsets
    if streaming and (options.view != LOG or limits.as_of is not None or limits.ending is not None):
        raise UsageError("a stream reads view=log without an ending and without asOf")
    if limits.ending is not None and limits.as_of is not None:
        raise UsageError("give asOfOffset or asOfTimestamp, or an ending, not both")
    if options.view == COMPACTED and limits.as_of is not None:
        raise UsageError("view=compacted has no asOf: a ledger knows only its last state; use view=latest")
    if options.keep_tombstones and options.view != LATEST_VIEW:
        raise UsageError("tombstones=keep is for view=latest; the log shows them anyway")
    if options.quarantine and options.view != LOG:
        raise UsageError("badBatches=quarantine is for view=log: a lost batch may hold a key's last value")
    if options.batch_metadata and (options.view != LOG or options.table != RECORDS):
        raise UsageError("includeBatchMetadata is for the records of view=log")
    if options.table != RECORDS and (options.columns is not None or options.include_headers or streaming):
        raise UsageError(f"table={options.table} has columns of its own, and is no stream: use select")
    if not streaming and limits.starting is not None and limits.starting.is_offset(LATEST):
        raise UsageError("startingOffsets: a batch query cannot start at the latest offset")
    if limits.ending is not None and limits.ending.is_offset(EARLIEST):
        raise UsageError("endingOffsets: a query cannot end at the earliest offset")


def _offset_limit(text: str) -> OffsetLimit:
    """``earliest``, ``latest`` or JSON by partition."""
    sides = {"earliest": EARLIEST, "latest": LATEST}
    side = sides.get(text.strip().lower())
    return _limits(text, EARLIEST) if side is None else OffsetLimit(every=side)


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
        raise ValueError(f"is no regular expression: {error}") from None
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
"""Every option for reading, in Spark's spelling; the order is Spark's precedence: one time before times by
partition before offsets, ``path`` before the several of ``load([…])`` before a catalog table's location."""
