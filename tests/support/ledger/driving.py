"""Compacting logs in tests, and judging what lies there and what is read afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.base.clock import ManualClock
from siltstone.compaction.ledger.compactor import (
    CompactableLog,
    CompactionEngine,
    CompactionResult,
    InProcessCompactionEngine,
    TwoPhaseCompactor,
)
from siltstone.compaction.ledger.work import CompactionSettings
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import COMPACTED
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from tests.support.cleaning.logs import NOW, WHERE
from tests.support.cleaning.naive import batches_of
from tests.support.ledger.oracle import Model, Seen, aborted_records, committed, seen_in


@dataclass(frozen=True, kw_only=True)
class How:
    """How a tail is compacted: spread or in one go, over so many buckets, with so small files."""

    spread: bool = False
    buckets: int = 1
    settings: CompactionSettings = field(default_factory=CompactionSettings)
    engine: Callable[[int], CompactionEngine] = InProcessCompactionEngine


def opened(root: Path) -> ReadOnlyLog:
    """The only log of a directory, as it lies there."""
    return ReadOnlyLogs([root], clock=ManualClock(NOW))[WHERE]


def compact(log: CompactableLog, model: Model, options: How | None = None) -> CompactionResult:
    """Compact a log as a model is compacted."""
    options = options or How()
    compactor = TwoPhaseCompactor(
        options.engine(options.buckets),
        clock=ManualClock(NOW),
        one_task_bytes=-1 if options.spread else 1 << 40,
        settings=options.settings,
    )
    order = "time" if model.by_time else "offset"
    return compactor.compact(log, order=order, retain_null_key=model.retain_null_key)


def compact_and_check(log: CompactableLog, model: Model, options: How | None = None) -> CompactionResult:
    """Compact a log and its model; the ledger must be the model's, on the disk and as it is read."""
    view, before = log.view, LedgerStore(log.directory).current()
    horizon = before.horizon if before is not None else view.log_start_offset
    end = max(min(view.high_watermark, view.last_stable_offset), view.log_start_offset)
    start = max(horizon, view.log_start_offset)
    records = committed(log.directory, start, end)
    shown = len(model.view())
    result = compact(log, model, options)
    if end <= horizon:
        assert not result.changed
    else:
        removed = model.add(records, end)
        aborted = aborted_records(log.directory, start, end)
        counts = result.removed
        assert result.changed and result.horizon == end
        assert (counts.superseded, counts.tombstones) == (removed.superseded, removed.deleted)
        assert (counts.keyless, counts.aborted) == (removed.keyless, aborted)
        assert result.read_records == len(records) + aborted == result.written + counts.total()
        assert result.entries == shown + result.written - result.replaced_entries
    check(log, model)
    return result


def check(log: CompactableLog, model: Model) -> None:
    """The ledger as it lies there, and as a reader sees it."""
    assert in_ledger(log.directory) == model.view()
    reader = CompactedReader(log, isolation="read_committed")
    read = [as_seen(record) for record in reader.records()]
    end = min(log.view.high_watermark, log.view.last_stable_offset)
    tail = committed(log.directory, max(model.horizon, log.view.log_start_offset), end)
    assert read == model.view() + tail
    leftovers = {path.name for path in (log.directory / COMPACTED).glob("run-*")}
    assert not leftovers


def as_seen(record: object) -> Seen:
    """A reader's record in the model's terms."""
    names = ("offset", "timestamp", "key", "value", "headers", "leader_epoch")
    return Seen(**{name: getattr(record, name) for name in names})


def in_ledger(partition: Path) -> list[Seen]:
    """All that is not superseded, by the slow decoder; batches must be as the ledger's writer makes them."""
    store = LedgerStore(partition)
    ledger = store.current()
    if ledger is None:
        return []
    superseded, visible = store.superseded(ledger), []
    for run in ledger.runs:
        hidden = set(superseded.get(run.id, ()))
        records = []
        for segment in run.segments:
            path = store.folder / f"generation-{run.id}" / f"{segment.base_offset:020}.log"
            for batch in batches_of(path.read_bytes()):
                assert (batch.magic, batch.producer_id, batch.producer_epoch) == (2, -1, -1)
                assert batch.base_sequence == -1 and not batch.attributes & ~0x0F
                assert batch.base_offset == batch.records[0].offset
                assert batch.last_offset == batch.records[-1].offset
                records += seen_in(batch)
        assert len(records) == run.records and hidden <= {record.offset for record in records}
        visible += [record for record in records if record.offset not in hidden]
    assert len(visible) == ledger.entries
    return visible
