"""Compactions beside the originals while the logs are written and read (Pulsar's ``Compactor`` and what its
broker does with it).

::

    with st.open("/data/logs", mode="a", config=config) as logs:
        compactions = Compactions(logs, engine)     # engine(): called at the first compaction
        compactions.start()                         # closed with the logs
        compactions.trigger("persistent://acme/shop/orders")
        …
        print(compactions.status("acme.shop.orders"), compactions.samples())

Every ``brokerServiceCompactionMonitorIntervalInSeconds`` the logs are looked at: those that are over their
threshold are compacted, in threads that nobody else waits for. ``trigger`` does it at once. A log whose
compaction has failed waits for longer after each failure, an hour at most, unless it is triggered. Settings
are read anew for every run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import Config, ConfigSource
from siltstone.base.errors import CompactionInProgressError, EngineError, LedgerError, SiltstoneError
from siltstone.compaction.ledger.compactor import CompactableLog, TwoPhaseCompactor
from siltstone.compaction.ledger.engine import CompactionEngine, CompactionResult
from siltstone.log import fetch
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import CLUSTER_METADATA, COMPACTED, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.cleaning_states import Claim
from siltstone.runtime.compaction_status import (
    INTERRUPTED,
    NOT_RUN,
    CompactionStatus,
    claim_run,
    of_topic,
    status_of,
    write_status,
)
from siltstone.runtime.engines import EngineUse, LogService
from siltstone.runtime.manager import LogManager, Sample
from siltstone.runtime.topic_names import find_topic, namespace_of, persistent_name

# One compaction of one partition directory: nobody else's meanwhile, and what is written down of it.


class Attempt:
    """A compaction that has begun: its status says RUNNING until ``ended``.

    ``claim``: the claim on an open log, which is let go of, too.
    """

    def __init__(self, log: CompactableLog, now_ms: int, claim: Claim | None = None) -> None:
        """Raises CompactionInProgressError, OSError; the claim is let go of then."""
        self.log, self.claim = log, claim
        self.where: TopicPartition = log.where
        with contextlib.ExitStack() as stack:
            if claim is not None:
                stack.callback(claim.done)
            running = claim_run(log.directory)
            if running is None:
                raise in_progress(log.where)
            self._running = running
            stack.callback(running.release)
            self.status = status_of(log.directory, running=False).begun(now_ms)
            write_status(log.directory, self.status)
            stack.pop_all()

    def ended(self, now_ms: int, outcome: CompactionResult | str) -> None:
        """It is over: it has done what it was to do, or the ledger is as it was, for the reason given.

        The status is kept before the log is let go. A disk that does not take it is warned of: the next look
        finds a compaction that was interrupted. A topic that was deleted has none, and another one of its
        name has one of its own.
        """
        if isinstance(outcome, CompactionResult):
            status = self.status.done(now_ms, outcome)
        else:
            status = self.status.failed_with(now_ms, outcome)
        try:
            if status_of(self.log.directory, running=True) == self.status:
                write_status(self.log.directory, status)
        except OSError as error:
            _logger.warning("%s: its status was not kept: %s", self.where, error.strerror or error)
        finally:
            self.status = status
            self._running.release()
            if self.claim is not None:
                self.claim.done()


def in_progress(where: TopicPartition) -> CompactionInProgressError:
    """The refusal of a second compaction, in Pulsar's words."""
    return CompactionInProgressError(f"{where}: Compaction already in progress")


# One compaction of one open log: it goes on while the log is appended to, read, cleaned and retained, and
# comes to nothing when the log is truncated or deleted.


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


