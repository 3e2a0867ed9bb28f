"""Batches' records in plain form, one behind the other: what decoders walk through."""

from __future__ import annotations

import numpy as np

from siltstone.errors import CorruptRecordError
from siltstone.records.codecs import DEFAULT_LIMIT, DecompressionError, Scratch, decompress, libzstd
from siltstone.records.layout import BATCH_OVERHEAD, Bytes, Directory, Int64, codec_of


def inflate(
    window: Bytes,
    batches: Directory,
    scratch: Scratch,
    *,
    limit: int = DEFAULT_LIMIT,
    path: str = "",
    origin: int = 0,
) -> tuple[Bytes, Int64, Int64]:
    """The records of v2 ``batches`` in plain form: (data, starts, ends), int64, one a batch.

    ``data`` is ``window`` itself when no batch with records is compressed, else ``scratch``'s bytes.
    Raises CorruptRecordError for a compressed batch that cannot be read or passes ``limit`` bytes.
    """
    starts, ends = batches["position"] + BATCH_OVERHEAD, batches["position"] + batches["size"]
    codecs = np.where(batches["count"] > 0, codec_of(batches), 0).astype(np.int64)
    if not codecs.any():
        return window, starts, ends
    scratch.clear()
    sizes, number = np.empty(len(batches), np.int64), 0
    spans = list(zip(starts.tolist(), ends.tolist(), codecs.tolist(), strict=True))
    try:
        while number < len(spans):
            number = libzstd.decompress_run(window, starts, ends, codecs, number, scratch, limit, sizes)
            number = _up_to_zstd(window.data, spans, number, scratch, limit, sizes)
    except _Trouble as trouble:
        position = int(batches["position"][trouble.number])
        raise CorruptRecordError(path, origin + position, trouble.reason) from None
    filled = np.cumsum(sizes)
    return scratch.array(), filled - sizes, filled


class _Trouble(Exception):
    """What is wrong with batch ``number``."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number, self.reason = number, reason


def _up_to_zstd(
    data: memoryview,
    spans: list[tuple[int, int, int]],
    first: int,
    scratch: Scratch,
    limit: int,
    sizes: Int64,
) -> int:
    """The ``spans`` (start, end, codec) of ``data`` from number ``first`` on, batch by batch, up to the first
    one in zstd and with it; returns the number of the next one."""
    for number in range(first, len(spans)):
        start, end, codec = spans[number]
        try:
            body = data[start:end]
            sizes[number] = decompress(codec, body, scratch, limit) if codec else scratch.append(body)
        except DecompressionError as error:
            raise _Trouble(number, str(error)) from None
        if scratch.used > DEFAULT_LIMIT:
            raise _Trouble(number, "more than 2 GiB of records in one window")
        if codec == libzstd.ZSTD:
            return number + 1
    return len(spans)
