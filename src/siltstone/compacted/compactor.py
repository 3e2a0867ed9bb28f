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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from siltstone import files
from siltstone.clock import Clock
from siltstone.compacted.checks import refuse_doubts, removed_of
from siltstone.compacted.drafting import Draft, Settings
from siltstone.compacted.engine import CompactionEngine
from siltstone.compacted.result import CompactionResult
from siltstone.compacted.sources import Tail, end_of, groups_of, hold_tail
from siltstone.compacted.work import CompactionWork, OldKeys, fits_one_task
from siltstone.errors import CompactionFailedError, UsageError
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import BY_OFFSET, BY_TIME, ORDERS, Ledger
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition

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
            draft = Draft(store, run, ledger, (order, retain_null_key), settings)
            result = self._run(log, draft, committing)
        finally:
            with contextlib.suppress(OSError):
                files.remove_tree(run)
        return replace(result, seconds=time.perf_counter() - began)

    def _run(
        self,
        log: CompactableLog,
        draft: Draft,
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
            written=sum(done.winners.values()),
            written_bytes=draft.written_bytes,
            removed=removed_of(work, done),
            hidden=draft.newly_hidden,
            folded=folded,
        )

    def _work(self, name: str, draft: Draft, tail: Tail) -> CompactionWork:
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
