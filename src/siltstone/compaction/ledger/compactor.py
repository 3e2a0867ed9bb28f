"""The compactor of side-by-side compaction, the protocol of its engines, and the engine without Spark.

::

    link new segments ─► phase one, phase two ─► check counts ─► new run ─► merge runs ─► commit
                                                                          delete old files ◄──┘

(Pulsar's ``AbstractTwoPhaseCompactor``.) The new records are those from the ledger's compaction horizon on.
The compaction writes only to its staging folder, until the commit moves the cursor in one step. If counts do
not add up, the compaction fails, and the ledger is unchanged.
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
from siltstone.compaction.ledger.keys import KEY_INDEX_PARTITIONS, assemble_key_index
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
from siltstone.log.transactions import combine_summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of a compaction that succeeded.

    ``changed``: a new ledger was committed. If nothing was new, it is False, and the other fields describe
    the current ledger (``ledger_id`` None: there is none). ``horizon``: the first offset that the ledger does
    not cover. ``entries``, ``size``: records and bytes of the ledger. ``read_records``, ``read_bytes``: of
    the new records, without control records. ``written``: new records that the ledger has, so ``read_records
    == written + removed.total()``. A tombstone is a record with a null or an empty value. ``written_bytes``:
    size of all new segments. ``replaced_entries``: records of earlier runs that the ledger no longer has.
    ``seconds``: how long the call took.
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
    replaced_entries: int = 0
    seconds: float = 0.0


class CompactionEngine(Protocol):
    """Distributes the work of a compaction over tasks. Calls raise EngineError if the engine is lost."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        """Compact new records, all ``in_one_task`` or distributed over all workers."""

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Merge runs into one: its segments, and the parts of its key index."""


def compact_in_process(
    work: CompactionWork, attempt: str, buckets: int = 1, splits: Iterable[Sequence[int]] | None = None
) -> CompactionReport:
    """Carry out both phases over all sources in this process.

    ``splits``: for each input split the indexes of its sources; None: one split with all. ``buckets``: into
    how many buckets the keys are divided. ``attempt``: a part of the names of new files.
    """
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
    # Phase two: write the records at these offsets, group by group.
    for group, offsets in offsets_by_group(work.groups, np.concatenate(retained)):
        if report.first_failure() is None:
            report.retained[group] = len(offsets)
            report.add(rewrite_group(work, work.groups[group], offsets, attempt))
    return report


class InProcessCompactionEngine:
    """The engine without Spark: carries out one step after another. ``buckets``: the least number of buckets
    into which keys are divided, where a compaction is not done in one task."""

    parallelism = 1

    def __init__(self, buckets: int = 1) -> None:
        self._buckets = buckets
        self._attempts = map(str, itertools.count())  # a part of the names of a call's files

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        """Compact all sources in one split, or as a cluster does: each source, bucket and group is a step."""
        if in_one_task:
            return compact_in_process(work, next(self._attempts))
        splits = ([number] for number in range(len(work.sources)))
        return compact_in_process(work, next(self._attempts), bucket_count(work, self._buckets), splits)

    def merge_runs(self, work: CompactionWork) -> CompactionReport:
        """Merge the key indexes bucket by bucket, then the segments group by group."""
        report, attempt = CompactionReport(), next(self._attempts)
        buckets = 1 << (self._buckets - 1).bit_length()  # the next power of two
        for bucket in range(buckets):
            report.add(merge_key_indexes(work, bucket, buckets, attempt))
        for group in work.groups:
            report.add(merge_group(work, group, attempt))
        return report


# Which runs are merged, so that a ledger has few runs, and few superseded records in them.
#
# Each compaction adds a run, as a flush adds one to an LSM tree. As in a size-tiered LSM tree (RocksDB's
# universal compaction), a run is written again only when the newer runs have about as much data. So a record
# is written only a few times, and the cost of a compaction depends on the new data, not on the size of the
# ledger.


def ranges_to_merge(runs: Sequence[Run], max_runs: int = MAX_RUNS) -> list[tuple[int, int]]:
    """The ranges [first, end) of ``runs`` (oldest first) that are merged into one run each, ascending. A
    range of one run is rewritten without its superseded records.

    The newest runs are merged with the next older one as long as together they have at least half of its live
    size, or more than ``max_runs`` runs would remain. Of the other runs, neighbours that are mostly
    superseded are merged.
    """
    if not runs:
        return []
    # 1. Begin with the newest run, and add older ones as described.
    first, newer_size = len(runs) - 1, runs[-1].live_size
    while first > 0 and (2 * newer_size >= runs[first - 1].live_size or first + 1 > max_runs):
        first -= 1
        newer_size += runs[first].live_size
    # 2. Of the older runs, each sequence of neighbours that are mostly superseded.
    ranges: list[tuple[int, int]] = []
    for number in range(first):
        if not runs[number].is_mostly_superseded:
            continue
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    # 3. If step 1 added no older run, rewrite the newest run only if it is mostly superseded.
    if first < len(runs) - 1 or runs[-1].is_mostly_superseded:
        ranges.append((first, len(runs)))
    return ranges


