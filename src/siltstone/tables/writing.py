"""Writes rows to logs: options, staged batches, and their commit.

::

    driver   WriteOptions ─► plan_write ─► WritePlan               locks only to create a topic
    tasks    WritePlan, Arrow batches ─► stage_task ─► StagedOutput
    driver   StagedOutputs ─► commit_plan ─► Write                   step by step in ``commit``

    Arrow batch ─► Rows (spans, times) ─► rows of each partition ─► BatchBuilder: encoded ─► a batch when full

Nothing is in a log before ``commit_plan``; ``abort_plan`` removes the staged files. A task does the work of
Kafka's ``RecordAccumulator``, without a Python object for each record. Base offsets are 0: the log assigns
offsets when it appends the batch. A record with a key goes to the partition of Kafka's default partitioner;
the records without a key of one Arrow batch go to one partition, and those of the next to the next.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.codec_table import CODEC_NAMES, codec_number
from siltstone.base.config import LONG_MAX, Config, LogConfig
from siltstone.base.errors import DirectoryLockedError, MessageTooLargeError, UnknownTopicError, UsageError
from siltstone.base.records.build import (
    MAX_RECORD_OVERHEAD,
    NewBatchHeader,
    Spans,
    assemble_batch,
    encode_records,
    write_span,
)
from siltstone.base.records.hashing import partitions_for_keys
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Int32, Int64
from siltstone.base.records.varint import write_varint
from siltstone.log.directory import LogDirectory, refuse_unsafe_files, resolve_directory
from siltstone.log.names import CLUSTER_METADATA, LOCK, STAGED_WRITES, TopicPartition
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TopicSettings, load_registry, read_broker_settings
from siltstone.tables.commit import (
    StagedOutput,
    StagedWriter,
    Write,
    commit_write,
    find_write,
    load_writes,
    remove_staged,
)
from siltstone.tables.options import IGNORED, SET_PATH, Option, number, one_of, parse_options, size

DEFAULT_BATCH_BYTES = 256 << 10
_MAX_PENDING = 64 << 20
"""Encoded bytes of batches that are not full yet; above it, a task finishes all of them."""
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", CLUSTER_METADATA)
_SPARKS = frozenset(("checkpointlocation", "queryname", "outputmode"))
"""Options of ``writeStream`` that Spark passes on."""

WRITE_OPTIONS: tuple[Option, ...] = (
    Option("path", str, "path"),
    Option("topic", str, "topic"),
    Option("partitions", number(1), "partitions"),
    Option("compression", one_of(*CODEC_NAMES), "compression"),
    Option("batchSize", size, "batch_bytes"),
    Option("writeId", str, "write_id"),
)
"""Every option for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """``path``: a log directory or one partition's. ``topic`` None: the column ``topic`` has it.

    ``partitions``: create a missing topic with so many. ``compression``: used only if the topic's
    ``compression.type`` is ``producer``; None: none there. ``batch_bytes``: of a batch's records before
    compression. ``write_id`` None: a random one.
    """

    path: str
    topic: str | None = None
    partitions: int | None = None
    compression: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    write_id: str | None = None

    @classmethod
    def of(cls, raw_options: Mapping[str, str]) -> WriteOptions:
        """From texts by name. Raises UsageError."""
        values = parse_options(raw_options, WRITE_OPTIONS, IGNORED | _SPARKS)
        if "path" not in values:
            raise UsageError("option 'path' is missing", advice=SET_PATH)
        if "partitions" in values and "topic" not in values:
            reason = "the option partitions is for a new topic, whose name is missing"
            raise UsageError(reason, advice="set the option topic")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    """A topic's settings for tasks; ``records_bytes_max``: bytes of a batch's records, ``batch_bytes_max``:
    of the whole batch."""

    name: str
    partitions: tuple[int, ...]
    codec: int
    records_bytes_max: int
    batch_bytes_max: int
    requires_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The plan of a write for its tasks and its commit: plain and picklable.

    ``root``: the log directory, ``only``: the one partition, if the path is a partition's. ``run``: the
    folder of the staged files. ``topic``: of all records, None: the column has it. ``is_repeated``: a write
    with this id was committed before, so the tasks stage nothing.
    """

    root: str
    only: TopicPartition | None
    run: str
    topics: tuple[TopicTarget, ...]
    topic: str | None
    write_id: str
    is_named: bool
    is_repeated: bool


def plan_write(
    options: WriteOptions, columns: Iterable[str], *, streaming: bool = False, clock: Clock | None = None
) -> WritePlan:
    """Open the directory without its lock and plan the write; with the option ``partitions``, create a
    missing topic.

    ``streaming``: each commit has its own id and epoch. Raises UsageError, UnknownTopicError,
    DirectoryLockedError, SiltstoneError, OSError.
    """
    path, columns = resolve_directory(Path(options.path)), list(columns)
    clock = clock or SystemClock()
    if options.partitions is not None and options.topic is not None:
        _refuse_columns(columns, has_topic=True)
        _make_topic(path, options.topic, options.partitions, clock)
    directory = LogDirectory.open(path, lock=False)
    _refuse_columns(columns, has_topic=options.topic is not None or directory.is_partition_subset)
    if files.is_locked(directory.path / LOCK):
        raise DirectoryLockedError(
            f"a live process holds {LOCK}",
            path=directory.path,
            advice="stop the broker (or wait for the other run) and try again",
        )
    only = next(iter(directory.partitions)) if directory.is_partition_subset else None
    topic = options.topic or (only.topic if only else None)
    shapes = _shapes(directory, options, topic)
    first = min(
        topic_partition for topic_partition in directory.partitions if topic_partition.topic == shapes[0].name
    )
    refuse_unsafe_files(directory.partitions[first])
    write_id = options.write_id or secrets.token_hex(16)
    earlier = None if streaming else find_write(load_writes(directory.path), write_id, 0)
    return WritePlan(
        root=str(directory.path),
        only=only,
        run=str(directory.partitions[first] / STAGED_WRITES / secrets.token_hex(8)),
        topics=shapes,
        topic=topic,
        write_id=write_id,
        is_named=options.write_id is not None,
        is_repeated=earlier is not None and earlier.done,
    )


def _refuse_columns(names: Sequence[str], *, has_topic: bool) -> None:
    """Raises UsageError unless these columns can be written as records."""
    unknown = [name for name in names if name not in (*RECORD_COLUMNS, *IGNORED_COLUMNS)]
    if unknown:
        raise UsageError(
            f"column {unknown[0]!r} is not a part of a record: a record has {', '.join(RECORD_COLUMNS)}",
            advice="leave the column out, or write its values as a part of value",
        )
    if "value" not in names:
        raise UsageError("the column value is missing", advice="add it; null values are tombstones")
    if not has_topic and "topic" not in names:
        raise UsageError("the topic is missing", advice="set the option topic, or add a column topic")


def _make_topic(path: Path, topic: str, partitions: int, clock: Clock) -> None:
    if files.is_directory(path / f"{topic}-0"):
        return
    with LogManager.open([path], clock=clock) as manager:
        if topic not in manager.topics.names():
            manager.topics.create(topic, partitions)


def _shapes(directory: LogDirectory, options: WriteOptions, topic: str | None) -> tuple[TopicTarget, ...]:
    """The shape of the one topic, or of all topics that may be written to."""
    numbers: dict[str, list[int]] = {}
    for topic_partition in sorted(directory.partitions):
        if topic_partition.topic not in _INTERNAL and topic in (None, topic_partition.topic):
            numbers.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    if not numbers:
        raise UnknownTopicError(
            "there is no topic to write to" if topic is None else f"there is no topic {topic!r}",
            path=directory.path,
            advice="set the option partitions to create it, or run siltstone topics --create",
        )
    listed, cluster = load_registry([directory.path])[0].topics, read_broker_settings([directory])
    broker = Config() if cluster is None else cluster.effective_broker_config(Config())
    settings = TopicSettings(listed=listed, cluster=cluster, broker=broker)
    return tuple(
        _shape(name, tuple(partitions), LogConfig.of(settings.config_of(name)), options)
        for name, partitions in numbers.items()
    )


def _shape(name: str, numbers: tuple[int, ...], config: LogConfig, options: WriteOptions) -> TopicTarget:
    own = config.compression_type
    codec = (options.compression or "none") if own == "producer" else own
    largest = min(config.max_message_bytes, config.segment_bytes)
    # Incompressible records grow a little: a hundredth is more than any codec adds.
    maximum = min(options.batch_bytes, (largest - BATCH_OVERHEAD) * 99 // 100 - 64)
    return TopicTarget(
        name=name,
        partitions=numbers,
        codec=codec_number(codec),
        records_bytes_max=max(maximum, 1),
        batch_bytes_max=largest,
        requires_keys=config.compacts,
    )


def stage_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], *, task: int, clock: Clock | None = None
) -> StagedOutput:
    """Write one task's rows as staged batches. Raises UsageError, MessageTooLargeError, OSError."""
    if plan.is_repeated:
        return StagedOutput(task=task)
    clock = clock or SystemClock()
    with StagedWriter(Path(plan.run) / f"{task:06d}-{secrets.token_hex(8)}") as writer:
        work = _TaskWork(plan, writer)
        for turn, batch in enumerate(batches):
            if batch.num_rows:
                work.add(batch, sticky=task + turn, now_ms=clock.now_ms())
        work.finish()
        return writer.finish(task, tuple(shape.name for shape in plan.topics))


