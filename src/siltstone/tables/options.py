"""The options of a table over log directories: texts by name become ``ReadOptions`` with checked values.

::

    {"path": "/kafka", "subscribe": "users", "view": "latest"}        texts, as Spark passes them
        │ OPTIONS has a row for each name: a parser for its text, and the field of ReadOptions that it sets
        ▼
    ReadOptions(paths, selection, starting, ending, view, …)          values; contradictions are refused

Names and meanings are those of Spark's Kafka source (``KafkaSourceProvider``) where it has them; ``path``,
``paths``, ``remote``, ``table``, ``view``, ``tombstones``, ``asOfOffset``, ``asOfTimestamp``, ``isolation``,
``columns``, ``badBatches``, ``includeBatchMetadata``, ``maxPartitionBytes`` and
``maxDecompressedMessageBytes`` are Siltstone's. A new option is a row of ``OPTIONS`` and a field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec

from siltstone.base.clock import iso_ms
from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition
from siltstone.log.tiered.joining import with_remotes
from siltstone.tables.decoding import Decoders, checked_decoders

# Parsers, which reading, streaming and writing share. A parser takes an option's text and returns its value,
# or raises UsageError; ``parse_options`` adds the option's name to the error. Names ignore case.

_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_QUANTITY = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
# Bytes by unit: each letter of "bkmgt" is 1024 times the one before it, "b" is 1.
_SIZE_UNITS = {"": 1} | {unit: 1 << 10 * "bkmgt".index(unit[0]) for unit in "b k kb m mb g gb t tb".split()}
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME_UNITS = "s sec second seconds m min minute minutes h hour hours d day days".split()
_DURATION_UNITS = {"": 1, "ms": 1} | {unit: _UNIT_MS[unit[0]] for unit in _TIME_UNITS}


@dataclass(frozen=True, slots=True)
class Option:
    """An option by its documented ``name``: ``parse`` makes a value of its text (raises UsageError), which is
    stored in the ``field`` of ``ReadOptions`` or ``WriteOptions``."""

    name: str
    parse: Callable[[str], Any]
    field: str


IGNORED_OPTIONS = frozenset("location paths provider owner comment external serialization.format".split())
"""Names that Spark adds by itself for a table in its catalog. ``parse_options`` accepts them, and uses only
those that have a row."""


def parse_options(
    raw_options: Mapping[str, str], options: tuple[Option, ...], ignored: frozenset[str] = IGNORED_OPTIONS
) -> dict[str, Any]:
    """The parsed values by field. If several options set one field, the last of them in ``options`` wins.

    Raises UsageError for an unknown name or a text that is not allowed.
    """
    known = {option.name.lower(): option for option in options}
    by_name = {name.lower(): text for name, text in raw_options.items()}
    for name in raw_options:
        # Spark repeats a catalog table's options as "option.NAME"; Hive adds "transient_lastDdlTime".
        if name.lower() not in (*known, *ignored) and not name.lower().startswith(("option.", "transient_")):
            raise _unknown_option(name, known)
    values: dict[str, Any] = {}
    for name, option in known.items():
        if name in by_name:
            try:
                values[option.field] = option.parse(by_name[name])
            except UsageError as error:
                reason = f"option {option.name}={by_name[name]!r}: {error.reason}"
                raise UsageError(reason, advice=error.advice) from None
    return values


def _unknown_option(name: str, known: Mapping[str, Option]) -> UsageError:
    if name.lower().startswith("kafka."):
        is_isolation = name.lower() == "kafka.isolation.level"
        return UsageError(
            f"option {name!r} is for a broker, and siltstone reads directories",
            advice="set 'isolation'" if is_isolation else "set 'path' to a Kafka log directory",
        )
    nearest = difflib.get_close_matches(name.lower(), sorted(known), 1, 0.5)
    advice = f"did you mean {known[nearest[0]].name!r}?" if nearest else "docs/tables.md lists the options"
    return UsageError(f"unknown option {name!r}", advice=advice)


def directory_path(text: str) -> str:
    """A directory's path: the text itself, or a ``file:`` URI, as Spark's catalog writes it."""
    if not text.startswith("file:"):
        return text
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost"):
        raise UsageError("the directory is on another machine", advice="set a path of this machine")
    return unquote(uri.path)


def number(minimum: int = 0) -> Callable[[str], int]:
    """A parser of whole numbers of at least ``minimum``."""
    expected_type = Annotated[int, msgspec.Meta(ge=minimum)]

    def parse(text: str) -> int:
        try:
            return msgspec.convert(text.strip(), expected_type, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(str(error), advice=f"set a whole number >= {minimum}") from None

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser that accepts these words only, in any case; it returns the word in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise UsageError("the value is not allowed", advice=f"set {' or '.join(allowed)}")
        return text.lower()

    return parse


def _boolean_of(true_word: str, false_word: str) -> Callable[[str], bool]:
    """A parser of two words: True for ``true_word``, False for ``false_word``."""
    return lambda text: one_of(true_word, false_word)(text) == true_word


def size(text: str) -> int:
    """Bytes, with Spark's units: ``128m``, ``1g``, ``65536``."""
    return _quantity(text, _SIZE_UNITS, 1, "a size such as 128m")


