"""Writing rows to logs: from the options to staged batches and their commit.

::

    driver   WriteOptions ─► plan_write ─► WritePlan               takes no lock, but it must be free
    tasks    WritePlan, Arrow batches ─► stage_task ─► StagedFile
    driver   StagedFiles ─► commit_plan ─► Write                   see ``commit``

    Arrow batch ─► Rows (spans, times) ─► rows of each partition ─► Filling: encoded ─► a batch when full

Nothing is in a log before ``commit_plan``; ``abort_plan`` removes what is staged. A task does what Kafka's
producer does with its accumulator, without a Python object a record. Base offsets are 0: the log assigns
offsets when it appends the batch. A record with a key goes to the partition that Kafka's default partitioner
gives, one without to that of the task's last ones, until the next Arrow batch.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.build import RECORD_ROOM, BatchShape, Spans, assemble, encode_records, put_span
from siltstone.base.records.hashing import partitions_for_keys
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Int32, Int64
from siltstone.base.records.varint import write_varint
from siltstone.log.directory import LogDirectory, refuse_unsafe_files, resolve_directory
from siltstone.log.names import CLUSTER_METADATA, LOCK, STAGED_WRITES, TopicPartition
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TopicSettings, load_registry, read_brokers_topics
from siltstone.tables.commit import (
    StagedFile,
    StagedWriter,
    Write,
    commit_write,
    find_write,
    load_writes,
    remove_staged,
)
from siltstone.tables.options import IGNORED, Option, number, one_of, parse_options, size

DEFAULT_BATCH_BYTES = 256 << 10
_MOST_PENDING = 64 << 20
"""Encoded bytes that a task keeps for batches that are not full yet; beyond it, all batches are made."""
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
    """``path``: a log directory or one partition's. ``topic`` None: a column says it.

    ``partitions``: make a missing topic with so many. ``compression`` None: as the topic
    says. ``batch_bytes``: of a batch's records before compression. ``write_id`` None: of this job alone.
    """

    path: str
    topic: str | None = None
    partitions: int | None = None
    compression: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    write_id: str | None = None

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> WriteOptions:
        """From texts by name, whatever their case. Raises UsageError that says what is allowed."""
        values = parse_options(texts, WRITE_OPTIONS, IGNORED | _SPARKS)
        if "path" not in values:
            raise UsageError("option 'path' is missing: give a Kafka log directory or one partition's")
        if "partitions" in values and "topic" not in values:
            raise UsageError("partitions is for a topic that is to be made: give the option topic too")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A topic's settings for tasks: ``most_bytes`` of a batch's records, ``largest_batch`` as a whole."""

    name: str
    partitions: tuple[int, ...]
    codec: int
    most_bytes: int
    largest_batch: int
    needs_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The plan of a write for its tasks and its commit: plain and picklable.

    ``root``: the log directory, ``only``: the one partition, where the path is a partition's. ``run``: the
    folder of the staged files. ``topic``: of all records, None: by a column. ``is_repeated``: a write with
    this id was committed before, so the tasks have nothing to do.
    """

    root: str
    only: TopicPartition | None
    run: str
    topics: tuple[TopicShape, ...]
    topic: str | None
    write_id: str
    is_named: bool
    is_repeated: bool = False


def plan_write(
    options: WriteOptions, columns: Iterable[str], *, streaming: bool = False, clock: Clock | None = None
) -> WritePlan:
    """Open the directory without its lock and decide how it is written to; the option ``partitions`` makes a
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
    _refuse_columns(columns, has_topic=options.topic is not None or directory.is_partial)
    if files.is_locked(directory.path / LOCK):
        raise DirectoryLockedError(
            f"{directory.path}: a live process holds {LOCK}; stop the broker (or wait for the other run) "
            "and try again"
        )
    only = next(iter(directory.partitions)) if directory.is_partial else None
    topic = options.topic or (only.topic if only else None)
    shapes = _shapes(directory, options, topic)
    first = min(where for where in directory.partitions if where.topic == shapes[0].name)
    refuse_unsafe_files(directory.partitions[first])
    plan = WritePlan(
        root=str(directory.path),
        only=only,
        run=str(directory.partitions[first] / STAGED_WRITES / secrets.token_hex(8)),
        topics=shapes,
        topic=topic,
        write_id=options.write_id or secrets.token_hex(16),
        is_named=options.write_id is not None,
    )
    done = None if streaming else find_write(load_writes(directory.path), plan.write_id, 0)
    return replace(plan, is_repeated=done is not None and done.done)


