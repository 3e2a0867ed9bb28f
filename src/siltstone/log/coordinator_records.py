"""Decodes the records of Kafka's internal topics: keys and values of ``__consumer_offsets`` and
``__transaction_state``, which coordinators write, and values of ``__cluster_metadata``, which controllers
write.

The messages are Kafka's: those of ``CoordinatorRecordType`` (``OffsetCommitKey``, ``GroupMetadataKey``,
``ConsumerGroup…Key`` of KIP-848, ``TransactionLogKey``, and the ``…Value`` of every ``…Key``), those of
``MetadataRecordType``, and ``ConsumerProtocolAssignment``, a member's assignment::

    key      type int16 | fields                 __consumer_offsets: 0, 1 offset commit · 2 group metadata ·
                                                 3 to 8, 16 of the consumer protocol
                                                 __transaction_state: 0
    value    version int16 | fields

    string   size int16 (-1: null), bytes; in flexible versions: size + 1 as an unsigned varint (0: null)
    bytes    size int32, bytes; in flexible versions as a string
    array    count int32, elements; in flexible versions: count + 1 as an unsigned varint
    tagged   after the fields of a flexible version (KIP-482): tag count; for each tag number, size, bytes

The tables below are Kafka's message definitions: names, order, versions and tags are Kafka's. Results are
nested as in the JSON of Kafka's tools.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from siltstone.base.records.metadata import FRAME_VERSION, MessageReader, UndecodableMessageError

Decoder = Literal["offsets", "transactions", "metadata"]
"""Which topic the records are from: ``__consumer_offsets``, ``__transaction_state``, ``__cluster_metadata``.
(The flags of Kafka's tool: ``--offsets-decoder``, ``--transaction-log-decoder``,
``--cluster-metadata-decoder``.)"""
Fields = dict[str, Any]
"""A decoded message or a part of one: the values of its fields by Kafka's names."""

TRANSACTION_STATES = (
    "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence"
).split()
"""The states of a transaction; the index is the number in the record (``TransactionState``)."""
TOMBSTONE = "<DELETE>"
"""Printed in place of a null value, as Kafka's tool does."""
_ANY_VERSION = (1 << 15) - 1
"""The largest int16: the field has not been removed from the message."""


class _Field(NamedTuple):
    """A field of a message; ``tag``: its number if it is a tagged field.

    ``type``: the letter of a number or bool in Python's ``struct`` (b int8, h int16, H uint16, i int32,
    q int64, d float64, ? bool), ``string``, ``bytes``, ``uuid``, one of these in brackets for an array of
    them, a tuple of fields for an array of structures, or a ``_Nullable`` structure.
    """

    name: str
    type: Any
    first_version: int = 0
    last_version: int = _ANY_VERSION
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class _Nullable:
    """A structure that may be null, of a flexible version: an int8 (-1: null), then its fields."""

    fields: tuple[_Field, ...]


class _RecordType(NamedTuple):
    """A type of a coordinator's records: the fields of its keys and of its values.

    Values can be decoded in versions 0 to ``largest_version``; they are flexible from
    ``first_flexible_version`` on. Keys have one version, which is not flexible.
    """

    key: tuple[_Field, ...]
    value: tuple[_Field, ...]
    largest_version: int
    first_flexible_version: int


