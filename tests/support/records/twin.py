"""The record format a second time, in plain Python: slow, obvious, and independent of the product.

Nothing here imports siltstone. The encoder makes the batches that the tests damage; the decoder reads one
record at a time with Python's own integers; gzip, snappy and lz4 are decompressed without the product's
library. Where the two disagree one of them is wrong, and the golden sets say which.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cramjam
import xxhash

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND = 0x08
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
LZ4_FRAME = b"\x04\x22\x4d\x18"

Headers = Sequence[tuple[bytes | None, bytes | None]]


class TwinError(ValueError):
    """The twin cannot read these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One decoded record; ``size`` is all its bytes, its own size field included."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One decoded batch or message set entry."""

    position: int
    size: int
    magic: int
    first: int
    last: int
    valid: bool
    records: tuple[Record, ...]


# varints


def varint(value: int) -> bytes:
    """Zigzag, seven bits at a time, the low ones first."""
    raw = 2 * value if value >= 0 else -2 * value - 1
    out = bytearray()
    while raw >= 128:
        out.append(raw % 128 + 128)
        raw //= 128
    out.append(raw)
    return bytes(out)


def read_varint(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """(value, next position); TwinError when cut or not an integer of ``bits`` bits."""
    raw = factor = 0
    for index in range(10 if bits == 64 else 5):
        if position + index >= len(data):
            raise TwinError("cut varint")
        byte = data[position + index]
        factor = 128**index
        raw += byte % 128 * factor
        if byte < 128:
            if raw >= 2**bits:
                raise TwinError("over-long varint")
            return (raw // 2 if raw % 2 == 0 else -(raw + 1) // 2), position + index + 1
    raise TwinError("over-long varint")


# checksums


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC."""
    return _crc(data, 0x82F63B78)


def crc32(data: bytes) -> int:
    """The CRC of zlib and of message sets."""
    return _crc(data, 0xEDB88320)


def _crc(data: bytes, polynomial: int) -> int:
    """One bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc // 2 ^ (polynomial if crc % 2 else 0)
    return crc ^ 0xFFFFFFFF


# compression


def compress(codec: int, data: bytes, magic: int = 2, block_size: int = 32 * 1024) -> bytes:
    """As Kafka's clients do; magic 0 gets lz4's wrong header checksum."""
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        blocks = [data[start : start + block_size] for start in range(0, len(data), block_size)]
        raw = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
        return XERIAL + b"".join(struct.pack(">i", len(block)) + block for block in raw)
    if codec == LZ4:
        return lz4_frame(data, broken_checksum=magic == 0)
    return bytes(cramjam.zstd.compress(data)) if codec == ZSTD else data


def lz4_frame(data: bytes, *, broken_checksum: bool = False) -> bytes:
    """A frame of independent 64 KiB blocks without content size, as Kafka writes it."""
    descriptor = b"\x60\x40"
    checked = LZ4_FRAME + descriptor if broken_checksum else descriptor
    frame = LZ4_FRAME + descriptor + bytes([xxhash.xxh32_intdigest(checked) // 256 % 256])
    for start in range(0, len(data), 65536):
        chunk = data[start : start + 65536]
        block = bytes(cramjam.lz4.compress_block(chunk, store_size=False))
        stored = len(block) >= len(chunk)
        frame += struct.pack("<I", len(chunk) | 1 << 31 if stored else len(block)) + (
            chunk if stored else block
        )
    return frame + bytes(4)


def decompress(codec: int, data: bytes) -> bytes:
    """The inverse; only zstd is left to a library that the product uses too."""
    if codec == GZIP:
        return gzip.decompress(data)
    if codec == SNAPPY:
        return _unxerial(data) if data[:8] == XERIAL[:8] else _unsnap(data)
    if codec == LZ4:
        return _unlz4(data)
    return bytes(cramjam.zstd.decompress(data)) if codec == ZSTD else data


def _unxerial(data: bytes) -> bytes:
    out, position = b"", 16
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        out += _unsnap(data[position + 4 : position + 4 + size])
        position += 4 + size
    return out


def _unsnap(data: bytes) -> bytes:
    position = shift = size = 0
    while True:
        size |= (data[position] & 127) << shift
        position, shift = position + 1, shift + 7
        if data[position - 1] < 128:
            break
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            extra = max(length - 60, 0)
            if extra:
                length = int.from_bytes(data[position : position + extra], "little") + 1
            out += data[position + extra : position + extra + length]
            position += extra + length
            continue
        width = (0, 1, 2, 4)[kind]
        distance = int.from_bytes(data[position : position + width], "little")
        if kind == 1:
            distance, length = distance | (tag >> 5) << 8, (tag >> 2 & 7) + 4
        position += width
        _copy_back(out, distance, length)
    if len(out) != size:
        raise TwinError("snappy size")
    return bytes(out)


def _unlz4(data: bytes) -> bytes:
    flags = data[4]
    position = 7 + (8 if flags & 8 else 0)
    out = bytearray()
    while True:
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if size == 0:
            return bytes(out)
        block = data[position : position + size % 2**31]
        out += block if size >= 2**31 else _unlz4_block(block)
        position += len(block) + (4 if flags & 16 else 0)


def _unlz4_block(block: bytes) -> bytes:
    out, position = bytearray(), 0
    while True:
        token = block[position]
        literals, position = _lz4_length(block, position + 1, token >> 4)
        out += block[position : position + literals]
        position += literals
        if position >= len(block):
            return bytes(out)
        distance = int.from_bytes(block[position : position + 2], "little")
        length, position = _lz4_length(block, position + 2, token & 15)
        _copy_back(out, distance, length + 4)


def _lz4_length(block: bytes, position: int, length: int) -> tuple[int, int]:
    if length == 15:
        while block[position] == 255:
            length, position = length + 255, position + 1
        length, position = length + block[position], position + 1
    return length, position


def _copy_back(out: bytearray, distance: int, length: int) -> None:
    for _ in range(length):
        out.append(out[-distance])


# batches of magic 2


def _field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """One record with its size in front."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + _field(key) + _field(value)
    body += varint(len(headers)) + b"".join(_field(part) for header in headers for part in header)
    return varint(len(body)) + body


def batch(
    records: Sequence[bytes],
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    count: int | None = None,
    codec: int = NONE,
    attributes: int = 0,
    base_timestamp: int = 1_000,
    max_timestamp: int = 2_000,
    body: bytes | None = None,
) -> bytes:
    """A whole batch with a right checksum; ``count``, ``last_delta`` and ``body`` may lie."""
    if body is None:
        body = compress(codec, b"".join(records)) if records else b""
    checked = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        len(records) - 1 if last_delta is None else last_delta,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        len(records) if count is None else count,
    )
    checked += body
    head = struct.pack(">qiibI", base_offset, 9 + len(checked), 0, 2, crc32c(checked))
    return head + checked


# message sets of magic 0 and 1


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    timestamp: int = 1_000,
    attributes: int = 0,
    tail: bytes = b"",
) -> bytes:
    """One entry, its checksum right; ``tail`` stands behind its last field."""
    checked = bytes([magic, attributes]) + (struct.pack(">q", timestamp) if magic else b"")
    checked += _sized(key) + _sized(value) + tail
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def wrapper(
    offset: int, inner: bytes, codec: int, *, magic: int, timestamp: int = 5_000, attributes: int = 0
) -> bytes:
    """A compressed entry around the message set ``inner``."""
    value = compress(codec, inner, magic)
    return message(offset, None, value, magic=magic, timestamp=timestamp, attributes=attributes | codec)


# decoding


def decode_log(data: bytes) -> Iterator[Batch]:
    """The whole entries of a log, up to the first that cannot be; records only where the checksum holds."""
    position = 0
    while position + 17 <= len(data):
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < 14 or data[position + 16] > 2 or position + 12 + size > len(data):
            return
        entry = data[position : position + 12 + size]
        yield (_modern if entry[16] == 2 else _legacy)(entry, position)
        position += len(entry)


def _modern(entry: bytes, position: int) -> Batch:
    base = struct.unpack_from(">q", entry)[0]
    _, crc, attributes, delta, *times = struct.unpack_from(">bIhiqq", entry, 16)
    (count,) = struct.unpack_from(">i", entry, 57)
    valid = crc == _fast_crc32c(entry[21:])
    body = decompress(attributes & 7, entry[61:]) if valid and count else entry[61:]
    records, start = [], 0
    for _ in range(count if valid else 0):
        record, start = _record(body, start, base, times, bool(attributes & LOG_APPEND))
        records.append(record)
    return Batch(
        position=position,
        size=len(entry),
        magic=2,
        first=base,
        last=base + delta,
        valid=valid,
        records=tuple(records),
    )


def _fast_crc32c(data: bytes) -> int:
    """The bitwise twin costs eight steps a byte: whole logs go by a table of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


_TABLE = [crc32c(bytes([byte])) ^ crc32c(bytes(1)) for byte in range(256)]


def _take(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def _record(
    data: bytes, start: int, base_offset: int, times: Sequence[int], log_append: bool
) -> tuple[Record, int]:
    size, position = read_varint(data, start)
    end = position + size
    delta, position = read_varint(data, position + 1, 64)
    offset_delta, position = read_varint(data, position)
    key, position = _take(data, position)
    value, position = _take(data, position)
    count, position = read_varint(data, position)
    headers = []
    for _ in range(count):
        name, position = _take(data, position)
        content, position = _take(data, position)
        headers.append((name or b"", content))
    if position != end:
        raise TwinError("record size")
    record = Record(
        offset=base_offset + offset_delta,
        timestamp=times[1] if log_append else times[0] + delta,
        key=key,
        value=value,
        headers=tuple(headers),
        size=end - start,
    )
    return record, end


def _message(entry: bytes) -> tuple[int, int, int, int, bytes | None, bytes | None]:
    """(offset, magic, attributes, timestamp, key, value) of one entry."""
    offset, _, _, magic, attributes = struct.unpack_from(">qiIbb", entry)
    timestamp = struct.unpack_from(">q", entry, 18)[0] if magic else -1
    position, parts = 26 if magic else 18, []
    for _ in range(2):
        (size,) = struct.unpack_from(">i", entry, position)
        position += 4
        parts.append(None if size < 0 else entry[position : position + size])
        position += max(size, 0)
    return offset, magic, attributes, timestamp, parts[0], parts[1]


def _legacy(entry: bytes, position: int) -> Batch:
    if struct.unpack_from(">I", entry, 12)[0] != zlib.crc32(entry[16:]):  # its fields may be anything
        offset, _, _, magic = struct.unpack_from(">qiIb", entry)
        return Batch(
            position=position,
            size=len(entry),
            magic=magic,
            first=offset,
            last=offset,
            valid=False,
            records=(),
        )
    offset, magic, attributes, timestamp, key, value = _message(entry)
    records: list[Record] = []
    if not attributes & 7:
        records = [Record(offset=offset, timestamp=timestamp, key=key, value=value, size=len(entry))]
    else:
        inner = decompress(attributes & 7, value or b"")
        start = 0
        while start < len(inner):
            end = start + 12 + struct.unpack_from(">i", inner, start + 8)[0]
            at, inner_magic, _, own, inner_key, inner_value = _message(inner[start:end])
            stamp = timestamp if magic and inner_magic and attributes & LOG_APPEND else own
            record = Record(offset=at, timestamp=stamp, key=inner_key, value=inner_value, size=end - start)
            records.append(record)
            start = end
        base = offset - records[-1].offset if magic else 0
        records = [_moved(record, base) for record in records]
    first = records[0].offset if records else offset
    return Batch(
        position=position,
        size=len(entry),
        magic=magic,
        first=first,
        last=offset,
        valid=True,
        records=tuple(records),
    )


def _moved(record: Record, base: int) -> Record:
    return Record(
        offset=base + record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        size=record.size,
    )
