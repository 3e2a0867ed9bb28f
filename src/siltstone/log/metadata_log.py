"""Topics and settings from ``__cluster_metadata-0``: the newest snapshot, then the log (``KafkaRaftLog``).

::

    00000000000000000155-0000000001.checkpoint   the state below offset 155, in epoch 1 (KIP-630): a header
                                                 (control batch, type 3), the records, a footer (type 4)
    00000000000000000000.log                     the log, a segment file like any other

A snapshot that is damaged, or lacks its header or footer, is incomplete: then the snapshot before it is used,
if the log starts at its end offset or below. The log has no gaps, since it is not compacted. Control batches
(leader changes, voters) have no topics or settings.

A broker holds this log's high watermark only in memory. Where ``replication-offset-checkpoint`` has an entry
all the same, records at or above it are not read. Otherwise the whole log is read, with any last change that
the other controllers had not confirmed when the broker stopped; with a single controller there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    RemoveTopicRecord,
    TopicRecord,
    UndecodableMessageError,
    decode_metadata,
)
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLUSTER_METADATA, TopicPartition, parse_metadata_snapshot
from siltstone.log.segments import Segment, Window, list_segments, windows

TOPIC, BROKER = 2, 4
"""Types of resources whose settings are retained; others are ignored (``ConfigResource.Type``)."""
ALL_BROKERS = ""
"""The resource name of the settings for all brokers."""


@dataclass(slots=True, kw_only=True)
class ClusterImage:
    """The image of a cluster: topics (name → id) and settings ((resource type, name) → key → text) below
    ``end_offset`` (Kafka's ``MetadataImage``, ``MetadataDelta`` and ``MetadataBatchLoader``).

    ``apply`` is called with the records in the order of the log. A transaction's records (KIP-868) wait in
    ``_pending`` and are applied all at once when it ends; those of a transaction that was aborted, or is
    still open at the log's end, are not applied.
    """

    topics: dict[str, str] = field(default_factory=dict)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    end_offset: int = 0
    _names: dict[str, str] = field(default_factory=dict)
    _pending: list[MetadataRecord] | None = field(default=None, compare=False)

    def settings_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """A resource's own settings as texts, empty where it has none."""
        return self.settings.get((resource_type, name), {})

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Raises ValueError for a record that cannot follow the earlier ones."""
        match record:
            case BeginTransactionRecord():
                if self._pending is not None:
                    raise ValueError("a transaction begins before the one before it has ended")
                self._pending = []
            case EndTransactionRecord() | AbortTransactionRecord():
                if self._pending is None:
                    raise ValueError("a transaction ends that has not begun")
                pending, self._pending = self._pending, None
                for earlier in pending if isinstance(record, EndTransactionRecord) else ():
                    self.apply(earlier)
            case _ if self._pending is not None:
                self._pending.append(record)
            case TopicRecord(name, topic_id):
                self._names[topic_id], self.topics[name] = name, topic_id
            case RemoveTopicRecord(topic_id):
                if topic_id not in self._names:
                    raise ValueError(f"the topic with id {topic_id} is removed, but does not exist")
                name = self._names.pop(topic_id)
                self.topics.pop(name, None)
                self.settings.pop((TOPIC, name), None)
            case ConfigRecord(resource_type, resource_name, name, None):
                self.settings.get((resource_type, resource_name), {}).pop(name, None)
            case ConfigRecord(resource_type, resource_name, name, str(value)):
                if resource_type in (TOPIC, BROKER):
                    self.settings.setdefault((resource_type, resource_name), {})[name] = value


SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4
"""Types of control records (``ControlRecordType``)."""


class MetadataBatch(NamedTuple):
    """A batch's records that concern topics or settings, each with its offset and its position in the file.

    ``control``: the types of the records of a control batch.
    """

    base_offset: int
    last_offset: int
    records: list[tuple[int, int, MetadataRecord]]
    control: list[int]


def read_cluster_metadata(
    partition: Path, *, high_watermark: int | None = None, torn_tail: bool = False
) -> ClusterImage:
    """The image from the metadata log in ``partition``, up to ``high_watermark`` if that is not None.

    ``torn_tail``: the broker was not stopped cleanly; the log ends before the first batch that is not whole,
    where the next start would truncate it. Raises CorruptFileError with path and position, OSError.
    """
    segments = list_segments(partition)
    snapshots = _snapshots(partition)
    failure: CorruptFileError | None = None
    for offset, path in [*reversed(snapshots), (0, None)]:
        image = ClusterImage()
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
        if not segments and failure is not None:
            raise failure
        _apply_log(image, segments, offset, high_watermark, torn_tail)
        return image
    raise AssertionError("the loop ends with the log without a snapshot")


def _snapshots(partition: Path) -> list[tuple[int, Path]]:
    """(end offset, path) of the snapshots, the newest last, without unfinished and deleted ones."""
    named = (
        (parse_metadata_snapshot(entry.name), entry) for entry in files.entries(partition) if entry.is_file
    )
    ordered = sorted((name, entry.name) for name, entry in named if name is not None)
    return [(offset, partition / name) for (offset, _), name in ordered]


def _apply_snapshot(image: ClusterImage, path: str) -> None:
    control: list[list[int]] = []
    for batch in _batches(path):
        control.append(batch.control)
        _apply(image, path, batch.records)
    if not control or control[0][:1] != [SNAPSHOT_HEADER] or control[-1][-1:] != [SNAPSHOT_FOOTER]:
        raise CorruptFileError(path, 0, "the snapshot has no header or no footer, so it is not complete")


def _apply_log(
    image: ClusterImage, segments: list[Segment], start: int, high_watermark: int | None, torn_tail: bool
) -> None:
    """Apply the records from offset ``start`` on, and set the image's end offset."""
    expected = segments[0].base_offset if segments else start
    image.end_offset = start
    for segment in segments:
        try:
            for batch in _batches(segment.path):
                if batch.base_offset != expected:
                    reason = f"the batch has base offset {batch.base_offset}, but {expected} must follow"
                    raise CorruptFileError(segment.path, 0, reason)
                expected = batch.last_offset + 1
                if high_watermark is not None and batch.last_offset >= high_watermark:
                    return
                _apply(image, segment.path, [record for record in batch.records if record[0] >= start])
                image.end_offset = max(image.end_offset, expected)
        except CorruptRecordError:
            if torn_tail and segment is segments[-1]:
                return
            raise


def _apply(image: ClusterImage, path: str, records: list[tuple[int, int, MetadataRecord]]) -> None:
    for _, position, record in records:
        try:
            image.apply(record)
        except ValueError as error:
            raise CorruptFileError(path, position, str(error)) from None


def _batches(path: str) -> Iterator[MetadataBatch]:
    """The batches of a segment or a snapshot. Raises CorruptRecordError for bytes that are no batches,
    CorruptFileError for a record that makes no sense."""
    with files.Reader(path) as reader:
        for window in windows(reader):
            for row in range(len(window.batches)):
                yield _decode(path, window, row)


def _decode(path: str, window: Window, row: int) -> MetadataBatch:
    header = window.batches[row]
    batch = MetadataBatch(int(header["base_offset"]), int(header["last_offset"]), [], [])
    start = window.origin + int(header["position"])
    is_plain = not header["attributes"] & CODEC_MASK
    columns = decode_records(window.data, window.batches[row : row + 1], path=path, origin=window.origin)
    for record in range(len(columns)):
        if header["attributes"] & CONTROL_BIT:
            key = columns.key(record)
            if key is None or len(key) < 4:
                raise CorruptFileError(path, start, "the key of a control record is too short")
            batch.control.append(int.from_bytes(key[2:4], "big", signed=True))
            continue
        # A record of a compressed batch has no position in the file: the batch's stands for it.
        position = window.origin + int(columns.value_start[record]) if is_plain else start
        try:
            decoded = decode_metadata(columns.value(record) or b"")
        except UndecodableMessageError as error:
            position += error.position if is_plain else 0
            raise CorruptFileError(path, position, str(error)) from None
        if decoded is not None:
            batch.records.append((int(columns.offset[record]), position, decoded))
    return batch


METADATA_PARTITION = TopicPartition(CLUSTER_METADATA, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster's topics, ids and settings. ``broker``: the settings of a topic without its own.

    Of several values of a setting the first in this order counts; a setting's source has its name::

        DYNAMIC_TOPIC_CONFIG           the topic's settings in the metadata log
        DYNAMIC_BROKER_CONFIG          those of the broker with ``node.id``
        DYNAMIC_DEFAULT_BROKER_CONFIG  those of all brokers
        STATIC_BROKER_CONFIG           its ``server.properties``, where the caller has it

    If one of a topic's own settings has a bad value, the topic's settings are unknown.
    """

    path: Path
    image: ClusterImage
    broker: Config

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that has this name now, None where there is no such topic."""
        return self.image.topics.get(topic)

    def mismatch_reason(self, topic: str, directory: Path) -> str | None:
        """Why a directory does not belong to the topic that has its name, None where it does.

        Raises CorruptFileError for a damaged ``partition.metadata``.
        """
        topic_id = self.topic_id(topic)
        if topic_id is None:
            return f"{self.path} has no topic of this name: the topic was deleted"
        own = read_topic_id(directory)
        if own is None:
            return f"partition.metadata is missing, so the topic's id may not be {topic_id}"
        if own != topic_id:
            return (
                f"its topic id is {own}, but {self.path} has {topic_id}: it belongs to a deleted topic of "
                "the same name"
            )
        return None

    def overrides(self, topic: str) -> dict[str, str]:
        """All of the topic's own settings as texts."""
        return dict(self.image.settings_of(TOPIC, topic))

    def own(self, topic: str) -> dict[str, Setting]:
        """The topic's own settings that Siltstone knows. Raises UsageError for a bad value of a used one."""
        source = f"{self.path}: topic {topic}"
        return parse_stored_config(self.overrides(topic), source, ConfigSource.DYNAMIC_TOPIC_CONFIG)

    def effective_broker_config(self, config: Config) -> Config:
        """A broker's ``config`` with the settings from the metadata log beneath its own."""
        for origin in (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG):
            config = config.with_layer(origin, {**self.broker.layer(origin), **config.layer(origin)})
        return config

    def config_of(self, topic: str, broker: Config | None = None) -> Config:
        """The settings of a topic; ``broker`` replaces the broker's settings.

        Raises UsageError for a bad value of a setting that is used.
        """
        broker = self.broker if broker is None else broker
        return broker.with_topic_layer(_named_by_source(self.own(topic)))


def _named_by_source(settings: Layer) -> dict[str, Setting]:
    return {name: replace(setting, source=setting.config_source.value) for name, setting in settings.items()}


def node_id_of(directories: Iterable[LogDirectory]) -> str | None:
    """The id of the broker that the directories belong to, from ``meta.properties``; None without one."""
    properties = [directory.properties() for directory in directories]
    return next(filter(None, (one.get("node.id") or one.get("broker.id") for one in properties)), None)


def metadata_directory(directories: Iterable[LogDirectory]) -> LogDirectory | None:
    """The one of a broker's log directories that has the metadata log, None where none has it.

    Raises DirectoryRefusedError where several have it.
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

    Raises CorruptFileError, UsageError for a bad value of a broker's, OSError.
    """
    path = directory.path / str(METADATA_PARTITION)
    image = read_cluster_metadata(
        path,
        high_watermark=directory.checkpoints().high_watermark.get(METADATA_PARTITION),
        torn_tail=directory.is_log_directory and not directory.had_clean_shutdown,
    )

    def broker(name: str, origin: ConfigSource) -> dict[str, Setting]:
        overrides = image.settings_of(BROKER, name)
        return _named_by_source(parse_stored_config(overrides, f"{path}: broker {name!r}", origin))

    config = Config(
        broker={} if node_id is None else broker(node_id, ConfigSource.DYNAMIC_BROKER_CONFIG),
        broker_default=broker(ALL_BROKERS, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        static=_named_by_source(static or {}),
        default_source=ConfigSource.DEFAULT_CONFIG.value,
    )
    return ClusterSettings(path=path, image=image, broker=config)
