"""Runs ``clean --fleet`` and ``undo --fleet``: the log directories of many brokers in one run.

::

    patterns ─► brokers ─┬─► clean: its locks, settings, plan, jobs, swaps, originals, audit ─► result ─► row
                         ├─► clean …                                     some brokers at one time
                         └─► clean …

Each broker is cleaned as by a ``clean`` of its own (``commands.clean``): its locks, its settings and the time
of its plan (``now_ms``) are its own. Its plans exist only while it is cleaned, so memory is bounded by
``brokers_at_once`` and not by the fleet. All brokers share the run's name and, on Spark, one session, whose
jobs run side by side. What is wrong with one broker is in its result.

There is no journal of a fleet. What a run has finished is in the brokers' own directories: a log's cleaner
checkpoint, or the broker's complete copy. The next run finds nothing to do there
(``docs/decisions/0017-a-fleet-has-no-journal.md``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from siltstone.base import files, interruption
from siltstone.base.clock import Clock, SystemClock, resolve_now_ms
from siltstone.base.config import parse_assignments
from siltstone.base.errors import NotALogDirectoryError, SiltstoneError, UsageError
from siltstone.commands import clean as cleaning
from siltstone.commands.clean import CleanOutcome, CleanRequest, EngineFactory
from siltstone.commands.engines import SPARK_BYTES
from siltstone.commands.policies import gather_policies
from siltstone.compaction.engine import Engine, InProcessEngine, Progress
from siltstone.compaction.report import (
    CLEANED,
    FAILED,
    NOTHING_TO_DO,
    SKIPPED,
    ErrorDetails,
    LogFailure,
    LogResult,
    Summable,
    failure_of,
    failures,
)
from siltstone.log.directory import log_directories_of
from siltstone.log.names import parse_partition

if TYPE_CHECKING:
    from siltstone.spark.clean import SharedEngines

BROKER_PLACEHOLDER = "{broker}"
"""Stands for the broker's name in the paths of ``--out``, ``--keep-originals`` and ``--broker-config``."""
BROKERS_AT_ONCE = 8
"""Brokers that are cleaned at one time, by default. One broker's small logs are one or a few jobs, and while
it swaps them, the jobs of the others keep the workers busy."""
STOPPED_BEFORE_BROKER = "stopped by --stop-after before its turn; run again to go on"
COPIED_BEFORE = "its copy is there already; remove it to have the broker copied again"
NO_TOPIC = "it has no partition of the chosen topics"
_PATHS_IN_ERROR = 4
"""How many paths an error names."""
_WILDCARDS = re.compile(r"[*?[]")
_NOT_BROKERS = ("lost+found",)
"""Directories that a pattern may match although they are no broker's: a file system has them at its root."""
_logger = logging.getLogger("siltstone.cleaner")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of a run over many brokers.

    Parameters
    ----------
    fleet
        A pattern, in quotes: 'ROOT/*/'. Each directory that it matches is a broker: its log directory, or
        the directory that has its log.dirs in it. Repeat it for more.
    brokers_at_once
        With --fleet: how many brokers are cleaned at one time; default: 8, in this process one for each core.
    """

    fleet: Sequence[str] = ()
    brokers_at_once: int | None = None


# The brokers of a fleet, by patterns.


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBroker:
    """A broker of a fleet.

    ``name``: the parts of its path that the pattern's wildcards stand for. ``directories``: its log
    directories, by (device, inode). ``topics``: those of the request that it has. ``error``: why its
    directories cannot be read; None if they can.
    """

    name: str
    path: Path
    directories: Mapping[tuple[int, int], Path] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    error: OSError | None = None


def find_brokers(patterns: Sequence[str], topics: Sequence[str] = ()) -> list[FleetBroker]:
    """The brokers that the patterns match. Raises UsageError, NotALogDirectoryError."""
    brokers = [_broker(name, path, topics) for name, path in _matches(patterns)]
    others = [str(broker.path) for broker in brokers if not broker.directories and broker.error is None]
    if others:
        more = f" and {len(others) - _PATHS_IN_ERROR} more" if len(others) > _PATHS_IN_ERROR else ""
        raise NotALogDirectoryError(
            "it belongs to no broker: it is not a Kafka log directory, and has none directly in it",
            path=f"{', '.join(others[:_PATHS_IN_ERROR])}{more}",
            advice="let the pattern match only the directories of brokers",
        )
    holders: dict[tuple[int, int], FleetBroker] = {}
    for broker in brokers:
        for device_and_inode, path in broker.directories.items():
            other = holders.setdefault(device_and_inode, broker)
            if other is not broker:
                reason = f"--fleet: the log directory is matched twice, as {other.name} and {broker.name}"
                raise UsageError(reason, path=path, advice="let the patterns match each broker once")
    missing = set(topics).difference(*(broker.topics for broker in brokers))
    if missing and not any(broker.error for broker in brokers):  # one that cannot be read may have the topic
        reason = f"--topic {min(missing)}: none of the {len(brokers)} brokers has a partition of it"
        raise UsageError(reason, advice="siltstone topics --list --dir DIR shows the topics of a broker")
    return brokers


def _broker(name: str, path: Path, topics: Sequence[str]) -> FleetBroker:
    """The broker at ``path``, without directories if it is none."""
    try:
        directories = {
            files.stat(directory).device_and_inode: directory for directory in log_directories_of(path)
        }
        names = (entry.name for directory in directories.values() for entry in files.entries(directory))
        partitions = filter(None, map(parse_partition, names)) if topics else ()
        here = {topic_partition.topic for topic_partition in partitions}
    except OSError as error:
        return FleetBroker(name=name, path=path, error=error)
    chosen = tuple(topic for topic in topics if topic in here)
    return FleetBroker(name=name, path=path, directories=directories, topics=chosen)


def _matches(patterns: Sequence[str]) -> list[tuple[str, Path]]:
    """The directories that the patterns match, with their names. Raises UsageError for a pattern without any,
    for a link, and for two directories of one name."""
    paths: dict[str, Path] = {}
    for pattern in patterns:
        if "**" in pattern:
            raise UsageError(
                f"--fleet {pattern}: '**' is not allowed", advice="pass a pattern for each depth"
            )
        matched = [path for path in map(Path, files.matching(pattern)) if files.is_directory(path)]
        matched = [path for path in matched if path.name not in _NOT_BROKERS]
        if not matched:
            advice = "pass a pattern in quotes, such as 'ROOT/*/'"
            raise UsageError(f"--fleet {pattern}: there is no such directory", advice=advice)
        for path in matched:
            if files.is_link(path):
                advice = f"pass the directory that it points to, {path.resolve()}"
                raise UsageError("--fleet: it is a symbolic link", path=path, advice=advice)
            name = _name(pattern, path)
            other = paths.setdefault(name, path)
            if other is not path:
                is_same = other.absolute() == path.absolute()
                reason = f"it is matched twice, also as {other}" if is_same else f"{other} is {name}, too"
                advice = "let the patterns match each broker once, with wildcards where their paths differ"
                raise UsageError(f"--fleet: {reason}", path=path, advice=advice)
    return list(paths.items())


def _name(pattern: str, path: Path) -> str:
    """A broker's name: the parts of its path that match parts of the pattern with wildcards; of a pattern
    without any the last part. (``[*]`` is no wildcard: it stands for that character.)"""
    pairs = zip(PurePath(pattern).parts, path.parts, strict=True)
    parts = [part for in_pattern, part in pairs if _WILDCARDS.search(re.sub(r"\[[^!]\]", "", in_pattern))]
    return "/".join(parts) or path.name


def _log_bytes(brokers: Sequence[FleetBroker], topics: Sequence[str], enough: int = SPARK_BYTES) -> int:
    """The bytes of the segments of the brokers' logs, whatever their policies; counts no further than
    ``enough``. What cannot be read has none."""
    size = 0
    for directory in (path for broker in brokers for path in broker.directories.values()):
        with contextlib.suppress(OSError):  # the broker's result will say why
            for entry in files.entries(directory):
                topic_partition = parse_partition(entry.name) if entry.is_directory else None
                if topic_partition is None or (topics and topic_partition.topic not in topics):
                    continue
                segments = files.list_files(directory / entry.name).items()
                size += sum(status.size for name, status in segments if name.endswith(".log"))
                if size >= enough:
                    return size
    return size


# The results.


@dataclass(slots=True, kw_only=True)
class Totals(Summable):
    """Sums over logs: ``logs``, how many were ``cleaned`` or ``failed``, bytes of the cleaned ones before and
    after, and records ``removed``."""

    logs: int = 0
    cleaned: int = 0
    failed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed: int = 0

    @classmethod
    def of(cls, results: Sequence[LogResult]) -> Totals:
        """The sums over some logs."""
        cleaned = [result for result in results if result.status == CLEANED]
        return cls(
            logs=len(results),
            cleaned=len(cleaned),
            failed=len(failures(list(results))),
            bytes_before=sum(result.bytes_before for result in cleaned),
            bytes_after=sum(result.bytes_after for result in cleaned),
            removed=sum(result.discarded.total() for result in cleaned),
        )


@dataclass(slots=True, kw_only=True)
class BrokerResult:
    """The result of one broker.

    ``status`` and ``reason``: failed if the broker or one of its logs failed, cleaned if a log was cleaned,
    else those of most of its logs. ``failure``: the error of the whole broker, None if there is none.
    ``failed``: its logs that failed, without their settings. ``now_ms``: the time of its plan, None without a
    plan. ``kept``, ``engine``: as in ``CleanOutcome``. ``has_changed``: was anything swapped in?
    """

    broker: str
    directories: list[str]
    status: str = NOTHING_TO_DO
    reason: str = ""
    failure: ErrorDetails | None = None
    now_ms: int | None = None
    seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
    failed: list[LogResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: Path | None = None
    engine: str | None = None
    has_changed: bool = False

    def fill(self, outcome: CleanOutcome) -> None:
        """Set the fields from the outcome of the broker's cleaning."""
        results = outcome.results
        self.totals, self.notes = Totals.of(results), outcome.notes
        self.failed = [replace(result, settings={}) for result in failures(results)]
        self.kept, self.engine = outcome.kept, outcome.engine
        self.has_changed = any(log.has_changed for log in results)
        if outcome.report_error is not None:
            self.status, self.reason = FAILED, f"the audit was not written: {outcome.report_error}"
        elif self.failed:
            self.status = FAILED
        elif self.totals.cleaned:
            self.status = CLEANED
        elif results:
            # Logs of topics that are not compacted count only if there are no others.
            others = [log for log in results if log.status != SKIPPED] or results
            ((self.status, self.reason), _), *_ = Counter(
                (log.status, log.reason) for log in others
            ).most_common(1)

    def fail(self, failure: LogFailure) -> None:
        """Set the failure of the whole broker."""
        self.status, self.reason, self.failure = FAILED, failure.reason, failure.details


