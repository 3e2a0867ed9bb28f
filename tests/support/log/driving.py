"""Driving an open log in tests: batches as clients send them, a whole read, a clean while it is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siltstone.base.clock import Clock
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CONTROL_BIT, BatchHeaders, Bytes
from siltstone.compaction.engine import clean_in_one_task
from siltstone.compaction.inplace.destination import next_cleaner_checkpoint
from siltstone.compaction.inplace.planning import LogState, PlannedLog, PlanOptions, plan_log
from siltstone.log.directory import Checkpoints, LogDirectory
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchResult
from siltstone.log.names import STAGING
from siltstone.log.partition import PartitionLog, TaskRunner, partition_of, run_now
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.replacement import rename_to_cleaned
from tests.support.cleaning.logs import WHERE, settings
from tests.support.log.model import Stored

RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open log, and what it took to open it."""

    log: PartitionLog
    recovered: RecoveredPartition


def open_log(
    directory: Path,
    config: LogConfig,
    clock: Clock,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    background: TaskRunner = run_now,
) -> Opened:
    """Bring a partition directory into order and open it."""
    recovered = recover_partition(
        directory,
        had_clean_shutdown=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start,
        config=config,
        now_ms=clock.now_ms(),
    )
    log = PartitionLog(partition_of(recovered.directory), recovered, config, clock, background=background)
    return Opened(log=log, recovered=recovered)


def log_config(changes: Mapping[str, object]) -> LogConfig:
    """A log's settings from Kafka's keys."""
    return LogConfig.of(settings(changes))


def client_batch(records: Sequence[Stored], **shape: object) -> Bytes:
    """What a client sends for these records; ``shape`` are the fields of ``NewBatchHeader``."""
    return build_batch(
        NewBatchHeader(**shape),  # type: ignore[arg-type]
        offset=np.arange(len(records), dtype=np.int64),
        timestamp=np.array([record.timestamp for record in records], np.int64),
        keys=Spans.of([record.key for record in records]),
        values=Spans.of([record.value for record in records]),
    )


def stored(data: Bytes, batches: BatchHeaders) -> list[Stored]:
    """The records of some batches, checksums checked."""
    assert first_bad_checksum(data, batches) is None
    columns = decode_records(data, batches)
    offsets, times = columns.offset.tolist(), columns.timestamp.tolist()
    return [
        Stored(offsets[row], columns.key(row), columns.value(row), times[row]) for row in range(len(columns))
    ]


def fetched(result: FetchResult) -> tuple[list[Stored], int | None]:
    """(records of the whole batches found, the last offset among these batches)."""
    data, batches, _ = result.batches()
    last = int(batches["last_offset"][-1]) if len(batches) else None
    return stored(data, batches), last


def read_all(
    log: PartitionLog, *, max_bytes: int = 1 << 20, isolation: str = READ_UNCOMMITTED
) -> list[Stored]:
    """Every readable record from the log start on; under read_committed what a consumer would keep."""
    position, records = log.log_start_offset, list[Stored]()
    while True:
        read = log.read(position, max_bytes, isolation=isolation)
        data, batches, _ = read.batches()
        if not len(batches):
            return records
        if isolation == READ_COMMITTED:
            batches = batches[consumed(read, batches)]
        records += [record for record in stored(data, batches) if record.offset >= position]
        position = last_offset(read) + 1


def last_offset(read: FetchResult) -> int:
    """The last offset of the whole batches that were found."""
    return int(read.batches()[1]["last_offset"][-1])


def consumed(read: FetchResult, batches: BatchHeaders) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The batches that a consumer under read_committed hands on, as Kafka's fetcher finds them."""
    begun = sorted(read.aborted, key=lambda transaction: transaction.first_offset)
    aborting: set[int] = set()
    keep = np.ones(len(batches), bool)
    for row, batch in enumerate(batches):
        while begun and begun[0].first_offset <= batch["last_offset"]:
            aborting.add(begun.pop(0).producer_id)
        if batch["attributes"] & CONTROL_BIT:
            keep[row] = False
            aborting.discard(int(batch["producer_id"]))
        elif int(batch["producer_id"]) in aborting:
            keep[row] = False
    return keep


def clean_open_log(
    log: PartitionLog, changes: Mapping[str, object], *, now_ms: int, checkpoint: int | None
) -> int | None:
    """Clean a log that is open, group by group, as the embedded cleaner does; the checkpoint afterwards.

    None when there was nothing to clean. Staged files are made below the partition's own folder.
    """
    directory = LogDirectory(log.directory.parent, {WHERE: log.directory})
    state = LogState(topic_partition=WHERE, path=log.directory, directory=directory, config=settings(changes))
    staging = log.directory / STAGING / RUN
    try:
        plan = plan_log(state, _checkpoints(log, checkpoint), _choices(now_ms), staging)
    except CorruptFileError as error:  # a truncation cut into a batch, and what was left was deleted
        assert "is above the log's end" in str(error) and log.log_start_offset == log.log_end_offset
        return None
    if not isinstance(plan, PlannedLog):
        return None
    make_folder(staging)
    cleaned = clean_in_one_task(plan.work, "0")
    assert cleaned.extracted.failure is None, cleaned.extracted.failure
    for report in cleaned.groups:
        assert report.failure is None, report.failure
        group = plan.work.groups[report.group_index]
        sources = [
            segment.base_offset for segment in plan.work.segments[group.first_segment : group.end_segment]
        ]
        rename_to_cleaned(
            log.directory, {group.base_offset: {kind: Path(path) for kind, path in report.staged.items()}}
        )
        log.replace([group.base_offset], sources)
    return next_cleaner_checkpoint(plan)


def make_folder(staging: Path) -> None:
    """The folder that a clean's tasks write to."""
    staging.mkdir(parents=True, exist_ok=True)


def _choices(now_ms: int) -> PlanOptions:
    return PlanOptions(now_ms=now_ms, force=True, drop_keyless=True, high_watermark_is_end=True)


def _checkpoints(log: PartitionLog, cleaner: int | None) -> Checkpoints:
    return Checkpoints(
        cleaner={} if cleaner is None else {WHERE: cleaner},
        recovery_point={},
        log_start={WHERE: log.log_start_offset},
        high_watermark={},
    )
