"""Runs ``clean``, ``undo`` and ``recover``: wires engine, clock, files and cleaner together.

The steps of a cleaning::

    check the request ─► lock the directories ─► settings of each log ─► destination: copy, in place, dry run
        ─► clean ─► commit, or discard after an error ─► audit (--report), files for later runs

Spark is imported only if it is the engine, and there is something to clean.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from siltstone import __version__
from siltstone.base import files, interruption
from siltstone.base.clock import Clock, SystemClock, resolve_now_ms, time_text
from siltstone.base.config import LogConfig, parse_assignments
from siltstone.base.errors import CorruptFileError, SiltstoneError, UsageError
from siltstone.base.files.backups import BACKUPS, CHUNKS, WRITER
from siltstone.commands.directories import locked_directories, refuse_unclean
from siltstone.commands.engines import cleanable_bytes, start_java, without_secrets
from siltstone.commands.explain_page import counted
from siltstone.commands.policies import (
    CleaningOptions,
    Policies,
    as_if_compacted,
    gather_policies,
    high_watermark_is_end,
    log_states,
    recovery_configs,
    tiered_notes,
)
from siltstone.compaction.engine import Engine, InProcessEngine, Progress
from siltstone.compaction.history import History
from siltstone.compaction.inplace.cleaner import Cleaner, RunLimits
from siltstone.compaction.inplace.destination import CleanedCopy, Destination, DryRun, InPlace
from siltstone.compaction.inplace.originals import Originals, read_run, refuse_other_file_system, undo_logs
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.compaction.inplace.stored_copy import StoredCopy, stored_target
from siltstone.compaction.ledger.compactor import CompactionEngine, InProcessCompactionEngine
from siltstone.compaction.report import (
    CLEANED,
    CLEANINGS_FILE,
    FAILED,
    NOTHING_TO_DO,
    UNCLEANABLE,
    Cleaning,
    LogResult,
)
from siltstone.log.directory import (
    LogDirectory,
    PassedOver,
    open_directories,
    refuse_network_file_system,
    require_one_broker,
)
from siltstone.log.names import TopicPartition, parse_partition
from siltstone.log.partition import open_partition
from siltstone.log.recovery.directories import DirectoryRecovery, RecoveryOptions, recover_directories
from siltstone.runtime.served_directory import (
    UNCLEANABLE_FILE,
    Uncleanable,
    clear_uncleanable,
    mark_uncleanable,
    read_uncleanable,
)
from siltstone.runtime.topics import TOPICS_FILE

# Files of ``clean --in-place`` for later runs: the list of uncleanable logs, and the history of cleanings.
#
# The log cleaner of an open ``LogManager`` writes the same two files; ``clean --watch`` shows them. Here they
# are updated only in directories that already have files of Siltstone; a broker's directories get none. A log
# that is listed as uncleanable is cleaned nevertheless, since the operator has requested it, and is removed
# from the list if it was cleaned, or has nothing dirty. No decision of a run depends on these files, so a
# failure to write them is only logged.

_logger = logging.getLogger("siltstone.cleaner")


def note_uncleanable(states: Sequence[LogState], results: Sequence[LogResult]) -> None:
    """Add a note to the results of logs that are listed as uncleanable; one result a state, in order."""
    listed = {path: _uncleanable_logs(path) for path in {state.directory.path for state in states}}
    for state, result in zip(states, results, strict=True):
        uncleanable = listed[state.directory.path].get(state.topic_partition)
        if uncleanable is not None:
            since = time_text(uncleanable.since_ms)
            result.notes.append(f"listed as uncleanable since {since}: {uncleanable.reason}")


def record_outcome(
    request: CleanRequest,
    states: Sequence[LogState],
    results: Sequence[LogResult],
    began_ms: int,
    run: str = "",
) -> None:
    """Write the results of a cleaning in place to the directories' files; one result a state, in order.

    An interrupted run has results of its first logs only. ``run``: the run's name; originals are kept below
    KEEP/``run``.
    """
    if request.dry_run or not request.in_place:
        return
    history = History()
    own_files = (TOPICS_FILE, CLEANINGS_FILE, UNCLEANABLE_FILE)
    directories = {state.directory.path for state in states}
    with_own_files = {path for path in directories if any(files.exists(path / name) for name in own_files)}
    for state, result in zip(states[: len(results)], results, strict=True):
        directory = state.directory.path
        if directory not in with_own_files:
            continue
        is_done = result.status in (CLEANED, NOTHING_TO_DO)
        try:
            if result.status == UNCLEANABLE:
                mark_uncleanable(directory, state.topic_partition, result.reason, began_ms)
            elif is_done and state.topic_partition in _uncleanable_logs(directory):
                clear_uncleanable(directory, state.topic_partition)
                result.notes.append("removed from the list of uncleanable logs")
        except OSError as error:
            _logger.warning(
                "%s: the list of uncleanable logs cannot be written, and shows the log as before: %s",
                state.topic_partition,
                error,
            )
        # A log with kept originals has a line whatever became of it: ``erase`` finds them by the history.
        kept = _kept_originals(request, run, result)
        if kept or result.status in (CLEANED, UNCLEANABLE, FAILED) or result.is_partly_cleaned:
            history.append(directory, [Cleaning(began_ms=began_ms, result=result, kept_originals=kept)])


def _kept_originals(request: CleanRequest, run: str, result: LogResult) -> str | None:
    """The folder in which the run kept the log's originals, None if it kept none."""
    if request.keep_originals is None or not run:
        return None
    folder = request.keep_originals.absolute() / run / result.name
    return str(folder) if files.exists(folder) else None


