"""Carries a compaction beside the originals out: plan, both phases, folding, commit (Pulsar's two phases).

::

    hold the tail ─► phase one and two ─► check ─► a generation ─► fold? ─► commit ─► what nobody needs goes

Nothing but the run's own folder is written to before the commit, which moves the cursor in one step. Counts
are checked on the way, and any doubt ends the run with the ledger as it was.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from siltstone.base import files
from siltstone.base.clock import Clock
from siltstone.base.errors import CheckFailedError, CompactionFailedError, UsageError
from siltstone.base.records.codecs import DEFAULT_LIMIT
from siltstone.base.records.layout import Int64
from siltstone.compaction.keys import PLAIN_WORDS, TIMED_WORDS
from siltstone.compaction.ledger.engine import (
    Compacted,
    CompactionEngine,
    CompactionResult,
    Folded,
    TailDiscarded,
)
from siltstone.compaction.ledger.key_index import KeysPart, assemble
from siltstone.compaction.ledger.keys import PARTITIONS
from siltstone.compaction.ledger.staging import KINDS, FoldWork, WrittenGroup
from siltstone.compaction.ledger.work import (
    CompactionWork,
    OldKeys,
    OutputSettings,
    Source,
    Tail,
    end_of,
    fits_one_task,
    groups_of,
    hold_tail,
)
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import BY_OFFSET, BY_TIME, ORDERS, Generation, Ledger, SegmentEntry
from siltstone.log.ledger.store import KEYS, LedgerStore, generation_name
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.transactions import carried_by_group

# Which generations of a ledger are put together anew, so that there are few and little in them is hidden.
#
# Each run adds a generation of what was new. A generation is written again only when about as much as it
# holds came after it, so that a record is written a few times in its life, whatever the ledger's size: the
# cost of a run follows the new data. Pure: sizes in, ranges out.

MOST_GENERATIONS = 8
"""Each is one more key index to look in, and one more directory to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A generation's bytes, records, and how many of these are hidden."""

    size: int
    records: int
    hidden: int

    @property
    def live(self) -> int:
        """Bytes that readers see, taken all records as equal."""
        return self.size * (self.records - self.hidden) // self.records if self.records else 0

    @property
    def is_mostly_hidden(self) -> bool:
        """Is more than half of it of no use?"""
        return 2 * self.hidden > self.records


def folds(weights: Sequence[Weight], most: int = MOST_GENERATIONS) -> list[tuple[int, int]]:
    """Ranges [first, last) of generations that each become one, ascending; a range of one is written anew.

    ``weights`` are the generations in order, the newest last. The newest and those before it go together
    while what came after a generation is at least half of its live size, and as long as there would be more
    than ``most``. Of the others, neighbours that are mostly hidden go together.
    """
    first, after = len(weights) - 1, weights[-1].live if weights else 0
    while first > 0 and (2 * after >= weights[first - 1].live or first + 1 > most):
        first -= 1
        after += weights[first].live
    found: list[tuple[int, int]] = []
    for number in range(max(first, 0)):
        if not weights[number].is_mostly_hidden:
            continue
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    newest_alone = len(weights) - first == 1 and not (weights and weights[-1].is_mostly_hidden)
    return found if newest_alone or not weights else [*found, (first, len(weights))]


# What must add up before anything of a compaction is believed: nothing was lost on its way between tasks.


def refuse_failure(name: str, done: Compacted | Folded) -> None:
    """Raises CompactionFailedError with the first failure that a piece reported."""
    failure = done.first_failure()
    if failure is not None:
        raise CompactionFailedError(f"{name}: {failure.reason}")


def removed_of(work: CompactionWork, done: Compacted) -> TailDiscarded:
    """Why the tail's records that were not written went."""
    keyless = 0 if work.retain_null_key else done.found.keyless
    keyed = sum(done.retained.values()) - (done.found.keyless - keyless)
    return TailDiscarded(
        superseded=done.found.keyed - keyed - done.deleted,
        deleted=done.deleted,
        keyless=keyless,
        aborted=done.found.aborted,
    )


