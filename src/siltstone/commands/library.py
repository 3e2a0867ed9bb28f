"""The library's functions over log directories: ``st.open``, ``st.clean``, ``st.explain``, ``st.verify`` and
``st.start_cleaner``.

::

    with st.open("/backup/kafka") as logs:                       # read-only unless mode="a"
        print(logs.explain(topic="users").logs[0].outcome)
        run = logs.clean(topic="users", out="/new")
    st.verify("/backup/kafka", "/new").raise_for_errors()

Keyword arguments are the flags of the commands (``docs/commands.md``), with "_" for "-"; ``topic`` is one or
many, ``config``, ``spark_conf`` and ``storage_options`` are mappings. None is as if the keyword were left
out; one that does not exist is a TypeError, which is a UsageError, too. Spark is imported only if it is used.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from siltstone.base.clock import Clock, checked_ms
from siltstone.base.config import Config, ConfigValue, config_texts, parse_broker_config
from siltstone.base.errors import EngineError, UnknownKeywordError, UsageError
from siltstone.commands.engines import ENGINES, SPARK_BYTES, has_session, parse_spark_conf, use_stores
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.tiered.joining import with_remotes
from siltstone.runtime.manager import LogManager

if TYPE_CHECKING:
    from siltstone.commands.clean import CleanOutcome
    from siltstone.compaction.explain import Explanation
    from siltstone.compaction.report import LogResult
    from siltstone.runtime.log_cleaner import LogCleaner
    from siltstone.verify.findings import Verdict

_logger = logging.getLogger("siltstone.cleaner")
OnePath = str | Path
OnePathOrMany = OnePath | Sequence[OnePath]
EngineName = Literal["auto", "spark", "process"]
BrokerConfig = Config | Mapping[str, ConfigValue]


class LogKeywords(TypedDict, total=False):
    """Which logs, with which settings, on which engine; see ``RunOptions``."""

    topic: str | Sequence[str]
    config: Mapping[str, ConfigValue]
    config_file: OnePath
    policy_from_metadata: bool
    no_policy_from_metadata: bool
    broker_config: OnePath
    now_ms: int
    high_watermark: Literal["end"]
    engine: EngineName
    no_spark: bool
    master: str
    spark_conf: Mapping[str, ConfigValue]
    spill_dir: OnePath
    storage_options: Mapping[str, str]
    remote: str


class ExplainKeywords(LogKeywords, total=False):
    """See ``ExplainRequest``."""

    force: bool
    drop_keyless: bool
    show_keys: bool
    top: int


class CleanKeywords(LogKeywords, total=False):
    """See ``CleanRequest``."""

    force: bool
    drop_keyless: bool
    in_place: bool
    out: OnePath
    take_over: bool
    keep_originals: OnePath
    max_extra_bytes: int
    stop_after: float
    report: OnePath
    roll: bool
    dry_run: bool


_CLEAN_KEYWORDS = (*CleanKeywords.__annotations__, "all_topics")
_PATH_KEYWORDS = ("config_file", "broker_config", "spill_dir", "out", "keep_originals", "report")


def _request(
    kind: type[Any], known: Sequence[str], keywords: Mapping[str, Any], **directories: Sequence[Path]
) -> Any:
    """Make a command's request, of class ``kind``, from a function's keywords. ``known``: the names of all
    keywords; ``directories``: the request's directories by field; those that are read as they were before a
    cleaning (``before``, else ``directories``) get the segments of the remote storage, too. Raises
    UsageError, OSError."""
    options: dict[str, Any] = {}
    use_stores()  # with the options of the program's Spark session, if it has one
    for name, value in keywords.items():
        if name not in known:
            raise _unknown_keyword(name, known)
        if value is None:  # as if it were left out
            continue
        if name == "topic":
            options["topics"] = (value,) if isinstance(value, str) else tuple(value)
        elif name == "storage_options":
            use_stores(value)
        elif name == "remote":  # not an option of the request: joined to its directories below
            continue
        elif name in ("config", "spark_conf"):
            options[name] = [f"{key}={text}" for key, text in config_texts(value, name).items()]
        elif name == "now_ms":
            options[name] = checked_ms(value, name)
        else:
            options[name] = Path(value) if name in _PATH_KEYWORDS else value
    tiered = "before" if "before" in directories else "directories"
    joined = with_remotes(directories[tiered], keywords.get("remote"))
    return kind(**options, **directories | {tiered: joined})


def _unknown_keyword(name: str, known: Sequence[str]) -> UnknownKeywordError:
    nearest = difflib.get_close_matches(name, known, 1, 0.5)
    advice = f"the keywords are {', '.join(known)}"
    if nearest:
        advice = f"did you mean {nearest[0]}? {advice.capitalize()}"
    return UnknownKeywordError(f"there is no keyword argument {name!r}", advice=advice)


def paths_of(path: OnePathOrMany) -> list[Path]:
    """One path or many. Raises UsageError for none."""
    paths = [Path(path)] if isinstance(path, (str, Path)) else list(map(Path, path))
    if not paths:
        raise UsageError("no log directory is passed", advice="pass at least one path")
    return paths


def clean(
    path: OnePathOrMany, *, all_topics: bool = False, **keywords: Unpack[CleanKeywords]
) -> CleanOutcome:
    """Clean stopped log directories, or one partition directory, as ``siltstone clean`` does.

    Pass ``in_place=True``, ``out="/new"`` or ``dry_run=True``; with ``in_place`` also ``topic`` or
    ``all_topics=True``. A log's failure is in its result. Raises UsageError, DirectoryLockedError,
    DirectoryRefusedError, SiltstoneError, OSError.
    """
    from siltstone.commands import clean as cleaning

    request = _request(cleaning.CleanRequest, _CLEAN_KEYWORDS, keywords, directories=paths_of(path))
    needs_topic = request.changes_every_topic and not all_topics
    return cleaning.clean(request, confirm=cleaning.refuse_all_topics if needs_topic else None)


def explain(path: OnePathOrMany, **keywords: Unpack[ExplainKeywords]) -> Explanation:
    """Explain what ``clean`` would do, and why, as ``siltstone explain`` shows it; nothing is locked or
    changed.

    Raises UsageError, SiltstoneError, OSError.
    """
    from siltstone.commands import review

    known = tuple(ExplainKeywords.__annotations__)
    return review.explain(_request(review.ExplainRequest, known, keywords, directories=paths_of(path)))


def verify(before: OnePathOrMany, after: OnePathOrMany, **keywords: Unpack[LogKeywords]) -> Verdict:
    """Compare cleaned directories with what they were before, as ``siltstone verify`` does.

    The verdict's ``raise_for_errors`` raises CheckFailedError. Raises UsageError, SiltstoneError, OSError.
    """
    from siltstone.commands import review

    known, sides = tuple(LogKeywords.__annotations__), {"before": paths_of(before), "after": paths_of(after)}
    return review.verify(_request(review.VerifyRequest, known, keywords, **sides))


class ReadableLogs(ReadOnlyLogs):
    """The result of ``st.open``: logs that are only read, and the commands on their directories."""

    def explain(self, **keywords: Unpack[ExplainKeywords]) -> Explanation:
        """Explain what a cleaning would do; see ``st.explain``."""
        return explain(self._paths, **keywords)

    def clean(self, *, all_topics: bool = False, **keywords: Unpack[CleanKeywords]) -> CleanOutcome:
        """Clean the directories; see ``st.clean``. Logs that are open show the state before, until they are
        refreshed."""
        return clean(self._paths, all_topics=all_topics, **keywords)


class OpenLogs(LogManager):
    """The result of ``st.open`` with ``mode="a"``: logs to append to, read, and clean at once."""

    def clean(self, topic: str | Sequence[str] = ()) -> list[LogResult]:
        """Clean compacted topics now, all or some, in this process: whatever their dirty ratio, and with the
        active segments, which are rolled first.

        What the high watermark, open transactions and ``min.compaction.lag.ms`` hold back stays. Returns a
        result for each log. Raises UnknownTopicError, UsageError for a topic that is not compacted.
        """
        return clean_open_logs(self, topic)


@overload
def open(
    path: OnePathOrMany,
    mode: Literal["r"] = ...,
    *,
    clock: Clock | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ReadableLogs:
    """Open to read."""


@overload
def open(
    path: OnePathOrMany, mode: Literal["a"], *, config: BrokerConfig | None = None, clock: Clock | None = None
) -> OpenLogs:
    """Open to append."""


def open(
    path: OnePathOrMany,
    mode: str = "r",
    *,
    config: BrokerConfig | None = None,
    clock: Clock | None = None,
    remote: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ReadableLogs | OpenLogs:
    """Open a log directory, or several of one broker.

    mode "r": read-only, without a lock; "a": created where it is missing, locked, recovered, maintained by a
    thread. ``config``: the broker's settings by Kafka's names, for "a". ``remote``: the URL or directory of
    the broker's tiered storage, whose segments are read with the local ones. ``storage_options``: those of an
    object store, from which logs are only read. Raises SiltstoneError, OSError.
    """
    use_stores(storage_options)
    paths = paths_of(path)
    if mode == "r":
        if config is not None:
            advice = "pass mode='a' to append with these settings, or leave them out"
            raise UsageError("config is passed, and logs that are only read use no settings", advice=advice)
        return ReadableLogs(with_remotes(paths, remote), clock=clock)
    if mode != "a":
        raise UsageError(f"there is no mode {mode!r}", advice="pass 'r' to read or 'a' to append")
    if remote is not None:
        advice = "open it with mode='r', or leave remote out"
        raise UsageError("a log with a remote part is only read", advice=advice)
    if config is not None and not isinstance(config, Config):
        config = Config(static=parse_broker_config(config, "config"))
    logs = OpenLogs(paths, config=config, clock=clock)
    logs.start()
    return logs


# The embedded cleaner.


def start_cleaner(
    manager: LogManager, *, engine: EngineName = "auto", spark_conf: Mapping[str, ConfigValue] | None = None
) -> LogCleaner:
    """Clean the logs of ``manager`` as they grow, until it is closed.

    ``engine`` "process": in this process, without Java. "spark": on ``cleaner.spark.master``; without Java,
    and whenever Spark is lost, the logs stay as they are and the next round tries again. "auto": Spark if the
    program has a session, or if PySpark and Java are there and the compacted logs have 256 MiB by now; else
    this process. ``spark_conf``: settings of Spark. Nothing is started where ``log.cleaner.enable`` is false.
    Raises UsageError, EngineError.
    """
    if not isinstance(manager, LogManager):
        advice = "pass what st.open(path, mode='a') returns; st.clean cleans stopped directories"
        raise UsageError(f"a {type(manager).__name__} has no logs that are open to be changed", advice=advice)
    texts = config_texts(spark_conf or {}, "spark_conf")
    settings = parse_spark_conf([f"{name}={text}" for name, text in texts.items()])
    cleaner = cleaner_with(manager, engine, spark_conf=settings)
    cleaner.start()
    return cleaner


def cleaner_with(
    manager: LogManager,
    engine: EngineName,
    *,
    topic: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> LogCleaner:
    """A log cleaner that is not started: it cleans when ``clean_now`` is called. ``engine``: as for
    ``start_cleaner``; ``topic``: the only one that it will clean. Raises UsageError, EngineError."""
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}", advice="pass auto, spark or process")
    if engine != "spark" and not (engine == "auto" and _auto_uses_spark(manager, topic)):
        return cleaner_in_process(manager)
    if importlib.util.find_spec("pyspark") is None:
        advice = "pip install 'siltstone[spark]', or pass engine='process'"
        raise EngineError("PySpark is not installed", advice=advice)
    from siltstone.spark.embedded import cleaner_on_spark

    return cleaner_on_spark(manager, spark_conf=spark_conf)


def clean_open_logs(manager: LogManager, topic: str | Sequence[str] = ()) -> list[LogResult]:
    """Clean compacted topics of open logs now; see ``OpenLogs.clean``."""
    cleaner = cleaner_in_process(manager)
    try:
        return cleaner.clean_now((topic,) if isinstance(topic, str) else topic)
    finally:
        cleaner.close(abort=False)


def cleaner_in_process(manager: LogManager) -> LogCleaner:
    """A log cleaner that cleans only when ``clean_now`` is called, in this process."""
    from siltstone.compaction.engine import InProcessEngine
    from siltstone.runtime.log_cleaner import LogCleaner

    return LogCleaner(manager, InProcessEngine)


def _auto_uses_spark(manager: LogManager, topic: str | None = None) -> bool:
    """Does ``engine="auto"`` use Spark for these logs (``start_cleaner``), or for those of ``topic``?"""
    if has_session():
        return True
    size = sum(
        log.size
        for _, log in manager.logs()
        if log.config.compacts and topic in (None, log.topic_partition.topic)
    )
    if size < SPARK_BYTES or importlib.util.find_spec("pyspark") is None:
        return False
    from siltstone.spark.java import java_version

    try:
        java_version()
    except EngineError as error:
        _logger.warning("The log cleaner works in this process, one log after another: %s", error)
        return False
    return True
