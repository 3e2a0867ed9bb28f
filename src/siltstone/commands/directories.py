"""Opens the log directories of a command: as a snapshot, under their locks, or with a ``LogManager``.

::

    BrokerDirectories ─ snapshot ─► Snapshot              no lock, nothing changed: lists, offsets, records
                      ─ open ─────► LogManager            locked, recovered, open for changes
    locked_directories(paths) ────► [LogDirectory, …]     locked, not recovered: they were stopped cleanly

A ``Snapshot`` shows a directory that was not stopped cleanly as the next start would leave it, and one that
is in use as its files are now; its ``notes`` say so.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import Config
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    UnknownTopicError,
    UnsafeFileError,
    UsageError,
)
from siltstone.base.records.codecs import DECOMPRESSION_LIMIT_SETTING
from siltstone.base.records.metadata import Replicas
from siltstone.commands.policies import read_server_properties
from siltstone.compaction.inplace.planning import HIGH_WATERMARK_ADVICE, UNKNOWN_COMMITTED
from siltstone.log.checkpoints import node_number
from siltstone.log.directory import LogDirectory, open_directories, refuse_network_file_system
from siltstone.log.metadata_log import (
    METADATA_PARTITION,
    ClusterSettings,
    metadata_directory,
    node_id_of,
    read_cluster_settings,
)
from siltstone.log.names import CLUSTER_METADATA, LOCK, TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import (
    NO_TOPICS,
    TopicDescription,
    TopicRegistry,
    TopicSettings,
    load_registry,
    registry_files,
)

LIST_TOPICS = "siltstone topics --list shows the topics, --describe their partitions"
NOT_HERE = "is in none of these directories"
"""The failure of a partition that belongs to a topic but has no directory in these log directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectories:
    """A broker's log.dirs, and its own settings (``server_properties`` None: defaults)."""

    paths: tuple[Path, ...]
    server_properties: Path | None = None

    def broker_config(self) -> Config:
        """The broker's settings. Raises UsageError, OSError."""
        return Config(static=read_server_properties(self.server_properties))

    def snapshot(self) -> Snapshot:
        """A snapshot of the directories. Raises NotALogDirectoryError, CorruptFileError, OSError."""
        return Snapshot(self.paths, self.broker_config())

    def snapshot_before_creation(self) -> Snapshot:
        """A snapshot of those directories that exist and are not empty: before the first topic is created
        there may be none."""
        present = [
            path
            for path in self.paths
            if files.exists(path) and not (files.is_directory(path) and not files.entries(path))
        ]
        return Snapshot(present, self.broker_config())

    def open(self) -> LogManager:
        """Lock, recover and open the directories. Raises as ``LogManager.open``."""
        return LogManager.open(self.paths, config=self.broker_config())


def refuse_unclean(directory: LogDirectory) -> None:
    """Raises DirectoryRefusedError for a directory that needs recovery: for commands that do not recover."""
    if directory.has_broker_files and not directory.had_clean_shutdown:
        raise DirectoryRefusedError(
            "the directory was not stopped cleanly (no .kafka_cleanshutdown)",
            path=directory.path,
            advice=f"run siltstone recover {directory.path} (or start the broker on it once and stop it), "
            "then try again",
        )


@contextlib.contextmanager
def locked_directories(paths: Sequence[Path], *, dry_run: bool = False) -> Iterator[list[LogDirectory]]:
    """Log directories that were stopped cleanly, locked for a change in place, or for its dry run, which
    creates no lock file: it locks only those that have one.

    Raises DirectoryLockedError, DirectoryRefusedError, NotALogDirectoryError, OSError.
    """
    with contextlib.ExitStack() as stack:
        directories = [
            stack.enter_context(directory) for directory in open_directories(paths, dry_run=dry_run)
        ]
        for directory in directories:
            refuse_unclean(directory)
            refuse_network_file_system(directory)
        yield directories


