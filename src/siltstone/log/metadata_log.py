"""Reads topics and settings from a KRaft broker's metadata log, ``__cluster_metadata-0`` (``KafkaRaftLog``).

The newest snapshot is read first, and then the log from the snapshot's end offset on::

    00000000000000000155-0000000001.checkpoint   the state below offset 155, in epoch 1 (KIP-630): a header
                                                 (control batch, type 3), the records, a footer (type 4)
    00000000000000000000.log                     the log, a segment file like any other

If a snapshot is damaged, or lacks its header or footer, the snapshot before it is used. The log must start at
the end offset of the snapshot that is used, or below. The log has no gaps, since it is not compacted. Its
control batches (leader changes, voters) have no topics or settings.

A broker keeps this log's high watermark only in memory. If ``replication-offset-checkpoint`` has one for it
nevertheless, records at or above that are not read. Otherwise the whole log is read. Its last records may
then be changes that a majority of the controllers had not confirmed when the broker stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from siltstone.base import files
from siltstone.base.config import Config, ConfigSource, Layer, Setting, parse_stored_config
from siltstone.base.errors import CorruptFileError, CorruptRecordError, DirectoryRefusedError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CODEC_MASK, CONTROL_BIT
from siltstone.base.records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RemoveTopicRecord,
    Replicas,
    TopicRecord,
    UndecodableMessageError,
    decode_metadata,
)
from siltstone.log.checkpoints import broker_id_of, read_topic_id
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLUSTER_METADATA, TopicPartition, parse_metadata_snapshot
from siltstone.log.segments import Segment, Window, list_segments, windows

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
"""The types of resources whose settings are read (``ConfigResource.Type``); those of others are ignored."""
ALL_BROKERS = ""
"""The name of the resource that has the settings of all brokers."""


@dataclass(slots=True, kw_only=True)
class MetadataImage:
    """A cluster's topics and settings below ``end_offset`` (``MetadataImage``, ``MetadataBatchLoader``).

    ``topics``: name → id. ``partition_counts``: id of a topic → its number of partitions. ``replicas``: id of
    a topic → partition → the brokers that have it. ``settings``: (resource type, resource name) → name of a
    setting → its text. ``quotas``: entity → key → value. ``next_producer_id``: the first producer id that no
    broker has got in a block. ``last_timestamp_ms``: that of the last batch, whatever its records are, -1
    without one. Call ``apply`` with the records in the order of the log. The records of a metadata
    transaction (KIP-868) wait in ``_pending_records`` and are applied when it ends. Those of a transaction
    that was aborted, or is still open at the log's end, are never applied. ``_topic_names``: id → name.
    """

    topics: dict[str, str] = field(default_factory=dict)
    partition_counts: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, dict[int, Replicas]] = field(default_factory=dict)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    next_producer_id: int = 0
    end_offset: int = 0
    last_timestamp_ms: int = -1
    _topic_names: dict[str, str] = field(default_factory=dict)
    _pending_records: list[MetadataRecord] | None = field(default=None, compare=False)

    def settings_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings of one resource, name → text; empty if it has none."""
        return self.settings.get((resource_type, name), {})

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Raises ValueError for a record that cannot follow the earlier ones."""
        match record:
            case BeginTransactionRecord():
                if self._pending_records is not None:
                    raise ValueError("a transaction begins before the one before it has ended")
                self._pending_records = []
            case EndTransactionRecord() | AbortTransactionRecord():
                if self._pending_records is None:
                    raise ValueError("a transaction ends that has not begun")
                pending, self._pending_records = self._pending_records, None
                for pending_record in pending if isinstance(record, EndTransactionRecord) else ():
                    self.apply(pending_record)
            case _ if self._pending_records is not None:
                self._pending_records.append(record)
            case TopicRecord(name, topic_id):
                self._topic_names[topic_id], self.topics[name] = name, topic_id
            case PartitionRecord(partition, topic_id, replicas):  # partitions are numbered from 0 on
                count = self.partition_counts.get(topic_id, 0)
                self.partition_counts[topic_id] = max(count, partition + 1)
                if replicas is not None:
                    self.replicas.setdefault(topic_id, {})[partition] = replicas
            case PartitionChangeRecord(partition, topic_id, change):
                by_partition = self.replicas.get(topic_id, {})
                if partition in by_partition:
                    by_partition[partition] = _changed(by_partition[partition], change)
            case RemoveTopicRecord(topic_id):
                if topic_id not in self._topic_names:
                    raise ValueError(f"the topic with id {topic_id} is removed, but does not exist")
                name = self._topic_names.pop(topic_id)
                self.partition_counts.pop(topic_id, None)
                self.replicas.pop(topic_id, None)
                self.topics.pop(name, None)
                self.settings.pop((TOPIC_RESOURCE, name), None)
            case ProducerIdsRecord(next_producer_id):
                self.next_producer_id = max(self.next_producer_id, next_producer_id)
            case ClientQuotaRecord(entity, key, value):
                self._set_quota(entity, key, value)
            case ConfigRecord(resource_type, resource_name, name, None):
                self.settings.get((resource_type, resource_name), {}).pop(name, None)
            case ConfigRecord(resource_type, resource_name, name, str(value)):
                if resource_type in (TOPIC_RESOURCE, BROKER_RESOURCE):
                    self.settings.setdefault((resource_type, resource_name), {})[name] = value

    def _set_quota(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        values = self.quotas.setdefault(entity, {})
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        if not values:
            del self.quotas[entity]


def _changed(before: Replicas, change: Replicas) -> Replicas:
    """The replicas after a change; a field that is None in ``change`` keeps its value."""
    changes = {field.name: getattr(change, field.name) for field in fields(Replicas)}
    return replace(before, **{name: value for name, value in changes.items() if value is not None})


SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4
"""Types of control records (``ControlRecordType``)."""


class MetadataBatch(NamedTuple):
    """A batch of the metadata log. ``records``: (offset, position in the file, record) of those that
    ``decode_metadata`` does not skip. ``control_types``: the types of a control batch's records, empty for
    other batches."""

    base_offset: int
    last_offset: int
    records: list[tuple[int, int, MetadataRecord]]
    control_types: list[int]
    timestamp_ms: int


def read_cluster_metadata(
    partition: Path, *, high_watermark: int | None = None, may_have_torn_tail: bool = False
) -> MetadataImage:
    """The image from the metadata log in the directory ``partition``.

    ``high_watermark``: batches at or above it are not read; None: all are. ``may_have_torn_tail``: the broker
    was not stopped cleanly. Then the log is read up to its first damaged batch, where the broker's next start
    would truncate it. Raises CorruptFileError with path and position, OSError.
    """
    segments = list_segments(partition)
    snapshots = _snapshots(partition)
    failure: CorruptFileError | None = None
    # The newest snapshot first; at last the log alone, from offset 0 on.
    for offset, path in [*reversed(snapshots), (0, None)]:
        image = MetadataImage()
        try:
            if path is not None:
                _apply_snapshot(image, str(path))
        except CorruptFileError as error:
            failure = failure or error
            continue
        if path is None and not segments and not snapshots:
            raise CorruptFileError(str(partition), 0, "the metadata log has no segment and no snapshot")
        if segments and segments[0].base_offset > offset:
            reason = (
                f"the log starts at offset {segments[0].base_offset}, and no snapshot ends there or later"
            )
            raise failure or CorruptFileError(segments[0].path, 0, reason)
        # Without the log, an older snapshot alone would give an older state as the current one.
        if not segments and failure is not None:
            raise failure
        _apply_log(image, segments, offset, high_watermark, may_have_torn_tail)
        return image
    raise AssertionError("the last round, without a snapshot, returns or raises")


def read_snapshot(path: Path) -> MetadataImage:
    """The image of one snapshot, or of a ``bootstrap.checkpoint``; its ``end_offset`` stays 0.

    Raises CorruptFileError, OSError.
    """
    image = MetadataImage()
    _apply_snapshot(image, str(path))
    return image


def _snapshots(partition: Path) -> list[tuple[int, Path]]:
    """The snapshots as (end offset, path), the newest last, without unfinished and deleted ones."""
    parsed = (
        (parse_metadata_snapshot(entry.name), entry) for entry in files.entries(partition) if entry.is_file
    )
    ordered = sorted((name, entry.name) for name, entry in parsed if name is not None)
    return [(end_offset, partition / name) for (end_offset, _), name in ordered]


def _apply_snapshot(image: MetadataImage, path: str) -> None:
    """Apply a snapshot's records. Raises CorruptFileError if its header or footer is missing."""
    control_types: list[list[int]] = []
    for batch in _batches(path):
        control_types.append(batch.control_types)
        image.last_timestamp_ms = batch.timestamp_ms
        _apply_records(image, path, batch.records)
    if (
        not control_types
        or control_types[0][:1] != [SNAPSHOT_HEADER]
        or control_types[-1][-1:] != [SNAPSHOT_FOOTER]
    ):
        raise CorruptFileError(path, 0, "the snapshot has no header or no footer, so it is not complete")


