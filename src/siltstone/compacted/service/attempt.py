"""One compaction of one partition directory: nobody else's meanwhile, and what is written down of it."""

from __future__ import annotations

import logging

from siltstone import files
from siltstone.compacted.compactor import CompactableLog
from siltstone.compacted.result import CompactionResult
from siltstone.compacted.service.status import CompactionStatus, claim_run, status_of, write_status
from siltstone.errors import CompactionInProgressError
from siltstone.log.names import TopicPartition

_logger = logging.getLogger("siltstone.compaction")


class Attempt:
    """A compaction that has begun: its status says RUNNING until ``succeeded`` or ``failed``."""

    def __init__(self, log: CompactableLog, now_ms: int) -> None:
        """Raises CompactionInProgressError, OSError."""
        self.where: TopicPartition = log.where
        self._directory = log.directory
        claim = claim_run(log.directory)
        if claim is None:
            raise in_progress(log.where)
        self._claim: files.Claim = claim
        try:
            self.status = status_of(log.directory, running=False).begun(now_ms)
            write_status(log.directory, self.status)
        except BaseException:
            claim.release()
            raise

    def succeeded(self, now_ms: int, result: CompactionResult) -> None:
        """It is over, and has done what it was to do."""
        self._end(self.status.done(now_ms, result))

    def failed(self, now_ms: int, reason: str) -> None:
        """It is over, and the ledger is as it was."""
        self._end(self.status.failed_with(now_ms, reason))

    def _end(self, status: CompactionStatus) -> None:
        """The status is kept before the log is let go. A disk that does not take it is warned of: the next
        look finds a compaction that was interrupted. A topic that was deleted has none, and another one of
        its name has one of its own."""
        try:
            if status_of(self._directory, running=True) == self.status:
                write_status(self._directory, status)
        except OSError as error:
            _logger.warning("%s: its status was not kept: %s", self.where, error.strerror or error)
        finally:
            self.status = status
            self._claim.release()


def in_progress(where: TopicPartition) -> CompactionInProgressError:
    """The refusal of a second compaction, in Pulsar's words."""
    return CompactionInProgressError(f"{where}: Compaction already in progress")
