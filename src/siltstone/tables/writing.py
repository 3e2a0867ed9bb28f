"""Writes rows to logs: options, staged batches, and their commit.

::

    driver   WriteOptions ─► plan_write ─► WritePlan               takes the lock only to create a topic
    tasks    WritePlan, Arrow batches ─► stage_task ─► StagedOutput
    driver   StagedOutputs ─► commit_plan ─► Write                   step by step in ``commit``

    Arrow batch ─► Rows (spans, times) ─► rows of each partition ─► BatchBuilder encodes ─► a batch when full

Nothing is in a log before ``commit_plan``; ``abort_plan`` removes the staged files. A task does the work of
Kafka's ``RecordAccumulator``, without a Python object for each record. Base offsets are 0: the log assigns
offsets when it appends the batch. A record with a key goes to the partition that Kafka's default partitioner
chooses (``runtime.producing.partitions_of_keys``), or to the one whose directory is the path. Records
without a key are distributed round-robin by Arrow batch: those of one Arrow batch go to one partition, those
of the next one to the next partition.
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
from siltstone.base.errors import (
    DirectoryLockedError,
    MessageTooLargeError,
    NotALogDirectoryError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.build import (
    MAX_RECORD_OVERHEAD,
    NewBatchHeader,
    Spans,
    assemble_batch,
    encode_records,
    write_span,
)
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Int32, Int64
from siltstone.base.records.varint import write_varint
from siltstone.log.directory import LogDirectory, refuse_objects, refuse_unsafe_files, resolve_directory
from siltstone.log.names import (
    CLUSTER_METADATA,
    INTERNAL_TOPICS,
    LOCK,
    STAGED_WRITES,
    TopicPartition,
    parse_partition,
)
from siltstone.log.segments import list_segments
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import partitions_of_keys
from siltstone.runtime.topics import TopicSettings, load_registry, read_broker_settings
from siltstone.tables.commit import (
    StagedOutput,
    StagedWriter,
    Write,
    commit_write,
    discard_aborted,
    find_write,
    load_writes,
    staging_folders,
)
from siltstone.tables.options import IGNORED_OPTIONS, SET_PATH, Option, number, one_of, parse_options, size

DEFAULT_BATCH_BYTES = 256 << 10
_PENDING_BYTES_MAX = 64 << 20
"""The most bytes of encoded records in batches that are not full yet; above it, a task finishes the
batches."""
_UNWRITTEN_TOPICS = (*INTERNAL_TOPICS, CLUSTER_METADATA)
"""The topics that a write leaves to the broker's coordinators and controller."""
_STREAM_OPTIONS = frozenset(("checkpointlocation", "queryname", "outputmode"))
"""Spark's own options of ``writeStream``, which it also passes to the writer."""

