"""The log directories that a command works on: a snapshot of them, or opened for changes.

A ``Snapshot`` takes no lock and changes nothing. Where a directory was not stopped cleanly (a crash, or a
process uses it now) it shows what the next start would find, and ``notes`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import Config, parse_server_properties
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    UnknownTopicError,
    UnsafeFileError,
    UsageError,
)
from siltstone.base.records.codecs import LIMIT_SETTING
from siltstone.compaction.inplace.facts import NO_HIGH_WATERMARK
from siltstone.log.directory import LogDirectory, open_directories
from siltstone.log.metadata_log import ClusterSettings, metadata_directory, node_id_of, read_cluster_settings
from siltstone.log.names import CLUSTER_METADATA, LOCK, TopicPartition
from siltstone.log.read_only import ReadOnlyLog, ReadOnlyLogs
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import NO_TOPICS, TopicDescription, TopicRegistry, TopicSettings, load_registry

INTERNAL_TOPICS = ("__consumer_offsets", "__share_group_state", "__transaction_state")
"""Topics that a broker keeps for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``directories``: a broker's log.dirs; ``server_properties``: its own settings, None: defaults."""

    directories: tuple[Path, ...]
    server_properties: Path | None = None

    def broker_config(self) -> Config:
        """The broker's settings. Raises UsageError, OSError."""
        if self.server_properties is None:
            return Config()
        text = files.read_input(self.server_properties).decode("utf-8", "replace")
        return Config(static=parse_server_properties(text, str(self.server_properties)))

    def snapshot(self) -> Snapshot:
        """A snapshot of the directories. Raises NotALogDirectoryError, CorruptFileError, OSError."""
        return Snapshot(self.directories, self.broker_config())

    def snapshot_before_creation(self) -> Snapshot:
        """A snapshot of those directories that are there, as before a first topic is created."""
        there = [
            path
            for path in self.directories
            if files.exists(path) and not (files.is_directory(path) and not files.entries(path))
        ]
        return Snapshot(there, self.broker_config())

    def open(self) -> LogManager:
        """Lock, recover and open the directories. Raises as ``LogManager.open``."""
        return LogManager.open(self.directories, config=self.broker_config())


def refuse_unclean(directory: LogDirectory) -> None:
    """Refuse a directory that needs recovery, for commands that do not recover. Raises
    DirectoryRefusedError."""
    if directory.is_log_directory and not directory.had_clean_shutdown:
        raise DirectoryRefusedError(
            f"{directory.path}: was not stopped cleanly (no .kafka_cleanshutdown); run siltstone recover "
            f"{directory.path} (or start the broker on it once and stop it), and try again then"
        )


