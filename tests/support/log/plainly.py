"""A plain compactor, a dictionary and a loop: it makes the ledgers that stores and readers are tested with.

All file operations go through ``base.files``, in the order that the store requires, so that crash tests can
stop at each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.records.layout import Int64
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import IndexBuilder
from siltstone.log.ledger.manifest import Ledger, Run, SegmentEntry
from siltstone.log.ledger.reading import HasLedgers
from siltstone.log.ledger.store import KEYS, LedgerStore, open_run_segments
from siltstone.log.names import segment_file
from siltstone.log.reading import LogReader, PolledRecords, Record
from tests.support.cleaning.logs import NOW, Rec, batch
from tests.support.log.views import FixedLog

PER_BATCH, PER_SEGMENT = 3, 6
"""Records, so that small ledgers have several segments with several batches."""


def write_file(path: Path, data: bytes) -> None:
    """A new file, durable but for its name."""
    files.write_new(path, data)


def stage_segment(directory: Path, records: Sequence[Rec], per_batch: int, codec: int = 0) -> None:
    """One segment of ``base.records``, at least one."""
    base = records[0].offset
    groups = [records[at : at + per_batch] for at in range(0, len(records), per_batch)]
    data = b"".join(batch(group, codec=codec) for group in groups)
    builder = IndexBuilder(base, 50, 1 << 20)
    builder.add_batches(scan_batches(np.frombuffer(bytearray(data), np.uint8)).batches)
    indexes = builder.finish()
    write_file(directory / segment_file(base, "log"), data)
    write_file(directory / segment_file(base, "index"), indexes["index"])
    write_file(directory / segment_file(base, "timeindex"), indexes["timeindex"])


def segment_entry(directory: Path, base_offset: int) -> SegmentEntry:
    """What a manifest says of a segment, from its files."""
    kinds = ("log", "index", "timeindex")
    log, index, times = (files.read_bytes(directory / segment_file(base_offset, kind)) for kind in kinds)
    return SegmentEntry(
        base_offset=base_offset,
        size=len(log),
        crc=crc32c(log),
        index_crc=crc32c(index),
        time_index_crc=crc32c(times),
    )


def stage(
    staging: Path,
    run_id: int,
    bounds: tuple[int, int],
    records: Sequence[Rec],
    *,
    per_batch: int = PER_BATCH,
    per_segment: int = PER_SEGMENT,
    codec: int = 0,
) -> tuple[Run, Path]:
    """A run as a compaction leaves it for the store."""
    directory = staging / f"generation-{run_id}"
    files.make_directory(directory)
    groups = [records[at : at + per_segment] for at in range(0, len(records), per_segment)]
    for group in groups:
        stage_segment(directory, group, per_batch, codec)
    keys = b"".join(b"%r\n" % record.key for record in records)
    write_file(directory / KEYS, keys)
    files.sync_directory(directory)
    segments = tuple(segment_entry(directory, group[0].offset) for group in groups)
    run = Run(
        id=run_id,
        base_offset=bounds[0],
        end_offset=bounds[1],
        records=len(records),
        size=sum(segment.size for segment in segments),
        segments=segments,
        keys_size=len(keys),
        keys_crc=crc32c(keys),
        superseded=0,
    )
    return run, directory


def ledger_of(ledger_id: int, runs: Sequence[Run], horizon: int | None = None) -> Ledger:
    """A manifest of these runs."""
    return Ledger(
        id=ledger_id,
        horizon=runs[-1].end_offset if horizon is None else horizon,
        runs=tuple(runs),
        order="offset",
        hash_key=(7, (1 << 64) - 1),
        retain_null_key=False,
        created_ms=NOW,
        superseded_crc=None,
    )


def as_rec(record: Record) -> Rec:
    """A record that was read, to be written again."""
    return Rec(offset=record.offset, key=record.key, value=record.value, timestamp=record.timestamp)


def recs_of(polls: Iterable[PolledRecords]) -> list[Rec]:
    """All records of some polls."""
    return [
        Rec(
            offset=int(polled.columns.offset[row]),
            key=polled.columns.key(row),
            value=polled.columns.value(row),
            timestamp=int(polled.columns.timestamp[row]),
        )
        for polled in polls
        for row in range(len(polled))
    ]


def compacted(records: Iterable[Rec]) -> list[Rec]:
    """The last record of each key, without keys whose last value is null or empty; keyless ones go."""
    last = {record.key: record for record in records if record.key is not None}
    return sorted((record for record in last.values() if record.value), key=lambda record: record.offset)


def compact(log: HasLedgers, *, name: str = "aa", merge_runs: bool = False, codec: int = 0) -> Ledger | None:
    """Compact the records from the horizon on into a new run, or with ``merge_runs`` all into one.

    None if there are none.
    """
    store = LedgerStore(log.directory)
    store.delete_unused()
    view, old = log.view, store.current()
    end = view.last_stable_offset
    start = view.log_start_offset if old is None else max(old.horizon, view.log_start_offset)
    base = view.log_start_offset if old is None else old.horizon
    if end <= start:
        return None
    tail = recs_of(LogReader(log, start, isolation="read_committed", end=end))
    keys = {record.key for record in tail}
    shown = live(store, old)
    ledger_id, run_id = store.next_ids()
    staging = store.make_staging(name)
    if merge_runs and old is not None:
        retained = [record for records in shown.values() for record in records if record.key not in keys]
        bounds = (old.base_offset, end)
        new, staged = stage(staging, run_id, bounds, [*retained, *compacted(tail)], codec=codec)
        new_ledger = store.commit(ledger_of(ledger_id, [new]), {}, {run_id: staged})
    else:
        new, staged = stage(staging, run_id, (base, end), compacted(tail), codec=codec)
        older, superseded = supersede(store, old, shown, keys)
        new_ledger = store.commit(ledger_of(ledger_id, [*older, new]), superseded, {run_id: staged})
    store.delete_unused()
    return new_ledger


def live(store: LedgerStore, ledger: Ledger | None) -> dict[int, list[Rec]]:
    """Run id → its records that are not superseded."""
    if ledger is None:
        return {}
    held = store.open()
    assert held is not None
    with contextlib.closing(held):
        visible = {}
        for run in ledger.runs:
            parts = list(open_run_segments(store.folder, run, np.empty(0, np.int64)))
            superseded = set(store.superseded(ledger).get(run.id, np.empty(0, np.int64)).tolist())
            records = [record for part in parts for record in recs_of(LogReader(FixedLog(part.view)))]
            visible[run.id] = [record for record in records if record.offset not in superseded]
        return visible


def supersede(
    store: LedgerStore, ledger: Ledger | None, shown: dict[int, list[Rec]], keys: set[bytes | None]
) -> tuple[list[Run], dict[int, Int64]]:
    """The existing runs, and their superseded offsets once there are newer records of ``keys``."""
    if ledger is None:
        return [], {}
    before = store.superseded(ledger)
    runs, superseded = [], {}
    for run in ledger.runs:
        offsets = [record.offset for record in shown[run.id] if record.key in keys]
        merged = np.union1d(before.get(run.id, np.empty(0, np.int64)), np.array(offsets, np.int64))
        runs.append(replace(run, superseded=len(merged)))
        if len(merged):
            superseded[run.id] = merged
    return runs, superseded