# The counts that must add up before a ledger is committed. They show that no key entry and no record was lost
# between tasks.

_RUN_AGAIN = "run again; if it happens again, report it"


def count_discarded(work: CompactionWork, report: CompactionReport) -> Discarded:
    """How many of the new records were discarded, by reason."""
    keyless = 0 if work.retain_null_key else report.extracted.keyless
    # Keyless records are either all discarded or all retained; the other retained records have a key.
    retained_with_key = sum(report.retained.values()) - (report.extracted.keyless - keyless)
    return Discarded(
        superseded=report.extracted.keyed - retained_with_key - report.deleted_keys,
        tombstones=report.deleted_keys,
        keyless=keyless,
        aborted=report.extracted.aborted,
    )


def _check_counts(
    work: CompactionWork, report: CompactionReport, counts: Iterable[tuple[Any, Any, str]]
) -> None:
    """Raises CompactionFailedError with the first failure that a step reported, and CheckFailedError if two
    counts differ. ``counts``: rows of (a count, the count that must equal it, what is counted)."""
    if (failure := report.first_failure()) is not None:
        raise CompactionFailedError(failure.reason, path=work.name)
    partitions = sum(len(part.counts) for part in report.key_index_parts)
    indexed = (partitions, KEY_INDEX_PARTITIONS, "partitions of the key index")
    for count, equal_count, what in (*counts, indexed):
        if count != equal_count:
            reason = f"two counts of {what} differ, {count} and {equal_count}; the ledger is unchanged"
            raise CheckFailedError(reason, path=work.name, advice=_RUN_AGAIN)


def check_compaction(work: CompactionWork, report: CompactionReport) -> None:
    """Check the counts of new records: records read = with a key + without a key + aborted; records retained
    = written; key entries sent = merged; keys of the new run = retained records with a key (by time also
    deleted keys); superseded records (the rest) are at least as many as late ones.

    Raises CheckFailedError; CompactionFailedError for a failure that was reported; CorruptFileError for an
    aborted transaction that no ``.txnindex`` has.
    """
    extracted, discarded = report.extracted, count_discarded(work, report)
    retained = sum(report.retained.values())
    records = extracted.keyed + extracted.keyless + extracted.aborted
    keyless = extracted.keyless if work.retain_null_key else 0
    entries = retained - keyless + (report.deleted_keys if work.by_time else 0)
    counts = (
        (extracted.records, records, "records by kind"),
        (report.merged_entries, extracted.entries, "key entries sent and merged"),
        (report.written, report.retained, "records retained and written"),
        (sum(part.entries for part in report.key_index_parts), entries, "keys of the new run"),
    )
    _check_counts(work, report, counts)
    # Raises for an aborted transaction without an index entry; its result is not needed.
    combine_summaries(extracted.summaries, [work.first_offset], work.name)
    if discarded.superseded < report.late_keys:
        # A late record counts as superseded: an older run has a record of its key with a larger timestamp.
        reason = (
            f"{report.late_keys} records are superseded by records of older runs, but the counts have only "
            f"{discarded.superseded} superseded records"
        )
        raise CheckFailedError(f"{reason}; the ledger is unchanged", path=work.name, advice=_RUN_AGAIN)


def check_merge(work: CompactionWork, report: CompactionReport, live_records: int) -> None:
    """Check the counts of a merge of runs: all ``live_records`` were written. If every record has a key and
    the indexes have no deleted keys, there is one key entry for each. Raises CheckFailedError,
    CompactionFailedError."""
    counts = [(sum(report.written.values()), live_records, "records of the merged runs")]
    if not work.by_time and not work.retain_null_key:
        entries = sum(part.entries for part in report.key_index_parts)
        counts.append((entries, live_records, "keys of the merged runs"))
    _check_counts(work, report, counts)


# The next ledger, until it is committed: runs of the current ledger, a new run, and merged ones.
#
# A run that is not merged keeps its directory, and only the list of its superseded offsets grows. Directories
# of new runs are prepared in the staging folder, under their final names; the commit moves them.