def _apply_log(
    image: MetadataImage,
    segments: list[Segment],
    start: int,
    high_watermark: int | None,
    may_have_torn_tail: bool,
) -> None:
    """Apply the records from offset ``start`` on, and set the image's end offset."""
    next_offset = segments[0].base_offset if segments else start
    image.end_offset = start
    for segment in segments:
        try:
            for batch in _batches(segment.path):
                if batch.base_offset != next_offset:
                    reason = f"the batch has base offset {batch.base_offset}, but {next_offset} must follow"
                    raise CorruptFileError(segment.path, 0, reason)
                next_offset = batch.last_offset + 1
                if high_watermark is not None and batch.last_offset >= high_watermark:
                    return
                # ``start`` may be within the batch: the snapshot has the effect of the records below it.
                records = [record for record in batch.records if record[0] >= start]
                _apply_records(image, segment.path, records)
                image.end_offset = max(image.end_offset, next_offset)
                image.last_timestamp_ms = batch.timestamp_ms
        except CorruptRecordError:
            if may_have_torn_tail and segment is segments[-1]:
                return
            raise


def _apply_records(image: MetadataImage, path: str, records: list[tuple[int, int, MetadataRecord]]) -> None:
    """Apply ``MetadataBatch.records`` of the file ``path``. Raises CorruptFileError."""
    for _, position, record in records:
        try:
            image.apply(record)
        except ValueError as error:
            raise CorruptFileError(path, position, str(error)) from None


