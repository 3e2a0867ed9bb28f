"""One compaction of one open log: it goes on while the log is appended to, read, cleaned and retained, and
comes to nothing when the log is truncated or deleted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from siltstone.compacted.compactor import TwoPhaseCompactor
from siltstone.compacted.result import CompactionResult
from siltstone.compacted.service.attempt import Attempt, in_progress
from siltstone.config import Config
from siltstone.log.fetch import LogView
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.cleaning_states import CleaningStates


@dataclass(slots=True, kw_only=True)
class DurableLog:
    """An open log as far as it is on the disk: what a crash could take must be in no ledger."""

    where: TopicPartition
    directory: Path
    view: LogView

    @classmethod
    def of(cls, log: PartitionLog) -> DurableLog:
        """Flush ``log``, and take it as it is then. Raises StorageError."""
        log.flush()
        view, durable = log.view, log.recovery_point
        view = view._replace(
            high_watermark=min(view.high_watermark, durable),
            last_stable_offset=min(view.last_stable_offset, durable),
        )
        return cls(where=log.where, directory=log.directory, view=view)


class Run:
    """A compaction of ``log`` that has begun; ``states`` say whether the log is wanted back."""

    def __init__(self, log: PartitionLog, states: CleaningStates, now_ms: int) -> None:
        """Raises CompactionInProgressError, OSError."""
        claim = states.begin(log.where)
        if claim is None:
            raise in_progress(log.where)
        self.log, self._claim = log, claim
        try:
            self._attempt = Attempt(log, now_ms)
        except BaseException:
            claim.done()
            raise

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.where

    def compact(self, compactor: TwoPhaseCompactor, settings: Config) -> CompactionResult:
        """Do it. Raises as the compactor does, StorageError, CleaningAbortedError when the log was truncated
        or deleted meanwhile."""
        self._claim.check()
        return compactor.compact(
            DurableLog.of(self.log),
            order=str(settings["siltstone.compaction.order"]),
            retain_null_key=settings.flag("topicCompactionRetainNullKey"),
            committing=self._claim.changing,
        )

    def succeeded(self, now_ms: int, result: CompactionResult) -> None:
        """It is over, and has done what it was to do."""
        self._attempt.succeeded(now_ms, result)
        self._claim.done()

    def failed(self, now_ms: int, reason: str) -> None:
        """It is over, and the ledger is as it was."""
        self._attempt.failed(now_ms, reason)
        self._claim.done()
