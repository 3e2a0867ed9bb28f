"""Decompresses batches, one after another into one buffer, and bounds how many are decompressed at a time.

The compressed size bounds nothing: 84 KB of zstd may be 2.4 GB of zeros. So a window's batches are cut into
slices by the sizes that they declare (``codecs.declared_sizes``) and by their records' columns, and each
slice is decompressed::

    window ─ decompressed_size_bounds ─► bytes of each batch ─ slices_within ─► slices, about 8 MiB each
    slice  ─ decompress_batches ─► data, and where in it each batch's records start and end

A slice has at least one batch. Memory is bounded by a slice's bytes and the largest batch: ``limit``
(``max.decompressed.message.bytes``) bounds what a batch may decompress to. A batch that declares more is
refused before anything is allocated, and the memory for all others is allocated at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from siltstone.base.codec_table import ZSTD, codec_name
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import (
    DECOMPRESSION_LIMIT_SETTING,
    DEFAULT_DECOMPRESSION_LIMIT,
    MAX_RECORD_BUFFER_BYTES,
    DecompressedTooLargeError,
    DecompressionError,
    RecordSpans,
    Scratch,
    declared_sizes,
    decompress,
    decompress_spans,
)
from siltstone.base.records.layout import MIN_ENTRY_SIZE, BatchHeaders, Bytes, Int64, codec_of
from siltstone.base.records.legacy import LEGACY_REASON, find_record_spans

SLICE_BYTES = 8 << 20
RECORD_MEMORY_BYTES = 64
"""What a record takes in memory beside its own bytes: its row in the columns, and a hash."""
_MAX_RESERVED_FOR_INEXACT = 16 << 20
"""Most bytes that are allocated ahead for batches without an exact size; the buffer grows where that is too
little."""
_RECORD_MIN = 7
"""Bytes of the smallest record: its size, attributes, timestamp delta, offset delta, key size, value size and
header count take one byte each."""
_RAISE_THE_LIMIT = f"if the batch is not damaged, raise {DECOMPRESSION_LIMIT_SETTING}"


def decompressed_size_bounds(window: Bytes, batches: BatchHeaders) -> Int64:
    """Most bytes that each batch's records take after decompression: int64; any magic.

    Exact where the batch declares its size. A batch that does not, such as a damaged one, counts with the
    largest size that is allowed by default. Raises nothing.
    """
    sizes = batches["size"].astype(np.int64)
    rows = np.flatnonzero((codec_of(batches) > 0) & (batches["count"] != 0))
    if len(rows):
        compressed = batches[rows] if len(rows) < len(batches) else batches
        spans = RecordSpans(*np.empty((3, len(rows)), np.int64))
        find_record_spans(window, compressed, spans)
        declared, _ = declared_sizes(window, spans)
        sizes[rows] = np.where(declared < 0, DEFAULT_DECOMPRESSION_LIMIT, declared)
    return sizes


def slices_within(window: Bytes, batches: BatchHeaders, budget: int = SLICE_BYTES) -> Iterator[slice]:
    """Cut batches into slices whose records take up to ``budget`` bytes of memory and one batch more.

    Message sets (v0, v1) and v2 batches are never in the same one. ``batches`` are rows of a scan over
    ``window``.
    """
    if not len(batches):
        return
    sizes, old = decompressed_size_bounds(window, batches), batches["magic"] < 2
    # The headers of compressed message sets do not have a count: it is bounded by the smallest message.
    records = np.where(
        old & (codec_of(batches) > 0), sizes // MIN_ENTRY_SIZE, np.maximum(batches["count"], 1)
    )
    total = np.cumsum(sizes + RECORD_MEMORY_BYTES * records)
    if total[-1] <= budget and not old.any():
        yield slice(0, len(batches))
        return
    # A slice ends where the running total passes a multiple of the budget, or the format changes.
    edges = np.flatnonzero((np.diff((total - 1) // budget) != 0) | np.diff(old)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(batches)]):
        yield slice(start, end)


def decompress_batches(
    window: Bytes,
    batches: BatchHeaders,
    scratch: Scratch,
    *,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    path: str = "",
    origin: int = 0,
) -> tuple[Bytes, Int64, Int64]:
    """Decompress the records of ``batches``: (data, starts, ends), int64, one a batch.

    ``data`` is ``window`` itself when no batch with records is compressed, else ``scratch``'s bytes. The
    records of a message set entry are messages: those inside of it where it is compressed, else itself.
    ``limit`` is in bytes, and ``origin`` the position of the window in the file ``path``. Raises
    CorruptRecordError for a compressed batch that cannot be read or passes ``limit``.
    """
    spans = RecordSpans(*np.empty((3, len(batches)), np.int64))
    bad, reason = find_record_spans(window, batches, spans)
    if reason:
        raise corrupt_batch(batches, bad, LEGACY_REASON[reason].format(codec=spans.codec[bad]), path, origin)
    if not spans.codec.any():
        return window, spans.start, spans.end
    scratch.clear()
    declared, exact = declared_sizes(window, spans)
    for row in np.flatnonzero(exact & (declared > limit) & (spans.codec > 0))[:1].tolist():
        text = str(DecompressedTooLargeError(codec_name(spans.codec[row]), limit))
        raise corrupt_batch(batches, row, text, path, origin, _RAISE_THE_LIMIT)
    inexact_total = int(declared[~exact].clip(min=0, max=limit).sum())
    reserved = int(declared[exact].sum()) + min(inexact_total, _MAX_RESERVED_FOR_INEXACT)
    scratch.allocate(min(reserved, MAX_RECORD_BUFFER_BYTES))
    view, sizes, next_row = window.data, np.empty(len(batches), np.int64), 0
    columns = (*spans, batches["magic"])
    for row, (start, end, codec, magic) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
        # One call of the kernel takes all uncompressed and zstd batches from a row up to the first that it
        # cannot take. Where a library follows such a batch, only a zstd batch is worth the next call.
        if row >= next_row and (codec == ZSTD or row == 0):
            next_row = decompress_spans(window, spans, row, scratch, limit, sizes)
        if row < next_row:
            continue
        try:
            body = view[start:end]
            sizes[row] = decompress(codec, body, scratch, limit, magic) if codec else scratch.append(body)
        except DecompressionError as error:
            advice = _RAISE_THE_LIMIT if isinstance(error, DecompressedTooLargeError) else None
            raise corrupt_batch(batches, row, str(error), path, origin, advice) from None
        if scratch.used > MAX_RECORD_BUFFER_BYTES:
            raise corrupt_batch(batches, row, "more than 2 GiB of records at a time", path, origin)
    ends = np.cumsum(sizes)
    return scratch.array(), ends - sizes, ends


def corrupt_batch(
    batches: BatchHeaders, row: int, reason: str, path: str, origin: int, advice: str | None = None
) -> CorruptRecordError:
    """The error for the batch ``row`` of a window that begins at ``origin`` in the file ``path``."""
    return CorruptRecordError(path, origin + int(batches["position"][row]), reason, advice=advice)


def refuse_impossible_counts(
    batches: BatchHeaders, counts: Int64, sizes: Int64, path: str, origin: int, limit: int
) -> None:
    """Refuse counts before columns are allocated: a record takes at least seven bytes, and one batch has
    ``max_records(limit)`` records at most. Raises CorruptRecordError.

    ``sizes``: the bytes of each batch's records after decompression.
    """
    maximum = max_records(limit)
    for bad, reason, advice in (
        (counts * _RECORD_MIN > sizes, "more records than its bytes can hold", None),
        (counts > maximum, f"more than {maximum} records", f"{_RAISE_THE_LIMIT}, which bounds these too"),
    ):
        if bad.any():
            raise corrupt_batch(batches, int(bad.argmax()), reason, path, origin, advice)


def max_records(limit: int) -> int:
    """Most records of one batch that may decompress to ``limit`` bytes: their columns take as much memory as
    the limit. A limit below the default bounds bytes only."""
    return max(limit, DEFAULT_DECOMPRESSION_LIMIT) // RECORD_MEMORY_BYTES
