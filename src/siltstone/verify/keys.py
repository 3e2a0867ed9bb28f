"""Checks that the last record of each key is retained and that records that it supersedes are discarded.

Two copies of a log are compared, BEFORE and AFTER a cleaning. The check has an *entry* for each record with a
key that BEFORE has in the cleaned range (without control records and aborted ones): a row of three uint64
words::

    0  hash of the key, 64 bits
    1  hash of the key, 56 bits | reason, 5 bits | MUST_DISCARD | MAY_DISCARD | IS_RETAINED
    2  offset of the record

The entries of a log are divided into *buckets* by their hashes, so that all entries of a key are in one
bucket; buckets are checked independently of each other.

The hash consists of two hashes like xxHash64, each with a secret seed of its own. The cleaner uses another
one (``base.records.hashing``), so that an error in the cleaner's hash cannot hide itself.

A record may be discarded if a later record of the dirty section has its key, which is reason 0 (SUPERSEDED),
or if MAY_DISCARD is set; then the *reason* is that of its entry, an index in ``findings.KEY_REASONS``, which
``comparing`` sets. If neither holds, the record must be retained; if it is missing, it is counted as lost,
with the reason of its entry.
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
"""Flags of an entry: the record is in the cleaned log; it may be discarded for the entry's reason; it must be
discarded for that reason."""
REASON_SHIFT, _MAX_REASONS = 3, 32
"""The reason is in the bits above the three flags; five bits have room for 32 reasons."""
_HASH_MASK = np.uint64((1 << 64) - (_MAX_REASONS << REASON_SHIFT))
"""The bits of an entry's second word that belong to the hash."""
ENTRY_BYTES = 3 * 8
CHECK_BYTES_PER_ENTRY = 72
"""The peak memory of the check of a bucket in bytes, divided by the number of its entries."""
_RETAINED, _DISCARDED, _LOST, _WRONGLY_RETAINED = (outcome * _MAX_REASONS for outcome in range(4))
"""Outcomes of a record: correctly retained; correctly discarded; discarded without a reason; retained, though
it had to be discarded. They are multiples of 32: a *result* is an outcome plus a reason."""

# The constants of xxHash64, with its rotations and shifts below.
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3, _PRIME_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)


