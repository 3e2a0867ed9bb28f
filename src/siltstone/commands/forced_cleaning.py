"""What ``erase`` and ``empty`` share: they clean logs at once, whatever their dirty ratio, and say why a
record is still there afterwards.

A command opens the directories itself (``opened_for_cleaning``); a server passes those that it has open.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from siltstone.base import interruption
from siltstone.base.clock import time_text
from siltstone.base.config import Config
from siltstone.base.errors import PolicyViolationError
from siltstone.commands.changes import Actor, ChangeInProgress, ChangeLog
from siltstone.commands.cleaning_conditions import (
    HELD_BY_LEDGER,
    OPEN_TRANSACTION,
    WITHIN_MIN_LAG,
    CleaningConditions,
)
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.library import EngineName, cleaner_with
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult, failures
from siltstone.log.names import CLUSTER_METADATA, INTERNAL_TOPICS, TopicPartition
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager

RUN_AGAIN = "run the command again"
COMPACT_ADVICE = f"run siltstone compact-topic for the topic, then {RUN_AGAIN}"
_ADVICE = {
    OPEN_TRANSACTION: f"end the transaction, or let it time out; then {RUN_AGAIN}",
    WITHIN_MIN_LAG: f"{RUN_AGAIN} after that time",
    HELD_BY_LEDGER: COMPACT_ADVICE,
}
BUSY_LOG_SECONDS = 600.0
"""How long a forced cleaning waits until a thread of the cleaner has cleaned the same log."""
_ATTEMPTS = 3
"""How often a forced cleaning is tried while the cleaner's own threads are cleaning the log."""
WorkProgress = Callable[[str, str, int, int], None]
"""Called with a log or a topic, the step, how much of the step is done, and how much there is in all (bytes;
of a truncation, partitions); raises to stop the work."""


