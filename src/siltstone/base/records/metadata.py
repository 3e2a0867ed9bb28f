"""Reads the records of a KRaft metadata log that define topics, their settings, quotas and producer ids; for
``bootstrap.checkpoint`` it also writes some.

A record's value is a frame with fields in the flexible encoding of Kafka's protocol::

    frame version varint (1) | api key varint | version varint | fields … | tagged fields
    string   size + 1 varint (0: null), UTF-8          uuid 16           int8 1
    tagged fields   count varint, then for every field: tag varint, size varint, bytes

Varints are unsigned, 7 bits a byte, the low ones first. Records with other api keys (brokers, ACLs …) are
skipped, and so are tagged fields, as Kafka's protocol requires of readers that do not know them. Records are
read in any version, since only the fields that all versions have are used. Some of them::

    PartitionRecord (3)         partition int32 | topic id 16 | replicas | isr | removing | adding |
                                leader int32 …
    PartitionChangeRecord (5)   partition int32 | topic id 16 | tagged fields: 0 isr, 1 leader, 2 replicas …
    ClientQuotaRecord (14)      count + 1 of the entity's parts, then each: kind | name, may be null | tagged
                                fields; then key | value float64 | remove, a byte
    ProducerIdsRecord (15)      broker int32 | broker epoch int64 | next producer id int64
    replicas, isr, …            count + 1 varint, then the brokers' ids, int32 each

Corresponds to ``AbstractApiMessageSerde`` and ``MetadataRecordType``.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

FRAME_VERSION = 1
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Whom a quota is for: (kind, name) in order of kind, such as ``client-id`` and ``user``; name None: the
default for all."""
_MAX_VARINT_BYTES = 5