@kernel
def _rotate_left(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel
def _mix_word(state: np.uint64, word: np.uint64) -> np.uint64:
    """The state of a hash after the next word of the key."""
    state ^= _rotate_left(word * _PRIME_2, 31) * _PRIME_1
    return _rotate_left(state, 27) * _PRIME_1 + _PRIME_4


@kernel
def _avalanche(state: np.uint64) -> np.uint64:
    """The hash of a key whose words have led to ``state``: each bit of the state changes about half of the
    bits of the hash."""
    state = (state ^ (state >> np.uint64(33))) * _PRIME_2
    state = (state ^ (state >> np.uint64(29))) * _PRIME_3
    return state ^ (state >> np.uint64(32))


@kernel
def hash_keys(data: Bytes, start: Int32, size: Int32, seed0: np.uint64, seed1: np.uint64, out: Words) -> None:
    """Write the two hashes of each key ``data[start:start + size]`` to ``out[:, :2]``. No key is null. A key
    is hashed in words of eight bytes."""
    for i in range(len(start)):
        position, count = np.uint64(start[i]), size[i]
        state0 = seed0 + np.uint64(count) * _PRIME_1
        state1 = seed1 ^ (np.uint64(count) * _PRIME_3)
        for _ in range(count >> 3):
            word = load_word(data, position)
            state0 = _mix_word(state0, word)
            state1 = _mix_word(state1, word ^ _PRIME_4)
            position += np.uint64(8)
        # The last word is padded with zeros. The initial states depend on the key's size, so that keys that
        # differ only in zeros at their end have different hashes.
        word = np.uint64(0)
        for byte in range(count & 7):
            word |= byte_of_word(data, position, byte)
        state0 = _mix_word(state0, word)
        state1 = _mix_word(state1, word ^ _PRIME_4)
        out[i, 0] = _avalanche(state0)
        out[i, 1] = _avalanche(state1)


def entries_of(
    columns: RecordColumns, rows: Int64, reasons_and_flags: Int64, hash_seeds: tuple[int, int]
) -> Words:
    """The entries (uint64[n, 3]) of the records ``rows``, all with a key. ``reasons_and_flags`` (int64[n]):
    the reason of each record, shifted by ``REASON_SHIFT``, and its flags; ``hash_seeds``: the seeds of the
    two hashes."""
    out = np.empty((len(rows), 3), np.uint64)
    seeds = (np.uint64(hash_seeds[0]), np.uint64(hash_seeds[1]))
    hash_keys(columns.data, columns.key_start[rows], columns.key_size[rows], *seeds, out)
    out[:, 1] = (out[:, 1] & _HASH_MASK) | reasons_and_flags.astype(np.uint64)
    out[:, 2] = columns.offset[rows].astype(np.uint64)
    return out


def bucket_of(entries: Words, buckets: int) -> Int64:
    """The bucket of each entry, int64[n]: the top 32 bits of its first word, scaled to [0, ``buckets``)."""
    return (((entries[:, 0] >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).astype(np.int64)


@kernel
def _check_entries(
    entries: Words,
    first_dirty_offset: np.uint64,
    was_cleaned: bool,
    table: Int64,
    results: npt.NDArray[np.uint8],
) -> int:
    """Fill ``results`` (one for each entry); returns how many distinct keys there are.

    ``table`` is a hash table with open addressing, which stores row numbers of ``entries`` (-1: a free slot).
    Its size is a power of two, and at least twice the number of entries. For each key it stores the entry
    with the largest offset in the dirty section, or some entry of the clean section if the dirty section has
    none.
    """
    slot_mask = np.uint64(len(table) - 1)
    distinct = 0
    slots = np.empty(len(entries), np.int64)  # the slot of each entry's key
    for i in range(len(entries)):
        slot = np.int64(entries[i, 0] & slot_mask)
        while True:
            occupant = table[slot]
            if occupant < 0:
                table[slot] = i
                distinct += 1
                break
            has_same_first_word = entries[occupant, 0] == entries[i, 0]
            if has_same_first_word and (entries[occupant, 1] ^ entries[i, 1]) & _HASH_MASK == 0:
                if entries[i, 2] >= first_dirty_offset and entries[i, 2] > entries[occupant, 2]:
                    table[slot] = i
                break
            slot = np.int64(np.uint64(slot + 1) & slot_mask)
        slots[i] = slot
    for i in range(len(entries)):
        # Only a record of the dirty section supersedes others, as in Kafka, whose offset map has only these.
        last = entries[table[slots[i]], 2]
        superseded = last >= first_dirty_offset and entries[i, 2] < last
        flags = np.int64(entries[i, 1] & ~_HASH_MASK)
        reason = SUPERSEDED if superseded else flags >> REASON_SHIFT
        if flags & IS_RETAINED:
            must_discard = was_cleaned and (superseded or flags & MUST_DISCARD != 0)
            results[i] = (_WRONGLY_RETAINED if must_discard else _RETAINED) + reason
        else:
            results[i] = (_DISCARDED if superseded or flags & MAY_DISCARD != 0 else _LOST) + reason
    return distinct


def check_bucket(chunks: list[Words], *, first_dirty_offset: int, was_cleaned: bool) -> Findings:
    """Check all entries of one bucket of a log, in any order.

    ``was_cleaned``: the log was cleaned between the two copies, so AFTER may not have records that must be
    discarded. Otherwise no record had to be discarded.
    """
    entries = np.concatenate([*chunks, np.empty((0, 3), np.uint64)])
    findings, results = Findings(), np.empty(len(entries), np.uint8)
    table = np.full(1 << max(3, (2 * len(entries) - 1).bit_length()), -1, np.int64)
    first = np.uint64(max(first_dirty_offset, 0))
    findings.counts["keys"] = int(_check_entries(entries, first, was_cleaned, table, results))
    totals = np.bincount(results, minlength=4 * _MAX_REASONS).tolist()
    for number, reason in enumerate(KEY_REASONS):
        findings.counts[reason.name] = totals[_DISCARDED + number]
        for result, (kind, detail) in (
            (_LOST + number, reason.if_lost),
            (_WRONGLY_RETAINED + number, reason.if_retained),
        ):
            if totals[result]:
                for offset in np.sort(entries[results == result, 2])[:EXAMPLES].tolist():
                    findings.add(kind, detail, offset=offset)
                # All of them, in place of the listed ones that ``add`` counted. Each kind belongs to one
                # reason.
                findings.problem_counts[kind] = totals[result]
    return findings
