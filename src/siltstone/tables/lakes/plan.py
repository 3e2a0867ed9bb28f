"""Plans an export into a Delta or Iceberg table: which records of a log are read, and how they are written.

::

    the log, compared with the table's progress      view=latest                 view=log
    has no progress in the table                     read from its start         read from its start
    the same topic and start, and no smaller end     new records are merged      new records are appended
    another topic id; records that the table has     replaced                    refused
    were truncated
    a later log start, or cleaned beyond its end     read again, and compared    appended, or data loss

*End* is the offset up to which the table has the log's records. A cleaning keeps the last record of a key,
but removes tombstones after their delete horizon. If a cleaning has gone beyond the table's end, the
tombstone of a row may be missing in the log, so the whole log is read again. Then a bucket whose rows have
the same offsets keeps its files, since the record at an offset never changes. After a log was replaced or
truncated, offsets are no proof, and all its buckets are written.
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from siltstone.base.errors import (
    CorruptFileError,
    OffsetOutOfRangeError,
    SourceChangedError,
    UsageError,
)
from siltstone.log.checkpoints import LeaderEpochs, read_topic_id
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.tables.decoding import decoded_schema
from siltstone.tables.export import COMPRESSIONS, refuse_log_directories, writable
from siltstone.tables.lakes.table import (
    DataFile,
    LakeTable,
    LogProgress,
    Progress,
    TableShape,
    refuse_other_directory,
)
from siltstone.tables.options import (
    ALL_ROWS,
    LATEST_VIEW,
    LOG_VIEW,
    RECORDS_TABLE,
    OffsetLimit,
    PartitionSelection,
    ReadOptions,
)
from siltstone.tables.reading import raw_schema
from siltstone.tables.splits import READ_WHAT_IS_LEFT, open_logs

MODES = ("update", "overwrite")
BUCKET_BYTES = 128 << 20
"""The bytes of the largest log for which there is one bucket, by default."""
BUCKETS_MAX = 10_000
RAW_KEY = "keyBytes"
"""The column with a key's bytes where ``key`` is decoded: keys are compared, and bucketed, by their bytes."""
_NEEDED = ("key", "partition", "offset")
"""The columns without which the rows of ``view=latest`` cannot be brought up to date."""
_START_AGAIN = "export to another target, or with mode='overwrite', which replaces all rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePlan:
    """The plan of an export, for its tasks. It is small, and picklable.

    ``run``: a random text in the names of the export's files. ``options``: those by which the tasks read the
    new records, None if there are none; ``source``: those that the export was called with. ``files``: the
    table's files, by (partition, bucket). ``partitions``: those that are read. ``read_again``: the partitions
    whose old rows are all replaced; ``compared``: those of them whose unchanged buckets keep their files.
    ``stale``: the partitions whose old files are removed also from buckets without a new row. ``progress``:
    the new progress of the logs whose progress changes. ``replaces_all``: all old rows are replaced.
    ``size``: an estimate of the bytes of the new records.
    """

    root: str
    run: str
    shape: TableShape
    options: ReadOptions | None
    source: ReadOptions
    compression: str
    file_schema: pa.Schema
    files: Mapping[tuple[int, int], tuple[DataFile, ...]]
    partitions: tuple[int, ...]
    read_again: frozenset[int]
    compared: frozenset[int]
    stale: frozenset[int]
    progress: Progress
    replaces_all: bool
    size: int

    @property
    def key_column(self) -> str:
        """The column of the table with the bytes of keys."""
        return RAW_KEY if "key" in self.source.decoders else "key"

    @property
    def targets(self) -> int:
        """How many targets there are. A target is the number of a bucket, among those of all partitions that
        are read."""
        return len(self.partitions) * self.shape.buckets

    def target_of(self, partition: int) -> int:
        """The target of the partition's first bucket."""
        return self.partitions.index(partition) * self.shape.buckets

    def bucket_at(self, target: int) -> tuple[int, int]:
        """(partition, bucket) of a target."""
        at, bucket = divmod(target, self.shape.buckets)
        return self.partitions[at], bucket


