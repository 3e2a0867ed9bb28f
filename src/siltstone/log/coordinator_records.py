"""Decodes keys and values of ``__consumer_offsets`` and ``__transaction_state``, Kafka's coordinator topics.

Kafka's ``CoordinatorRecordType``, ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey``,
``GroupMetadataValue``, ``TransactionLogKey`` and ``TransactionLogValue``::

    key      type int16 | fields                 __consumer_offsets: 0, 1 offset commit · 2 group metadata
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
from typing import Any, Literal, NamedTuple

from siltstone.base.records.metadata import MessageReader, UndecodableMessageError

Decoder = Literal["offsets", "transactions"]
Fields = dict[str, Any]

"""The fields of a key or a value, by Kafka's names."""

TRANSACTION_STATES = (
    "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence"
).split()
"""By their number (``TransactionState``)."""
TOMBSTONE = "<DELETE>"
"""In place of a null value."""
_ANY_VERSION = (1 << 15) - 1
"""The largest int16: the field has not been removed from the message."""


class _Field(NamedTuple):
    """A field of a message; ``tag``: its number if it is a tagged field.

    ``type``: the letter of an integer in Python's ``struct`` (b int8, h int16, i int32, q int64), ``string``,
    ``bytes``, ``uuid``, ``[i]`` (an array of int32), or for an array of structures the fields of these.
    """

    name: str
    type: Any
    first_version: int = 0
    last_version: int = _ANY_VERSION
    tag: int | None = None


class _RecordType(NamedTuple):
    """The fields of one type's keys and values. Values are known in versions 0 to ``largest_version``."""

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
_COMMIT = _RecordType(_COMMIT_KEY, _COMMIT_VALUE, largest_version=4, first_flexible_version=4)
_GROUP = _RecordType((_Field("group", "string"),), _GROUP_VALUE, largest_version=4, first_flexible_version=4)
_TRANSACTION = _RecordType(
    (_Field("transactionalId", "string"),), _TRANSACTION_VALUE, largest_version=1, first_flexible_version=1
)
_RECORD_TYPES: dict[Decoder, dict[int, _RecordType]] = {
    "offsets": {0: _COMMIT, 1: _COMMIT, 2: _GROUP},
    "transactions": {0: _TRANSACTION},
}


class _FieldReader(MessageReader):
    """Reads a message, given the fields of its definition."""

    _is_flexible = False

    def number(self, type_letter: str) -> int:
        """An integer: ``type_letter`` is struct's letter b, h, i or q."""
        return int(
            struct.unpack(f">{type_letter}", self.take(struct.calcsize(f">{type_letter}"), "a number"))[0]
        )

    def message(self, fields: tuple[_Field, ...], version: int, *, is_flexible: bool = False) -> Fields:
        """The fields of this version, by name; a tagged one only if the message has it."""
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
            if field.tag not in tagged:
                continue
            if field.type != "uuid":
                values[field.name] = int.from_bytes(tagged[field.tag], "big", signed=True)
            elif len(tagged[field.tag]) == 16:
                values[field.name] = MessageReader(tagged[field.tag]).uuid()
        return {field.name: values[field.name] for field in fields if field.name in values}

    def _value(self, field_type: Any, version: int) -> Any:
        """The value of a field that is not tagged; bytes as base64."""
        if field_type == "string":
            size = self._size("h")
            return None if size < 0 else self.take(size, "a string").decode("utf-8", "backslashreplace")
        if field_type == "bytes":
            size = self._size("i")
            return None if size < 0 else base64.b64encode(self.take(size, "a field")).decode("ascii")
        if isinstance(field_type, str) and field_type != "[i]":
            return self.number(field_type)
        count = self._size("i")
        if count > len(self._data) - self.position:
            raise UndecodableMessageError(self.position, "an array has more elements than bytes are left")
        if count < 0:
            return None
        if field_type == "[i]":
            return [self.number("i") for _ in range(count)]
        return [self.message(field_type, version, is_flexible=self._is_flexible) for _ in range(count)]

    def _size(self, type_letter: str) -> int:
        return self.varint() - 1 if self._is_flexible else self.number(type_letter)


def decode_record(decoder: Decoder, key: bytes | None, value: bytes | None) -> Fields:
    """``decodedKey`` and ``decodedValue`` of one record; what cannot be decoded is left out.

    A key is ``{"type", "data"}``, a value ``{"version", "data"}``, a null value the text ``<DELETE>``.
    ``undecodable`` says whether key or value could not be decoded, and why.
    """
    row: Fields = {}
    try:
        if key is None:
            raise UndecodableMessageError(0, "it is null")
        reader = _FieldReader(key)
        type_number = reader.number("h")
        record_type = _RECORD_TYPES[decoder].get(type_number)
        if record_type is None:
            raise UndecodableMessageError(0, f"type {type_number} is unknown")
        row["decodedKey"] = {
            "type": str(type_number),
            "data": reader.message(record_type.key, 0),
        }  # one version
        row["decodedValue"] = TOMBSTONE if value is None else _decode_value(record_type, value)
    except UndecodableMessageError as error:
        row["undecodable"] = f"{'value' if 'decodedKey' in row else 'key'}: {error}"
    return row


def _decode_value(record_type: _RecordType, value: bytes) -> Fields:
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
