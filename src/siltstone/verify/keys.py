"""The check of the last record of each key, over entries that hold a hash of the key.

An entry is a row of three uint64::

    0  hash of the key, 64 bits
    1  hash of the key, 56 bits | reason, 5 bits | MUST_DISCARD | MAY_DISCARD | IS_RETAINED
    2  offset of the record

The hash runs two lanes of multiply and rotate, in the manner of xxHash64, over the key's words, each from its
own secret seed. It is not the cleaner's hash (``base.records.hashing``), so that an error in that one shows
here.

A record may be discarded if a later record has its key, or for the *reason* in its entry if MAY_DISCARD is
set. This module knows reasons only as numbers: ``findings.KEY_REASONS`` has what they mean, and
``comparing`` sets them. Reason 0 is that a later record has the key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Int32, Int64, Words
from siltstone.base.records.varint import byte_of_word, load_word
from siltstone.verify.findings import EXAMPLES, KEY_REASONS, SUPERSEDED, Findings

IS_RETAINED, MAY_DISCARD, MUST_DISCARD = 1, 2, 4
"""Flags of an entry: the record is in AFTER; it may be discarded for the entry's reason; it must be."""
REASON_SHIFT, _REASONS_MAX = 3, 32
"""The reason is above the flags; so many fit."""
_HASH_MASK = np.uint64((1 << 64) - (_REASONS_MAX << REASON_SHIFT))
"""The bits of an entry's second word that belong to the hash."""
ENTRY_BYTES = 24
CHECK_BYTES = 72
"""Bytes of memory that the check of a bucket takes for an entry at its peak."""
_RETAINED, _DISCARDED, _LOST, _KEPT = (outcome * _REASONS_MAX for outcome in range(4))
"""Outcomes of a record: retained and discarded as it should be; discarded, but for no reason; retained, but
had to be discarded. A verdict is an outcome plus a reason."""

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


def entries_of(
    columns: RecordColumns, rows: Int64, reasons_and_flags: Int64, hash_key: tuple[int, int]
) -> Words:
    """The entries (uint64[n, 3]) of the records ``rows``, all with a key; ``reasons_and_flags``: int64[n]."""
    out = np.empty((len(rows), 3), np.uint64)
    seeds = (np.uint64(hash_key[0]), np.uint64(hash_key[1]))
    hash_keys(columns.data, columns.key_start[rows], columns.key_size[rows], *seeds, out)
    out[:, 1] = (out[:, 1] & _HASH_MASK) | reasons_and_flags.astype(np.uint64)
    out[:, 2] = columns.offset[rows].astype(np.uint64)
    return out


def bucket_of(entries: Words, buckets: int) -> Int64:
    """The bucket of each entry, by the top bits of its first word: int64[n]."""
    return (((entries[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


@kernel
def _check_entries(
    entries: Words, first_dirty: np.uint64, was_cleaned: bool, table: Int64, verdicts: npt.NDArray[np.uint8]
) -> int:
    """Fill ``verdicts`` (uint8, one an entry); returns how many distinct keys there are.

    ``table`` is an open-addressed hash table of entry numbers (-1: free), of a power of two of at least twice
    the entries. It holds for each key the entry with its largest offset in the dirty section, or its first
    one.
    """
    slot_mask = np.uint64(len(table) - 1)
    distinct = 0
    slots = np.empty(len(entries), np.int64)
    for i in range(len(entries)):
        slot = np.int64(entries[i, 0] & slot_mask)
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = i
                distinct += 1
                break
            same_words = entries[other, 0] == entries[i, 0]
            if same_words and (entries[other, 1] ^ entries[i, 1]) & _HASH_MASK == 0:
                if entries[i, 2] >= first_dirty and entries[i, 2] > entries[other, 2]:
                    table[slot] = i
                break
            slot = np.int64(np.uint64(slot + 1) & slot_mask)
        slots[i] = slot
    for i in range(len(entries)):
        # As for Kafka's offset map: only a record of the dirty section supersedes.
        last = entries[table[slots[i]], 2]
        superseded = last >= first_dirty and entries[i, 2] < last
        flags = np.int64(entries[i, 1] & ~_HASH_MASK)
        reason = SUPERSEDED if superseded else flags >> REASON_SHIFT
        if flags & IS_RETAINED:
            had_to_go = was_cleaned and (superseded or flags & MUST_DISCARD != 0)
            verdicts[i] = (_KEPT if had_to_go else _RETAINED) + reason
        else:
            verdicts[i] = (_DISCARDED if superseded or flags & MAY_DISCARD != 0 else _LOST) + reason
    return distinct


def check_bucket(blobs: list[Words], *, first_dirty: int, was_cleaned: bool) -> Findings:
    """Check all entries of one bucket of a log, in any order; ``was_cleaned``: what must be discarded of the
    cleaned range has to be gone."""
    entries = np.concatenate([*blobs, np.empty((0, 3), np.uint64)])
    findings, verdicts = Findings(), np.empty(len(entries), np.uint8)
    table = np.full(1 << max(3, (2 * len(entries) - 1).bit_length()), -1, np.int64)
    first = np.uint64(max(first_dirty, 0))
    findings.counts["keys"] = int(_check_entries(entries, first, was_cleaned, table, verdicts))
    totals = np.bincount(verdicts, minlength=4 * _REASONS_MAX).tolist()
    for number, reason in enumerate(KEY_REASONS):
        findings.counts[reason.name] = totals[_DISCARDED + number]
        for verdict, (kind, detail) in ((_LOST + number, reason.if_lost), (_KEPT + number, reason.if_kept)):
            if totals[verdict]:
                for offset in np.sort(entries[verdicts == verdict, 2])[:EXAMPLES].tolist():
                    findings.add(kind, detail, offset=offset)
                findings.found[kind] = totals[verdict]
    return findings
