"""Going through a log's segments for what its explanation tells: counts, bytes, and an entry for each key.

An entry is five uint64::

    word 0, word 1: hash of the key, the low two bits of word 1 flags | offset | timestamp, ms
    | record's bytes (high half), key's bytes (low half)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.cleaner.hashing import siphash128_each
from siltstone.cleaner.work import LogWork
from siltstone.config import LONG_MAX
from siltstone.log.segments import unchanged, windows
from siltstone.log.transactions import TransactionScan
from siltstone.records.codecs import Scratch
from siltstone.records.columns import RecordColumns
from siltstone.records.decode import decode_records
from siltstone.records.layout import CONTROL_BIT, Bytes, Directory, Int64, delete_horizons
from siltstone.records.pieces import pieces

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
TOMBSTONE, EXPIRED = 1, 2
"""Flags of an entry: no value; a cleaning now lets it go."""
ENTRY_WORDS = 5
ENTRY_BYTES = 8 * ENTRY_WORDS
BLOB_ENTRIES = (16 << 20) // ENTRY_BYTES
HORIZONS_MOST = 64
"""Different delete horizons that are told apart, the first ones; each past cleaning gave about one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Times in equal steps: ``count`` bins from ``start_ms`` on, ``width_ms`` each; what is outside counts in
    the first or the last one."""

    start_ms: int
    width_ms: int
    count: int

    def of(self, times: Int64) -> Int64:
        """The bin of each time."""
        last_ms = min(self.start_ms + self.count * self.width_ms, LONG_MAX)
        # Clipped first: the difference of two times of a damaged or a far-off clock may not fit into 64 bits.
        return np.clip(
            (np.clip(times, self.start_ms, last_ms) - self.start_ms) // self.width_ms, 0, self.count - 1
        )

    def weigh(self, times: Int64, weights: Int64) -> list[int]:
        """Sums of weights by bin."""
        sums = np.bincount(self.of(times), weights=weights, minlength=self.count)
        return [int(each) for each in sums.tolist()]


@dataclass(slots=True, kw_only=True)
class Observed:
    """What was seen in some segments below the first uncleanable offset.

    ``counts`` of records and ``sizes`` in bytes (records as they are uncompressed) by: records, keyless,
    aborted, control, tombstones. ``waiting``: tombstones by the delete horizon (ms) that they wait for, -1
    before they were stamped. ``written``, ``lost``: bytes by bin, all, and those that keyless and aborted
    records take.
    """

    bins: int
    counts: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written = self.written or [0] * self.bins
        self.lost = self.lost or [0] * self.bins

    def add(self, other: Observed) -> None:
        """Sum up."""
        self.counts += other.counts
        self.sizes += other.sizes
        for horizon, (count, size) in other.waiting.items():
            mine = self.waiting.get(horizon, (0, 0))
            self.waiting[horizon] = (mine[0] + count, mine[1] + size)
        self.written = [a + b for a, b in zip(self.written, other.written, strict=True)]
        self.lost = [a + b for a, b in zip(self.lost, other.lost, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json``."""
        return {
            "bins": self.bins,
            "counts": dict(self.counts),
            "sizes": dict(self.sizes),
            "waiting": [[horizon, *each] for horizon, each in sorted(self.waiting.items())],
            "written": self.written,
            "lost": self.lost,
        }

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Observed:
        """The same again."""
        return cls(
            bins=raw["bins"],
            counts=Counter(raw["counts"]),
            sizes=Counter(raw["sizes"]),
            waiting={horizon: (count, size) for horizon, count, size in raw["waiting"]},
            written=raw["written"],
            lost=raw["lost"],
        )


