"""The settings of each log of a cleaning, and the options that commands share.

    --config, --config-file   for named topics, over all other sources
    --policy-from-metadata    the topics' own and the brokers' dynamic ones, out of ``__cluster_metadata-0``,
                              and over them those of topics made or altered with Siltstone
    --broker-config           the broker's ``server.properties``; for topics that the other places name

A log that no source names has no policy and is skipped. With the metadata, a directory counts as a topic's
partition only if it has the topic's id (``partition.metadata``): directories of a deleted topic with the same
name are skipped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import (
    Config,
    LogConfig,
    Setting,
    first_property,
    parse_assignments,
    parse_config_file,
    parse_server_properties,
    refuse_contradictions,
)
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError, UnsafeFileError, UsageError
from siltstone.compaction.inplace.facts import Choices, LogState
from siltstone.log.directory import LogDirectory, require_one_broker
from siltstone.log.metadata_log import (
    METADATA_PARTITION,
    ClusterSettings,
    metadata_directory,
    node_id_of,
    read_cluster_settings,
)
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.runtime.topics import TopicSettings, load_registry

DEFAULT_MASTER = "local[*]"
_logger = logging.getLogger("siltstone")
NO_BROKER_CONFIG = (
    "no --broker-config: what the broker's server.properties says is not known, "
    "Kafka's defaults are used instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which logs, with which settings, as of when and how far; ``clean --watch`` asks for no more.

    Parameters
    ----------
    topics
        Only this topic; may be given several times.
    config
        A topic setting, key=value; may be given several times; needs --topic.
    config_file
        A file of lines topic:key=value.
    policy_from_metadata
        The topics' own settings, from the broker's __cluster_metadata-0 (KRaft) or Siltstone's list.
    broker_config
        The broker's server.properties, for what neither a topic nor a broker's dynamic setting says.
    now_ms
        The clock for lags, horizons and producer expiry, in ms; default: the wall clock.
    high_watermark
        "end": logs without an entry in replication-offset-checkpoint have no other replica.
    """

    topics: Sequence[str] = ()
    config: Sequence[str] = ()
    config_file: Path | None = None
    policy_from_metadata: bool = False
    broker_config: Path | None = None
    now_ms: int | None = None
    high_watermark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(LogOptions):
    """The same, and what the work runs on.

    Parameters
    ----------
    no_spark
        Work in this process, one log after another: a start of Spark costs seconds.
    master
        The Spark master.
    spill_dir
        Where Spark puts what does not fit in memory.
    """

    no_spark: bool = False
    master: str = DEFAULT_MASTER
    spill_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningOptions(RunOptions):
    """The same, and what a cleaning of some directories may do: ``clean`` does it, ``explain`` says so.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    force
        Clean what is cleanable, whatever the dirty ratio.
    drop_keyless
        Allow that records without a key are removed.
    """

    directories: Sequence[Path] = ()
    force: bool = False
    drop_keyless: bool = False

    def choices(self, now_ms: int) -> Choices:
        """The planner's options, as of ``now_ms``. Raises UsageError."""
        return Choices(
            now_ms=now_ms,
            force=self.force,
            drop_keyless=self.drop_keyless,
            high_watermark_is_end=reads_to_the_end(self.high_watermark),
        )