class _TaskWork:
    """The batches of a task that are not full yet, by topic and partition."""

    def __init__(self, plan: WritePlan, writer: StagedWriter) -> None:
        self._plan, self._writer = plan, writer
        self._topics = {shape.name: number for number, shape in enumerate(plan.topics)}
        self._builders: dict[tuple[int, int], BatchBuilder] = {}

    def add(self, batch: pa.RecordBatch, *, sticky: int, now_ms: int) -> None:
        rows = record_rows(batch, now_ms)
        by_topic: Iterable[tuple[int, Int64]] = [(0, np.arange(len(rows)))]
        if self._plan.topic is None:
            by_topic = group_rows(topics_of(batch, self._topics))
        for topic, of_topic in by_topic:
            shape, keys = self._plan.topics[topic], take_rows(rows.keys, of_topic)
            if shape.requires_keys and (keys.size < 0).any():
                reason = "a record has no key, and the topic is compacted"
                raise UsageError(reason, path=shape.name, advice="set a key in each record")
            partitions = partitions_of(rows.partition[of_topic], keys, shape.partitions, sticky)
            for partition, of_partition in group_rows(partitions):
                append = partial(self._append, topic, partition)
                builder = BatchBuilder(shape.codec, shape.records_bytes_max, append)
                self._builders.setdefault((topic, partition), builder).add(rows, of_topic[of_partition])
        if sum(builder.pending for builder in self._builders.values()) > _MAX_PENDING:
            self.finish()

    def _append(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        shape = self._plan.topics[topic]
        if len(batch) > shape.batch_bytes_max:
            raise MessageTooLargeError(
                f"a record takes {len(batch)} bytes as a batch, over the topic's max.message.bytes or "
                f"segment.bytes, {shape.batch_bytes_max}",
                path=shape.name,
                advice="raise the setting, or leave the record out",
            )
        self._writer.append(topic, partition, batch, records)

    def finish(self) -> None:
        for builder in self._builders.values():
            builder.flush()


def commit_plan(
    plan: WritePlan,
    staged: Iterable[StagedOutput],
    *,
    write_id: str | None = None,
    epoch: int = 0,
    clock: Clock | None = None,
) -> Write:
    """Append the staged batches, once; ``write_id``, ``epoch``: a stream's; by default the plan's id and 0.

    Raises DirectoryLockedError, SiltstoneError, OSError; see ``commit.commit_write``.
    """
    clock = clock or SystemClock()
    with LogManager.open([plan.root], clock=clock, only=plan.only) as manager:
        write = Write(
            write_id=write_id or plan.write_id,
            epoch=epoch,
            is_named=write_id is not None or plan.is_named,
            at_ms=clock.now_ms(),
        )
        return commit_write(manager, Path(plan.root), staged, write)


def abort_plan(plan: WritePlan) -> None:
    """Remove the staged files of a failed job."""
    remove_staged(Path(plan.run))


# Arrow's buffers become spans, the reverse of ``tables.arrow``.
#
# An Arrow array of byte strings is offsets into one buffer of bytes, so its spans need no copy of the bytes.
# Headers, which Arrow has as lists of pairs, are encoded as in records::
#
#     count varint | key size varint | key | value size varint (-1: null) | value | key size …

_VARINT_BYTES_MAX = 10
_LARGEST = (1 << 31) - 1


def spans_of(array: pa.Array) -> Spans:
    """The values of a binary or string array, not copied; another array is cast to binary.

    Raises UsageError for other types, and for a value over 2 GiB.
    """
    try:
        array = array.cast(pa.large_binary())  # new offsets, the same bytes
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        reason = f"a column has the type {array.type}, which is neither text nor bytes"
        raise UsageError(reason, advice="cast it to string or binary") from None
    if not len(array):
        return Spans.of([])
    _, raw, data = array.buffers()
    edges = np.frombuffer(raw, np.int64, len(array) + 1 + array.offset)[array.offset :]
    sizes = np.diff(edges)
    if int(sizes.max()) > _LARGEST:
        raise UsageError("a value has over 2 GiB, and no record can", advice="leave it out")
    if array.null_count:
        sizes[np.asarray(array.is_null())] = -1
    values = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Spans(data=values, start=edges[:-1], size=sizes.astype(np.int32))


def header_spans_of(array: pa.Array) -> Spans:
    """Each record's headers (a list of structs ``key``, ``value``), encoded; size 0 without headers.

    Raises UsageError for lists of another type, or a header without a key.
    """
    kind = array.type
    pair = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if pair is None or not pa.types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        advice = "cast it to array<struct<key string, value binary>>"
        raise UsageError(f"the column headers has the type {kind}", advice=advice)
    edges = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(edges)
    if array.null_count:
        counts[np.asarray(array.is_null())] = 0
    pairs = array.values
    children = dict(zip((field.name for field in pair), pairs.flatten(), strict=True))
    keys, values = spans_of(children["key"]), spans_of(children["value"])
    bytes_max = np.maximum(keys.size, 0).sum(dtype=np.int64) + np.maximum(values.size, 0).sum(dtype=np.int64)
    bytes_max += _VARINT_BYTES_MAX * (2 * len(pairs) + len(array))
    out = np.empty(int(bytes_max) + 1, np.uint8)
    start, size = np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    encoded = Spans(data=out, start=start, size=size)
    if not _encode_headers(edges[:-1], counts, keys, values, encoded):
        raise UsageError("a header has no key", advice="set the key of each header")
    return encoded


@kernel
def _encode_headers(first: Int64, count: Int64, keys: Spans, values: Spans, encoded: Spans) -> bool:
    """Fill the data and the spans of ``encoded``, which is large enough; False if a header has no key.

    ``first``, ``count``: each record's first header and number of headers, as rows of ``keys`` and
    ``values``.
    """
    position = 0
    for row in range(len(first)):
        encoded.start[row] = position
        if count[row] == 0:
            continue
        position = write_varint(encoded.data, position, count[row])
        for header in range(first[row], first[row] + count[row]):
            if keys.size[header] < 0:
                return False
            position = write_span(keys, header, encoded.data, position)
            position = write_span(values, header, encoded.data, position)
        encoded.size[row] = position - encoded.start[row]
    return True


RECORD_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")
"""The columns that are written; ``value`` is required."""
IGNORED_COLUMNS = ("offset", "timestampType")
"""Columns of a table that was read: the log assigns them itself."""
_BUFFER_BYTES_MIN = 16 << 10
_LARGEST_S = LONG_MAX // 1000
_UNITS_A_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}