class LedgerDraft:
    """The next ledger of a log. ``ledger``: the current one, None if there is none.

    ``runs``: the runs of the next ledger, oldest first. ``superseded``: run id → superseded offsets (int64).
    ``staged``: run id → directory of a new run. ``work``: what all steps share; its ``key_indexes`` are those
    of the current runs. ``newly_superseded``: how many records of current runs the new records supersede.
    ``written_bytes``: size of all new segments.
    """

    def __init__(self, store: LedgerStore, ledger: Ledger | None, work: CompactionWork) -> None:
        self.store, self.ledger = store, ledger
        self.runs: list[Run] = [] if ledger is None else list(ledger.runs)
        self.superseded: dict[int, Int64] = {} if ledger is None else store.superseded(ledger)
        self.staged: dict[int, Path] = {}
        self._ledger_id, self._next_id = store.next_ids()
        self.newly_superseded = self.written_bytes = 0
        indexes = {run.id: str(self._key_index_of(run)) for run in self.runs if run.keys_size}
        self.work = replace(work, key_indexes=indexes)

    def _directory_of(self, run: Run) -> Path:
        """The directory that holds a run now."""
        return self.staged.get(run.id, self.store.folder / run_name(run.id))

    def _key_index_of(self, run: Run) -> Path:
        return self._directory_of(run) / KEYS

    def extend(self, work: CompactionWork, report: CompactionReport) -> None:
        """Add the compacted records as a run. If there are none, only raise the end of the last run. Raises
        CorruptFileError, OSError."""
        for run_id, parts in report.superseded.items():
            before = self.superseded.get(run_id, NO_OFFSETS)
            self.superseded[run_id] = np.unique(np.concatenate([before, *parts]))
            self.newly_superseded += len(self.superseded[run_id]) - len(before)
        self.runs = [
            structs.replace(run, superseded=len(self.superseded.get(run.id, ()))) for run in self.runs
        ]
        base_offset = work.first_offset if self.ledger is None else self.ledger.horizon
        if self.runs and not report.segments and not any(part.entries for part in report.key_index_parts):
            self.runs[-1] = structs.replace(self.runs[-1], end_offset=work.end_offset)
        else:
            self.runs.append(self._stage(base_offset, work.end_offset, report))

    def _stage(self, base_offset: int, end_offset: int, report: CompactionReport) -> Run:
        """Prepare the directory of a new run with the report's segments and key index, durably."""
        run_id, self._next_id = self._next_id, self._next_id + 1
        directory = Path(self.work.settings.staging) / run_name(run_id)
        files.make_directory(directory)
        for path, entry in report.segments.items():
            for suffix in SEGMENT_FILES:
                files.rename(f"{path}.{suffix}", directory / segment_file(entry.base_offset, suffix))
        parts, words, hash_key = report.key_index_parts, self.work.words, self.work.hash_key
        keys_size, keys_crc = assemble_key_index(directory / KEYS, parts, words, hash_key)
        files.sync_directory(directory)
        self.staged[run_id] = directory
        segments = sorted(report.segments.values(), key=lambda entry: entry.base_offset)
        size = sum(entry.size for entry in segments)
        self.written_bytes += size
        return Run(
            id=run_id,
            base_offset=base_offset,
            end_offset=end_offset,
            records=sum(report.written.values()),
            size=size,
            segments=tuple(segments),
            keys_size=keys_size,
            keys_crc=keys_crc,
            superseded=0,
        )

    def merge_runs(self, engine: CompactionEngine) -> None:
        """Merge the runs that ``ranges_to_merge`` chooses.

        Raises CompactionFailedError, CheckFailedError, EngineError, OSError.
        """
        # From the newest range down, so that the positions in the ranges below stay right.
        for first, end in reversed(ranges_to_merge(self.runs, self.work.settings.max_runs)):
            old_runs = self.runs[first:end]
            self.runs[first:end] = [self._merge_range(engine, old_runs)]
            for run in old_runs:
                self.superseded.pop(run.id, None)
                self.staged.pop(run.id, None)

    def _merge_range(self, engine: CompactionEngine, old_runs: Sequence[Run]) -> Run:
        """Merge neighbouring runs into a staged one."""
        sources = tuple(source for run in old_runs for source in self._sources(run))
        base_offset, end_offset = old_runs[0].base_offset, old_runs[-1].end_offset
        work = replace(
            self.work,
            sources=sources,
            groups=group_sources(sources, end_offset, engine.parallelism),
            superseded={run.id: self.superseded[run.id] for run in old_runs if run.id in self.superseded},
            key_indexes={run.id: str(self._key_index_of(run)) for run in old_runs},
        )
        report = engine.merge_runs(work)
        check_merge(work, report, sum(run.records - run.superseded for run in old_runs))
        return self._stage(base_offset, end_offset, report)

    def _sources(self, run: Run) -> Iterable[Source]:
        """A run's segments as sources."""
        end_offsets = [segment.base_offset for segment in run.segments[1:]] + [run.end_offset]
        # Not strict: a run without a segment has an end, too.
        for segment, end_offset in zip(run.segments, end_offsets, strict=False):
            path = self._directory_of(run) / segment_file(segment.base_offset, "log")
            yield Source(
                path=str(path),
                base_offset=segment.base_offset,
                end_offset=end_offset,
                size=segment.size,
                inode=files.stat(path).inode,
                run=run.id,
            )

    def commit(self, now_ms: int) -> Ledger:
        """Commit the draft: it becomes the log's ledger. Raises CheckFailedError, OSError."""
        ledger = Ledger(
            id=self._ledger_id,
            horizon=self.runs[-1].end_offset,
            runs=tuple(self.runs),
            order=BY_TIME if self.work.by_time else BY_OFFSET,
            hash_key=self.work.hash_key,
            retain_null_key=self.work.retain_null_key,
            created_ms=now_ms,
            superseded_crc=None,  # set by the store
        )
        return self.store.commit(ledger, self.superseded, self.staged)


