"""Keys and values of ``__consumer_offsets`` and ``__transaction_state``, as the coordinators write them.

Kafka's ``CoordinatorRecordType``, ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey``,
``GroupMetadataValue``, ``TransactionLogKey`` and ``TransactionLogValue``::

    key      type 2 (0, 1: offset commit · 2: group metadata; transactions: 0)
             group | topic | partition 4        offset commit
             group                              group metadata
             transactional id                   transactions
    value    version 2 | fields …

    string   size 2, bytes (-1: null); flexible versions: size + 1 as an unsigned varint (0: null)
    array    count 4; flexible versions: count + 1 as an unsigned varint
    behind the fields of a flexible version: tag count, per tag its number, size, bytes

The flexible versions are offset commit value 4, group metadata value 4 and transaction value 1. The names
in the results are those of the messages, the nesting is that of Kafka's own JSON.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from siltstone.log.inspection.rows import Decoder, Row

Data = dict[str, Any]
Element = TypeVar("Element")

TRANSACTION_STATES = (
    "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence"
).split()
TOMBSTONE = "<DELETE>"
_LARGEST_KNOWN_OFFSET_VALUE = 4
_LARGEST_KNOWN_GROUP_VALUE = 4
_LARGEST_KNOWN_TRANSACTION_VALUE = 1
_UUID_SIZE = 16


class UndecodableError(ValueError):
    """A key or a value that is none of the known ones: the message says why."""


class _Fields:
    """Reads fields one after another; UndecodableError where the bytes end too early."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self._data) - self._position:
            raise UndecodableError("a field goes on beyond the end")
        self._position += size
        return self._data[self._position - size : self._position]

    def number(self, form: str) -> int:
        """An integer: ``form`` is struct's letter b, h, i or q."""
        return int(struct.unpack(f">{form}", self.take(struct.calcsize(f">{form}")))[0])

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise UndecodableError("an over-long varint")

    def _size(self, form: str) -> int:
        return self.unsigned_varint() - 1 if self.flexible else self.number(form)

    def text(self) -> str | None:
        size = self._size("h")
        return None if size < 0 else self.take(size).decode("utf-8", "backslashreplace")

    def blob(self) -> str | None:
        """Bytes as base64."""
        size = self._size("i")
        return None if size < 0 else base64.b64encode(self.take(size)).decode("ascii")

    def array(self, element: Callable[[], Element]) -> list[Element] | None:
        count = self._size("i")
        if count > len(self._data) - self._position:
            raise UndecodableError("more elements than bytes")
        return None if count < 0 else [element() for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        """Tagged fields of a flexible version by number; none in another."""
        if not self.flexible:
            return {}
        count = self.unsigned_varint()
        return {self.unsigned_varint(): self.take(self.unsigned_varint()) for _ in range(count)}


def decode_record(decoder: Decoder, key: bytes | None, value: bytes | None) -> Row:
    """``decodedKey`` and ``decodedValue`` of one record; without them where they cannot be told.

    A key is ``{"type", "data"}``, a value ``{"version", "data"}``, a null value the text ``<DELETE>``;
    ``undecodable`` says what could not be told and why.
    """
    decode_key, decode_value = (
        (_offsets_key, _offsets_value) if decoder == "offsets" else (_transaction_key, _transaction_value)
    )
    row: Row = {}
    try:
        if key is None:
            raise UndecodableError("no key")
        row["decodedKey"] = decode_key(key)
        row["decodedValue"] = TOMBSTONE if value is None else decode_value(row["decodedKey"]["type"], value)
    except (UndecodableError, struct.error) as error:
        row["undecodable"] = f"{'value' if 'decodedKey' in row else 'key'}: {error}"
    return row


def _offsets_key(key: bytes) -> Data:
    fields = _Fields(key)
    kind = fields.number("h")
    if kind in (0, 1):
        data: Data = {"group": fields.text(), "topic": fields.text(), "partition": fields.number("i")}
    elif kind == 2:
        data = {"group": fields.text()}
    else:
        raise UndecodableError(f"key type {kind} is not known")
    return {"type": str(kind), "data": data}


def _offsets_value(kind: str, value: bytes) -> Data:
    return _group_value(value) if kind == "2" else _commit_value(value)


def _versioned(value: bytes, largest: int, flexible_from: int) -> tuple[_Fields, int]:
    fields = _Fields(value)
    version = fields.number("h")
    if not 0 <= version <= largest:
        raise UndecodableError(f"version {version} is not known")
    fields.flexible = version >= flexible_from
    return fields, version


def _commit_value(value: bytes) -> Data:
    fields, version = _versioned(value, _LARGEST_KNOWN_OFFSET_VALUE, 4)
    data: Data = {"offset": fields.number("q")}
    if version >= 3:
        data["leaderEpoch"] = fields.number("i")
    data["metadata"] = fields.text()
    data["commitTimestamp"] = fields.number("q")
    if version == 1:
        data["expireTimestamp"] = fields.number("q")
    topic_id = fields.tags().get(0, b"")
    if len(topic_id) == _UUID_SIZE:
        data["topicId"] = base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")
    return {"version": str(version), "data": data}


def _group_value(value: bytes) -> Data:
    fields, version = _versioned(value, _LARGEST_KNOWN_GROUP_VALUE, 4)
    data: Data = {
        "protocolType": fields.text(),
        "generation": fields.number("i"),
        "protocol": fields.text(),
        "leader": fields.text(),
    }
    if version >= 2:
        data["currentStateTimestamp"] = fields.number("q")
    data["members"] = fields.array(lambda: _member(fields, version))
    fields.tags()
    return {"version": str(version), "data": data}


def _member(fields: _Fields, version: int) -> Data:
    member: Data = {"memberId": fields.text()}
    if version >= 3:
        member["groupInstanceId"] = fields.text()
    member |= {"clientId": fields.text(), "clientHost": fields.text()}
    if version >= 1:
        member["rebalanceTimeout"] = fields.number("i")
    member["sessionTimeout"] = fields.number("i")
    member |= {"subscription": fields.blob(), "assignment": fields.blob()}
    fields.tags()
    return member


def _transaction_key(key: bytes) -> Data:
    fields = _Fields(key)
    kind = fields.number("h")
    if kind != 0:
        raise UndecodableError(f"key type {kind} is not known")
    return {"type": str(kind), "data": {"transactionalId": fields.text()}}


def _transaction_value(_kind: str, value: bytes) -> Data:
    fields, version = _versioned(value, _LARGEST_KNOWN_TRANSACTION_VALUE, 1)
    producer_id, producer_epoch = fields.number("q"), fields.number("h")
    timeout_ms, status = fields.number("i"), fields.number("b")
    partitions = fields.array(lambda: _transaction_partitions(fields))
    updated_ms, started_ms = fields.number("q"), fields.number("q")
    tags = fields.tags()
    known = 0 <= status < len(TRANSACTION_STATES)
    data: Data = {
        "producerId": producer_id,
        "previousProducerId": _tagged(tags, 0),
        "nextProducerId": _tagged(tags, 1),
        "producerEpoch": producer_epoch,
        "nextProducerEpoch": _tagged(tags, 3),
        "transactionTimeoutMs": timeout_ms,
        "transactionStatus": status,
        "transactionPartitions": partitions,
        "transactionLastUpdateTimestampMs": updated_ms,
        "transactionStartTimestampMs": started_ms,
        "clientTransactionVersion": _tagged(tags, 2),
        "transactionState": TRANSACTION_STATES[status] if known else "unknown",
    }
    absent = {name for name in data if data[name] is None and name != "transactionPartitions"}
    return {"version": str(version), "data": {name: data[name] for name in data if name not in absent}}


def _tagged(tags: dict[int, bytes], tag: int) -> int | None:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else None


def _transaction_partitions(fields: _Fields) -> Data:
    found = {"topic": fields.text(), "partitionIds": fields.array(lambda: fields.number("i"))}
    fields.tags()
    return found