def refuse_doubts(work: CompactionWork, done: Compacted) -> None:
    """Read = written + removed, entries sent = entries arrived, offsets merged = offsets written.

    Raises CheckFailedError; CompactionFailedError for a failure that was reported; CorruptFileError for an
    aborted transaction that no index names.
    """
    refuse_failure(work.name, done)
    carried_by_group(done.found.summaries, [work.first], work.name)
    found, removed = done.found, removed_of(work, done)
    written = {group.group: group.kept for group in done.groups}
    kept = sum(done.retained.values())
    keyless = found.keyless if work.retain_null_key else 0
    entries = kept - keyless + (done.deleted if work.by_time else 0)
    held = (
        (found.records, found.keyed + found.keyless + found.aborted, "records by kind"),
        (done.arrived, found.entries, "keys on their way"),
        (found.records, kept + removed.total, "records that stay and go"),
        (written, done.retained, "records written"),
        (len(done.groups), len(written), "groups written"),
        (sum(part.entries for part in done.keys), entries, "keys of the new generation"),
        (sum(len(part.counts) for part in done.keys), PARTITIONS, "partitions of its key index"),
    )
    for one, other, what in held:
        if one != other:
            raise CheckFailedError(f"{work.name}: {what} do not add up: {one}, {other}; nothing has changed")
    if removed.superseded < done.beaten:
        raise CheckFailedError(f"{work.name}: more keys were beaten than records superseded")


def refuse_doubtful_fold(name: str, done: Folded, live: int, *, keys: int | None) -> None:
    """All ``live`` records of the folded generations are written; ``keys``: how many entries there must be,
    None where deleted keys have some too. Raises CheckFailedError, CompactionFailedError."""
    refuse_failure(name, done)
    parts = [each.keys for each in done.keys if each.keys is not None]
    entries = sum(part.entries for part in parts)
    held = (
        (sum(group.kept for group in done.groups), live, "records of the folded generations"),
        (sum(len(part.counts) for part in parts), PARTITIONS, "partitions of their key index"),
        (entries, entries if keys is None else keys, "keys of the folded generations"),
    )
    for one, other, what in held:
        if one != other:
            raise CheckFailedError(f"{name}: {what} do not add up: {one}, {other}; nothing has changed")


