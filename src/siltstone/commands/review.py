"""Runs ``explain`` and ``verify``, which change nothing: wires settings, clock and engine for the two, as
``commands.clean`` does for the cleaner.

Both can work without Spark, which is imported only if it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from siltstone.base.clock import SystemClock, resolve_now_ms
from siltstone.base.errors import UsageError, shown_path
from siltstone.commands.engines import cleanable_bytes, log_bytes, parse_spark_conf, start_java
from siltstone.commands.policies import (
    CleaningOptions,
    RunOptions,
    as_if_compacted,
    gather_policies,
    high_watermark_is_end,
    log_states,
    tiered_notes,
)
from siltstone.compaction.engine import Engine, InProcessEngine, Progress
from siltstone.compaction.explain import (
    HOTTEST_KEYS_DEFAULT,
    ExplainOptions,
    Explanation,
    explain_logs,
)
from siltstone.compaction.inplace.planning import LogState
from siltstone.log.directory import open_directories, require_one_broker
from siltstone.log.names import TopicPartition
from siltstone.verify.checking import Checker, check_in_process
from siltstone.verify.checking import verify as verify_directories
from siltstone.verify.findings import Verdict
from siltstone.verify.pairs import CleaningSettings, cleaning_settings

_UNCLEAN = (
    "{path}: no .kafka_cleanshutdown: a broker runs on it, or it was not stopped cleanly; "
    "its files are explained as they are now, and clean needs siltstone recover first"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest(RunOptions):
    """The request of ``siltstone verify``; its settings are those of the cleaning.

    Parameters
    ----------
    before
        Copies of the directories from before the cleaning, or the originals of clean --keep-originals.
    after
        The cleaned directories, in any order.
    now_ms
        The cleaning's clock, in ms: tombstones are then checked against their horizons on both sides.
    high_watermark
        "end": the cleaning was allowed beyond the checkpointed high watermark.
    master
        The Spark master; default: that of spark-submit, or local[*]. Or a Connect server, sc://HOST:PORT.
    """

    before: Path | Sequence[Path]
    after: Path | Sequence[Path]


def verify(request: VerifyRequest, *, checker: Checker | None = None) -> Verdict:
    """Check cleaned directories against copies from before. Raises SiltstoneError, OSError if nothing can be
    checked; problems of a log are in its verdict."""
    beyond_high_watermark = high_watermark_is_end(request.high_watermark)
    before, after = map(_paths, (request.before, request.after))
    directories = open_directories(after, lock=False)
    policies = gather_policies(directories, request)
    now_ms = resolve_now_ms(request.now_ms, SystemClock())

    def settings(topic_partition: TopicPartition) -> CleaningSettings:
        # A log that is missing after the cleaning has the settings of its topic all the same.
        with_log = (directory for directory in directories if topic_partition in directory.partitions)
        directory = next(with_log, directories[0])
        path = directory.partitions.get(topic_partition, directory.path / str(topic_partition))
        return cleaning_settings(
            policies.state_of(topic_partition, path, directory).config,
            now_ms,
            cleaned_at_is_exact=request.now_ms is not None,
            beyond_high_watermark=beyond_high_watermark,
        )

    if checker is None:
        states = log_states(directories, policies, request.topics)
        checker = (
            _spark_checker(request) if request.uses_spark(lambda: log_bytes(states)) else check_in_process
        )
    verdict = verify_directories(before, after, checker, settings, request.topics)
    verdict.notes.extend(policies.notes)
    return verdict


def _paths(path: Path | Sequence[Path]) -> Sequence[Path]:
    """One path, or several, as a list."""
    return [path] if isinstance(path, Path) else path


def _spark_checker(request: VerifyRequest) -> Checker:
    start_java(request.master, request.spark_settings)
    from siltstone.spark.executors import default_task_count
    from siltstone.spark.session import session_on
    from siltstone.spark.verify import SparkChecker

    session = session_on(request.master, request.spill_dir, request.spark_settings)
    return SparkChecker(session, default_task_count(session))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(CleaningOptions):
    """The request of ``siltstone explain``.

    Parameters
    ----------
    master
        The Spark master; default: that of spark-submit, or local[*]. Or a Connect server, sc://HOST:PORT.
    show_keys
        Show the hottest keys; they are masked otherwise.
    top
        Number of hottest keys of each log.
    """

    show_keys: bool = False
    top: int = HOTTEST_KEYS_DEFAULT


def explain(
    request: ExplainRequest,
    *,
    progress: Progress | None = None,
    engine: Callable[[], Engine] | None = None,
) -> Explanation:
    """Explain what a cleaning would do and why. Nothing is locked or changed. ``engine``: makes the engine,
    in place of the request's choice; called only if a log has to be read. Raises SiltstoneError, OSError if
    nothing can be explained; the failure of a log is in its explanation."""
    plan_options = request.plan_options(resolve_now_ms(request.now_ms, SystemClock()))
    if request.top < 0:
        raise UsageError(f"--top {request.top} is negative", advice="pass a number from 0 on")
    parse_spark_conf(request.spark_conf)  # refused before anything is read, even if Spark is not used
    directories = open_directories(request.directories, lock=False)
    require_one_broker(directories)
    policies = gather_policies(directories, request)
    states = list(map(as_if_compacted, log_states(directories, policies, request.topics)))
    options = ExplainOptions(plan_options=plan_options, show_keys=request.show_keys, top=request.top)
    logs = explain_logs(states, options, cache(engine or (lambda: engine_for(request, states, progress))))
    passed_over = [(entry.path, entry.reason) for directory in directories for entry in directory.passed_over]
    unclean = (
        directory
        for directory in directories
        if directory.has_broker_files and not directory.had_clean_shutdown
    )
    notes = [*policies.notes, *(_UNCLEAN.format(path=shown_path(directory.path)) for directory in unclean)]
    notes += tiered_notes(states)
    return Explanation(now_ms=plan_options.now_ms, logs=logs, passed_over=passed_over, notes=notes)


def engine_for(request: ExplainRequest, states: Sequence[LogState], progress: Progress | None) -> Engine:
    """The engine of a dry run: Spark, or this process. Raises UsageError, EngineError."""
    if not request.uses_spark(lambda: cleanable_bytes(states)):
        return InProcessEngine(progress=progress)
    start_java(request.master, request.spark_settings)
    from siltstone.spark.clean import SparkEngine
    from siltstone.spark.session import session_on

    session = session_on(request.master, request.spill_dir, request.spark_settings)
    return SparkEngine(session, progress=progress)