def _uncleanable_logs(directory: Path) -> Mapping[TopicPartition, Uncleanable]:
    """The logs that are listed as uncleanable; none if the list cannot be read."""
    try:
        return read_uncleanable(directory)
    except (CorruptFileError, OSError) as error:
        _logger.warning("%s: the list of uncleanable logs cannot be read: %s", directory, error)
        return {}


# The audit of a run (``--report``): user, time, settings, results, and the SHA-256 of each file before and
# after. A file that cannot be read is listed with the error.

Fingerprint = str | dict[str, str]
"""A file's SHA-256 in hex, or ``{"error": why it could not be read}``."""
Fingerprints = dict[str, dict[str, Fingerprint]]
"""By partition directory and file name; the name ``.`` has the error of a directory that cannot be listed."""


def fingerprints(partitions: Sequence[Path]) -> Fingerprints:
    """SHA-256 of every file of some partition directories, or the error of reading it."""
    by_partition: Fingerprints = {}
    for partition in partitions:
        in_partition: dict[str, Fingerprint] = {}
        by_partition[str(partition)] = in_partition
        try:
            names = [entry.name for entry in files.entries(partition) if entry.is_file]
        except FileNotFoundError:
            continue
        except OSError as error:
            in_partition["."] = {"error": error.strerror or str(error)}
            continue
        for name in names:
            try:
                in_partition[name] = files.sha256(partition / name)
            except OSError as error:
                in_partition[name] = {"error": error.strerror or str(error)}
    return by_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest(CleaningOptions):
    """The options of ``siltstone clean``.

    Parameters
    ----------
    in_place
        Swap the cleaned segments in.
    out
        Write a cleaned copy of DIR to this new directory instead, or to a prefix of an object store.
    take_over
        Write to a bucket although another run seems to: after one that has died.
    keep_originals
        Keep hard links of all replaced files below this directory; restore them with: siltstone undo.
    max_extra_bytes
        Most bytes of new files at the same time; default: a quarter of the free space.
    stop_after
        Start no new work after so many minutes, once the run has changed something; run again for the rest.
    report
        Write an audit to this new file: settings, results, SHA-256 of every file before and after.
    roll
        Roll the active segment of each log first, so that its records are cleaned, too. The originals of
        earlier runs cannot be restored after that.
    dry_run
        Compute everything, change nothing.
    """

    in_place: bool = False
    out: Path | None = None
    take_over: bool = False
    keep_originals: Path | None = None
    max_extra_bytes: int | None = None
    stop_after: float | None = None
    report: Path | None = None
    roll: bool = False
    dry_run: bool = False

    @property
    def changes_every_topic(self) -> bool:
        """Would it clean in place without naming a topic?"""
        return self.in_place and not (self.dry_run or self.topics)


