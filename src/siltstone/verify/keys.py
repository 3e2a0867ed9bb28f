"""The check of the last record of each key, over entries that hold a hash of the key.

An entry is three uint64: two words of a keyed hash, of which the second gives its low four bits to flags, and
the offset. The hash runs two lanes of multiply and rotate, in the manner of xxHash64, over the key's words,
each from its own secret seed. It is not the cleaner's hash (``base.records.hashing``), so that an error in
that one shows here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64, Words
from siltstone.base.records.varint import byte_of_word, load_word
from siltstone.verify.findings import EXAMPLES, Findings

RETAINED, MAY_GO, MUST_GO, TOMBSTONE = 1, 2, 4, 8
"""Flags of an entry: its record is in AFTER; a tombstone that may be discarded, that must be; a tombstone."""
ENTRY_BYTES = 24
CHECK_BYTES = 72
"""Bytes of memory that the check of a bucket takes for an entry at its peak."""
_LOST, _TOMBSTONE_LOST, _SUPERSEDED_KEPT, _TOMBSTONE_KEPT, _SUPERSEDED, _TOMBSTONE_GONE = range(1, 7)
"""Verdicts on an entry; 0: retained, as it should be. The last two were discarded, as they should be."""
_KINDS = (
    (_LOST, "lost", "no later record of its key is there, and it is not in AFTER"),
    (_TOMBSTONE_LOST, "tombstone_lost", "it is not in AFTER, and its delete horizon has not passed"),
    (_SUPERSEDED_KEPT, "superseded_kept", "a later record of its key was cleaned with it"),
    (_TOMBSTONE_KEPT, "tombstone_kept", "its delete horizon has passed, and it is still there"),
)

_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)


@kernel
def _rotated(word: np.uint64, by: int) -> np.uint64:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@kernel
def _mixed(lane: np.uint64, word: np.uint64) -> np.uint64:
    lane ^= _rotated(word * _P2, 31) * _P1
    return _rotated(lane, 27) * _P1 + _P4


@kernel
def _finished(lane: np.uint64) -> np.uint64:
    lane = (lane ^ (lane >> np.uint64(33))) * _P2
    lane = (lane ^ (lane >> np.uint64(29))) * _P3
    return lane ^ (lane >> np.uint64(32))


@kernel
def hash_keys(data: Bytes, start: Int32, size: Int32, seed0: np.uint64, seed1: np.uint64, out: Words) -> None:
    """Hash each key ``data[start:start + size]`` (none is null) into two words, ``out[:, :2]``."""
    for i in range(len(start)):
        position, count = np.uint64(start[i]), size[i]
        lane0 = seed0 + np.uint64(count) * _P1
        lane1 = seed1 ^ (np.uint64(count) * _P3)
        for _ in range(count >> 3):
            word = load_word(data, position)
            lane0 = _mixed(lane0, word)
            lane1 = _mixed(lane1, word ^ _P4)
            position += np.uint64(8)
        # The last word is filled up with zeros; the key's size is in the seeds.
        word = np.uint64(0)
        for byte in range(count & 7):
            word |= byte_of_word(data, position, byte)
        lane0 = _mixed(lane0, word)
        lane1 = _mixed(lane1, word ^ _P4)
        out[i, 0] = _finished(lane0)
        out[i, 1] = _finished(lane1)


def entries_of(columns: RecordColumns, rows: Int64, flags: Int64, hash_key: tuple[int, int]) -> Words:
    """The entries (uint64[n, 3]) of the records ``rows``, all with a key; ``flags``: int64[n]."""
    out = np.empty((len(rows), 3), np.uint64)
    seeds = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
    hash_keys(columns.data, columns.key_start[rows], columns.key_size[rows], *seeds, out)
    out[:, 1] = (out[:, 1] & ~np.uint64(15)) | flags.astype(np.uint64)
    out[:, 2] = columns.offset[rows].astype(np.uint64)
    return out


def bucket_of(entries: Words, buckets: int) -> Int64:
    """The bucket of each entry, by the top bits of its first word: int64[n]."""
    return (((entries[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


@kernel
def _check_entries(entries: Words, first_dirty: np.uint64, must: bool, table: Int64, verdict: Any) -> int:
    """Fill ``verdict`` (uint8, one an entry); returns how many distinct keys there are.

    ``table`` is an open-addressed hash table of entry numbers (-1: free), of a power of two of at least twice
    the entries. It holds for each key the entry with its largest offset in the dirty section, or its first
    one.
    """
    mask = np.uint64(len(table) - 1)
    keep = ~np.uint64(15)
    distinct = 0
    places = np.empty(len(entries), np.int64)
    for i in range(len(entries)):
        slot = np.int64(entries[i, 0] & mask)
        while True:
            known = table[slot]
            if known < 0:
                table[slot] = i
                distinct += 1
                break
            if entries[known, 0] == entries[i, 0] and (entries[known, 1] & keep) == (entries[i, 1] & keep):
                if entries[i, 2] >= first_dirty and entries[i, 2] > entries[known, 2]:
                    table[slot] = i
                break
            slot = np.int64(np.uint64(slot + 1) & mask)
        places[i] = slot
    for i in range(len(entries)):
        # As for Kafka's offset map: only a record of the dirty section supersedes.
        last = entries[table[places[i]], 2]
        superseded = last >= first_dirty and entries[i, 2] < last
        flags = entries[i, 1]
        retained = flags & np.uint64(RETAINED) != 0
        verdict[i] = 0
        if retained and superseded and must:
            verdict[i] = _SUPERSEDED_KEPT
        elif retained and not superseded and must and flags & np.uint64(MUST_GO) != 0:
            verdict[i] = _TOMBSTONE_KEPT
        elif not retained and superseded:
            verdict[i] = _SUPERSEDED
        elif not retained and flags & np.uint64(MAY_GO) != 0:
            verdict[i] = _TOMBSTONE_GONE
        elif not retained:
            verdict[i] = _TOMBSTONE_LOST if flags & np.uint64(TOMBSTONE) != 0 else _LOST
    return distinct


def check_bucket(blobs: list[Words], *, first_dirty: int, must: bool) -> Findings:
    """Check all entries of one bucket of a log, in any order; ``must``: the cleaned range must be clean."""
    entries = np.concatenate([*blobs, np.empty((0, 3), np.uint64)])
    findings, verdict = Findings(), np.zeros(len(entries), np.uint8)
    table = np.full(1 << max(3, (2 * len(entries) - 1).bit_length()), -1, np.int64)
    distinct = _check_entries(entries, np.uint64(max(first_dirty, 0)), must, table, verdict)
    totals = np.bincount(verdict, minlength=7)
    findings.counts.update(
        keys=int(distinct), superseded=int(totals[_SUPERSEDED]), tombstones=int(totals[_TOMBSTONE_GONE])
    )
    for code, kind, detail in _KINDS:
        if totals[code]:
            for offset in np.sort(entries[verdict == code, 2])[:EXAMPLES].tolist():
                findings.add(kind, detail, offset=offset)
            findings.found[kind] = int(totals[code])
    return findings