def plan_export(
    table: LakeTable, options: ReadOptions, *, mode: str, compression: str, buckets: int | None
) -> LakePlan:
    """Compare the logs with the table. Raises UsageError, SourceChangedError, OffsetOutOfRangeError, and what
    opening a directory raises."""
    _refuse_arguments(options, mode, compression, buckets)
    refuse_log_directories(table.root, options)
    if table.version is None:
        refuse_other_directory(table.root)
    selected_logs = open_logs(options)
    topic = _one_topic(selected_logs)
    shape = _shape(table, options, topic, buckets, selected_logs)
    logs = {topic_partition.partition: log for topic_partition, log in selected_logs.items()}
    files = table.data_files() if table.version is not None else []
    numbers = set(logs)
    others = {file.partition for file in files} - numbers
    old = {} if mode == "overwrite" else table.progress(topic, sorted(numbers | others))
    log_exports = {number: _log_export(log, old.get(number), shape, options) for number, log in logs.items()}
    topic_ids = {log_export.progress.topic_id for log_export in log_exports.values()} - {0}
    stale = {number for number in numbers if log_exports[number].is_read_again}
    # Partitions of the table that are not exported now keep their rows, unless these are of an earlier topic.
    stale |= {number for number in others if number not in old or _is_other(old[number].topic_id, topic_ids)}
    by_bucket: dict[tuple[int, int], tuple[DataFile, ...]] = {}
    for file in files:
        bucket_at = (file.partition, file.bucket)
        by_bucket[bucket_at] = (*by_bucket.get(bucket_at, ()), file)
    return LakePlan(
        root=str(table.root),
        run=f"{secrets.token_hex(8)}-",
        shape=shape,
        options=_options_of(options, topic, log_exports),
        source=options,
        compression=compression,
        file_schema=writable(table.file_schema(shape)),
        files=by_bucket,
        partitions=tuple(
            sorted(number for number, log_export in log_exports.items() if log_export.has_records)
        ),
        read_again=frozenset(number for number in numbers if log_exports[number].is_read_again),
        compared=frozenset(number for number in numbers if log_exports[number].is_compared),
        stale=frozenset(stale) if shape.buckets or mode == "overwrite" else frozenset(),
        progress={
            number: log_export.progress
            for number, log_export in log_exports.items()
            if log_export.progress != old.get(number)
        },
        replaces_all=mode == "overwrite",
        size=sum(_new_bytes(log, log_exports[number]) for number, log in logs.items()),
    )


def _refuse_arguments(options: ReadOptions, mode: str, compression: str, buckets: int | None) -> None:
    for name, value, allowed in (("mode", mode, MODES), ("compression", compression, COMPRESSIONS)):
        if value not in allowed:
            raise UsageError(f"{name}={value!r} is not known", advice=f"pass {', '.join(allowed)}")
    if buckets is not None and not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(
            f"buckets={buckets} is not possible", advice=f"pass a number from 1 to {BUCKETS_MAX}"
        )
    if options.table != RECORDS_TABLE or options.view not in (LOG_VIEW, LATEST_VIEW):
        reason = "a Delta or Iceberg table has records, all of them or the last one of each key"
        raise UsageError(reason, advice="leave table out, and pass view='log' or 'latest'")
    rows = dataclasses.replace(options.row_filter, partitions=None)
    bounds = (options.starting, options.ending, options.as_of)
    is_whole = rows == ALL_ROWS and bounds == (None, None, None)
    if not is_whole or options.quarantine_bad_batches or options.include_batch_metadata:
        reason = "a Delta or Iceberg table has all records of its partitions, and is brought up to date"
        raise UsageError(reason, advice="choose records when you read the table, or export to 'parquet'")
    if options.view == LOG_VIEW and buckets is not None:
        raise UsageError("buckets are of keys, and view=log has all records", advice="pass view='latest'")
    if options.view == LATEST_VIEW and options.keep_tombstones:
        reason = "tombstones delete the rows of their keys, so there are none to keep"
        raise UsageError(reason, advice="leave tombstones out")
    missing = [name for name in _NEEDED if name not in raw_schema(options).names]
    if options.view == LATEST_VIEW and missing:
        reason = f"columns {', '.join(missing)} are missing, by which rows are brought up to date"
        raise UsageError(reason, advice=f"add {', '.join(missing)} to columns")


