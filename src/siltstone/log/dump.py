"""Shows the contents of a log directory's files as rows, and their damage (Kafka's ``DumpLogSegments``).

::

    BASE.log[.cleaned|.swap|.deleted], *.checkpoint          batches and records
    BASE.index, .timeindex, .txnindex, with such suffixes    entries
    BASE.snapshot                                            producers
    *-offset-checkpoint, leader-epoch-checkpoint             offsets, epochs
    partition.metadata, meta.properties                      properties

A row is a dict whose ``type`` says what it describes (``file``, ``batch``, ``record``, ``offsetIndex``…); the
other names are those of Kafka's tool. Values are JSON's, and bytes where the file has bytes: the caller
prints them as base64 or as escaped text (``render``).

Nothing is trusted: damage is yielded as a ``CorruptFileError`` after the rows before it. A bad checksum does
not end a file: its batch is shown as not valid, with its records as far as they can be read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from siltstone.base import files
from siltstone.base.codec_table import codec_name
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, CorruptRecordError, UsageError
from siltstone.base.records import layout
from siltstone.base.records.checksum import BAD_CHECKSUM, checksums_hold
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.scan import SCAN_REASON, ScanEnd
from siltstone.log import names
from siltstone.log.checkpoints import EPOCH_COLUMNS, OFFSET_COLUMNS, read_lines, read_rows
from siltstone.log.coordinator_records import Decoder, decode_record
from siltstone.log.indexes import Entries, NamedFile, check_against_log, entries_before_damage, sanity_check
from siltstone.log.producers import ProducerEntry, read_snapshot
from siltstone.log.segments import Window, windows

Row = dict[str, Any]
Output = Iterator[Row | CorruptFileError]
MAX_FINDINGS = 100
"""So many findings of one check are listed; another one counts the rest."""
CONTROL_TYPES = (
    "ABORT COMMIT LEADER_CHANGE SNAPSHOT_HEADER SNAPSHOT_FOOTER KRAFT_VERSION KRAFT_VOTERS"
).split()
_LARGEST_SEQUENCE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What to show; the names are the flags of Kafka's tool.

    ``max_bytes``: how much of a log is read. ``max_decompressed_message_bytes``: the bytes that one batch may
    decompress to.
    """

    print_data_log: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int | None = None
    max_decompressed_message_bytes: int = DEFAULT_LIMIT
    decoder: Decoder | None = None

    @property
    def shows_data(self) -> bool:
        """Keys and values are printed, also for a decoder."""
        return self.print_data_log or self.decoder is not None


KNOWN_FILES = (
    ".log, .index, .timeindex, .txnindex, .snapshot, the offset checkpoints, leader-epoch-checkpoint, "
    "partition.metadata and meta.properties"
)
_NAME_AN_INDEX = f"name it after its segment's base offset, such as {names.segment_file(0, 'index')}"
_NAME = re.compile(r"^(.+)\.(log|index|timeindex|txnindex|snapshot|checkpoint)(\.cleaned|\.swap|\.deleted)?$")
_BASE_OFFSET = re.compile(r"^([0-9]{1,20})(-[0-9]{10})?$")


def identify(path: str) -> NamedFile:
    """A file's kind by its name. Raises UsageError for a directory and for an unknown name."""
    name = os.path.basename(path)
    if files.is_directory(path):
        raise UsageError("it is a directory", path=path, advice="pass the files in it")
    if name in names.OFFSET_CHECKPOINTS or name == names.LEADER_EPOCH_CHECKPOINT:
        return NamedFile(path=path, kind="epochs" if name == names.LEADER_EPOCH_CHECKPOINT else "offsets")
    if name in (names.PARTITION_METADATA, names.META_PROPERTIES):
        return NamedFile(path=path, kind="properties")
    parts = _NAME.match(name)
    if parts is None:
        raise UsageError("the kind of the file is unknown", path=path, advice=f"pass {KNOWN_FILES}")
    number = _BASE_OFFSET.match(parts[1])
    if number is None and parts[2] in names.SEGMENT_KINDS[1:]:
        raise UsageError("the file's name has no base offset", path=path, advice=_NAME_AN_INDEX)
    kind = "log" if parts[2] == "checkpoint" else parts[2]
    base_offset = -1 if number is None else int(number[1])
    if base_offset > LONG_MAX:
        raise UsageError(
            f"{base_offset} in the file's name is not an offset", path=path, advice=_NAME_AN_INDEX
        )
    return NamedFile(path=path, kind=kind, base_offset=base_offset, suffix=parts[3] or "")