BY_KEY = -1 << 63
"""In place of a partition: the key decides, or, without a key, ``sticky``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records to write: a column of spans each; ``timestamp`` int64 in ms, ``partition`` int64 or
    ``BY_KEY``."""

    keys: Spans
    values: Spans
    headers: Spans
    timestamp: Int64
    partition: Int64

    def __len__(self) -> int:
        return len(self.timestamp)


def record_rows(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """The columns of an Arrow batch as spans; records without a time get ``now_ms``. Raises UsageError."""
    count, columns = batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
    none = Spans(
        data=np.zeros(1, np.uint8), start=np.zeros(count, np.int64), size=np.full(count, -1, np.int32)
    )
    partition = columns.get("partition", pa.nulls(count, pa.int64()))
    if not pa.types.is_integer(partition.type):
        raise UsageError(f"the column partition has the type {partition.type}", advice="cast it to int")
    return Rows(
        keys=spans_of(columns["key"]) if "key" in columns else none,
        values=spans_of(columns["value"]),
        headers=header_spans_of(columns["headers"]) if "headers" in columns else none,
        timestamp=_milliseconds(columns.get("timestamp"), count, now_ms),
        partition=np.asarray(partition.cast(pa.int64()).fill_null(BY_KEY)),
    )


def take_rows(spans: Spans, rows: Int64) -> Spans:
    """Some rows of a column."""
    return spans._replace(start=spans.start[rows], size=spans.size[rows])


def _milliseconds(column: pa.Array | None, count: int, now_ms: int) -> Int64:
    if column is None:
        return np.full(count, now_ms, np.int64)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        reason = f"the column timestamp has the type {column.type}"
        raise UsageError(reason, advice="cast it to timestamp, or to a long of milliseconds")
    times = np.asarray(column.cast(pa.int64()).fill_null(0)).astype(np.int64)
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    # Seconds whose milliseconds do not fit into 64 bits become the nearest that do.
    times = np.clip(times, -_LARGEST_S, _LARGEST_S) * 1000 if unit == "s" else times // _UNITS_A_MS[unit]
    if column.null_count:
        times[np.asarray(column.is_null())] = now_ms
    return times


def partitions_of(column: Int64, keys: Spans, numbers: Sequence[int], sticky: int) -> Int32:
    """Each row's partition: that of its column, else its key's, else one by ``sticky``. Raises UsageError."""
    by_key, present = column == BY_KEY, ", ".join(map(str, numbers))
    unknown = np.setdiff1d(column[~by_key], numbers)
    if len(unknown):
        advice = f"use the topic's partitions: {present}"
        raise UsageError(f"there is no partition {unknown[0]}", advice=advice)
    if by_key.any():
        if list(numbers) != list(range(len(numbers))):
            raise UsageError(
                f"the directory has only partitions {present} of the topic, so a key's is not known",
                advice="add a column partition",
            )
        of_key = np.empty(len(column), np.int32)
        partitions_for_keys(keys.data, keys.start, keys.size, len(numbers), of_key)
        of_key[of_key < 0] = numbers[sticky % len(numbers)]
        column = np.where(by_key, of_key, column)
    return column.astype(np.int32)


def group_rows(values: Int32) -> Iterator[tuple[int, Int64]]:
    """(value, its rows in order) for each value."""
    order = np.argsort(values, kind="stable").astype(np.int64)
    ordered = values[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for first, end in itertools.pairwise(edges):
        if end > first:
            yield int(ordered[first]), order[first:end]


class BatchBuilder:
    """Builds one partition's batches and passes each to ``append(batch, records)``; call ``flush`` at the
    end.

    ``records_bytes_max``: of encoded records before compression; a larger record is a batch by itself.
    ``pending``: encoded bytes of the batch that is not full yet.
    """

    def __init__(self, codec: int, records_bytes_max: int, append: Callable[[Bytes, int], None]) -> None:
        self._codec, self._bytes_max, self._append = codec, records_bytes_max, append
        self._out = np.empty(0, np.uint8)
        self.pending = 0
        self._count = 0
        self._base = self._largest = 0

    def add(self, rows: Rows, wanted: Int64) -> None:
        """Encode the wanted rows, in their order."""
        # Upper bounds of the encoded sizes: MAX_RECORD_OVERHEAD is that of a record's varints.
        sizes = MAX_RECORD_OVERHEAD + sum(
            np.maximum(part.size[wanted], 0).astype(np.int64)
            for part in (rows.keys, rows.values, rows.headers)
        )
        ends = np.cumsum(sizes)
        first = 0
        while first < len(wanted):
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, before + self._bytes_max - self.pending, side="right"))
            if end <= first and self._count == 0:
                end = first + 1  # a record over the limit is a batch by itself
            if end > first:
                self._encode(rows, wanted[first:end], int(ends[end - 1]) - before)
            if end < len(wanted):
                self.flush()
            first = max(end, first)

    def _encode(self, rows: Rows, wanted: Int64, size_max: int) -> None:
        if self.pending + size_max > len(self._out):
            larger = np.empty(max(self.pending + size_max, 2 * len(self._out), _BUFFER_BYTES_MIN), np.uint8)
            larger[: self.pending] = self._out[: self.pending]
            self._out = larger
        times = rows.timestamp[wanted]
        if not self._count:
            self._base = self._largest = int(times[0])
        self._largest = max(self._largest, int(times.max()))
        deltas = np.arange(self._count, self._count + len(wanted), dtype=np.int64)
        keys, values, headers = (take_rows(part, wanted) for part in (rows.keys, rows.values, rows.headers))
        self.pending = encode_records(
            deltas, times - self._base, keys, values, headers, self._out, self.pending
        )
        self._count += len(wanted)

    def flush(self) -> None:
        """Make a batch of the pending records."""
        if not self._count:
            return
        shape, records, count = NewBatchHeader(codec=self._codec), self._out[: self.pending], self._count
        batch = assemble_batch(shape, records, count - 1, self._base, self._largest, count)
        self.pending = self._count = 0
        self._append(batch, count)


def topics_of(batch: pa.RecordBatch, numbers_of_topics: Mapping[str, int]) -> Int32:
    """Each row's topic by its number. Raises UsageError for an unknown one."""
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    unknown = next((name for name in names if name not in numbers_of_topics), None)
    if unknown is not None:
        advice = "create it with siltstone topics --create"
        raise UsageError(f"there is no topic {unknown!r}", advice=advice)
    if topics.null_count:
        advice = "set the option topic, or the column topic of each record"
        raise UsageError("a record has no topic", advice=advice)
    numbers = np.array([numbers_of_topics[name] for name in names], np.int32)
    return np.asarray(numbers[np.asarray(topics.indices)])