@dataclass(slots=True, kw_only=True)
class CleanOutcome:
    """The outcome of a run: its name, and a result for each log.

    ``passed_over``: entries of the directories that are no logs. ``kept``: the folder of
    the replaced files. ``out``: the copy that was made. ``notes``: for display. ``engine``: the engine that
    cleaned, None if there was nothing to clean. ``report_error``: why the audit could not be written, though
    the cleaning was done.
    """

    run: str
    results: list[LogResult]
    passed_over: list[PassedOver] = field(default_factory=list)
    kept: Path | None = None
    out: Path | None = None
    notes: list[str] = field(default_factory=list)
    engine: str | None = None
    report_error: str | None = None


EngineFactory = Callable[[CleanRequest, Progress | None], Engine]
Confirm = Callable[[Sequence[LogState], PlanOptions], None]
"""Called with the logs of a run and the options of its plans, before anything is changed; raises to
refuse."""


def spark_engine(request: CleanRequest, progress: Progress | None) -> Engine:
    """A Spark engine on the requested master. Raises EngineError, UsageError."""
    settings = request.spark_settings
    start_java(request.master, settings)
    from siltstone.spark.clean import SparkEngine
    from siltstone.spark.session import start_session

    if progress is not None:
        progress("Spark", "starting", 0, 1)
    spill = None if request.spill_dir is None else str(request.spill_dir)
    session = start_session(request.master, spill_folder=spill, settings=settings)
    return SparkEngine(session, progress=progress)


def compaction_engine(
    spark: bool, master: str | None = None, settings: Mapping[str, str] | None = None
) -> CompactionEngine:
    """The engine of side-by-side compaction: ``spark``, on ``master`` with its settings, else this process.
    Raises EngineError, UsageError."""
    if not spark:
        return InProcessCompactionEngine()
    start_java(master, settings or {})
    from siltstone.spark.compact import SparkCompactionEngine
    from siltstone.spark.session import start_session

    return SparkCompactionEngine(start_session(master, settings=settings))


def clean(
    request: CleanRequest,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    engine: EngineFactory | None = None,
    confirm: Confirm | None = None,
    run: str | None = None,
) -> CleanOutcome:
    """Clean log directories. ``engine``: makes the engine, instead of the one that the request's options
    choose. ``confirm`` is called before anything is changed, and raises to refuse. ``run``: the run's name,
    by default a new one.

    Raises SiltstoneError for the run; the failure of a log is in its result.
    """
    refuse_contradictions(request)
    _refuse_outputs(request)
    clock = clock or SystemClock()
    now_ms = resolve_now_ms(request.now_ms, clock)  # refused before anything is opened
    started = clock.now_ms()
    run = run or run_name(started)
    with contextlib.ExitStack() as stack:
        opened = open_directories(request.directories, dry_run=request.dry_run)
        directories = [stack.enter_context(directory) for directory in opened]
        _refuse_directories(request, directories)
        policies = gather_policies(directories, request)
        states = log_states(directories, policies, request.topics)
        if request.dry_run:
            states = list(map(as_if_compacted, states))
        if confirm is not None:
            confirm(states, request.plan_options(now_ms))
        originals = None if request.keep_originals is None else request.keep_originals.absolute() / run
        destination, out = _destination(request, run, originals, directories, states, stack, started)
        audit = _Audit(request=request, run=run, started_ms=started, now_ms=now_ms, states=states, out=out)
        _roll(states if request.roll else (), clock)  # a change, so after the audit's checksums
        make_engine = engine or _engine_for(request, states)
        engine_of_run = functools.cache(lambda: make_engine(request, progress))
        if isinstance(destination, StoredCopy):
            # A copy to a store puts files with the engine's tasks if the engine runs. The cache is empty
            # until the first call, which starts the engine.
            destination.engine = lambda: engine_of_run() if engine_of_run.cache_info().currsize else None
            destination.start_engine = engine_of_run
        cleaner = _cleaner(request, destination, engine_of_run, progress)
        results, excluded = _run_cleaner(cleaner, destination, audit, request.plan_options(now_ms))
        # No engine was started if there was nothing to clean.
        was_started = engine_of_run.cache_info().currsize > 0
        engine_name = _engine_name(engine_of_run()) if was_started else None
        policies = replace(policies, notes=(*policies.notes, *tiered_notes(states)))
        return _outcome(audit, directories, policies, results, excluded, originals, engine_name)