WRITE_OPTIONS: tuple[Option, ...] = (
    Option("path", str, "path"),
    Option("topic", str, "topic"),
    Option("partitions", number(minimum=1), "partitions"),
    Option("compression", one_of(*CODEC_NAMES), "compression"),
    Option("batchSize", size, "batch_bytes"),
    Option("writeId", str, "write_id"),
)
"""Every option for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write. ``path``: a log directory, or one partition's. ``topic`` None: the column
    ``topic`` has that of each record.

    ``partitions``: the number of partitions of a topic that is created. ``compression``: the codec if the
    topic's ``compression.type`` is ``producer``; None: uncompressed then. ``batch_bytes``: the size of a
    batch's records before compression. ``write_id``: a repeated write with this id is done once; None: a
    random id.
    """

    path: str
    topic: str | None = None
    partitions: int | None = None
    compression: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    write_id: str | None = None

    @classmethod
    def of(cls, raw_options: Mapping[str, str]) -> WriteOptions:
        """Parse the texts of options by name. Raises UsageError."""
        values = parse_options(raw_options, WRITE_OPTIONS, IGNORED_OPTIONS | _STREAM_OPTIONS)
        if "path" not in values:
            raise UsageError("option 'path' is missing", advice=SET_PATH)
        if "partitions" in values and "topic" not in values:
            reason = "the option partitions is for a new topic, whose name is missing"
            raise UsageError(reason, advice="set the option topic")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    """The description of a topic for tasks. ``partitions``: the numbers of those in this log directory;
    ``partition_count``: how many the topic has, None if that is not known; ``codec``: the codec's number;
    ``records_bytes_max``: bytes of a batch's records before compression; ``batch_bytes_max``: bytes of the
    whole batch; ``requires_keys``: the topic is compacted."""

    name: str
    partitions: tuple[int, ...]
    partition_count: int | None
    codec: int
    records_bytes_max: int
    batch_bytes_max: int
    requires_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The plan of a write for its tasks and its commit: plain and picklable.

    ``only_partition``: set if the path is a partition's directory. ``staging_folder``: where tasks stage
    batches. ``topics``: those that may be written to; ``topic``: that of all records, None: the column
    ``topic`` has it. ``is_named``: the option ``writeId`` is set. ``is_repeated``: a write with this id was
    committed before, so the tasks stage nothing.
    """

    log_directory: str
    only_partition: TopicPartition | None
    staging_folder: str
    topics: tuple[TopicTarget, ...]
    topic: str | None
    write_id: str
    is_named: bool
    is_repeated: bool


def plan_write(
    options: WriteOptions, columns: Iterable[str], *, is_streaming: bool = False, clock: Clock | None = None
) -> WritePlan:
    """Open the directory without its lock and plan the write; with the option ``partitions``, create a
    missing topic. ``columns``: the names of the columns to write.

    ``is_streaming``: each commit has an id and epoch of its own, so nothing is known to be repeated yet.
    Raises UsageError, UnknownTopicError, DirectoryLockedError, SiltstoneError, OSError.
    """
    refuse_objects(Path(options.path))
    path, columns = resolve_directory(Path(options.path)), list(columns)
    clock = clock or SystemClock()
    if options.partitions is not None and options.topic is not None:
        _refuse_columns(columns, has_topic=True)
        _create_topic(path, options.topic, options.partitions, clock)
    try:
        directory = LogDirectory.open(path, lock=False)
    except NotALogDirectoryError as error:
        if not files.exists(path) or (files.is_directory(path) and not files.entries(path)):
            error.advice = f"set the options topic and partitions to create both, or {error.advice}"
        raise
    _refuse_columns(columns, has_topic=options.topic is not None or directory.is_partition_subset)
    if files.is_locked(directory.path / LOCK):
        raise DirectoryLockedError(
            f"a live process holds {LOCK}",
            path=directory.path,
            advice="stop the broker (or wait for the other run) and try again",
        )
    only_partition = next(iter(directory.partitions)) if directory.is_partition_subset else None
    topic = options.topic or (only_partition.topic if only_partition else None)
    topics = _targets(directory, options, topic)
    # Tasks stage batches inside a partition's directory: in the log directory Kafka would refuse the folder.
    first = min(
        topic_partition for topic_partition in directory.partitions if topic_partition.topic == topics[0].name
    )
    refuse_unsafe_files(directory.partitions[first])
    write_id = options.write_id or secrets.token_hex(16)
    earlier_write = None if is_streaming else find_write(load_writes(directory.path), write_id, epoch=0)
    return WritePlan(
        log_directory=str(directory.path),
        only_partition=only_partition,
        staging_folder=str(directory.partitions[first] / STAGED_WRITES / secrets.token_hex(8)),
        topics=topics,
        topic=topic,
        write_id=write_id,
        is_named=options.write_id is not None,
        is_repeated=earlier_write is not None and earlier_write.is_done,
    )


def _refuse_columns(names: Sequence[str], *, has_topic: bool) -> None:
    """Raises UsageError unless these columns can be written as records. ``has_topic``: the options or the
    path name the topic, so no column has to."""
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


def _create_topic(path: Path, topic: str, partitions: int, clock: Clock) -> None:
    if files.is_directory(path / f"{topic}-0"):
        return
    _refuse_partition_directory(path, topic)
    with LogManager.open([path], clock=clock) as manager:
        if topic not in manager.topics.names():
            manager.topics.create(topic, partitions)


def _refuse_partition_directory(path: Path, topic: str) -> None:
    """Raises UsageError for a partition's directory, or for a new one with the name of the topic's."""
    named = parse_partition(path.name)  # the partition that a directory of this name is of
    is_new = not files.exists(path) and named is not None and named.topic == topic
    if is_new or (named is not None and files.is_directory(path) and list_segments(path)):
        raise UsageError(
            "the option partitions creates a topic in a log directory, and this is a partition's",
            path=path,
            advice=f"leave the option out, or set path to {path.parent}",
        )


def _targets(directory: LogDirectory, options: WriteOptions, topic: str | None) -> tuple[TopicTarget, ...]:
    """The target of this topic, or of all topics that may be written to if it is None."""
    partitions_by_topic: dict[str, list[int]] = {}
    for topic_partition in sorted(directory.partitions):
        if topic_partition.topic not in _UNWRITTEN_TOPICS and topic in (None, topic_partition.topic):
            partitions_by_topic.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    if not partitions_by_topic:
        raise UnknownTopicError(
            "there is no topic to write to" if topic is None else f"there is no topic {topic!r}",
            path=directory.path,
            advice="set the option partitions to create it, or run siltstone topics --create",
        )
    cluster = read_broker_settings([directory])  # of a broker's metadata log, None without one
    registry = load_registry([directory.path])[0].without_handed_over(cluster)
    broker = registry.with_dynamic_settings(Config())
    broker = broker if cluster is None else cluster.effective_broker_config(broker)
    settings = TopicSettings(registered=registry.topics, cluster=cluster, broker=broker)
    return tuple(
        _target(name, tuple(partitions), settings, options)
        for name, partitions in partitions_by_topic.items()
    )


def _target(
    name: str, partitions: tuple[int, ...], settings: TopicSettings, options: WriteOptions
) -> TopicTarget:
    config = LogConfig.of(settings.config_of(name))
    topic_codec = config.compression_type
    codec = (options.compression or "none") if topic_codec == "producer" else topic_codec
    batch_bytes_max = min(config.max_message_bytes, config.segment_bytes)
    # A codec makes incompressible records a little larger: by less than a hundredth and 64 bytes.
    records_bytes_max = min(options.batch_bytes, (batch_bytes_max - BATCH_OVERHEAD) * 99 // 100 - 64)
    return TopicTarget(
        name=name,
        partitions=partitions,
        partition_count=settings.partition_count(name),
        codec=codec_number(codec),
        records_bytes_max=max(records_bytes_max, 1),
        batch_bytes_max=batch_bytes_max,
        requires_keys=config.compacts,
    )


def stage_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], *, task: int, clock: Clock | None = None
) -> StagedOutput:
    """Write the rows of task number ``task`` as staged batches.

    Raises UsageError, MessageTooLargeError, OSError."""
    if plan.is_repeated:
        return StagedOutput(task=task)
    clock = clock or SystemClock()
    with StagedWriter(Path(plan.staging_folder) / f"{task:06d}-{secrets.token_hex(8)}") as writer:
        task_batches = _TaskBatches(plan, writer)
        for index, batch in enumerate(batches):
            if batch.num_rows:
                task_batches.add(batch, round_robin_turn=task + index, now_ms=clock.now_ms())
        task_batches.finish()
        return writer.finish(task, tuple(target.name for target in plan.topics))


class _TaskBatches:
    """The batches of a task that are not full yet, by topic and partition; full ones go to ``writer``."""

    def __init__(self, plan: WritePlan, writer: StagedWriter) -> None:
        self._plan, self._writer = plan, writer
        self._index_of_topic = {target.name: index for index, target in enumerate(plan.topics)}
        # By (index of the topic in ``plan.topics``, partition).
        self._builders: dict[tuple[int, int], BatchBuilder] = {}

    def add(self, batch: pa.RecordBatch, *, round_robin_turn: int, now_ms: int) -> None:
        """Encode the rows of an Arrow batch; see ``record_rows`` and ``partitions_of``."""
        rows = record_rows(batch, now_ms)
        # (index of the topic, its rows) …: all rows are of one topic, or the column ``topic`` says of which.
        by_topic: Iterable[tuple[int, Int64]] = [(0, np.arange(len(rows)))]
        if self._plan.topic is None:
            by_topic = group_rows(topics_of(batch, self._index_of_topic))
        for topic, of_topic in by_topic:
            target, keys = self._plan.topics[topic], select_rows(rows.keys, of_topic)
            if target.requires_keys and (keys.size < 0).any():
                reason = "a record has no key, and the topic is compacted"
                raise UsageError(reason, path=target.name, advice="set a key in each record")
            wanted = rows.partition[of_topic]
            if self._plan.only_partition is not None:  # the path names the partition
                wanted = np.where(wanted == BY_KEY, self._plan.only_partition.partition, wanted)
            partitions = partitions_of(wanted, keys, target, round_robin_turn)
            for partition, of_partition in group_rows(partitions):
                append = partial(self._append, topic, partition)
                builder = BatchBuilder(target.codec, target.records_bytes_max, append)
                self._builders.setdefault((topic, partition), builder).add(rows, of_topic[of_partition])
        if sum(builder.pending_bytes for builder in self._builders.values()) > _PENDING_BYTES_MAX:
            self.finish()

    def _append(self, topic: int, partition: int, batch: Bytes, record_count: int) -> None:
        """Pass a batch to the writer. Raises MessageTooLargeError for a batch of one record: those of several
        have at most ``records_bytes_max`` bytes, and so are within the limit."""
        target = self._plan.topics[topic]
        if len(batch) > target.batch_bytes_max:
            raise MessageTooLargeError(
                f"a record takes {len(batch)} bytes as a batch, over the topic's max.message.bytes or "
                f"segment.bytes, {target.batch_bytes_max}",
                path=target.name,
                advice="raise the setting, or leave the record out",
            )
        self._writer.append(topic, partition, batch, record_count)

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
    """Append the staged batches, once. A stream passes ``write_id`` and the micro-batch's number ``epoch``.

    Raises DirectoryLockedError, SiltstoneError, OSError; see ``commit.commit_write``.
    """
    clock = clock or SystemClock()
    with LogManager.open([plan.log_directory], clock=clock, only=plan.only_partition) as manager:
        write = Write(
            write_id=write_id or plan.write_id,
            epoch=epoch,
            is_named=write_id is not None or plan.is_named,
            at_ms=clock.now_ms(),
        )
        return commit_write(manager, Path(plan.log_directory), staged, write)


def abort_plan(plan: WritePlan, staged: Iterable[StagedOutput] = ()) -> None:
    """Remove the staged files of a failed job, or of a micro-batch whose tasks had another plan: ``staged``.
    Those of a commit that failed half-way stay for the next write, which completes it. Raises
    CorruptFileError, DirectoryRefusedError, OSError."""
    discard_aborted(Path(plan.log_directory), {Path(plan.staging_folder), *staging_folders(staged)})


# Arrow's buffers become spans, the reverse of ``tables.arrow``. A span is a start and a size (-1: null) in
# one buffer of bytes.
#
# An Arrow array of byte strings has offsets into one buffer of bytes, so its spans need no copy of the bytes.
# Headers, which are lists of pairs in Arrow, are encoded as a record has them::
#
#     count varint | key size varint | key | value size varint (-1: null) | value | key size …

_VARINT_BYTES_MAX = 10
_VALUE_BYTES_MAX = (1 << 31) - 1


def spans_of(array: pa.Array) -> Spans:
    """The values of a string or binary array as spans; their bytes are not copied.

    Raises UsageError for a type that Arrow cannot cast to binary, and for a value over 2 GiB.
    """
    try:
        array = array.cast(pa.large_binary())  # Offsets become int64; the bytes stay where they are.
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        reason = f"a column has the type {array.type}, which is neither text nor bytes"
        raise UsageError(reason, advice="cast it to string or binary") from None
    if not len(array):
        return Spans.of([])
    _, raw, data = array.buffers()
    bounds = np.frombuffer(raw, np.int64, len(array) + 1 + array.offset)[array.offset :]
    sizes = np.diff(bounds)
    if int(sizes.max()) > _VALUE_BYTES_MAX:
        raise UsageError("a key or value has over 2 GiB, more than a record can have", advice="leave it out")
    if array.null_count:
        sizes[np.asarray(array.is_null())] = -1
    values = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Spans(data=values, start=bounds[:-1], size=sizes.astype(np.int32))


def header_spans_of(array: pa.Array) -> Spans:
    """Each record's headers (a list of structs ``key``, ``value``) as a span of their encoding; a record
    without headers has size 0.

    Raises UsageError for lists of another type, or a header without a key.
    """
    dtype = array.type
    pair = dtype.value_type if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) else None
    if pair is None or not pa.types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        advice = "cast it to array<struct<key string, value binary>>"
        raise UsageError(f"the column headers has the type {dtype}", advice=advice)
    bounds = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(bounds)
    if array.null_count:
        counts[np.asarray(array.is_null())] = 0
    pairs = array.values
    children = dict(zip((field.name for field in pair), pairs.flatten(), strict=True))
    keys, values = spans_of(children["key"]), spans_of(children["value"])
    bytes_max = np.maximum(keys.size, 0).sum(dtype=np.int64) + np.maximum(values.size, 0).sum(dtype=np.int64)
    bytes_max += _VARINT_BYTES_MAX * (2 * len(pairs) + len(array))  # two sizes a header, a count a record
    out = np.empty(int(bytes_max) + 1, np.uint8)
    start, size = np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    encoded = Spans(data=out, start=start, size=size)
    if not _encode_headers(bounds[:-1], counts, keys, values, encoded):
        raise UsageError("a header has no key", advice="set the key of each header")
    return encoded


@kernel
def _encode_headers(first: Int64, count: Int64, keys: Spans, values: Spans, encoded: Spans) -> bool:
    """Encode all headers into ``encoded``: its data, which is large enough, and a span for each record.

    ``first``, ``count``: each record's headers are the rows ``[first, first + count)`` of ``keys`` and
    ``values``. Returns False if a header has no key.
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
_SECONDS_MAX = LONG_MAX // 1000
_UNITS_PER_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}
"""By Arrow's unit of a timestamp: how many are a millisecond."""
BY_KEY = -1 << 63
"""Stands for a null in the column ``partition``: the key decides, or the round-robin turn if there is no
key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records to write, by column; row n of each column is record n. ``timestamp``: int64 in ms;
    ``partition``: int64, or ``BY_KEY``."""

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
    nulls = Spans(
        data=np.zeros(1, np.uint8), start=np.zeros(count, np.int64), size=np.full(count, -1, np.int32)
    )
    partition = columns.get("partition", pa.nulls(count, pa.int64()))
    if not pa.types.is_integer(partition.type):
        raise UsageError(f"the column partition has the type {partition.type}", advice="cast it to int")
    return Rows(
        keys=spans_of(columns["key"]) if "key" in columns else nulls,
        values=spans_of(columns["value"]),
        headers=header_spans_of(columns["headers"]) if "headers" in columns else nulls,
        timestamp=_milliseconds(columns.get("timestamp"), count, now_ms),
        partition=np.asarray(partition.cast(pa.int64()).fill_null(BY_KEY)),
    )


