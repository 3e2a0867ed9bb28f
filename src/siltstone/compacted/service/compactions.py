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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from siltstone.cleaner.service.kept_engine import KeptEngine
from siltstone.compacted.compactor import TwoPhaseCompactor
from siltstone.compacted.engine import CompactionEngine
from siltstone.compacted.result import CompactionResult
from siltstone.compacted.service.attempt import in_progress
from siltstone.compacted.service.backlog import backlog_bytes
from siltstone.compacted.service.engine_use import WatchedEngine
from siltstone.compacted.service.gauges import compaction_samples
from siltstone.compacted.service.run import Run
from siltstone.compacted.service.status import INTERRUPTED, CompactionStatus, of_topic, status_of
from siltstone.compacted.service.thresholds import Threshold, compaction_threshold
from siltstone.errors import CompactionInProgressError, EngineError, LedgerError, SiltstoneError
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.manager import LogManager
from siltstone.log.service.metrics import Sample
from siltstone.log.service.namespaces import find_topic

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
