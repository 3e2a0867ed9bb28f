"""Plans and reads every kind of table: its schema, its splits, and the rows of a split.

::

    schema_of(options)              pyarrow.Schema
    plan(options, filters)          splits: small, picklable, on the driver
    plan_stages(options, filters)   the same, where tasks find the last record of each key
    read_split(split, options)      pyarrow.RecordBatch after RecordBatch, in a task

    table=records                             ``reading``
    table=consumerOffsets, transactionState   the same records, decoded: ``file_tables``
    table=batches, offsetIndex, checkpoints…  ``file_tables``
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from siltstone.base import files
from siltstone.base.config import LONG_MAX
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, LedgerError
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.lookup import TimestampAndOffset
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import AtTime
from siltstone.log.segments import list_segments
from siltstone.tables import file_tables
from siltstone.tables.decoding import SAMPLE_VALUES, Json, inferred_type
from siltstone.tables.latest import KeyPlan, find_retained, plan_keys
from siltstone.tables.options import COMPACTED_VIEW, LATEST_VIEW, LOG_VIEW, RECORDS_TABLE, ReadOptions
from siltstone.tables.reading import read_quarantine, read_records, record_schema
from siltstone.tables.splits import (
    NO_FILTERS,
    FileSplit,
    Logs,
    OffsetRange,
    PushedFilters,
    SnapshotRange,
    TaskSplit,
    aborted_transactions,
    offset_ranges,
    open_logs,
    partition_directories,
    reopen_log,
    snapshot_range,
    split_ranges,
)

_logger = logging.getLogger("siltstone")


def schema_of(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for unknown names."""
    return record_schema(options) if options.table == RECORDS_TABLE else file_tables.schema_of(options)


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan of a query. ``splits``: what its tasks read. ``key_plan``: for ``view=latest``, the logs in
    which other tasks, before these, find the last record of each key (``tables.latest``); otherwise None."""

    splits: list[TaskSplit]
    key_plan: KeyPlan | None = None


def plan(options: ReadOptions, filters: PushedFilters = NO_FILTERS) -> list[TaskSplit]:
    """Open the directories, find the offsets to read, and cut them into splits; none for an empty table.

    ``filters`` restrict the table of records, and of a decoded table the records behind it (by their own
    topic and offset). Other tables, and ``badBatches=quarantine``, return all their rows, and the caller
    filters them. For ``view=latest`` this reads the log once, to find the last record of each key.
    Raises UsageError, OffsetOutOfRangeError, LedgerError, and what opening a directory raises.
    """
    read_plan = plan_stages(options, filters)
    if read_plan.key_plan is None:
        return read_plan.splits
    return find_retained(read_plan.splits, read_plan.key_plan, record_options(options))


def plan_stages(
    options: ReadOptions, filters: PushedFilters = NO_FILTERS, parallelism: int | None = None
) -> ReadPlan:
    """As ``plan``, but for ``view=latest`` the log is not read: the caller has to find the last record of
    each key first, by the plan's ``key_plan``. ``parallelism``: how many tasks run at the same time, by
    default the cores of this machine."""
    if options.table in file_tables.FILE_TABLES:
        return ReadPlan(splits=file_tables.plan_files(options))
    if options.table in file_tables.DECODED_TABLES:
        return plan_stages(file_tables.decoded_source(options), filters, parallelism)
    if options.quarantine_bad_batches:
        return ReadPlan(splits=_plan_quarantine(options))
    filters &= PushedFilters.of(options.row_filter)
    with contextlib.ExitStack() as stack:
        logs: Logs = open_logs(options)
        if options.view == COMPACTED_VIEW:
            # Ledgers stay open while the query is planned; a task notices if their files were deleted since.
            compacted = [stack.enter_context(contextlib.closing(CompactedLog(log))) for log in logs.values()]
            logs = {log.topic_partition: log for log in compacted}
        ranges = offset_ranges(logs, options)
        selected = filters.select(logs)
        ranges_to_read = [
            range_to_read
            for topic_partition, log in selected.items()
            for range_to_read in _ranges_to_read(log, filters.restrict(ranges[topic_partition], log))
        ]
        splits = split_ranges(ranges_to_read, options, parallelism)
    if options.view != LATEST_VIEW:
        return ReadPlan(splits=splits)
    # The last record of a key is that of the whole range: a filter must not make an older one the last.
    return ReadPlan(
        splits=splits,
        key_plan=plan_keys(selected, ranges, options, parallelism=parallelism or os.cpu_count() or 1),
    )


def record_options(options: ReadOptions) -> ReadOptions:
    """The options for reading the records behind the table: those that it decodes, or its own rows."""
    return file_tables.decoded_source(options) if options.table in file_tables.DECODED_TABLES else options


def with_inferred_types(options: ReadOptions, existing: pa.Schema | None = None) -> ReadOptions:
    """The options, with the types of JSON columns that have no schema: those of ``existing`` (the columns of
    a table that is there), else those of the first values. Raises UsageError, and what reading raises."""
    decoders = dict(options.decoders)
    for column, decoder in options.decoders.items():
        if isinstance(decoder, Json) and decoder.schema is None:
            if existing is not None and column in existing.names:
                schema = existing.field(column).type
            else:
                schema = inferred_type(_sample_values(options, column))
            decoders[column] = dataclasses.replace(decoder, schema=schema)
    return dataclasses.replace(options, decoders=decoders)


def _sample_values(options: ReadOptions, column: str) -> Iterator[bytes]:
    """A column's values that are not null, before they are decoded; ``inferred_type`` takes the first
    ``SAMPLE_VALUES`` of them. For ``view=latest`` those of all records: for a sample they do as well, and
    finding the last records would read the whole log."""
    view = LOG_VIEW if options.view == LATEST_VIEW else options.view
    raw_options = dataclasses.replace(
        options, decoders={}, columns=(column,), include_headers=False, view=view, keep_tombstones=False
    )
    for split in plan(raw_options):
        for batch in read_split(split, raw_options):
            yield from batch.column(column).drop_null().slice(0, SAMPLE_VALUES).to_pylist()


def _ranges_to_read(log: ReadOnlyLog, offsets: OffsetRange) -> list[SnapshotRange]:
    return log.ranges_to_read(offsets) if isinstance(log, CompactedLog) else [snapshot_range(log, offsets)]


def read_split(split: TaskSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A split as Arrow batches of ``schema_of``. Raises what ``reading.read_records`` raises."""
    if options.table in file_tables.FILE_TABLES:
        return file_tables.read_files(split, options)
    if options.table in file_tables.DECODED_TABLES:
        return file_tables.decode_table(read_records(split, file_tables.decoded_source(options)), options)
    return read_quarantine(split, options) if options.quarantine_bad_batches else read_records(split, options)


