"""What a table over log directories is asked for: ``ReadOptions``, checked once and for all.

Names and meanings are those of Spark's Kafka source (``KafkaSourceProvider``) where it has them; ours are
``path``, ``view``, ``tombstones``, ``asOfOffset``, ``asOfTimestamp``, ``isolation``, ``columns``,
``badBatches``, ``includeBatchMetadata``, ``maxPartitionBytes`` and ``maxDecompressedMessageBytes``. What is
given as a text is read by ``OPTIONS``: a new option is a row there and a field here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition

# Options as a data source gets them: texts by names whose case does not count.
#
# A table of ``Option`` says which there are; ``parse_options`` turns what was given into values and refuses
# names that are not in it, with the nearest that is. The same for reading, streaming and writing.

_SIZE = re.compile(r"(\d+)\s*(b|k|kb|m|mb|g|gb|t|tb)?", re.IGNORECASE)
_SCALE = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"(\d+)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?", re.IGNORECASE)
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Option:
    """``name`` as people write it, ``parse`` its text (ValueError: what is wrong with it)."""

    name: str
    parse: Callable[[str], Any]
    field: str


IGNORED = frozenset("provider location owner comment external serialization.format paths".split())
"""What Spark hands on by itself: a catalog's properties of a table among them."""


def parse_options(given: Mapping[str, str], table: tuple[Option, ...]) -> dict[str, Any]:
    """Values by field. Raises UsageError for an unknown name or a text that is not allowed."""
    known = {option.name.lower(): option for option in table}
    found: dict[str, Any] = {}
    for name, text in given.items():
        lower = name.lower()
        option = known.get(lower)
        if option is None and (lower in IGNORED or lower.startswith(("option.", "transient_"))):
            continue
        if option is None:
            raise UsageError(_unknown(name, known))
        try:
            found[option.field] = option.parse(text)
        except ValueError as error:
            raise UsageError(f"option {option.name}={text!r}: {error}") from None
    return found


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
    found = urlsplit(text)
    if found.netloc not in ("", "localhost"):
        raise ValueError("give a directory of this machine")
    return unquote(found.path)


def boolean(text: str) -> bool:
    """true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def number(least: int = 0) -> Callable[[str], int]:
    """A whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII) or int(text) < least:
            raise ValueError(f"give a whole number of at least {least}")
        return int(text)

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """One of some words, in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"give {' or '.join(allowed)}")
        return text.lower()

    return parse


def size(text: str) -> int:
    """Bytes, with Spark's endings: ``128m``, ``1g``, ``65536``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise ValueError("give a size such as 128m")
    return int(found[1]) << _SCALE[(found[2] or "").lower()[:1]]


def duration_ms(text: str) -> int:
    """Milliseconds from ``15m``, ``10s``, ``500ms``; a bare number is ms."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError("give a duration such as 15m")
    unit = (found[2] or "ms").lower()
    return int(found[1]) * (1 if unit == "ms" else _MS[unit[0]])


def time_ms(text: str) -> int:
    """Milliseconds since 1970 from themselves or from an ISO 8601 date or time; UTC where it has no zone."""
    if re.fullmatch(r"-?\d{1,19}", text.strip(), re.ASCII):
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("give milliseconds since 1970, or a time such as 2026-01-01T12:00:00Z") from None
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    since = zoned - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def words(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError("give at least one, separated by commas")
    return found


# Which partitions of a directory a table is over, and from where to where, as Spark's Kafka source has it.
#
# ``PartitionSelection`` is one of ``assign``, ``subscribe``, ``subscribePattern``, or nothing: all there are.
# ``OffsetLimit`` is one side: the same for every partition or a number for each; an offset, or a time that
# stands for one.

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a side of the log, in Kafka and in Spark's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection:
    """Partitions by name; at most one of the three is given. ``pattern`` has to match the whole topic."""

    assign: tuple[TopicPartition, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None

    def has(self, where: TopicPartition) -> bool:
        """Is this partition chosen, be it there or not?"""
        if self.assign is not None:
            return where in self.assign
        if self.subscribe is not None:
            return where.topic in self.subscribe
        return self.pattern is None or re.fullmatch(self.pattern, where.topic) is not None

    def of(self, there: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The chosen ones among those that are there, ascending.

        Raises UnknownTopicError for one that is named and not there; a pattern may match nothing.
        """
        found = sorted(there)
        topics = {each.topic for each in found}
        _refuse_missing([str(each) for each in self.assign or () if each not in found], "partition")
        _refuse_missing([name for name in self.subscribe or () if name not in topics], "topic")
        return [each for each in found if self.has(each)]


