"""A write, from its options to staged files and their commit: what the thin Spark part calls.

::

    driver   WriteOptions ─► plan_write ─► WritePlan               no lock yet, but nobody else may have it
    tasks    WritePlan, Arrow batches ─► stage_task ─► StagedFile
    driver   StagedFiles ─► commit_plan ─► Write                   see ``commit``

Nothing is in a log before ``commit_plan``; ``abort_plan`` removes what is staged.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.codec_table import CODEC_NAMES, codec_number
from siltstone.base.config import Config, LogConfig
from siltstone.base.errors import (
    DirectoryLockedError,
    MessageTooLargeError,
    NotALogDirectoryError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes
from siltstone.log.directory import LogDirectory, true_path
from siltstone.log.names import CLUSTER_METADATA, LOCK, STAGED_WRITES, TopicPartition
from siltstone.log.partition_files import refuse_unsafe_files
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TopicSettings, load_registry, read_brokers_topics
from siltstone.tables.batching import Filling, by_value, partitions_of, refuse_columns, rows_of, topics_of
from siltstone.tables.commit import (
    StagedFile,
    StagedWriter,
    Write,
    commit_write,
    discard_staged,
    find_write,
    load_writes,
)
from siltstone.tables.options import Option, number, one_of, parse_options, size

DEFAULT_BATCH_BYTES = 256 << 10
_MOST_PENDING = 64 << 20
"""Encoded bytes that wait in a task for their batches to be full; beyond it all are made."""
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", CLUSTER_METADATA)
_SPARKS = ("checkpointLocation", "queryName", "outputMode")

WRITE_OPTIONS: tuple[Option, ...] = (
    Option("path", str, "path"),
    Option("topic", str, "topic"),
    Option("partitions", number(1), "partitions"),
    Option("compression", one_of(*CODEC_NAMES), "compression"),
    Option("batchSize", size, "batch_bytes"),
    Option("writeId", str, "write_id"),
    *(Option(name, str, name) for name in _SPARKS),
)
"""Every option for writing; those of ``_SPARKS`` are Spark's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """``path``: a log directory or one partition's. ``topic`` None: a column says it.

    ``partitions``: make the topic with so many where it is not there. ``compression`` None: as the topic
    says. ``batch_bytes``: of a batch's records before compression. ``write_id`` None: of this job alone.
    """

    path: str
    topic: str | None = None
    partitions: int | None = None
    compression: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    write_id: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WriteOptions:
        """From texts by name, whatever their case. Raises UsageError that says what is allowed."""
        found = parse_options(given, WRITE_OPTIONS)
        if "path" not in found:
            raise UsageError("option 'path' is missing: give a Kafka log directory or one partition's")
        if "partitions" in found and "topic" not in found:
            raise UsageError("partitions is for a topic that is to be made: give the option topic too")
        return cls(**{name: value for name, value in found.items() if name not in _SPARKS})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """What a task must know of a topic: ``most_bytes`` of a batch's records, ``largest_batch`` as a whole."""

    name: str
    partitions: tuple[int, ...]
    codec: int
    most_bytes: int
    largest_batch: int
    needs_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What tasks and the commit work by: plain and picklable.

    ``root``: the log directory, ``only``: the one partition that was named. ``run``: the folder that is
    staged in. ``topics`` by name; ``topic``: all records' own, None: a column says. ``is_repeated``: what is
    written with this id is there already, so the tasks have nothing to do.
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
    """Look at the directory and decide how it is written to; a topic is made when that was asked for.

    ``streaming``: the commits tell id and epoch. Raises UsageError, UnknownTopicError, DirectoryLockedError,
    SiltstoneError, OSError.
    """
    path = true_path(Path(options.path))
    refuse_columns(list(columns), topic_given=options.topic is not None or _names_a_partition(options))
    clock = clock or SystemClock()
    if options.partitions is not None and options.topic is not None:
        _make_topic(path, options.topic, options.partitions, clock)
    directory = LogDirectory.open(path, lock=False)
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


def _names_a_partition(options: WriteOptions) -> bool:
    try:
        return LogDirectory.open(Path(options.path), lock=False).is_partial
    except NotALogDirectoryError:
        return False


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
    broker = Config() if cluster is None else cluster.broker_in_force(Config())
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
        if self._plan.topic is not None:
            return self._add_to(0, batch, sticky, now_ms)
        for topic, picked in by_value(topics_of(batch, self._known)):
            self._add_to(topic, batch.take(pa.array(picked)), sticky, now_ms)
        return None

    def _add_to(self, topic: int, batch: pa.RecordBatch, sticky: int, now_ms: int) -> None:
        shape, rows = self._plan.topics[topic], rows_of(batch, now_ms)
        if shape.needs_keys and (rows.keys.size < 0).any():
            raise UsageError(f"topic {shape.name} is compacted: each of its records needs a key")
        numbers = shape.partitions
        found = partitions_of(batch, rows.keys, numbers, numbers[sticky % len(numbers)])
        for partition, picked in by_value(found):
            self._filler(topic, partition).add(rows, picked)
        if sum(each.pending for each in self._filling.values()) > _MOST_PENDING:
            self.finish()

    def _filler(self, topic: int, partition: int) -> Filling:
        known = self._filling.get((topic, partition))
        if known is None:
            shape = self._plan.topics[topic]
            known = Filling(shape.codec, shape.most_bytes, partial(self._put, topic, partition))
            self._filling[topic, partition] = known
        return known

    def _put(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        shape = self._plan.topics[topic]
        if len(batch) > shape.largest_batch:
            raise MessageTooLargeError(
                f"a record takes {len(batch)} bytes as a batch, over topic {shape.name}'s max.message.bytes "
                f"(or segment.bytes), {shape.largest_batch}; raise that, or leave the record out"
            )
        self._writer.put(topic, partition, batch, records)

    def finish(self) -> None:
        for each in self._filling.values():
            each.flush()


def commit_plan(
    plan: WritePlan,
    staged: Iterable[StagedFile],
    *,
    write_id: str | None = None,
    epoch: int = 0,
    clock: Clock | None = None,
) -> Write:
    """Append what was staged, once; ``write_id`` and ``epoch``: of a stream, the job's own unless told.

    Raises DirectoryLockedError, SiltstoneError, OSError; see ``commit.commit_write``.
    """
    clock = clock or SystemClock()
    with LogManager.open([plan.root], clock=clock, only=plan.only) as manager:
        return commit_write(
            manager,
            Path(plan.root),
            staged,
            write_id=write_id or plan.write_id,
            epoch=epoch,
            is_named=write_id is not None or plan.is_named,
            clock=clock,
        )


def abort_plan(plan: WritePlan, staged: Iterable[StagedFile]) -> None:
    """The job failed: what it staged goes."""
    discard_staged([*staged, StagedFile(task=0, stem=f"{plan.run}/none")])
