"""Checks that index files agree with their log.

Recovery rebuilds an index that does not, ``dump`` shows what is wrong with it.

Brokers differ in what they write, so an entry is checked for what holds for all of them:

* offset entry: a batch starts at its position, and its offset ends that batch, or a later one that starts
  before the next entry's position (one entry for a whole append: message sets, and followers of Kafka 3);
* time entry: the batch that holds its offset has its timestamp as the largest (Kafka 4 writes the batch's
  last offset, Kafka 2 that of the record).

The transaction index is checked by itself here; ``transactions`` compares it with the markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.layout import Int64
from siltstone.log.indexes import ENTRY_OF_KIND, read_entries
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLEANED, DELETED, SWAP

Entries = np.ndarray[tuple[int], np.dtype[np.void]]
_LOGS_OF = {
    "": ("", SWAP, DELETED),
    CLEANED: (CLEANED, SWAP, ""),
    SWAP: (SWAP, CLEANED, ""),
    DELETED: (DELETED, ""),
}
"""By an index's suffix: the suffixes that its log may have, the likeliest first. A swap renames file by
file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong in ``path`` at byte ``position``; ``reason`` says what."""

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.position}: {self.reason}"


def finding_of(error: CorruptFileError) -> Finding:
    """An error as a finding."""
    return Finding(path=error.path, position=error.position, reason=error.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file of a log directory by its name: kind, the base offset in it (-1: none), swap suffix or ""."""

    path: str
    kind: str
    base_offset: int = -1
    suffix: str = ""

    def log_path(self) -> str | None:
        """The log that an index belongs to, in the nearest state of a swap; None without any."""
        stem = self.path.removesuffix(self.suffix).removesuffix(self.kind)
        candidates = [f"{stem}log{suffix}" for suffix in _LOGS_OF[self.suffix]]
        return next((path for path in candidates if files.exists(path)), None)


def differs_from_log(index: NamedFile, log: str) -> bool:
    """Is an offset or time index malformed, or does it disagree with its ``log``? Raises OSError."""
    entries, damage = entries_until_damage(files.read_bytes(index.path), index)
    if damage or any(entries_before_base(index, entries)):
        return True
    return any(finding.path == index.path for finding in against_log(index, entries, log))


def entries_until_damage(data: bytes, index: NamedFile) -> tuple[Entries, list[Finding]]:
    """The entries before the first malformed one, and a finding for that one, if there is one."""
    width = ENTRY_OF_KIND[index.kind].itemsize
    damage: list[Finding] = []
    while True:
        try:
            return read_entries(data, index.kind, index.path), damage[-1:]
        except CorruptFileError as error:
            damage.append(finding_of(error))
            data = data[: min(error.position, len(data) - 1) // width * width]


def entries_before_base(index: NamedFile, entries: Entries) -> Iterator[Finding]:
    """Kafka's ``sanityCheck``: no entry is of an offset below the segment's base."""
    if index.kind == "txnindex":
        bad = np.flatnonzero(
            (entries["last_offset"] < index.base_offset) | (entries["first_offset"] > entries["last_offset"])
        )
    else:
        bad = np.flatnonzero(entries["relative_offset"] < 0)
    if len(bad):
        position = int(bad[0]) * entries.dtype.itemsize
        yield Finding(path=index.path, position=position, reason="an entry's offsets lie before the segment")


class _Batches(NamedTuple):
    """The header fields of a log's batches that indexes are built from: int64, one a batch."""

    position: Int64
    base_offset: Int64
    last_offset: Int64
    max_timestamp: Int64


def against_log(index: NamedFile, entries: Entries, log: str) -> Iterator[Finding]:
    """The entries of an offset or time index that disagree with its ``log``, and the log's damage. Raises
    OSError."""
    parts, damage = [np.empty((0, len(_Batches._fields)), np.int64)], None
    try:
        with files.Reader(log) as reader:
            for headers in batch_headers(reader):
                parts.append(np.column_stack([headers[name] for name in _Batches._fields]))
    except CorruptRecordError as error:
        damage = finding_of(error)
    if damage is not None:
        yield damage
    check = _check_offsets if index.kind == "index" else _check_times
    for number, reason in check(index.base_offset, entries, _Batches(*np.concatenate(parts).T), damage):
        yield Finding(path=index.path, position=number * entries.dtype.itemsize, reason=reason)


def _picked(values: Int64, rows: npt.NDArray[np.intp]) -> Int64:
    """``values[rows]``, and -2, which no entry has, for rows behind the last."""
    padded = np.append(values, np.int64(-2))
    return padded[np.minimum(rows, len(values))]


def _check_offsets(
    base: int, entries: Entries, batches: _Batches, damage: Finding | None
) -> Iterator[tuple[int, str]]:
    """(entry, reason) of each offset entry that disagrees with its log, as far as the log is sound."""
    offsets = entries["relative_offset"].astype(np.int64) + base
    positions = entries["position"].astype(np.int64)
    rows = np.searchsorted(batches.position, positions)
    starts, ends = _picked(batches.position, rows), _picked(batches.last_offset, rows)
    later = np.searchsorted(batches.last_offset, offsets)
    following = np.append(positions[1:], np.iinfo(np.int64).max)
    ends_later = (
        (_picked(batches.last_offset, later) == offsets)
        & (later >= rows)
        & (_picked(batches.position, later) < following)
    )
    seen = positions < (damage.position if damage else np.iinfo(np.int64).max)
    for number in np.flatnonzero(seen & ((starts != positions) | ~ends_later)).tolist():
        entry = f"offset {offsets[number]} position {positions[number]}"
        if starts[number] != positions[number]:
            yield number, f"{entry}: no batch starts there in the log"
        else:
            yield number, f"{entry}: the batch there ends at offset {ends[number]}"


def _check_times(
    base: int, entries: Entries, batches: _Batches, damage: Finding | None
) -> Iterator[tuple[int, str]]:
    """(entry, reason) of each time entry that disagrees with its log, as far as the log is sound."""
    offsets = entries["relative_offset"].astype(np.int64) + base
    times = entries["timestamp"].astype(np.int64)
    rows = np.searchsorted(batches.last_offset, offsets)
    inside = (rows < len(batches.last_offset)) & (_picked(batches.base_offset, rows) <= offsets)
    largest = _picked(batches.max_timestamp, rows)
    seen = (rows < len(batches.last_offset)) | (damage is None)
    for number in np.flatnonzero(seen & (~inside | (largest != times))).tolist():
        entry = f"timestamp {times[number]} offset {offsets[number]}"
        if inside[number]:
            yield number, f"{entry}: that batch's largest timestamp is {largest[number]}"
        else:
            yield number, f"{entry}: no batch of the log holds that offset"