ONE_TASK_BYTES = 64 << 20
"""New records of up to this size are compacted in one task: to distribute them takes longer."""


class CompactableLog(HasLedgers, Protocol):
    """A log that can be compacted: a ``PartitionLog`` or a ``ReadOnlyLog``."""

    topic_partition: TopicPartition


class TwoPhaseCompactor:
    """Compacts logs into their ledgers, one log in each call. Several threads may call it, for different
    logs.

    ``one_task_bytes``: new records of up to this size are compacted in one task.
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

        The new records end at the high watermark or the last stable offset, as it is when the compaction
        begins. The caller makes sure that no other compaction of the log is in progress. ``order``: BY_OFFSET
        retains the last record of each key, BY_TIME the one with the largest timestamp. ``retain_null_key``:
        retain records without a key. ``commit_guard``: the context of each change of the ledger; it raises if
        the log was truncated or deleted meanwhile, and prevents both until it is left.

        Raises UsageError if the ledger was made with another ``order`` or ``retain_null_key``, LedgerError
        for a damaged ledger, CompactionFailedError, CheckFailedError, CorruptFileError, EngineError, OSError;
        the ledger is unchanged then.
        """
        began = time.perf_counter()
        store = LedgerStore(log.directory)
        ledger = store.current()
        _refuse_other_options(log, ledger, order, retain_null_key)
        view = log.view  # the immutable state of the log at this moment
        horizon = max(view.log_start_offset, 0) if ledger is None else ledger.horizon
        if horizon > view.log_end_offset:
            reason = f"its ledger covers offsets below {horizon}, but the log ends at {view.log_end_offset}"
            raise CompactionFailedError(reason, path=str(log.topic_partition), advice=_REBUILD)
        if compactable_end(view) <= horizon:
            return _result(ledger, horizon, seconds=time.perf_counter() - began)
        # Removes files that an interrupted compaction has left, except those of a ledger that has readers.
        with commit_guard():
            store.delete_unused()
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
        """The steps of a compaction. The caller removes the staging folder."""
        # 1. Hard links keep the segments readable while cleaning or retention removes them from the log.
        work = link_sources(log, draft.work, horizon, self._engine.parallelism)
        # 2. Phases one and two, in tasks. Their counts must add up.
        in_one_task = work.size <= self._one_task_bytes and bucket_count(work) == 1
        report = self._engine.compact(work, in_one_task)
        check_compaction(work, report)
        # 3. The next ledger: add the new run, and merge runs.
        draft.extend(work, report)
        draft.merge_runs(self._engine)
        # 4. The commit moves the cursor. (Pulsar acknowledges on the subscription ``__compaction``, with the
        #    ledger's id as a property.) Then delete the files that only the previous ledger had.
        with commit_guard():
            ledger = draft.commit(self._clock.now_ms())
            with contextlib.suppress(OSError):
                draft.store.delete_unused()
        return _result(
            ledger,
            ledger.horizon,
            changed=True,
            read_records=report.extracted.records,
            read_bytes=report.extracted.size,
            written=sum(report.retained.values()),
            written_bytes=draft.written_bytes,
            removed=count_discarded(work, report),
            replaced_entries=draft.newly_superseded,
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
    """Raises UsageError if a ledger was made with another order, or with another choice for keyless
    records."""
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
