"""The compactor of side-by-side compaction, its engines' protocol, and the engine without Spark.

::

    link new segments ─► phase one, phase two ─► check counts ─► new run ─► merge runs ─► commit
                                                                          delete old files ◄──┘

(Pulsar's ``AbstractTwoPhaseCompactor``.) The new records are those from the ledger's horizon on. Before the
commit, which moves the cursor in one step, only the compaction's staging folder is written to. A count that
does not add up ends the compaction, with the ledger unchanged.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import structs

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.errors import CheckFailedError, CompactionFailedError, UsageError
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.ledger.keys import PARTITIONS, assemble_key_index
from siltstone.compaction.ledger.staging import SEGMENT_FILES, merge_group, merge_key_indexes, rewrite_group
from siltstone.compaction.ledger.work import (
    MAX_RUNS,
    NO_OFFSETS,
    CompactionReport,
    CompactionSettings,
    CompactionWork,
    Source,
    bucket_count,
    compactable_end,
    extract,
    group_sources,
    link_sources,
    merge_bucket,
    offsets_by_group,
)
from siltstone.compaction.report import Discarded
from siltstone.log.ledger.manifest import BY_OFFSET, BY_TIME, ORDERS, Ledger, Run
from siltstone.log.ledger.reading import HasLedgers
from siltstone.log.ledger.store import KEYS, LedgerStore, run_name
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.transactions import carried_by_group


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A compaction that succeeded; sizes in bytes, ``seconds`` of the whole call.

    ``changed``: a new ledger was committed; False where there was nothing new, and the ledger is as it was
    (``ledger_id`` None: there never was one). ``horizon``: the first offset that the ledger does not cover.
    ``entries`` and ``size`` are the ledger's. ``read_records`` and ``read_bytes``: of the new records,
    ``written``: those that went into the ledger, so ``read_records == written + removed.total()``; control
    records are no records here, and tombstones those with a null or an empty value. ``written_bytes``: of the
    new run's logs. ``superseded``: records of earlier runs that this ledger no longer has.
    """

    ledger_id: int | None = None
    horizon: int
    entries: int = 0
    size: int = 0
    changed: bool = False
    read_records: int = 0
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    removed: Discarded = field(default_factory=Discarded)
    superseded: int = 0
    seconds: float = 0.0


class CompactionEngine(Protocol):
    """Spreads the work of a compaction over tasks. Calls raise EngineError when the engine is lost."""

    @property
    def workers(self) -> int:
        """How many tasks run at one time."""

    def compact(self, work: CompactionWork, whole: bool) -> CompactionReport:
        """Compact new records: the ``whole`` of them in one task, or over all workers."""

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Merge runs into one: its segments, and the parts of its key index."""


def compact_in_process(
    work: CompactionWork, attempt: str, buckets: int = 1, splits: Iterable[Sequence[int]] | None = None
) -> CompactionReport:
    """Both phases over all sources in this process: in ``splits`` (lists of their numbers; by default all in
    one), keys in so many buckets."""
    # Phase one: the key entries of the sources, then bucket by bucket the offsets that are retained.
    report, retained = CompactionReport(), [NO_OFFSETS]
    blobs: list[list[EntryBlob]] = [[] for _ in range(buckets)]
    for split in [range(len(work.sources))] if splits is None else splits:
        for output in extract(work, split, buckets, report.extracted):
            if isinstance(output, EntryBlob):
                blobs[output.bucket].append(output.copied())
            else:
                retained.append(output)
    for bucket in range(buckets) if report.extracted.failure is None else ():
        merged, offsets = merge_bucket(work, blobs[bucket], bucket, buckets, attempt)
        blobs[bucket] = []
        report.add(merged)
        retained.append(offsets)
    # Phase two: group by group the records at these offsets.
    for group, offsets in offsets_by_group(work.groups, np.concatenate(retained)):
        if report.first_failure() is None:
            report.retained[group] = len(offsets)
            report.add(rewrite_group(work, work.groups[group], offsets, attempt))
    return report


class InProcessCompactionEngine:
    """The engine without Spark: one step after another."""

    workers = 1

    def __init__(self, buckets: int = 1) -> None:
        self._buckets = buckets
        self._attempts = map(str, itertools.count())

    def compact(self, work: CompactionWork, whole: bool) -> CompactionReport:
        """In one go, or source by source, bucket by bucket, group by group, as a cluster does."""
        if whole:
            return compact_in_process(work, next(self._attempts))
        splits = ([number] for number in range(len(work.sources)))
        return compact_in_process(work, next(self._attempts), bucket_count(work, self._buckets), splits)

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Bucket by bucket, group by group."""
        report, attempt = CompactionReport(), next(self._attempts)
        buckets = 1 << (self._buckets - 1).bit_length()
        for bucket in range(buckets):
            report.add(merge_key_indexes(work, bucket, buckets, attempt))
        for group in work.groups:
            report.add(merge_group(work, group, attempt))
        return report


