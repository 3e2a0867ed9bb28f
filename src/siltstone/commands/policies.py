"""Gathers the settings of each log of a cleaning; the options that commands share.

The sources, the strongest first::

    --config, --config-file   for named topics
    topic registry            ``siltstone-topics.json``: topics that were created or altered with Siltstone
    __cluster_metadata-0      the topics' own and the brokers' dynamic settings, of a broker with KRaft
    --broker-config           the broker's ``server.properties``, for topics that another source names

The second and the third are read wherever the directories have them, unless ``--no-policy-from-metadata`` is
passed. With ``--policy-from-metadata`` it is an error if there is no metadata log, unless the topic registry
has every topic. A log whose ``cleanup.policy`` no source names is skipped: its policy is unknown. With the
metadata, a directory is a topic's partition only if it has the topic's id (``partition.metadata``):
directories of a deleted topic with the same name are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    Layer,
    LogConfig,
    Setting,
    first_property,
    parse_assignments,
    parse_config_file,
    parse_server_properties,
    refuse_contradictions,
)
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError, UnsafeFileError, UsageError
from siltstone.commands.engines import parse_spark_conf, uses_spark
from siltstone.compaction.inplace.planning import LogState, PlanOptions
from siltstone.log.directory import LogDirectory, require_one_broker
from siltstone.log.metadata_log import (
    METADATA_PARTITION,
    ClusterSettings,
    metadata_directory,
    node_id_of,
    read_cluster_settings,
)
from siltstone.log.names import CLUSTER_METADATA, TopicPartition
from siltstone.log.tiered.joining import remote_lines
from siltstone.runtime.topics import TopicSettings, load_registry

_logger = logging.getLogger("siltstone")
_METADATA_ADVICE = (
    "copy __cluster_metadata-0 from another controller, or pass --no-policy-from-metadata with --config"
)
NO_BROKER_CONFIG = "no --broker-config: Kafka's defaults are used for the broker's static settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which logs, with which settings, as of when and up to which end: the options of ``clean --watch``.

    Parameters
    ----------
    topics
        Only this topic; repeat it for more.
    config
        A setting of the topics, key=value; needs --topic unless one partition directory is named; repeat it
        for more.
    config_file
        A file of lines topic:key=value.
    policy_from_metadata
        Fail without the broker's __cluster_metadata-0 (KRaft), unless Siltstone's topic registry has all
        topics. By default each of the two is used if it is there.
    no_policy_from_metadata
        Ignore the settings in __cluster_metadata-0 and in Siltstone's topic registry.
    broker_config
        The broker's server.properties: for settings that neither a topic nor the broker's dynamic settings
        have.
    now_ms
        The clock for lags, horizons and producer expiry, in ms; default: the wall clock.
    high_watermark
        "end": if replication-offset-checkpoint has no entry for a log, its high watermark is its end, as it
        has no other replica. An existing entry still bounds its log.
    """

    topics: Sequence[str] = ()
    config: Sequence[str] = ()
    config_file: Path | None = None
    policy_from_metadata: bool = False
    no_policy_from_metadata: bool = False
    broker_config: Path | None = None
    now_ms: int | None = None
    high_watermark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(LogOptions):
    """``LogOptions``, and the options of the engine.

    Parameters
    ----------
    engine
        What does the work: spark; process, which is this process, one log after another, without Java; or
        auto, which uses Spark if the logs have 256 MiB or more, if --master is passed, if the program has
        a Spark session, or in spark-submit, and else this process.
    no_spark
        The same as --engine process.
    master
        The Spark master; default: that of spark-submit, or local[*].
    spark_conf
        A setting of Spark, spark.NAME=VALUE, as for spark-submit; repeat it for more.
    spill_dir
        The folder for what Spark spills.
    """

    engine: str = "auto"
    no_spark: bool = False
    master: str | None = None
    spark_conf: Sequence[str] = ()
    spill_dir: Path | None = None

    def uses_spark(self, size: Callable[[], int]) -> bool:
        """Does Spark do the work on logs of ``size`` bytes in all? Raises UsageError."""
        parse_spark_conf(self.spark_conf)  # refused before anything is done, whatever does the work
        return uses_spark(self.engine, self.master, size, no_spark=self.no_spark)

    @property
    def spark_settings(self) -> dict[str, str]:
        """``spark_conf`` by name. Raises UsageError."""
        return parse_spark_conf(self.spark_conf)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningOptions(RunOptions):
    """``RunOptions``, and the options that ``clean`` and ``explain`` share.

    Parameters
    ----------
    directories
        Kafka log directories (all log.dirs of one broker together), or one partition directory.
    force
        Clean whatever the dirty ratio.
    drop_keyless
        Allow records without a key to be removed.
    """

    directories: Sequence[Path] = ()
    force: bool = False
    drop_keyless: bool = False

    def plan_options(self, now_ms: int) -> PlanOptions:
        """The planner's options, as of ``now_ms``. Raises UsageError."""
        return PlanOptions(
            now_ms=now_ms,
            force=self.force,
            drop_keyless=self.drop_keyless,
            high_watermark_is_end=high_watermark_is_end(self.high_watermark),
        )