class Snapshot:
    """Log directories, read once without a lock; ``notes`` says in which state each one is shown.
    ``directories``: in the order of ``paths``; ``partitions``: the directory of each partition, without
    ``__cluster_metadata-0`` and without deleted topics."""

    def __init__(
        self,
        paths: Sequence[Path],
        broker: Config,
        metadata_from: Snapshot | None = None,
        directories: list[LogDirectory] | None = None,
        registry_from: Snapshot | None = None,
    ) -> None:
        """``metadata_from``: an earlier snapshot, whose broker's metadata is used again; ``directories``:
        those of ``paths`` if they were listed just now; ``registry_from``: a snapshot whose registry of
        topics is used again if its files are the same.

        Raises NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError.
        """
        if metadata_from is not None:
            self._metadata = metadata_from._metadata  # sets the cached property, so it is not read
        self.paths = tuple(paths)
        self.broker = broker
        self.directories = open_directories(paths, lock=False) if directories is None else directories
        roots = sorted({directory.path for directory in self.directories})
        self.registry_files = registry_files(roots)
        if registry_from is not None and registry_from.registry_files == self.registry_files:
            self.registry: TopicRegistry = registry_from.registry
        else:
            self.registry = load_registry(roots)[0] if roots else NO_TOPICS
            # What was handed over to a Kafka has its settings in Kafka's metadata log since.
            if self.registry.is_handed_over and isinstance(self._metadata, ClusterSettings):
                self.registry = self.registry.without_handed_over(self._metadata)
        self.broker = self.registry.with_dynamic_settings(broker)
        self.partitions = {
            topic_partition: path
            for directory in self.directories
            for topic_partition, path in directory.partitions.items()
            if topic_partition.topic != CLUSTER_METADATA
            and not (self.registry.deleted and self._is_deleted(topic_partition, path))
        }

    @cached_property
    def logs(self) -> ReadOnlyLogs:
        """The logs, to be read. Raises SiltstoneError, OSError."""
        return ReadOnlyLogs(self.paths, opened=self.directories)

    def reopened(self) -> Snapshot:
        """The same partitions, whose logs and checkpoints are read as the files are now; the directories are
        not listed again."""
        again = copy.copy(self)
        vars(again).pop("logs", None)
        return again

    def _is_deleted(self, topic_partition: TopicPartition, path: Path) -> bool:
        """Will the next start delete this partition?"""
        with contextlib.suppress(CorruptFileError, OSError):
            return self.registry.has_deleted(topic_partition, path)
        return False

    @property
    def notes(self) -> list[str]:
        """Which directories are in use or were not stopped cleanly, and what that means; for display."""
        notes = []
        for directory in self.directories:
            if directory.had_clean_shutdown or not directory.has_broker_files:
                continue
            if files.is_locked(directory.path / LOCK):
                notes.append(f"{directory.path}: in use by another process; shown as its files are now")
            else:
                notes.append(
                    f"{directory.path}: was not stopped cleanly; shown as the next start would leave it; "
                    "siltstone recover repairs it"
                )
        return notes

    def _is_in_use(self, topic_partition: TopicPartition) -> bool:
        return files.is_locked(self.partitions[topic_partition].parent / LOCK)

    @property
    def has_brokers_metadata(self) -> bool:
        """Do the directories have a broker's metadata log, with its topics and their settings?"""
        return any(METADATA_PARTITION in directory.partitions for directory in self.directories)

    @property
    def broker_id(self) -> int:
        """The node id in ``meta.properties``, 0 without one."""
        return node_number(node_id_of(self.directories)) or 0

    def names(self) -> list[str]:
        """All topics, in order of name; if single partitions were named (``_is_partial``), only the topics of
        these."""
        listed = () if self._is_partial else self.registry.topics
        return sorted({*listed, *(topic_partition.topic for topic_partition in self.partitions)})

    def has(self, topic: str) -> bool:
        """Is there a topic of this name?"""
        return topic in self._by_topic or (topic in self.registry.topics and not self._is_partial)

    @cached_property
    def _by_topic(self) -> Mapping[str, Sequence[TopicPartition]]:
        """The partitions of each topic."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for topic_partition in self.partitions:
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition)
        return by_topic

    @cached_property
    def all_partitions(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the partitions of all topics, by name."""
        return {name: self.topic(name).partitions for name in self.names()}

    @property
    def _is_partial(self) -> bool:
        """Were only some partitions of a log directory named?"""
        return any(directory.is_partition_subset for directory in self.directories)

    def topic(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        partitions, is_registered = self._by_topic.get(name, ()), name in self.registry.topics
        paths = {topic_partition: self.partitions[topic_partition] for topic_partition in partitions}
        entry = self.registry.entry(name, paths)
        if is_registered and self._is_partial:
            numbers = sorted(topic_partition.partition for topic_partition in partitions)
            entry = replace(entry, partitions=tuple(numbers))
        return entry.describe(name, is_registered=is_registered)

    @cached_property
    def _metadata(self) -> ClusterSettings | str | None:
        """The broker's metadata, or why it cannot be read; None without a metadata log."""
        try:
            directory = metadata_directory(self.directories)
            if directory is None:
                return None
            return read_cluster_settings(directory, node_id=node_id_of(self.directories))
        except (CorruptFileError, DirectoryRefusedError, UsageError, OSError) as error:
            return str(error)

    @property
    def metadata_state(self) -> object:
        """Equal as long as the broker's metadata log says the same."""
        metadata = self._metadata
        return (
            (metadata.path, metadata.image.end_offset) if isinstance(metadata, ClusterSettings) else metadata
        )

    @cached_property
    def settings(self) -> TopicSettings:
        """The settings of all topics, over the broker's static and dynamic ones."""
        cluster = self._metadata if isinstance(self._metadata, ClusterSettings) else None
        broker = self.broker if cluster is None else cluster.effective_broker_config(self.broker)
        return TopicSettings(registered=self.registry.topics, cluster=cluster, broker=broker)

    def settings_of(self, topic: TopicDescription) -> TopicSettings:
        """The settings for this topic: without the broker's metadata if the topic of this name has another id
        there."""
        if self.settings.broker_topic_id(topic.name) == topic.topic_id:
            return self.settings
        return replace_fields(self.settings, cluster=None)

    def overrides(self, topic: TopicDescription) -> Mapping[str, str]:
        """A topic's own settings: Siltstone's, or all that its broker's metadata has."""
        cluster = self.settings_of(topic).cluster
        if topic.is_registered or cluster is None:
            return topic.config
        return cluster.overrides(topic.name)

    def partition_count(self, topic: TopicDescription) -> int | None:
        """How many partitions a broker's topic has in its metadata, here and elsewhere; None if that is not
        known."""
        cluster = self.settings_of(topic).cluster
        return None if cluster is None else cluster.partition_count(topic.name)

    def replicas_of(self, topic: TopicDescription, partition: int) -> Replicas:
        """The brokers that have a partition of a broker's topic; all fields None if that is not known."""
        cluster = self.settings_of(topic).cluster
        replicas = cluster and cluster.replicas_of(TopicPartition(topic.name, partition))
        return replicas or Replicas()

    def notes_on(self, topics: Sequence[TopicDescription]) -> list[str]:
        """The source of the settings of a broker's topics, or why they are not shown; for display."""
        metadata, of_broker = self._metadata, [topic for topic in topics if not topic.is_registered]
        if metadata is None or not of_broker:
            return []
        if isinstance(metadata, str):
            return [f"settings of the broker's topics are not shown: its metadata cannot be read: {metadata}"]
        deleted = [topic.name for topic in of_broker if not self.settings_of(topic).knows(topic.name)]
        return [
            f"settings of the broker's topics: its metadata log, up to offset {metadata.image.end_offset}",
            *(f"{name}: the metadata log has no topic with its id; it was deleted" for name in deleted),
        ]

    def config_of(self, topic: TopicDescription) -> Config:
        """A topic's settings over the broker's. Raises UsageError for a bad one."""
        return self.settings_of(topic).config_of(topic.name)

    def log(self, topic_partition: TopicPartition, *, beyond_high_watermark: bool = False) -> ReadOnlyLog:
        """A partition's log, up to the high watermark in the checkpoint.

        A topic that Siltstone created has no other replica, so its logs are read to their ends; with
        ``beyond_high_watermark`` those of all topics are. Batches may decompress to
        ``max.decompressed.message.bytes``.

        Raises UnknownTopicError, DirectoryRefusedError, CorruptFileError, OSError.
        """
        if topic_partition not in self.partitions:
            raise UnknownTopicError(
                f"there is no such partition in {', '.join(map(str, self.paths))}",
                path=str(topic_partition),
                advice=LIST_TOPICS,
            )
        try:
            log = self.logs[topic_partition]
        except DirectoryRefusedError as error:
            if isinstance(error, UnsafeFileError) or not self._is_in_use(topic_partition):
                raise
            raise DirectoryRefusedError(
                "the process that uses the directory is swapping segments",
                path=self.partitions[topic_partition],
                advice="try again in a moment",
            ) from None
        view = log.view._replace(batch_limit=self._batch_limit(topic_partition.topic))
        if beyond_high_watermark or topic_partition.topic in self.registry.topics:
            # An open transaction still bounds the last stable offset, also one that begins at or above the
            # high watermark in the checkpoint.
            end = view.log_end_offset
            stable = max(min((*log.open_transactions.values(), end)), view.log_start_offset)
            view = view._replace(high_watermark=end, last_stable_offset=stable)
        return replace_fields(log, view=view)

    def committed_log(
        self, topic_partition: TopicPartition, *, no_other_replica: bool = False
    ) -> ReadOnlyLog:
        """A partition's log up to the end of its committed records, for a change that depends on these.

        A topic that Siltstone created is committed to its end, any other up to the high watermark in the
        checkpoint; with ``no_other_replica`` a log without an entry there counts as committed to its end.
        Raises DirectoryRefusedError if the committed end is not known, and as ``log``.
        """
        bounds = (
            directory.checkpoints().committed_below(topic_partition, no_other_replica=no_other_replica)
            for directory in self.directories
            if topic_partition in directory.partitions
        )
        if topic_partition.topic not in self.registry.topics and next(bounds, None) is None:
            raise DirectoryRefusedError(
                UNKNOWN_COMMITTED, path=str(topic_partition), advice=HIGH_WATERMARK_ADVICE
            )
        return self.log(topic_partition)

    def _batch_limit(self, topic: str) -> int:
        """The bytes that a batch may decompress to: a setting of Siltstone, which Kafka's metadata never has,
        so only the registry is asked."""
        own = self.registry.topics.get(topic)
        if own is None or DECOMPRESSION_LIMIT_SETTING not in own.config:
            # Without making a Config: this is the usual case, and there may be 100,000 logs.
            return self.broker.integer(DECOMPRESSION_LIMIT_SETTING)
        settings = TopicSettings(registered=self.registry.topics, broker=self.broker)
        try:
            return settings.config_of(topic).integer(DECOMPRESSION_LIMIT_SETTING)
        except UsageError:  # reported by the commands that show settings
            return self.broker.integer(DECOMPRESSION_LIMIT_SETTING)

    def damage_of(self, topic_partition: TopicPartition) -> str | None:
        """Why a partition can only be read in part; None for one that a process is using."""
        damage = self.logs[topic_partition].damage
        if not damage or self._is_in_use(topic_partition):
            return None
        return f"not all of it can be read: {'; '.join(damage)}"
