"""Fetch results as in Kafka's design documentation: a length and an error code before bytes of the log.

``MessageSetSend`` and ``MultiMessageSetSend``, the answers to one fetch and to several at once::

    total length 4 | error code 2 | message 1 … message n
    total length 4 | error code 2 | MessageSetSend 1 … MessageSetSend n

Big-endian; a total length counts what follows it, so it is at least 2. Today's protocol does not use these
frames: a broker answers with ``FetchResponse``. Here, ``PartitionLog.fetch`` returns a MessageSetSend and
``LogManager.fetch`` a MultiMessageSetSend. A program that sends them to another process encodes them with
this module.

A *message* here is what the log stores under one size field: a record batch (magic 2), or a message of a
message set (magic 0 and 1), which may be compressed. The messages are a chunk of the log as it is stored.
They are never copied: encoding returns the parts to write one after another, decoding returns slices of the
frame. A chunk may end within a message, since a reader asks for a number of bytes::

    size = frame_size(head, limit)            # from the first 4 bytes, before anything is allocated
    result = decode_message_set_send(frame)
    scan = result.scan()                      # the whole messages, and whether the chunk ends within one
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.layout import Bytes
from siltstone.base.records.scan import SCAN_REASON, Scan, ScanEnd, scan_batches

HEADER = struct.Struct(">ih")
"""Total length and error code."""
LENGTH_SIZE = 4
MIN_LENGTH = HEADER.size - LENGTH_SIZE
MAX_LENGTH = (1 << 31) - 1
"""The largest total length: it is an int32."""
MAX_FRAME_SIZE = LENGTH_SIZE + MAX_LENGTH
MAX_RESULTS = 1 << 16
"""Most results in one frame by default: one may be 6 bytes on the wire, but is an object here."""
_ERROR_PATH = "fetch result"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageSetSend:
    """The answer to one fetch: an error code (0: none) and a chunk of the log, uint8."""

    error_code: int
    messages: Bytes

    @classmethod
    def empty(cls, error_code: int = 0) -> MessageSetSend:
        """An answer without messages: the log has none yet, or ``error_code`` says why."""
        return cls(error_code=error_code, messages=np.empty(0, np.uint8))

    @property
    def size(self) -> int:
        """Bytes of the whole frame, its length included."""
        return HEADER.size + len(self.messages)

    def scan(self) -> Scan:
        """The whole messages of the chunk, and how it ends: CLEAN between two, TRUNCATED within one.

        ``Scan.needed`` is the truncated message's whole size if the chunk has its first 17 bytes (up to the
        magic byte), else 0. Checksums are not verified. Raises CorruptRecordError for bytes that are no
        message; its position is in ``messages``.
        """
        scan = scan_batches(self.messages)
        if scan.outcome not in (ScanEnd.CLEAN, ScanEnd.TRUNCATED):
            raise CorruptRecordError(_ERROR_PATH, scan.end, SCAN_REASON[scan.outcome])
        return scan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiMessageSetSend:
    """The answers to several fetches, in their order, and an error code for all of them."""

    error_code: int
    results: tuple[MessageSetSend, ...]


def frame_size(head: bytes | bytearray | memoryview, limit: int = MAX_FRAME_SIZE) -> int:
    """Bytes of a whole frame, its length included, by its first 4 bytes.

    Raises CorruptRecordError for a length below 2, or for a frame over ``limit`` bytes.
    """
    (length,) = struct.unpack_from(">i", head)
    return _checked_size(length, 0, limit, "are allowed")


def _checked_size(length: int, position: int, limit: int, limit_meaning: str) -> int:
    """The bytes of a frame with this total length, at most ``limit``; ``limit_meaning``: the error's words
    for the limit ("are allowed"). Raises CorruptRecordError with ``position``."""
    if length < MIN_LENGTH:
        raise CorruptRecordError(_ERROR_PATH, position, f"impossible length {length}")
    size = LENGTH_SIZE + length
    if size > limit:
        reason = f"its length says {size} bytes, but {limit} {limit_meaning}"
        raise CorruptRecordError(_ERROR_PATH, position, reason)
    return size


def _header(error_code: int, content_size: int) -> memoryview:
    assert MIN_LENGTH + content_size <= MAX_LENGTH, "a length is an int32"
    return memoryview(HEADER.pack(MIN_LENGTH + content_size, error_code))


def encode_message_set_send(result: MessageSetSend) -> list[memoryview]:
    """The frame in parts, to be written one after another: the header, and the chunk itself."""
    return [_header(result.error_code, len(result.messages)), result.messages.data]


def encode_multi_message_set_send(results: Sequence[MessageSetSend], error_code: int = 0) -> list[memoryview]:
    """The frame in parts: its header, then header and chunk of each result."""
    parts = [_header(error_code, sum(result.size for result in results))]
    for result in results:
        parts += encode_message_set_send(result)
    return parts


def decode_message_set_send(frame: bytes | bytearray | memoryview | Bytes) -> MessageSetSend:
    """One whole frame; the chunk is a slice of it. Raises CorruptRecordError with the position in it."""
    data = np.frombuffer(frame, np.uint8)
    result = _message_set_send(data, 0)
    if result.size < len(data):
        raise CorruptRecordError(
            _ERROR_PATH, result.size, f"{len(data) - result.size} bytes are left after it"
        )
    return result


def decode_multi_message_set_send(
    frame: bytes | bytearray | memoryview | Bytes, max_results: int = MAX_RESULTS
) -> MultiMessageSetSend:
    """One whole frame; the chunks are slices of it. Raises CorruptRecordError with the position in it.

    ``max_results`` is how many results were asked for: more are refused.
    """
    # The head is that of a ``MessageSetSend``, and so are the checks of the whole frame.
    data, outer = np.frombuffer(frame, np.uint8), decode_message_set_send(frame)
    results: list[MessageSetSend] = []
    position = HEADER.size
    while position < len(data):
        if len(results) == max_results:
            raise CorruptRecordError(_ERROR_PATH, position, f"more than {max_results} results")
        results.append(_message_set_send(data, position))
        position += results[-1].size
    return MultiMessageSetSend(error_code=outer.error_code, results=tuple(results))


def _message_set_send(data: Bytes, position: int) -> MessageSetSend:
    """The result at ``position``, whose messages are a slice of ``data``."""
    end = len(data)
    if end - position < HEADER.size:
        raise CorruptRecordError(_ERROR_PATH, position, "it is truncated within its length and error code")
    length, error_code = HEADER.unpack_from(data.data, position)
    size = _checked_size(length, position, end - position, "are left")
    return MessageSetSend(error_code=error_code, messages=data[position + HEADER.size : position + size])
