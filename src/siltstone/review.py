"""The composition root of what looks at cleanings and changes nothing: ``explain`` and ``verify``.

As ``app`` wires the cleaner, this wires settings, clock and engine for the two. Spark is imported only when
it is asked for; neither needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.clock import Clock, SystemClock
from siltstone.errors import UsageError
from siltstone.log.directory import LogDirectory
from siltstone.log.names import TopicPartition
from siltstone.policies import PolicyPlaces, gather_policies
from siltstone.verifying.directories import verify as verify_directories
from siltstone.verifying.pairs import Terms, terms_of
from siltstone.verifying.verdict import Checker, Verdict, check_here

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
    places = PolicyPlaces(
        topics=request.topics,
        config=request.config,
        config_file=request.config_file,
        from_metadata=request.policy_from_metadata,
        broker_config=request.broker_config,
    )
    policies = gather_policies([directory], places)
    now_ms = (clock or SystemClock()).now_ms() if request.now_ms is None else request.now_ms

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
    from siltstone.spark.sessions import session_on, workers_of
    from siltstone.spark.verify import SparkChecker

    session = session_on(request.master, request.spill_dir)
    return SparkChecker(session, workers_of(session))


def refuse_high_watermark(given: str | None) -> None:
    """Raises UsageError unless it is what the flag knows."""
    if given not in (None, "end"):
        raise UsageError(f"--high-watermark {given}: only 'end' is known")
