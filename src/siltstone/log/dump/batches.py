"""A log file's batches and records as rows, window by window (Kafka's ``DumpLogSegments.dumpLog``).

Checksums are flags here, not errors: a batch with a bad one is shown as not valid, its records are shown
as far as they can be read, and reading goes on. Batches are decoded one at a time, so what one holds
costs nothing to the others.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from siltstone.base import files
from siltstone.base.codec_table import codec_name
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import checksums_hold
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
)
from siltstone.base.records.scan import SCAN_REASON, ScanEnd
from siltstone.log.dump.rows import Decoder, DumpOptions, Output, Row
from siltstone.log.indexes import Finding, finding_of
from siltstone.log.segments import windows

# Keys and values of ``__consumer_offsets`` and ``__transaction_state``, as the coordinators write them.
#
# Kafka's ``CoordinatorRecordType``, ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey``,
# ``GroupMetadataValue``, ``TransactionLogKey`` and ``TransactionLogValue``::
#
#     key      type 2 (0, 1: offset commit · 2: group metadata; transactions: 0)
#              group | topic | partition 4        offset commit
#              group                              group metadata
#              transactional id                   transactions
#     value    version 2 | fields …
#
#     string   size 2, bytes (-1: null); flexible versions: size + 1 as an unsigned varint (0: null)
#     array    count 4; flexible versions: count + 1 as an unsigned varint
#     behind the fields of a flexible version: tag count, per tag its number, size, bytes
#
# The flexible versions are offset commit value 4, group metadata value 4 and transaction value 1. The names
# in the results are those of the messages, the nesting is that of Kafka's own JSON.

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


BAD_CHECKSUM = "checksum does not match"
CONTROL_TYPES = (
    "ABORT COMMIT LEADER_CHANGE SNAPSHOT_HEADER SNAPSHOT_FOOTER KRAFT_VERSION KRAFT_VOTERS"
).split()
_LARGEST_SEQUENCE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One batch: its row in the output, its header in a directory of one, the window's data."""

    row: Row
    header: Directory
    data: Bytes
    origin: int


def log_rows(path: str, options: DumpOptions) -> Output:
    """Rows of every batch of a log file, its records behind it where asked for, and what is wrong.

    Damage ends the file: what comes before it was yielded. Raises OSError.
    """
    scratch = Scratch()
    with files.Reader(path) as reader:
        size = reader.stat.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        try:
            for window in windows(reader, size=limit, verify=False):
                valid = checksums_hold(window.data, window.batches)
                for number in range(len(window.batches)):
                    header = window.batches[number : number + 1]
                    row = batch_row(header, window.origin, bool(valid[number]))
                    batch = _Batch(row=row, header=header, data=window.data, origin=window.origin)
                    yield from _batch_output(path, batch, options, scratch)
        except CorruptRecordError as error:
            if limit == size or error.reason != SCAN_REASON[ScanEnd.TRUNCATED]:
                yield finding_of(error)


def batch_row(header: Directory, origin: int, valid: bool) -> Row:
    """A batch's row: ``header`` is a directory of one, ``origin`` the file position of its window."""
    found = dict(zip(header.dtype.names or (), header[0].tolist(), strict=True))
    attributes, magic = found["attributes"], found["magic"]
    row: Row = {"type": "batch"}
    if magic == 2:
        row |= _modern_fields(found)
    else:
        plain = not attributes & CODEC_MASK
        offset = found["base_offset"]
        row |= {"offset": offset, "baseOffset": offset if plain else None, "lastOffset": offset}
        row |= {"count": 1 if plain else None}
    return row | {
        "position": origin + found["position"],
        "timestampType": _timestamp_type(magic, attributes),
        "baseTimestamp": found["base_timestamp"],
        "maxTimestamp": found["max_timestamp"],
        "size": found["size"],
        "magic": magic,
        "attributes": attributes,
        "compresscodec": codec_name(attributes & CODEC_MASK),
        "crc": found["crc"],
        "isvalid": valid,
    }


def _modern_fields(found: dict[str, int]) -> Row:
    attributes = found["attributes"]
    delta = found["last_offset"] - found["base_offset"]
    return {
        "baseOffset": found["base_offset"],
        "lastOffset": found["last_offset"],
        "count": found["count"],
        "baseSequence": found["base_sequence"],
        "lastSequence": sequence_after(found["base_sequence"], delta),
        "producerId": found["producer_id"],
        "producerEpoch": found["producer_epoch"],
        "partitionLeaderEpoch": found["leader_epoch"],
        "isTransactional": bool(attributes & TRANSACTIONAL_BIT),
        "isControl": bool(attributes & CONTROL_BIT),
        "deleteHorizonMs": found["base_timestamp"] if attributes & DELETE_HORIZON_BIT else None,
    }


