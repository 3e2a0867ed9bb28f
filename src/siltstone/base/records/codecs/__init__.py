"""Compression as Kafka's clients write and read it: gzip, snappy (xerial), lz4 frames, zstd.

One module a codec, found by its name in ``base.codec_table``: libraries do the work, what is Kafka's own goes
around it. Decompression never allocates far over what the data turns out to be, and stops at ``limit``.
"""

# ruff: noqa: I001 - one import a module, each name once

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from siltstone.base.codec_table import (
    CODECS,
    LZ4,
    ZSTD,
)
from siltstone.base.records.codecs import (
    lz4,
    zstd,
)
from siltstone.base.records.codecs.scratch import (
    DEFAULT_LIMIT as DEFAULT_LIMIT,
    LIMIT_SETTING as LIMIT_SETTING,
    SPANS_END as SPANS_END,
    DecompressedTooLargeError as DecompressedTooLargeError,
    DecompressionError as DecompressionError,
    Scratch as Scratch,
)
from siltstone.base.records.codecs.told import (
    told_sizes as told_sizes,
)
from siltstone.base.records.layout import (
    Bytes,
)


@functools.cache
def _module_of(number: int) -> Any:
    """The codec's module, with ``compress`` and ``decompress``; None where no codec has the number."""
    if not 0 < number < len(CODECS):
        return None
    return import_module(f"{__name__}.{CODECS[number].name}")


def decompress(
    codec: int, data: Bytes | memoryview, scratch: Scratch, limit: int = DEFAULT_LIMIT, magic: int = 2
) -> int:
    """Decompress one batch's records (uint8) behind what is in use in ``scratch``; returns their size.

    ``codec`` is the number in the batch's attributes. Raises DecompressionError for bytes that are no such
    stream and for output over ``limit`` bytes; the scratch is as it was then.
    """
    module = _module_of(codec)
    if module is None:
        raise DecompressionError(f"no codec has the number {codec}")
    if magic == 0 and codec == LZ4:
        data = lz4.mend(data)
    size: int = module.decompress(_view(data), scratch, limit)
    return size


def compress(codec: int, data: Bytes | memoryview, level: int | None = None) -> Any:
    """Compress one batch's records; returns a bytes-like object that Kafka's Java client reads.

    ``codec`` is the number in the batch's attributes; ``level`` the codec's own, snappy has none.
    """
    module = _module_of(codec)
    if module is None:
        raise ValueError(f"no codec has the number {codec}")
    return module.compress(_view(data), level)


def compress_all(codec: int, parts: Sequence[memoryview]) -> Sequence[Any]:
    """``compress`` for each of many batches' records, at the codec's own level."""
    if codec == ZSTD:
        return zstd.compress_all(parts)
    return [compress(codec, part) for part in parts]


def _view(data: Bytes | memoryview) -> memoryview:
    return data if isinstance(data, memoryview) else data.data
