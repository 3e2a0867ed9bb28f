"""Hashes of keys: compaction compares keys by SipHash, and murmur2 chooses the partition of a key.

SipHash-2-4 with 128 bits of output (Aumasson and Bernstein) is a keyed hash: without its secret key (``k0``,
``k1``) it is not possible to choose keys that collide. ``siphash128`` hashes one key. ``siphash128_each``
hashes many keys, ``LANES`` of them side by side: LLVM turns a step of all lanes into vector instructions,
which halves the time per key.
"""

from __future__ import annotations

import numpy as np

from siltstone.base.records.kernel import kernel
from siltstone.base.records.layout import Bytes, Flags, Int32, Int64, Words
from siltstone.base.records.varint import byte_of_word, load_word

LANES = 64
"""How many keys are hashed side by side, one in each lane."""
_MAX_LANE_KEY_SIZE = 128
"""Size in bytes of the longest key that is hashed in a lane: all lanes take as many steps as the longest key
needs."""
# SipHash's initial state, which the secret key is mixed into. The constants 0xEE and 0xDD select its 128-bit
# form.
_V0, _V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
_V2, _V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)


@kernel
def _rotate_left(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotate_left(v1, 13) ^ v0
    v0 = _rotate_left(v0, 32)
    v2 += v3
    v3 = _rotate_left(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate_left(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate_left(v1, 17) ^ v2
    v2 = _rotate_left(v2, 32)
    return v0, v1, v2, v3


@kernel
def _four_rounds(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0, v1, v2, v3


@kernel
def siphash128(
    data: Bytes, start: int, size: int, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """SipHash-2-4 of ``data[start:start + size]`` with the secret key (``k0``, ``k1``): (low, high) half."""
    v0, v1, v2, v3 = k0 ^ _V0, k1 ^ _V1, k0 ^ _V2, k1 ^ _V3
    position = np.uint64(start)
    for _ in range(size >> 3):
        word = load_word(data, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += np.uint64(8)
    # The last word: the up to seven bytes that are left, and the size in the highest byte.
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for i in range(size & 7):
        word |= byte_of_word(data, position, i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    v0, v1, v2, v3 = _four_rounds(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    v0, v1, v2, v3 = _four_rounds(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel
def _load_words(
    data: Bytes, starts: Int32, sizes: Int32, key_position: int, words: Words, is_active: Flags
) -> None:
    """Load the word at ``key_position`` in every lane's key; ``is_active`` becomes False where the key has
    ended, and the lane's word stays as it was."""
    for j in range(LANES):
        left = sizes[j] - key_position
        position = np.uint64(starts[j] + key_position)
        if left >= 8:
            words[j] = load_word(data, position)
        elif left >= 0:
            word = np.uint64(sizes[j] & 0xFF) << np.uint64(56)
            for i in range(left):
                word |= byte_of_word(data, position, i)
            words[j] = word
        is_active[j] = left >= 0


@kernel
def _compress_words(state: Words, words: Words, is_active: Flags) -> None:
    """SipHash's compression of one word in every active lane. ``state`` is v0 of all lanes, then v1, v2,
    v3."""
    for j in range(LANES):
        word = words[j]
        v0, v1, v2, v3 = _round(state[j], state[LANES + j], state[2 * LANES + j], state[3 * LANES + j] ^ word)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        # A lane whose key has ended computes the rounds too, and drops the result: with a branch around them
        # LLVM would use no vector instructions.
        if is_active[j]:
            state[j] = v0 ^ word
            state[LANES + j] = v1
            state[2 * LANES + j] = v2
            state[3 * LANES + j] = v3


@kernel
def _finish_lanes(state: Words, low: Words, high: Words) -> None:
    """SipHash's finalization of every lane; fills ``low`` and ``high`` with the halves of the hashes."""
    for j in range(LANES):
        v0, v1, v2, v3 = state[j], state[LANES + j], state[2 * LANES + j], state[3 * LANES + j]
        v2 ^= np.uint64(0xEE)
        v0, v1, v2, v3 = _four_rounds(v0, v1, v2, v3)
        low[j] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= np.uint64(0xDD)
        v0, v1, v2, v3 = _four_rounds(v0, v1, v2, v3)
        high[j] = v0 ^ v1 ^ v2 ^ v3


@kernel
def siphash128_each(
    data: Bytes, starts: Int32, sizes: Int32, k0: np.uint64, k1: np.uint64, low: Words, high: Words
) -> None:
    """``siphash128`` of many spans of ``data``; fills ``low`` and ``high`` (uint64, one a span)."""
    state, words = np.empty(4 * LANES, np.uint64), np.empty(LANES, np.uint64)
    is_active = np.empty(LANES, np.bool_)
    in_lanes = len(starts) // LANES * LANES  # as many as fill all lanes; the rest is hashed one by one below
    for first in range(0, in_lanes, LANES):
        end = first + LANES
        longest = sizes[first:end].max()
        if longest > _MAX_LANE_KEY_SIZE:
            # The other lanes would wait for the long key, so these keys are hashed one by one.
            for i in range(first, end):
                low[i], high[i] = siphash128(data, starts[i], sizes[i], k0, k1)
            continue
        state[:LANES] = k0 ^ _V0
        state[LANES : 2 * LANES] = k1 ^ _V1
        state[2 * LANES : 3 * LANES] = k0 ^ _V2
        state[3 * LANES :] = k1 ^ _V3
        # Every key has one word more than whole words of bytes: the last word holds the size.
        for key_position in range(0, longest + 1, 8):
            _load_words(data, starts[first:end], sizes[first:end], key_position, words, is_active)
            _compress_words(state, words, is_active)
        _finish_lanes(state, low[first:end], high[first:end])
    for i in range(in_lanes, len(starts)):
        low[i], high[i] = siphash128(data, starts[i], sizes[i], k0, k1)


# The partition of a key (Kafka's ``BuiltInPartitioner`` and ``Utils.murmur2``).

# murmur2's constants, as in ``Utils.murmur2``.
_SEED, _MULTIPLIER, _SHIFT = np.uint32(0x9747B28C), np.uint32(0x5BD1E995), np.uint32(24)


@kernel
def murmur2(data: Bytes, start: int, size: int) -> np.uint32:
    """The 32-bit hash of ``data[start:start + size]``: that of Kafka's Java client, as an unsigned number.

    numba computes products and shifts in 64 bits, so each result is converted to 32 bits again.
    """
    mixed = np.uint32(_SEED ^ np.uint32(size))
    words_end = start + (size & ~3)
    for at in range(start, words_end, 4):
        word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        word |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        word = np.uint32(word * _MULTIPLIER)
        word = np.uint32((word ^ (word >> _SHIFT)) * _MULTIPLIER)
        mixed = np.uint32(np.uint32(mixed * _MULTIPLIER) ^ word)
    # Up to three bytes are left. They are mixed in as one word; without them there is no multiplication.
    for at in range(start + size - 1, words_end - 1, -1):
        mixed = np.uint32(mixed ^ np.uint32(data[at]) << np.uint32(8 * (at - words_end)))
    if size & 3:
        mixed = np.uint32(mixed * _MULTIPLIER)
    mixed = np.uint32((mixed ^ (mixed >> np.uint32(13))) * _MULTIPLIER)
    return np.uint32(mixed ^ (mixed >> np.uint32(15)))


@kernel
def partitions_for_keys(data: Bytes, start: Int64 | Int32, size: Int32, partitions: int, out: Int32) -> None:
    """Fill ``out`` with the partition that Kafka's default partitioner chooses for each key, in a topic of
    ``partitions``; -1 for a null key (size -1)."""
    for row in range(len(start)):
        out[row] = -1
        if size[row] >= 0:
            # Kafka's ``Utils.toPositive``: the hash without its sign bit.
            positive = murmur2(data, start[row], size[row]) & np.uint32(0x7FFFFFFF)
            out[row] = positive % np.uint32(partitions)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner chooses for ``key`` in a topic of ``partitions``."""
    out, size = np.empty(1, np.int32), np.array([len(key)], np.int32)
    partitions_for_keys(np.frombuffer(key, np.uint8), np.zeros(1, np.int32), size, partitions, out)
    return int(out[0])