_COMMIT_KEY = (_Field("group", "string"), _Field("topic", "string"), _Field("partition", "i"))
_COMMIT_VALUE = (
    _Field("offset", "q"),
    _Field("leaderEpoch", "i", first_version=3),
    _Field("metadata", "string"),
    _Field("commitTimestamp", "q"),
    _Field("expireTimestamp", "q", first_version=1, last_version=1),
    _Field("topicId", "uuid", tag=0),
)
_MEMBER = (
    _Field("memberId", "string"),
    _Field("groupInstanceId", "string", first_version=3),
    _Field("clientId", "string"),
    _Field("clientHost", "string"),
    _Field("rebalanceTimeout", "i", first_version=1),
    _Field("sessionTimeout", "i"),
    _Field("subscription", "bytes"),
    _Field("assignment", "bytes"),
)
_GROUP_VALUE = (
    _Field("protocolType", "string"),
    _Field("generation", "i"),
    _Field("protocol", "string"),
    _Field("leader", "string"),
    _Field("currentStateTimestamp", "q", first_version=2),
    _Field("members", _MEMBER),
)
_TRANSACTION_VALUE = (
    _Field("producerId", "q"),
    _Field("previousProducerId", "q", tag=0),
    _Field("nextProducerId", "q", tag=1),
    _Field("producerEpoch", "h"),
    _Field("nextProducerEpoch", "h", tag=3),
    _Field("transactionTimeoutMs", "i"),
    _Field("transactionStatus", "b"),
    _Field("transactionPartitions", (_Field("topic", "string"), _Field("partitionIds", "[i]"))),
    _Field("transactionLastUpdateTimestampMs", "q"),
    _Field("transactionStartTimestampMs", "q"),
    _Field("clientTransactionVersion", "h", tag=2),
)
_TOPIC_PARTITIONS = (_Field("topicId", "uuid"), _Field("partitions", "[i]"))
_SUBSCRIBED_TOPICS = (
    _Field("topicId", "uuid"),
    _Field("topicName", "string"),
    _Field("numPartitions", "i"),
    _Field("partitionMetadata", (_Field("partition", "i"), _Field("racks", "[string]"))),
)
_CLASSIC_MEMBER = _Nullable(
    (_Field("supportedProtocols", (_Field("name", "string"), _Field("metadata", "bytes"))),)
)
_CONSUMER_MEMBER_VALUE = (
    _Field("instanceId", "string"),
    _Field("rackId", "string"),
    _Field("clientId", "string"),
    _Field("clientHost", "string"),
    _Field("subscribedTopicNames", "[string]"),
    _Field("subscribedTopicRegex", "string"),
    _Field("rebalanceTimeoutMs", "i"),
    _Field("serverAssignor", "string"),
    _Field("classicMemberMetadata", _CLASSIC_MEMBER, tag=0),
)
_CURRENT_ASSIGNMENT_VALUE = (
    _Field("memberEpoch", "i"),
    _Field("previousMemberEpoch", "i"),
    _Field("state", "b"),
    _Field("assignedPartitions", _TOPIC_PARTITIONS),
    _Field("partitionsPendingRevocation", _TOPIC_PARTITIONS),
)
_REGEX_VALUE = (_Field("topics", "[string]"), _Field("version", "q"), _Field("timestamp", "q"))


def _consumer_group_record(*value: _Field, key: tuple[str, ...] = ()) -> _RecordType:
    """A type of record of KIP-848. ``value``: the fields of its value; ``key``: the names of the key's fields
    after the group id, all strings."""
    fields = (_Field(name, "string") for name in ("groupId", *key))
    return _RecordType(tuple(fields), value, largest_version=0, first_flexible_version=0)


_COMMIT = _RecordType(_COMMIT_KEY, _COMMIT_VALUE, largest_version=4, first_flexible_version=4)
_GROUP = _RecordType((_Field("group", "string"),), _GROUP_VALUE, largest_version=4, first_flexible_version=4)
_TRANSACTION = _RecordType(
    (_Field("transactionalId", "string"),), _TRANSACTION_VALUE, largest_version=1, first_flexible_version=1
)
_RECORD_TYPES: dict[Decoder, dict[int, _RecordType]] = {
    "offsets": {
        0: _COMMIT,
        1: _COMMIT,
        2: _GROUP,
        3: _consumer_group_record(
            _Field("epoch", "i"), _Field("metadataHash", "q", tag=0), _Field("creationTimeMs", "q", tag=1)
        ),
        4: _consumer_group_record(_Field("topics", _SUBSCRIBED_TOPICS)),
        5: _consumer_group_record(*_CONSUMER_MEMBER_VALUE, key=("memberId",)),
        6: _consumer_group_record(_Field("assignmentEpoch", "i"), _Field("assignmentTimestamp", "q", tag=0)),
        7: _consumer_group_record(_Field("topicPartitions", _TOPIC_PARTITIONS), key=("memberId",)),
        8: _consumer_group_record(*_CURRENT_ASSIGNMENT_VALUE, key=("memberId",)),
        16: _consumer_group_record(*_REGEX_VALUE, key=("regularExpression",)),
    },
    "transactions": {0: _TRANSACTION},
}
"""By decoder: the type number at the start of a key → its record type."""
_ASSIGNMENT = (_Field("assignedPartitions", (_Field("topic", "string"), _Field("partitions", "[i]"))),)
"""The first field of a ``ConsumerProtocolAssignment``."""