# badBatches=quarantine reads each segment's whole file, also after damage (``reading.read_quarantine``).


def _plan_quarantine(options: ReadOptions) -> list[TaskSplit]:
    """One split for each segment, its whole file.

    An open log ends at its first damage. What comes after the damage is read too, unless the options set an
    end, or a consumer cannot read up to the log's end (high watermark, open transactions). A log that is too
    damaged to be opened is read as a whole, with the records of aborted transactions; if a start or an end is
    set, that is an error. Raises as ``plan``.
    """
    directories, logs = partition_directories(options), {}
    for topic_partition, directory in directories.items():
        try:
            logs[topic_partition] = reopen_log(directory, topic_partition)
        except CorruptFileError as error:
            if (options.starting or options.ending or options.as_of) is not None:
                raise
            effect = "its segments are read as they are, aborted transactions too"
            _logger.warning("%s: the log cannot be opened (%s); %s", directory, error, effect)
    ranges, splits = offset_ranges(logs, options), []
    for topic_partition, directory in directories.items():
        offset_range = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if topic_partition in logs:
            log, offset_range = logs[topic_partition], ranges[topic_partition]
            has_end = options.ending is not None or options.as_of is not None
            if not has_end and log.view.readable_end(options.isolation) == log.log_end_offset:
                offset_range = OffsetRange(offset_range.start, LONG_MAX)
            if options.isolation == READ_COMMITTED:
                aborted = aborted_transactions(log.view, OffsetRange(0, LONG_MAX))
        segments = list_segments(directory)
        for segment, following in itertools.zip_longest(segments, segments[1:]):
            next_base = LONG_MAX if following is None else following.base_offset
            start, end = max(offset_range.start, segment.base_offset), min(offset_range.end, next_base)
            if start < end and segment.size:
                file_split = FileSplit(
                    topic_partition=topic_partition,
                    directory=str(directory),
                    base_offset=segment.base_offset,
                    identity=files.FileIdentity(
                        segment.inode, segment.size, segment.modified_ns, may_grow=following is None
                    ),
                    start=start,
                    end=end,
                    position=0,
                    end_position=segment.size,
                    size=segment.size,
                    aborted=aborted,
                )
                splits.append(TaskSplit(file_splits=(file_split,)))
    return splits


