"""A compacted ledger's manifest, its superseded offsets and the cursor: their types and file formats.

A ledger consists of *runs*, as in an LSM tree, ascending by offset without gaps or overlaps. A run covers the
log's offsets [``base_offset``, ``end_offset``) and has the records that a compaction retained of them. A
record of a run is *superseded* if a later compaction found a later record of its key: a later run has that
record, unless it is a tombstone, which no ledger keeps. Sizes are in bytes, checksums are CRC32C. In the
files a run is called ``generation``, and superseded is called ``hidden``. This module opens no file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from siltstone.base.config import LONG_MAX
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import LedgerError
from siltstone.base.records.layout import Int64

# Sealed files: JSON with a version and a checksum.
#
# A sealed file is valid only if ``seal`` gives exactly its bytes for its fields, so no changed byte remains
# unnoticed: the SHA-256 covers the fields, the comparison covers all other bytes.

VERSION = 1
WRONG_CHECKSUM = "the checksum does not match"


def seal(fields: Mapping[str, Any]) -> bytes:
    """A sealed file's bytes: JSON of ``version``, the fields in their order, and the ``sha256`` of all of
    these."""
    body = {"version": VERSION, **fields}
    return _text({**body, "sha256": hashlib.sha256(_text(body)).hexdigest()})


def unseal(path: Path, data: bytes) -> dict[str, Any]:
    """The fields of a sealed file, without version and checksum.

    Raises LedgerError for bytes that ``seal`` would not return, and for a later version.
    """
    try:
        fields = json.loads(data)
        version = fields.pop("version", None) if isinstance(fields, dict) else None
        if not isinstance(version, int):
            raise LedgerError(str(path), "the file has no version")
        if version != VERSION:
            advice = "use the newer Siltstone that wrote it" if version > VERSION else None
            raise LedgerError(str(path), f"unknown version {version}", advice=advice)
        fields.pop("sha256", None)
        sealed = seal(fields)
    except (ValueError, RecursionError):
        raise LedgerError(str(path), "the file is not JSON") from None
    if data != sealed:
        raise LedgerError(str(path), WRONG_CHECKSUM)
    return dict(fields)


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=1).encode() + b"\n"


BY_OFFSET, BY_TIME = "offset", "time"
ORDERS = (BY_OFFSET, BY_TIME)
"""A key's last record is the one with the largest offset, or the one with the largest timestamp."""
_LEDGER_NAMES = {"runs": "generations", "superseded_crc": "hidden_crc"}
"""What fields of ``Ledger`` are called in the manifest."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a manifest. Reading it raises if it has an unknown field."""


class SegmentEntry(_Strict, frozen=True, kw_only=True):
    """One segment of a run: the ``size`` of its ``.log``, and the CRC32C of its ``.log`` and its indexes."""

    base_offset: int
    size: int
    crc: int
    index_crc: int
    time_index_crc: int


class Run(_Strict, frozen=True, kw_only=True, rename={"superseded": "hidden"}):
    """A part of a ledger, written by one compaction; it covers the offsets [``base_offset``, ``end_offset``).

    ``id``: no other run of the log has the same. ``records``: how many records it has, superseded ones
    included. ``size``: the bytes of its segments' logs.

    ``keys_size`` and ``keys_crc``: bytes and CRC32C of its key index. ``superseded``: how many of its records
    the ledger's file of superseded offsets lists.
    """

    id: int
    base_offset: int
    end_offset: int
    records: int
    size: int
    segments: tuple[SegmentEntry, ...]
    keys_size: int
    keys_crc: int
    superseded: int

    @property
    def live_size(self) -> int:
        """An estimate of the bytes of its records that are not superseded, as if all had the same size."""
        return self.size * (self.records - self.superseded) // self.records if self.records else 0

    @property
    def is_mostly_superseded(self) -> bool:
        """Are more than half of its records superseded?"""
        return 2 * self.superseded > self.records