def duration_ms(text: str) -> int:
    """Milliseconds from ``15m`` (minutes), ``10s``, ``500ms``; a number without a unit is milliseconds."""
    return _quantity(text, _DURATION_UNITS, 0, "a duration such as 15m")


def _quantity(text: str, units: Mapping[str, int], minimum: int, example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in units or int(match[1]) < minimum:
        raise UsageError("the value has no known unit, or is too small", advice=f"set {example}")
    return int(match[1]) * units[match[2].lower()]


def time_ms(text: str) -> int:
    """Milliseconds since 1970, from such a number or from an ISO 8601 date or time (UTC if it has no
    zone)."""
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    at_ms = iso_ms(text)
    if at_ms is None:
        advice = "set milliseconds since 1970, or a time such as 2026-01-01T12:00:00Z"
        raise UsageError("the value is no time", advice=advice)
    return at_ms


def comma_separated(text: str) -> tuple[str, ...]:
    """Comma-separated words."""
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise UsageError("the list is empty", advice="set at least one name, separated by commas")
    return names


# Which partitions and offsets a query reads, chosen as in Spark's Kafka source.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection:
    """The partitions to read: at most one field is set; all partitions if none is.

    ``assign``: these partitions; ``subscribe``: these topics; ``pattern``: topics whose whole name matches
    this regular expression."""

    assign: tuple[TopicPartition, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None

    def __str__(self) -> str:
        return ",".join(map(str, self.assign or self.subscribe or ())) or self.pattern or ""

    def selects(self, topic_partition: TopicPartition) -> bool:
        """Is this partition selected, whether it exists or not?"""
        if self.assign is not None:
            return topic_partition in self.assign
        if self.subscribe is not None:
            return topic_partition.topic in self.subscribe
        return self.pattern is None or re.fullmatch(self.pattern, topic_partition.topic) is not None

    def select_from(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The selected ones of these existing partitions, ascending.

        Raises UnknownTopicError if a selected partition or topic does not exist; a pattern may match nothing.
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
        return [topic_partition for topic_partition in present if self.selects(topic_partition)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimit:
    """The start or the end of a read: one value for ``every_partition``, or a value ``by_partition``.

    A value is an offset (``EARLIEST_TIMESTAMP``, -2, and ``LATEST_TIMESTAMP``, -1, stand for the log's start
    and end), or with ``is_time`` a time in ms."""

    every_partition: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def value_for(self, topic_partition: TopicPartition) -> int:
        """A partition's offset or time. Raises KeyError for a partition that ``by_partition`` leaves out."""
        return self.by_partition[topic_partition] if self.every_partition is None else self.every_partition

    def __str__(self) -> str:
        limits = ",".join(f"{at}:{limit}" for at, limit in sorted(self.by_partition.items()))
        return f"{limits or self.every_partition}{' ms' if self.is_time else ''}"

    def has_offset(self, offset: int) -> bool:
        """Is the limit this offset, for at least one partition?"""
        return not self.is_time and offset in (self.every_partition, *self.by_partition.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The only records that a query returns: all conditions that are not None hold.

    ``partitions``: numbers, of every selected topic. ``start_offset``, ``end_offset`` and ``start_ms``,
    ``end_ms``: from the start on, below the end. ``keys``: the records with one of these keys.
    """

    partitions: frozenset[int] | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    keys: tuple[bytes, ...] | None = None


ALL_ROWS = RowFilter()
_PartitionNumber = Annotated[int, msgspec.Meta(ge=0)]
"""0 or more."""


def _json(text: str, expected_type: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=expected_type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"not the expected JSON: {error}", advice=f"set JSON such as {example}") from None


def _assigned_partitions(text: str) -> tuple[TopicPartition, ...]:
    topics = _json(text, dict[str, list[_PartitionNumber]], '{"topicA":[0,1],"topicB":[2]}')
    return tuple(
        sorted({TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers})
    )


def _limits_by_partition(text: str, minimum: int, *, is_time: bool = False) -> OffsetLimit:
    """Offsets or times by partition, of at least ``minimum``: ``{"topicA":{"0":23,"1":-2}}``."""
    topics = _json(text, dict[str, dict[_PartitionNumber, int]], '{"topicA":{"0":23,"1":345}}')
    limits = {
        TopicPartition(topic, number): limit for topic in topics for number, limit in topics[topic].items()
    }
    for topic_partition, limit in limits.items():
        if limit < minimum:
            advice = f"set numbers >= {minimum} for all partitions"
            raise UsageError(f"{limit} of {topic_partition} is not allowed", advice=advice)
    return OffsetLimit(by_partition=limits, is_time=is_time)


LOG_VIEW, LATEST_VIEW, COMPACTED_VIEW = VIEWS = ("log", "latest", "compacted")
RECORDS_TABLE = "records"
_FILE_TABLES = (
    "batches offsetIndex timeIndex transactionIndex producerSnapshots leaderEpochs checkpoints".split()
)
_DECODED_TABLES = ["consumerOffsets", "transactionState"]
_OTHER_TABLES = [*_FILE_TABLES, *_DECODED_TABLES]
"""The names of tables as documented; ``ReadOptions.table`` and ``file_tables`` have them in lower case."""
SET_PATH = "set it to a Kafka log directory, or to the directory of one partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a query. ``paths``: log directories of one broker, or the directory of one partition.

    ``starting``, ``ending``: None is the log start offset, or the end that a consumer can read to. ``as_of``:
    read the log as it was after this offset, or at this time in ms. ``latest_if_no_match``: if no record is
    at or after the starting time, start at the end; otherwise that is an error.
    ``fail_on_data_loss``: deleted offsets are an error. None for a bound of a split (``*_partition*``) or of
    a micro-batch (``*_per_trigger``) is no bound. ``columns`` None: all but the headers. ``view``: every
    record (``log``), the last record of each key (``latest``), or what side-by-side compaction kept, and the
    records after it (``compacted``). ``keep_tombstones``: ``view=latest`` also returns keys whose last record
    is a tombstone. ``quarantine_bad_batches``: a batch that cannot be read is a row with the reason, instead
    of an error. Sizes are in bytes; ``max_decompressed_message_bytes``: the most that one batch may
    decompress to. ``row_filter``: the records that are returned (``with_rows`` sets it). With ``view=latest``
    it applies to the last record of each key. ``decoders``: how keys and values become typed columns
    (``with_decoders`` sets it). ``remote``: the URL or directory of a tiered storage, whose segments are read
    with the local ones. ``table``: ``RECORDS_TABLE``, or the name of another table in lower case.
    """

    paths: tuple[str, ...]
    selection: PartitionSelection = PartitionSelection()
    starting: OffsetLimit | None = None
    ending: OffsetLimit | None = None
    as_of: OffsetLimit | None = None
    latest_if_no_match: bool = False
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
    view: str = LOG_VIEW
    keep_tombstones: bool = False
    isolation: str = READ_COMMITTED
    quarantine_bad_batches: bool = False
    include_batch_metadata: bool = False
    table: str = RECORDS_TABLE
    row_filter: RowFilter = ALL_ROWS
    decoders: Decoders = field(default_factory=dict)
    remote: str | None = None

    @property
    def directories(self) -> list[Path]:
        """``paths``, with the tiered storage joined to each. Raises UsageError, OSError."""
        return with_remotes(list(map(Path, self.paths)), self.remote)

    @classmethod
    def of(cls, raw_options: Mapping[str, str], *, is_streaming: bool = False) -> ReadOptions:
        """Parse the texts of options by name. Raises UsageError.

        ``is_streaming``: for ``readStream``, which may start at "latest" and has no end.
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
        _refuse_contradictions(options, is_streaming)
        return options

    def with_rows(self, row_filter: RowFilter) -> ReadOptions:
        """These options with a filter of records. Raises UsageError if the table's rows are not records."""
        if row_filter != ALL_ROWS and (self.table != RECORDS_TABLE or self.quarantine_bad_batches):
            reason = "offsets, timestamps, partitions and keys choose records, and not all rows are records"
            advice = "filter the DataFrame, or leave out table and badBatches=quarantine"
            raise UsageError(reason, advice=advice)
        return replace(self, row_filter=row_filter)

    def with_decoders(self, decode: Any) -> ReadOptions:
        """These options with the argument ``decode``. Raises UsageError, also if the table's rows are not
        records."""
        if decode is None:
            return self
        if self.table != RECORDS_TABLE or self.quarantine_bad_batches:
            reason = "decode is for the values of records, and not all rows are records"
            raise UsageError(reason, advice="leave out table and badBatches=quarantine")
        return replace(self, decoders=checked_decoders(decode))


_TITLE_FIELDS = {"table": "table", "view": "view", "isolation": "isolation"}
_TITLE_FIELDS |= {"starting": "starting", "ending": "ending", "as_of": "asOf"}
"""Fields that ``plan_title`` shows, and the name that each has there."""


def plan_title(options: ReadOptions) -> str:
    """A short description of the query, for the plans of queries: ``siltstone /backup/kafka users
    view=latest``.

    Options with their defaults are left out, and so is the filter of records: keys may be secret."""
    words, defaults = ["siltstone", ",".join(options.paths), str(options.selection)], ReadOptions(paths=())
    for name, shown in _TITLE_FIELDS.items():
        if getattr(options, name) != getattr(defaults, name):
            words.append(f"{shown}={getattr(options, name)}")
    return " ".join(filter(None, words))


def _refuse_contradictions(options: ReadOptions, is_streaming: bool) -> None:
    is_log_view, is_records_table = options.view == LOG_VIEW, options.table == RECORDS_TABLE
    if is_streaming and (not is_log_view or options.as_of is not None or options.ending is not None):
        raise UsageError("a stream has view=log, no asOf and no ending", advice="use a batch query for these")
    if options.ending is not None and options.as_of is not None:
        raise UsageError("an ending and asOf are both set", advice="set one of the two")
    if options.view == COMPACTED_VIEW and options.as_of is not None:
        reason = "view=compacted has no asOf: a ledger has only its last state"
        raise UsageError(reason, advice="set view=latest")
    if options.keep_tombstones and options.view != LATEST_VIEW:
        reason = "tombstones=keep is for view=latest; view=log has all tombstones"
        raise UsageError(reason, advice="set view=latest, or leave tombstones out")
    if options.quarantine_bad_batches and not is_log_view:
        reason = "badBatches=quarantine is for view=log: a bad batch may have the last value of a key"
        raise UsageError(reason, advice="set view=log")
    if options.quarantine_bad_batches and options.table in map(str.lower, _DECODED_TABLES):
        reason = f"badBatches=quarantine is not for table={options.table}, whose rows are decoded records"
        raise UsageError(reason, advice="leave badBatches out, or read table=records")
    if options.include_batch_metadata and not (is_log_view and is_records_table):
        raise UsageError("includeBatchMetadata is for records with view=log", advice="leave it out")
    if not is_records_table and (options.columns is not None or options.include_headers or is_streaming):
        reason = f"table={options.table} has columns of its own, and is no stream"
        raise UsageError(reason, advice="choose columns with select, in a batch query")
    if not is_streaming and options.starting is not None and options.starting.has_offset(LATEST_TIMESTAMP):
        reason = "a batch query cannot start at the latest offset"
        raise UsageError(reason, advice="set another offset in startingOffsets")
    if options.ending is not None and options.ending.has_offset(EARLIEST_TIMESTAMP):
        reason = "a query cannot end at the earliest offset"
        raise UsageError(reason, advice="set another offset in endingOffsets")


def _offset_limit(text: str) -> OffsetLimit:
    """``earliest``, ``latest`` or JSON by partition."""
    offsets_by_word = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
    every_partition = offsets_by_word.get(text.strip().lower())
    return (
        _limits_by_partition(text, EARLIEST_TIMESTAMP)
        if every_partition is None
        else OffsetLimit(every_partition=every_partition)
    )


def _times_by_partition(text: str) -> OffsetLimit:
    return _limits_by_partition(text, 0, is_time=True)


def _time_for_every_partition(text: str) -> OffsetLimit:
    return OffsetLimit(every_partition=time_ms(text), is_time=True)


def _as_of_offset(text: str) -> OffsetLimit:
    """An offset for every partition, or JSON by partition."""
    is_json = text.strip().startswith("{")
    return _limits_by_partition(text, 0) if is_json else OffsetLimit(every_partition=number()(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        advice = "set a regular expression of Python's module re"
        raise UsageError(f"not a regular expression: {error}", advice=advice) from None
    return text


_boolean = _boolean_of("true", "false")
OPTIONS: tuple[Option, ...] = (
    Option("location", lambda text: (directory_path(text),), "paths"),
    Option("paths", lambda text: tuple(map(directory_path, _json(text, list[str], '["/a","/b"]'))), "paths"),
    Option("path", lambda text: (directory_path(text),), "paths"),
    Option("remote", str, "remote"),
    Option("assign", _assigned_partitions, "assign"),
    Option("subscribe", comma_separated, "subscribe"),
    Option("subscribePattern", _pattern, "pattern"),
    Option("startingOffsets", _offset_limit, "starting"),
    Option("startingOffsetsByTimestamp", _times_by_partition, "starting"),
    Option("startingTimestamp", _time_for_every_partition, "starting"),
    Option("endingOffsets", _offset_limit, "ending"),
    Option("endingOffsetsByTimestamp", _times_by_partition, "ending"),
    Option("endingTimestamp", _time_for_every_partition, "ending"),
    Option("startingOffsetsByTimestampStrategy", _boolean_of("latest", "error"), "latest_if_no_match"),
    Option("failOnDataLoss", _boolean, "fail_on_data_loss"),
    Option("minPartitions", number(minimum=1), "min_partitions"),
    Option("maxPartitionBytes", size, "max_partition_bytes"),
    Option("maxRecordsPerPartition", number(minimum=1), "max_records_per_partition"),
    Option("maxDecompressedMessageBytes", size, "max_decompressed_message_bytes"),
    Option("includeHeaders", _boolean, "include_headers"),
    Option("columns", comma_separated, "columns"),
    Option("view", one_of(*VIEWS), "view"),
    Option("tombstones", _boolean_of("keep", "drop"), "keep_tombstones"),
    Option("asOfOffset", _as_of_offset, "as_of"),
    Option("asOfTimestamp", _time_for_every_partition, "as_of"),
    Option("isolation", one_of(READ_COMMITTED, READ_UNCOMMITTED), "isolation"),
    Option("badBatches", _boolean_of("quarantine", "fail"), "quarantine_bad_batches"),
    Option("includeBatchMetadata", _boolean, "include_batch_metadata"),
    Option("table", one_of(RECORDS_TABLE, *map(str.lower, _OTHER_TABLES)), "table"),
    Option("maxOffsetsPerTrigger", number(minimum=1), "max_offsets_per_trigger"),
    Option("minOffsetsPerTrigger", number(minimum=1), "min_offsets_per_trigger"),
    Option("maxTriggerDelay", duration_ms, "max_trigger_delay_ms"),
)
"""Every option for reading, in Spark's spelling. If several are set for one field, the last one in this list
wins, as in Spark: ``startingTimestamp`` wins over ``startingOffsetsByTimestamp``, which wins over
``startingOffsets``; ``path`` wins over ``paths`` (of ``load([…])``), and both over a catalog's
``location``."""