# A ledger in the making: the one before it, what a run adds, what is put together anew, then the commit.
#
# Generations that are not touched stay the directories that they are; only their hidden offsets grow. New
# ones are put together in the run's folder, under the names that they will have.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes of what is written and of what tasks take, in bytes; ``most_generations`` of a ledger.

    ``batch_limit``: what one batch may decompress to; the log's own setting is put in its place.
    """

    segment_bytes: int = 1 << 30
    index_interval: int = 4096
    index_bytes: int = 10 << 20
    window_size: int = 4 << 20
    memory_bytes: int = 256 << 20
    batch_limit: int = DEFAULT_LIMIT
    most_generations: int = MOST_GENERATIONS

    def output(self, run: Path) -> OutputSettings:
        """The same for tasks that write into ``run``."""
        return OutputSettings(
            staging=str(run),
            segment_bytes=self.segment_bytes,
            index_interval=self.index_interval,
            index_bytes=self.index_bytes,
            window_size=self.window_size,
            memory_bytes=self.memory_bytes,
            batch_limit=self.batch_limit,
        )


class LedgerDraft:
    """The next ledger of a log. ``ledger``: the one before it; ``run``: the folder of this run.

    ``horizon``: where the tail begins, None without a ledger. ``newly_hidden``: records of the ledger before
    that are hidden from now on. ``written_bytes``: of new segments' logs, folded ones included.
    """

    def __init__(
        self, store: LedgerStore, run: Path, ledger: Ledger | None, ways: tuple[str, bool], settings: Settings
    ) -> None:
        self.store, self.run, self.ledger = store, run, ledger
        self.order, self.retain_null_key = ways
        self.settings = settings
        self.horizon = None if ledger is None else ledger.horizon
        self.hash_key = (secrets.randbits(64), secrets.randbits(64)) if ledger is None else ledger.hash_key
        self.generations: list[Generation] = [] if ledger is None else list(ledger.generations)
        self.hidden: dict[int, Int64] = {} if ledger is None else store.hidden(ledger)
        self.staged: dict[int, Path] = {}
        self._ledger_id, self._next_id = store.next_ids()
        self.newly_hidden = self.written_bytes = 0
        self._end = 0

    def directory_of(self, generation: int) -> Path:
        """Where a generation lies now."""
        return self.staged.get(generation, self.store.folder / generation_name(generation))

    def keys_of(self, generation: int) -> Path:
        """Its key index."""
        return self.directory_of(generation) / KEYS

    def extend(self, work: CompactionWork, done: Compacted) -> None:
        """Add what a tail has become. Raises CorruptFileError, OSError."""
        self._end = work.end
        for generation, parts in done.hidden.items():
            before = self.hidden.get(generation, np.empty(0, np.int64))
            self.hidden[generation] = np.unique(np.concatenate([before, *parts]))
            self.newly_hidden += len(self.hidden[generation]) - len(before)
        base = work.first if self.horizon is None else self.horizon
        if self.generations and not done.groups and not any(part.entries for part in done.keys):
            self.generations[-1] = replace(self.generations[-1], end_offset=work.end)
            return
        self.generations.append(self._stage(base, work.end, done.groups, done.keys))

    def _stage(
        self, base: int, end: int, groups: Iterable[WrittenGroup], keys: Sequence[KeysPart]
    ) -> Generation:
        """Put a new generation's directory together, durably."""
        number, self._next_id = self._next_id, self._next_id + 1
        directory = self.run / generation_name(number)
        files.make_directory(directory)
        segments, records = [], 0
        for group in sorted(groups, key=lambda group: group.group):
            records += group.kept
            for segment in group.segments:
                for kind in KINDS:
                    files.rename(
                        f"{segment.stem}.{kind}", directory / segment_file(segment.base_offset, kind)
                    )
                segments.append(
                    SegmentEntry(
                        base_offset=segment.base_offset,
                        size=segment.size,
                        crc=segment.crc,
                        index_crc=segment.index_crc,
                        time_index_crc=segment.time_index_crc,
                    )
                )
        words = TIMED_WORDS if self.order == BY_TIME else PLAIN_WORDS
        keys_size, keys_crc = assemble(directory / KEYS, keys, words, self.hash_key)
        files.sync_directory(directory)
        self.staged[number] = directory
        size = sum(segment.size for segment in segments)
        self.written_bytes += size
        return Generation(
            id=number,
            base_offset=base,
            end_offset=end,
            records=records,
            size=size,
            segments=tuple(segments),
            keys_size=keys_size,
            keys_crc=keys_crc,
            hidden=0,
        )

    def fold(self, engine: CompactionEngine, name: str) -> tuple[int, ...]:
        """Put generations together where it is worth it; the ids of those of the ledger before that went.

        Raises CompactionFailedError, CheckFailedError, EngineError, OSError.
        """
        weights = [
            Weight(size=each.size, records=each.records, hidden=len(self.hidden.get(each.id, ())))
            for each in self.generations
        ]
        gone: list[int] = []
        for first, last in reversed(folds(weights, self.settings.most_generations)):
            old = self.generations[first:last]
            self.generations[first:last] = [self._folded(engine, name, old)]
            for each in old:
                self.hidden.pop(each.id, None)
                if self.staged.pop(each.id, None) is None:
                    gone.append(each.id)
        return tuple(sorted(gone))

    def _folded(self, engine: CompactionEngine, name: str, old: Sequence[Generation]) -> Generation:
        sources = tuple(source for each in old for source in self._sources(each))
        work = FoldWork(
            name=name,
            sources=sources,
            groups=groups_of(sources, old[-1].end_offset, engine.workers),
            hidden={each.id: self.hidden[each.id] for each in old if each.id in self.hidden},
            keys=tuple(OldKeys(generation=each.id, path=str(self.keys_of(each.id))) for each in old),
            hash_key=self.hash_key,
            output=self.settings.output(self.run),
        )
        done = engine.fold(work)
        live = sum(each.records - len(self.hidden.get(each.id, ())) for each in old)
        one_key_each = self.order != BY_TIME and not self.retain_null_key
        refuse_doubtful_fold(name, done, live, keys=live if one_key_each else None)
        parts = [each.keys for each in done.keys if each.keys is not None]
        return self._stage(old[0].base_offset, old[-1].end_offset, done.groups, parts)

    def _sources(self, generation: Generation) -> Iterable[Source]:
        """A generation's segments as sources."""
        ends = [segment.base_offset for segment in generation.segments[1:]] + [generation.end_offset]
        for segment, end in zip(generation.segments, ends, strict=False):
            path = self.directory_of(generation.id) / segment_file(segment.base_offset, "log")
            facts = files.stat(path)
            yield Source(
                path=str(path),
                base_offset=segment.base_offset,
                end_offset=end,
                start=0,
                size=segment.size,
                inode=facts.inode,
                generation=generation.id,
            )

    def commit(self, now_ms: int) -> Ledger:
        """Make it the log's ledger. Raises CheckFailedError, OSError."""
        generations = tuple(
            replace(each, hidden=len(self.hidden.get(each.id, ()))) for each in self.generations
        )
        ledger = Ledger(
            id=self._ledger_id,
            horizon=self._end,
            generations=generations,
            order=self.order,
            hash_key=self.hash_key,
            retain_null_key=self.retain_null_key,
            created_ms=now_ms,
            hidden_crc=None,
        )
        return self.store.commit(ledger, self.hidden, self.staged)