# Which runs are merged, so that a ledger has few runs, and few superseded records in them.
#
# Each compaction adds a run. A run is written again only when about as much as it holds was added after it,
# as in a size-tiered LSM tree (RocksDB's universal compaction): so a record is written a few times in its
# life, whatever the ledger's size, and the cost of a compaction follows the new data.


def ranges_to_merge(runs: Sequence[Run], max_runs: int = MAX_RUNS) -> list[tuple[int, int]]:
    """Ranges [first, last) of runs (the newest last) that are merged into one each, ascending. A range of one
    run is rewritten.

    The newest run is merged with the one before as long as all newer ones have at least half of that one's
    live size, or more than ``max_runs`` runs would remain. Of the other runs, neighbours that are mostly
    superseded are merged.
    """
    if not runs:
        return []
    # 1. From the newest run down, as far as the newer runs are about as large as the next older one.
    first, newer_size = len(runs) - 1, runs[-1].live_size
    while first > 0 and (2 * newer_size >= runs[first - 1].live_size or first + 1 > max_runs):
        first -= 1
        newer_size += runs[first].live_size
    # 2. Below them, each sequence of runs of which most is superseded.
    ranges: list[tuple[int, int]] = []
    for number in range(first):
        if not runs[number].is_mostly_superseded:
            continue
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    # 3. The newest run by itself is written again only if most of it is superseded.
    if first < len(runs) - 1 or runs[-1].is_mostly_superseded:
        ranges.append((first, len(runs)))
    return ranges


# The counts that must add up before a ledger is committed: no entry or record was lost between tasks.

_RUN_AGAIN = "run again; if it happens again, report it"


def count_discarded(work: CompactionWork, report: CompactionReport) -> Discarded:
    """How many of the new records were discarded, by reason."""
    keyless = 0 if work.retain_null_key else report.extracted.keyless
    keyed = sum(report.retained.values()) - (report.extracted.keyless - keyless)
    return Discarded(
        superseded=report.extracted.keyed - keyed - report.deleted,
        tombstones=report.deleted,
        keyless=keyless,
        aborted=report.extracted.aborted,
    )


def _check_counts(
    work: CompactionWork, report: CompactionReport, counts: Iterable[tuple[Any, Any, str]]
) -> None:
    """Raises CompactionFailedError with the first failure that a step reported, CheckFailedError where two
    counts, given as (one, other, of what), differ."""
    if (failure := report.first_failure()) is not None:
        raise CompactionFailedError(failure.reason, path=work.name)
    indexed = (sum(len(part.counts) for part in report.keys), PARTITIONS, "partitions of the key index")
    for one, other, what in (*counts, indexed):
        if one != other:
            reason = f"two counts of {what} differ, {one} and {other}; the ledger is unchanged"
            raise CheckFailedError(reason, path=work.name, advice=_RUN_AGAIN)


