"""Shows the contents of a log directory's files as rows, and their damage (Kafka's ``DumpLogSegments``).

::

    BASE.log, *.checkpoint (snapshot of the metadata log)    batches and records
    BASE.index, .timeindex, .txnindex                        entries; also with .cleaned, .swap or .deleted
    BASE.snapshot                                            producers
    *-offset-checkpoint, leader-epoch-checkpoint             offsets, epochs
    partition.metadata, meta.properties                      properties

A row is a dict. Its ``type`` says what it describes (``file``, ``batch``, ``record``, ``offsetIndex``…); the
names of its other fields are those of Kafka's tool. Values are those of JSON, or bytes, which the caller
prints as base64 or as escaped text (``render``).

No file is trusted. Damage, or an index entry that contradicts the log, is a *finding*: a ``CorruptFileError``
that is yielded, not raised, after the rows before it. A batch with a bad checksum does not end the dump of
its file: its row says that it is not valid, and its records follow if they can be decoded.
"""

from __future__ import annotations

import contextlib
import errno
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
from siltstone.base.errors import CorruptFileError, CorruptRecordError, UsageError, shown_path
from siltstone.base.records import layout
from siltstone.base.records.checksum import BAD_CHECKSUM, checksums_hold
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.control import ABORT, COMMIT
from siltstone.base.records.decode import decode_records
from siltstone.base.records.scan import SCAN_REASON, ScanEnd
from siltstone.log import names
from siltstone.log.checkpoints import EPOCH_COLUMNS, OFFSET_COLUMNS, read_lines, read_rows
from siltstone.log.coordinator_records import Decoder, decode_record
from siltstone.log.indexes import Entries, NamedFile, check_against_log, entries_before_damage, sanity_check
from siltstone.log.producers import ProducerEntry, read_snapshot
from siltstone.log.segments import Window, windows