def _parse_fields(text: str) -> tuple[_Field, ...]:
    """Parse definitions of fields: ``name type``, separated by commas. ``1+`` after the type: since version
    1; ``#2``: tagged with 2."""
    fields = []
    for part in text.split(","):
        name, field_type, *rest = part.split()
        first_version = next((int(word[:-1]) for word in rest if word[-1] == "+"), 0)
        tag = next((int(word[1:]) for word in rest if word[0] == "#"), None)
        fields.append(_Field(name, field_type, first_version=first_version, tag=tag))
    return tuple(fields)


_FEATURES = _Field("features", _parse_fields("name string, minSupportedVersion h, maxSupportedVersion h"))
_END_POINTS = _Field("endPoints", _parse_fields("name string, host string, port H, securityProtocol h"))
_BROKER_ID_AND_EPOCH = _parse_fields("brokerId i, brokerEpoch q")
_METADATA_TYPES: dict[int, tuple[str, int, tuple[_Field, ...]]] = {
    0: (
        "REGISTER_BROKER_RECORD",
        4,
        (
            *_parse_fields("brokerId i, isMigratingZkBroker ? 2+, incarnationId uuid, brokerEpoch q"),
            _END_POINTS,
            _FEATURES,
            *_parse_fields("rack string, fenced ?, inControlledShutdown ? 1+, logDirs [uuid] 3+ #0"),
        ),
    ),
    1: ("UNREGISTER_BROKER_RECORD", 0, _BROKER_ID_AND_EPOCH),
    2: ("TOPIC_RECORD", 0, _parse_fields("name string, topicId uuid")),
    3: (
        "PARTITION_RECORD",
        2,
        _parse_fields(
            "partitionId i, topicId uuid, replicas [i], isr [i], removingReplicas [i], addingReplicas [i], "
            "leader i, leaderRecoveryState b #0, leaderEpoch i, partitionEpoch i, directories [uuid] 1+, "
            "eligibleLeaderReplicas [i] 2+ #1, lastKnownElr [i] 2+ #2"
        ),
    ),
    4: ("CONFIG_RECORD", 0, _parse_fields("resourceType b, resourceName string, name string, value string")),
    5: (
        "PARTITION_CHANGE_RECORD",
        2,
        _parse_fields(
            "partitionId i, topicId uuid, isr [i] #0, leader i #1, replicas [i] #2, removingReplicas [i] #3, "
            "addingReplicas [i] #4, leaderRecoveryState b #5, directories [uuid] 1+ #8, "
            "eligibleLeaderReplicas [i] 2+ #6, lastKnownElr [i] 2+ #7"
        ),
    ),
    7: ("FENCE_BROKER_RECORD", 0, _parse_fields("id i, epoch q")),
    8: ("UNFENCE_BROKER_RECORD", 0, _parse_fields("id i, epoch q")),
    9: ("REMOVE_TOPIC_RECORD", 0, _parse_fields("topicId uuid")),
    10: ("DELEGATION_TOKEN_RECORD", -1, ()),
    11: ("USER_SCRAM_CREDENTIAL_RECORD", -1, ()),  # a secret
    12: ("FEATURE_LEVEL_RECORD", 0, _parse_fields("name string, featureLevel h")),
    14: (
        "CLIENT_QUOTA_RECORD",
        0,
        (
            _Field("entity", _parse_fields("entityType string, entityName string")),
            *_parse_fields("key string, value d, remove ?"),
        ),
    ),
    15: ("PRODUCER_IDS_RECORD", 0, _parse_fields("brokerId i, brokerEpoch q, nextProducerId q")),
    17: (
        "BROKER_REGISTRATION_CHANGE_RECORD",
        3,
        (
            *_BROKER_ID_AND_EPOCH,
            *_parse_fields("fenced b #0, inControlledShutdown b 1+ #1, logDirs [uuid] 2+ #2"),
        ),
    ),
    18: (
        "ACCESS_CONTROL_ENTRY_RECORD",
        0,
        _parse_fields(
            "id uuid, resourceType b, resourceName string, patternType b, principal string, host string, "
            "operation b, permissionType b"
        ),
    ),
    19: ("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", 0, _parse_fields("id uuid")),
    20: ("NO_OP_RECORD", 0, ()),
    21: ("ZK_MIGRATION_STATE_RECORD", 0, _parse_fields("zkMigrationState b")),
    22: ("REMOVE_USER_SCRAM_CREDENTIAL_RECORD", 0, _parse_fields("name string, mechanism b")),
    23: ("BEGIN_TRANSACTION_RECORD", 0, _parse_fields("name string #0")),
    24: ("END_TRANSACTION_RECORD", 0, ()),
    25: ("ABORT_TRANSACTION_RECORD", 0, _parse_fields("reason string #0")),
    26: ("REMOVE_DELEGATION_TOKEN_RECORD", 0, _parse_fields("tokenId string")),
    27: (
        "REGISTER_CONTROLLER_RECORD",
        0,
        (*_parse_fields("controllerId i, incarnationId uuid, zkMigrationReady ?"), _END_POINTS, _FEATURES),
    ),
    28: ("CLEAR_ELR_RECORD", 0, _parse_fields("topicName string")),
}
"""By api key (``MetadataRecordType``): name, largest version that is decoded (-1: only the name is shown),
fields. All versions are flexible."""