def check_compaction(work: CompactionWork, report: CompactionReport) -> None:
    """Check new records: read = written + discarded, entries sent = entries arrived, retained = written.

    Raises CheckFailedError; CompactionFailedError for a failure that was reported; CorruptFileError for an
    aborted transaction that no index names.
    """
    extracted, discarded = report.extracted, count_discarded(work, report)
    retained = sum(report.retained.values())
    by_kind = extracted.keyed + extracted.keyless + extracted.aborted
    keyless = extracted.keyless if work.retain_null_key else 0
    entries = retained - keyless + (report.deleted if work.by_time else 0)
    counts = (
        (extracted.records, by_kind, "records by kind"),
        (report.merged_entries, extracted.entries, "key entries sent and merged"),
        (extracted.records, retained + discarded.total(), "records retained and discarded"),
        (report.written, report.retained, "records retained and written"),
        (sum(part.entries for part in report.keys), entries, "keys of the new run"),
    )
    _check_counts(work, report, counts)
    carried_by_group(extracted.summaries, [work.first], work.name)
    if discarded.superseded < report.late:
        reason = f"{report.late} keys are late, but only {discarded.superseded} records are superseded"
        raise CheckFailedError(f"{reason}; the ledger is unchanged", path=work.name, advice=_RUN_AGAIN)


def check_merge(work: CompactionWork, report: CompactionReport, live_records: int) -> None:
    """Check a merge of runs: all ``live_records`` were written, and one entry for each where there are
    neither keyless records nor entries of deleted keys. Raises CheckFailedError, CompactionFailedError."""
    counts = [(sum(report.written.values()), live_records, "records of the merged runs")]
    if not work.by_time and not work.retain_null_key:
        entries = sum(part.entries for part in report.keys)
        counts.append((entries, live_records, "keys of the merged runs"))
    _check_counts(work, report, counts)


# The next ledger, until it is committed: the runs of the current one, a new run, and merged ones.
#
# Runs that are not merged keep their directories; only their superseded offsets grow. New directories are
# prepared in the staging folder, under their final names; the commit renames them.


