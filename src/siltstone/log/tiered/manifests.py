"""Parses the ``.rsm-manifest`` of a remote segment (``SegmentManifestV1`` of Aiven's plugin).

A manifest is JSON::

    {"version": "1", "compression": true, "encryption": {…}?,
     "chunkIndex": {"type": "variable", "originalChunkSize": 4194304, "originalFileSize": 1073741000,
                    "transformedChunks": "…"},
     "segmentIndexes": {"offset": {"position": 0, "size": 400}, "timestamp": …, "producerSnapshot": …,
                        "leaderEpoch": …, "transaction": null},
     "remoteLogSegmentMetadata": {"remoteLogSegmentId": {"topicIdPartition": {"topicId": …,
         "topicPartition": {"topic": …, "partition": 0}}, "id": …}, "startOffset": 0, "endOffset": 1019,
         "maxTimestampMs": …, "brokerId": …, "eventTimestampMs": …, "segmentLeaderEpochs": {"0": 0}}}

A segment's log is cut into chunks of ``originalChunkSize`` bytes, the last one with the rest. Each chunk is
compressed by itself, as one zstd frame with its size, and the frames follow each other in the ``.log``
object. Without compression the object is the log itself, and ``chunkIndex`` is of type ``fixed``, with
``transformedChunkSize`` and ``finalTransformedChunkSize``. ``transformedChunks`` has the sizes of the frames,
in base64 of a zstd frame of ``ChunkSizesBinaryCodec``, big-endian::

    count int32 | base int32 | bytes per value int8 | (count - 1) times: value - base | last value int32
    1 int32 | the only value int32
    0 int32

The last chunk, which is usually shorter, has a value of its own. Nothing in a manifest is trusted: sizes must
agree with each other and with the sizes of the two objects (``.log``, ``.indexes``), so that no number in it
makes a reader allocate or fetch more than the objects have.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from siltstone.base.config import LONG_MAX
from siltstone.base.errors import CorruptFileError, DirectoryRefusedError
from siltstone.base.files.joined import ChunkTable

LARGEST_MANIFEST = 16 << 20
"""Bytes of a manifest at most: the plugin's chunk sizes take up to 10 MiB before they are compressed."""
_LARGEST_SIZES = 10 << 20
"""Bytes that ``transformedChunks`` may decompress to; a chunk's size takes 1 to 4 of them."""
_LARGEST_CHUNK = 256 << 20
"""Bytes that one chunk may decompress to: a reader has it whole in memory. The plugin's default is 4 MiB."""
_INT32_MAX = (1 << 31) - 1
_EPOCH = re.compile("[0-9]{1,10}")
# Name of an index in a manifest → its kind (``layouts``).
_INDEX_KINDS = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader_epoch_checkpoint",
    "transaction": "txnindex",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentManifest:
    """The content of a manifest.

    ``log_size``: bytes of the segment's log. ``chunks``: None if the ``.log`` object is the log itself.
    ``indexes``: kind → (position, size) in the ``.indexes`` object. ``end_offset``: the last offset,
    included. ``epochs``: (leader epoch, its first offset in the segment). ``event_ms``: when the segment was
    copied.
    """

    log_size: int
    chunks: ChunkTable | None
    indexes: Mapping[str, tuple[int, int]]
    topic: str
    partition: int
    topic_id: str
    segment_id: str
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    event_ms: int


