"""Hands log directories over to a real Kafka, which takes their topics as its own: ``siltstone hand-over``.

A KRaft broker knows its topics from the metadata log ``__cluster_metadata-0``. If a partition is not in that
log, the broker renames the partition's directory to ``-stray``. If the metadata log is empty, the controller
begins it with the records of the file ``bootstrap.checkpoint`` (KIP-778). So the hand-over writes that file::

    1  lock     the directories, which were stopped cleanly
    2  read     topics with their ids, partitions and settings, quotas, leader epochs, the next
                producer id
    3  refuse   a topic of which a partition is missing: Kafka would create it empty
    4  write    partition.metadata of topics that have no id yet: Kafka compares it with the metadata log
    5  write    bootstrap.checkpoint
    6  write    the topic registry, in which these topics are marked as handed over
    7  move     the old metadata log, if there is one: beside it Kafka ignores bootstrap.checkpoint

The registry gets what the checkpoint has, as far as Siltstone knows it: once the old metadata log is moved,
the registry is all that Siltstone has until a Kafka starts. What Siltstone does not know (settings of newer
releases, throttles of replication) is read from the checkpoint if the command is run again.

After each step Siltstone opens the directories with the same topics and settings, and a run that was
interrupted may be repeated. Once Kafka has started, the settings of these topics and of brokers are
those in its metadata log; the topic registry's do not count any more (``TopicRegistry.handed_over``).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import BROKER_SETTING_NAMES, TOPIC_NAMES, ConfigSource, parse_stored_config
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError, UsageError
from siltstone.base.records.metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    ProducerIdsRecord,
    TopicRecord,
    encode_config,
    encode_feature,
    encode_partition,
    encode_producer_ids,
    encode_quota,
    encode_topic,
)
from siltstone.broker.producer_ids import BLOCK, first_free_id, read_next_producer_id
from siltstone.commands.directories import BrokerDirectories, Snapshot, locked_directories
from siltstone.log.bootstrap import BOOTSTRAP_CHECKPOINT, bootstrap_checkpoint
from siltstone.log.checkpoints import LeaderEpochs, read_topic_id, require_node_number
from siltstone.log.directory import LogDirectory, require_one_broker
from siltstone.log.metadata_log import (
    BROKER_RESOURCE,
    METADATA_PARTITION,
    TOPIC_RESOURCE,
    MetadataImage,
    metadata_directory,
    node_id_of,
    read_snapshot,
)
from siltstone.log.names import META_PROPERTIES, PARTITION_METADATA, TopicPartition
from siltstone.log.producers import load_producers
from siltstone.log.segments import list_segments
from siltstone.runtime.quotas import ordered
from siltstone.runtime.topic_names import new_id, partition_metadata
from siltstone.runtime.topics import (
    TopicDescription,
    TopicEntry,
    TopicRegistry,
    dynamic_source,
    load_registry,
    write_registry,
)

FEATURES: Mapping[str, Mapping[str, int]] = {
    "4.0": {"metadata.version": 25, "transaction.version": 2, "group.version": 1},
    "4.1": {
        "metadata.version": 27,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
    },
    "4.2": {
        "metadata.version": 29,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
    "4.3": {
        "metadata.version": 30,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
}
"""The feature levels of a cluster, by Kafka's release (``kafka-storage version-mapping``)."""
NEWEST_RELEASE = "4.3"
_OWN_PREFIX = "siltstone."
"""The prefix of the names of settings that only Siltstone has."""
_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverRequest:
    """The options of a hand-over. ``release``: the Kafka that will start, such as ``4.3``;
    ``move_metadata_to``: where to move the metadata log that the directories have, a path that does not exist
    yet, on their file system; None if they have none."""

    directories: BrokerDirectories
    release: str = NEWEST_RELEASE
    move_metadata_to: Path | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The result of a hand-over or its dry run. ``path``: the file ``bootstrap.checkpoint``. ``topics``,
    ``partitions``, ``settings``, ``quotas``: how many it has. ``next_producer_id``: the first id that the
    Kafka may give. ``left_out``: settings that only Siltstone has, as ``TOPIC: NAME=VALUE``; ``new_ids``: the
    topics that had no id; ``moved``: the old metadata log's new path, None if there is none."""

    path: Path
    release: str
    node_id: int
    cluster_id: str
    topics: int
    partitions: int
    settings: int
    quotas: int
    next_producer_id: int
    left_out: Sequence[str]
    new_ids: Sequence[str]
    moved: Path | None
    dry_run: bool

    def to_json(self) -> dict[str, object]:
        """The object that ``--json`` prints."""
        return {
            **asdict(self),
            "path": str(self.path),
            "moved": None if self.moved is None else str(self.moved),
        }


