"""Going through a log's segments for what its explanation tells: counts, bytes, and an entry for each key.

An entry is five uint64::

    word 0, word 1: hash of the key, the low two bits of word 1 flags | offset | timestamp, ms
    | record's bytes (high half), key's bytes (low half)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siltstone.base.config import LONG_MAX
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_records
from siltstone.base.records.hashing import siphash128_each
from siltstone.base.records.inflate import pieces
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import CONTROL_BIT, Bytes, Directory, Flags, Int64, Words, delete_horizons
from siltstone.compaction.work import LogWork
from siltstone.log.segments import unchanged, windows
from siltstone.log.transactions import TransactionScan

TOMBSTONE, EXPIRED = 1, 2
"""Flags of an entry: no value; a cleaning now lets it go."""
ENTRY_WORDS = 5
ENTRY_BYTES = 8 * ENTRY_WORDS
BLOB_ENTRIES = (16 << 20) // ENTRY_BYTES
KINDS = ("records", "keyless", "aborted", "control", "tombstones")
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

    ``counts`` of records and ``sizes`` in bytes (records as they are uncompressed) by ``KINDS``.
    ``waiting``: tombstones by the delete horizon (ms) that they wait for, -1 before they were stamped.
    ``written``, ``lost``: bytes by bin, all, and those that keyless and aborted records take.
    """

    bins: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written = self.written or [0] * self.bins
        self.lost = self.lost or [0] * self.bins

    def add(self, other: Observed) -> None:
        """Sum up."""
        for kind in KINDS:
            self.counts[kind] += other.counts[kind]
            self.sizes[kind] += other.sizes[kind]
        for horizon, (count, size) in other.waiting.items():
            mine = self.waiting.get(horizon, (0, 0))
            self.waiting[horizon] = (mine[0] + count, mine[1] + size)
        self.written = _sums(self.written, other.written)
        self.lost = _sums(self.lost, other.lost)

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Observed:
        """What ``json`` makes of ``dataclasses.asdict`` of one: the horizons are texts there."""
        waiting = {int(horizon): (count, size) for horizon, (count, size) in raw["waiting"].items()}
        return cls(**{**raw, "waiting": waiting})


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
    """Count the records of some batches; entries of those that have a key to go by."""
    modern = batches["magic"] == 2
    control = (((batches["attributes"] & CONTROL_BIT) != 0) & modern)[columns.batch]
    stamped = delete_horizons(batches)
    horizon = np.where(stamped, batches["base_timestamp"], -1)
    expired = np.where(modern, stamped & (horizon <= work.now_ms), not keeps)
    expired = (expired & (batches["last_offset"] < work.tombstones_from))[columns.batch]
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
    observed.written = _sums(observed.written, bins.weigh(columns.timestamp, sizes))
    observed.lost = _sums(observed.lost, bins.weigh(columns.timestamp[lost], sizes[lost]))
    _add_waiting(observed, horizon[columns.batch][dead & ~expired], sizes[dead & ~expired])
    rows = np.flatnonzero(keyed)
    flags = TOMBSTONE * dead[rows].astype(np.int64) + EXPIRED * (dead & expired)[rows].astype(np.int64)
    return _packed(work, columns, rows, flags)


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


# One bucket's keys counted: how many, how often each was written, what is superseded and since when.