def files_below(path: str) -> list[NamedFile]:
    """The file itself; of a directory the files of known kinds in it, and those in partitions below it.

    Links, and files of other kinds, are left out. Raises UsageError, OSError.
    """
    if not files.is_directory(path):
        return [identify(path)]
    found: list[NamedFile] = []
    for entry in files.entries(path):
        inner = os.path.join(path, entry.name)
        if entry.is_directory and names.parse_partition(entry.name) is not None:
            found += files_below(inner)
        elif entry.is_file:
            with contextlib.suppress(UsageError):
                found.append(identify(inner))
    return found


def dump_file(file: NamedFile, options: DumpOptions) -> Output:
    """The file's rows, the first one of the file itself, and findings between them. Raises OSError."""
    start: Row = {"type": "file", "file": file.path, "kind": file.kind}
    if file.kind == "log":
        start["startOffset"] = None if file.base_offset < 0 else file.base_offset
    yield start
    if file.kind == "log":
        yield from log_rows(file.path, options)
    elif file.kind in names.SEGMENT_KINDS:
        yield from _index_rows(file, options)
    else:
        try:
            if file.kind == names.SNAPSHOT:
                yield from map(_producer_row, read_snapshot(files.read_bytes(file.path), file.path))
            elif file.kind == "properties":
                yield from _property_rows(file.path)
            else:
                yield from _checkpoint_rows(file.path, file.kind)
        except CorruptFileError as error:
            yield error


def log_rows(path: str, options: DumpOptions) -> Output:
    """A row of each batch of a log file, with ``options`` its records after it, and findings (``dumpLog``).

    Batches are decoded one at a time, so that damage in one hides no other. A batch without a valid header
    ends the file, after the rows before it. Raises OSError.
    """
    scratch = Scratch()
    with files.Reader(path) as reader:
        size = reader.stat.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        try:
            for window in windows(reader, end=limit, verify=False):
                valid = checksums_hold(window.data, window.batches)
                for number in range(len(window.batches)):
                    batch = replace(window, batches=window.batches[number : number + 1])
                    yield from _batch_rows(path, batch, bool(valid[number]), options, scratch)
        except CorruptRecordError as error:
            if limit == size or error.reason != SCAN_REASON[ScanEnd.TRUNCATED]:
                yield error


def _batch_rows(path: str, batch: Window, valid: bool, options: DumpOptions, scratch: Scratch) -> Output:
    """The row of a window's one batch, with ``options`` its records, and at most one finding about either."""
    row = _batch_row(batch, valid)
    finding = None if valid else CorruptRecordError(path, row["position"], BAD_CHECKSUM)
    columns = None
    if options.deep_iteration or options.shows_data:
        limit = options.max_decompressed_message_bytes
        try:
            columns = decode_records(
                batch.data, batch.batches, scratch, limit=limit, path=path, origin=batch.origin
            )
        except CorruptRecordError as error:
            finding = finding or error
    if columns is not None and row["magic"] < 2:
        row |= {"baseOffset": int(columns.offset[0]), "count": len(columns)}
    yield row
    if finding is not None:
        yield finding
    if columns is None:
        return
    for number in range(len(columns)):
        record = _record_row(row, columns, number, options)
        yield record
        if valid and not record.get("isValid", True):
            reason = f"the checksum of the inner message at offset {record['offset']} does not match"
            yield CorruptRecordError(path, row["position"], reason)