def _batches(path: str) -> Iterator[MetadataBatch]:
    """The batches of a segment or a snapshot. Raises CorruptRecordError for a damaged batch, CorruptFileError
    for a record that cannot be decoded."""
    with files.Reader(path) as reader:
        for window in windows(reader):
            for row in range(len(window.batches)):
                yield _decode_batch(path, window, row)


def _decode_batch(path: str, window: Window, row: int) -> MetadataBatch:
    """The batch that is row ``row`` of the window's batch headers. Raises CorruptFileError."""
    header = window.batches[row]
    timestamp_ms = int(header["max_timestamp"])
    batch = MetadataBatch(int(header["base_offset"]), int(header["last_offset"]), [], [], timestamp_ms)
    batch_position = window.origin + int(header["position"])
    is_uncompressed = not header["attributes"] & CODEC_MASK
    columns = decode_records(window.data, window.batches[row : row + 1], path=path, origin=window.origin)
    for record in range(len(columns)):
        if header["attributes"] & CONTROL_BIT:
            key = columns.key(record)
            # The key is two int16: its version and the type of the control record.
            if key is None or len(key) < 4:
                raise CorruptFileError(path, batch_position, "the key of a control record is too short")
            batch.control_types.append(int.from_bytes(key[2:4], "big", signed=True))
            continue
        # A record of a compressed batch has no position in the file: it gets the batch's.
        position = window.origin + int(columns.value_start[record]) if is_uncompressed else batch_position
        try:
            decoded = decode_metadata(columns.value(record) or b"")
        except UndecodableMessageError as error:
            position += error.position if is_uncompressed else 0
            raise CorruptFileError(path, position, str(error)) from None
        if decoded is not None:
            batch.records.append((int(columns.offset[record]), position, decoded))
    return batch