@decoded_in_threads
class Ledger(_Strict, frozen=True, kw_only=True, rename=_LEDGER_NAMES):
    """A compacted ledger, which covers a log below the offset ``horizon``.

    ``order`` is one of ``ORDERS``. ``hash_key``: the secret key of SipHash, as two 64-bit words, with which
    records' keys are hashed. ``retain_null_key``: records without a key are retained (Pulsar's
    ``topicCompactionRetainNullKey``). ``created_ms``: when the ledger was created. ``superseded_crc``: CRC32C
    of the file of superseded offsets, None if there is no such file."""

    id: int
    horizon: int
    runs: tuple[Run, ...]
    order: str
    hash_key: tuple[int, int]
    retain_null_key: bool
    created_ms: int
    superseded_crc: int | None

    @property
    def base_offset(self) -> int:
        """The first offset that it covers."""
        return self.runs[0].base_offset if self.runs else self.horizon

    @property
    def entries(self) -> int:
        """How many records are not superseded: those that a reader gets."""
        return sum(run.records - run.superseded for run in self.runs)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(run.size for run in self.runs)


def manifest_name(ledger_id: int) -> str:
    """The manifest's file name."""
    return f"ledger-{ledger_id}.json"


def broken_rule(ledger: Ledger) -> str:
    """The first rule that the ledger breaks, as an error's reason; empty if it is valid."""
    runs = ledger.runs
    bases, ends = [run.base_offset for run in runs], [run.end_offset for run in runs]
    rules = (
        (ledger.order in ORDERS, f"unknown order {ledger.order!r}"),
        (ends[:-1] == bases[1:], "the runs leave gaps or overlap"),
        (all(0 <= run.base_offset < run.end_offset <= LONG_MAX for run in runs), "a run has no offsets"),
        (ends[-1:] in ([], [ledger.horizon]), "the runs do not end at the horizon"),
        (len({run.id for run in runs}) == len(runs), "a run is listed twice"),
        (all(0 <= run.superseded <= run.records for run in runs), "more superseded records than a run has"),
        (all(_segments_fit(run) for run in runs), "a run's segments do not ascend, or are not of its size"),
        (
            any(run.superseded for run in runs) == (ledger.superseded_crc is not None),
            "superseded records without a file of them, or the reverse",
        ),
    )
    return next((broken for holds, broken in rules if not holds), "")


def _segments_fit(run: Run) -> bool:
    """Do the segments have the run's size? Do their base offsets ascend up to the run's end?

    The first segment's base offset may be below the run's: its first batch may begin there. Of that batch
    only the records from the run's base offset on belong to the run.
    """
    bases = [segment.base_offset for segment in run.segments]
    ascending = [run.base_offset, *bases[1:], run.end_offset]
    # ``sorted(set(…))``: strictly ascending.
    return (
        run.size == sum(segment.size for segment in run.segments)
        and all(segment.size >= 0 for segment in run.segments)
        and ascending == sorted(set(ascending))
        and (not bases or (0 <= bases[0] < ascending[1]))
    )


def encode_manifest(ledger: Ledger) -> bytes:
    """The manifest's bytes."""
    words = [f"{word:016x}" for word in ledger.hash_key]
    return seal({**msgspec.to_builtins(ledger), "hash_key": words})


def decode_manifest(path: Path, data: bytes) -> Ledger:
    """The ledger of a manifest's bytes. Raises LedgerError."""
    fields = unseal(path, data)
    try:
        words = [int(word, 16) for word in fields["hash_key"]]
        ledger = msgspec.convert({**fields, "hash_key": words}, Ledger)
    except (KeyError, TypeError, ValueError):
        raise LedgerError(str(path), "the file is not a ledger's manifest") from None
    broken = broken_rule(ledger)
    if broken or path.name != manifest_name(ledger.id):
        raise LedgerError(str(path), broken or f"the file is the manifest of ledger {ledger.id}")
    return ledger


