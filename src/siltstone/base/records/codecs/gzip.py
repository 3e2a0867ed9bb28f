"""gzip, by zlib-ng (decision 0011).

One member is read after another, as ``java.util.zip.GZIPInputStream`` does.
"""

from __future__ import annotations

from zlib_ng import zlib_ng

from siltstone.base.records.codecs.scratch import DecompressedTooLargeError, DecompressionError, Scratch

_GZIP = 31
"""zlib's window bits: 32 KiB, with gzip's header and trailer."""
_DEFAULT_LEVEL = -1
_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # its stub calls it an instance


def decompress(data: memoryview, scratch: Scratch, limit: int) -> int:
    """Decompress behind what is in use; returns the size. Raises DecompressionError."""
    parts: list[bytes] = []
    size, rest = 0, data
    while not parts or len(rest):
        plain, rest = _member(rest, limit + 1 - size)
        size += len(plain)
        if size > limit:
            raise DecompressedTooLargeError("gzip", limit)
        parts.append(plain)
    return scratch.append(parts[0] if len(parts) == 1 else b"".join(parts))


def _member(data: memoryview, size_max: int) -> tuple[bytes, memoryview]:
    """At most ``size_max`` bytes of the first member, and what is behind it. Raises DecompressionError."""
    member = zlib_ng.decompressobj(_GZIP)
    try:
        plain: bytes = member.decompress(data, size_max)
    except _ERROR as error:
        raise DecompressionError(f"gzip: {error}") from None
    if not member.eof and len(plain) < size_max:
        raise DecompressionError("gzip: the stream is cut")
    return plain, memoryview(member.unused_data)


def compress(data: memoryview, level: int | None) -> bytes:
    """One member; ``level`` is 1 to 9."""
    packed: bytes = zlib_ng.compress(data, _DEFAULT_LEVEL if level is None else level, wbits=_GZIP)
    return packed
