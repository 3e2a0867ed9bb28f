"""Producer snapshots: ``BASE.snapshot`` (Kafka's ``ProducerStateManager``).

All integers big-endian::

    version 2 (1) | CRC32C of what follows 4 | entry count 4 | per entry 46:
    producer id 8 | epoch 2 | last sequence 4 | last offset 8 | offset delta 4 | timestamp 8
    | coordinator epoch 4 | first offset of its open transaction 8 (-1: none)

The cleaner asks one thing of it: which batch is the last of each producer that is still alive, since
an emptied batch stays for that one (its sequence numbers would be lost otherwise).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from siltstone.base.errors import CorruptFileError

_HEAD = struct.Struct(">hII")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_CHECKED_FROM = 6


class ProducerEntry(NamedTuple):
    """One producer's last batch, its fields in the order of the file. ``last_offset`` and ``last_sequence``
    are -1 when it has no data left."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_transaction_offset: int


def read_snapshot(data: bytes, path: str = "", offset: int | None = None) -> list[ProducerEntry]:
    """Decode a snapshot file's bytes; ``offset``: what it was taken at, where that is to be held to.

    Raises CorruptFileError for anything but a whole, sound one, and for one that knows of offsets from
    ``offset`` on, or of one producer twice.
    """
    if len(data) < _HEAD.size:
        raise CorruptFileError(path, 0, "shorter than a snapshot's header")
    version, checksum, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptFileError(path, 0, f"snapshot version {version}; only {_VERSION} is known")
    if crc32c(data[_CHECKED_FROM:]) != checksum:
        raise CorruptFileError(path, 2, "snapshot checksum does not match")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptFileError(path, 6, f"no room for exactly {count} producers")
    found = [ProducerEntry._make(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]
    if offset is not None:
        _refuse_senseless(found, offset, path)
    return found


def _refuse_senseless(producers: Sequence[ProducerEntry], offset: int, path: str) -> None:
    known: set[int] = set()
    for number, each in enumerate(producers):
        position = _HEAD.size + number * _ENTRY.size
        if each.producer_id < 0 or each.producer_id in known:
            raise CorruptFileError(path, position, f"producer {each.producer_id} is there twice, or is none")
        known.add(each.producer_id)
        for place in (each.last_offset, each.open_transaction_offset):
            if not -1 <= place < offset:
                reason = f"producer {each.producer_id} has offset {place}, but it was taken at {offset}"
                raise CorruptFileError(path, position, reason)


def write_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    """Encode a snapshot file's bytes."""
    rows = [_ENTRY.pack(*producer) for producer in producers]
    body = len(rows).to_bytes(4, "big") + b"".join(rows)
    return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body
