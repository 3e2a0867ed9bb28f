"""The service that compacts open logs into ledgers beside them, while the logs are written and read
(Pulsar's broker).

::

    with siltstone.open("/data/logs", mode="a", config=config) as logs:
        compactions = Compactions(logs, start_engine)   # calls start_engine at the first compaction
        compactions.start()                             # logs.close() closes it
        compactions.trigger("persistent://acme/shop/orders")
        …
        print(compactions.status("acme.shop.orders"), compactions.samples())

Every ``brokerServiceCompactionMonitorIntervalInSeconds`` the service checks all logs, and compacts those
whose backlog exceeds their threshold, in threads of its own. ``trigger`` compacts a topic at once. After each
failure in a row the check leaves a log out for twice as long, an hour at most. Each compaction reads the
settings anew.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import Config, ConfigSource, parse_topic_config
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CompactionInProgressError, EngineError, LedgerError, SiltstoneError
from siltstone.compaction.ledger.compactor import (
    CompactableLog,
    CompactionEngine,
    CompactionResult,
    TwoPhaseCompactor,
)
from siltstone.log.fetch import LogView
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import CLUSTER_METADATA, COMPACTED, TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLog
from siltstone.runtime.cleaning_states import Claim, Phase
from siltstone.runtime.engines import EngineProxy, LogService
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample, samples_of
from siltstone.runtime.topic_names import find_partitions, namespace_of, persistent_name

# The status of a log's compactions, kept beside its ledger (Pulsar's ``LongRunningProcessStatus``).
#
# ::
#
#     .compacted/status.json  {"version": 1, "status": "SUCCESS", "lastError": "", "beganMs": …, "endedMs": …,
#                              "succeeded": 3, "failed": 0, "removed": 4711, "entries": 12, "size": 980,
#                              "readBytes": 52428800, "writtenBytes": 980, "seconds": 0.41}
#     .compacted/running      empty; a process holds a lock (``flock``) on it while it compacts
#
# Pulsar forgets the status at a restart. Here it is kept, for display only: if the file is damaged, the
# status is ERROR, and the next compaction replaces the file. RUNNING without the lock means that the process
# died.

Status = Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
NOT_RUN: Status = "NOT_RUN"
RUNNING: Status = "RUNNING"
SUCCESS: Status = "SUCCESS"
ERROR: Status = "ERROR"
INTERRUPTED = "the compaction was interrupted: its process ended before it was done; the ledger is unchanged"
STATUS_FILE, LOCK_FILE = "status.json", "running"
_SUMMED = ("succeeded", "failed", "removed", "entries", "size", "read_bytes", "written_bytes", "seconds")
"""Fields of ``CompactionStatus`` that ``topic_status`` adds up over the partitions of a topic."""


@decoded_in_threads
class CompactionStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a log's compactions; ``status`` and ``last_error`` are Pulsar's.

    ``began_ms``: when the last compaction began, None: never. ``ended_ms``: when it ended, None also while it
    runs and if its process died. ``succeeded``, ``failed``: numbers of compactions. ``removed``: records that
    all compactions together discarded, and entries of the ledger that they replaced. The other fields are of
    the last success that had new records: the ledger's ``entries`` (its records) and ``size`` in bytes, bytes
    read and written, ``seconds``.
    """

    status: Status = NOT_RUN
    last_error: str = ""
    began_ms: int | None = None
    ended_ms: int | None = None
    succeeded: int = 0
    failed: int = 0
    removed: int = 0
    entries: int = 0
    size: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0

    def begun(self, now_ms: int) -> CompactionStatus:
        """The status while a compaction that began at ``now_ms`` runs."""
        return replace(self, status=RUNNING, last_error="", began_ms=now_ms, ended_ms=None)

    def ended(self, now_ms: int, outcome: CompactionResult | str) -> CompactionStatus:
        """The status after a success, or after a failure for which ``outcome`` is the reason.

        A success without new records keeps the figures of the last one that had some.
        """
        if isinstance(outcome, str):
            return replace(self, status=ERROR, last_error=outcome, ended_ms=now_ms, failed=self.failed + 1)
        success = replace(self, status=SUCCESS, last_error="", ended_ms=now_ms, succeeded=self.succeeded + 1)
        if not outcome.changed:
            return success
        return replace(
            success,
            removed=self.removed + outcome.removed.total() + outcome.replaced_entries,
            entries=outcome.entries,
            size=outcome.size,
            read_bytes=outcome.read_bytes,
            written_bytes=outcome.written_bytes,
            seconds=round(outcome.seconds, 3),
        )