def hand_over(request: HandOverRequest, clock: Clock | None = None) -> HandOver:
    """Hand the directories over; a dry run only reads them.

    Raises UsageError for an unknown release or a bad target, DirectoryLockedError, DirectoryRefusedError for
    directories of several brokers, that lack a partition or their ids or have a partition twice, or that have
    a metadata log that was not to be moved, CorruptFileError, OSError.
    """
    if request.release not in FEATURES:
        known = ", ".join(FEATURES)
        raise UsageError(
            f"release {request.release!r} is not known", path="--release", advice=f"pass {known}"
        )
    clock = clock or SystemClock()
    paths = request.directories.paths
    with locked_directories(paths, dry_run=request.dry_run) as directories:
        snapshot = Snapshot(paths, request.directories.broker_config(), directories=directories)
        # A partition of a deleted topic is not handed over: Kafka does not know its id.
        require_one_broker(directories, is_stray=snapshot.registry.has_deleted)
        plan = _Plan(request, snapshot)
        if not request.dry_run:
            plan.write(clock.now_ms())
        return plan.result()


class _Plan:
    """Steps 2 to 7 of the hand-over of locked directories; the constructor does 2 and 3."""

    def __init__(self, request: HandOverRequest, snapshot: Snapshot) -> None:
        self._request, self._snapshot = request, snapshot
        self._directories: Sequence[LogDirectory] = snapshot.directories
        self._node, self._cluster_id = self._identity()
        self._metadata_log_directory = metadata_directory(self._directories)
        self._refuse_metadata_log()
        self._topics = [snapshot.topic(name) for name in snapshot.names()]
        _refuse_gaps(self._topics, snapshot)
        self._new_ids = {topic.name: self._new_id(topic) for topic in self._topics if not topic.topic_id}
        self._earlier_image = self._handed_over_before()
        self._settings = list(self._config_records())
        self._quotas = list(self._quota_records())
        self._next_producer_id = self._find_next_producer_id()

    @property
    def _path(self) -> Path:
        """The file to write, where Kafka looks for it: in the directory that has the metadata log, else in
        the first one."""
        return (self._metadata_log_directory or self._directories[0]).path / BOOTSTRAP_CHECKPOINT

    def _identity(self) -> tuple[int, str]:
        """(the node id, the cluster id) in ``meta.properties``. Also sets ``_directory_ids``: the
        ``directory.id`` in it by the directory's path. Raises DirectoryRefusedError."""
        properties = [directory.properties() for directory in self._directories]
        self._directory_ids = {
            directory.path: stated.get("directory.id")
            for directory, stated in zip(self._directories, properties, strict=True)
        }
        cluster_ids = [stated.get("cluster.id") for stated in properties]
        node, cluster = node_id_of(self._directories), next(iter(cluster_ids), None)
        missing = [
            directory.path
            for directory, cluster_id in zip(self._directories, cluster_ids, strict=True)
            if not cluster_id
        ]
        if missing or node is None or not cluster:
            raise DirectoryRefusedError(
                "meta.properties lacks the id of the cluster or of the node",
                path=", ".join(map(str, missing or [self._directories[0].path])),
                advice="open the directories with siltstone serve once, which completes them",
            )
        return require_node_number(node, self._directories[0].path / META_PROPERTIES), cluster

    def _refuse_metadata_log(self) -> None:
        """Raises DirectoryRefusedError for a metadata log that is to stay, UsageError for a bad target."""
        target = self._request.move_metadata_to
        if self._metadata_log_directory is None:
            return
        if target is None:
            raise DirectoryRefusedError(
                "there is a broker's metadata log, beside which Kafka reads no bootstrap.checkpoint",
                path=self._metadata_log_directory.path / str(METADATA_PARTITION),
                advice="if Siltstone has created, altered or deleted topics, pass --move-metadata-to FOLDER; "
                "else nothing is to be done: a Kafka starts on the directories as they are",
            )
        target = target.absolute()
        if files.exists(target) or not files.is_directory(target.parent):
            raise UsageError(
                "is there already, or its parent is missing",
                path=f"--move-metadata-to {target}",
                advice="name a new folder",
            )
        if any(target.is_relative_to(directory.path.absolute()) for directory in self._directories):
            raise UsageError(
                "is in a log directory, where Kafka would stop at it",
                path=f"--move-metadata-to {target}",
                advice="name a folder outside of the log directories",
            )
        devices = [
            files.stat(path).device_and_inode[0]
            for path in (target.parent, self._metadata_log_directory.path)
        ]
        if devices[0] != devices[1]:
            raise UsageError(
                "is on another file system than the metadata log, which is renamed",
                path=f"--move-metadata-to {target}",
                advice="name a folder on the same one, and copy it from there",
            )

    def _new_id(self, topic: TopicDescription) -> str:
        """The id for a topic that has none in the registry or the metadata log: that of a partition, or a new
        one."""
        paths = (self._snapshot.partitions[TopicPartition(topic.name, number)] for number in topic.partitions)
        return next(filter(None, map(read_topic_id, paths)), None) or new_id(secrets.token_bytes)

    def _id_of(self, topic: TopicDescription) -> str:
        return topic.topic_id or self._new_ids[topic.name]

    def _handed_over_before(self) -> MetadataImage:
        """The metadata that an earlier run has handed over, if no Kafka has started since; else empty. Raises
        CorruptFileError."""
        if (
            self._metadata_log_directory is None
            and self._snapshot.registry.is_handed_over
            and files.exists(self._path)
        ):
            return read_snapshot(self._path)
        return MetadataImage()

    @property
    def _image(self) -> MetadataImage:
        """What Kafka knows: the metadata log, or without one what an earlier run has handed over."""
        metadata_log = self._snapshot.settings.cluster
        return self._earlier_image if metadata_log is None else metadata_log.image

    def _overrides(self) -> Iterator[tuple[TopicDescription, str, str]]:
        """(topic, name, value) of the topics' settings. The registry cannot hold those that Siltstone does
        not know, so these come from an earlier run's checkpoint."""
        for topic in self._topics:
            settings = dict(self._snapshot.overrides(topic))
            if topic.topic_id in self._snapshot.registry.handed_over:
                earlier = self._earlier_image.settings_of(TOPIC_RESOURCE, topic.name)
                settings |= {name: text for name, text in earlier.items() if name not in TOPIC_NAMES}
            for name, text in sorted(settings.items()):
                yield topic, name, text

    def _config_records(self) -> Iterator[ConfigRecord]:
        """The settings of topics, and those of brokers that were set at run time."""
        for topic, name, text in self._overrides():
            if not name.startswith(_OWN_PREFIX):
                yield ConfigRecord(TOPIC_RESOURCE, topic.name, name, text)
        for resource, settings in self._broker_settings().items():
            for name, text in sorted(settings.items()):
                if not name.startswith(_OWN_PREFIX):
                    yield ConfigRecord(BROKER_RESOURCE, resource, name, text)

    def _broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        """The settings of brokers that were set at run time, by Kafka or by Siltstone."""
        own = self._snapshot.registry.brokers
        # A metadata log counts with all its settings. Of an earlier run's checkpoint only those count that
        # the registry cannot hold: of the others the registry has the values of now.
        in_registry = BROKER_SETTING_NAMES if self._snapshot.settings.cluster is None else frozenset[str]()
        kafkas = {
            name: {key: text for key, text in settings.items() if key not in in_registry}
            for (kind, name), settings in self._image.settings.items()
            if kind == BROKER_RESOURCE
        }
        return {name: {**kafkas.get(name, {}), **own.get(name, {})} for name in sorted({*kafkas, *own})}

    def _quota_records(self) -> Iterator[ClientQuotaRecord]:
        """The quotas of users, clients and addresses."""
        quotas = self._snapshot.registry.effective_quotas(self._snapshot.settings.cluster)
        for entity, values in ordered(quotas).items():
            for key, value in values.items():
                yield ClientQuotaRecord(entity, key, value)

    def _find_next_producer_id(self) -> int:
        """The first producer id that neither Siltstone nor a Kafka has given to a producer, rounded up to the
        beginning of a block; 0 if none was given. If a directory's ``siltstone-broker.json`` is damaged, ids
        are skipped, as when a broker starts (``first_free_id``)."""
        known, is_damaged = self._image.next_producer_id, False
        for directory in self._directories:
            try:
                known = max(known, read_next_producer_id(directory.path) or 0)
            except CorruptFileError as error:
                _logger.warning("%s", error)
                is_damaged = True
        first = first_free_id(known, self._largest_producer_id, is_damaged=is_damaged)
        return -(-first // BLOCK) * BLOCK

    def _largest_producer_id(self, below: int) -> int:
        """The largest producer id under ``below`` in the logs, -1 without one."""
        paths = self._snapshot.partitions.values()
        states = (load_producers(path, list_segments(path)) for path in paths)
        return max((state.largest_id(below) for state in states), default=-1)

    def _records(self) -> Iterator[bytes]:
        """The encoded records of the checkpoint: a topic comes before its partitions, as Kafka requires."""
        for name, level in FEATURES[self._request.release].items():
            yield encode_feature(name, level)
        for topic in self._topics:
            yield encode_topic(TopicRecord(topic.name, self._id_of(topic)))
            for number in topic.partitions:
                yield self._partition_record(topic, number)
        for record in self._settings:
            yield encode_config(record)
        for quota in self._quotas:
            yield encode_quota(quota)
        if self._next_producer_id:
            yield encode_producer_ids(ProducerIdsRecord(self._next_producer_id), broker=self._node)

    def _partition_record(self, topic: TopicDescription, number: int) -> bytes:
        path = self._snapshot.partitions[TopicPartition(topic.name, number)]
        return encode_partition(
            number,
            self._id_of(topic),
            broker=self._node,
            leader_epoch=LeaderEpochs(path).latest_epoch or 0,
            directory_id=self._directory_ids[path.parent],
        )

    def write(self, now_ms: int) -> None:
        """Steps 4 to 7, in an order in which a crash leaves directories that Siltstone can open."""
        for topic in self._topics:
            if topic.name in self._new_ids:
                for number in topic.partitions:
                    path = self._snapshot.partitions[TopicPartition(topic.name, number)]
                    files.replace(path / PARTITION_METADATA, partition_metadata(self._new_ids[topic.name]))
        files.replace(self._path, bootstrap_checkpoint(list(self._records()), now_ms))
        registry = self._registry().as_newest(now_ms)
        for directory in self._directories:
            write_registry(directory.path, registry)
        if self._metadata_log_directory is not None and self._request.move_metadata_to is not None:
            files.rename(
                self._metadata_log_directory.path / str(METADATA_PARTITION), self._request.move_metadata_to
            )
            files.sync_directory(self._request.move_metadata_to.absolute().parent)
            files.sync_directory(self._metadata_log_directory.path)

    def _registry(self) -> TopicRegistry:
        """The registry with what the checkpoint has, as far as Siltstone knows it."""
        registry = load_registry(directory.path for directory in self._directories)[0]
        topics = {
            topic.name: TopicEntry(
                topic_id=self._id_of(topic),
                partitions=topic.partitions,
                uncreated=(),
                config=self._snapshot.settings_of(topic).overrides(topic.name),
            )
            for topic in self._topics
        }
        settings, resources = self._broker_settings(), ("", str(self._node))  # "": the default of all brokers
        brokers = {
            name: _known_settings(settings[name], dynamic_source(of_all=not name))
            for name in resources
            if name in settings
        }
        metadata_log = self._snapshot.settings.cluster
        quotas = self._snapshot.registry.effective_quotas(metadata_log)
        return registry.all_handed_over(topics, brokers, quotas, metadata_log)

    def result(self) -> HandOver:
        """The result."""
        return HandOver(
            path=self._path,
            release=self._request.release,
            node_id=self._node,
            cluster_id=self._cluster_id,
            topics=len(self._topics),
            partitions=sum(len(topic.partitions) for topic in self._topics),
            settings=len(self._settings),
            quotas=len(self._quotas),
            next_producer_id=self._next_producer_id,
            left_out=[
                f"{topic.name}: {name}={text}"
                for topic, name, text in self._overrides()
                if name.startswith(_OWN_PREFIX)
            ],
            new_ids=sorted(self._new_ids),
            moved=self._request.move_metadata_to if self._metadata_log_directory is not None else None,
            dry_run=self._request.dry_run,
        )


def _known_settings(settings: Mapping[str, str], source: ConfigSource) -> Mapping[str, str]:
    """Those of a broker's settings that Siltstone knows. Raises UsageError."""
    known = parse_stored_config(settings, str(METADATA_PARTITION), source)
    return {name: text for name, text in settings.items() if name in known}


def _refuse_gaps(topics: Sequence[TopicDescription], snapshot: Snapshot) -> None:
    """Raises DirectoryRefusedError for a missing partition, which Kafka would create empty."""
    for topic in topics:
        count = max(snapshot.partition_count(topic) or 0, len(topic.partitions))
        for number in range(count):
            if TopicPartition(topic.name, number) not in snapshot.partitions:
                raise DirectoryRefusedError(
                    f"partition {number} of {count} is in none of the directories",
                    path=topic.name,
                    advice="pass all log.dirs of the broker; or create the partition, or delete the topic",
                )