def _refuse_columns(names: Sequence[str], *, has_topic: bool) -> None:
    """Raises UsageError unless these columns can be written as records."""
    strange = [name for name in names if name not in (*WRITTEN, *PASSED_OVER)]
    if strange:
        raise UsageError(
            f"column {strange[0]!r} is no part of a record: a record has {', '.join(WRITTEN)}; "
            "put what else there is into value, or leave it out"
        )
    if "value" not in names:
        raise UsageError("there is no column value: give one, null for tombstones")
    if not has_topic and "topic" not in names:
        raise UsageError("no topic: give the option topic, or a column of that name")


def _make_topic(path: Path, topic: str, partitions: int, clock: Clock) -> None:
    if files.is_directory(path / f"{topic}-0"):
        return
    with LogManager.open([path], clock=clock) as manager:
        if topic not in manager.topics.names():
            manager.topics.create(topic, partitions)


def _shapes(directory: LogDirectory, options: WriteOptions, topic: str | None) -> tuple[TopicShape, ...]:
    """Of the one topic, or of all that may be written to."""
    numbers: dict[str, list[int]] = {}
    for where in sorted(directory.partitions):
        if where.topic not in _INTERNAL and topic in (None, where.topic):
            numbers.setdefault(where.topic, []).append(where.partition)
    if not numbers:
        raise UnknownTopicError(
            f"there is no topic {topic!r} in {directory.path}: give the option partitions to make it"
            if topic is not None
            else f"{directory.path}: there is no topic to write to; siltstone topics --create makes one"
        )
    listed, cluster = load_registry([directory.path])[0].topics, read_brokers_topics([directory])
    broker = Config() if cluster is None else cluster.effective_broker_config(Config())
    settings = TopicSettings(listed=listed, cluster=cluster, broker=broker)
    return tuple(
        _shape(name, tuple(partitions), LogConfig.of(settings.config_of(name)), options)
        for name, partitions in numbers.items()
    )


def _shape(name: str, numbers: tuple[int, ...], config: LogConfig, options: WriteOptions) -> TopicShape:
    own = config.compression_type
    codec = (options.compression or "none") if own == "producer" else own
    largest = min(config.max_message_bytes, config.segment_bytes)
    # What cannot be compressed grows a little: a hundredth is more than any codec adds.
    most = min(options.batch_bytes, (largest - BATCH_OVERHEAD) * 99 // 100 - 64)
    return TopicShape(
        name=name,
        partitions=numbers,
        codec=codec_number(codec),
        most_bytes=max(most, 1),
        largest_batch=largest,
        needs_keys=config.compacts,
    )


def stage_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], *, task: int, clock: Clock | None = None
) -> StagedFile:
    """Make one task's rows into staged batches. Raises UsageError, MessageTooLargeError, OSError."""
    if plan.is_repeated:
        return StagedFile(task=task)
    clock = clock or SystemClock()
    with StagedWriter(Path(plan.run) / f"{task:06d}-{secrets.token_hex(8)}") as writer:
        work = _TaskWork(plan, writer)
        for turn, batch in enumerate(batches):
            if batch.num_rows:
                work.add(batch, sticky=task + turn, now_ms=clock.now_ms())
        work.finish()
        return writer.finish(task, tuple(shape.name for shape in plan.topics))


