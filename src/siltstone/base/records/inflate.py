"""Batches' records in plain form, one behind the other: what decoders walk through.

``limit`` bounds what a batch may decompress to. What it says of that is read first (``codecs.told``): one
that says more is refused before anything is allocated, and the others get their room in one go. How many
batches are taken at a time is the caller's to say: see ``pieces``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from siltstone.base.codec_table import ZSTD, codec_name
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.codecs import (
    DEFAULT_LIMIT,
    LIMIT_SETTING,
    SPANS_END,
    DecompressedTooLargeError,
    DecompressionError,
    Scratch,
    decompress,
    told_sizes,
    zstd,
)
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Directory, Int64, codec_of

RECORD_BYTES = 64
"""What a record takes in memory beside its own bytes: its row in the columns, and a hash."""
_ROOM_FOR_BOUNDS = 16 << 20
"""Room that is made for batches that do not tell their size exactly; it grows where that is too little."""


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
        _make_room(window, starts, ends, codecs, scratch, limit)
        while number < len(spans):
            number = zstd.decompress_run(window, starts, ends, codecs, number, scratch, limit, sizes)
            number = _up_to_zstd(window.data, spans, number, scratch, limit, sizes)
    except _Trouble as failure:
        position = int(batches["position"][failure.number])
        raise CorruptRecordError(path, origin + position, failure.reason) from None
    filled = np.cumsum(sizes)
    return scratch.array(), filled - sizes, filled


class _Trouble(Exception):
    """What is wrong with batch ``number``."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number, self.reason = number, reason


def _make_room(
    window: Bytes, starts: Int64, ends: Int64, codecs: Int64, scratch: Scratch, limit: int
) -> None:
    """Room for all that is told. Raises _Trouble for the first batch that says that it is too large."""
    told, exact = told_sizes(window, starts, ends, codecs)
    bad = np.flatnonzero(exact & (told > limit) & (codecs > 0))
    if len(bad):
        error = DecompressedTooLargeError(codec_name(codecs[bad[0]]), limit)
        raise _Trouble(int(bad[0]), oversized(error))
    bounds = int(told[~exact].clip(min=0, max=limit).sum())
    scratch.make_room(min(int(told[exact].sum()) + min(bounds, _ROOM_FOR_BOUNDS), SPANS_END))


def oversized(error: DecompressedTooLargeError) -> str:
    """Why a batch over the limit is not read, and what to do where it shall be."""
    return f"{error}; where the batch is sound, raise {LIMIT_SETTING}"


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
        except DecompressedTooLargeError as error:
            raise _Trouble(number, oversized(error)) from None
        except DecompressionError as error:
            raise _Trouble(number, str(error)) from None
        if scratch.used > SPANS_END:
            raise _Trouble(number, "more than 2 GiB of records at a time")
        if codec == ZSTD:
            return number + 1
    return len(spans)


def refuse_impossible_counts(
    batches: Directory, counts: Int64, sizes: Int64, path: str, origin: int, limit: int = DEFAULT_LIMIT
) -> None:
    """A record takes at least seven bytes, so a larger count would only make us allocate; and one batch has
    ``records_max(limit)`` records at most. Raises CorruptRecordError.

    ``sizes``: the bytes of each batch's records, once they are plain.
    """
    _refuse(batches, counts * 7 > sizes, "more records than its bytes can hold", path, origin)
    most = records_max(limit)
    reason = f"more than {most} records; where the batch is sound, raise {LIMIT_SETTING}: it bounds these too"
    _refuse(batches, counts > most, reason, path, origin)


def records_max(limit: int) -> int:
    """How many records one batch may have, which may decompress to ``limit`` bytes: so many as take as much
    memory beside their bytes. A limit below the default bounds bytes only."""
    return max(limit, DEFAULT_LIMIT) // RECORD_BYTES


def _refuse(batches: Directory, bad: npt.NDArray[np.bool_], reason: str, path: str, origin: int) -> None:
    if bad.any():
        raise CorruptRecordError(path, origin + int(batches["position"][int(bad.argmax())]), reason)
