"""Open log directories with their cleaner and their audit log: those that a server has open, or those that a
command opens while it runs."""

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
from siltstone.commands.circumstances import HELD_BY_LEDGER, OPEN_TRANSACTION, WITHIN_MIN_LAG, Circumstances
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.library import EngineName, cleaner_with
from siltstone.compaction.report import CLEANED, NOTHING_TO_DO, LogResult, failures
from siltstone.log.names import CLUSTER_METADATA, INTERNAL_TOPICS, TopicPartition
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.runtime.manager import LogManager

AGAIN = "run the command again"
COMPACT_ADVICE = f"run siltstone compact-topic for the topic, then {AGAIN}"
_ADVICE = {
    OPEN_TRANSACTION: f"end the transaction, or let it time out; then {AGAIN}",
    WITHIN_MIN_LAG: f"{AGAIN} after that time",
    HELD_BY_LEDGER: COMPACT_ADVICE,
}
CLAIM_SECONDS = 600.0
"""How long a forced cleaning waits for one that is under way."""
_ATTEMPTS = 3
WorkProgress = Callable[[str, str, int, int], None]
"""Called with a log or a topic, the step, bytes done, bytes in all; raises to stop the work."""


def no_progress(log: str, stage: str, done: int, total: int) -> None:
    """A ``WorkProgress`` that shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The reason why a cleaning has not removed a record, and what to do. ``until_ms``: when the reason ends,
    None if it does not end by time."""

    reason: str
    advice: str = AGAIN
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDirectories:
    """The open logs, their cleaner, the audit log."""

    manager: LogManager
    cleaner: LogCleaner
    changes: ChangeLog

    def clean_fully(self, logs: Collection[TopicPartition]) -> dict[TopicPartition, LogResult]:
        """Clean some logs, with their active segments, whatever their dirty ratio. A log that a thread of the
        cleaner is cleaning is cleaned again after that. Returns the last result of each log; none of a log
        that is paused or uncleanable. Raises UnknownTopicError, UsageError, StorageError."""
        results, left = dict[TopicPartition, LogResult](), set(logs)
        for _ in range(_ATTEMPTS):
            if not left:
                break
            with interruption.current().critical():  # of a command: no swap is cut off
                cleaned = self.cleaner.clean_now(left, force=True, wait_seconds=CLAIM_SECONDS)
            results |= {result.topic_partition: result for result in cleaned}
            left -= results.keys() | self.cleaner.paused | self.manager.uncleanable.keys()
        return results

    def circumstances(self, log: TopicPartition) -> Circumstances:
        """The circumstances of the cleaning of a log. Raises UnknownTopicError, StorageError, OSError."""
        manager = self.manager
        return Circumstances(
            log=manager.get(log),
            config=manager.topics.settings(log.topic),
            now_ms=manager.clock.now_ms(),
            checkpoint=manager.directory_of(log).cleaner_checkpoint().get(log),
        )

    def what_holds(self, log: TopicPartition, offset: int, result: LogResult | None) -> Hold | None:
        """The hold that has kept a forced cleaning, which had ``result``, from the records up to ``offset``;
        None if that is not known. Raises as ``circumstances``."""
        row = self.manager.uncleanable.get(log)
        if row is not None:
            return Hold(
                reason=f"the cleaner has skipped the log since {time_text(row.since_ms)}: {row.reason}",
                advice=f"repair the log and let it be cleaned again, then {AGAIN}",
            )
        if log in self.cleaner.paused:
            return Hold(reason="the cleaning of the log is paused", advice=f"resume it, then {AGAIN}")
        held = self.circumstances(log).holding_of(offset)
        if held is not None:
            advice = _ADVICE.get(held.code, AGAIN)
            return Hold(reason=held.sentence, advice=advice, until_ms=held.until_ms)
        if result is not None and result.status not in (CLEANED, NOTHING_TO_DO):
            return Hold(reason=result.reason)
        return None


def note_failures(change: ChangeInProgress, results: Collection[LogResult]) -> None:
    """Set the outcome of a change to failed, with the logs that were not cleaned because of an error."""
    failed = failures(results)
    if failed:
        first = failed[0]
        change.fail(f"{len(failed)} of {len(results)} logs: {first.topic_partition}: {first.reason}")


@contextlib.contextmanager
def opened(
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
    except (KeyError, OSError):  # no name belongs to the number, as in many containers
        user = str(os.getuid())
    return Actor(user=user, way="cli")


def refuse_internal(topic: str, verb: str) -> None:
    """Raises PolicyViolationError for a topic that only a broker's coordinators may write."""
    if topic in (*INTERNAL_TOPICS, CLUSTER_METADATA):
        raise PolicyViolationError(
            f"{topic} is the broker's own: {verb} would contradict what its coordinators know",
            path=topic,
            advice="let the broker do it: delete the group, or let the transactional id expire",
        )


def refuse_not_compacted(topic: str, config: Config, advice: str) -> None:
    """Raises PolicyViolationError unless the topic's logs are compacted here."""
    is_tiered = config.flag("remote.storage.enable")
    refuse_policies(topic, config.policies, is_tiered=is_tiered, advice=advice)


def refuse_policies(topic: str, policies: Collection[str], *, is_tiered: bool, advice: str) -> None:
    """Raises PolicyViolationError unless a topic with these policies is compacted; ``is_tiered``: it has a
    tiered storage."""
    if "compact" not in policies:
        policy = ",".join(policies)
        raise PolicyViolationError(
            f"cleanup.policy={policy}: a tombstone removes nothing here", path=topic, advice=advice
        )
    if is_tiered:
        raise PolicyViolationError(
            "remote.storage.enable=true: such logs are not cleaned, and parts of them are elsewhere",
            path=topic,
            advice="let the broker do it",
        )