def high_watermark_is_end(high_watermark: str | None) -> bool:
    """Is the end of a log its high watermark, if ``replication-offset-checkpoint`` has none for it
    (``--high-watermark end``)? Raises UsageError for another word."""
    if high_watermark not in (None, "end"):
        reason = f"--high-watermark {high_watermark}: only 'end' is allowed"
        raise UsageError(reason, advice="pass --high-watermark end, or leave it out")
    return high_watermark == "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The settings from all sources.

    ``config``, ``by_topic``: from ``--config`` and ``--config-file``. ``settings``: from the topic registry,
    the metadata log and the broker's ``server.properties``. ``has_broker_config``: that file was named, so
    the broker's static settings are known.
    """

    config: Mapping[str, Setting]
    by_topic: Mapping[str, Mapping[str, Setting]]
    settings: TopicSettings
    notes: tuple[str, ...] = ()
    has_broker_config: bool = False

    def state_of(self, topic_partition: TopicPartition, path: Path, directory: LogDirectory) -> LogState:
        """One log with its settings (``config``), or with the reason why it is ``refused``; with neither if
        no source names its cleanup policy. Raises UsageError for invalid settings of the command line."""
        topic, settings = topic_partition.topic, self.settings
        created_by_siltstone = settings.is_created_by_siltstone(topic)
        state = LogState(
            topic_partition=topic_partition,
            path=path,
            directory=directory,
            config=None,
            has_brokers_defaults=self.has_broker_config or created_by_siltstone,
        )
        from_file = self.by_topic.get(topic, {})
        has_stored_settings = settings.cluster is not None or topic in settings.registered
        if topic == CLUSTER_METADATA or not (has_stored_settings or from_file or self.config):
            return state
        try:
            refused = settings.topic_mismatch(topic, path)
        except CorruptFileError:
            refused = None  # a damaged partition.metadata is reported when the cleaning is planned
        except OSError as error:
            # The settings may be those of another topic, which has the same name; other logs go on.
            refused = f"{error.filename or path}: {error.strerror or error}"
        if refused is not None:
            return msgspec.structs.replace(state, refused=refused)
        try:
            stored = settings.config_of(topic)
            config = refuse_contradictions(stored.with_topic_layer(from_file).with_topic_layer(self.config))
        except UsageError as error:
            if not has_stored_settings:
                raise
            return msgspec.structs.replace(state, refused=str(error))
        if (
            not has_stored_settings
            and config.setting("cleanup.policy").config_source is ConfigSource.DEFAULT_CONFIG
        ):
            return state
        # If the stored settings compact the topic, its broker discards keyless records, too. If only the
        # command line does, that may be a mistake, so ``--drop-keyless`` has to allow it.
        is_compacted_by_broker = has_stored_settings and "compact" in stored.policies
        return msgspec.structs.replace(state, config=config, drop_keyless=is_compacted_by_broker)


def gather_policies(directories: Sequence[LogDirectory], options: LogOptions) -> Policies:
    """Read all sources. Raises UsageError, DirectoryRefusedError, CorruptFileError, OSError."""
    # ``--config`` would be for all topics of a log directory; a partition directory has one topic.
    is_log_directory = not all(directory.is_partition_subset for directory in directories)
    if options.config and not options.topics and is_log_directory:
        raise UsageError("--config needs --topic", advice="pass --topic for the topics of the settings")
    config = parse_assignments(options.config, "--config")
    by_topic: dict[str, dict[str, Setting]] = {}
    if options.config_file is not None:
        by_topic = parse_config_file(
            read_text(options.config_file, "--config-file"), str(options.config_file)
        )
    absent = by_topic.keys() - {
        topic_partition.topic for directory in directories for topic_partition in directory.partitions
    }
    static = read_server_properties(options.broker_config, "--broker-config", skip_unknown=True)
    has_broker_config = options.broker_config is not None
    settings, notes = TopicSettings(broker=Config(static=static)), list[str]()
    if options.policy_from_metadata and options.no_policy_from_metadata:
        reason = "--policy-from-metadata and --no-policy-from-metadata exclude each other"
        raise UsageError(reason, advice="pass one of them")
    if not options.no_policy_from_metadata:
        registry = load_registry(directory.path for directory in directories)[0]
        cluster = _cluster_settings(directories, registry.topics, options, static)
        registry = registry.without_handed_over(cluster)
        settings = replace(settings, registered=registry.topics, cluster=cluster)
        broker = settings.broker if cluster is None else cluster.broker
        settings = replace(settings, broker=registry.with_dynamic_settings(broker))
        if cluster is not None:
            notes = [f"settings of topics: {cluster.path} up to offset {cluster.image.end_offset}"]
            notes += [] if has_broker_config else [NO_BROKER_CONFIG]
    notes += [f"{options.config_file}: no partition of {', '.join(sorted(absent))} is here"] if absent else []
    return Policies(
        config=config,
        by_topic=by_topic,
        settings=settings,
        notes=tuple(notes),
        has_broker_config=has_broker_config,
    )


def _cluster_settings(
    directories: Sequence[LogDirectory], registered: Container[str], options: LogOptions, static: Layer
) -> ClusterSettings | None:
    """The settings in the broker's metadata log; None if there is none.

    ``registered``: the topics in the topic registry. Raises DirectoryRefusedError if there is no metadata
    log, the options require it, and a topic is not registered; CorruptFileError, UsageError, OSError.
    """
    topics = [topic_partition.topic for directory in directories for topic_partition in directory.partitions]
    directory = metadata_directory(directories)
    if directory is None and not all(topic in registered for topic in topics):
        directory = _metadata_of_properties(directories, options.broker_config)
        if directory is None and options.policy_from_metadata:
            raise _missing_metadata(directories)
    if directory is None:
        return None
    try:
        return read_cluster_settings(directory, node_id=node_id_of(directories), static=static)
    except CorruptFileError as error:
        if error.advice is None:
            error.advice = _METADATA_ADVICE
        raise


def recovery_configs(
    directories: Sequence[LogDirectory], config: Mapping[str, Setting], broker_config: Path | None = None
) -> Callable[[TopicPartition], LogConfig]:
    """The settings for the recovery of each log: ``config``, over the topic's own settings in the metadata,
    over the broker's ``server.properties``.

    Metadata that cannot be read is logged and not used: no record depends on the settings of a recovery.
    Raises UsageError and OSError for ``broker_config``, DirectoryRefusedError if it names another broker's
    metadata.
    """
    static = read_server_properties(broker_config, "--broker-config", skip_unknown=True)
    cluster: ClusterSettings | None = None
    try:
        directory = metadata_directory(directories) or _metadata_of_properties(directories, broker_config)
        if directory is not None:
            cluster = read_cluster_settings(directory, node_id=node_id_of(directories), static=static)
    except (CorruptFileError, UnsafeFileError, UsageError, OSError) as error:
        _logger.warning("the topics' own settings are not known, the defaults are used: %s", error)

    def config_of(topic_partition: TopicPartition) -> LogConfig:
        if cluster is not None and cluster.topic_id(topic_partition.topic) is not None:
            try:
                return LogConfig.of(cluster.config_of(topic_partition.topic).with_topic_layer(config))
            except UsageError as error:
                _logger.warning("%s: the topic's own settings are not used: %s", topic_partition, error)
        return LogConfig.of(Config(config, static=static))

    return config_of


_AS_IF_COMPACTED = "as if compacted"
"""The source of the settings that ``as_if_compacted`` replaces; ``tiered_notes`` recognises them by it."""
_REMOTE_STORAGE = "remote.storage.enable"


def as_if_compacted(state: LogState) -> LogState:
    """The log of a topic with tiered storage, whose remote part is read, with the settings of one that is
    compacted: Kafka cleans no such topic, and what it would save is only shown."""
    if not files.is_joined(state.path) or state.config is None or not state.config.flag(_REMOTE_STORAGE):
        return state
    layer = parse_assignments((f"{_REMOTE_STORAGE}=false",), _AS_IF_COMPACTED)
    if not state.is_compacted:
        layer |= parse_assignments(("cleanup.policy=compact",), _AS_IF_COMPACTED)
    return msgspec.structs.replace(state, config=state.config.with_topic_layer(layer))


def tiered_notes(states: Iterable[LogState]) -> Iterator[str]:
    """Notes on logs with tiered storage: which remote segments were read, and that Kafka does not compact
    such topics."""
    topics = set()
    for state in states:
        if state.config is not None and state.config.setting(_REMOTE_STORAGE).source == _AS_IF_COMPACTED:
            topics.add(state.topic_partition.topic)
        yield from remote_lines(state.path)
    if topics:
        names, has = ", ".join(sorted(topics)), "has" if len(topics) == 1 else "have"
        yield f"{names} {has} tiered storage, which Kafka does not compact: shown as if it did"


def log_states(
    directories: Sequence[LogDirectory], policies: Policies, topics: Sequence[str]
) -> list[LogState]:
    """The selected logs (``topics`` empty: all), each with its settings. Raises UsageError."""
    states = [
        policies.state_of(topic_partition, path, directory)
        for directory in directories
        for topic_partition, path in sorted(directory.partitions.items())
        if not topics or topic_partition.topic in topics
    ]
    refuse_missing_topics(
        topics,
        (state.topic_partition for state in states),
        [directory.path for directory in directories],
    )
    return states


def refuse_missing_topics(
    topics: Sequence[str], partitions: Iterable[TopicPartition], paths: Sequence[Path]
) -> None:
    """Raises UsageError for a topic (``--topic``) without a partition."""
    missing = set(topics) - {topic_partition.topic for topic_partition in partitions}
    if missing:
        raise UsageError(
            f"--topic {min(missing)}: the directories have no partition of it",
            path=", ".join(map(str, paths)),
            advice="siltstone topics --list --dir DIR shows the topics",
        )


def read_server_properties(
    path: Path | None, flag: str = "--server-properties", *, skip_unknown: bool = False
) -> Mapping[str, Setting]:
    """The settings of a ``server.properties``, which ``flag`` names; none without a path. ``skip_unknown``:
    skip the settings that Siltstone does not know, which are an error otherwise. Raises UsageError."""
    if path is None:
        return {}
    return parse_server_properties(read_text(path, flag), str(path), skip_unknown=skip_unknown)


def read_text(path: Path, flag: str) -> str:
    """The text of a file that ``flag`` names. Raises UsageError if it cannot be read."""
    try:
        return files.read_input(path).decode("utf-8", "replace")
    except OSError as error:
        reason = f"{flag} {path}: {error.strerror or error}"
        raise UsageError(reason, advice=f"pass {flag} with a file that can be read") from error


def _missing_metadata(directories: Sequence[LogDirectory]) -> DirectoryRefusedError:
    """The error of directories that have no metadata log, where it is required."""
    # The version of meta.properties: 1 with KRaft, 0 with ZooKeeper.
    is_kraft = any(directory.properties().get("version") == "1" for directory in directories)
    return DirectoryRefusedError(
        f"the directories have no {METADATA_PARTITION}, where a broker's topics and their settings are",
        path=", ".join(sorted({str(directory.path) for directory in directories})),
        advice="name all of the broker's log.dirs and its metadata.log.dir, or pass --broker-config"
        if is_kraft
        else "a broker with ZooKeeper has its settings there: pass them with --config-file",
    )


def _metadata_of_properties(
    directories: Sequence[LogDirectory], broker_config: Path | None
) -> LogDirectory | None:
    """The log directory with the metadata log, where a ``server.properties`` (``broker_config``) says; it is
    only read. None if there is none."""
    if broker_config is None:
        return None
    names = ("metadata.log.dir", "log.dirs", "log.dir")
    named = first_property(read_text(broker_config, "--broker-config"), str(broker_config), *names)
    path = Path((named or "").partition(",")[0].strip())
    if not named or not files.is_directory(path / str(METADATA_PARTITION)):
        return None
    directory = LogDirectory.open(path, lock=False)
    directory.partitions = {}  # only the broker's identity is compared
    require_one_broker([*directories, directory])
    return directory