def no_progress(log: str, stage: str, done: int, total: int) -> None:
    """A ``WorkProgress`` that shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRemoved:
    """Why a forced cleaning has not removed a record, and what to do. ``until_ms``: when the reason ends by
    itself, None if it does not."""

    reason: str
    advice: str = RUN_AGAIN
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDirectories:
    """The open logs (``manager``), their ``cleaner``, and the audit log (``changes``)."""

    manager: LogManager
    cleaner: LogCleaner
    changes: ChangeLog

    def clean_fully(self, logs: Collection[TopicPartition]) -> dict[TopicPartition, LogResult]:
        """Clean ``logs``, with their active segments, whatever their dirty ratio. If a thread of the cleaner
        is cleaning one of them, that log is cleaned again afterwards. Returns the last result of each log; a
        log that is paused or uncleanable has none. Raises UnknownTopicError, UsageError, StorageError."""
        results, remaining = dict[TopicPartition, LogResult](), set(logs)
        for _ in range(_ATTEMPTS):
            if not remaining:
                break
            with interruption.current().critical():  # Ctrl-C ends the command after the swap, not within it
                cleaned = self.cleaner.clean_now(remaining, force=True, wait_seconds=BUSY_LOG_SECONDS)
            results |= {result.topic_partition: result for result in cleaned}
            remaining -= results.keys() | self.cleaner.paused | self.manager.uncleanable.keys()
        return results

    def conditions(self, topic_partition: TopicPartition) -> CleaningConditions:
        """What decides how far a log may be cleaned now. Raises UnknownTopicError, StorageError, OSError."""
        manager = self.manager
        return CleaningConditions(
            log=manager.get(topic_partition),
            config=manager.topics.settings(topic_partition.topic),
            now_ms=manager.clock.now_ms(),
            checkpoint=manager.directory_of(topic_partition).cleaner_checkpoint().get(topic_partition),
        )

    def why_not_removed(
        self, topic_partition: TopicPartition, offset: int, result: LogResult | None
    ) -> NotRemoved | None:
        """Why a forced cleaning has not removed records up to ``offset``; None if no reason is known.
        ``result``: of that cleaning, None if it has none for the log: the engine did not start, or the log
        was busy or could not be read. Raises as ``conditions``."""
        uncleanable = self.manager.uncleanable.get(topic_partition)
        if uncleanable is not None:
            since = time_text(uncleanable.since_ms)
            return NotRemoved(
                reason=f"the cleaner has skipped the log since {since}: {uncleanable.reason}",
                advice=f"repair the log and let it be cleaned again, then {RUN_AGAIN}",
            )
        if topic_partition in self.cleaner.paused:
            return NotRemoved(
                reason="the cleaning of the log is paused", advice=f"resume it, then {RUN_AGAIN}"
            )
        blocker = self.conditions(topic_partition).blocker_of(offset)
        if blocker is not None:
            advice = _ADVICE.get(blocker.code, RUN_AGAIN)
            return NotRemoved(reason=blocker.sentence, advice=advice, until_ms=blocker.until_ms)
        if result is None:
            return NotRemoved(
                reason="the log was not cleaned: the cleaner's engine did not start, or the log is in use",
                advice=f"see the warnings of the cleaner, then {RUN_AGAIN}",
            )
        if result.status not in (CLEANED, NOTHING_TO_DO):
            return NotRemoved(reason=result.reason)
        return None


def note_failures(change: ChangeInProgress, results: Collection[LogResult]) -> None:
    """Set the outcome of a change to failed if the cleaning of a log has failed, and name the first one."""
    failed = failures(results)
    if failed:
        first = failed[0]
        change.fail(f"{len(failed)} of {len(results)} logs: {first.topic_partition}: {first.reason}")


@contextlib.contextmanager
def opened_for_cleaning(
    directories: BrokerDirectories, topic: str, engine: EngineName = "auto"
) -> Iterator[OpenDirectories]:
    """Lock, recover and open directories for a command that cleans a topic. Raises as ``LogManager.open`` and
    ``cleaner_with``."""
    with directories.open() as manager:
        cleaner = cleaner_with(manager, engine, topic=topic)
        try:
            changes = ChangeLog(manager.serving()[0].path, manager.clock)
            yield OpenDirectories(manager=manager, cleaner=cleaner, changes=changes)
        finally:
            cleaner.close(abort=False)


def command_actor() -> Actor:
    """The user who runs a command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in many containers
        user = str(os.getuid())
    return Actor(user=user, way="cli")


def refuse_internal(topic: str, subject: str) -> None:
    """Raises PolicyViolationError for a topic that only a broker's coordinators may write. ``subject``: of
    the error's sentence, such as "emptying it"."""
    if topic in (*INTERNAL_TOPICS, CLUSTER_METADATA):
        raise PolicyViolationError(
            f"{topic} is an internal topic: {subject} would contradict the state of its coordinators",
            path=topic,
            advice="let the broker do it: delete the group, or let the transactional id expire",
        )


def refuse_not_compacted(topic: str, config: Config, advice: str) -> None:
    """Raises PolicyViolationError unless the cleaner compacts the topic's logs."""
    is_tiered = config.flag("remote.storage.enable")
    refuse_policies(topic, config.policies, is_tiered=is_tiered, advice=advice)


def refuse_policies(topic: str, policies: Collection[str], *, is_tiered: bool, advice: str) -> None:
    """Raises PolicyViolationError unless a topic with these policies is compacted; ``is_tiered``: it has a
    tiered storage."""
    if "compact" not in policies:
        policy = ",".join(policies)
        raise PolicyViolationError(
            f"cleanup.policy={policy}: the topic is not compacted, so a tombstone removes nothing",
            path=topic,
            advice=advice,
        )
    if is_tiered:
        raise PolicyViolationError(
            "remote.storage.enable=true: logs with remote segments are not cleaned",
            path=topic,
            advice="let the broker do it",
        )
