"""Records with what their batches say, and damage as rows: ``includeBatchMetadata`` and ``badBatches``.

::

    batch       struct of ``BATCH_FIELDS``: where the batch lies, who wrote it, whether its checksum holds
    badBatch    text: why a batch cannot be read; null for records. Its row has topic, partition, the offset
                at which the batch begins, and what its header says, as far as that can be told

With ``badBatches=quarantine`` a batch whose checksum does not hold, or whose records make no sense, is one
such row. Where not even its length makes sense, the row stands for all bytes up to the next place at which a
whole batch with its checksum and a higher offset begins. Reading goes on behind it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from siltstone.base import files
from siltstone.base.codec_table import codec_name
from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.checksum import batch_checksums, checksums_hold
from siltstone.base.records.codecs import DEFAULT_LIMIT, Scratch
from siltstone.base.records.columns import RecordColumns, select
from siltstone.base.records.decode import decode_records
from siltstone.base.records.inflate import pieces
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import (
    BATCH,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
    Int32,
    Int64,
)
from siltstone.base.records.scan import scan_batches
from siltstone.log.dump import BAD_CHECKSUM
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.indexes import AbortedTransaction
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.segments import Window, list_segments, windows
from siltstone.tables.arrow import record_batch
from siltstone.tables.options import ReadOptions
from siltstone.tables.reading import BATCH_ROWS, open_piece, pieces_now, schema_of, wanted_batches
from siltstone.tables.splits import (
    FileSplit,
    OffsetRange,
    SourceFile,
    Split,
    aborted_of,
    find_ranges,
    open_again,
    open_directories,
    readable_end,
)

OUT_OF_ORDER = "its offsets are not above those before it and below those behind it"
BATCH_COLUMN, BAD_COLUMN = "batch", "badBatch"
BATCH_FIELDS = pa.struct(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        ("baseOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("magic", pa.int32()),
        ("codec", pa.string()),
        ("attributes", pa.int32()),
        ("isTransactional", pa.bool_()),
        ("isControl", pa.bool_()),
        ("leaderEpoch", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("baseSequence", pa.int32()),
        ("sequence", pa.int32()),
        ("crc", pa.int64()),
        ("crcValid", pa.bool_()),
    ]
)
"""``sequence`` is the record's own, -1 without a producer id; positions and sizes are bytes of ``file``."""
_SEQUENCES = (1 << 31) - 1
_SEARCH_BYTES = 4 << 20
_LARGEST_BATCH = 1 << 30
_CODEC_NAMES = np.array([codec_name(number) for number in range(CODEC_MASK + 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Some sound batches with their records, or one bad one.

    ``batches`` have positions in the file; ``columns`` count in them, None for a bad one, with its
    ``reason``. ``offset``: where a bad one begins. ``valid``: bool, does each checksum hold? ``batches`` is
    empty where not even a header is there: then ``position`` and ``size`` say which bytes.
    """

    batches: Directory
    valid: npt.NDArray[np.bool_]
    columns: RecordColumns | None = None
    reason: str = ""
    offset: int = -1
    position: int = 0
    size: int = 0


def batch_rows(
    batches: Directory, valid: npt.NDArray[np.bool_], path: str, rows: Int32, offsets: Int64
) -> pa.Array:
    """The ``batch`` column of records with these ``offsets``, which are of these ``rows`` of ``batches``."""
    attributes = batches["attributes"].astype(np.int32)
    first, base = batches["base_sequence"].astype(np.int64), batches["base_offset"]
    # A producer's numbers begin again at 0 behind the largest (Kafka's DefaultRecordBatch).
    sequence = (first[rows] + offsets - base[rows]) & _SEQUENCES
    sequence[first[rows] < 0] = -1
    of_batch = {
        "position": batches["position"],
        "size": batches["size"],
        "baseOffset": base,
        "lastOffset": batches["last_offset"],
        "magic": batches["magic"].astype(np.int32),
        "codec": _CODEC_NAMES[attributes & CODEC_MASK],
        "attributes": attributes,
        "isTransactional": (attributes & TRANSACTIONAL_BIT) != 0,
        "isControl": (attributes & CONTROL_BIT) != 0,
        "leaderEpoch": batches["leader_epoch"],
        "producerId": batches["producer_id"],
        "producerEpoch": batches["producer_epoch"].astype(np.int32),
        "baseSequence": batches["base_sequence"],
        "crc": batches["crc"].astype(np.int64),
        "crcValid": valid,
    }
    picked = pa.array(rows)
    made = {name: pa.array(values).take(picked) for name, values in of_batch.items()}
    made["sequence"] = pa.array(sequence.astype(np.int32))
    made["file"] = pa.repeat(pa.scalar(path), len(rows))
    arrays = [made[field.name].cast(field.type) for field in BATCH_FIELDS]
    return pa.StructArray.from_arrays(arrays, fields=list(BATCH_FIELDS))


def judged_batches(
    reader: files.Reader,
    start: int,
    end: int,
    offset: int,
    *,
    quarantine: bool,
    batch_limit: int = DEFAULT_LIMIT,
) -> Iterator[Judged]:
    """Everything in bytes ``[start, end)``, in order; ``offset``: the first that may be there.

    ``batch_limit``: what one batch may decompress to, in bytes. Columns hold until the next ones are asked
    for. Raises CorruptRecordError unless ``quarantine``.
    """
    scratch, position, doubtful = Scratch(), start, -1
    while position < end:
        try:
            for window in windows(reader, start=position, size=end, window_size=_SEARCH_BYTES, verify=False):
                for judged in _judged(reader.path, window, scratch, offset, batch_limit):
                    if judged.reason and not quarantine:
                        raise CorruptRecordError(reader.path, _position(judged), judged.reason)
                    if judged.columns is not None:
                        offset = max(offset, int(judged.batches["last_offset"][-1]) + 1)
                    doubtful = _position(judged) if judged.reason == BAD_CHECKSUM else -1
                    yield judged
                last = window.batches[-1]
                position = window.origin + int(last["position"]) + int(last["size"])
            return
        except CorruptRecordError as error:
            if not quarantine:
                raise
            # Behind a bad checksum it may be the length that is bad: look for the next from there on.
            told, position = doubtful >= 0, doubtful if doubtful >= 0 else error.position
            position = next_batch(reader, position + 1, end, offset)
            if not told:
                yield _no_batch(error, position, offset)
            doubtful = -1


def _no_batch(error: CorruptRecordError, following: int, offset: int) -> Judged:
    return Judged(
        batches=np.empty(0, BATCH),
        valid=np.empty(0, np.bool_),
        reason=f"{error.reason}: bytes {error.position} to {following} hold no batch",
        offset=offset,
        position=error.position,
        size=following - error.position,
    )


def _position(judged: Judged) -> int:
    return int(judged.batches["position"][0]) if len(judged.batches) else judged.position


def _judged(path: str, window: Window, scratch: Scratch, offset: int, limit: int) -> Iterator[Judged]:
    """The window's batches: runs of sound ones, and each bad one by itself."""
    valid = checksums_hold(window.data, window.batches)
    sound = valid & ~_out_of_order(window.batches, valid, offset)
    first = 0
    for bad in [*np.flatnonzero(~sound).tolist(), len(valid)]:
        if bad > first:
            for part in pieces(window.data, window.batches[first:bad]):
                some = slice(first + part.start, first + part.stop)
                yield from _decoded(path, window, some, scratch, limit)
            offset = max(offset, int(window.batches["last_offset"][bad - 1]) + 1)
        if bad < len(valid):
            holds = bool(valid[bad])
            yield _bad(window, bad, holds, OUT_OF_ORDER if holds else BAD_CHECKSUM, offset)
        first = bad + 1


def _out_of_order(batches: Directory, valid: npt.NDArray[np.bool_], offset: int) -> npt.NDArray[np.bool_]:
    """Batches with an offset that cannot be: no checksum covers it. bool, one a batch."""
    base, last = batches["base_offset"], batches["last_offset"]
    found = np.zeros(len(batches), np.bool_)
    if int(base[0]) >= offset and (base[1:] > last[:-1]).all():
        return found
    rows = np.flatnonzero(valid).tolist()
    for row, following in itertools.zip_longest(rows, rows[1:]):
        reaches = following is not None and offset <= base[following] <= last[row]
        found[row] = base[row] < offset or reaches
        offset = offset if found[row] else int(last[row]) + 1
    return found


def _decoded(path: str, window: Window, part: slice, scratch: Scratch, limit: int) -> Iterator[Judged]:
    """Sound batches decoded; where one cannot be, those before it and behind it are."""
    while part.start < part.stop:
        batches = window.batches[part]
        stop = part.stop
        try:
            columns = decode_records(
                window.data, batches, scratch, limit=limit, path=path, origin=window.origin
            )
        except CorruptRecordError as error:
            positions = batches["position"] + window.origin
            stop = part.start + max(int(np.searchsorted(positions, error.position, side="right")) - 1, 0)
            if stop > part.start:
                yield from _decoded(path, window, slice(part.start, stop), scratch, limit)
            known = int(window.batches["base_offset"][stop])
            yield _bad(window, stop, True, error.reason, known)
            part = slice(stop + 1, part.stop)
            continue
        yield Judged(
            batches=_in_file(window, batches), valid=np.ones(len(batches), np.bool_), columns=columns
        )
        return


def _bad(window: Window, row: int, valid: bool, reason: str, offset: int) -> Judged:
    batches = _in_file(window, window.batches[row : row + 1])
    told = int(batches["base_offset"][0])
    behind = window.batches["base_offset"][row + 1] if row + 1 < len(window.batches) else told + 1
    likely = told if offset <= told < max(int(behind), offset + 1) else offset
    return Judged(batches=batches, valid=np.array([valid]), reason=reason, offset=likely)


def _in_file(window: Window, batches: Directory) -> Directory:
    moved = batches.copy()
    moved["position"] += window.origin
    return moved


def next_batch(reader: files.Reader, start: int, end: int, offset: int) -> int:
    """The next byte from ``start`` on at which a whole batch (v2) with its checksum begins; else ``end``.

    Its offset is at least ``offset``.
    """
    position = start
    while position + BATCH_OVERHEAD <= end:
        data = np.empty(min(_SEARCH_BYTES, end - position), np.uint8)
        data = data[: reader.read_into(data, position)]
        found = 0
        while len(data) - found >= BATCH_OVERHEAD:
            found = int(_candidate(data, found, end - position, offset))
            if found < 0:
                break
            if _is_batch(reader, position + found, end):
                return position + found
            found += 1
        if len(data) < BATCH_OVERHEAD:
            break
        position += len(data) - BATCH_OVERHEAD + 1
    return end


@kernel
def _candidate(data: Bytes, start: int, room: int, offset: int) -> int:
    """The next place with a header that makes sense, -1: none."""
    for at in range(start, len(data) - BATCH_OVERHEAD + 1):
        if data[at + MAGIC_POSITION] != 2:
            continue
        base = 0
        for byte in range(8):
            base = (base << 8) | int(data[at + byte])
        size = 0
        for byte in range(8, 12):
            size = (size << 8) | int(data[at + byte])
        size += LOG_OVERHEAD
        if base >= offset and BATCH_OVERHEAD <= size <= min(room - at, _LARGEST_BATCH):
            return at
    return -1


def _is_batch(reader: files.Reader, position: int, end: int) -> bool:
    head = reader.read(position, LOG_OVERHEAD)
    size = int.from_bytes(head[8:12], "big") + LOG_OVERHEAD
    data = np.frombuffer(reader.read(position, min(size, end - position)), np.uint8)
    scan = scan_batches(data)
    if not len(scan.batches) or int(scan.batches["size"][0]) != len(data):
        return False
    starts: Int64 = np.zeros(1, np.int64)
    return bool(batch_checksums(data, starts, np.array([size], np.int64))[0] == scan.batches["crc"][0])


# A split read with what its batches say: the slower, closer look of ``forensics``.
#
# Rows and columns are those of ``reading``, and behind them what was asked for. A bad batch is a row of the
# piece in whose offsets it begins.

_logger = logging.getLogger("siltstone")


def is_close(options: ReadOptions) -> bool:
    """Is a closer look asked for?"""
    return options.batch_metadata or options.quarantine


def close_schema(options: ReadOptions) -> pa.Schema:
    """The table's columns with those of the closer look. Raises UsageError."""
    found = schema_of(options)
    if options.batch_metadata:
        found = found.append(pa.field(BATCH_COLUMN, BATCH_FIELDS))
    return found.append(pa.field(BAD_COLUMN, pa.string())) if options.quarantine else found


def plan_closely(options: ReadOptions) -> list[Split]:
    """For ``badBatches=quarantine``: every segment's whole file, since a damaged log seems to end there.

    A split a segment. What is above the last stable offset or the high watermark is left out, where that is
    not the log's end. A log that is too damaged to be opened is read whole, if no offsets are asked for:
    aborted transactions are not told then. Raises as ``views.plan``.
    """
    directories, logs = open_directories(options), {}
    for where, directory in directories.items():
        try:
            logs[where] = open_again(directory, where)
        except CorruptFileError as error:
            if options.offsets.starting is not None or options.offsets.ending is not None:
                raise
            _logger.warning("%s: cannot be opened (%s): its files are read as they are", directory, error)
    ranges = find_ranges(logs, options)
    found = []
    for where, directory in directories.items():
        limits = OffsetRange(0, LONG_MAX)
        aborted: tuple[AbortedTransaction, ...] = ()
        if where in logs:
            limits = _limits(logs[where], ranges[where], options)
            if options.isolation == READ_COMMITTED:
                aborted = aborted_of(logs[where].view, OffsetRange(0, LONG_MAX))
        found += [Split(pieces=(piece,)) for piece in _whole_files(where, directory, limits, aborted)]
    return found


def _limits(log: ReadOnlyLog, wanted: OffsetRange, options: ReadOptions) -> OffsetRange:
    is_open = options.offsets.ending is None and readable_end(log, options.isolation) == log.log_end_offset
    return OffsetRange(wanted.start, LONG_MAX if is_open else wanted.end)


def _whole_files(
    where: TopicPartition, directory: Path, limits: OffsetRange, aborted: tuple[AbortedTransaction, ...]
) -> Iterator[FileSplit]:
    segments = list_segments(directory)
    for segment, following in itertools.zip_longest(segments, segments[1:]):
        behind = LONG_MAX if following is None else following.base_offset
        start, end = max(limits.start, segment.base_offset), min(limits.end, behind)
        if start < end and segment.size:
            yield FileSplit(
                where=where,
                directory=str(directory),
                file=SourceFile(
                    segment.base_offset,
                    segment.size,
                    files.FileMark(segment.inode, segment.size, segment.modified_ns, following is None),
                ),
                start=start,
                end=end,
                position=0,
                end_position=segment.size,
                size=segment.size,
                aborted=aborted,
            )


def read_closely(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The split's records, and its bad batches, as Arrow batches of ``close_schema``.

    Raises CorruptRecordError unless ``badBatches=quarantine``, else as ``reading.read_split``.
    """
    for piece in split.pieces:
        yield from _read_piece(piece, options)


def _read_piece(piece: FileSplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    reader = open_piece(piece)
    if reader is None:
        for part in pieces_now(piece, options):
            yield from _read_piece(part, options)
        return
    with reader:
        found = judged_batches(
            reader,
            piece.position,
            piece.end_position,
            piece.start,
            quarantine=options.quarantine,
            batch_limit=options.max_decompressed_message_bytes,
        )
        for judged in found:
            if judged.columns is not None:
                yield from _records(piece, judged, reader.path, options)
            elif piece.start <= judged.offset < piece.end:
                yield _bad_row(piece.where, judged, reader.path, options)


def _records(piece: FileSplit, judged: Judged, path: str, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    assert judged.columns is not None
    columns, batches = judged.columns, judged.batches
    counts = wanted_batches(piece, batches)[columns.batch]
    counts &= (columns.offset >= piece.start) & (columns.offset < piece.end)
    rows = np.flatnonzero(counts)
    plain, wanted = schema_of(options), close_schema(options)
    for first in range(0, len(rows), BATCH_ROWS):
        some = select(columns, rows[first : first + BATCH_ROWS])
        arrays = list(record_batch(some, batches, plain, piece.where).columns)
        if options.batch_metadata:
            arrays.append(batch_rows(batches, judged.valid, path, some.batch, some.offset))
        if options.quarantine:
            arrays.append(pa.nulls(len(some), pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _bad_row(where: TopicPartition, judged: Judged, path: str, options: ReadOptions) -> pa.RecordBatch:
    """One row: the reason instead of the records."""
    known = {"topic": where.topic, "partition": where.partition, "offset": judged.offset}
    wanted = close_schema(options)
    arrays = []
    for field in wanted:
        if field.name == BATCH_COLUMN:
            arrays.append(_header_of(judged, path))
        else:
            value = judged.reason if field.name == BAD_COLUMN else known.get(field.name)
            arrays.append(pa.array([value], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _header_of(judged: Judged, path: str) -> pa.Array:
    if len(judged.batches):
        first = judged.batches["base_offset"].astype(np.int64)
        return batch_rows(judged.batches, judged.valid, path, np.zeros(1, np.int32), first)
    place = {"file": path, "position": judged.position, "size": min(judged.size, (1 << 31) - 1)}
    return pa.array([{**place, "crcValid": False}], BATCH_FIELDS)
