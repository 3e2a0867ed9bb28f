"""Kafka's batch format as constants, and the batch headers that every reader shares.

An entry of a log is a record batch, or a message of magic 0 or 1.

A record batch (magic 2; ``DefaultRecordBatch`` in Kafka, KIP-98), all integers big-endian::

     0  base offset        8      23  last offset delta   4      51  producer epoch   2
     8  batch length       4      27  base timestamp      8      53  base sequence    4
    12  leader epoch       4      35  max timestamp       8      57  record count     4
    16  magic              1      43  producer id         8      61  records …
    17  CRC32C of 21…      4
    21  attributes         2      bits 0-2 codec · 3 timestamp type · 4 transactional · 5 control
                                  bit 6 delete horizon (the base timestamp holds it, KIP-534)

A message (magic 0 and 1, ``LegacyRecord``)::

     0  offset 8 · 8 size 4 · 12 CRC32 of 16… 4 · 16 magic 1 · 17 attributes 1
    18  timestamp 8 (magic 1 only) · key size 4, key · value size 4, value (-1: null)

The magic byte is at 16 in every version, so one scanner reads all of them.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

# Types of arrays. ``Flags`` has a bool for each row of another array.
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Int32 = npt.NDArray[np.int32]
BatchHeaders = npt.NDArray[np.void]
"""One row a batch, of dtype ``BATCH``."""

LOG_OVERHEAD = 12
"""Bytes of the offset and size fields before every entry, which its size field does not count."""
BATCH_OVERHEAD = 61
"""Bytes of a batch header."""
SIZE_POSITION = 8
LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
CHECKSUM_START = ATTRIBUTES_POSITION
"""The CRC32C covers the bytes of a batch from here on."""
LAST_OFFSET_DELTA_POSITION = 23
BASE_TIMESTAMP_POSITION = 27
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
COUNT_POSITION = 57
MESSAGE_CRC_POSITION = 12
MESSAGE_ATTRIBUTES_POSITION = 17
MESSAGE_TIMESTAMP_POSITION = 18
MESSAGE_OVERHEAD = (18, 26)
"""Bytes of a message before its key's size, by its magic."""
MIN_SIZE_FIELD = (14, 22, BATCH_OVERHEAD - LOG_OVERHEAD)
"""The smallest value of an entry's size field, by its magic."""
MIN_ENTRY_SIZE = LOG_OVERHEAD + MIN_SIZE_FIELD[0]
"""Bytes of the smallest entry there is: a message of magic 0 with neither key nor value."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1

HEADER = struct.Struct(">qiibIhiqqqhii")
"""All 61 bytes of a batch header, in the order of the drawing above."""

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("size", np.int32),
        ("count", np.int32),
        ("leader_epoch", np.int32),
        ("base_sequence", np.int32),
        ("crc", np.uint32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("magic", np.int8),
    ],
    align=True,
)
"""One row a batch. ``position`` counts from the scanned buffer's first byte; ``size`` is the whole
entry, its 12 bytes of offset and size included. A message (magic 0 or 1) has base = last = its offset as
stored, count -1 (unknown before it is decoded), its timestamp in both timestamps (-1 for magic 0, which has
none)."""


KEYS_PER_BYTE_MAX = 1
"""The most records with a key that a byte of a log has, as producers write them. The smallest takes 8 bytes.
zstd, the densest codec, packs about 0.7 of them into a byte if their keys differ, and 1.1 if all have one
key. A crafted batch may have more, whose merge takes so many times the memory."""


def keyed_records_max(offsets: int, size: int) -> int:
    """The most records with a key that a log with this span of offsets and of ``size`` bytes has: by this the
    memory, the tasks and the spill of what takes its keys are planned.

    Neither is enough alone: most offsets of an old compacted log have no record any more, and a batch of 100
    bytes may claim 2³¹ of them."""
    return min(max(offsets, 0), KEYS_PER_BYTE_MAX * size)


def have_delete_horizons(batches: BatchHeaders) -> npt.NDArray[np.bool_]:
    """Whether each batch has a delete horizon (KIP-534): bool. Its attribute bit 6 is set, and its base
    timestamp is the horizon.

    A negative delete horizon counts as none. Kafka never writes one
    (``MemoryRecordsBuilder.hasDeleteHorizonMs``), but its cleaner would treat it as passed. It can only be an
    overflowed now + delete.retention.ms, far in the future: so the tombstones of such a batch are retained,
    and the next cleaning that rewrites the batch sets a new delete horizon.
    """
    has_bit = (batches["attributes"] & DELETE_HORIZON_BIT) != 0
    return np.asarray(has_bit & (batches["base_timestamp"] >= 0) & (batches["magic"] == 2))


def codec_of(batches: BatchHeaders) -> npt.NDArray[np.int16]:
    """The codec number of each batch: int16."""
    return np.asarray(batches["attributes"] & CODEC_MASK)