class _Json:
    """A JSON value of the manifest, with its place there (``name``, such as ``chunkIndex.type``) for errors.

    Its methods check the value's type, and raise CorruptFileError for the manifest if it is wrong.
    """

    def __init__(self, path: str, name: str, value: Any) -> None:
        self.path, self.name, self.value = path, name, value

    def error(self, reason: str) -> CorruptFileError:
        """An error that says this of the value: "the manifest's NAME" and then ``reason``."""
        return CorruptFileError(self.path, 0, f"the manifest's {self.name or 'text'} {reason}")

    def part(self, name: str) -> _Json:
        """The member ``name`` of an object; its value is None if there is none."""
        if not isinstance(self.value, dict):
            raise self.error("is not an object")
        return _Json(self.path, f"{self.name}.{name}" if self.name else name, self.value.get(name))

    def number(self, low: int = 0, high: int = _INT32_MAX) -> int:
        """An integer from ``low`` to ``high``."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.error("is not a whole number")
        if not low <= self.value <= high:
            raise self.error(f"is {self.value}; it must be from {low} to {high}")
        return self.value

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.error("is not a text")
        return self.value


def parse_manifest(data: bytes, path: str, *, stored_size: int, indexes_size: int) -> SegmentManifest:
    """Parse a manifest. ``path``: of the manifest. ``stored_size``, ``indexes_size``: bytes of the ``.log``
    and ``.indexes`` objects.

    Raises CorruptFileError; DirectoryRefusedError for a segment that is encrypted, or of another version.
    """
    try:
        root = _Json(path, "", json.loads(data))
    except (ValueError, RecursionError):
        raise CorruptFileError(path, 0, "the manifest is not JSON") from None
    version = root.part("version").value
    if version != "1":
        reason = f"the manifest has version {str(version)[:20]!r}; only version 1 is known"
        raise DirectoryRefusedError(reason, path=path, advice="read these records through the broker")
    if root.part("encryption").value is not None:
        reason = "the remote segment is encrypted, and only the broker's plugin has the key"
        raise DirectoryRefusedError(reason, path=path, advice="read these records through the broker")
    is_compressed = root.part("compression").value
    if not isinstance(is_compressed, bool):
        raise root.part("compression").error("is neither true nor false")
    log_size, chunks = _chunks(root.part("chunkIndex"), stored_size, is_compressed=is_compressed)
    metadata = root.part("remoteLogSegmentMetadata")
    segment = metadata.part("remoteLogSegmentId")
    partition = segment.part("topicIdPartition")
    start_offset = metadata.part("startOffset").number(high=LONG_MAX)
    return SegmentManifest(
        log_size=log_size,
        chunks=chunks,
        indexes=_indexes(root.part("segmentIndexes"), indexes_size),
        topic=partition.part("topicPartition").part("topic").text(),
        partition=partition.part("topicPartition").part("partition").number(),
        topic_id=partition.part("topicId").text(),
        segment_id=segment.part("id").text(),
        start_offset=start_offset,
        end_offset=metadata.part("endOffset").number(low=start_offset, high=LONG_MAX),
        epochs=_epochs(metadata.part("segmentLeaderEpochs")),
        event_ms=metadata.part("eventTimestampMs").number(low=-1, high=LONG_MAX),
    )


def _epochs(epochs: _Json) -> tuple[tuple[int, int], ...]:
    """``segmentLeaderEpochs``, {"EPOCH": first offset}, as ascending pairs."""
    if not isinstance(epochs.value, dict):
        raise epochs.error("is not an object")
    pairs = []
    for name in epochs.value:
        if not _EPOCH.fullmatch(name) or int(name) > _INT32_MAX:
            raise epochs.error(f"has {name[:20]!r}, which is no leader epoch")
        pairs.append((int(name), epochs.part(name).number(high=LONG_MAX)))
    return tuple(sorted(pairs))


def _indexes(indexes: _Json, indexes_size: int) -> dict[str, tuple[int, int]]:
    """``segmentIndexes``: kind → (position, size); each index must be within the ``.indexes`` object."""
    ranges = {}
    for name, kind in _INDEX_KINDS.items():
        index = indexes.part(name)
        if index.value is None and name == "transaction":
            continue
        position, size = index.part("position").number(), index.part("size").number()
        if position + size > indexes_size:
            reason = f"ends at byte {position + size}, and the indexes have {indexes_size} bytes"
            raise index.error(reason)
        ranges[kind] = position, size
    return ranges


def _chunks(chunk_index: _Json, stored_size: int, *, is_compressed: bool) -> tuple[int, ChunkTable | None]:
    """``chunkIndex``: (bytes of the log, its chunks; None if the ``.log`` object is the log itself).
    ``stored_size``: bytes of that object."""
    log_size, chunk_size = (
        chunk_index.part("originalFileSize").number(),
        chunk_index.part("originalChunkSize").number(low=1),
    )
    count = -(-log_size // chunk_size)  # rounded up
    kind = chunk_index.part("type").value
    if kind == "fixed":
        regular, last = (
            chunk_index.part(name).number() for name in ("transformedChunkSize", "finalTransformedChunkSize")
        )
        last_size = log_size - (count - 1) * chunk_size if count else 0
        # Plain: the stored sizes are those of the chunks. The regular size has no meaning for a single chunk.
        is_plain = (last == last_size or not count) and (regular == chunk_size or count < 2)
        if is_compressed or not is_plain:
            raise chunk_index.error("has fixed sizes that are not those of chunks without compression")
        stored = log_size
    elif kind == "variable":
        sizes = _variable_sizes(chunk_index.part("transformedChunks"))
        if len(sizes) != count:
            raise chunk_index.error(
                f"has {len(sizes)} chunks; {log_size} bytes in pieces of {chunk_size} are {count}"
            )
        stored = int(sizes.sum())
    else:
        raise chunk_index.part("type").error("is neither fixed nor variable")
    if stored != stored_size:
        raise chunk_index.error(f"has chunks of {stored} bytes together, but the object has {stored_size}")
    if kind == "fixed":
        return log_size, None
    if not is_compressed:
        raise chunk_index.error("has chunks of different sizes, but says that they are not compressed")
    if min(chunk_size, log_size) > _LARGEST_CHUNK:
        raise chunk_index.error(f"has chunks of {chunk_size} bytes; at most {_LARGEST_CHUNK} are read")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return log_size, ChunkTable(chunk_size=chunk_size, log_size=log_size, starts=starts)


def _variable_sizes(sizes: _Json) -> npt.NDArray[np.int64]:
    """``transformedChunks``: the sizes of the stored chunks in bytes, int64, none below 0."""
    try:
        packed = base64.b64decode(sizes.text(), validate=True)
        declared = zstandard.get_frame_parameters(packed).content_size
        if not 0 <= declared <= _LARGEST_SIZES:
            raise sizes.error(
                f"says that it decompresses to {declared} bytes; at most {_LARGEST_SIZES} are read"
            )
        data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_LARGEST_SIZES)
    except (binascii.Error, zstandard.ZstdError, ValueError):
        raise sizes.error("is not base64 of a zstd frame") from None
    try:
        return _decode_sizes(data)
    except (ValueError, struct.error):
        raise sizes.error(f"is not a list of chunk sizes ({len(data)} bytes)") from None


def _decode_sizes(data: bytes) -> npt.NDArray[np.int64]:
    """Decode ``ChunkSizesBinaryCodec``. Raises ValueError, struct.error."""
    (count,) = struct.unpack_from(">i", data)
    if count < 2:
        if count < 0 or len(data) != 4 + 4 * count:
            raise ValueError
        values = np.array(struct.unpack_from(f">{count}i", data, 4), np.int64)
    else:
        base, width = struct.unpack_from(">iB", data, 4)
        # 13: the fixed fields, which are count (4), base (4), bytes per value (1) and the last value (4).
        if width not in (1, 2, 3, 4) or len(data) != 13 + (count - 1) * width:
            raise ValueError
        digits = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(count - 1, width)
        values = np.empty(count, np.int64)
        values[:-1] = digits.astype(np.int64) @ (256 ** np.arange(width - 1, -1, -1, dtype=np.int64)) + base
        (values[-1],) = struct.unpack_from(">i", data, len(data) - 4)
    if len(values) and (values.min() < 0 or values.max() > _INT32_MAX):
        raise ValueError
    return values