def compact_log(
    compactor: TwoPhaseCompactor,
    log: CompactableLog,
    settings: Config,
    committing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> CompactionResult:
    """Compact ``log`` by its topic's settings; its ledger is exchanged within ``committing``. Raises as the
    compactor does."""
    return compactor.compact(
        log,
        order=str(settings["siltstone.compaction.order"]),
        retain_null_key=settings.flag("topicCompactionRetainNullKey"),
        committing=committing,
    )


# How much of a log the next compaction would read: the backlog of Pulsar's ``__compaction`` cursor.


def backlog_bytes(view: LogView, horizon: int | None) -> int:
    """Bytes from the batch that holds ``horizon`` (None: never compacted) up to what is committed.

    Beyond the high watermark and the first open transaction nothing is compacted, so nothing is counted.
    Raises CorruptRecordError, OSError.
    """
    start = max(view.log_start_offset, horizon or 0)
    end = min(view.high_watermark, view.last_stable_offset)
    return max(_position(view, end) - _position(view, start), 0) if start < end else 0


def _position(view: LogView, offset: int) -> int:
    """Where the batch that holds ``offset`` begins, counted over all segments."""
    sizes = [view.size_of(number) for number in range(len(view.segments))]
    if offset >= view.log_end_offset:
        return sum(sizes)
    whole = view._replace(high_watermark=view.log_end_offset, last_stable_offset=view.log_end_offset)
    found = fetch.read(whole, offset, 1, whole_first=False)
    if found.slice is None or found.segment is None:
        return sum(sizes)
    before = [each.base_offset for each in view.segments].index(found.segment.base_offset)
    return sum(sizes[:before]) + found.slice.position


# From how many bytes on a log is compacted: the topic's word before the broker's before its namespace's.
#
# That is seed 001's order. Pulsar itself lets a namespace's policy go before its broker's; who wants that
# leaves the broker's out. All pure.

KEY = "compactionThreshold"
TOPIC, BROKER, NAMESPACE, DEFAULT = "topic", "broker", "namespace", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """``size`` in bytes, 0: never by itself; ``source``: who said so."""

    size: int
    source: str

    def is_passed_by(self, backlog: int) -> bool:
        """Do so many bytes start a compaction?"""
        return 0 < self.size < backlog


def compaction_threshold(
    topic: str, settings: Config, namespaces: Mapping[str, Mapping[str, str]]
) -> Threshold:
    """What holds for ``topic``: ``settings`` are its own over the broker's, ``namespaces`` the policies by
    ``tenant/namespace``. A 0 that somebody gave counts, and hides what comes after it."""
    found = settings.setting(KEY)
    assert isinstance(found.value, int)
    if found.origin is ConfigSource.DEFAULT_CONFIG:
        text = namespaces.get(str(namespace_of(topic)), {}).get(KEY)
        if text is not None:
            return Threshold(size=int(text), source=NAMESPACE)
        return Threshold(size=found.value, source=DEFAULT)
    return Threshold(size=found.value, source=TOPIC if found.name == KEY else BROKER)


# Pulsar's ``pulsar_compaction_*`` for every log that was ever compacted, out of its kept status.
#
# All of them are gauges, as in Pulsar. Labels: ``namespace`` and ``topic`` as Pulsar writes them, and
# ``partition``. Unlike Pulsar's, the numbers outlive a restart.

_PREFIX = "pulsar_compaction_"
_HELP = {
    "removed_event_count": (
        "Records that compactions left out or replaced: superseded, deleted, without a key, aborted."
    ),
    "succeed_count": "Compactions that succeeded, those that found nothing new too.",
    "failed_count": "Compactions that failed or were interrupted.",
    "duration_time_in_mills": "Milliseconds that the last successful compaction took.",
    "read_throughput": "Bytes per second that the last successful compaction read of the log.",
    "write_throughput": "Bytes per second that the last successful compaction wrote.",
    "compacted_entries_count": "Records of the compacted ledger.",
    "compacted_entries_size": "Bytes of the compacted ledger's segments.",
}


def _samples(log: PartitionLog) -> Iterator[Sample]:
    try:
        status = status_of(log.directory)
    except OSError:
        return
    if status.status == NOT_RUN:
        return
    labels = {
        "namespace": str(namespace_of(log.where.topic)),
        "topic": persistent_name(log.where.topic),
        "partition": str(log.where.partition),
    }
    for name, value in _values(status).items():
        yield Sample(name=f"{_PREFIX}{name}", value=value, help=_HELP[name], labels=labels)


def _values(status: CompactionStatus) -> dict[str, float]:
    seconds = max(status.seconds, 1e-3)
    return {
        "removed_event_count": status.removed,
        "succeed_count": status.succeeded,
        "failed_count": status.failed,
        "duration_time_in_mills": 1000 * status.seconds,
        "read_throughput": status.read_bytes / seconds,
        "write_throughput": status.written_bytes / seconds,
        "compacted_entries_count": status.entries,
        "compacted_entries_size": status.size,
    }


CHECK = "compaction-check"
THREADS = 2
"""Logs that are compacted at one time: one that is large does not hold up all others."""
_LONGEST_WAIT_MS = 3_600_000
_logger = logging.getLogger("siltstone.compaction")


class Compactions(LogService[CompactionEngine]):
    """Compacts the logs of ``manager`` with the engine that ``engine`` makes and ``stop_engine`` closes.

    Nothing happens by itself before ``start``; ``trigger`` and ``check`` work without it.
    """

    def __init__(
        self,
        manager: LogManager,
        engine: Callable[[], CompactionEngine],
        *,
        stop_engine: Callable[[CompactionEngine], object] | None = None,
    ) -> None:
        super().__init__(manager, manager.compacting, engine, stop_engine)
        self._held: dict[TopicPartition, Attempt] = {}
        self._failures: dict[TopicPartition, tuple[int, int]] = {}
        self._checking = False
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="siltstone-compaction")

    # Its life

    def start(self) -> None:
        """Look at the logs from time to time from now on; twice is once."""
        if self._started:
            return
        self._started = True
        first_ms = self._manager.clock.now_ms() + self._interval_ms()
        self._manager.scheduler.every(CHECK, self._interval_ms, self._check_soon, first_ms=first_ms)

    def _interval_ms(self) -> int:
        return 1000 * self._manager.config.integer("brokerServiceCompactionMonitorIntervalInSeconds")

    def _end_work(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for attempt in list(self._held.values()):
            self._ended(attempt, INTERRUPTED)

    # What people ask for

    def trigger(self, topic: str) -> list[TopicPartition]:
        """Begin to compact a topic, given by its name here or in Pulsar's way; the partitions.

        Raises CompactionInProgressError when one of them is being compacted, and begins none then;
        UnknownTopicError, UsageError, StorageError, OSError.
        """
        found = self._found(topic)
        with self._changed:
            busy = [where for where in found if where in self._held]
            if busy:
                raise in_progress(busy[0])
            logs = [self._manager.get(where) for where in found]
            for log in logs:
                self._begin(log)
        return found

    def status(self, topic: str) -> CompactionStatus:
        """What came of a topic's compactions, or that one runs; also of what an earlier process did.

        Raises UnknownTopicError, UsageError, StorageError, OSError.
        """
        return of_topic([status_of(self._manager.get(where).directory) for where in self._found(topic)])

    def wait(self, timeout: float | None = None) -> bool:
        """Until no compaction runs or is about to; False when that took longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held and not self._checking, timeout)

    def samples(self) -> list[Sample]:
        """Pulsar's ``pulsar_compaction_*`` of every log that was ever compacted. A log whose status cannot be
        read for now has none."""
        return [
            sample
            for served in self._manager.serving()
            for _, log in sorted(served.logs.items())
            if files.exists(log.directory / COMPACTED)
            for sample in _samples(log)
        ]

    def _found(self, topic: str) -> list[TopicPartition]:
        here: dict[str, list[int]] = {}
        for where in self._manager:
            here.setdefault(where.topic, []).append(where.partition)
        asked = find_topic(topic, here)
        numbers = here[asked.topic] if asked.partition is None else [asked.partition]
        return [TopicPartition(asked.topic, number) for number in numbers]

    # Looking at the logs

    def _check_soon(self) -> None:
        """In a thread of ours: whoever ticks does not wait."""
        with self._changed:
            if self._closed or self._checking:
                return
            self._checking = True
            self._pool.submit(self._check_quietly)

    def _check_quietly(self) -> None:
        try:
            self.check()
        except Exception:
            _logger.exception("looking for logs to compact failed; the next look is after the interval")
        finally:
            with self._changed:
                self._checking = False
                self._changed.notify_all()

    def check(self) -> list[TopicPartition]:
        """Look at all logs, and begin to compact those that are over their threshold: which they are."""
        now_ms, thresholds = self._manager.clock.now_ms(), dict[str, Threshold]()
        begun = []
        for where in self._manager:
            if where.topic == CLUSTER_METADATA or where in self._held or self._waits(where, now_ms):
                continue
            try:
                if where.topic not in thresholds:
                    thresholds[where.topic] = self._threshold(where.topic)
                log = self._manager.get(where)
                if log.offline is None and _is_over(log, thresholds[where.topic]):
                    with self._changed:
                        self._begin(log)
                    begun.append(where)
            except CompactionInProgressError:
                continue
            except (SiltstoneError, OSError) as error:
                _logger.warning("%s: not looked at for compaction: %s", where, error)
        return begun

    def _threshold(self, topic: str) -> Threshold:
        topics = self._manager.topics
        return compaction_threshold(topic, topics.settings(topic), topics.namespaces)

    def _waits(self, where: TopicPartition, now_ms: int) -> bool:
        return where in self._failures and now_ms < self._failures[where][1]

    # Doing it

    def _begin(self, log: PartitionLog) -> None:
        """Under the lock: the attempt is known before its thread begins."""
        if self._closed:
            raise EngineError(f"{log.where}: not compacted: the logs are being closed")
        claim = self._states.begin(log.where)
        if claim is None:
            raise in_progress(log.where)
        attempt = self._held[log.where] = Attempt(log, self._manager.clock.now_ms(), claim)
        self._pool.submit(self._carry_out, log, claim, attempt)

    def _carry_out(self, log: PartitionLog, claim: Claim, attempt: Attempt) -> None:
        outcome: str | CompactionResult = INTERRUPTED
        try:
            outcome = self._compacted(log, claim)
        except (SiltstoneError, OSError) as error:
            outcome = str(error)
            _logger.warning("Compaction of %s failed: %s", log.where, error)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            _logger.exception("Compaction of %s failed", log.where)
        finally:
            self._ended(attempt, outcome)
        self._manager.upkeep.take_failed_offline()

    def _compacted(self, log: PartitionLog, claim: Claim) -> CompactionResult:
        """Raises as the compactor does, StorageError, CleaningAbortedError when the log was truncated or
        deleted meanwhile."""
        _logger.info("Compaction of %s begins", log.where)
        compactor = TwoPhaseCompactor(EngineUse(self._engine).engine, clock=self._manager.clock)
        claim.check()
        settings = self._manager.topics.settings(log.where.topic)
        result = compact_log(compactor, DurableLog.of(log), settings, claim.changing)
        _logger.info("%s", told(log.where, result))
        return result

    def _ended(self, attempt: Attempt, outcome: str | CompactionResult) -> None:
        now_ms = self._manager.clock.now_ms()
        try:
            attempt.ended(now_ms, outcome)
        finally:
            with self._changed:
                self._count_failure(attempt.where, now_ms, failed=isinstance(outcome, str))
                self._held.pop(attempt.where, None)
                self._changed.notify_all()

    def _count_failure(self, where: TopicPartition, now_ms: int, *, failed: bool) -> None:
        times = self._failures.pop(where, (0, 0))[0] + 1
        if failed:
            wait_ms = min(self._interval_ms() << min(times, 20), _LONGEST_WAIT_MS)
            self._failures[where] = (times, now_ms + wait_ms)


def _is_over(log: PartitionLog, threshold: Threshold) -> bool:
    """A ledger that makes no sense counts as over it: its compaction says what is wrong."""
    if not threshold.size:
        return False
    try:
        cursor = LedgerStore(log.directory).cursor()
    except LedgerError:
        return True
    return threshold.is_passed_by(backlog_bytes(log.view, None if cursor is None else cursor.horizon))


def told(where: TopicPartition, result: CompactionResult) -> str:
    """A compaction in one line."""
    if not result.changed:
        return f"Compaction of {where}: nothing new below offset {result.horizon}"
    gone = result.removed
    return (
        f"Compaction of {where} is done: {result.read_records} records in {result.seconds:,.2f} seconds, "
        f"up to offset {result.horizon - 1}; ledger {result.ledger_id} has {result.entries} entries, "
        f"{result.size} bytes; removed: {gone.superseded} superseded, {gone.deleted} deleted, "
        f"{gone.keyless} without a key, {gone.aborted} aborted; {result.hidden} of earlier entries replaced"
    )