class LedgerDraft:
    """The next ledger of a log; ``ledger``: the current one.

    ``work``: what all steps share; its ``key_indexes`` are those of the current runs. ``newly_superseded``:
    records of current runs that new records supersede. ``written_bytes``: size of all new segments.
    """

    def __init__(self, store: LedgerStore, ledger: Ledger | None, work: CompactionWork) -> None:
        self.store, self.ledger = store, ledger
        self.runs: list[Run] = [] if ledger is None else list(ledger.runs)
        self.superseded: dict[int, Int64] = {} if ledger is None else store.superseded(ledger)
        self.staged: dict[int, Path] = {}
        self._ledger_id, self._next_id = store.next_ids()
        self.newly_superseded = self.written_bytes = 0
        indexes = {run.id: str(self._keys_of(run)) for run in self.runs if run.keys_size}
        self.work = replace(work, key_indexes=indexes)

    def _directory_of(self, run: Run) -> Path:
        """The directory that holds a run now."""
        return self.staged.get(run.id, self.store.folder / run_name(run.id))

    def _keys_of(self, run: Run) -> Path:
        return self._directory_of(run) / KEYS

    def extend(self, work: CompactionWork, report: CompactionReport) -> None:
        """Add compacted records as a run, or only move the end where there are no entries. Raises
        CorruptFileError, OSError."""
        for run, parts in report.superseded.items():
            before = self.superseded.get(run, NO_OFFSETS)
            self.superseded[run] = np.unique(np.concatenate([before, *parts]))
            self.newly_superseded += len(self.superseded[run]) - len(before)
        self.runs = [
            structs.replace(run, superseded=len(self.superseded.get(run.id, ()))) for run in self.runs
        ]
        base = work.first if self.ledger is None else self.ledger.horizon
        if self.runs and not report.segments and not any(part.entries for part in report.keys):
            self.runs[-1] = structs.replace(self.runs[-1], end_offset=work.end)
        else:
            self.runs.append(self._stage(base, work.end, report))

    def _stage(self, base: int, end: int, report: CompactionReport) -> Run:
        """Prepare a new run's directory, durably."""
        number, self._next_id = self._next_id, self._next_id + 1
        directory = Path(self.work.settings.staging) / run_name(number)
        files.make_directory(directory)
        for stem, entry in report.segments.items():
            for kind in SEGMENT_FILES:
                files.rename(f"{stem}.{kind}", directory / segment_file(entry.base_offset, kind))
        keys_size, keys_crc = assemble_key_index(
            directory / KEYS, report.keys, self.work.words, self.work.hash_key
        )
        files.sync_directory(directory)
        self.staged[number] = directory
        segments = sorted(report.segments.values(), key=lambda entry: entry.base_offset)
        size = sum(entry.size for entry in segments)
        self.written_bytes += size
        return Run(
            id=number,
            base_offset=base,
            end_offset=end,
            records=sum(report.written.values()),
            size=size,
            segments=tuple(segments),
            keys_size=keys_size,
            keys_crc=keys_crc,
            superseded=0,
        )

    def merge_runs(self, engine: CompactionEngine) -> None:
        """Merge runs where it pays (``ranges_to_merge``).

        Raises CompactionFailedError, CheckFailedError, EngineError, OSError.
        """
        for first, last in reversed(ranges_to_merge(self.runs, self.work.settings.max_runs)):
            old = self.runs[first:last]
            self.runs[first:last] = [self._merged(engine, old)]
            for run in old:
                self.superseded.pop(run.id, None)
                self.staged.pop(run.id, None)

    def _merged(self, engine: CompactionEngine, old: Sequence[Run]) -> Run:
        """Merge neighbouring runs into a staged one."""
        sources = tuple(source for run in old for source in self._sources(run))
        base, end = old[0].base_offset, old[-1].end_offset
        work = replace(
            self.work,
            sources=sources,
            groups=group_sources(sources, end, engine.workers),
            superseded={run.id: self.superseded[run.id] for run in old if run.id in self.superseded},
            key_indexes={run.id: str(self._keys_of(run)) for run in old},
        )
        report = engine.merge_runs(work)
        check_merge(work, report, sum(run.records - run.superseded for run in old))
        return self._stage(base, end, report)

    def _sources(self, run: Run) -> Iterable[Source]:
        """A run's segments as sources."""
        ends = [segment.base_offset for segment in run.segments[1:]] + [run.end_offset]
        for segment, end in zip(run.segments, ends, strict=False):
            path = self._directory_of(run) / segment_file(segment.base_offset, "log")
            yield Source(
                path=str(path),
                base_offset=segment.base_offset,
                end_offset=end,
                size=segment.size,
                inode=files.stat(path).inode,
                run=run.id,
            )

    def commit(self, now_ms: int) -> Ledger:
        """Commit it as the log's ledger. Raises CheckFailedError, OSError."""
        ledger = Ledger(
            id=self._ledger_id,
            horizon=self.runs[-1].end_offset,
            runs=tuple(self.runs),
            order=BY_TIME if self.work.by_time else BY_OFFSET,
            hash_key=self.work.hash_key,
            retain_null_key=self.work.retain_null_key,
            created_ms=now_ms,
            superseded_crc=None,
        )
        return self.store.commit(ledger, self.superseded, self.staged)


ONE_TASK_BYTES = 64 << 20
"""New records of up to this size are compacted in one task: spreading them takes longer."""


class CompactableLog(HasLedgers, Protocol):
    """A log that can be compacted: a ``PartitionLog`` or a ``ReadOnlyLog``."""

    topic_partition: TopicPartition