__all__ = ["BY_OFFSET", "BY_TIME", "CompactableLog", "TwoPhaseCompactor"]

ONE_TASK_BYTES = 64 << 20
"""Tails up to this go through one task: to spread them takes longer."""


class CompactableLog(Protocol):
    """A log that can be compacted: ``PartitionLog``, or one that is open for reading only."""

    where: TopicPartition
    directory: Path

    @property
    def view(self) -> LogView:
        """What may be read now."""
        ...


class TwoPhaseCompactor:
    """Compacts one log at a time; an instance may be used from several threads for several logs.

    ``one_task_bytes``: tails up to that size go through one task. ``settings``: sizes of what is written.
    """

    def __init__(
        self,
        engine: CompactionEngine,
        *,
        clock: Clock,
        one_task_bytes: int = ONE_TASK_BYTES,
        settings: Settings | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._one_task_bytes = one_task_bytes
        self._settings = settings or Settings()

    def compact(
        self,
        log: CompactableLog,
        *,
        order: str = BY_OFFSET,
        retain_null_key: bool = False,
        committing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> CompactionResult:
        """Compact what is new in ``log`` into its ledger.

        The end is fixed at the start: everything below the high watermark and the last stable offset. The
        caller sees to it that nobody else compacts the log meanwhile. ``committing`` is held while the ledger
        is changed (``LedgerStore.commit``, ``collect``): it raises when the log was truncated or deleted
        meanwhile, and keeps both away until it is left. Raises UsageError when the ledger was made with
        another ``order`` or ``retain_null_key``, LedgerError for a damaged ledger, CompactionFailedError,
        CheckFailedError, CorruptFileError, EngineError, OSError: the ledger is as it was then.
        """
        began = time.perf_counter()
        store = LedgerStore(log.directory)
        ledger = store.current()
        _refuse_other_ways(log, ledger, order, retain_null_key)
        view = log.view
        horizon = max(view.log_start_offset, 0) if ledger is None else ledger.horizon
        if horizon > view.log_end_offset:
            raise CompactionFailedError(
                f"{log.where}: its ledger covers offsets below {horizon}, but the log ends at "
                f"{view.log_end_offset}; compact anew from what is left: siltstone compact-topic --reset"
            )
        if end_of(view) <= horizon:
            return _unchanged(ledger, horizon, time.perf_counter() - began)
        with committing():
            store.collect()
        run = store.make_run(secrets.token_hex(8))
        try:
            settings = replace(self._settings, batch_limit=view.batch_limit)
            draft = LedgerDraft(store, run, ledger, (order, retain_null_key), settings)
            result = self._run(log, draft, committing)
        finally:
            with contextlib.suppress(OSError):
                files.remove_tree(run)
        return replace(result, seconds=time.perf_counter() - began)

    def _run(
        self,
        log: CompactableLog,
        draft: LedgerDraft,
        committing: Callable[[], AbstractContextManager[None]],
    ) -> CompactionResult:
        name = str(log.where)
        tail = hold_tail(log, draft.horizon, draft.run)
        work = self._work(name, draft, tail)
        whole = fits_one_task(work, self._one_task_bytes)
        done = self._engine.compact_whole(work) if whole else self._engine.compact_spread(work)
        refuse_doubts(work, done)
        draft.extend(work, done)
        folded = draft.fold(self._engine, name)
        with committing():
            ledger = draft.commit(self._clock.now_ms())
            with contextlib.suppress(OSError):
                draft.store.collect()
        return CompactionResult(
            ledger_id=ledger.id,
            horizon=ledger.horizon,
            entries=ledger.entries,
            size=ledger.size,
            changed=True,
            read_records=done.found.records,
            read_bytes=done.found.size,
            written=sum(done.retained.values()),
            written_bytes=draft.written_bytes,
            removed=removed_of(work, done),
            hidden=draft.newly_hidden,
            folded=folded,
        )

    def _work(self, name: str, draft: LedgerDraft, tail: Tail) -> CompactionWork:
        older = () if draft.ledger is None else draft.ledger.generations
        return CompactionWork(
            name=name,
            sources=tail.sources,
            groups=groups_of(tail.sources, tail.end, self._engine.workers),
            first=tail.first,
            end=tail.end,
            aborted=tail.aborted,
            hash_key=draft.hash_key,
            by_time=draft.order == BY_TIME,
            retain_null_key=draft.retain_null_key,
            older=tuple(
                OldKeys(generation=each.id, path=str(draft.keys_of(each.id)))
                for each in older
                if each.keys_size
            ),
            output=draft.settings.output(draft.run),
        )


def _refuse_other_ways(log: CompactableLog, ledger: Ledger | None, order: str, retain_null_key: bool) -> None:
    """A ledger is of one order, and has keyless records or not: mixed, it would be neither."""
    if order not in ORDERS:
        raise UsageError(f"order {order!r}: give one of {', '.join(ORDERS)}")
    if ledger is None:
        return
    for what, was, is_ in (
        ("order", ledger.order, order),
        ("retaining records without a key", ledger.retain_null_key, retain_null_key),
    ):
        if was != is_:
            raise UsageError(
                f"{log.where}: its ledger was made with {what} {str(was).lower()}, not {str(is_).lower()}; "
                "keep to that, or compact anew from what is left: siltstone compact-topic --reset"
            )


def _unchanged(ledger: Ledger | None, horizon: int, seconds: float) -> CompactionResult:
    if ledger is None:
        return CompactionResult(ledger_id=None, horizon=horizon, seconds=seconds)
    return CompactionResult(
        ledger_id=ledger.id,
        horizon=ledger.horizon,
        entries=ledger.entries,
        size=ledger.size,
        seconds=seconds,
    )