def run_name(started_ms: int) -> str:
    """A new name for a run: its time, and a random number."""
    return f"{datetime.fromtimestamp(started_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _run_cleaner(
    cleaner: Cleaner, destination: Destination, audit: _Audit, options: PlanOptions
) -> tuple[list[LogResult], Mapping[Path, str]]:
    """Clean and commit; returns the results, and the paths that a cleaned copy lacks, with the reasons. After
    an error, removes what the run staged, and writes what was done to the history and to the audit. After an
    interrupt (Ctrl-C, SIGTERM) it writes no audit, since that reads every file."""
    try:
        return cleaner.run(audit.states, options), destination.commit_run()
    except BaseException as error:
        with interruption.current().critical():
            destination.abort_run()
        record_outcome(audit.request, audit.states, cleaner.results, audit.started_ms, audit.run)
        if not isinstance(error, KeyboardInterrupt):
            done = cleaner.results if destination.survives_abort else []
            audit.write([result for result in done if result.has_changed], str(error))
        raise


def _outcome(
    audit: _Audit,
    directories: Sequence[LogDirectory],
    policies: Policies,
    results: list[LogResult],
    excluded: Mapping[Path, str],
    originals: Path | None,
    engine: str | None,
) -> CleanOutcome:
    """The outcome of a run; it is recorded in the directories' files and in the audit."""
    note_uncleanable(audit.states, results)
    passed_over = [entry for directory in directories for entry in directory.passed_over]
    not_selected = _report_excluded(excluded, results, passed_over)
    record_outcome(audit.request, audit.states, results, audit.started_ms, audit.run)
    results += not_selected
    return CleanOutcome(
        run=audit.run,
        results=results,
        passed_over=passed_over,
        notes=list(policies.notes),
        kept=originals if originals is not None and files.exists(originals) else None,
        out=audit.out,
        engine=engine,
        report_error=audit.write(results),
    )


def refuse_all_topics(states: Sequence[LogState], _options: PlanOptions) -> None:
    """A ``Confirm`` for a cleaning in place that names no topic: raises UsageError if it would clean a log,
    unless the request names single partition directories."""
    selected = [state for state in states if state.may_be_cleaned]
    if any(not state.directory.is_partition_subset for state in selected):
        topics = {state.topic_partition.topic for state in selected}
        what = f"{counted(len(selected), 'log')} of {counted(len(topics), 'topic')}"
        reason = f"all compacted topics would be cleaned in place: {what}"
        raise UsageError(reason, advice="pass topic=…, all_topics=True, or dry_run=True first")


def _roll(states: Sequence[LogState], clock: Clock) -> None:
    """Roll the active segments of the logs that may be cleaned, so that the records in them can be cleaned.
    An error of a log is not raised: the planning of the log reports it."""
    for state in states:
        if state.config is None or not state.may_be_cleaned:
            continue
        with contextlib.suppress(SiltstoneError, OSError), interruption.current().critical():
            log = open_partition(
                state.path, LogConfig.of(state.config), clock, had_clean_shutdown=True, create=False
            )
            with contextlib.closing(log):
                log.roll()


def _engine_for(request: CleanRequest, states: Sequence[LogState]) -> EngineFactory:
    """The factory of the engine that the request's options choose. Raises UsageError."""
    if request.uses_spark(lambda: cleanable_bytes(states)):
        return spark_engine
    return lambda request, progress: InProcessEngine(progress=progress)


def _engine_name(engine: Engine) -> str:
    return "in-process" if isinstance(engine, InProcessEngine) else f"spark {getattr(engine, 'master', '')}"


def _cleaner(
    request: CleanRequest, destination: Destination, engine: Callable[[], Engine], progress: Progress | None
) -> Cleaner:
    seconds = None if request.stop_after is None else request.stop_after * 60
    limits = RunLimits(max_extra_bytes=request.max_extra_bytes, stop_after_seconds=seconds)
    return Cleaner(engine, destination, limits, critical=interruption.current().critical, progress=progress)


