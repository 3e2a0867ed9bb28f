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

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from siltstone.runtime.cleaning_states import CleaningStates
from siltstone.runtime.compaction_status import (
    INTERRUPTED,
    NOT_RUN,
    CompactionStatus,
    claim_run,
    of_topic,
    status_of,
    write_status,
)
from siltstone.runtime.engines import KeptEngine, WatchedEngine
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample
from siltstone.runtime.topic_names import find_topic, namespace_of, persistent_name

# One compaction of one partition directory: nobody else's meanwhile, and what is written down of it.


class Attempt:
    """A compaction that has begun: its status says RUNNING until ``succeeded`` or ``failed``."""

    def __init__(self, log: CompactableLog, now_ms: int) -> None:
        """Raises CompactionInProgressError, OSError."""
        self.where: TopicPartition = log.where
        self._directory = log.directory
        claim = claim_run(log.directory)
        if claim is None:
            raise in_progress(log.where)
        self._claim: files.Flock = claim
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
        return Threshold(size=found.value, source=DEFAULT) if text is None else _of_namespace(text)
    return Threshold(size=found.value, source=TOPIC if found.name == KEY else BROKER)


def _of_namespace(text: str) -> Threshold:
    return Threshold(size=int(text), source=NAMESPACE)


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


def compaction_samples(manager: LogManager) -> list[Sample]:
    """A sample of each kind for each log. A log whose status cannot be read for now has none."""
    return [
        sample
        for served in manager.serving()
        for _, log in sorted(served.logs.items())
        if files.exists(log.directory / COMPACTED)
        for sample in _samples(log)
    ]


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


class Compactions:
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
        self._manager = manager
        self._engine = KeptEngine(engine, stop_engine)
        self._changed = threading.Condition()
        self._runs: dict[TopicPartition, Run] = {}
        self._failures: dict[TopicPartition, tuple[int, int]] = {}
        self._checking = False
        self._closed = False
        self._started = False
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="siltstone-compaction")
        manager.attendants.append(self)

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

    def settings_changed(self) -> None:
        """They are read anew for every look."""

    def close(self) -> None:
        """Let go of all logs and of the engine; twice is once. What runs comes to nothing."""
        with self._changed:
            self._closed = True
            held = list(self._runs)
        for where in held:
            self._manager.compacting.abort(where)
        self._engine.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for run in list(self._runs.values()):
            self._ended(run, INTERRUPTED)
        if self in self._manager.attendants:
            self._manager.attendants.remove(self)

    def __enter__(self) -> Compactions:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What people ask for

    def trigger(self, topic: str) -> list[TopicPartition]:
        """Begin to compact a topic, given by its name here or in Pulsar's way; the partitions.

        Raises CompactionInProgressError when one of them is being compacted, and begins none then;
        UnknownTopicError, UsageError, StorageError, OSError.
        """
        found = self._found(topic)
        with self._changed:
            busy = [where for where in found if where in self._runs]
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
            return self._changed.wait_for(lambda: not self._runs and not self._checking, timeout)

    def samples(self) -> list[Sample]:
        """Pulsar's ``pulsar_compaction_*`` of every log that was ever compacted."""
        return compaction_samples(self._manager)

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
            if where.topic == CLUSTER_METADATA or where in self._runs or self._waits(where, now_ms):
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
        """Under the lock: the run is known before its thread begins."""
        if self._closed:
            raise EngineError(f"{log.where}: not compacted: the logs are being closed")
        run = self._runs[log.where] = Run(log, self._manager.compacting, self._manager.clock.now_ms())
        self._pool.submit(self._carry_out, run)

    def _carry_out(self, run: Run) -> None:
        reason: str | CompactionResult = INTERRUPTED
        try:
            reason = self._compacted(run)
        except (SiltstoneError, OSError) as error:
            reason = str(error)
            _logger.warning("Compaction of %s failed: %s", run.where, error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _logger.exception("Compaction of %s failed", run.where)
        finally:
            self._ended(run, reason)
        self._manager.upkeep.take_failed_offline()

    def _compacted(self, run: Run) -> CompactionResult:
        _logger.info("Compaction of %s begins", run.where)
        compactor = TwoPhaseCompactor(WatchedEngine(self._engine), clock=self._manager.clock)
        result = run.compact(compactor, self._manager.topics.settings(run.where.topic))
        _logger.info("%s", told(run.where, result))
        return result

    def _ended(self, run: Run, outcome: str | CompactionResult) -> None:
        now_ms = self._manager.clock.now_ms()
        try:
            if isinstance(outcome, CompactionResult):
                run.succeeded(now_ms, outcome)
            else:
                run.failed(now_ms, outcome)
        finally:
            with self._changed:
                self._count_failure(run.where, now_ms, failed=isinstance(outcome, str))
                self._runs.pop(run.where, None)
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