class _FieldReader(MessageReader):
    """Reads a message by the fields of its definition."""

    _is_flexible = False

    def number(self, type_letter: str) -> Any:
        """Read a number or a bool; ``type_letter`` is its letter in ``struct``."""
        return struct.unpack(f">{type_letter}", self.take(struct.calcsize(f">{type_letter}"), "a number"))[0]

    def message(self, fields: tuple[_Field, ...], version: int, *, is_flexible: bool = False) -> Fields:
        """Read the fields that this version has; of tagged fields those that the message has."""
        self._is_flexible = is_flexible
        values = {
            field.name: self._value(field.type, version)
            for field in fields
            if field.tag is None and field.first_version <= version <= field.last_version
        }
        tagged = {}
        for _ in range(self.varint() if is_flexible else 0):
            tag = self.varint()
            tagged[tag] = self.take(self.varint(), "a tagged field")
        for field in fields:
            if field.tag in tagged:
                reader = _FieldReader(tagged[field.tag])
                reader._is_flexible = True
                values[field.name] = reader._value(field.type, version)
        return {field.name: values[field.name] for field in fields if field.name in values}

    def _value(self, field_type: Any, version: int) -> Any:
        """Read one value of a type (see ``_Field``); bytes become base64, as the rows may be printed as
        JSON."""
        if field_type == "string":
            size = self._size("h")
            return None if size < 0 else self.take(size, "a string").decode("utf-8", "backslashreplace")
        if field_type == "bytes":
            size = self._size("i")
            return None if size < 0 else base64.b64encode(self.take(size, "a field")).decode("ascii")
        if field_type == "uuid":
            return self.uuid()
        if isinstance(field_type, _Nullable):
            is_null = self.int8() < 0
            return None if is_null else self.message(field_type.fields, version, is_flexible=True)
        if isinstance(field_type, str) and field_type[0] != "[":
            return self.number(field_type)
        count = self._size("i")
        # Every element takes at least a byte. A damaged count may be any number.
        if count > len(self._data) - self.position:
            raise UndecodableMessageError(self.position, "an array has more elements than bytes are left")
        if count < 0:
            return None
        if isinstance(field_type, str):
            return [self._value(field_type[1:-1], version) for _ in range(count)]
        return [self.message(field_type, version, is_flexible=self._is_flexible) for _ in range(count)]

    def _size(self, type_letter: str) -> int:
        """Read the size of a string or the length of an array; -1 for null. ``type_letter``: its type unless
        the message is flexible."""
        return self.varint() - 1 if self._is_flexible else self.number(type_letter)