def _batch_row(batch: Window, valid: bool) -> Row:
    header: dict[str, int] = dict(
        zip(batch.batches.dtype.names or (), batch.batches[0].tolist(), strict=True)
    )
    attributes, magic, base_offset = header["attributes"], header["magic"], header["base_offset"]
    row: Row = {"type": "batch"}
    if magic == 2:
        row |= {
            "baseOffset": base_offset,
            "lastOffset": header["last_offset"],
            "count": header["count"],
            "baseSequence": header["base_sequence"],
            "lastSequence": _sequence_after(header["base_sequence"], header["last_offset"] - base_offset),
            "producerId": header["producer_id"],
            "producerEpoch": header["producer_epoch"],
            "partitionLeaderEpoch": header["leader_epoch"],
            "isTransactional": bool(attributes & layout.TRANSACTIONAL_BIT),
            "isControl": bool(attributes & layout.CONTROL_BIT),
            "deleteHorizonMs": header["base_timestamp"] if attributes & layout.DELETE_HORIZON_BIT else None,
        }
    else:
        # A compressed message set is stored under its last message's offset; only decoding tells the first.
        plain = not attributes & layout.CODEC_MASK
        row |= {"offset": base_offset, "baseOffset": base_offset if plain else None}
        row |= {"lastOffset": base_offset, "count": 1 if plain else None}
    time_type = "LogAppendTime" if attributes & layout.TIMESTAMP_TYPE_BIT else "CreateTime"
    return row | {
        "position": batch.origin + header["position"],
        "timestampType": time_type if magic else "NoTimestampType",
        "baseTimestamp": header["base_timestamp"],
        "maxTimestamp": header["max_timestamp"],
        "size": header["size"],
        "magic": magic,
        "attributes": attributes,
        "compresscodec": codec_name(attributes & layout.CODEC_MASK),
        "crc": header["crc"],
        "isvalid": valid,
    }


def _sequence_after(sequence: int, steps: int) -> int:
    """The sequence number ``steps`` after another; 0 follows the largest, and -1 (none) stays -1."""
    return sequence if sequence < 0 else (sequence + steps) & _LARGEST_SEQUENCE


def _record_row(batch: Row, columns: RecordColumns, number: int, options: DumpOptions) -> Row:
    """One record of a batch as a row; keys, values and headers only where the options show data."""
    row: Row = {
        "type": "record",
        "offset": int(columns.offset[number]),
        "timestampType": batch["timestampType"],
        "timestamp": int(columns.timestamp[number]),
        "keySize": int(columns.key_size[number]),
        "valueSize": int(columns.value_size[number]),
    }
    key, value = columns.key(number), columns.value(number)
    if batch["magic"] < 2:
        row |= _message_checksum(columns, number)
    else:
        headers = [(_text(name), content) for name, content in columns.headers(number)]
        row["sequence"] = _sequence_after(batch["baseSequence"], row["offset"] - batch["baseOffset"])
        row["headerKeys"] = [name for name, _ in headers]
        if options.shows_data:
            row["headers"] = [{"key": name, "value": content} for name, content in headers]
        if batch["isControl"]:
            row |= _control_fields(key or b"", value or b"")
    if options.shows_data:
        row |= {"key": key, "value": value}
        if options.decoder is not None and "controlType" not in row:
            row |= decode_record(options.decoder, key, value)
    return row


def _message_checksum(columns: RecordColumns, number: int) -> Row:
    """The CRC32 of one message (magic 0 and 1), and whether it is right."""
    start = int(columns.start[number])
    entry = columns.data[start : start + int(columns.size[number])].tobytes()
    stored = int.from_bytes(entry[layout.LOG_OVERHEAD : layout.MAGIC_POSITION], "big")
    assert layout.MAGIC_POSITION < layout.CRC_POSITION < len(entry)
    return {"isValid": zlib.crc32(entry[layout.MAGIC_POSITION :]) == stored, "crc": stored}