def _destination(
    request: CleanRequest,
    run: str,
    originals: Path | None,
    directories: Sequence[LogDirectory],
    states: Sequence[LogState],
    stack: contextlib.ExitStack,
    started_ms: int,
) -> tuple[Destination, Path | None]:
    """(the destination that the request names, the path of the copy that it makes). ``originals``: the folder
    KEEP/RUN, None without ``--keep-originals``. ``stack``: closes what the destination holds."""
    if request.out is not None and files.is_object(request.out):
        if request.dry_run:
            return DryRun(), None
        target = stack.enter_context(
            stored_target(request.out, started_ms, parent=request.spill_dir, takes_over=request.take_over)
        )
        return StoredCopy(run, directories[0], target), files.stored_path(target.path, target.backup_id)
    if request.out is not None:
        copy = CleanedCopy(run, directories[0], request.out.absolute())
        copy.refuse_too_little_space()
        return (DryRun(copy), None) if request.dry_run else (copy, request.out.absolute())
    return _in_place(request, run, originals, states), None


def _in_place(
    request: CleanRequest, run: str, originals: Path | None, states: Sequence[LogState]
) -> Destination:
    in_place = InPlace(run, None if originals is None else Originals(originals))
    if request.dry_run:
        # A dry run with neither --in-place nor --out does not compare the new files with the free space, only
        # with --max-extra-bytes.
        checks_space = request.in_place or request.max_extra_bytes is not None
        return DryRun(in_place if checks_space else None)
    if originals is not None:
        _make_durably(originals.parent)
        for state in states:
            refuse_other_file_system(originals.parent, state.path)
    return in_place