@decoded_in_threads
class _StatusFile(CompactionStatus, frozen=True, kw_only=True):
    """The content of ``status.json``. ``status`` has no default here: a file without it is damaged."""

    version: Literal[1]
    status: Status


def read_status(partition: Path, *, running: bool | None = None) -> CompactionStatus:
    """The status of the compactions of the partition in directory ``partition``. Raises OSError.

    ``running``: is a compaction in progress? None: look whether the file ``running`` is locked.
    """
    path = partition / COMPACTED / STATUS_FILE
    try:
        content = msgspec.json.decode(files.read_bytes(path), type=_StatusFile)
        status = msgspec.convert(msgspec.to_builtins(content), CompactionStatus)
    except (FileNotFoundError, NotADirectoryError):
        return CompactionStatus()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return CompactionStatus(status=ERROR, last_error=f"{path}: the file is not a status: {error}")
    if status.status == RUNNING and not (is_running(partition) if running is None else running):
        return replace(status, status=ERROR, last_error=INTERRUPTED, failed=status.failed + 1)
    return status


def write_status(partition: Path, status: CompactionStatus) -> None:
    """Write a partition's status, durably; the partition's directory must exist. Raises OSError."""
    LedgerStore(partition).make_folder()
    content = msgspec.json.encode({"version": 1, **msgspec.to_builtins(status)})
    files.replace(partition / COMPACTED / STATUS_FILE, content + b"\n")


def lock_compaction(partition: Path) -> files.Flock | None:
    """Lock a partition for one compaction; None if another compaction has the lock. Raises OSError."""
    LedgerStore(partition).make_folder()
    path = partition / COMPACTED / LOCK_FILE
    with contextlib.suppress(FileExistsError):
        files.write_new(path, b"")
        files.inherit_owner(path)
    try:
        return files.Flock(path, exclusive=True)
    except BlockingIOError:
        return None


def is_running(partition: Path) -> bool:
    """Does a process compact the partition?"""
    try:
        # A shared lock, which fails while a compaction has the exclusive one; released at once.
        files.Flock(partition / COMPACTED / LOCK_FILE).release()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def topic_status(partitions: list[CompactionStatus]) -> CompactionStatus:
    """The status of a topic, from those of its ``partitions``.

    Status, error and times are those of a partition that runs, else of one that failed, else of one that
    succeeded. The numbers are sums over all partitions.
    """
    if len(partitions) == 1:
        return partitions[0]
    order = (RUNNING, ERROR, SUCCESS, NOT_RUN)
    shown = min(partitions, key=lambda partition: order.index(partition.status), default=CompactionStatus())
    sums = {name: sum(getattr(partition, name) for partition in partitions) for name in _SUMMED}
    return replace(shown, **sums)


# One compaction of one partition: its lock, its claim if the log is open, and its status.


class Attempt:
    """A compaction in progress: the status file says RUNNING until ``finish``.

    ``claim``: the claim on the log if it is open in this process. ``finish`` releases it, and the lock on the
    file ``running``.
    """

    def __init__(self, log: CompactableLog, now_ms: int, claim: Claim | None = None) -> None:
        """Lock the partition and write the status. Raises CompactionInProgressError, OSError; ``claim`` is
        released then."""
        self.log = log
        with contextlib.ExitStack() as stack:
            if claim is not None:
                stack.callback(claim.done)
            lock = lock_compaction(log.directory)
            if lock is None:
                raise already_in_progress(log.topic_partition)
            stack.callback(lock.release)
            self._before = read_status(log.directory, running=False)
            self.status = self._before.begun(now_ms)
            write_status(log.directory, self.status)
            self._release = stack.pop_all()  # of the lock and the claim: by ``withdraw`` or ``finish``

    def withdraw(self) -> None:
        """End the attempt before any work was done: the status is again the one before. Raises OSError."""
        with self._release:
            write_status(self.log.directory, self._before)

    def finish(self, now_ms: int, outcome: CompactionResult | str) -> None:
        """Write the status that ``outcome`` leads to (a result, or the reason of a failure), then release the
        lock and the claim.

        If the status cannot be written, a warning is logged, and the next reader sees an interrupted
        compaction. If the topic was deleted meanwhile, nothing is written: a new topic of the same name may
        have a status of its own.
        """
        status = self.status.ended(now_ms, outcome)
        try:
            if read_status(self.log.directory, running=True) == self.status:
                write_status(self.log.directory, status)
        except OSError as error:
            _logger.warning(
                "The status of the compaction of %s was not written: %s; it will show as interrupted",
                self.log.topic_partition,
                error.strerror or error,
            )
        finally:
            self.status = status
            self._release.close()