def _control_fields(key: bytes, value: bytes) -> Row:
    """The fields of a control record: its type, and for a transaction's end the coordinator's epoch.

    Key: version 2, type 2. Value of ABORT and COMMIT: version 2, coordinator epoch 4.
    """
    if len(key) < 4:
        return {"controlType": "UNKNOWN"}
    kind = int.from_bytes(key[2:4], "big", signed=True)
    if kind in (0, 1) and len(value) >= 6:
        epoch = int.from_bytes(value[2:6], "big", signed=True)
        return {"controlType": CONTROL_TYPES[kind], "coordinatorEpoch": epoch}
    name = CONTROL_TYPES[kind] if 0 <= kind < len(CONTROL_TYPES) else "UNKNOWN"
    return {"controlType": f"{name}({kind})"}


# Indexes


def _index_rows(index: NamedFile, options: DumpOptions) -> Output:
    """A row of each entry, unless ``options`` ask for a check alone, and findings. Raises OSError."""
    entries, damage = entries_before_damage(files.read_bytes(index.path), index)
    if not (options.verify_index_only or options.index_sanity_check):
        yield from _entry_rows(index, entries)
    damage += list(sanity_check(index, entries))
    yield from damage
    if options.index_sanity_check:
        if not damage:
            yield {"type": "sanity", "file": index.path, "passed": True}
        return
    log = index.log_path()
    if index.kind == "txnindex":
        return
    if log is None:
        if options.verify_index_only:
            reason = f"the index cannot be verified, since its log {Path(index.path).stem}.log is missing"
            yield CorruptFileError(index.path, 0, reason)
        return
    findings = check_against_log(index, entries, log)
    yield from itertools.islice(findings, MAX_FINDINGS)
    more = sum(1 for _ in findings)
    if more:
        yield CorruptFileError(index.path, 0, f"{more} more entries do not match the log")


def _entry_rows(index: NamedFile, entries: Entries) -> Iterator[Row]:
    for entry in entries.tolist():
        if index.kind == "index":
            yield {"type": "offsetIndex", "offset": index.base_offset + entry[0], "position": entry[1]}
        elif index.kind == "timeindex":
            yield {"type": "timeIndex", "timestamp": entry[0], "offset": index.base_offset + entry[1]}
        else:
            columns = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
            yield {"type": "abortedTxn", **dict(zip(columns, entry, strict=True))}


# Small files


def _producer_row(producer: ProducerEntry) -> Row:
    """A producer's row; without a last batch if the snapshot has none."""
    open_offset, last_sequence = producer.open_transaction_offset, producer.last_sequence
    row: Row = {
        "type": "producer",
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "currentTxnFirstOffset": None if open_offset < 0 else open_offset,
        "lastTimestamp": producer.timestamp_ms,
    }
    if producer.last_offset < 0:
        return row
    return row | {
        "firstSequence": _sequence_after(last_sequence, _LARGEST_SEQUENCE + 1 - producer.offset_delta),
        "lastSequence": last_sequence,
        "lastOffset": producer.last_offset,
        "offsetDelta": producer.offset_delta,
        "timestamp": producer.timestamp_ms,
    }


def _checkpoint_rows(path: str, kind: str) -> Iterator[Row]:
    """The entries of a checkpoint of offsets or epochs."""
    is_of_epochs = kind == "epochs"
    row_type = "leaderEpoch" if is_of_epochs else "checkpoint"
    columns = EPOCH_COLUMNS if is_of_epochs else OFFSET_COLUMNS
    for row in read_rows(path, columns):
        numbers = map(int, row[-2:])
        yield {"type": row_type, **dict(zip(columns, (*row[:-2], *numbers), strict=True))}


def _property_rows(path: str) -> Iterator[Row]:
    """``name=value`` or ``name: value`` lines; comments are skipped."""
    for position, line in read_lines(path):
        if not line or line[0] in "#!":
            continue
        parts = re.match(r"([^=:]+)[=:](.*)", line)
        if parts is None:
            raise CorruptFileError(path, position, f"the line {line[:80]!r} is not a property")
        yield {"type": "property", "name": parts[1].strip(), "value": parts[2].strip()}


_BATCH_START = (
    "baseOffset lastOffset count baseSequence lastSequence producerId producerEpoch "
    "partitionLeaderEpoch isTransactional isControl"
).split()
_BATCH_END = ("size", "magic", "compresscodec", "crc", "isvalid")
_PRODUCER_END = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")