class UndecodableMessageError(ValueError):
    """A message that cannot be decoded; ``position`` counts from its first byte."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic is created; ``topic_id`` as in ``partition.metadata``: 22 characters of URL-safe base64."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers that have a partition, by their ids: all ``replicas``, those in sync (``isr``), and the
    ``leader``, -1 if there is none now.

    In a ``PartitionChangeRecord`` a field is None if it does not change.
    """

    replicas: tuple[int, ...] | None = None
    isr: tuple[int, ...] | None = None
    leader: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition is created, or described anew in a snapshot. ``replicas``: None if they cannot be read."""

    partition: int
    topic_id: str
    replicas: Replicas | None = None


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """Some of a partition's replicas have changed."""

    partition: int
    topic_id: str
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic is deleted, and its settings with it."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A setting of a resource (``ConfigResource.Type``); ``value`` None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """A broker got a block of producer ids; the next block begins at ``next_producer_id``."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """A quota of an entity is set; ``value`` None removes it."""

    entity: QuotaEntity
    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """The records after it take effect when the transaction ends (KIP-868)."""


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    """The records since ``BeginTransactionRecord`` take effect."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    """The records since ``BeginTransactionRecord`` have no effect."""


MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | ClientQuotaRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)


class MessageReader:
    """A reader of one message in Kafka's protocol format; ``position`` is where it reads next."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int, field: str) -> bytes:
        """Read the next ``size`` bytes. ``field`` names them in the error."""
        if size > len(self._data) - self.position:
            raise UndecodableMessageError(self.position, f"{field} ends beyond the record")
        self.position += size
        return self._data[self.position - size : self.position]

    def varint(self) -> int:
        """An unsigned varint of up to 32 bits."""
        start, value = self.position, 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.take(1, "a number")[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value <= 0xFFFFFFFF:
                return value
        raise UndecodableMessageError(start, "a varint is too long")

    def int8(self) -> int:
        return int.from_bytes(self.take(1, "a number"), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4, "a number"), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8, "a number"), "big", signed=True)

    def float64(self) -> float:
        return float(struct.unpack(">d", self.take(8, "a number"))[0])

    def int32s(self) -> tuple[int, ...] | None:
        """An array of int32; None for null."""
        count = self.varint()
        if count == 0:
            return None
        data = self.take(4 * (count - 1), "an array")
        return tuple(int.from_bytes(data[at : at + 4], "big", signed=True) for at in range(0, len(data), 4))

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields by their tags."""
        by_tag = {}
        for _ in range(self.varint()):
            tag = self.varint()
            by_tag[tag] = self.take(self.varint(), "a tagged field")
        return by_tag

    def uuid(self) -> str:
        """A UUID as 22 characters of URL-safe base64."""
        return base64.urlsafe_b64encode(self.take(16, "an id")).rstrip(b"=").decode()

    def nullable_string(self) -> str | None:
        size = self.varint()
        start = self.position
        try:
            return None if size == 0 else self.take(size - 1, "a string").decode()
        except UnicodeDecodeError as error:
            raise UndecodableMessageError(start + error.start, "a string that is not UTF-8") from None

    def string(self) -> str:
        start, text = self.position, self.nullable_string()
        if text is None:
            raise UndecodableMessageError(start, "null for a string that may not be null")
        return text


# The records by their api keys (``MetadataRecordType``), and the functions that read their fields, in order.
# Kafka 4.3 has only version 0 of these records.
_SCHEMAS: dict[int, tuple[type[MetadataRecord], tuple[Callable[[MessageReader], Any], ...]]] = {
    2: (TopicRecord, (MessageReader.string, MessageReader.uuid)),
    4: (
        ConfigRecord,
        (MessageReader.int8, MessageReader.string, MessageReader.string, MessageReader.nullable_string),
    ),
    9: (RemoveTopicRecord, (MessageReader.uuid,)),
    23: (BeginTransactionRecord, ()),
    24: (EndTransactionRecord, ()),
    25: (AbortTransactionRecord, ()),
}
assert all(len(reads) == len(fields(record)) for record, reads in _SCHEMAS.values())
_PARTITION_RECORD, _PARTITION_CHANGE_RECORD, _CLIENT_QUOTA_RECORD, _PRODUCER_IDS_RECORD = 3, 5, 14, 15
"""The api keys of ``PartitionRecord``, ``PartitionChangeRecord``, ``ClientQuotaRecord`` and
``ProducerIdsRecord``."""
_ISR, _LEADER, _REPLICAS = 0, 1, 2
"""Tags of the fields of ``PartitionChangeRecord``."""


def decode_metadata(value: bytes) -> MetadataRecord | None:
    """Parse a frame; None for a record of another kind, and for one on a partition, quotas or producer ids
    that cannot be read.

    Raises UndecodableMessageError for a frame that cannot be parsed, and for an unknown version of a record
    on topics, settings or transactions, without which the others would be misunderstood.
    """
    frame = MessageReader(value)
    version = frame.varint()
    if version != FRAME_VERSION:
        raise UndecodableMessageError(0, f"frame version {version}; only {FRAME_VERSION} is known")
    api_key = frame.varint()
    schema = _SCHEMAS.get(api_key)
    start, version = frame.position, frame.varint()
    if api_key == _PARTITION_RECORD:
        return _partition_record(frame)
    if api_key == _PARTITION_CHANGE_RECORD:
        return _partition_change_record(frame)
    if api_key == _PRODUCER_IDS_RECORD:
        return _producer_ids_record(frame)
    if api_key == _CLIENT_QUOTA_RECORD:
        return _client_quota_record(frame)
    if schema is None:
        return None
    record, reads = schema
    if version:
        raise UndecodableMessageError(start, f"{record.__name__} version {version}; only 0 is known")
    fields_read = [read(frame) for read in reads]
    frame.tagged_fields()
    if frame.position < len(value):
        left_over = len(value) - frame.position
        raise UndecodableMessageError(frame.position, f"{left_over} bytes are left after the record")
    return record(*fields_read)


def _partition_record(frame: MessageReader) -> PartitionRecord | None:
    """The first fields of a partition's record. None for one that ends before its topic: no setting depends
    on it, so it is skipped as a record of an unknown kind is."""
    try:
        partition, topic_id = frame.int32(), frame.uuid()
    except UndecodableMessageError:
        return None
    try:
        replicas, isr, _removing, _adding = (frame.int32s() for _ in range(4))
        return PartitionRecord(partition, topic_id, Replicas(replicas, isr, frame.int32()))
    except UndecodableMessageError:
        return PartitionRecord(partition, topic_id)


def _partition_change_record(frame: MessageReader) -> PartitionChangeRecord | None:
    """A change of a partition's replicas. None if it cannot be read: no setting depends on it, so it is
    skipped."""
    try:
        partition, topic_id, changed = frame.int32(), frame.uuid(), frame.tagged_fields()
        isr, replicas = (
            MessageReader(changed[tag]).int32s() if tag in changed else None for tag in (_ISR, _REPLICAS)
        )
        leader = MessageReader(changed[_LEADER]).int32() if _LEADER in changed else None
    except UndecodableMessageError:
        return None
    return PartitionChangeRecord(partition, topic_id, Replicas(replicas, isr, leader))


def _producer_ids_record(frame: MessageReader) -> ProducerIdsRecord | None:
    """A block of producer ids; None if it cannot be read: no setting depends on it, so it is skipped."""
    try:
        _broker, _epoch, next_producer_id = frame.int32(), frame.int64(), frame.int64()
    except UndecodableMessageError:
        return None
    return ProducerIdsRecord(next_producer_id)


def _client_quota_record(frame: MessageReader) -> ClientQuotaRecord | None:
    """A quota; None if it cannot be read: no setting depends on it, so it is skipped."""
    try:
        parts = []
        for _ in range(max(frame.varint() - 1, 0)):
            parts.append((frame.string(), frame.nullable_string()))
            frame.tagged_fields()
        key, value, is_removed = frame.string(), frame.float64(), frame.int8()
    except UndecodableMessageError:
        return None
    return ClientQuotaRecord(quota_entity(parts), key, None if is_removed else value)


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity with these (kind, name) parts, in any order; if a kind comes twice, the later part
    counts."""
    return tuple(sorted(dict(parts).items()))