def _one_topic(logs: Mapping[TopicPartition, ReadOnlyLog]) -> str:
    topics = sorted({topic_partition.topic for topic_partition in logs})
    if len(topics) != 1:
        reason = f"a table is of one topic, and {len(topics)} are selected: {', '.join(topics[:5])}"
        raise UsageError(reason, advice="pass one topic, and export others to tables of their own")
    return topics[0]


def _shape(
    table: LakeTable,
    options: ReadOptions,
    topic: str,
    buckets: int | None,
    logs: Mapping[TopicPartition, ReadOnlyLog],
) -> TableShape:
    """The table's shape; the options must agree with it. Raises UsageError."""
    columns = _columns(options)
    is_latest = options.view == LATEST_VIEW
    if table.version is None:
        if is_latest and buckets is None:
            size = max(map(_bytes_of, logs.values()))
            buckets = min(max(1, -(-size // BUCKET_BYTES)), BUCKETS_MAX)
        return TableShape(topic=topic, columns=columns, buckets=buckets or 0)
    present = table.buckets_of(topic)
    advice = "export to another target"
    if present is None:
        raise UsageError(f"the table is no export of the topic {topic}", path=table.root, advice=advice)
    if (present > 0) != is_latest:
        reason = f"the table was exported with view={'latest' if present else 'log'}"
        raise UsageError(reason, path=table.root, advice=f"pass the same view, or {advice}")
    if buckets not in (None, present):
        reason = f"the table has {present} buckets for each partition"
        raise UsageError(reason, path=table.root, advice=f"leave buckets out, or {advice}")
    if not table.has_columns(columns):
        reason = f"the table has other columns: {_names(table.columns())}, and the export {_names(columns)}"
        advice = f"pass the same columns, include_headers and decode, or {advice}"
        raise UsageError(reason, path=table.root, advice=advice)
    return TableShape(topic=topic, columns=columns, buckets=present)


def _bytes_of(log: ReadOnlyLog) -> int:
    """The bytes of a log's segments."""
    return sum(map(log.view.size_of, range(len(log.view.segments))))


def _columns(options: ReadOptions) -> pa.Schema:
    raw = raw_schema(options)
    columns = decoded_schema(raw, options.decoders)
    if options.view == LATEST_VIEW and "key" in options.decoders:
        columns = columns.append(pa.field(RAW_KEY, pa.binary()))
    return columns


def _names(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogExport:
    """The export of one log: its records from ``start`` on, below the end of ``progress``, are read.

    ``is_read_again``: all old rows are replaced; ``is_compared``: except those of buckets whose offsets have
    not changed, which keep their files."""

    start: int
    progress: LogProgress
    is_read_again: bool = False
    is_compared: bool = False

    @property
    def has_records(self) -> bool:
        """Is there anything to read?"""
        return self.start < self.progress.end


def _log_export(
    log: ReadOnlyLog, old: LogProgress | None, shape: TableShape, options: ReadOptions
) -> _LogExport:
    """The export of a log. Raises SourceChangedError, OffsetOutOfRangeError for a table of all records."""
    start, end = log.log_start_offset, max(log.view.readable_end(options.isolation), log.log_start_offset)
    new = LogProgress(
        topic_id=_topic_number(log.directory),
        start=start if shape.buckets else 0,
        end=end,
        leader_epoch=_leader_epoch(log.directory, end),
    )
    if old is None:
        return _LogExport(start=start, progress=new, is_read_again=True)
    reason = _replaced_reason(log, old, new)
    if shape.buckets:
        # Where one of the two ids is not known, the rows of either topic are right after they are read again.
        if reason is not None or new.topic_id != old.topic_id:
            return _LogExport(start=start, progress=new, is_read_again=True)
        if start != old.start or log.first_dirty_offset > old.end:
            return _LogExport(start=start, progress=new, is_read_again=True, is_compared=True)
    elif reason is not None:
        raise SourceChangedError(reason, path=str(log.topic_partition), advice=_START_AGAIN)
    elif start > old.end and options.fail_on_data_loss:
        reason = f"offsets {old.end} to {start - 1} were deleted before they were exported"
        raise OffsetOutOfRangeError(reason, path=str(log.topic_partition), advice=READ_WHAT_IS_LEFT)
    # The high watermark of a broker that starts again may be below what was exported.
    progress = dataclasses.replace(new if end > old.end else old, topic_id=new.topic_id or old.topic_id)
    return _LogExport(start=max(old.end, start), progress=progress)


def _topic_number(directory: Path) -> int:
    """63 bits of the topic's id, which is random; 0 without an id."""
    topic_id = read_topic_id(directory)
    if topic_id is None:
        return 0
    return int.from_bytes(base64.urlsafe_b64decode(f"{topic_id}==")[:8], "big") >> 1


def _is_other(topic_id: int, known: Collection[int]) -> bool:
    """Is the id none of the ``known`` ones? An id that is not known (0) is not another one."""
    return topic_id != 0 and bool(known) and topic_id not in known


def _leader_epoch(directory: Path, end: int) -> int:
    """The leader epoch of the record before ``end``, -1 if it is not known."""
    try:
        entries = LeaderEpochs(directory).entries
    except CorruptFileError:  # reading goes by the batches, and so would a start
        return -1
    return max((epoch for epoch, start in entries if start < end), default=-1)


def _new_bytes(log: ReadOnlyLog, log_export: _LogExport) -> int:
    """About the bytes of the records that are read."""
    span = max(log.log_end_offset - log.log_start_offset, 1)
    return _bytes_of(log) * max(log_export.progress.end - log_export.start, 0) // span


def _replaced_reason(log: ReadOnlyLog, old: LogProgress, new: LogProgress) -> str | None:
    """Why the table's rows are not those of this log any more; None if they are."""
    if _is_other(old.topic_id, {new.topic_id} - {0}):
        return "the topic was deleted and created again since the last export: its id is another one"
    if log.log_end_offset < old.end:
        return f"the log ends at {log.log_end_offset}, and was exported up to {old.end}: it was truncated"
    epoch = _leader_epoch(log.directory, old.end)
    if -1 not in (epoch, old.leader_epoch) and epoch != old.leader_epoch:
        return (
            f"the record before offset {old.end} is of leader epoch {epoch}, and was exported with epoch "
            f"{old.leader_epoch}: the log was truncated, and written again"
        )
    return None


def _options_of(
    options: ReadOptions, topic: str, log_exports: Mapping[int, _LogExport]
) -> ReadOptions | None:
    """The options that read the new records: of ``view=latest`` with tombstones, since they delete rows, and
    undecoded, since keys are compared by their bytes."""
    ranges = {
        TopicPartition(topic, number): (log_export.start, log_export.progress.end)
        for number, log_export in sorted(log_exports.items())
        if log_export.has_records
    }
    if not ranges:
        return None
    is_latest = options.view == LATEST_VIEW
    return dataclasses.replace(
        options,
        selection=PartitionSelection(assign=tuple(ranges)),
        starting=OffsetLimit(by_partition={partition: start for partition, (start, _) in ranges.items()}),
        ending=OffsetLimit(by_partition={partition: end for partition, (_, end) in ranges.items()}),
        keep_tombstones=is_latest,
        row_filter=ALL_ROWS,
        decoders={} if is_latest else options.decoders,
        columns=_raw_columns(options) if is_latest else options.columns,
    )


def _raw_columns(options: ReadOptions) -> tuple[str, ...]:
    """The columns that are read from the log: those of the table, and the value, which says whether a record
    is a tombstone. (``headers`` is left out where the option ``include_headers`` adds it anyway.)"""
    names = [name for name in raw_schema(options).names if name != "headers" or not options.include_headers]
    return tuple(dict.fromkeys([*names, "value"]))


def removed_files(
    plan: LakePlan, changed: Collection[tuple[int, int]], seen: Collection[tuple[int, int]]
) -> list[DataFile]:
    """The files that the commit removes: those of the ``changed`` buckets, and of stale partitions those of
    the buckets that have no row any more (there are rows for the ``seen`` ones)."""
    removed = {
        (partition, bucket)
        for partition, bucket in plan.files
        if (partition, bucket) in changed or (partition in plan.stale and (partition, bucket) not in seen)
    }
    return [file for bucket_at in sorted(removed) for file in plan.files[bucket_at]]