Row = dict[str, Any]
RowsAndFindings = Iterator[Row | CorruptFileError]
MAX_FINDINGS = 100
"""How many findings of one check are listed; a last finding says how many more there are."""
CONTROL_TYPES = (
    "ABORT COMMIT LEADER_CHANGE SNAPSHOT_HEADER SNAPSHOT_FOOTER KRAFT_VERSION KRAFT_VOTERS"
).split()
"""The types of control records; the index is the number in the key (``ControlRecordType``)."""
_LARGEST_SEQUENCE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of a dump, named as the flags of Kafka's tool where it has them.

    ``print_data_log``: show keys, values and headers. ``deep_iteration``: show records.
    ``verify_index_only``: compare an index with its log, and do not show its entries. ``index_sanity_check``:
    check an index without its log. ``max_bytes``: how many bytes of a log are read.
    ``max_decompressed_message_bytes``: how many bytes one batch may decompress to. ``decoder``: for a log of
    one of Kafka's internal topics.
    """

    print_data_log: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int | None = None
    max_decompressed_message_bytes: int = DEFAULT_DECOMPRESSION_LIMIT
    decoder: Decoder | None = None

    @property
    def shows_data(self) -> bool:
        """Are keys and values printed? A decoder has them printed without ``print_data_log``, too."""
        return self.print_data_log or self.decoder is not None


KNOWN_FILES = (
    ".log, .index, .timeindex, .txnindex, .snapshot, the offset checkpoints, leader-epoch-checkpoint, "
    "partition.metadata and meta.properties"
)
_NAME_ADVICE = f"name it after its segment's base offset, such as {names.segment_file(0, 'index')}"
_FILE_NAME_PATTERN = re.compile(
    r"^(.+)\.(log|index|timeindex|txnindex|snapshot|checkpoint)(\.cleaned|\.swap|\.deleted)?$"
)
_BASE_OFFSET_PATTERN = re.compile(r"^([0-9]{1,20})(-[0-9]{10})?$")  # a metadata snapshot also has its epoch


def identify(path: str) -> NamedFile:
    """A file's kind and base offset, by its name. Raises UsageError for a directory and an unknown name,
    FileNotFoundError for an unknown name without a file."""
    name = os.path.basename(path)
    if files.is_directory(path):
        raise UsageError("it is a directory", path=path, advice="pass the files in it")
    if name in names.OFFSET_CHECKPOINTS or name == names.LEADER_EPOCH_CHECKPOINT:
        return NamedFile(path=path, kind="epochs" if name == names.LEADER_EPOCH_CHECKPOINT else "offsets")
    if name in (names.PARTITION_METADATA, names.META_PROPERTIES):
        return NamedFile(path=path, kind="properties")
    parts = _FILE_NAME_PATTERN.match(name)  # the name without suffixes, the kind, a suffix of a swap
    if parts is None and not files.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if parts is None:
        raise UsageError("the kind of the file is unknown", path=path, advice=f"pass {KNOWN_FILES}")
    number = _BASE_OFFSET_PATTERN.match(parts[1])
    if number is None and parts[2] in names.INDEX_KINDS:
        raise UsageError("the file's name has no base offset", path=path, advice=_NAME_ADVICE)
    kind = "log" if parts[2] == "checkpoint" else parts[2]  # a metadata snapshot has batches, as a log
    base_offset = -1 if number is None else int(number[1])
    if base_offset > LONG_MAX:
        raise UsageError(f"{base_offset} in the file's name is not an offset", path=path, advice=_NAME_ADVICE)
    return NamedFile(path=path, kind=kind, base_offset=base_offset, suffix=parts[3] or "")


def files_below(path: str, *, only_indexes: bool = False) -> list[NamedFile]:
    """The file ``path`` itself; for a directory the files of known kinds in it and in the partitions below
    it. ``only_indexes``: only the indexes among these.

    Links, and files of other kinds, are left out. Raises UsageError, OSError.
    """
    if not files.is_directory(path):
        return [identify(path)]
    named_files: list[NamedFile] = []
    for entry in files.entries(path):
        entry_path = os.path.join(path, entry.name)
        if entry.is_directory and names.parse_partition(entry.name) is not None:
            named_files += files_below(entry_path, only_indexes=only_indexes)
        elif entry.is_file:
            with contextlib.suppress(UsageError, FileNotFoundError):
                named_files.append(identify(entry_path))
    return [file for file in named_files if not only_indexes or file.kind in names.INDEX_KINDS]


def dump_file(file: NamedFile, options: DumpOptions) -> RowsAndFindings:
    """A row of the file itself, then the rows of its contents, with findings between them. Raises OSError."""
    file_row: Row = {"type": "file", "file": shown_path(file.path), "kind": file.kind}
    if file.kind == "log":
        file_row["startOffset"] = None if file.base_offset < 0 else file.base_offset
    yield file_row
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


def log_rows(path: str, options: DumpOptions) -> RowsAndFindings:
    """A row for each batch of a log file, with findings (``dumpLog``). If ``options`` ask for records, their
    rows follow the row of their batch.

    A batch without a valid header is a finding and ends the rows, since nothing says where the next batch
    begins. Raises OSError.
    """
    with files.Reader(path) as reader:
        size = reader.stat.size
        limit = size if options.max_bytes is None else min(size, options.max_bytes)
        try:
            yield from window_rows(path, windows(reader, end=limit, verify=False), options)
        except CorruptRecordError as error:
            # Where ``max_bytes`` cuts the last batch, the file is not damaged.
            if limit == size or error.reason != SCAN_REASON[ScanEnd.TRUNCATED]:
                yield error


def window_rows(path: str, log_windows: Iterable[Window], options: DumpOptions) -> RowsAndFindings:
    """The rows of ``log_rows`` for windows of a log, whose name in findings is ``path``.

    Batches are decoded one at a time, so that the batches after a damaged one are shown, too. Raises what
    iterating over ``log_windows`` raises.
    """
    scratch = Scratch()
    for window in log_windows:
        valid = checksums_hold(window.data, window.batches)
        for number in range(len(window.batches)):
            single = replace(window, batches=window.batches[number : number + 1])
            yield from _batch_rows(path, single, bool(valid[number]), options, scratch)


def _batch_rows(
    path: str, single: Window, is_valid: bool, options: DumpOptions, scratch: Scratch
) -> RowsAndFindings:
    """The row of the window's only batch, at most one finding, and the records that ``options`` ask for."""
    row = _batch_row(single, is_valid)
    finding = None if is_valid else CorruptRecordError(path, row["position"], BAD_CHECKSUM)
    columns = None
    if options.deep_iteration or options.shows_data:
        limit = options.max_decompressed_message_bytes
        try:
            columns = decode_records(
                single.data, single.batches, scratch, limit=limit, path=path, origin=single.origin
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
        if is_valid and not record.get("isValid", True):
            reason = f"the checksum of the inner message at offset {record['offset']} does not match"
            yield CorruptRecordError(path, row["position"], reason)


def _batch_row(single: Window, is_valid: bool) -> Row:
    """The window's only batch as a row. ``is_valid``: its checksum is right."""
    header: dict[str, int] = dict(
        zip(single.batches.dtype.names or (), single.batches[0].tolist(), strict=True)
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
        # A compressed message set is stored under its last message's offset. Its first offset and its count
        # are known only once it is decoded.
        is_uncompressed = not attributes & layout.CODEC_MASK
        row |= {"offset": base_offset, "baseOffset": base_offset if is_uncompressed else None}
        row |= {"lastOffset": base_offset, "count": 1 if is_uncompressed else None}
    time_type = "LogAppendTime" if attributes & layout.TIMESTAMP_TYPE_BIT else "CreateTime"
    return row | {
        "position": single.origin + header["position"],
        "timestampType": time_type if magic else "NoTimestampType",
        "baseTimestamp": header["base_timestamp"],
        "maxTimestamp": header["max_timestamp"],
        "size": header["size"],
        "magic": magic,
        "attributes": attributes,
        "compresscodec": codec_name(attributes & layout.CODEC_MASK),
        "crc": header["crc"],
        "isvalid": is_valid,
    }


def _sequence_after(sequence: int, steps: int) -> int:
    """The sequence number ``steps`` after another one: 0 follows the largest; -1 (no sequence) stays -1."""
    return sequence if sequence < 0 else (sequence + steps) & _LARGEST_SEQUENCE


def _record_row(batch: Row, columns: RecordColumns, number: int, options: DumpOptions) -> Row:
    """Record ``number`` of a batch as a row; with key, value and headers if the options show data."""
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
        row |= _message_checksum_fields(columns, number)
    else:
        headers = [(_decode_utf8(name), content) for name, content in columns.headers(number)]
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


def _message_checksum_fields(columns: RecordColumns, number: int) -> Row:
    """The CRC32 of one message (magic 0 and 1), and whether it is right. In a compressed message set these
    are those of the inner message."""
    start = int(columns.start[number])
    message = columns.data[start : start + int(columns.size[number])].tobytes()
    # The CRC32 is between the entry's offset and size and the magic byte, and covers all that follows it.
    stored = int.from_bytes(message[layout.LOG_OVERHEAD : layout.MAGIC_POSITION], "big")
    return {"isValid": zlib.crc32(message[layout.MAGIC_POSITION :]) == stored, "crc": stored}


def _control_fields(key: bytes, value: bytes) -> Row:
    """The fields of a control record: its type and, for ABORT and COMMIT, the coordinator's epoch.

    Key: version int16, type int16. Value of ABORT and COMMIT: version int16, coordinator epoch int32.
    """
    if len(key) < 4:
        return {"controlType": "UNKNOWN"}
    type_number = int.from_bytes(key[2:4], "big", signed=True)
    if type_number in (ABORT, COMMIT) and len(value) >= 6:
        epoch = int.from_bytes(value[2:6], "big", signed=True)
        return {"controlType": CONTROL_TYPES[type_number], "coordinatorEpoch": epoch}
    name = CONTROL_TYPES[type_number] if 0 <= type_number < len(CONTROL_TYPES) else "UNKNOWN"
    return {"controlType": f"{name}({type_number})"}


# Indexes


def _index_rows(index: NamedFile, options: DumpOptions) -> RowsAndFindings:
    """A row for each entry, unless ``options`` ask only for a check, and findings. Raises OSError."""
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
        return  # a comparison with the log would need the producers' state at the segment's start
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
    """A producer's row; without the fields of its last batch if the snapshot has none."""
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
    # The first sequence number is ``offset_delta`` below the last one, modulo 2**31
    # (``DefaultRecordBatch.decrementSequence``): the same as 2**31 - ``offset_delta`` above it.
    return row | {
        "firstSequence": _sequence_after(last_sequence, _LARGEST_SEQUENCE + 1 - producer.offset_delta),
        "lastSequence": last_sequence,
        "lastOffset": producer.last_offset,
        "offsetDelta": producer.offset_delta,
        "timestamp": producer.timestamp_ms,
    }


def _checkpoint_rows(path: str, kind: str) -> Iterator[Row]:
    """The entries of a checkpoint of offsets (``kind`` "offsets") or of leader epochs ("epochs")."""
    is_leader_epochs = kind == "epochs"
    row_type = "leaderEpoch" if is_leader_epochs else "checkpoint"
    columns = EPOCH_COLUMNS if is_leader_epochs else OFFSET_COLUMNS
    for row in read_rows(path, columns):
        numbers = map(int, row[-2:])  # partition and offset, or epoch and start offset
        yield {"type": row_type, **dict(zip(columns, (*row[:-2], *numbers), strict=True))}


def _property_rows(path: str) -> Iterator[Row]:
    """A row for each line ``name=value`` or ``name: value``; comments are skipped. Raises
    CorruptFileError."""
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
"""The fields that Kafka's tool prints first and last for a batch."""
_PRODUCER_BATCH_FIELDS = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")


class _Escapes(dict[int, str]):
    """Code point → how the character is printed, for ``str.translate``; filled on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        printed = character.encode("unicode_escape").decode("ascii")
        self[code] = character if character.isprintable() else printed
        return self[code]


_ESCAPES = _Escapes()


def _decode_utf8(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def printable(content: bytes | str) -> str:
    """Text with every non-printable character escaped; bytes are decoded as UTF-8, and those that are no
    UTF-8 become ``\\xNN``."""
    text = _decode_utf8(content) if isinstance(content, bytes) else content
    return text if text.isprintable() else text.translate(_ESCAPES)


def render(row: Row) -> str:
    """One row as Kafka's tool prints it: a line, or two for the start of a log.

    Characters that are not printable are escaped, so that a record cannot control the terminal. Backslashes
    are not escaped: only the JSON output has the exact bytes.
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
            line = _format_fields(row, ("producerId", "producerEpoch", "coordinatorEpoch"))
            line += f" currentTxnFirstOffset: {_format_optional_long(row['currentTxnFirstOffset'])}"
            line += f" lastTimestamp: {row['lastTimestamp']}"
            return f"{line} {_format_fields(row, _PRODUCER_BATCH_FIELDS)}" if "lastOffset" in row else line
        case "sanity":
            return f"{printable(row['file'])} passed sanity check."
        case "property":
            return f"{printable(row['name'])}: {printable(row['value'])}"
        case _:
            return _format_fields(row, (name for name in row if name != "type"))


def _format_fields(row: Row, keys: Iterable[str]) -> str:
    return " ".join(f"{key}: {_format_value(row[key])}" for key in keys)


def _format_value(content: Any) -> str:
    if isinstance(content, bool):
        return "true" if content else "false"
    return printable(content) if isinstance(content, bytes | str) else str(content)


def _format_optional_long(content: int | None) -> str:
    """The number as Java prints an ``OptionalLong``."""
    return "OptionalLong.empty" if content is None else f"OptionalLong[{content}]"


def _batch_line(row: Row) -> str:
    position = f"position: {row['position']} {row['timestampType']}: {row['maxTimestamp']}"
    if row["magic"] < 2:
        return f"offset: {row['offset']} {position} {_format_fields(row, _BATCH_END)}"
    horizon = f"deleteHorizonMs: {_format_optional_long(row['deleteHorizonMs'])}"
    return f"{_format_fields(row, _BATCH_START)} {horizon} {position} {_format_fields(row, _BATCH_END)}"


def _record_line(row: Row) -> str:
    sizes = _format_fields(row, ("keySize", "valueSize"))
    parts = [f"| offset: {row['offset']} {row['timestampType']}: {row['timestamp']} {sizes}"]
    if "sequence" in row:
        keys = ",".join(map(printable, row["headerKeys"]))
        parts.append(f"sequence: {row['sequence']} headerKeys: [{keys}]")
    else:
        parts.append(_format_fields(row, ("isValid", "crc")))
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