OnBroker = Callable[[BrokerResult, CleanOutcome], None]
"""Called with a broker's result, and with the outcome of its cleaning."""
OnProgress = Callable[[int, int], None]
"""Called with the brokers and the logs that are done so far."""


class Fleet:
    """A run over the brokers that patterns match. Each instance runs once.

    ``run``: its name; ``results``: of the brokers whose cleaning has ended so far, in the order in which they
    ended. ``engine``: makes the engine of each broker, in place of the request's choice.
    """

    def __init__(
        self,
        request: CleanRequest,
        options: FleetOptions,
        *,
        progress: OnProgress | None = None,
        clock: Clock | None = None,
        engine: EngineFactory | None = None,
    ) -> None:
        """Raises UsageError, NotALogDirectoryError."""
        self._request, self._clock = request, clock or SystemClock()
        cleaning.refuse_contradictions(request)
        resolve_now_ms(request.now_ms, self._clock)
        _refuse_settings(request)
        self.brokers = find_brokers(options.fleet, request.topics)
        self._refuse_outputs()
        uses_spark = request.uses_spark(lambda: _log_bytes(self.brokers, request.topics))
        default = BROKERS_AT_ONCE if uses_spark else min(BROKERS_AT_ONCE, os.cpu_count() or 1)
        at_once = default if options.brokers_at_once is None else options.brokers_at_once
        if at_once < 1:
            raise UsageError(f"--brokers-at-once {at_once} is not over 0", advice="pass a number of brokers")
        self._at_once = min(at_once, len(self.brokers))
        self._spark = _spark_engines(request, self._at_once) if uses_spark and engine is None else None
        self._engine = engine or self._own_engine
        self._progress = progress or (lambda brokers, logs: None)
        self._logs_done, self._lock = 0, threading.Lock()
        self._deadline = None if request.stop_after is None else time.monotonic() + request.stop_after * 60
        self._brokers_on = Counter(  # by device: how many brokers have a log directory on it
            device for broker in self.brokers for device in {device for device, _ in broker.directories}
        )
        self.run = cleaning.run_name(self._clock.now_ms())
        self.results: list[BrokerResult] = []

    @property
    def totals(self) -> Totals:
        """The sums over the results."""
        totals = Totals()
        for result in self.results:
            totals.add(result.totals)
        return totals

    @property
    def engine(self) -> str | None:
        """The engine that cleaned; None if there was nothing to clean."""
        return next((result.engine for result in self.results if result.engine is not None), None)

    def _refuse_outputs(self) -> None:
        """Raises UsageError for outputs that exist already, or inside a broker's log directory."""
        directories = {key: path for broker in self.brokers for key, path in broker.directories.items()}
        cleaning.refuse_outputs_inside(self._request, directories)
        self._refuse_nested_copies()
        report = self._request.report
        if report is not None and files.exists(report):
            raise UsageError("--report: the path already exists", path=report, advice="pass a new path")
        for flag, path in (("--out", self._request.out), ("--report", report)):
            if path is not None and BROKER_PLACEHOLDER not in str(path) and not files.is_object(path):
                parent = path.absolute().parent
                if not files.is_directory(parent):
                    reason = f"{flag}: {parent} is not a directory"
                    raise UsageError(reason, path=path, advice="create it, or pass another path")

    def _refuse_nested_copies(self) -> None:
        """Raises UsageError if a broker's copy would be inside another's: of brokers ``a`` and ``a/b``."""
        copies = {_own_path(self._request.out, broker): broker for broker in self.brokers}
        for path, broker in copies.items():
            for above in () if path is None else path.parents:
                if above in copies:
                    reason = f"--out: the copy of {broker.name} would be inside that of {copies[above].name}"
                    advice = "clean them in two runs with another --out each, or put {broker}/NAME in --out"
                    raise UsageError(reason, path=path, advice=advice)

    def clean(self, on_broker: OnBroker = lambda result, outcome: None) -> list[BrokerResult]:
        """Clean the brokers; their results. ``on_broker`` is called with each, in this thread. Raises
        SiltstoneError if there is no engine."""
        pool = ThreadPoolExecutor(self._at_once, "broker")
        running: set[Future[tuple[BrokerResult, CleanOutcome]]] = set()
        try:
            for broker in self.brokers:
                if len(running) == self._at_once:
                    running = self._collect(running, on_broker)
                if self._is_time_up():
                    self._add(
                        self._new_result(broker, STOPPED_BEFORE_BROKER), self._empty_outcome(), on_broker
                    )
                else:
                    running.add(pool.submit(self._clean_broker, broker))
            while running:
                running = self._collect(running, on_broker)
        finally:
            # After an interrupt ``critical`` first waits until Spark's processes have ended. The brokers'
            # threads begin no other log and remove what they staged, which is waited for here.
            with interruption.current().critical():
                pool.shutdown(wait=True, cancel_futures=True)
        return self.results

    def _collect(
        self, running: set[Future[tuple[BrokerResult, CleanOutcome]]], on_broker: OnBroker
    ) -> set[Future[tuple[BrokerResult, CleanOutcome]]]:
        """Wait until a broker has ended and add its result; returns the futures of those that still run.
        Raises the error of Spark's start, which concerns all brokers."""
        ended, others = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            result, outcome = future.result()
            if self._spark is not None and self._spark.start_error is not None:
                raise self._spark.start_error
            self._add(result, outcome, on_broker)
        return others

    def _add(self, result: BrokerResult, outcome: CleanOutcome, on_broker: OnBroker) -> None:
        self.results.append(result)
        self._progress(len(self.results), self._logs_done)
        on_broker(result, outcome)

    def _is_time_up(self) -> bool:
        """Has the run used its time (``--stop-after``) and changed something? A run that stops without a
        change would stop at the same place every time."""
        is_past_deadline = self._deadline is not None and time.monotonic() >= self._deadline
        return is_past_deadline and any(result.has_changed for result in self.results)

    def _empty_outcome(self) -> CleanOutcome:
        return CleanOutcome(run=self.run, results=[])

    def _new_result(self, broker: FleetBroker, reason: str, status: str = SKIPPED) -> BrokerResult:
        """A result of a broker before its cleaning, or without one."""
        directories = [str(path) for path in broker.directories.values()]
        return BrokerResult(broker=broker.name, directories=directories, status=status, reason=reason)

    def _clean_broker(self, broker: FleetBroker) -> tuple[BrokerResult, CleanOutcome]:
        """Clean one broker, in a thread of its own. Raises nothing but an interrupt."""
        if self._request.topics and not broker.topics and broker.error is None:
            return self._new_result(broker, NO_TOPIC, NOTHING_TO_DO), self._empty_outcome()
        began, outcome = time.monotonic(), self._empty_outcome()
        result = self._new_result(broker, "", NOTHING_TO_DO)
        try:
            if broker.error is not None:
                raise broker.error
            request = self._request_of(broker)
            if request.out is not None and _has_copy(request.out):
                return self._new_result(broker, f"{request.out}: {COPIED_BEFORE}"), outcome
            result.now_ms = request.now_ms
            outcome = cleaning.clean(
                request, progress=self._count_logs, clock=self._clock, engine=self._engine, run=self.run
            )
            result.fill(outcome)
        except Exception as error:
            if not isinstance(error, (SiltstoneError, OSError)):
                _logger.exception("%s: the broker could not be cleaned", broker.name)
            result.fail(failure_of(error))
        result.seconds = time.monotonic() - began
        return result, outcome

    def _request_of(self, broker: FleetBroker) -> CleanRequest:
        """The request of one broker: a ``clean`` of its directories, with its part of the time and the space.
        Makes the folders that its outputs go into. Raises OSError."""
        request = self._request
        assert broker.topics or not request.topics  # no topics would mean all of them
        report = None if request.report is None else request.report / f"{broker.name}.json"
        if report is not None:
            self._make_folder(report.parent)
        originals, properties = _own_path(request.keep_originals, broker), request.broker_config
        if originals is not None and not request.dry_run:
            self._make_folder(originals)
        stop_after = None if self._deadline is None else max(self._deadline - time.monotonic(), 0) / 60
        return replace(
            request,
            directories=tuple(broker.directories.values()),
            topics=broker.topics,
            now_ms=resolve_now_ms(request.now_ms, self._clock),
            max_extra_bytes=self._space_of(broker),
            stop_after=stop_after,
            report=report,
            out=self._out_of(broker),
            keep_originals=originals,
            broker_config=None if properties is None else _with_name(properties, broker),
        )

    def _out_of(self, broker: FleetBroker) -> Path | None:
        """The path of the broker's copy, in a folder that is made for it. A dry run makes no folder: its path
        is a new name in the nearest folder above that exists, so that the free space is that of the same
        disk."""
        out = _own_path(self._request.out, broker)
        if out is None or files.is_object(out) or files.is_directory(out.parent):
            return out
        if self._request.dry_run:
            above = next(folder for folder in out.absolute().parents if files.is_directory(folder))
            return above / f"{out.name}.{self.run}"
        self._make_folder(out.parent)
        return out

    def _make_folder(self, path: Path) -> None:
        """Make a folder and those above it, one thread at a time, since brokers may share them. Raises
        OSError."""
        with self._lock:
            files.make_directory(path, parents=True)

    def _space_of(self, broker: FleetBroker) -> int | None:
        """``max_extra_bytes`` of one broker: brokers on one file system, which are cleaned at one time, share
        it. Raises OSError."""
        request = self._request
        sharers = max(self._brokers_on[device] for device, _ in broker.directories)
        sharers = min(sharers, self._at_once)
        if sharers == 1 or not request.in_place:
            return request.max_extra_bytes
        if request.max_extra_bytes is not None:
            return max(request.max_extra_bytes // sharers, 1)
        # By default a quarter of the free space, as for a single ``clean``.
        free = min(files.free_space(path).free_bytes for path in broker.directories.values())
        return max(free // 4 // sharers, 1)

    def _own_engine(self, request: CleanRequest, progress: Progress | None) -> Engine:
        """The engine of one broker. (It shows no bytes: a fleet's progress counts brokers and logs.) Raises
        EngineError."""
        return InProcessEngine() if self._spark is None else self._spark.engine()

    def _count_logs(self, log: str, stage: str, done: int, total: int) -> None:
        """Count a log that is done; called by the threads of all brokers."""
        if stage == "done":
            with self._lock:
                self._logs_done += 1
            self._progress(len(self.results), self._logs_done)


def _refuse_settings(request: CleanRequest) -> None:
    """Raises UsageError for settings of the command line that would be wrong for every broker."""
    if request.config and not request.topics:
        raise UsageError("--config needs --topic", advice="pass --topic for the topics of the settings")
    parse_assignments(request.config, "--config")
    if BROKER_PLACEHOLDER not in str(request.broker_config):  # else each broker has a file of its own
        gather_policies([], request)


def _with_name(path: Path, broker: FleetBroker) -> Path:
    """The path with the broker's name in place of ``{broker}``."""
    return Path(str(path).replace(BROKER_PLACEHOLDER, broker.name))


def _own_path(path: Path | None, broker: FleetBroker) -> Path | None:
    """A broker's own path for an output: below ``path``, unless that has ``{broker}`` in it."""
    if path is None or BROKER_PLACEHOLDER in str(path):
        return None if path is None else _with_name(path, broker)
    return path / broker.name


def _has_copy(out: Path) -> bool:
    """Is a broker's copy there? In a store an interrupted run leaves objects that are no copy yet: ``out``
    has one once it has a restore point, which ``newest_stored`` returns in place of ``out``."""
    return files.newest_stored(out) != out if files.is_object(out) else files.exists(out)


def _spark_engines(request: CleanRequest, at_once: int) -> SharedEngines:
    """The engines of ``at_once`` brokers at one time, on one session. Spark is not started yet."""
    from siltstone.spark.clean import SharedEngines
    from siltstone.spark.session import start_session

    spill = None if request.spill_dir is None else str(request.spill_dir)
    start = partial(start_session, request.master, spill_folder=spill, settings=request.spark_settings)
    return SharedEngines(start, is_alone=at_once == 1)


# Undo.


@dataclass(slots=True, kw_only=True)
class BrokerUndo:
    """The undo of one broker: its run's ``folder``, the ``restored`` files by partition directory, and why it
    failed, else None."""

    broker: str
    folder: Path
    restored: dict[str, list[str]] = field(default_factory=dict)
    failure: LogFailure | None = None


def undo_fleet(
    patterns: Sequence[str], topics: Sequence[str] = (), *, dry_run: bool = False
) -> Iterator[BrokerUndo]:
    """Undo the runs of brokers, whose folders (KEEP/BROKER/RUN) the patterns match, one after another; yields
    a result for each. Raises UsageError before anything is changed."""
    runs = _matches(patterns)
    topics_kept = {path: _topics_of_run(path) for _, path in runs}
    missing = set(topics).difference(*(of_run or () for of_run in topics_kept.values()))
    if missing and None not in topics_kept.values():
        reason = f"--topic {min(missing)}: none of the {len(runs)} runs has such a topic"
        raise UsageError(reason, advice="leave it out, or pass another topic")
    for name, path in runs:
        result, of_run = BrokerUndo(broker=name, folder=path), topics_kept[path]
        chosen = [topic for topic in topics if of_run is None or topic in of_run]
        try:
            if chosen or not topics:  # for a folder that cannot be read ``undo`` raises the error
                result.restored = cleaning.undo(path, chosen, dry_run=dry_run)
        except (SiltstoneError, OSError) as error:
            result.failure = failure_of(error)
        yield result


def _topics_of_run(folder: Path) -> set[str] | None:
    """The topics that a run kept, by the names of its folders; None if ``folder`` cannot be read."""
    with contextlib.suppress(OSError):
        return {
            partition.topic for entry in files.entries(folder) if (partition := parse_partition(entry.name))
        }
    return None