def already_in_progress(topic_partition: TopicPartition) -> CompactionInProgressError:
    """The error for a compaction that is requested while another one runs, with Pulsar's message."""
    return CompactionInProgressError("Compaction already in progress", path=str(topic_partition))


# Appends, reads, cleanings and retention do not stop a compaction of an open log. It fails when the log is
# truncated or deleted.


def durable_log(log: PartitionLog) -> ReadOnlyLog:
    """Flush an open log, and return it as a read-only log that ends at its recovery point.

    A ledger must not have records that a crash could lose. Raises StorageError.
    """
    log.flush()
    # ``log.view`` is the immutable state of the log at one moment: segments and offsets.
    view, durable_end = log.view, log.recovery_point
    view = view._replace(
        high_watermark=min(view.high_watermark, durable_end),
        last_stable_offset=min(view.last_stable_offset, durable_end),
    )
    return ReadOnlyLog(log.topic_partition, log.directory, view)


def compact_log(
    compactor: TwoPhaseCompactor,
    log: CompactableLog,
    settings: Config,
    commit_guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> CompactionResult:
    """Compact ``log`` with its topic's ``settings``. See ``TwoPhaseCompactor.compact`` for ``commit_guard``
    and the errors."""
    return compactor.compact(
        log,
        order=str(settings["siltstone.compaction.order"]),
        retain_null_key=settings.flag("topicCompactionRetainNullKey"),
        commit_guard=commit_guard,
    )


# The backlog of Pulsar's ``__compaction`` cursor: the bytes that the next compaction would read.


def backlog_bytes(view: LogView, horizon: int | None) -> int:
    """Bytes from the batch at ``horizon`` (the first offset that no compaction has read yet; None: never
    compacted) up to the high watermark, or to the last stable offset if that is lower: no compaction reads
    beyond.

    Raises CorruptRecordError, OSError.
    """
    start = max(view.log_start_offset, horizon or 0)
    end = min(view.high_watermark, view.last_stable_offset)
    return max(_position(view, end) - _position(view, start), 0) if start < end else 0


def _position(view: LogView, offset: int) -> int:
    """Bytes of the log before the batch that holds ``offset``: all earlier segments, and the batch's position
    in its own segment."""
    sizes = [view.size_of(index) for index in range(len(view.segments))]
    base_offsets = [segment.base_offset for segment in view.segments]
    index = max(bisect.bisect_right(base_offsets, offset) - 1, 0)
    batch = view.segments[index].find_batch(offset, sizes[index])
    return sum(sizes[:index]) + (sizes[index] if batch is None else batch.position)


# The threshold of a topic: its own setting, else the broker's, else its namespace's policy, else the default.
#
# In Pulsar a namespace's policy overrides the broker's setting; for that, leave the broker's unset.

THRESHOLD_KEY = "compactionThreshold"
TOPIC, BROKER, NAMESPACE, DEFAULT = "topic", "broker", "namespace", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Bytes of backlog (``size``) above which a topic is compacted, 0: only when it is triggered. ``source``:
    TOPIC, BROKER, NAMESPACE or DEFAULT, where the threshold was set."""

    size: int
    source: str

    def is_exceeded_by(self, backlog: int) -> bool:
        """Does a ``backlog`` of this size, in bytes, start a compaction?"""
        return 0 < self.size < backlog


def compaction_threshold(
    topic: str, settings: Config, namespaces: Mapping[str, Mapping[str, str]]
) -> Threshold:
    """The threshold of ``topic``.

    ``settings``: the topic's own settings over the broker's. ``namespaces``: the policies of each
    ``tenant/namespace``. A threshold that was set to 0 overrides those of lower precedence, too. Raises
    UsageError for an invalid one of a namespace.
    """
    setting = settings.setting(THRESHOLD_KEY)
    assert isinstance(setting.value, int)
    if setting.config_source is ConfigSource.DEFAULT_CONFIG:
        policy = namespace_threshold(namespace_of(topic), namespaces)
        if policy is not None:
            return Threshold(size=policy, source=NAMESPACE)
        return Threshold(size=setting.value, source=DEFAULT)
    of_topic = setting.config_source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    return Threshold(size=setting.value, source=TOPIC if of_topic else BROKER)


def namespace_threshold(namespace: str, namespaces: Mapping[str, Mapping[str, str]]) -> int | None:
    """The threshold in the policy of ``namespace``, in bytes; None if it has none. Raises UsageError for an
    invalid one: the registry's file may have been changed by hand."""
    text = namespaces.get(namespace, {}).get(THRESHOLD_KEY)
    if text is None:
        return None
    policy = parse_topic_config({THRESHOLD_KEY: text}, f"namespace {namespace}")[THRESHOLD_KEY]
    assert isinstance(policy.value, int)
    return policy.value


# The metrics ``pulsar_compaction_*`` of every log that was ever compacted, from its status.
#
# All of them are gauges, as in Pulsar. Labels: ``namespace`` and ``topic`` as Pulsar writes them, and
# ``partition``. Unlike in Pulsar, a restart does not reset the numbers.

_HELP = {
    "pulsar_compaction_removed_event_count": (
        "Records that compactions discarded or replaced: superseded, deleted, without a key, aborted."
    ),
    "pulsar_compaction_succeed_count": "Compactions that succeeded, also those without new records.",
    "pulsar_compaction_failed_count": "Compactions that failed or were interrupted.",
    "pulsar_compaction_duration_time_in_mills": "Milliseconds of the last successful compaction.",
    "pulsar_compaction_read_throughput": (
        "Bytes per second that the last successful compaction read of the log."
    ),
    "pulsar_compaction_write_throughput": "Bytes per second that the last successful compaction wrote.",
    "pulsar_compaction_compacted_entries_count": "Records of the compacted ledger.",
    "pulsar_compaction_compacted_entries_size": "Bytes of the compacted ledger's segments.",
}


def _gauge_values(status: CompactionStatus) -> dict[str, float]:
    seconds = max(status.seconds, 1e-3)  # a divisor, so never 0
    return {
        "pulsar_compaction_removed_event_count": status.removed,
        "pulsar_compaction_succeed_count": status.succeeded,
        "pulsar_compaction_failed_count": status.failed,
        "pulsar_compaction_duration_time_in_mills": 1000 * status.seconds,
        "pulsar_compaction_read_throughput": status.read_bytes / seconds,
        "pulsar_compaction_write_throughput": status.written_bytes / seconds,
        "pulsar_compaction_compacted_entries_count": status.entries,
        "pulsar_compaction_compacted_entries_size": status.size,
    }


CHECK = "compaction-check"
"""The name of the periodic task."""
THREADS = 2
"""Logs that are compacted at the same time: other logs need not wait for one large log."""
_MAX_WAIT_MS, _MAX_DOUBLINGS = 3_600_000, 20
"""Bounds of the time that a log waits after failures."""
_logger = logging.getLogger("siltstone.compaction")


class _Backoff(NamedTuple):
    """``failures`` of a log in a row; the check leaves the log out before ``until_ms``."""

    failures: int = 0
    until_ms: int = 0


class Compactions(LogService[CompactionEngine]):
    """Compacts the logs of ``manager``; ``start_engine`` starts the engine, ``stop_engine`` closes it.

    After ``start`` the logs are checked periodically. ``trigger`` and ``check`` work without ``start``.

    Guarded by ``_condition``: ``_attempts``, the compactions that run or wait for a thread; ``_backoffs`` of
    logs whose last compaction failed; ``_is_checking``, a check is in progress.
    """

    def __init__(
        self,
        manager: LogManager,
        start_engine: Callable[[], CompactionEngine],
        *,
        stop_engine: Callable[[CompactionEngine], object] | None = None,
    ) -> None:
        super().__init__(manager, manager.compaction_states, start_engine, stop_engine)
        self._attempts: dict[TopicPartition, Attempt] = {}
        self._backoffs: dict[TopicPartition, _Backoff] = {}
        self._is_checking = False
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="siltstone-compaction")

    # Start and close

    def start(self) -> None:
        """Check the logs periodically, one interval from now for the first time. May be called twice."""
        if self._is_started:
            return
        self._is_started = True
        first_ms = self._manager.clock.now_ms() + self._interval_ms()
        self._manager.scheduler.schedule(CHECK, self._check_soon, due_ms=first_ms, period=self._interval_ms)

    def _interval_ms(self) -> int:
        return 1000 * self._manager.config.integer("brokerServiceCompactionMonitorIntervalInSeconds")

    def _end_work(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._condition:
            attempts = list(self._attempts.values())
            self._is_checking = False  # the pool may have cancelled the check before it began
            self._condition.notify_all()
        for attempt in attempts:  # the pool has cancelled them before they began
            self._withdraw(attempt)

    # Requests

    def trigger(self, topic: str) -> list[TopicPartition]:
        """Begin to compact the partitions of ``topic`` (its name in the log directories, or Pulsar's), and
        return them.

        If one of them cannot begin, none does. Raises CompactionInProgressError if one of them is being
        compacted or is paused, EngineError if the service is closed, UnknownTopicError, UsageError,
        StorageError, OSError.
        """
        partitions = find_partitions(topic, self._manager)
        with self._condition, contextlib.ExitStack() as undo:
            logs = [self._manager.get(topic_partition) for topic_partition in partitions]
            claimed: list[tuple[PartitionLog, Claim, Attempt]] = []
            for log in logs:
                claim, attempt = self._claimed_attempt(log)
                undo.callback(attempt.withdraw)
                claimed.append((log, claim, attempt))
            undo.pop_all()
            for log, claim, attempt in claimed:
                self._submit(log, claim, attempt)
        return partitions

    def status(self, topic: str) -> CompactionStatus:
        """The status of a topic's compactions, by this process or an earlier one.

        Raises UnknownTopicError, UsageError, StorageError, OSError.
        """
        partitions = find_partitions(topic, self._manager)
        return topic_status(
            [read_status(self._manager.get(topic_partition).directory) for topic_partition in partitions]
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no compaction runs or is about to; False after ``timeout`` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._attempts and not self._is_checking, timeout)

    def samples(self) -> list[Sample]:
        """The gauges ``pulsar_compaction_*`` of every log that was ever compacted, except those whose status
        cannot be read now."""
        samples: list[Sample] = []
        for log in self._manager.sorted_logs():
            try:
                status = read_status(log.directory) if files.exists(log.directory / COMPACTED) else None
            except OSError:
                continue
            if status is not None and status.status != NOT_RUN:
                samples += samples_of(
                    _gauge_values(status),
                    _HELP,
                    namespace=namespace_of(log.topic_partition.topic),
                    topic=persistent_name(log.topic_partition.topic),
                    partition=str(log.topic_partition.partition),
                )
        return samples

    # The check

    def _check_soon(self) -> None:
        """Check in a thread of the pool, so that the scheduler does not wait."""
        with self._condition:
            if self._is_closed or self._is_checking:
                return
            self._is_checking = True
            self._pool.submit(self._check_and_log_errors)

    def _check_and_log_errors(self) -> None:
        try:
            self.check()
        except Exception:
            _logger.exception("The check for logs to compact failed; it is repeated after the interval")
        finally:
            with self._condition:
                self._is_checking = False
                self._condition.notify_all()

    def check(self) -> list[TopicPartition]:
        """Begin to compact all logs whose backlog exceeds their threshold, and return their partitions."""
        now_ms, thresholds = self._manager.clock.now_ms(), dict[str, Threshold]()
        with self._condition:
            left_out = {
                *self._attempts,
                *(log for log, backoff in self._backoffs.items() if now_ms < backoff.until_ms),
            }
        begun = []
        for topic_partition in self._manager:
            if topic_partition.topic == CLUSTER_METADATA or topic_partition in left_out:
                continue
            try:
                if topic_partition.topic not in thresholds:
                    topics = self._manager.topics
                    settings = topics.settings(topic_partition.topic)
                    thresholds[topic_partition.topic] = compaction_threshold(
                        topic_partition.topic, settings, topics.namespaces
                    )
                log = self._manager.get(topic_partition)
                if log.offline is None and _exceeds_threshold(log, thresholds[topic_partition.topic]):
                    with self._condition:
                        self._submit(log, *self._claimed_attempt(log))
                    begun.append(topic_partition)
            except CompactionInProgressError:
                continue
            except (SiltstoneError, OSError) as error:
                _logger.warning("Log %s was not checked for compaction: %s", topic_partition, error)
        return begun

    # A compaction

    def _claimed_attempt(self, log: PartitionLog) -> tuple[Claim, Attempt]:
        """Claim a log, and begin an attempt to compact it. The caller holds ``_condition``.

        Raises CompactionInProgressError, EngineError, OSError; the log is not claimed then.
        """
        if self._is_closed:
            raise EngineError(
                "the service that compacts logs is closed",
                path=str(log.topic_partition),
                advice="open the logs again",
            )
        claim = self._claim(log.topic_partition)
        if claim is None:
            if self._states.state(log.topic_partition).phase is Phase.PAUSED:
                raise CompactionInProgressError(
                    "compaction is paused while the log is truncated or deleted",
                    path=str(log.topic_partition),
                    advice="try again when that is done",
                )
            raise already_in_progress(log.topic_partition)
        return claim, Attempt(log, self._manager.clock.now_ms(), claim)

    def _submit(self, log: PartitionLog, claim: Claim, attempt: Attempt) -> None:
        """Compact a log in a thread of the pool. The caller holds ``_condition``, so that the attempt is in
        ``_attempts`` before its thread can end it."""
        self._attempts[log.topic_partition] = attempt
        self._pool.submit(self._compact, log, claim, attempt)

    def _compact(self, log: PartitionLog, claim: Claim, attempt: Attempt) -> None:
        """Compact a log, in a thread of the pool. The compaction fails if the log is truncated or deleted
        meanwhile."""
        outcome: str | CompactionResult = INTERRUPTED
        try:
            _logger.info("Compaction of %s begins", log.topic_partition)
            # A call through a proxy notices a lost engine, and the next compaction starts another one.
            compactor = TwoPhaseCompactor(EngineProxy(self._shared_engine).proxied, clock=self._manager.clock)
            claim.check()
            settings = self._manager.topics.settings(log.topic_partition.topic)
            outcome = compact_log(compactor, durable_log(log), settings, claim.uninterrupted)
            _logger.info("%s", summary_of(log.topic_partition, outcome))
        except (SiltstoneError, OSError) as error:
            outcome = str(error)
            _logger.warning("Compaction of %s failed: %s", log.topic_partition, error)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            _logger.exception("Compaction of %s failed", log.topic_partition)
        finally:
            self._finish(attempt, outcome)
        self._manager.upkeep.take_failed_offline()

    def _withdraw(self, attempt: Attempt) -> None:
        """End an attempt whose thread never began. If its status cannot be written, it will show as
        interrupted."""
        try:
            attempt.withdraw()
        except OSError as error:
            _logger.warning(
                "The status of the compaction of %s was not written: %s", attempt.log.topic_partition, error
            )
        finally:
            with self._condition:
                self._attempts.pop(attempt.log.topic_partition, None)
                self._condition.notify_all()

    def _finish(self, attempt: Attempt, outcome: str | CompactionResult) -> None:
        """End an attempt; ``outcome`` is the result, or the reason of a failure."""
        topic_partition, now_ms = attempt.log.topic_partition, self._manager.clock.now_ms()
        try:
            attempt.finish(now_ms, outcome)
        finally:
            with self._condition:
                failures = self._backoffs.pop(topic_partition, _Backoff()).failures + 1
                if isinstance(outcome, str):  # the wait doubles with each failure
                    wait_ms = min(self._interval_ms() << min(failures, _MAX_DOUBLINGS), _MAX_WAIT_MS)
                    self._backoffs[topic_partition] = _Backoff(failures, now_ms + wait_ms)
                self._attempts.pop(topic_partition, None)
                self._condition.notify_all()


def _exceeds_threshold(log: PartitionLog, threshold: Threshold) -> bool:
    """Does the backlog exceed the threshold? True for a damaged ledger, too: the compaction then fails, and
    its status tells the reason."""
    if not threshold.size:
        return False
    try:
        cursor = LedgerStore(log.directory).cursor()
    except LedgerError:
        return True
    return threshold.is_exceeded_by(backlog_bytes(log.view, None if cursor is None else cursor.horizon))


def summary_of(topic_partition: TopicPartition, result: CompactionResult) -> str:
    """One line about a compaction, for the program's log."""
    if not result.changed:
        return f"Compaction of {topic_partition}: nothing new below offset {result.horizon}"
    return (
        f"Compaction of {topic_partition} is done: {result.read_records} records in "
        f"{result.seconds:,.2f} seconds, up to offset {result.horizon - 1}; ledger {result.ledger_id} has "
        f"{result.entries} entries, {result.size} bytes; {counts_text(result)}"
    )


def counts_text(result: CompactionResult) -> str:
    """How many records were discarded, by reason, and how many entries of the ledger were replaced."""
    removed = result.removed
    counts = (
        (removed.superseded, "superseded"),
        (removed.tombstones, "deleted"),
        (removed.keyless, "without a key"),
        (removed.aborted, "aborted"),
        (result.replaced_entries, "earlier entries replaced"),
    )
    return ", ".join(f"{count:,} {reason}" for count, reason in counts if count) or "nothing removed"