# view=compacted: the segments of the compacted ledger, then the log's own from the compaction horizon on. A
# record that a later run of the ledger supersedes is left out (``log.ledger.reading.CompactedReader``). A log
# without a ledger is read as it is.


class CompactedLog(ReadOnlyLog):
    """A log in its compacted view, which begins where its ledger begins. Close it, to release the ledger.

    ``_opened_ledger``: the ledger whose segments the query reads; None if the log has none. ``_reader`` only
    finds offsets by time; it uses the ledger that is current at the time of the call."""

    def __init__(self, log: ReadOnlyLog) -> None:
        """Raises LedgerError, OSError, and what opening ``log`` raises."""
        self._opened_ledger = LedgerStore(log.directory).open()
        try:
            # The view must not be older than the ledger: another process may have appended to the log, and
            # compacted it, since it was opened.
            if self._opened_ledger and log.view.log_end_offset < self._opened_ledger.ledger.horizon:
                log.refresh()
            try:
                self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
            except LedgerError:
                log.refresh()
                self._reader = CompactedReader(log, isolation=READ_UNCOMMITTED)
        except BaseException:
            if self._opened_ledger is not None:
                self._opened_ledger.close()
            raise
        super().__init__(log.topic_partition, log.directory, log.view, log.damage, log.first_dirty_offset)

    @property
    def log_start_offset(self) -> int:
        """The ledger's first offset; without a ledger, that of the log."""
        return (
            self.view.log_start_offset
            if self._opened_ledger is None
            else self._opened_ledger.ledger.base_offset
        )

    def offset_for_time(self, timestamp: int) -> TimestampAndOffset | None:
        """The view's first record at or after a time in ms, None without one. From a ledger only its offset
        is known: its timestamp and leader epoch are -1."""
        if self._opened_ledger is None:
            return super().offset_for_time(timestamp)
        self._reader.seek(AtTime(timestamp))
        offset = self._reader.offset
        if offset >= self.view.high_watermark:
            return None
        return TimestampAndOffset(offset=offset, timestamp=-1, leader_epoch=-1)

    def ranges_to_read(self, offsets: OffsetRange) -> list[SnapshotRange]:
        """Where to read the offsets, in order: from each segment of the ledger those that it has, then from
        the log those at and above the horizon."""
        if self._opened_ledger is None:
            return [snapshot_range(self, offsets)]
        ranges = [
            SnapshotRange(
                topic_partition=self.topic_partition,
                directory=str(segment.view.segments[0].directory),
                log_view=segment.view,
                offsets=offsets,
                superseded=segment.superseded,
            )
            for segment in self._opened_ledger.segments
        ]
        # Records from the horizon on may have been deleted before they were compacted (DeleteRecords).
        horizon = max(self._opened_ledger.ledger.horizon, self.view.log_start_offset)
        return [*ranges, snapshot_range(self, OffsetRange(max(offsets.start, horizon), offsets.end))]

    def close(self) -> None:
        """Release the ledger."""
        self._reader.close()
        if self._opened_ledger is not None:
            self._opened_ledger.close()