METADATA_PARTITION = TopicPartition(CLUSTER_METADATA, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster's topics, their ids and settings, as one of its brokers sees them.

    ``path``: the metadata log. ``broker``: the broker's settings, which a topic has where it has none of its
    own. The first source in this list that has a value for a setting counts (Kafka's ``ConfigSource``)::

        DYNAMIC_TOPIC_CONFIG           the topic's settings in the metadata log
        DYNAMIC_BROKER_CONFIG          those of the broker with this ``node.id``
        DYNAMIC_DEFAULT_BROKER_CONFIG  those of all brokers
        STATIC_BROKER_CONFIG           the broker's ``server.properties``, if the caller has read it

    If one of a topic's own settings has a bad value, ``config_of`` raises UsageError for that topic.
    """

    path: Path
    image: MetadataImage
    broker: Config

    @property
    def state(self) -> str:
        """A text by which two reads are compared: it differs if they were of different metadata logs, or if
        this one has grown in between."""
        return f"{self.image.end_offset} at {self.image.last_timestamp_ms}"

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now, None if there is no such topic."""
        return self.image.topics.get(topic)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has in the cluster, None if that is not known."""
        return self.image.partition_counts.get(self.image.topics.get(topic, ""))

    def replicas_of(self, topic_partition: TopicPartition) -> Replicas | None:
        """The brokers that have a partition, None if that is not known."""
        topic_id = self.image.topics.get(topic_partition.topic, "")
        return self.image.replicas.get(topic_id, {}).get(topic_partition.partition)

    def mismatch_reason(self, topic: str, directory: Path) -> str | None:
        """Why a directory does not belong to the topic that has this name now; None if it does.

        Raises CorruptFileError for a damaged ``partition.metadata``.
        """
        topic_id = self.topic_id(topic)
        if topic_id is None:
            return f"{self.path} has no topic of this name: the topic was deleted"
        directory_id = read_topic_id(directory)
        if directory_id is None:
            return f"partition.metadata is missing, so the topic's id may not be {topic_id}"
        if directory_id != topic_id:
            return (
                f"its topic id is {directory_id}, but {self.path} has {topic_id}: it belongs to a deleted "
                "topic of the same name"
            )
        return None

    def overrides(self, topic: str) -> dict[str, str]:
        """The topic's own settings, also those that Siltstone does not know: name → text."""
        return dict(self.image.settings_of(TOPIC_RESOURCE, topic))

    def known_overrides(self, topic: str) -> dict[str, Setting]:
        """The topic's own settings that Siltstone knows. Raises UsageError for a bad value of one it uses."""
        source = f"{self.path}: topic {topic}"
        return parse_stored_config(self.overrides(topic), source, ConfigSource.DYNAMIC_TOPIC_CONFIG)

    def effective_broker_config(self, config: Config) -> Config:
        """``config`` with the broker's dynamic settings from the metadata log added to its two dynamic
        layers.

        A value that ``config`` already has in the same layer stays. The static settings of ``config``, from a
        file, are in a lower layer, so the settings of the metadata log take precedence over them.
        """
        for origin in (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG):
            config = config.with_layer(origin, {**self.broker.layer(origin), **config.layer(origin)})
        return config

    def config_of(self, topic: str, broker: Config | None = None) -> Config:
        """The settings of a topic; ``broker``: the broker's settings, by default those of this object.

        Raises UsageError for a bad value of a setting that Siltstone uses.
        """
        broker = self.broker if broker is None else broker
        return broker.with_topic_layer(_with_source_names(self.known_overrides(topic)))


def _with_source_names(settings: Layer) -> dict[str, Setting]:
    """The settings, each with the name of its ``ConfigSource`` as its source."""
    return {name: replace(setting, source=setting.config_source.value) for name, setting in settings.items()}


def node_id_of(directories: Iterable[LogDirectory]) -> str | None:
    """The id of the broker that the directories belong to, from ``meta.properties``; None if none has it."""
    properties = [directory.properties() for directory in directories]
    return next(filter(None, map(broker_id_of, properties)), None)


def metadata_directory(directories: Iterable[LogDirectory]) -> LogDirectory | None:
    """The one of a broker's log directories that has the metadata log, None if none has it.

    Raises DirectoryRefusedError if several have it.
    """
    owners = {
        directory.path: directory
        for directory in directories
        if files.is_directory(directory.path / str(METADATA_PARTITION))
    }
    if len(owners) > 1:
        raise DirectoryRefusedError(
            f"the metadata log is in {' and in '.join(map(str, owners))}",
            path=str(METADATA_PARTITION),
            advice="remove the directory that the broker does not use",
        )
    return next(iter(owners.values()), None)


def read_cluster_settings(
    directory: LogDirectory, *, node_id: str | None, static: Layer | None = None
) -> ClusterSettings:
    """The settings of the metadata log in ``directory`` as broker ``node_id`` sees them.

    ``static``: those of its ``server.properties``. Raises CorruptFileError, UsageError for a bad value of a
    broker's setting, OSError.
    """
    path = directory.path / str(METADATA_PARTITION)
    image = read_cluster_metadata(
        path,
        high_watermark=directory.checkpoints().high_watermark.get(METADATA_PARTITION),
        may_have_torn_tail=directory.has_broker_files and not directory.had_clean_shutdown,
    )

    def broker_settings(name: str, origin: ConfigSource) -> dict[str, Setting]:
        overrides = image.settings_of(BROKER_RESOURCE, name)
        return _with_source_names(parse_stored_config(overrides, f"{path}: broker {name!r}", origin))

    config = Config(
        broker={} if node_id is None else broker_settings(node_id, ConfigSource.DYNAMIC_BROKER_CONFIG),
        broker_default=broker_settings(ALL_BROKERS, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        static=_with_source_names(static or {}),
    )
    return ClusterSettings(path=path, image=image, broker=config)