# Writing records, for ``bootstrap.checkpoint``, in versions that every KRaft broker since 3.7 reads.


def encode_feature(name: str, level: int) -> bytes:
    """The frame of a ``FeatureLevelRecord``: the level of a feature of the cluster, such as
    ``metadata.version``."""
    return _frame(12, 0, _text(name), level.to_bytes(2, "big"))


def encode_topic(record: TopicRecord) -> bytes:
    """The frame of a ``TopicRecord``."""
    return _frame(2, 0, _text(record.name), _id(record.topic_id))


def encode_partition(
    partition: int, topic_id: str, *, broker: int, leader_epoch: int, directory_id: str | None
) -> bytes:
    """The frame of a ``PartitionRecord`` with one replica, on ``broker``, in the log directory with this id
    (KIP-858; None: an older broker's directory has none)."""
    # An array is its length + 1 as a varint, then its items: 2 begins an array of one item, 1 is an empty
    # array.
    only_broker = b"\x02" + broker.to_bytes(4, "big")
    fields_after = (
        broker.to_bytes(4, "big"),  # the leader
        leader_epoch.to_bytes(4, "big"),
        bytes(4),  # the partition's epoch
        b"" if directory_id is None else b"\x02" + _id(directory_id),  # the directory of each replica
    )
    start = (partition.to_bytes(4, "big"), _id(topic_id))
    replicas, in_sync, removing, adding = only_broker, only_broker, b"\x01", b"\x01"
    return _frame(
        _PARTITION_RECORD,
        int(directory_id is not None),  # version 1 has the directories
        *start,
        replicas,
        in_sync,
        removing,
        adding,
        *fields_after,
    )


def encode_config(record: ConfigRecord) -> bytes:
    """The frame of a ``ConfigRecord``."""
    value = b"\0" if record.value is None else _text(record.value)
    resource = record.resource_type.to_bytes(1, "big", signed=True)
    return _frame(4, 0, resource, _text(record.resource_name), _text(record.name), value)


def encode_producer_ids(record: ProducerIdsRecord, *, broker: int) -> bytes:
    """The frame of a ``ProducerIdsRecord``, with an unknown broker epoch (-1)."""
    unknown_epoch = b"\xff" * 8
    next_id = record.next_producer_id.to_bytes(8, "big")
    return _frame(_PRODUCER_IDS_RECORD, 0, broker.to_bytes(4, "big"), unknown_epoch, next_id)


def encode_quota(record: ClientQuotaRecord) -> bytes:
    """The frame of a ``ClientQuotaRecord``."""
    entity = [_text(kind) + (b"\0" if name is None else _text(name)) + b"\0" for kind, name in record.entity]
    count = unsigned_varint(len(entity) + 1)
    value = struct.pack(">d?", record.value or 0.0, record.value is None)
    return _frame(_CLIENT_QUOTA_RECORD, 0, count, *entity, _text(record.key), value)


def _frame(api_key: int, version: int, *parts: bytes) -> bytes:
    """A record's frame; the last byte says that it has no tagged fields."""
    return bytes((FRAME_VERSION, api_key, version)) + b"".join(parts) + b"\0"


def _text(text: str) -> bytes:
    """A string. Bytes that are not UTF-8, which Python reads as surrogates, are written as they were."""
    data = text.encode("utf-8", "surrogateescape")
    return unsigned_varint(len(data) + 1) + data


def unsigned_varint(value: int) -> bytes:
    """A number as an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _id(text: str) -> bytes:
    """The 16 bytes of an id."""
    return base64.urlsafe_b64decode(text + "==")