TALLY_BYTES = 160
"""Memory that tallying takes for an entry at its peak."""
MASK = "••••"
FREQUENCIES = 24
"""Keys are counted by the number of their records: 1, 2, 3 to 4, 5 to 8, … in that many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key that was written often: its records, those that are superseded, and the offset of the last one.

    ``key`` is masked unless it was asked for; sizes in bytes.
    """

    key: str = MASK
    key_size: int
    records: int
    bytes: int
    superseded: int
    superseded_bytes: int
    last_offset: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The hottest first; the same whatever the order in which keys came."""
        return (-self.records, -self.bytes, self.last_offset)


@dataclass(slots=True, kw_only=True)
class KeyTally:
    """Sums over keys. ``superseded_by_bin``: bytes by the time of the key's next record."""

    keys: int = 0
    dirty_keys: int = 0
    superseded: int = 0
    superseded_size: int = 0
    tombstones: int = 0
    tombstones_size: int = 0
    by_frequency: list[int] = field(default_factory=lambda: [0] * FREQUENCIES)
    superseded_by_bin: list[int] = field(default_factory=list)
    hottest: list[HotKey] = field(default_factory=list)

    def add(self, other: KeyTally, top: int) -> None:
        """Sum up; the ``top`` hottest keys stay."""
        for name in ("keys", "dirty_keys", "superseded", "superseded_size", "tombstones", "tombstones_size"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_frequency = _sums(self.by_frequency, other.by_frequency)
        self.superseded_by_bin = _sums(self.superseded_by_bin, other.superseded_by_bin)
        self.hottest = sorted([*self.hottest, *other.hottest], key=lambda each: each.rank)[:top]

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> KeyTally:
        """What ``dataclasses.asdict`` made of one."""
        return cls(**{**raw, "hottest": [HotKey(**each) for each in raw["hottest"]]})


def _sums(one: list[int], other: list[int]) -> list[int]:
    longer = max(len(one), len(other))
    padded = [each + [0] * (longer - len(each)) for each in (one, other)]
    return [a + b for a, b in zip(*padded, strict=True)]


@kernel
def _tally(entries: Words, first_dirty: int, groups: Int64, since: Int64, reasons: Int64) -> int:
    """Go through entries sorted by key, then offset; returns how many keys there are.

    ``groups`` (int64[n, 5]) is filled a key: first entry, records, bytes, superseded ones, their bytes.
    ``since`` (a row an entry): the time of the key's next record where the entry is superseded, else the
    smallest int64. ``reasons`` (5): dirty keys, superseded, bytes, tombstones, bytes.
    """
    keep = ~np.uint64(3)
    number, i = 0, 0
    while i < len(entries):
        j = i + 1
        while (
            j < len(entries)
            and entries[j, 0] == entries[i, 0]
            and (entries[j, 1] & keep) == (entries[i, 1] & keep)
        ):
            j += 1
        last = np.int64(entries[j - 1, 2])
        dirty = last >= first_dirty
        reasons[0] += 1 if dirty else 0
        groups[number, 0], groups[number, 1] = i, j - i
        groups[number, 2:] = 0
        for e in range(i, j):
            size = np.int64(entries[e, 4] >> np.uint64(32))
            groups[number, 2] += size
            since[e] = np.iinfo(np.int64).min
            if dirty and e < j - 1:
                since[e] = np.int64(entries[e + 1, 3])
                groups[number, 3] += 1
                groups[number, 4] += size
            elif entries[e, 1] & np.uint64(2) != 0:
                reasons[3] += 1
                reasons[4] += size
        reasons[1] += groups[number, 3]
        reasons[2] += groups[number, 4]
        number += 1
        i = j
    return number


def tally(blobs: list[Words], first_dirty: int, bins: Bins, top: int) -> KeyTally:
    """Count all entries of one bucket, in any order. Memory: about 160 bytes an entry."""
    entries = np.concatenate([*blobs, np.empty((0, ENTRY_WORDS), np.uint64)])
    entries = entries[np.lexsort((entries[:, 2], entries[:, 1] & ~np.uint64(3), entries[:, 0]))]
    groups, since = np.empty((len(entries), 5), np.int64), np.empty(len(entries), np.int64)
    reasons = np.zeros(5, np.int64)
    keys = _tally(entries, first_dirty, groups, since, reasons)
    groups = groups[:keys]
    dirty, superseded, superseded_size, tombstones, tombstones_size = reasons.tolist()
    gone = since != np.iinfo(np.int64).min
    sizes = (entries[:, 4] >> np.uint64(32)).astype(np.int64)
    steps = np.ceil(np.log2(np.maximum(groups[:, 1], 1))).astype(np.int64).clip(max=FREQUENCIES - 1)
    return KeyTally(
        keys=keys,
        dirty_keys=dirty,
        superseded=superseded,
        superseded_size=superseded_size,
        tombstones=tombstones,
        tombstones_size=tombstones_size,
        by_frequency=np.bincount(steps, minlength=FREQUENCIES).tolist(),
        superseded_by_bin=bins.weigh(since[gone], sizes[gone]),
        hottest=_hottest(entries, groups, top),
    )


def _hottest(entries: Words, groups: Int64, top: int) -> list[HotKey]:
    last = groups[:, 0] + groups[:, 1] - 1
    offsets = entries[last, 2].astype(np.int64) if len(groups) else np.empty(0, np.int64)
    order = np.lexsort((offsets, -groups[:, 2], -groups[:, 1]))[:top]
    return [
        HotKey(
            records=int(groups[number, 1]),
            bytes=int(groups[number, 2]),
            superseded=int(groups[number, 3]),
            superseded_bytes=int(groups[number, 4]),
            key_size=int(entries[last[number], 4] & np.uint64(0xFFFFFFFF)),
            last_offset=int(offsets[number]),
        )
        for number in order.tolist()
    ]
