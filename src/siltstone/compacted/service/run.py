"""One compaction of one open log, from its beginning to its end: whose log it is meanwhile, what is written
down of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from siltstone import files
from siltstone.compacted.compactor import TwoPhaseCompactor
from siltstone.compacted.result import CompactionResult
from siltstone.compacted.service.status import (
    CompactionStatus,
    claim_run,
    status_of,
    write_status,
)
from siltstone.config import Config
from siltstone.errors import CompactionInProgressError
from siltstone.log.fetch import LogView
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.cleaning_states import Claim, CleaningStates

_logger = logging.getLogger("siltstone.compaction")


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
    """A compaction of ``log`` that has begun: its status says RUNNING, and nobody else can begin one."""

    def __init__(self, log: PartitionLog, states: CleaningStates, now_ms: int) -> None:
        """Raises CompactionInProgressError, OSError."""
        claim = states.begin(log.where)
        running = None if claim is None else _claimed(claim, log)
        if claim is None or running is None:
            raise CompactionInProgressError(f"{log.where}: Compaction already in progress")
        self.log = log
        self._claim, self._running = claim, running
        try:
            self._status = status_of(log.directory, running=False).begun(now_ms)
            write_status(log.directory, self._status)
        except BaseException:
            self._let_go()
            raise

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.log.where

    def compact(self, compactor: TwoPhaseCompactor, settings: Config) -> CompactionResult:
        """Do it. Raises as the compactor does, StorageError, CleaningAbortedError when the log was truncated
        or deleted meanwhile."""
        self._claim.check()
        order, keyless = settings["siltstone.compaction.order"], settings.flag("topicCompactionRetainNullKey")
        return compactor.compact(
            DurableLog.of(self.log),
            order=str(order),
            retain_null_key=keyless,
            committing=self._claim.changing,
        )

    def succeeded(self, now_ms: int, result: CompactionResult) -> None:
        """It is over, and has done what it was to do."""
        self._end(self._status.done(now_ms, result))

    def failed(self, now_ms: int, reason: str) -> None:
        """It is over, and the ledger is as it was."""
        self._end(self._status.failed_with(now_ms, reason))

    def _end(self, status: CompactionStatus) -> None:
        """The status is kept before the log is let go. A disk that does not take it is warned of: the next
        look finds a compaction that was interrupted. A topic that was deleted has none, nor has this run
        another one of its name."""
        try:
            if status_of(self.log.directory, running=True) == self._status:
                write_status(self.log.directory, status)
        except OSError as error:
            _logger.warning("%s: its status was not kept: %s", self.where, error.strerror or error)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._running.release()
        self._claim.done()


def _claimed(claim: Claim, log: PartitionLog) -> files.Claim | None:
    try:
        running = claim_run(log.directory)
    except BaseException:
        claim.done()
        raise
    if running is None:
        claim.done()
    return running