class _Escapes(dict[int, str]):
    """The printed form of each character, by its number; filled on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        printed = character.encode("unicode_escape").decode("ascii")
        self[code] = character if character.isprintable() else printed
        return self[code]


_ESCAPES = _Escapes()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def printable(content: bytes | str) -> str:
    """Text with every non-printable character escaped; bytes are read as UTF-8, bad ones as ``\\xNN``."""
    text = _text(content) if isinstance(content, bytes) else content
    return text if text.isprintable() else text.translate(_ESCAPES)


def render(row: Row) -> str:
    """One row as Kafka's tool prints it: a line, or two for the start of a log.

    Characters that are not printable are escaped, so that a record cannot control the terminal. Backslashes
    are not: the JSON form has the exact bytes.
    """
    match row["type"]:
        case "file":
            line = f"Dumping {printable(row['file'])}"
            start = row.get("startOffset")
            return line if start is None else f"{line}\nLog starting offset: {start}"
        case "batch":
            return _batch_line(row)
        case "record":
            return _record_line(row)
        case "producer":
            line = _pairs(row, ("producerId", "producerEpoch", "coordinatorEpoch"))
            line += f" currentTxnFirstOffset: {_optional(row['currentTxnFirstOffset'])}"
            line += f" lastTimestamp: {row['lastTimestamp']}"
            return f"{line} {_pairs(row, _PRODUCER_END)}" if "lastOffset" in row else line
        case "sanity":
            return f"{printable(row['file'])} passed sanity check."
        case "property":
            return f"{printable(row['name'])}: {printable(row['value'])}"
        case _:
            return _pairs(row, (name for name in row if name != "type"))


def _pairs(row: Row, keys: Iterable[str]) -> str:
    return " ".join(f"{key}: {_plain(row[key])}" for key in keys)


def _plain(content: Any) -> str:
    if isinstance(content, bool):
        return "true" if content else "false"
    return printable(content) if isinstance(content, bytes | str) else str(content)


def _optional(content: int | None) -> str:
    """As Java prints an OptionalLong."""
    return "OptionalLong.empty" if content is None else f"OptionalLong[{content}]"


def _batch_line(row: Row) -> str:
    position = f"position: {row['position']} {row['timestampType']}: {row['maxTimestamp']}"
    if row["magic"] < 2:
        return f"offset: {row['offset']} {position} {_pairs(row, _BATCH_END)}"
    horizon = f"deleteHorizonMs: {_optional(row['deleteHorizonMs'])}"
    return f"{_pairs(row, _BATCH_START)} {horizon} {position} {_pairs(row, _BATCH_END)}"


def _record_line(row: Row) -> str:
    sizes = _pairs(row, ("keySize", "valueSize"))
    parts = [f"| offset: {row['offset']} {row['timestampType']}: {row['timestamp']} {sizes}"]
    if "sequence" in row:
        keys = ",".join(map(printable, row["headerKeys"]))
        parts.append(f"sequence: {row['sequence']} headerKeys: [{keys}]")
    else:
        parts.append(_pairs(row, ("isValid", "crc")))
    if row.get("headers"):
        headers = (
            f"{printable(header['key'])}={'null' if header['value'] is None else printable(header['value'])}"
            for header in row["headers"]
        )
        parts.append(f"headers: [{','.join(headers)}]")
    if "coordinatorEpoch" in row:
        parts.append(f"endTxnMarker: {row['controlType']} coordinatorEpoch: {row['coordinatorEpoch']}")
    elif "controlType" in row:
        parts.append(f"controlType: {printable(row['controlType'])}")
    else:
        for label, name, decoded in (("key", "key", "decodedKey"), ("payload", "value", "decodedValue")):
            content = row.get(decoded, row.get(name))
            if isinstance(content, dict):
                content = msgspec.json.encode(content)
            if content is not None:
                parts.append(f"{label}: {printable(content)}")
    return " ".join(parts)