def reads_to_the_end(high_watermark: str | None) -> bool:
    """Does ``--high-watermark end`` say that logs without an entry have no other replica? Raises UsageError
    for another word."""
    if high_watermark not in (None, "end"):
        raise UsageError(f"--high-watermark {high_watermark}: only 'end' is known")
    return high_watermark == "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The settings out of all sources. ``settings``: of topics; without the metadata only the broker's own,
    which are known where ``broker_known``. ``config``, ``by_topic``: from the command line."""

    config: Mapping[str, Setting]
    by_topic: Mapping[str, Mapping[str, Setting]]
    settings: TopicSettings
    notes: tuple[str, ...] = ()
    broker_known: bool = False

    def state_of(self, where: TopicPartition, path: Path, directory: LogDirectory) -> LogState:
        """One log with its settings, or with the reason why they are not known. Raises UsageError for those
        from the command line."""
        topic, settings = where.topic, self.settings
        made_here = settings.is_made_here(topic)
        state = LogState(
            where=where,
            path=path,
            directory=directory,
            config=None,
            defaults_hold=self.broker_known or made_here,
        )
        by_hand = self.by_topic.get(topic, {})
        named = settings.cluster is not None or topic in settings.listed
        if topic == CLUSTER_METADATA or not (named or by_hand or self.config):
            return state
        # Planning refuses the log for a damaged partition.metadata.
        with contextlib.suppress(CorruptFileError):
            refused = settings.topic_mismatch(topic, path)
            if refused is not None:
                return replace(state, refused=refused)
        try:
            own = settings.config_of(topic)
            config = refuse_contradictions(own.over(by_hand).over(self.config))
        except UsageError as error:
            if not named:
                raise
            return replace(state, refused=str(error))
        return replace(state, config=config, drop_keyless=named and "compact" in own.policies)


def gather_policies(directories: Sequence[LogDirectory], options: LogOptions) -> Policies:
    """Read all sources. Raises UsageError, DirectoryRefusedError, CorruptFileError, OSError."""
    single = all(directory.is_partial for directory in directories)
    if options.config and not options.topics and not single:
        raise UsageError("--config needs --topic: say which topics the settings are for")
    config = parse_assignments(options.config, "--config")
    by_topic: dict[str, dict[str, Setting]] = {}
    if options.config_file is not None:
        by_topic = parse_config_file(_text(options.config_file), str(options.config_file))
    static = _static(options.broker_config)
    known = options.broker_config is not None
    settings, notes = TopicSettings(broker=Config(static=static)), list[str]()
    if options.policy_from_metadata:
        listed = load_registry(directory.path for directory in directories)[0].topics
        settings = replace(settings, listed=listed)
        holder = metadata_directory(directories)
        partitions = [where for directory in directories for where in directory.partitions]
        if holder is None and not all(where.topic in listed for where in partitions):
            holder = _elsewhere(directories, options.broker_config)
        if holder is not None:
            cluster = read_cluster_settings(holder, node_id=node_id_of(directories), static=static)
            settings = replace(settings, cluster=cluster, broker=cluster.broker)
            notes = [f"settings of topics: {cluster.path} up to offset {cluster.image.end_offset}"]
            notes += [] if known else [NO_BROKER_CONFIG]
    return Policies(
        config=config, by_topic=by_topic, settings=settings, notes=tuple(notes), broker_known=known
    )


def recovery_configs(
    directories: Sequence[LogDirectory], config: Mapping[str, Setting], broker_config: Path | None = None
) -> Callable[[TopicPartition], LogConfig]:
    """The settings for the recovery of each log: ``config``, over the topic's own settings where the metadata
    has them, over the broker's ``server.properties``.

    Metadata that cannot be read is logged and left out: recovery keeps and cuts records whatever the
    settings. Raises UsageError and OSError for ``broker_config``, DirectoryRefusedError where it names
    another broker's metadata.
    """
    static = _static(broker_config)
    cluster: ClusterSettings | None = None
    try:
        holder = metadata_directory(directories) or _named_elsewhere(directories, broker_config)
        if holder is not None:
            cluster = read_cluster_settings(holder, node_id=node_id_of(directories), static=static)
    except (CorruptFileError, UnsafeFileError, UsageError, OSError) as error:
        _logger.warning("topics' own settings are not known: %s", error)

    def config_of(where: TopicPartition) -> LogConfig:
        if cluster is not None and cluster.topic_id(where.topic) is not None:
            try:
                return LogConfig.of(cluster.config_of(where.topic).over(config))
            except UsageError as error:
                _logger.warning("%s: its own settings are not used: %s", where, error)
        return LogConfig.of(Config(config, static=static))

    return config_of


def log_states(
    directories: Sequence[LogDirectory], policies: Policies, topics: Sequence[str]
) -> list[LogState]:
    """The selected logs (``topics`` empty: all), each with its settings. Raises UsageError."""
    states = [
        policies.state_of(where, path, directory)
        for directory in directories
        for where, path in sorted(directory.partitions.items())
        if not topics or where.topic in topics
    ]
    missing = set(topics) - {state.where.topic for state in states}
    if missing:
        places = ", ".join(str(directory.path) for directory in directories)
        raise UsageError(f"--topic {sorted(missing)[0]}: no partition of it in {places}")
    return states


def _static(broker_config: Path | None) -> Mapping[str, Setting]:
    if broker_config is None:
        return {}
    return parse_server_properties(_text(broker_config), str(broker_config), foreign=True)


def _text(path: Path) -> str:
    return files.read_input(path).decode("utf-8", "replace")


def _elsewhere(directories: Sequence[LogDirectory], broker_config: Path | None) -> LogDirectory:
    """The directory of the metadata log by ``server.properties``; it is only read.

    Raises DirectoryRefusedError where there is none, or it is another broker's.
    """
    directory = _named_elsewhere(directories, broker_config)
    if directory is not None:
        return directory
    places = ", ".join(sorted({str(directory.path) for directory in directories}))
    kraft = any(directory.properties().get("version") == "1" for directory in directories)
    raise DirectoryRefusedError(
        f"{places}: no {METADATA_PARTITION} here; name all of the broker's log.dirs and its "
        "metadata.log.dir, or say where they are with --broker-config"
        if kraft
        else f"{places}: no {METADATA_PARTITION} here: a broker that ran with ZooKeeper kept its topics' "
        "settings there; give them with --config-file"
    )


def _named_elsewhere(directories: Sequence[LogDirectory], broker_config: Path | None) -> LogDirectory | None:
    if broker_config is None:
        return None
    named = first_property(
        _text(broker_config), str(broker_config), "metadata.log.dir", "log.dirs", "log.dir"
    )
    path = Path((named or "").partition(",")[0].strip())
    if not named or not files.is_directory(path / str(METADATA_PARTITION)):
        return None
    directory = LogDirectory.open(path, lock=False)
    directory.partitions = {}  # only the identity of the broker counts
    require_one_broker([*directories, directory])
    return directory