def bucket_of(entries: Words, buckets: int) -> Int64:
    """The bucket of each entry, by its first word's top bits."""
    return (((entries[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


def observe(
    work: LogWork,
    segments: Sequence[int],
    buckets: int,
    bins: Bins,
    observed: Observed,
    only: int | None = None,
) -> Iterator[tuple[int, Words]]:
    """Some segments (numbers into ``work.segments``): (bucket, entries), 16 MiB each at most.

    ``observed`` is filled on the way. ``only``: entries of that bucket. Raises CorruptFileError,
    SourceChangedError, OSError.
    """
    pending: dict[int, list[Words]] = {}
    waiting = 0
    for number in segments:
        for entries in _entries(work, number, bins, observed):
            where = bucket_of(entries, buckets)
            for bucket in range(buckets) if only is None else (only,):
                mine = entries[where == bucket] if buckets > 1 else entries
                if len(mine):
                    pending.setdefault(bucket, []).append(mine)
                    waiting += len(mine)
            if waiting >= BLOB_ENTRIES * max(1, min(buckets, 4)):
                yield from _flushed(pending)
                waiting = 0
    yield from _flushed(pending)


def _flushed(pending: dict[int, list[Words]]) -> Iterator[tuple[int, Words]]:
    for bucket in list(pending):
        entries = np.concatenate(pending.pop(bucket))
        for start in range(0, len(entries), BLOB_ENTRIES):
            yield bucket, entries[start : start + BLOB_ENTRIES]


def _entries(work: LogWork, number: int, bins: Bins, observed: Observed) -> Iterator[Words]:
    segment, scratch, scan = work.segments[number], Scratch(), work.transactions()
    keeps = work.keeps_legacy_tombstones(number)
    with unchanged(segment) as reader:
        for window in windows(reader, window_size=work.window_size):
            for part in pieces(window.data, window.batches):
                batches = window.batches[part]
                columns = decode_records(
                    window.data,
                    batches,
                    scratch,
                    limit=work.batch_limit,
                    path=segment.path,
                    origin=window.origin,
                )
                if not len(columns):
                    continue
                aborted = _aborted(scan, window.data, batches, columns, segment.path, window.origin)
                yield _seen(work, batches, columns, aborted, keeps, bins, observed)
    scan.refuse_unmarked(*work.offsets_of(number), segment.path)


def _aborted(
    scan: TransactionScan,
    window: Bytes,
    batches: Directory,
    columns: RecordColumns,
    path: str,
    origin: int,
) -> Flags:
    followed = scan.follow(window, batches, path=path, origin=origin)
    none = np.zeros(len(columns), np.bool_)
    return none if followed is None else followed[0][columns.batch]


def _seen(
    work: LogWork,
    batches: Directory,
    columns: RecordColumns,
    aborted: Flags,
    keeps: bool,
    bins: Bins,
    observed: Observed,
) -> Words:
    """Count the records of some batches; entries of those that take part in the keys' contest."""
    modern = batches["magic"] == 2
    control = (((batches["attributes"] & CONTROL_BIT) != 0) & modern)[columns.batch]
    stamped = delete_horizons(batches)
    horizon = np.where(stamped, batches["base_timestamp"], -1)
    expired = np.where(modern, stamped & (horizon <= work.now_ms), not keeps)[columns.batch]
    data = ~control & ~aborted
    keyed = data & (columns.key_size >= 0)
    dead = keyed & (columns.value_size < 0)
    sizes = columns.size.astype(np.int64)
    kinds = {
        "records": np.ones(len(columns), np.bool_),
        "keyless": data & ~keyed,
        "aborted": aborted & ~control,
        "control": control,
        "tombstones": dead,
    }
    for kind, mine in kinds.items():
        observed.counts[kind] += int(np.count_nonzero(mine))
        observed.sizes[kind] += int(sizes[mine].sum())
    lost = kinds["keyless"] | kinds["aborted"]
    _add(observed.written, bins.weigh(columns.timestamp, sizes))
    _add(observed.lost, bins.weigh(columns.timestamp[lost], sizes[lost]))
    _add_waiting(observed, horizon[columns.batch][dead & ~expired], sizes[dead & ~expired])
    rows = np.flatnonzero(keyed)
    flags = TOMBSTONE * dead[rows].astype(np.int64) + EXPIRED * (dead & expired)[rows].astype(np.int64)
    return _packed(work, columns, rows, flags)


def _add(sums: list[int], more: list[int]) -> None:
    for number, each in enumerate(more):
        sums[number] += each


def _add_waiting(observed: Observed, horizons: Int64, sizes: Int64) -> None:
    values, where, counts = np.unique(horizons, return_inverse=True, return_counts=True)
    weights = np.bincount(where, weights=sizes, minlength=len(values))
    for horizon, count, size in zip(values.tolist(), counts.tolist(), weights.tolist(), strict=True):
        known = observed.waiting
        full = horizon not in known and len(known) >= HORIZONS_MOST
        place = min(known, key=lambda each: abs(each - horizon)) if full else horizon
        mine = known.get(place, (0, 0))
        known[place] = (mine[0] + int(count), mine[1] + int(size))


def _packed(work: LogWork, columns: RecordColumns, rows: Int64, flags: Int64) -> Words:
    out = np.empty((len(rows), ENTRY_WORDS), np.uint64)
    low, high = np.empty((2, len(rows)), np.uint64)
    seeds = (np.uint64(work.hash_key[0]), np.uint64(work.hash_key[1]))
    siphash128_each(columns.data, columns.key_start[rows], columns.key_size[rows], *seeds, low, high)
    out[:, 0] = low
    out[:, 1] = (high & ~np.uint64(3)) | flags.astype(np.uint64)
    out[:, 2] = columns.offset[rows].astype(np.uint64)
    out[:, 3] = columns.timestamp[rows].astype(np.int64).view(np.uint64)
    weight = columns.size[rows].astype(np.uint64) << np.uint64(32)
    out[:, 4] = weight | columns.key_size[rows].astype(np.uint64)
    return out