# The cursor of the subscription ``__compaction``: the horizon, and the id of the current ledger.
#
# Both are in one file, which a compaction replaces by one rename. Its fields have Pulsar's names.

SUBSCRIPTION = "__compaction"
LEDGER_PROPERTY = "CompactedTopicLedger"


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """``horizon``: the first offset that ledger ``ledger_id`` does not cover."""

    horizon: int
    ledger_id: int


def encode_cursor(cursor: Cursor) -> bytes:
    """The cursor file's bytes."""
    return seal(
        {
            "subscription": SUBSCRIPTION,
            "markDeletePosition": cursor.horizon - 1,  # Pulsar's is the last position, not the next one
            "properties": {LEDGER_PROPERTY: cursor.ledger_id},
        }
    )


def decode_cursor(path: Path, data: bytes) -> Cursor:
    """The cursor of a file's bytes. Raises LedgerError."""
    fields = unseal(path, data)
    try:
        position, ledger_id = fields["markDeletePosition"], fields["properties"][LEDGER_PROPERTY]
        if not (isinstance(position, int) and isinstance(ledger_id, int) and position >= -1):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise LedgerError(str(path), "the file is not a compaction cursor") from None
    return Cursor(horizon=position + 1, ledger_id=ledger_id)


# The superseded offsets of a ledger: a reader skips the records with these offsets.
#
# ::
#
#     magic 8 B "SLTHIDE1" · ledger i64 · sections i64 · [run i64 · count i64 · width i64] · offsets
#
# Little-endian. A section's offsets ascend; they are relative to its run's base offset, in 4 or 8 bytes each.
# The file's CRC32C is in the manifest.

MAGIC = b"SLTHIDE1"
_HEADER = struct.Struct("<8sqq")
_SECTION = struct.Struct("<qqq")
_FOUR_BYTES_LIMIT = 1 << 32


def superseded_name(ledger_id: int) -> str:
    """The file name of a ledger's superseded offsets."""
    return f"ledger-{ledger_id}.hidden"


def encode_superseded(ledger_id: int, bases: Mapping[int, int], superseded: Mapping[int, Int64]) -> bytes:
    """The file's bytes. ``bases``: run id → base offset; ``superseded``: run id → superseded offsets.

    These are int64, strictly ascending. A run without any has no section.
    """
    sections, parts = [], []
    for run, offsets in sorted(superseded.items()):
        if not len(offsets):
            continue
        relative = offsets - bases[run]
        width = 4 if int(relative[-1]) < _FOUR_BYTES_LIMIT else 8
        sections.append(_SECTION.pack(run, len(offsets), width))
        parts.append(relative.astype(f"<u{width}").tobytes())
    return b"".join([_HEADER.pack(MAGIC, ledger_id, len(sections)), *sections, *parts])


def decode_superseded(path: Path, data: bytes, ledger: Ledger) -> dict[int, Int64]:
    """Run id → superseded offsets (int64, ascending), for runs that have any. Raises LedgerError."""
    if crc32c(data) != ledger.superseded_crc:
        raise LedgerError(str(path), WRONG_CHECKSUM)
    bases, superseded = {run.id: run.base_offset for run in ledger.runs}, dict[int, Int64]()
    try:
        magic, ledger_id, count = _HEADER.unpack_from(data)
        position = _HEADER.size + count * _SECTION.size
        if magic != MAGIC or ledger_id != ledger.id:
            raise ValueError
        for run, offset_count, width in _SECTION.iter_unpack(data[_HEADER.size : position]):
            if offset_count < 0:
                raise ValueError
            relative = np.frombuffer(data, {4: "<u4", 8: "<u8"}[width], offset_count, position)
            superseded[run] = relative.astype(np.int64) + bases[run]
            position += offset_count * width
    except (KeyError, ValueError, struct.error):
        raise LedgerError(str(path), f"these are not the superseded offsets of ledger {ledger.id}") from None
    return superseded