class TwoPhaseCompactor:
    """Compacts logs into their ledgers, one log a call; several threads may call it for several logs.

    ``one_task_bytes``: new records of up to that size are compacted in one task.
    """

    def __init__(
        self,
        engine: CompactionEngine,
        *,
        clock: Clock,
        one_task_bytes: int = ONE_TASK_BYTES,
        settings: CompactionSettings | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._one_task_bytes = one_task_bytes
        self._settings = settings or CompactionSettings()

    def compact(
        self,
        log: CompactableLog,
        *,
        order: str = BY_OFFSET,
        retain_null_key: bool = False,
        commit_guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> CompactionResult:
        """Compact the new records of ``log``, from the ledger's horizon on, into its ledger.

        They end at the high watermark or the last stable offset, as they are at the start. The caller makes
        sure that no other compaction of the log is in progress. ``commit_guard`` is entered while the ledger
        is changed (``LedgerStore.commit``, ``collect``): it raises when the log was truncated or deleted
        meanwhile, and prevents both until it is left. Raises UsageError when the ledger was made with another
        ``order`` or ``retain_null_key``, LedgerError for a damaged ledger, CompactionFailedError,
        CheckFailedError, CorruptFileError, EngineError, OSError; the ledger is unchanged then.
        """
        began = time.perf_counter()
        store = LedgerStore(log.directory)
        ledger = store.current()
        _refuse_other_options(log, ledger, order, retain_null_key)
        view = log.view
        horizon = max(view.log_start_offset, 0) if ledger is None else ledger.horizon
        if horizon > view.log_end_offset:
            reason = f"its ledger covers offsets below {horizon}, but the log ends at {view.log_end_offset}"
            raise CompactionFailedError(reason, path=str(log.topic_partition), advice=_REBUILD)
        if compactable_end(view) <= horizon:
            return _result(ledger, horizon, seconds=time.perf_counter() - began)
        # What an interrupted compaction has left. A reader's ledger stays.
        with commit_guard():
            store.collect()
        staging = store.make_staging(secrets.token_hex(8))
        try:
            hash_key = (secrets.randbits(64), secrets.randbits(64)) if ledger is None else ledger.hash_key
            work = CompactionWork(
                name=str(log.topic_partition),
                hash_key=hash_key,
                by_time=order == BY_TIME,
                retain_null_key=retain_null_key,
                settings=replace(self._settings, staging=str(staging), batch_limit=view.batch_limit),
                key_indexes={},
            )
            result = self._carry_out(log, horizon, LedgerDraft(store, ledger, work), commit_guard)
        finally:
            with contextlib.suppress(OSError):
                files.remove_tree(staging)
        return replace(result, seconds=time.perf_counter() - began)

    def _carry_out(
        self,
        log: CompactableLog,
        horizon: int,
        draft: LedgerDraft,
        commit_guard: Callable[[], AbstractContextManager[None]],
    ) -> CompactionResult:
        # 1. Links keep the segments readable, whatever happens to the log meanwhile.
        work = link_sources(log, draft.work, horizon, self._engine.workers)
        # 2. Phases one and two, in tasks; their counts must add up.
        whole = work.size <= self._one_task_bytes and bucket_count(work) == 1
        report = self._engine.compact(work, whole)
        check_compaction(work, report)
        # 3. The next ledger: the new run, and runs that are merged now.
        draft.extend(work, report)
        draft.merge_runs(self._engine)
        # 4. The commit moves the cursor (Pulsar: the acknowledgement of ``__compaction`` with the ledger's id
        #    as its property); then the files that the ledger before had alone are deleted.
        with commit_guard():
            ledger = draft.commit(self._clock.now_ms())
            with contextlib.suppress(OSError):
                draft.store.collect()
        return _result(
            ledger,
            ledger.horizon,
            changed=True,
            read_records=report.extracted.records,
            read_bytes=report.extracted.size,
            written=sum(report.retained.values()),
            written_bytes=draft.written_bytes,
            removed=count_discarded(work, report),
            superseded=draft.newly_superseded,
        )


def _result(ledger: Ledger | None, horizon: int, **figures: Any) -> CompactionResult:
    """The result of a compaction after which ``ledger`` is current."""
    if ledger is not None:
        figures |= {"ledger_id": ledger.id, "entries": ledger.entries, "size": ledger.size}
    return CompactionResult(horizon=horizon, **figures)


_REBUILD = "rebuild the ledger from the records that are still in the log: siltstone compact-topic --reset"


def _refuse_other_options(
    log: CompactableLog, ledger: Ledger | None, order: str, retain_null_key: bool
) -> None:
    """All compactions of a ledger use the same order, and treat keyless records alike. Raises UsageError."""
    if order not in ORDERS:
        raise UsageError(f"there is no order {order!r}", advice=f"choose one of {', '.join(ORDERS)}")
    if ledger is not None and (ledger.order, ledger.retain_null_key) != (order, retain_null_key):
        null_keys = str(ledger.retain_null_key).lower()
        raise UsageError(
            f"the ledger was made with siltstone.compaction.order={ledger.order} and "
            f"topicCompactionRetainNullKey={null_keys}, which are different now",
            path=str(log.topic_partition),
            advice=f"set them back, or {_REBUILD}",
        )
