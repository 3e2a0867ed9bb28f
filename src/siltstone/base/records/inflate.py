"""Decompresses batches, one after another into one buffer, and bounds how many are decompressed at a time.

Stored bytes say little: 84 KB of zstd may be 2.4 GB of zeros. So a window's batches are cut into slices by
what they say of themselves (``codecs.declared_sizes``) and by their records' columns, and each slice is
inflated::

    window ─ plain_sizes ─► bytes of each batch's records ─ pieces ─► slices of about ``PIECE_BYTES``
    slice  ─ inflate ─► data, and where in it each batch's records start and end

A slice has at least one batch. Memory is bounded by a slice's bytes and the largest batch: ``limit``
(``max.decompressed.message.bytes``) bounds what a batch may decompress to. A batch that says that it holds
more is refused before anything is allocated, and the others get their room in one go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from siltstone.base.codec_table import ZSTD, codec_name
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import (
    DEFAULT_LIMIT,
    LIMIT_SETTING,
    SPANS_END,
    DecompressedTooLargeError,
    DecompressionError,
    Scratch,
    declared_sizes,
    decompress,
    decompress_run,
)
from siltstone.base.records.layout import ENTRY_MIN, BatchHeaders, Bytes, Int64, codec_of
from siltstone.base.records.legacy import LEGACY_REASON, record_spans

PIECE_BYTES = 8 << 20
RECORD_BYTES = 64
"""What a record takes in memory beside its own bytes: its row in the columns, and a hash."""
_ROOM_FOR_BOUNDS = 16 << 20
"""Most bytes that are allocated for batches without an exact size; the buffer grows where that is too
little."""
_RECORD_MIN = 7
"""Bytes of the smallest record: size, attributes, timestamp delta, offset delta, key size, value size and
header count take one byte each."""
_RAISE_THE_LIMIT = f"if the batch is not damaged, raise {LIMIT_SETTING}"


def plain_sizes(window: Bytes, batches: BatchHeaders) -> Int64:
    """Most bytes that each batch's records take after decompression: int64; any magic.

    Exact where the batch declares its size. A batch that does not, such as a damaged one, counts with the
    largest size that is allowed, so it gets a slice of its own. Raises nothing.
    """
    sizes = batches["size"].astype(np.int64)
    rows = np.flatnonzero((codec_of(batches) > 0) & (batches["count"] != 0))
    if not len(rows):
        return sizes
    packed = batches[rows] if len(rows) < len(batches) else batches
    spans = np.empty((3, len(rows)), np.int64)
    record_spans(window, packed, *spans)
    declared, _ = declared_sizes(window, *spans)
    sizes[rows] = np.where(declared < 0, DEFAULT_LIMIT, declared)
    return sizes


def pieces(window: Bytes, batches: BatchHeaders, budget: int = PIECE_BYTES) -> Iterator[slice]:
    """Cut a directory into slices whose records take about ``budget`` bytes of memory at most.

    Message sets (v0, v1) and v2 batches are never in the same one. ``batches`` are rows of a scan over
    ``window``.
    """
    if not len(batches):
        return
    sizes, old = plain_sizes(window, batches), batches["magic"] < 2
    records = np.where(old & (codec_of(batches) > 0), sizes // ENTRY_MIN, np.maximum(batches["count"], 1))
    behind = np.cumsum(sizes + RECORD_BYTES * records)
    if behind[-1] <= budget and not old.any():
        yield slice(0, len(batches))
        return
    edges = np.flatnonzero((np.diff((behind - 1) // budget) != 0) | np.diff(old)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(batches)]):
        yield slice(start, end)


def inflate(
    window: Bytes,
    batches: BatchHeaders,
    scratch: Scratch,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> tuple[Bytes, Int64, Int64]:
    """Decompress the records of ``batches``: (data, starts, ends), int64, one a batch.

    ``data`` is ``window`` itself when no batch with records is compressed, else ``scratch``'s bytes. The
    records of a message set entry are messages: those inside of it where it is compressed, else itself.
    Raises CorruptRecordError for a compressed batch that cannot be read or passes ``limit`` bytes.
    """
    starts, ends, codecs = np.empty((3, len(batches)), np.int64)
    bad, reason = record_spans(window, batches, starts, ends, codecs)
    if reason:
        raise corrupt(batches, bad, LEGACY_REASON[reason].format(codec=codecs[bad]), path, origin)
    if not codecs.any():
        return window, starts, ends
    scratch.clear()
    _make_room(window, batches, (starts, ends, codecs), scratch, limit, path, origin)
    view, sizes, done = window.data, np.empty(len(batches), np.int64), 0
    columns = (starts, ends, codecs, batches["magic"])
    for row, (start, end, codec, magic) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
        if row < done:
            continue
        # One call of the kernel takes all plain and zstd batches from here up to the first other one.
        if codec == ZSTD or row == 0:
            done = decompress_run(window, starts, ends, codecs, row, scratch, limit, sizes)
            if row < done:
                continue
        try:
            body = view[start:end]
            sizes[row] = decompress(codec, body, scratch, limit, magic) if codec else scratch.append(body)
        except DecompressionError as error:
            raise corrupt(batches, row, str(error), path, origin, _advice(error)) from None
        if scratch.used > SPANS_END:
            raise corrupt(batches, row, "more than 2 GiB of records at a time", path, origin)
    filled = np.cumsum(sizes)
    return scratch.array(), filled - sizes, filled


def _make_room(
    window: Bytes,
    batches: BatchHeaders,
    spans: tuple[Int64, Int64, Int64],
    scratch: Scratch,
    limit: int,
    path: str,
    origin: int,
) -> None:
    """Allocate what the ``spans`` (starts, ends, codecs) declare that they hold.

    Raises CorruptRecordError for a batch that declares more than ``limit`` bytes.
    """
    declared, exact = declared_sizes(window, *spans)
    codecs = spans[2]
    for row in np.flatnonzero(exact & (declared > limit) & (codecs > 0))[:1].tolist():
        error = DecompressedTooLargeError(codec_name(codecs[row]), limit)
        raise corrupt(batches, row, str(error), path, origin, _advice(error))
    bounds = int(declared[~exact].clip(min=0, max=limit).sum())
    scratch.make_room(min(int(declared[exact].sum()) + min(bounds, _ROOM_FOR_BOUNDS), SPANS_END))


def corrupt(
    batches: BatchHeaders, row: int, reason: str, path: str, origin: int, advice: str | None = None
) -> CorruptRecordError:
    """The error for the batch ``row`` of a window that begins at ``origin`` in the file ``path``."""
    return CorruptRecordError(path, origin + int(batches["position"][row]), reason, advice=advice)


def _advice(error: DecompressionError) -> str | None:
    return _RAISE_THE_LIMIT if isinstance(error, DecompressedTooLargeError) else None


def refuse_impossible_counts(
    batches: BatchHeaders, counts: Int64, sizes: Int64, path: str, origin: int, limit: int = DEFAULT_LIMIT
) -> None:
    """Refuse counts before columns are allocated: a record takes at least seven bytes, and one batch has
    ``records_max(limit)`` records at most. Raises CorruptRecordError.

    ``sizes``: the bytes of each batch's records after decompression.
    """
    most = records_max(limit)
    for bad, reason, advice in (
        (counts * _RECORD_MIN > sizes, "more records than its bytes can hold", None),
        (counts > most, f"more than {most} records", f"{_RAISE_THE_LIMIT}, which bounds these too"),
    ):
        if bad.any():
            raise corrupt(batches, int(bad.argmax()), reason, path, origin, advice)


def records_max(limit: int) -> int:
    """Most records of one batch that may decompress to ``limit`` bytes: their columns take as much memory as
    the limit. A limit below the default bounds bytes only."""
    return max(limit, DEFAULT_LIMIT) // RECORD_BYTES