def _refuse_missing(missing: list[str], what: str) -> None:
    if missing:
        raise UnknownTopicError(f"{', '.join(missing)}: there is no such {what} in the directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimit:
    """One side of what is read: ``every`` for all partitions, or ``each`` its own; offsets or times in ms.

    Offsets may be ``EARLIEST`` or ``LATEST``.
    """

    every: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def of(self, where: TopicPartition) -> int:
        """What holds for a partition. Raises KeyError where ``each`` leaves it out."""
        return self.each[where] if self.every is None else self.every


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """``{"topicA":[0,1],"topicB":[2,4]}``. Raises UsageError."""
    found: list[TopicPartition] = []
    for topic, partitions in _object(text).items():
        if not isinstance(partitions, list) or not all(_is_count(each) for each in partitions):
            raise ValueError('is no JSON such as {"topicA":[0,1],"topicB":[2]}')
        found += [TopicPartition(topic, number) for number in partitions]
    return tuple(sorted(set(found)))


def parse_numbers(text: str, least: int) -> dict[TopicPartition, int]:
    """``{"topicA":{"0":23,"1":-2}}``, numbers from ``least`` on. Raises ValueError."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text).items():
        if not isinstance(numbers, dict):
            raise ValueError('is no JSON such as {"topicA":{"0":23,"1":345}}')
        for partition, number in numbers.items():
            if (
                not re.fullmatch(r"\d{1,10}", partition, re.ASCII)
                or type(number) is not int
                or number < least
            ):
                raise ValueError(f"{topic}-{partition}: {number!r} is not allowed here")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


LOG, LATEST_VIEW, COMPACTED = "log", "latest", "compacted"
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
    record is as late as the starting time, start at the end. ``fail_on_data_loss``: offsets that are gone are
    an error.
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
    def of(cls, given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
        """From texts by name, whatever their case. Raises UsageError that says what is allowed.

        ``streaming``: for ``readStream``, where a side may be "latest" and there is no ending.
        """
        found = parse_options(given, OPTIONS)
        if sum(name in found for name in ("assign", "subscribe", "pattern")) > 1:
            raise UsageError("give one of assign, subscribe and subscribePattern, not several")
        found["starting"], found["ending"] = _side(found, "starting"), _side(found, "ending")
        found["as_of"] = _as_of(found)
        paths = found.pop("path", ()) or _paths(given)
        if not paths:
            raise UsageError("option 'path' is missing: give a Kafka log directory or one partition's")
        options = cls(
            paths=paths,
            selection=_part_of(PartitionSelection, found),
            offsets=_part_of(OffsetLimits, found),
            splitting=_part_of(Splitting, found),
            triggers=_part_of(Triggers, found),
            **found,
        )
        _refuse_contradictions(options, streaming)
        return options


Part = TypeVar("Part", PartitionSelection, OffsetLimits, Splitting, Triggers)


def _part_of(kind: type[Part], found: dict[str, Any]) -> Part:
    """Take the fields of a part out of ``found``."""
    return kind(**{each.name: found.pop(each.name) for each in fields(kind) if each.name in found})


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """Several directories, as Spark hands on ``load([…])``, or the location of a catalog's table."""
    texts = {name.lower(): text for name, text in given.items()}
    listed = json.loads(texts.get("paths", "[]")) or [texts[name] for name in ("location",) if name in texts]
    return tuple(directory(each) for each in listed)


def _side(found: dict[str, Any], side: str) -> OffsetLimit | None:
    """Spark's precedence: one time for all, then times, then offsets."""
    given: list[OffsetLimit] = [
        found.pop(name) for kind in ("time", "times", "offsets") if (name := f"{side}_{kind}") in found
    ]
    return given[0] if given else None


def _as_of(found: dict[str, Any]) -> OffsetLimit | None:
    offset: OffsetLimit | None = found.pop("as_of_offset", None)
    time: OffsetLimit | None = found.pop("as_of_time", None)
    if offset is not None and time is not None:
        raise UsageError("give asOfOffset or asOfTimestamp, not both")
    return offset if offset is not None else time


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
    if not streaming and limits.starting is not None and LATEST in _offsets(limits.starting):
        raise UsageError("startingOffsets: a batch query cannot start at the latest offset")
    if limits.ending is not None and EARLIEST in _offsets(limits.ending):
        raise UsageError("endingOffsets: a query cannot end at the earliest offset")


def _offsets(bound: OffsetLimit) -> list[int]:
    return [] if bound.is_time else [bound.every or 0, *bound.each.values()]


def _offset_bound(text: str) -> OffsetLimit:
    """``earliest``, ``latest`` or JSON by partition."""
    if text.strip().lower() in ("earliest", "latest"):
        return OffsetLimit(every=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    return OffsetLimit(each=parse_numbers(text, EARLIEST))


def _times(text: str) -> OffsetLimit:
    return OffsetLimit(each=parse_numbers(text, 0), is_time=True)


def _one_time(text: str) -> OffsetLimit:
    return OffsetLimit(every=time_ms(text), is_time=True)


def _as_of_offset(text: str) -> OffsetLimit:
    """An offset for every partition, or JSON by partition."""
    if text.strip().startswith("{"):
        return OffsetLimit(each=parse_numbers(text, 0))
    return OffsetLimit(every=number()(text))


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