class _TaskWork:
    """The batches that a task is filling, by topic and partition."""

    def __init__(self, plan: WritePlan, writer: StagedWriter) -> None:
        self._plan, self._writer = plan, writer
        self._known = {shape.name: number for number, shape in enumerate(plan.topics)}
        self._filling: dict[tuple[int, int], Filling] = {}

    def add(self, batch: pa.RecordBatch, *, sticky: int, now_ms: int) -> None:
        rows = rows_of(batch, now_ms)
        by_topic: Iterable[tuple[int, Int64]] = [(0, np.arange(len(rows)))]
        if self._plan.topic is None:
            by_topic = by_value(topics_of(batch, self._known))
        for topic, of_topic in by_topic:
            shape, keys = self._plan.topics[topic], taken(rows.keys, of_topic)
            if shape.needs_keys and (keys.size < 0).any():
                raise UsageError(f"topic {shape.name} is compacted: each of its records needs a key")
            partitions = partitions_of(rows.partition[of_topic], keys, shape.partitions, sticky)
            for partition, picked in by_value(partitions):
                put = partial(self._put, topic, partition)
                filling = Filling(shape.codec, shape.most_bytes, put)
                self._filling.setdefault((topic, partition), filling).add(rows, of_topic[picked])
        if sum(filling.pending for filling in self._filling.values()) > _MOST_PENDING:
            self.finish()

    def _put(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        shape = self._plan.topics[topic]
        if len(batch) > shape.largest_batch:
            raise MessageTooLargeError(
                f"a record takes {len(batch)} bytes as a batch, over topic {shape.name}'s max.message.bytes "
                f"(or segment.bytes), {shape.largest_batch}; raise that, or leave the record out"
            )
        self._writer.put(topic, partition, batch, records)

    def finish(self) -> None:
        for filling in self._filling.values():
            filling.flush()


def commit_plan(
    plan: WritePlan,
    staged: Iterable[StagedFile],
    *,
    write_id: str | None = None,
    epoch: int = 0,
    clock: Clock | None = None,
) -> Write:
    """Append what was staged, once; ``write_id`` and ``epoch`` of a stream, the job's own by default.

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
    """Remove what a job staged: it failed."""
    remove_staged(Path(plan.run))


# From Arrow's buffers to spans, the reverse of ``tables.arrow``.
#
# An Arrow array of byte strings is spans already: offsets into one run of bytes, which are not copied.
# Headers, which Arrow has as lists of pairs, are encoded as records hold them.

_VARINT_ROOM = 10
_LARGEST = (1 << 31) - 1


def spans_of(array: pa.Array) -> Spans:
    """A binary or string array's values where they lie; another array that can be cast to binary is copied.

    Raises UsageError for what is neither text nor bytes, or a value over 2 GiB.
    """
    try:
        array = array.cast(pa.large_binary())  # new offsets, the same bytes
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(f"{array.type} is neither text nor bytes: cast it to string or binary") from None
    if not len(array):
        return Spans.of([])
    _, raw, data = array.buffers()
    edges = np.frombuffer(raw, np.int64, len(array) + 1 + array.offset)[array.offset :]
    sizes = np.diff(edges)
    if int(sizes.max()) > _LARGEST:
        raise UsageError("a value over 2 GiB fits no record")
    if array.null_count:
        sizes[np.asarray(array.is_null())] = -1
    room = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Spans(data=room, start=edges[:-1], size=sizes.astype(np.int32))


def header_spans_of(array: pa.Array) -> Spans:
    """Each record's headers (a list of structs ``key``, ``value``) as a record holds them, size 0 for none.

    Raises UsageError for lists of something else, or a header without a key.
    """
    kind = array.type
    pair = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if pair is None or not pa.types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        raise UsageError(f"headers are {kind}: give array<struct<key string, value binary>>")
    edges = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(edges)
    if array.null_count:
        counts[np.asarray(array.is_null())] = 0
    pairs = array.values
    children = dict(zip((field.name for field in pair), pairs.flatten(), strict=True))
    keys, values = spans_of(children["key"]), spans_of(children["value"])
    room = np.maximum(keys.size, 0).sum(dtype=np.int64) + np.maximum(values.size, 0).sum(dtype=np.int64)
    out = np.empty(int(room) + _VARINT_ROOM * (2 * len(pairs) + len(array)) + 1, np.uint8)
    start, size = np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    encoded = Spans(data=out, start=start, size=size)
    if not _encode_headers(edges[:-1], counts, keys, values, encoded):
        raise UsageError("a header without a key: give each a name")
    return encoded


@kernel
def _encode_headers(first: Int64, count: Int64, keys: Spans, values: Spans, encoded: Spans) -> bool:
    """Fill ``encoded``, its data and the spans in it; False where a header has no key."""
    position = 0
    for row in range(len(first)):
        encoded.start[row] = position
        if count[row] == 0:
            continue
        position = write_varint(encoded.data, position, count[row])
        for header in range(first[row], first[row] + count[row]):
            if keys.size[header] < 0:
                return False
            position = put_span(keys, header, encoded.data, position)
            position = put_span(values, header, encoded.data, position)
        encoded.size[row] = position - encoded.start[row]
    return True


WRITTEN = ("key", "value", "headers", "topic", "partition", "timestamp")
"""The columns that are written; ``value`` is required."""
PASSED_OVER = ("offset", "timestampType")
"""Columns of what was read that the log gives anew."""
_FIRST_ROOM = 16 << 10
_LARGEST_S = LONG_MAX // 1000
_UNITS_A_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}


BY_KEY = -1 << 63
"""The partition of a row that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Records to be written: spans a column, ``timestamp`` int64 in ms, ``partition`` int64 or ``BY_KEY``."""

    keys: Spans
    values: Spans
    headers: Spans
    timestamp: Int64
    partition: Int64

    def __len__(self) -> int:
        return len(self.timestamp)


def rows_of(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """The columns of an Arrow batch as spans; records without a time get ``now_ms``. Raises UsageError."""
    count, columns = batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
    none = Spans(
        data=np.zeros(1, np.uint8), start=np.zeros(count, np.int64), size=np.full(count, -1, np.int32)
    )
    partition = columns.get("partition", pa.nulls(count, pa.int64()))
    if not pa.types.is_integer(partition.type):
        raise UsageError(f"partition is {partition.type}: give an int")
    return Rows(
        keys=spans_of(columns["key"]) if "key" in columns else none,
        values=spans_of(columns["value"]),
        headers=header_spans_of(columns["headers"]) if "headers" in columns else none,
        timestamp=_milliseconds(columns.get("timestamp"), count, now_ms),
        partition=np.asarray(partition.cast(pa.int64()).fill_null(BY_KEY)),
    )


def taken(spans: Spans, rows: Int64) -> Spans:
    """Some rows of a column."""
    return spans._replace(start=spans.start[rows], size=spans.size[rows])


def _milliseconds(column: pa.Array | None, count: int, now_ms: int) -> Int64:
    if column is None:
        return np.full(count, now_ms, np.int64)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        raise UsageError(f"timestamp is {column.type}: give a timestamp, or milliseconds as a long")
    times = np.asarray(column.cast(pa.int64()).fill_null(0)).astype(np.int64)
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    # Seconds whose milliseconds do not fit into 64 bits become the first or the last that do.
    times = np.clip(times, -_LARGEST_S, _LARGEST_S) * 1000 if unit == "s" else times // _UNITS_A_MS[unit]
    if column.null_count:
        times[np.asarray(column.is_null())] = now_ms
    return times


def partitions_of(named: Int64, keys: Spans, numbers: Sequence[int], sticky: int) -> Int32:
    """Each row's partition: the one that it names, else its key's, else one by ``sticky``. Raises
    UsageError."""
    by_key = named == BY_KEY
    strange = np.setdiff1d(named[~by_key], numbers)
    if len(strange):
        raise UsageError(f"there is no partition {strange[0]}: it has {', '.join(map(str, numbers))}")
    if by_key.any():
        if list(numbers) != list(range(len(numbers))):
            raise UsageError(
                f"only partitions {', '.join(map(str, numbers))} are here, so a key's is not known: "
                "give a column partition"
            )
        of_key = np.empty(len(named), np.int32)
        partitions_for_keys(keys.data, keys.start, keys.size, len(numbers), of_key)
        of_key[of_key < 0] = numbers[sticky % len(numbers)]
        named = np.where(by_key, of_key, named)
    return named.astype(np.int32)


def by_value(values: Int32) -> Iterator[tuple[int, Int64]]:
    """(value, its rows in order), for each value that there is."""
    order = np.argsort(values, kind="stable").astype(np.int64)
    ordered = values[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for first, behind in itertools.pairwise(edges):
        if behind > first:
            yield int(ordered[first]), order[first:behind]


class Filling:
    """Builds one partition's batches: ``add`` rows, ``flush`` at the end; each goes to ``put(batch,
    records)``.

    ``most_bytes``: of encoded records before compression; a record that is larger is a batch by itself.
    ``pending``: encoded bytes of the batch that is not full yet.
    """

    def __init__(self, codec: int, most_bytes: int, put: Callable[[Bytes, int], None]) -> None:
        self._codec, self._most, self._put = codec, most_bytes, put
        self._out = np.empty(0, np.uint8)
        self.pending = 0
        self._count = 0
        self._base = self._largest = 0

    def add(self, rows: Rows, picked: Int64) -> None:
        """Encode the picked rows, in their order."""
        # Upper bounds: ``RECORD_ROOM`` holds the varints of a record at their longest.
        room = RECORD_ROOM + sum(
            np.maximum(part.size[picked], 0).astype(np.int64)
            for part in (rows.keys, rows.values, rows.headers)
        )
        ends = np.cumsum(room)
        done = 0
        while done < len(picked):
            before = int(ends[done - 1]) if done else 0
            fit = int(np.searchsorted(ends, before + self._most - self.pending, side="right"))
            if fit <= done and self._count == 0:
                fit = done + 1  # larger than a batch may be: alone in its batch
            if fit > done:
                self._encode(rows, picked[done:fit], int(ends[fit - 1]) - before)
            if fit < len(picked):
                self.flush()
            done = max(fit, done)

    def _encode(self, rows: Rows, picked: Int64, room: int) -> None:
        if self.pending + room > len(self._out):
            wider = np.empty(max(self.pending + room, 2 * len(self._out), _FIRST_ROOM), np.uint8)
            wider[: self.pending] = self._out[: self.pending]
            self._out = wider
        times = rows.timestamp[picked]
        if not self._count:
            self._base = self._largest = int(times[0])
        self._largest = max(self._largest, int(times.max()))
        deltas = np.arange(self._count, self._count + len(picked), dtype=np.int64)
        keys, values, headers = (taken(part, picked) for part in (rows.keys, rows.values, rows.headers))
        self.pending = encode_records(
            deltas, times - self._base, keys, values, headers, self._out, self.pending
        )
        self._count += len(picked)

    def flush(self) -> None:
        """Make a batch of the pending records."""
        if not self._count:
            return
        shape, records, count = BatchShape(codec=self._codec), self._out[: self.pending], self._count
        batch = assemble(shape, records, count - 1, self._base, self._largest, count)
        self.pending = self._count = 0
        self._put(batch, count)


def topics_of(batch: pa.RecordBatch, known: Mapping[str, int]) -> Int32:
    """Each row's topic by its number in ``known``. Raises UsageError for an unknown one."""
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    strange = next((name for name in names if name not in known), None)
    if topics.null_count or strange is not None:
        raise UsageError(
            f"there is no topic {strange!r} here: make it with siltstone topics --create"
            if strange is not None
            else "a record without a topic: give the option topic, or fill the column"
        )
    numbers = np.array([known[name] for name in names], np.int32)
    return np.asarray(numbers[np.asarray(topics.indices)])