def select_rows(spans: Spans, rows: Int64) -> Spans:
    """Some rows of a column of spans."""
    return spans._replace(start=spans.start[rows], size=spans.size[rows])


def _milliseconds(column: pa.Array | None, count: int, now_ms: int) -> Int64:
    """The times of ``count`` records in ms; those of nulls, or without the column, are ``now_ms``. Raises
    UsageError."""
    if column is None:
        return np.full(count, now_ms, np.int64)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        reason = f"the column timestamp has the type {column.type}"
        raise UsageError(reason, advice="cast it to timestamp, or to a long of milliseconds")
    times = np.asarray(column.cast(pa.int64()).fill_null(0)).astype(np.int64)
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    # Seconds whose milliseconds do not fit into 64 bits become the nearest that do.
    times = (
        np.clip(times, -_SECONDS_MAX, _SECONDS_MAX) * 1000 if unit == "s" else times // _UNITS_PER_MS[unit]
    )
    if column.null_count:
        times[np.asarray(column.is_null())] = now_ms
    return times


def partitions_of(column: Int64, keys: Spans, target: TopicTarget, round_robin_turn: int) -> Int32:
    """Each row's partition: that in ``column``, or for ``BY_KEY`` the key's, or without a key the one whose
    turn it is. Raises UsageError, also for a key's partition that is not known or not here
    (``partitions_of_keys``)."""
    is_by_key, partitions = column == BY_KEY, target.partitions
    unknown = np.setdiff1d(column[~is_by_key], partitions)
    if len(unknown):
        advice = f"use the topic's partitions: {', '.join(map(str, partitions))}"
        raise UsageError(f"there is no partition {unknown[0]}", advice=advice)
    keys = keys._replace(size=np.where(is_by_key, keys.size, -1).astype(np.int32))
    by_key = partitions_of_keys(target.name, keys, partitions, target.partition_count)
    turn = partitions[round_robin_turn % len(partitions)]
    return np.where(is_by_key, np.where(by_key >= 0, by_key, turn), column).astype(np.int32)


