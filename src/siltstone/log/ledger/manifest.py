"""A ledger's manifest: which generations it is made of, and up to where it covers the log. No files here.

Generations are ascending, disjoint and without gaps between them; each covers the originals'
offsets ``[base_offset, end_offset)``, whatever of them is left. Sizes are in bytes, sums are CRC32C.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from siltstone.errors import LedgerError
from siltstone.log.ledger.sealed import seal, unseal

BY_OFFSET, BY_TIME = "offset", "time"
ORDERS = (BY_OFFSET, BY_TIME)
"""What makes a record the last one of its key: its offset, or its timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """One segment of a generation: ``size`` of its ``.log`` in bytes, CRC32C of its three files."""

    base_offset: int
    size: int
    crc: int
    index_crc: int
    time_index_crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Segments that one run wrote: ``records`` in them, ``size`` in bytes of their logs.

    ``keys_size`` and ``keys_crc`` are those of the key index; ``hidden``: records that later generations have
    superseded, as of the ledger that this is part of.
    """

    id: int
    base_offset: int
    end_offset: int
    records: int
    size: int
    segments: tuple[SegmentEntry, ...]
    keys_size: int
    keys_crc: int
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A compacted view of a log below ``horizon``, the first offset that it does not cover.

    ``order`` is one of ``ORDERS``; ``hash_key``: the two words that keys are hashed with;
    ``created_ms`` by the clock; ``hidden_crc``: CRC32C of the file of hidden offsets, None without one.
    """

    id: int
    horizon: int
    generations: tuple[Generation, ...]
    order: str
    hash_key: tuple[int, int]
    retain_null_key: bool
    created_ms: int
    hidden_crc: int | None

    @property
    def base_offset(self) -> int:
        """The first offset that it covers."""
        return self.generations[0].base_offset if self.generations else self.horizon

    @property
    def entries(self) -> int:
        """Records that a reader sees."""
        return sum(each.records - each.hidden for each in self.generations)

    @property
    def size(self) -> int:
        """Bytes of all generations' logs."""
        return sum(each.size for each in self.generations)


def manifest_name(ledger_id: int) -> str:
    """The manifest's file name."""
    return f"ledger-{ledger_id}.json"


def what_is_wrong(ledger: Ledger) -> str:
    """Why it cannot be a ledger, empty when it can."""
    if ledger.order not in ORDERS:
        return f"order {ledger.order!r}"
    bounds = [(each.base_offset, each.end_offset) for each in ledger.generations]
    if any(end != base for (_, end), (base, _) in pairwise(bounds)):
        return "the generations leave gaps or overlap"
    if any(not 0 <= base < end for base, end in bounds) or (bounds and bounds[-1][1] != ledger.horizon):
        return "the generations do not end at the horizon"
    if len({each.id for each in ledger.generations}) != len(bounds):
        return "a generation is named twice"
    if any(not 0 <= each.hidden <= each.records for each in ledger.generations):
        return "more records are hidden than there are"
    if any(each.size != sum(part.size for part in each.segments) for each in ledger.generations):
        return "a generation's size is not that of its segments"
    if any(each.hidden for each in ledger.generations) != (ledger.hidden_crc is not None):
        return "hidden records without their file, or the other way round"
    return _wrong_segments(ledger)


def _wrong_segments(ledger: Ledger) -> str:
    for each in ledger.generations:
        bases = [part.base_offset for part in each.segments]
        if (
            bases != sorted(set(bases))
            or (bases and bases[-1] >= each.end_offset)
            or min(bases, default=0) < 0
        ):
            return f"generation {each.id}: segments {bases}"
    return ""


def encode_manifest(ledger: Ledger) -> bytes:
    """The manifest's bytes."""
    fields = asdict(ledger)
    fields["hash_key"] = [f"{word:016x}" for word in ledger.hash_key]
    return seal(fields)


def decode_manifest(path: Path, data: bytes) -> Ledger:
    """The ledger of a manifest's bytes. Raises LedgerError."""
    fields = unseal(path, data)
    try:
        ledger = _ledger(fields)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise LedgerError(str(path), "not a ledger's manifest") from None
    wrong = what_is_wrong(ledger)
    if wrong or path.name != manifest_name(ledger.id):
        raise LedgerError(str(path), wrong or f"holds the manifest of ledger {ledger.id}")
    return ledger


def _ledger(fields: dict[str, Any]) -> Ledger:
    high, low = fields.pop("hash_key")
    generations = tuple(
        Generation(**{**each, "segments": tuple(SegmentEntry(**part) for part in each["segments"])})
        for each in fields.pop("generations")
    )
    return Ledger(**fields, hash_key=(int(high, 16), int(low, 16)), generations=generations)
