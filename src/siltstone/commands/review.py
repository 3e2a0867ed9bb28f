"""The composition root of what looks at cleanings and changes nothing: ``explain`` and ``verify``.

As ``commands.clean`` wires the cleaner, this wires settings, clock and engine for the two. Spark is imported
only when it is asked for; neither needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base.clock import Clock, SystemClock, chosen_ms
from siltstone.base.errors import UsageError
from siltstone.commands.policies import PolicyPlaces, gather_policies, log_states
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.explain.explaining import TOP, Observer, Wish, explain_logs, observe_here
from siltstone.compaction.explain.model import Explanation
from siltstone.compaction.inplace.facts import Choices
from siltstone.log.directory import LogDirectory, open_directories, refuse_strangers
from siltstone.log.names import TopicPartition
from siltstone.verify.directories import verify as verify_directories
from siltstone.verify.pairs import Terms, terms_of
from siltstone.verify.verdict import Checker, Verdict, check_here

DEFAULT_MASTER = "local[*]"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """What ``siltstone verify`` was asked; the fields are its flags."""

    before: Path
    after: Path
    topics: Sequence[str] = ()
    config: Sequence[str] = ()
    config_file: Path | None = None
    policy_from_metadata: bool = False
    broker_config: Path | None = None
    now_ms: int | None = None
    high_watermark: str | None = None
    no_spark: bool = False
    master: str = DEFAULT_MASTER
    spill_dir: Path | None = None


def verify(request: VerifyRequest, *, clock: Clock | None = None, checker: Checker | None = None) -> Verdict:
    """Check a cleaned directory against what it was before. Raises SiltstoneError, OSError for what concerns
    the check as a whole; what is wrong with a log is in its verdict."""
    refuse_high_watermark(request.high_watermark)
    directory = LogDirectory.open(request.after, lock=False)
    policies = gather_policies([directory], _places(request))
    now_ms = chosen_ms(request.now_ms, clock or SystemClock())

    def terms(where: TopicPartition) -> Terms:
        path = directory.partitions.get(where, directory.path / str(where))
        return terms_of(
            policies.state_of(where, path, directory).config,
            now_ms,
            now_is_exact=request.now_ms is not None,
            beyond_high_watermark=request.high_watermark == "end",
        )

    checker = checker or (check_here if request.no_spark else _spark_checker(request))
    found = verify_directories(request.before, request.after, checker, terms, request.topics)
    found.notes.extend(policies.notes)
    return found


def _spark_checker(request: VerifyRequest) -> Checker:
    from siltstone.spark.session import session_on, workers_of
    from siltstone.spark.verify import SparkChecker

    session = session_on(request.master, request.spill_dir)
    return SparkChecker(session, workers_of(session))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """What ``siltstone explain`` was asked; the fields are its flags. ``top``: hottest keys of each log."""

    directories: Sequence[Path]
    topics: Sequence[str] = ()
    config: Sequence[str] = ()
    config_file: Path | None = None
    policy_from_metadata: bool = False
    broker_config: Path | None = None
    now_ms: int | None = None
    force: bool = False
    drop_keyless: bool = False
    high_watermark: str | None = None
    show_keys: bool = False
    top: int = TOP
    no_spark: bool = False
    master: str = DEFAULT_MASTER
    spill_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """What an explanation runs on: the engine of the dry run, and who observes."""

    engine: Engine
    observer: Observer


def explain(
    request: ExplainRequest, *, clock: Clock | None = None, runner: Callable[[], Runner] | None = None
) -> Explanation:
    """What a cleaning would do and why. Nothing is locked or changed. Raises SiltstoneError, OSError for what
    concerns all logs; what is wrong with one is in its explanation."""
    refuse_high_watermark(request.high_watermark)
    now_ms = chosen_ms(request.now_ms, clock or SystemClock())
    if request.top < 0:
        raise UsageError(f"--top {request.top}: must not be negative")
    directories = open_directories(request.directories, lock=False)
    refuse_strangers(directories)
    policies = gather_policies(directories, _places(request))
    states = log_states(directories, policies, request.topics)
    choices = Choices(
        now_ms=now_ms,
        force=request.force,
        drop_keyless=request.drop_keyless,
        high_watermark_is_end=request.high_watermark == "end",
    )
    wish = Wish(choices=choices, show_keys=request.show_keys, top=request.top)
    started: list[Runner] = []

    def once() -> Runner:
        if not started:
            started.append((runner or (_here if request.no_spark else lambda: _on_spark(request)))())
        return started[0]

    logs = explain_logs(states, wish, lambda: once().engine, lambda: once().observer)
    passed_over = [(each.path, each.reason) for directory in directories for each in directory.passed_over]
    notes = [*policies.notes, *map(_unclean, filter(_was_not_stopped, directories))]
    return Explanation(now_ms=choices.now_ms, logs=logs, passed_over=passed_over, notes=notes)


def _was_not_stopped(directory: LogDirectory) -> bool:
    return directory.is_marked and not directory.was_stopped_cleanly


def _unclean(directory: LogDirectory) -> str:
    return (
        f"{directory.path}: no .kafka_cleanshutdown: a broker runs on it, or it was not stopped cleanly; "
        "this is how the files lie now, and clean asks for siltstone recover first"
    )


def _here() -> Runner:
    return Runner(engine=InProcessEngine(), observer=observe_here)


def _on_spark(request: ExplainRequest) -> Runner:
    from siltstone.spark.explain import SparkObserver
    from siltstone.spark.session import session_on, workers_of

    session = session_on(request.master, request.spill_dir)
    observer = SparkObserver(session, workers_of(session))
    return Runner(engine=observer.engine(), observer=observer)


def _places(request: ExplainRequest | VerifyRequest) -> PolicyPlaces:
    return PolicyPlaces(
        topics=request.topics,
        config=request.config,
        config_file=request.config_file,
        from_metadata=request.policy_from_metadata,
        broker_config=request.broker_config,
    )


def refuse_high_watermark(given: str | None) -> None:
    """Raises UsageError unless it is what the flag knows."""
    if given not in (None, "end"):
        raise UsageError(f"--high-watermark {given}: only 'end' is known")
