"""Decompresses batches, one after another into one buffer, and bounds how many are decompressed at a time.

A compressed size says little: 84 KB of zstd may be 2.4 GB of zeros. So the batches of a window (a range of a
log's bytes in memory) are cut into slices by the sizes that they declare (``codecs.declared_sizes``) and the
memory of their records' columns. Then one slice is decompressed after another::

    window ─ decompressed_size_bounds ─► bytes of each batch ─ slices_within ─► slices, about 8 MiB each
    slice  ─ decompress_batches ─► data, and where in it each batch's records start and end

A slice has at least one batch, so memory is bounded by ``SLICE_BYTES`` and the largest batch. ``limit``
(``max.decompressed.message.bytes``) bounds what one batch may decompress to. A batch that declares an exact
size above it is refused before memory is allocated. For the others of a slice, one buffer is allocated in one
step.

zstd and lz4 frames declare an exact size if their headers have it, else an upper bound follows from their
blocks. snappy declares an exact size, and so does gzip, unless there may be a second gzip member. Damaged
bytes may declare nothing (``UNREADABLE_SIZE``).
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
"""Memory that a record takes besides its bytes: its row in the columns, and the hash of its key."""
_MAX_RESERVED_FOR_BOUNDS = 16 << 20
"""Most bytes that are allocated in advance for batches that declare only an upper bound; the buffer grows if
that is too little."""
_MIN_RECORD_SIZE = 7
"""Bytes of the smallest record: its size, attributes, timestamp delta, offset delta, key size, value size and
header count take one byte each."""
_LIMIT_ADVICE = f"if the batch is not damaged, raise {DECOMPRESSION_LIMIT_SETTING}"


def decompressed_size_bounds(window: Bytes, batches: BatchHeaders) -> Int64:
    """An estimate, before decompression, of the bytes of each batch's records (of any magic): int64.

    For a valid batch it is the size that the batch declares, or an upper bound. A batch whose size cannot be
    read is damaged or has an unknown codec; it counts with the default of ``max.decompressed.message.bytes``.
    Raises no error.
    """
    sizes = batches["size"].astype(np.int64)
    # The count of a compressed message set is not in its header: it is -1 here.
    rows = np.flatnonzero((codec_of(batches) > 0) & (batches["count"] != 0))
    if len(rows):
        compressed = batches[rows] if len(rows) < len(batches) else batches
        spans = RecordSpans(*np.empty((3, len(rows)), np.int64))
        # A message set that cannot be read gets an empty span; ``decompress_batches`` refuses it later.
        stored = _read_only(window)
        find_record_spans(stored, compressed, spans)
        bounds, _ = declared_sizes(stored, spans)
        sizes[rows] = np.where(bounds < 0, DEFAULT_DECOMPRESSION_LIMIT, bounds)
    return sizes


def _read_only(window: Bytes) -> Bytes:
    """A view that cannot be written, as the bytes of a fetch cannot: for memory that can, numba would compile
    each kernel once more."""
    view = window.view()
    view.flags.writeable = False
    return view


def slices_within(window: Bytes, batches: BatchHeaders, budget: int = SLICE_BYTES) -> Iterator[slice]:
    """Cut ``batches`` (rows of a scan over ``window``) into slices that take ``budget`` bytes of memory, and
    at most one batch more.

    Message sets (v0, v1) and v2 batches are never in the same slice.
    """
    if not len(batches):
        return
    sizes, is_legacy = decompressed_size_bounds(window, batches), batches["magic"] < 2
    # A compressed message set has the count -1. It has at most as many messages as the smallest messages that
    # fit into its bytes.
    records = np.where(
        is_legacy & (codec_of(batches) > 0), sizes // MIN_ENTRY_SIZE, np.maximum(batches["count"], 1)
    )
    total = np.cumsum(sizes + RECORD_MEMORY_BYTES * records)
    if total[-1] <= budget and not is_legacy.any():
        yield slice(0, len(batches))
        return
    # A slice ends where the running total passes a multiple of the budget, or the format changes.
    edges = np.flatnonzero((np.diff((total - 1) // budget) != 0) | np.diff(is_legacy)) + 1
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
    """Decompress the records of ``batches``: (data, starts, ends). Batch i has ``data[starts[i]:ends[i]]``.

    ``data`` is ``window`` itself if no batch with records is compressed, else the bytes of ``scratch``. The
    records of a compressed message are its inner messages; another message is one record. ``limit`` bounds
    the decompressed bytes of one batch. ``origin`` is the position of the window in the file ``path``.
    Raises CorruptRecordError for a compressed batch that cannot be read or exceeds ``limit``.
    """
    stored, spans = _read_only(window), RecordSpans(*np.empty((3, len(batches)), np.int64))
    bad_row, reason = find_record_spans(stored, batches, spans)
    if reason:
        text = LEGACY_REASON[reason].format(codec=spans.codec[bad_row])
        raise corrupt_batch(batches, bad_row, text, path, origin)
    if not spans.codec.any():
        return window, spans.start, spans.end
    scratch.clear()
    bounds, is_exact = declared_sizes(stored, spans)
    is_too_large = is_exact & (bounds > limit) & (spans.codec > 0)
    if is_too_large.any():
        raise _too_large_batch(batches, spans, int(is_too_large.argmax()), limit, path, origin)
    inexact_total = int(bounds[~is_exact].clip(min=0, max=limit).sum())
    reserved = int(bounds[is_exact].sum()) + min(inexact_total, _MAX_RESERVED_FOR_BOUNDS)
    scratch.allocate(min(reserved, MAX_RECORD_BUFFER_BYTES))
    view, sizes, next_row = window.data, np.empty(len(batches), np.int64), 0
    span_columns = (*spans, batches["magic"])
    for row, (start, end, codec, magic) in enumerate(zip(*map(np.ndarray.tolist, span_columns), strict=True)):
        # The kernel takes zstd and uncompressed batches from ``row`` up to the first that it cannot read. A
        # library reads that batch; the kernel is called again at the next zstd batch.
        if row >= next_row and (codec == ZSTD or row == 0):
            next_row = decompress_spans(stored, spans, row, scratch, limit, sizes)
        if row < next_row:
            continue
        try:
            body = view[start:end]
            sizes[row] = decompress(codec, body, scratch, limit, magic) if codec else scratch.append(body)
        except DecompressionError as error:
            advice = _LIMIT_ADVICE if isinstance(error, DecompressedTooLargeError) else None
            raise corrupt_batch(batches, row, str(error), path, origin, advice) from None
        if scratch.used > MAX_RECORD_BUFFER_BYTES:
            raise corrupt_batch(batches, row, "more than 2 GiB of records at a time", path, origin)
    ends = np.cumsum(sizes)
    return scratch.array(), ends - sizes, ends


def _too_large_batch(
    batches: BatchHeaders, spans: RecordSpans, row: int, limit: int, path: str, origin: int
) -> CorruptRecordError:
    reason = str(DecompressedTooLargeError(codec_name(spans.codec[row]), limit))
    return corrupt_batch(batches, row, reason, path, origin, _LIMIT_ADVICE)


def corrupt_batch(
    batches: BatchHeaders, row: int, reason: str, path: str, origin: int, advice: str | None = None
) -> CorruptRecordError:
    """The error for the batch ``row`` of a window that begins at ``origin`` in the file ``path``."""
    return CorruptRecordError(path, origin + int(batches["position"][row]), reason, advice=advice)


def refuse_impossible_counts(
    batches: BatchHeaders, counts: Int64, sizes: Int64, path: str, origin: int, limit: int
) -> None:
    """Refuse record counts that cannot be true, before columns are allocated: a record takes at least seven
    bytes, and one batch has at most ``max_records(limit)`` records. Raises CorruptRecordError.

    ``sizes``: the bytes of each batch's records after decompression.
    """
    maximum = max_records(limit)
    for is_bad, reason, advice in (
        (counts * _MIN_RECORD_SIZE > sizes, "more records than its bytes can hold", None),
        (counts > maximum, f"more than {maximum} records", f"{_LIMIT_ADVICE}, which bounds the count too"),
    ):
        if is_bad.any():
            raise corrupt_batch(batches, int(is_bad.argmax()), reason, path, origin, advice)


def max_records(limit: int) -> int:
    """The most records that one batch may have: their columns, of ``RECORD_MEMORY_BYTES`` a record, may take
    as many bytes as the decompressed records (``limit``), or as the default limit if that is more."""
    return max(limit, DEFAULT_DECOMPRESSION_LIMIT) // RECORD_MEMORY_BYTES