def _make_durably(folder: Path) -> None:
    """Create a folder and the missing ones above it, so that a crash of the machine cannot lose their names:
    after a cleaning the originals are only there. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not files.exists(path)]
    files.make_directory(folder, parents=True)
    for path in missing:
        files.sync_directory(path.parent)


def _report_excluded(
    excluded: Mapping[Path, str], results: Sequence[LogResult], passed_over: list[PassedOver]
) -> list[LogResult]:
    """Report the parts of the directory that the cleaned copy does not have: the result of a selected log
    becomes failed, for another log a failed result is returned, anything else is added to ``passed_over``."""
    selected = {result.topic_partition: result for result in results}
    not_selected = []
    for path, reason in excluded.items():
        topic_partition = parse_partition(path.name)
        if topic_partition is None:
            passed_over.append(PassedOver(path=str(path), reason=reason))
        elif topic_partition in selected:
            selected[topic_partition].set_status(FAILED, reason)
        else:
            result = LogResult(
                topic=topic_partition.topic, partition=topic_partition.partition, directory=str(path)
            )
            not_selected.append(result.set_status(FAILED, reason))
    return not_selected


def refuse_contradictions(request: CleanRequest) -> None:
    """Raises UsageError for flags that are wrong, or do not go together."""
    advice = "pass --in-place (swap the result in) or --out NEW (a cleaned copy), or --dry-run first"
    if request.in_place and request.out is not None:
        raise UsageError("--in-place and --out are both passed", advice=advice)
    if not (request.in_place or request.out or request.dry_run):
        raise UsageError("neither --in-place nor --out is passed", advice=advice)
    high_watermark_is_end(request.high_watermark)
    if request.max_extra_bytes is not None and request.max_extra_bytes <= 0:
        reason = f"--max-extra-bytes {request.max_extra_bytes} is not over 0"
        raise UsageError(reason, advice="pass a number of bytes")
    if request.keep_originals is not None and not request.in_place:
        advice = "pass --in-place, or leave it out: --out does not change the originals"
        raise UsageError("--keep-originals is passed without --in-place", advice=advice)
    if request.keep_originals is not None and files.is_object(request.keep_originals):
        advice = "pass a folder of the file system that has the logs"
        reason = "--keep-originals: is a path of an object store, which has no hard links"
        raise UsageError(reason, path=request.keep_originals, advice=advice)
    if request.stop_after is not None and not request.stop_after >= 0:
        reason = f"--stop-after {request.stop_after:g} is negative"
        raise UsageError(reason, advice="pass minutes, from 0 on")
    if request.take_over and (request.out is None or not files.is_object(request.out)):
        raise UsageError(
            "--take-over is for buckets", advice="pass --out s3://BUCKET/PREFIX, or leave it out"
        )
    if request.roll and (request.dry_run or not request.in_place):
        raise UsageError("--roll changes the logs", advice="pass --in-place, and no --dry-run")


def _refuse_outputs(request: CleanRequest) -> None:
    """Raises UsageError unless ``out`` and ``report`` are new paths, and ``out`` is for one directory."""
    if request.out is not None and len(request.directories) != 1:
        advice = "pass --in-place for several log directories, or clean one after the other"
        raise UsageError("--out takes one DIR", advice=advice)
    if request.report is not None and files.is_object(request.report):
        reason = "--report: is a path of an object store"
        raise UsageError(reason, path=request.report, advice="pass a new file of a disk")
    if request.out is not None and files.is_object(request.out):
        _refuse_other_objects(request.out)
    for flag, path in (("--out", request.out), ("--report", request.report)):
        if path is not None and files.is_object(path):
            continue
        if path is not None and files.exists(path):
            raise UsageError(f"{flag}: the path already exists", path=path, advice="pass a new path")
        if path is not None and not files.is_directory(path.absolute().parent):
            reason = f"{flag}: {path.absolute().parent} is not a directory"
            raise UsageError(reason, path=path, advice="create it, or pass another path")


def _refuse_other_objects(out: Path) -> None:
    """Raises UsageError for a prefix of a store that has anything but restore points, OSError."""
    advice = "pass a prefix that has nothing yet, or only copies and backups"
    if files.is_in_restore_point(out):
        raise UsageError("--out: the path is within a restore point", path=out, advice=advice)
    try:
        listed = files.entries(out)
    except FileNotFoundError:
        return
    others = [entry.name for entry in listed if entry.name not in (BACKUPS, CHUNKS, WRITER)]
    if others:
        reason = f"--out: the prefix has other objects, such as {others[0]}"
        raise UsageError(reason, path=out, advice=advice)


def _refuse_directories(request: CleanRequest, directories: list[LogDirectory]) -> None:
    """Raises UsageError for outputs inside the directories, DirectoryRefusedError for directories that this
    request may not clean."""
    refuse_outputs_inside(request, {directory.device_and_inode: directory.path for directory in directories})
    for directory in directories:
        refuse_unclean(directory)
        if request.in_place:
            refuse_network_file_system(directory)
    require_one_broker(directories)


def refuse_outputs_inside(request: CleanRequest, directories: Mapping[tuple[int, int], Path]) -> None:
    """Raises UsageError for an output that is one of the ``directories``, which have (device, inode) as keys,
    or is inside one."""
    outputs = {
        "--out": request.out,
        "--keep-originals": request.keep_originals,
        "--report": request.report,
        "--spill-dir": request.spill_dir,
    }
    for flag, path in outputs.items():
        if path is not None and files.is_object(path):
            inside = [other for other in directories.values() if _is_in_stored_directory(path, other)]
            if inside:
                reason = f"{flag}: the path is inside {inside[0]}"
                raise UsageError(reason, path=path, advice="pass another path")
            continue
        resolved = None if path is None else files.resolved(path)
        existing = [] if resolved is None else list(filter(files.exists, (resolved, *resolved.parents)))
        for key in [files.stat(folder).device_and_inode for folder in existing]:
            if key in directories:
                reason = f"{flag}: the path is in {directories[key]}, and no broker would start with it"
                raise UsageError(reason, path=path, advice="pass another path")


def _is_in_stored_directory(path: Path, directory: Path) -> bool:
    """Is ``path`` inside ``directory``, both in an object store? Nothing is inside a restore point, which as
    a directory shows only the files that it lists."""
    if not files.is_object(directory) or files.is_in_restore_point(directory):
        return False
    return files.is_below(path, directory)


@dataclass(slots=True, kw_only=True)
class _Audit:
    """The audit of a run, made before the logs are changed; nothing is written without ``--report``.
    ``partitions``: the directories that the run may change; ``before``: the fingerprints of their files.
    ``out``: the path of the copy, None without one."""

    request: CleanRequest
    run: str
    started_ms: int
    now_ms: int
    states: Sequence[LogState]
    out: Path | None = None
    partitions: list[Path] = field(init=False)
    before: Fingerprints = field(init=False)

    def __post_init__(self) -> None:
        states = () if self.request.report is None else self.states
        self.partitions = [state.path for state in states if state.is_compacted]
        self.before = fingerprints(self.partitions)

    def write(self, results: Sequence[LogResult], error: str | None = None) -> str | None:
        """Write the audit with the files as they are now; returns why it could not be written, else None.

        ``error``: why the run failed as a whole; ``results`` then has only the logs that it changed. No
        OSError is raised: the logs are cleaned, and the caller must still get their results.
        """
        path, out = self.request.report, self.out
        if path is None:
            return None
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no name belongs to the number, as in many containers
            user = str(os.getuid())
        after = self.partitions
        if out is not None:
            after = [out / partition.name for partition in self.partitions]
        options = {name: getattr(self.request, name) for name in CleanRequest.__dataclass_fields__}
        options["spark_conf"] = without_secrets(self.request.spark_conf)
        document = {
            "run": self.run,
            "version": __version__,
            "user": user,
            "host": socket.gethostname(),
            "started_ms": self.started_ms,
            "now_ms": self.now_ms,
            "options": options,
            "error": error,
            "logs": [result.to_json() for result in results],
            "sha256_before": self.before,
            "sha256_after": fingerprints(after),
        }
        try:
            files.write_new(path, json.dumps(document, indent=1, default=str).encode())
        except FileExistsError as failure:  # created by another program meanwhile, so it stays
            return f"--report {path}: {failure.strerror}"
        except OSError as failure:
            with contextlib.suppress(OSError):
                files.unlink(path)
            return f"--report {path}: {failure.strerror or failure}"
        return None


def undo(folder: Path, topics: Sequence[str] = (), *, dry_run: bool = False) -> dict[str, list[str]]:
    """Restore the originals of a run: {partition directory: restored files}. Raises SiltstoneError.

    ``topics`` empty: of all topics. All logs are checked before the first is changed; an UndoStoppedError
    names the restored files and the others. A dry run returns what would be restored.
    """
    kept = read_run(folder)
    known = {log.topic_partition.topic for _, log in kept}
    if not known.issuperset(topics):
        unknown = ", ".join(sorted(set(topics) - known))
        advice = f"pass {' or '.join(sorted(known))}"
        raise UsageError(f"--topic {unknown}: the run has no such topic", path=folder, advice=advice)
    kept = [(path, log) for path, log in kept if not topics or log.topic_partition.topic in topics]
    # Only the log directory above may be a link. A partition that has become one is refused by ``undo_logs``,
    # as any log that has changed since the run.
    roots = [files.resolved(Path(log.path).parent) for _, log in kept]
    with locked_directories(roots, dry_run=dry_run) as opened:
        by_inode = {directory.device_and_inode: directory for directory in opened}
        parents = {Path(log.path).parent for _, log in kept}
        directories = {path: by_inode[files.stat(path).device_and_inode] for path in parents}
        return undo_logs(kept, directories, interruption.current().critical, dry_run=dry_run)


def recover(
    paths: Sequence[Path],
    *,
    config: Sequence[str] = (),
    broker_config: Path | None = None,
    now_ms: int | None = None,
    threads: int = 2,
    check: bool | None = None,
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[DirectoryRecovery]:
    """Recover log directories, as a broker's start and stop would: a result for each of them.

    ``config``: settings as key=value, over those in the metadata and in ``broker_config``
    (``server.properties``). ``threads``, ``check``: as in ``RecoveryOptions``. The error of a log or of a
    disk is in its result. Raises SiltstoneError for any other.
    """
    settings = parse_assignments(config, "--config")
    recovery_ms = resolve_now_ms(now_ms, SystemClock())
    directories, offline = [], list[DirectoryRecovery]()

    def failed(path: Path, error: OSError) -> None:
        offline.append(DirectoryRecovery.failed(path, error))

    with contextlib.ExitStack() as stack:
        opened = open_directories(paths, dry_run=dry_run, on_error=failed)
        for directory in [stack.enter_context(directory) for directory in opened]:
            try:
                refuse_network_file_system(directory)
                directory.properties()  # an error of reading them is this directory's, and the others go on
                directories.append(directory)
            except OSError as error:
                failed(directory.path, error)
        require_one_broker(directories)
        recovery = RecoveryOptions(
            config_of=recovery_configs(directories, settings, broker_config),
            now_ms=recovery_ms,
            threads=threads,
            check=check,
            mark_clean_shutdown=True,
            dry_run=dry_run,
        )
        return recover_directories(directories, recovery, progress) + offline