def group_rows(values: Int32) -> Iterator[tuple[int, Int64]]:
    """(value, the rows that have it, ascending) for each value."""
    order = np.argsort(values, kind="stable").astype(np.int64)
    ordered = values[order]
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for first, end in itertools.pairwise(bounds):
        if end > first:
            yield int(ordered[first]), order[first:end]


class BatchBuilder:
    """Builds one partition's batches, and passes each to ``append(batch, record_count)`` when it is full.

    ``records_bytes_max``: bytes of a batch's encoded records before compression; a larger record is a batch
    by itself. ``pending_bytes``: bytes of the batch that is not full yet. Call ``flush`` at the end.
    """

    def __init__(self, codec: int, records_bytes_max: int, append: Callable[[Bytes, int], None]) -> None:
        self._codec, self._bytes_max, self._append = codec, records_bytes_max, append
        self._buffer = np.empty(0, np.uint8)
        self.pending_bytes = 0
        self._count = 0
        self._base_timestamp = self._max_timestamp = 0

    def add(self, rows: Rows, chosen: Int64) -> None:
        """Encode these rows, in this order."""
        # Upper bounds of the encoded sizes: a record's varints take MAX_RECORD_OVERHEAD bytes at most.
        sizes = MAX_RECORD_OVERHEAD + sum(
            np.maximum(part.size[chosen], 0).astype(np.int64)
            for part in (rows.keys, rows.values, rows.headers)
        )
        ends = np.cumsum(sizes)
        first = 0
        while first < len(chosen):
            before = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, before + self._bytes_max - self.pending_bytes, side="right"))
            if end <= first and self._count == 0:
                end = first + 1  # A record over the limit is a batch by itself.
            if end > first:
                self._encode(rows, chosen[first:end], int(ends[end - 1]) - before)
            if end < len(chosen):
                self.flush()
            first = max(end, first)

    def _encode(self, rows: Rows, chosen: Int64, size_max: int) -> None:
        """Add rows to the batch that is not full yet. ``size_max``: an upper bound of their encoded bytes."""
        if self.pending_bytes + size_max > len(self._buffer):
            larger = np.empty(
                max(self.pending_bytes + size_max, 2 * len(self._buffer), _BUFFER_BYTES_MIN), np.uint8
            )
            larger[: self.pending_bytes] = self._buffer[: self.pending_bytes]
            self._buffer = larger
        times = rows.timestamp[chosen]
        if not self._count:
            self._base_timestamp = self._max_timestamp = int(times[0])
        self._max_timestamp = max(self._max_timestamp, int(times.max()))
        deltas = np.arange(self._count, self._count + len(chosen), dtype=np.int64)
        keys, values, headers = (select_rows(part, chosen) for part in (rows.keys, rows.values, rows.headers))
        self.pending_bytes = encode_records(
            deltas, times - self._base_timestamp, keys, values, headers, self._buffer, self.pending_bytes
        )
        self._count += len(chosen)

    def flush(self) -> None:
        """Finish the batch that is not full yet, if there is one."""
        if not self._count:
            return
        header, count = NewBatchHeader(codec=self._codec), self._count
        records = self._buffer[: self.pending_bytes]
        batch = assemble_batch(header, records, count - 1, self._base_timestamp, self._max_timestamp, count)
        self.pending_bytes = self._count = 0
        self._append(batch, count)


def topics_of(batch: pa.RecordBatch, index_of_topic: Mapping[str, int]) -> Int32:
    """The index of each row's topic. Raises UsageError for an unknown topic, and for a row without one."""
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    unknown = next((name for name in names if name not in index_of_topic), None)
    if unknown is not None:
        advice = "create it with siltstone topics --create (the option partitions is for the option topic)"
        raise UsageError(f"there is no topic {unknown!r}", advice=advice)
    if topics.null_count:
        advice = "set the option topic, or the column topic of each record"
        raise UsageError("a record has no topic", advice=advice)
    numbers = np.array([index_of_topic[name] for name in names], np.int32)
    return np.asarray(numbers[np.asarray(topics.indices)])