class Snapshot:
    """Log directories as their files are now. ``directories``: in the order of ``paths``."""

    def __init__(self, paths: Sequence[Path], broker: Config, before: Snapshot | None = None) -> None:
        """``before``: an earlier snapshot, whose metadata of the broker is used again.

        Raises NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError.
        """
        if before is not None:
            self._metadata = before._metadata
        self.paths = tuple(paths)
        self.broker = broker
        self.directories = open_directories(paths, lock=False)
        self.logs = ReadOnlyLogs(paths)
        roots = {directory.path for directory in self.directories}
        self.registry: TopicRegistry = load_registry(roots)[0] if roots else NO_TOPICS
        self._here = {
            where: path
            for directory in self.directories
            for where, path in directory.partitions.items()
            if where.topic != CLUSTER_METADATA and not self._is_deleted(where, path)
        }

    def _is_deleted(self, where: TopicPartition, path: Path) -> bool:
        """Will the next start delete this partition?"""
        try:
            return self.registry.has_deleted(where, path)
        except CorruptFileError:
            return False

    @property
    def notes(self) -> list[str]:
        """For people: which directories are in use or were not stopped cleanly, and what that means."""
        notes = []
        for directory in self.directories:
            if directory.had_clean_shutdown or not directory.is_log_directory:
                continue
            if files.is_locked(directory.path / LOCK):
                notes.append(f"{directory.path}: in use by another process: shown as its files are now")
            else:
                notes.append(
                    f"{directory.path}: was not stopped cleanly: shown as the next start would find it; "
                    "siltstone recover repairs it"
                )
        return notes

    def _is_in_use(self, where: TopicPartition) -> bool:
        return files.is_locked(self._here[where].parent / LOCK)

    @property
    def has_brokers_metadata(self) -> bool:
        """Is a broker's metadata log here, where its topics and their settings are?"""
        partitions = (where for directory in self.directories for where in directory.partitions)
        return any(where.topic == CLUSTER_METADATA for where in partitions)

    @property
    def broker_id(self) -> int:
        """The node that the directories belong to, 0 where no ``meta.properties`` says."""
        number = node_id_of(self.directories) or ""
        return int(number) if number.isdigit() else 0

    def names(self) -> list[str]:
        """All topics, in order of name."""
        listed = () if self._is_partial else self.registry.topics
        return sorted({*listed, *(where.topic for where in self._here)})

    @property
    def _is_partial(self) -> bool:
        return any(directory.is_partial for directory in self.directories)

    def topic(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicError."""
        entry, made_here = self.registry.entry(name, self._here), name in self.registry.topics
        if made_here and self._is_partial:
            numbers = sorted(where.partition for where in self._here if where.topic == name)
            entry = replace(entry, partitions=tuple(numbers))
        return TopicDescription(
            name=name,
            topic_id=entry.topic_id or None,
            partitions=entry.partitions,
            config=dict(entry.config),
            made_here=made_here,
        )

    @cached_property
    def _metadata(self) -> ClusterSettings | str | None:
        """The broker's metadata log, or why it cannot be read; None where there is none."""
        try:
            holder = metadata_directory(self.directories)
            if holder is None:
                return None
            return read_cluster_settings(holder, node_id=node_id_of(self.directories))
        except (CorruptFileError, DirectoryRefusedError, UsageError, OSError) as error:
            return str(error)

    @cached_property
    def settings(self) -> TopicSettings:
        """The settings of all topics, over the broker's with those that were set at run time."""
        cluster = self._metadata if isinstance(self._metadata, ClusterSettings) else None
        broker = self.broker if cluster is None else cluster.effective_broker_config(self.broker)
        return TopicSettings(listed=self.registry.topics, cluster=cluster, broker=broker)

    def settings_of(self, topic: TopicDescription) -> TopicSettings:
        """The settings for this topic: without the metadata where that has another topic of its name."""
        if self.settings.brokers_id(topic.name) == topic.topic_id:
            return self.settings
        return replace_fields(self.settings, cluster=None)

    def own_texts(self, topic: TopicDescription) -> Mapping[str, str]:
        """A topic's own settings: Siltstone's, else those that its broker gave it, every one."""
        cluster = self.settings_of(topic).cluster
        return topic.config if topic.made_here or cluster is None else cluster.own_texts(topic.name)

    def notes_on(self, topics: Sequence[TopicDescription]) -> list[str]:
        """For people: where the settings of a broker's topics come from, or why they are not shown."""
        metadata, of_broker = self._metadata, [topic for topic in topics if not topic.made_here]
        if metadata is None or not of_broker:
            return []
        if isinstance(metadata, str):
            return [f"settings that a broker gave its topics are in its metadata log, not shown: {metadata}"]
        strange = [topic.name for topic in of_broker if not self.settings_of(topic).knows(topic.name)]
        return [
            f"settings of a broker's topics: its metadata log, up to offset {metadata.image.end_offset}",
            *(f"{name}: the metadata log has no such topic with its id: left over" for name in strange),
        ]

    def config_of(self, topic: TopicDescription) -> Config:
        """A topic's settings over the broker's. Raises UsageError for a bad one."""
        return self.settings_of(topic).config_of(topic.name)

    def path_of(self, where: TopicPartition) -> Path | None:
        """A partition's directory, None where it is in none of these."""
        return self._here.get(where)

    def log(self, where: TopicPartition, *, to_the_end: bool = False) -> ReadOnlyLog:
        """A partition's log, up to the high watermark in the checkpoint.

        A topic of Siltstone's has no other replica: it is read to its end, as all topics are with
        ``to_the_end``. Batches may decompress to ``max.decompressed.message.bytes``. Raises
        UnknownTopicError, DirectoryRefusedError, CorruptFileError, OSError.
        """
        if where not in self._here:
            raise UnknownTopicError(
                f"{where}: there is no such partition in {', '.join(map(str, self.paths))}"
            )
        try:
            log = self.logs[where]
        except UnsafeFileError:
            raise
        except DirectoryRefusedError:
            if not self._is_in_use(where):
                raise
            raise DirectoryRefusedError(
                f"{self._here[where]}: the process that uses it is swapping segments; try again in a moment"
            ) from None
        view = log.view._replace(batch_limit=self._batch_limit(where.topic))
        if to_the_end or where.topic in self.registry.topics:
            # An open transaction still bounds the last stable offset.
            is_stable = view.last_stable_offset == view.high_watermark
            stable = view.log_end_offset if is_stable else view.last_stable_offset
            view = view._replace(high_watermark=view.log_end_offset, last_stable_offset=stable)
        return ReadOnlyLog(log.where, log.directory, view, log.not_shown, log.first_dirty_offset)

    def committed_log(self, where: TopicPartition, *, no_other_replica: bool = False) -> ReadOnlyLog:
        """A partition's log as far as it is committed, for a change that depends on its records.

        A topic of Siltstone's is committed to its end, any other up to the high watermark in the checkpoint;
        ``no_other_replica`` holds for logs without an entry. Raises DirectoryRefusedError where the committed
        end is not known, and as ``log``.
        """
        bounds = (
            directory.checkpoints().committed_below(where, no_other_replica=no_other_replica)
            for directory in self.directories
            if where in directory.partitions
        )
        if where.topic not in self.registry.topics and next(bounds, None) is None:
            raise DirectoryRefusedError(f"{where}: {NO_HIGH_WATERMARK}")
        return self.log(where)

    def _batch_limit(self, topic: str) -> int:
        """The size that a batch may decompress to; a setting of Siltstone's, which no broker's topic has."""
        settings = TopicSettings(listed=self.registry.topics, broker=self.broker)
        try:
            return settings.config_of(topic).integer(LIMIT_SETTING)
        except UsageError:  # reported where settings are shown
            return self.broker.integer(LIMIT_SETTING)

    def damage_of(self, where: TopicPartition) -> str | None:
        """Why a partition can only be read in part; None for one that a process uses."""
        not_shown = self.logs[where].not_shown
        if not not_shown or self._is_in_use(where):
            return None
        return f"not all of it can be read: {'; '.join(not_shown)}"
