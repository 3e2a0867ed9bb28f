"""One run of the embedded cleaner over some claimed logs, and what is made of each result.

::

    cleaned                             statistics, checkpoint and retention are done
    the log was wanted back             left as it is; its turn comes again
    the engine was lost                 left as it is; tried again alone, after all others, on a new engine
    damage, or what no retry changes    uncleanable, with the reason; the others go on
    anything else                       tried again, and uncleanable after ``MOST_FAILURES`` in a row
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from siltstone.cleaner import report
from siltstone.cleaner.cleaner import Cleaner, RunLimits
from siltstone.cleaner.facts import Choices, LogState
from siltstone.cleaner.pacing import IO_LIMIT, UNLIMITED, share_of_io
from siltstone.cleaner.report import LogResult
from siltstone.cleaner.service.destination import IntoOpenLogs
from siltstone.cleaner.service.kept_engine import EngineUse
from siltstone.cleaner.service.open_logs import Candidate, log_state
from siltstone.cleaner.service.statistics import told
from siltstone.cleaner.work import trouble_of
from siltstone.errors import EngineError, SiltstoneError
from siltstone.log.names import TopicPartition
from siltstone.log.service.cleaning_states import Claim
from siltstone.log.service.manager import LogManager

MOST_FAILURES = 3
_FINAL = (report.UNCLEANABLE, report.SKIPPED)
_logger = logging.getLogger("siltstone.cleaner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A log that this run has."""

    candidate: Candidate
    claim: Claim

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return self.claim.where


class Run:
    """Cleans ``batch`` with ``engine``. ``failures``: how often logs have failed in a row, kept up here."""

    def __init__(
        self,
        manager: LogManager,
        batch: Sequence[Claimed],
        engine: EngineUse,
        limits: RunLimits,
        failures: dict[TopicPartition, int],
    ) -> None:
        self._manager = manager
        self._batch = {each.where: each for each in batch}
        self._engine = engine
        self._limits = limits
        self._failures = failures
        self.began_ms = manager.clock.now_ms()

    def clean(self) -> list[LogResult]:
        """A result for each log that is still the cleaner's. Nothing about a log is raised."""
        started = datetime.fromtimestamp(self.began_ms / 1000, UTC)
        run = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        logs = {where: (each.candidate, each.claim) for where, each in self._batch.items()}
        destination = IntoOpenLogs(run, logs, self._manager.upkeep)
        results = list[LogResult]()
        states = self._states(results)
        for each in self._batch.values():
            _tell_beginning(each.candidate)
        try:
            cleaner = Cleaner(lambda: self._engine, destination, self._limits)
            results += cleaner.run(states, self._choices())
        except EngineError as error:
            _logger.warning("the cleaner has no engine: %s", error)
        self._manager.upkeep.take_failed_offline()
        for result in results:
            self._take_in(result)
        return results

    def _choices(self) -> Choices:
        """An engine is asked how many tasks it runs only where they have to share a limit."""
        config, tasks = self._manager.config, 1
        if share_of_io(config.number(IO_LIMIT), 1) != UNLIMITED:
            tasks = self._engine.workers * max(config.integer("log.cleaner.threads"), 1)
        return Choices(now_ms=self.began_ms, drop_keyless=True, tasks_at_once=tasks)

    def is_nobodys_fault(self, result: LogResult) -> bool:
        """Was it the engine that kept the log from being cleaned?"""
        return result.status != report.CLEANED and self._engine.lost is not None

    def _states(self, results: list[LogResult]) -> list[LogState]:
        checkpoints: dict[int, dict[TopicPartition, int]] = {}
        states = []
        for where, each in self._batch.items():
            served, log = each.candidate.served, each.candidate.log
            try:
                if id(served) not in checkpoints:
                    checkpoints[id(served)] = served.cleaner_checkpoint()
                config = self._manager.topics.settings(where.topic)
                states.append(log_state(served, log, config, checkpoints[id(served)].get(where)))
            except (SiltstoneError, OSError) as error:
                trouble = trouble_of(error)
                blank = LogResult(topic=where.topic, partition=where.partition, directory=str(log.directory))
                results.append(blank.stop(trouble.status, trouble.reason))
        return states

    def _take_in(self, result: LogResult) -> None:
        where = result.where
        claim = self._batch[where].claim
        if result.status == report.CLEANED:
            self._failures.pop(where, None)
            _logger.info("%s", told(result))
        elif claim.is_lost:
            _logger.info("Cleaning of log %s was aborted", where)
        elif result.status in (report.NOTHING_TO_DO, report.NOT_ELIGIBLE):
            pass
        elif self._engine.lost is not None:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            if self._engine.started:
                self._failures[where] = self._failures.get(where, 0) + 1
        elif result.status in _FINAL:
            self._give_up(result)
        else:
            _logger.warning("log %s was not cleaned: %s", where, result.reason)
            self._failures[where] = self._failures.get(where, 0) + 1
            if self._failures[where] >= MOST_FAILURES:
                self._give_up(result)

    def _give_up(self, result: LogResult) -> None:
        self._failures.pop(result.where, None)
        _logger.error(
            "Unexpected exception thrown when cleaning log %s. Marking its partition (%s) as uncleanable: %s",
            result.directory,
            result.where,
            result.reason,
        )
        try:
            self._manager.mark_uncleanable(result.where, result.reason, self.began_ms)
        except SiltstoneError as error:
            _logger.warning("%s", error)


def _tell_beginning(candidate: Candidate) -> None:
    """What is about to be cleaned, in Kafka's words."""
    where, dirty = candidate.where, candidate.range
    _logger.info("Beginning cleaning of log %s", where)
    if not candidate.is_eligible:
        _logger.info("Cleaning log %s (cleaning prior to %d, for its tombstones)", where, dirty.end)
        return
    segments = candidate.log.view.segments
    following = [each.base_offset for each in segments[1:]]
    count = sum(dirty.first_dirty < end <= dirty.end for end in following)
    _logger.info(
        "Building offset map for log %s for %d segments in offset range [%d, %d); dirty ratio %.3f, %d bytes",
        where,
        count,
        dirty.first_dirty,
        dirty.end,
        dirty.dirty_ratio,
        dirty.cleanable_bytes,
    )
    _logger.info("Cleaning log %s (cleaning prior to %d)", where, dirty.end)
