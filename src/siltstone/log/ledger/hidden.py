"""Which offsets of older generations a ledger leaves out, because later records have superseded them.

::

    magic 8 B "SLTHIDE1" · ledger i64 · sections i64 · [generation i64 · count i64 · width i64] · offsets

Little-endian. A section's offsets ascend and are counted from its generation's base, in 4 or 8 bytes each.
The file's CRC32C is in the ledger's manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from crc32c import crc32c

from siltstone.errors import LedgerError
from siltstone.log.ledger.manifest import Ledger
from siltstone.records.layout import Int64

MAGIC = b"SLTHIDE1"
_HEADER = struct.Struct("<8sqq")
_SECTION = struct.Struct("<qqq")
_NARROW = 1 << 32


def hidden_name(ledger_id: int) -> str:
    """The name of the file."""
    return f"ledger-{ledger_id}.hidden"


def encode_hidden(ledger_id: int, bases: Mapping[int, int], hidden: Mapping[int, Int64]) -> bytes:
    """The file's bytes. ``bases``: the generations' base offsets; ``hidden``: generation id → offsets.

    The offsets are int64, strictly ascending; a generation without any is left out.
    """
    heads, parts = [], []
    for generation, offsets in sorted(hidden.items()):
        if not len(offsets):
            continue
        relative = offsets - bases[generation]
        width = 4 if int(relative[-1]) < _NARROW else 8
        heads.append(_SECTION.pack(generation, len(offsets), width))
        parts.append(relative.astype(f"<u{width}").tobytes())
    return b"".join([_HEADER.pack(MAGIC, ledger_id, len(heads)), *heads, *parts])


def decode_hidden(path: Path, data: bytes, ledger: Ledger) -> dict[int, Int64]:
    """Generation id → hidden offsets (int64, ascending), for those that have any. Raises LedgerError."""
    if crc32c(data) != ledger.hidden_crc:
        raise LedgerError(str(path), "damaged: the checksum does not match")
    bases = {each.id: each.base_offset for each in ledger.generations}
    try:
        return dict(_sections(data, ledger.id, bases))
    except (KeyError, ValueError, struct.error):
        raise LedgerError(str(path), f"not the hidden offsets of ledger {ledger.id}") from None


def _sections(data: bytes, ledger_id: int, bases: Mapping[int, int]) -> list[tuple[int, Int64]]:
    magic, of_ledger, count = _HEADER.unpack_from(data)
    if magic != MAGIC or of_ledger != ledger_id:
        raise ValueError
    position = _HEADER.size + count * _SECTION.size
    found = []
    for number in range(count):
        head = _SECTION.unpack_from(data, _HEADER.size + number * _SECTION.size)
        generation, offsets, width = head
        if width not in (4, 8):
            raise ValueError
        relative = np.frombuffer(data, f"<u{width}", offsets, position)
        found.append((generation, relative.astype(np.int64) + bases[generation]))
        position += offsets * width
    return found