def sequence_after(sequence: int, steps: int) -> int:
    """A sequence number ``steps`` on; behind the largest comes 0, and -1 (none) stays."""
    return sequence if sequence < 0 else (sequence + steps) & _LARGEST_SEQUENCE


def _timestamp_type(magic: int, attributes: int) -> str:
    if magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime"


def _batch_output(path: str, batch: _Batch, options: DumpOptions, scratch: Scratch) -> Output:
    """The batch's row, its records where asked for, and at most one finding about either."""
    row = batch.row
    finding = None if row["isvalid"] else Finding(path=path, position=row["position"], reason=BAD_CHECKSUM)
    columns = None
    if options.shows_records:
        try:
            columns = decode_records(
                batch.data,
                batch.header,
                scratch,
                limit=options.max_decompressed_message_bytes,
                path=path,
                origin=batch.origin,
            )
        except CorruptRecordError as error:
            finding = finding or finding_of(error)
    if columns is not None and row["magic"] < 2:
        row |= {"baseOffset": int(columns.offset[0]), "count": len(columns)}
    yield row
    if finding is not None:
        yield finding
    if columns is not None:
        yield from _record_rows(path, batch, columns, options)


def _record_rows(path: str, batch: _Batch, columns: RecordColumns, options: DumpOptions) -> Output:
    for number in range(len(columns)):
        row = record_row(batch.row, columns, number, options)
        yield row
        if batch.row["isvalid"] and not row.get("isValid", True):
            reason = f"checksum of the inner message with offset {row['offset']} does not match"
            yield Finding(path=path, position=batch.row["position"], reason=reason)


def record_row(batch: Row, columns: RecordColumns, number: int, options: DumpOptions) -> Row:
    """One record of a batch as a row; keys, values and headers only where the options show data."""
    row: Row = {
        "type": "record",
        "offset": int(columns.offset[number]),
        "timestampType": batch["timestampType"],
        "timestamp": int(columns.timestamp[number]),
        "keySize": int(columns.key_size[number]),
        "valueSize": int(columns.value_size[number]),
    }
    if batch["magic"] < 2:
        row |= _message_checksum(columns, number)
    else:
        headers = columns.headers(number)
        row["sequence"] = sequence_after(batch["baseSequence"], row["offset"] - batch["baseOffset"])
        row["headerKeys"] = [_name(name) for name, _ in headers]
        if options.shows_data:
            row["headers"] = [{"key": _name(name), "value": value} for name, value in headers]
        if batch["isControl"]:
            row |= _control_fields(columns, number)
    if options.shows_data:
        key, value = columns.key(number), columns.value(number)
        row |= {"key": key, "value": value}
        if options.decoder is not None and "controlType" not in row:
            row |= decode_record(options.decoder, key, value)
    return row


def _name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _message_checksum(columns: RecordColumns, number: int) -> Row:
    """The CRC32 of one message (magic 0 and 1), and whether it holds."""
    start = int(columns.start[number])
    entry = columns.data[start : start + int(columns.size[number])].tobytes()
    stored = int.from_bytes(entry[LOG_OVERHEAD:MAGIC_POSITION], "big")
    assert MAGIC_POSITION < CRC_POSITION < len(entry)
    return {"isValid": zlib.crc32(entry[MAGIC_POSITION:]) == stored, "crc": stored}


def _control_fields(columns: RecordColumns, number: int) -> Row:
    """What a control record says: its type, and of a transaction's end the coordinator's epoch.

    Key: version 2, type 2. Value of ABORT and COMMIT: version 2, coordinator epoch 4.
    """
    key, value = columns.key(number) or b"", columns.value(number) or b""
    if len(key) < 4:
        return {"controlType": "UNKNOWN"}
    kind = int.from_bytes(key[2:4], "big", signed=True)
    if kind in (0, 1) and len(value) >= 6:
        epoch = int.from_bytes(value[2:6], "big", signed=True)
        return {"controlType": CONTROL_TYPES[kind], "coordinatorEpoch": epoch}
    name = CONTROL_TYPES[kind] if 0 <= kind < len(CONTROL_TYPES) else "UNKNOWN"
    return {"controlType": f"{name}({kind})"}