DECODERS: dict[str, Decoder] = {"__consumer_offsets": "offsets", "__transaction_state": "transactions"}
"""The decoder of the records of each coordinator's topic."""


def describe_key(topic: str, key: bytes) -> str | None:
    """A key of a coordinator's topic as text, ``group=billing topic=audit partition=0``; None for a key
    that cannot be decoded, and for other topics."""
    decoder = DECODERS.get(topic)
    decoded = {} if decoder is None else decode_record(decoder, key, None).get("decodedKey", {})
    parts = decoded.get("data", {}).items()
    return " ".join(f"{name}={value}" for name, value in parts) or None


def decode_record(decoder: Decoder, key: bytes | None, value: bytes | None) -> Fields:
    """``decodedKey`` and ``decodedValue`` of one record; without them where they cannot be decoded.

    A key is ``{"type", "data"}``, a value ``{"version", "data"}``, a null value the text ``<DELETE>``.
    ``undecodable`` says whether key or value could not be decoded, and why. Bytes after the last field of a
    coordinator's key or value are ignored, as Kafka's ``CoordinatorRecordSerde`` ignores them; after a
    metadata record they are an error, as in its ``AbstractApiMessageSerde``.
    """
    row: Fields = {}
    reading = "key"
    try:
        if decoder == "metadata":
            reading = "value"
            return {"decodedValue": TOMBSTONE if value is None else _decode_metadata(value)}
        if key is None:
            raise UndecodableMessageError(0, "it is null")
        reader = _FieldReader(key)
        type_number = reader.number("h")
        record_type = _RECORD_TYPES[decoder].get(type_number)
        if record_type is None:
            raise UndecodableMessageError(0, f"type {type_number} is unknown")
        # A key has no version: its type stands where other messages have theirs. 0 is the fields' version.
        row["decodedKey"] = {"type": str(type_number), "data": reader.message(record_type.key, 0)}
        reading = "value"
        row["decodedValue"] = TOMBSTONE if value is None else _decode_value(record_type, value)
    except UndecodableMessageError as error:
        row["undecodable"] = f"{reading}: {error}"
    return row


def _decode_metadata(value: bytes) -> Fields:
    """``{"type", "version", "data"}`` of a metadata record; without data for a version that is not
    decoded."""
    frame = _FieldReader(value)
    if frame.varint() != FRAME_VERSION:
        raise UndecodableMessageError(0, f"the frame version is not {FRAME_VERSION}")
    number, version = frame.varint(), frame.varint()
    name, largest, fields = _METADATA_TYPES.get(number, (f"UNKNOWN({number})", -1, ()))
    row: Fields = {"type": name, "version": version}
    if version > largest:
        return row
    row["data"] = frame.message(fields, version, is_flexible=True)
    if frame.position < len(value):
        raise UndecodableMessageError(frame.position, "bytes are left after the record")
    return row


def _decode_value(record_type: _RecordType, value: bytes) -> Fields:
    """``{"version", "data"}`` of a coordinator's value; a transaction also gets the name of its status, as
    ``transactionState``. Raises UndecodableMessageError."""
    reader = _FieldReader(value)
    version = reader.number("h")
    if not 0 <= version <= record_type.largest_version:
        raise UndecodableMessageError(0, f"version {version} is unknown")
    data = reader.message(
        record_type.value, version, is_flexible=version >= record_type.first_flexible_version
    )
    if record_type is _TRANSACTION:
        status = data["transactionStatus"]
        is_known = 0 <= status < len(TRANSACTION_STATES)
        data["transactionState"] = TRANSACTION_STATES[status] if is_known else "unknown"
    return {"version": str(version), "data": data}


def decode_assignment(data: bytes) -> list[tuple[str, int]]:
    """The topics and partitions that a member of a classic group is assigned, as consumers encode them.

    Raises UndecodableMessageError.
    """
    if not data:  # a member that has joined, and has no assignment yet
        return []
    reader = _FieldReader(data)
    reader.number("h")  # later versions have more fields at the end
    topics = reader.message(_ASSIGNMENT, 0)["assignedPartitions"] or ()
    return [(topic["topic"] or "", number) for topic in topics for number in topic["partitions"] or ()]
