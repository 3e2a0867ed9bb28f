"""Carries a compaction beside the originals out: plan, both phases, folding, commit.

The signature that the service and the commands build on; the work is being filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from siltstone.clock import Clock
from siltstone.compacted.engine import CompactionEngine
from siltstone.compacted.result import CompactionResult
from siltstone.log.fetch import LogView
from siltstone.log.names import TopicPartition

BY_OFFSET, BY_TIME = "offset", "time"
"""Which record of a key wins: the latest one, or the one with the largest timestamp (equal: the latest)."""


class CompactableLog(Protocol):
    """A log that can be compacted: ``PartitionLog``, or one that is open for reading only."""

    where: TopicPartition
    directory: Path

    @property
    def view(self) -> LogView:
        """What may be read now."""
        ...


class TwoPhaseCompactor:
    """Compacts one log at a time; an instance may be used from several threads for several logs."""

    def __init__(self, engine: CompactionEngine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

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
        CorruptFileError, EngineError, OSError: the ledger is as it was then.
        """
        raise NotImplementedError
