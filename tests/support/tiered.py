"""Tiered storages for tests: what a broker's plugin would have copied of a log directory of Siltstone's.

`TieredLog` moves the closed segments of a partition into a storage, in one of the two layouts, as a stopped
broker would have left it. The encoder of manifests is written from the plugin's documentation and shares
nothing with the parser.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard

import siltstone as st

TOPIC = "orders"
TOPIC_ID_LINE = "topic_id:"
Put = Callable[[str, bytes], None]


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """The plugin's binary list of chunk sizes."""
    if len(sizes) < 2:
        return struct.pack(f">{len(sizes) + 1}i", len(sizes), *sizes)
    base = min(sizes[:-1])
    largest = max(sizes[:-1]) - base
    width = max((largest.bit_length() + 7) // 8, 1)
    values = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return struct.pack(">iiB", len(sizes), base, width) + values + struct.pack(">i", sizes[-1])


def encode_chunks(data: bytes, chunk_size: int, *, compressed: bool) -> tuple[bytes, dict[str, Any]]:
    """(the stored bytes, the manifest's chunkIndex)."""
    index: dict[str, Any] = {
        "type": "variable" if compressed else "fixed",
        "originalChunkSize": chunk_size,
        "originalFileSize": len(data),
    }
    chunks = [data[at : at + chunk_size] for at in range(0, len(data), chunk_size)]
    if not compressed:
        last = len(chunks[-1]) if chunks else 0
        return data, index | {"transformedChunkSize": chunk_size, "finalTransformedChunkSize": last}
    frames = [zstandard.ZstdCompressor().compress(chunk) for chunk in chunks]
    sizes = zstandard.ZstdCompressor().compress(encode_sizes([len(frame) for frame in frames]))
    return b"".join(frames), index | {"transformedChunks": base64.b64encode(sizes).decode()}


def segment_id(number: int) -> str:
    """An id of a segment."""
    return base64.urlsafe_b64encode(b"segment%09d" % number).rstrip(b"=").decode()


@dataclass(kw_only=True)
class TieredLog:
    """A log directory whose segments go into a storage. ``put``: puts a file of the storage by its key."""

    directory: Path
    put: Put
    layout: str = "aiven"
    compressed: bool = True
    chunk_size: int = 4096
    copied: list[str] = field(default_factory=list)

    @property
    def partition(self) -> Path:
        return self.directory / f"{TOPIC}-0"

    @property
    def topic_id(self) -> str:
        text = (self.partition / "partition.metadata").read_text()
        return text.split(TOPIC_ID_LINE)[1].split()[0]

    @property
    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.partition.glob("*.log"))

    def write(self, count: int = 600, *, segment_bytes: int = 16_384, keys: int = 41) -> None:
        """Make the directory with one topic of several segments."""
        with st.open(self.directory, mode="a") as logs:
            settings = {"segment.bytes": str(segment_bytes), "index.interval.bytes": "1000"}
            logs.topics.create(TOPIC, 1, settings)
            for number in range(count):
                value = b"value %d of a text that repeats, repeats and repeats" % number
                logs.send(TOPIC, value * 4, key=b"%d" % (number % keys))

    def tier(self, keep: int = 2, *, remove: bool = True) -> None:
        """Copy all segments but the last, and remove all local ones but the last ``keep``."""
        bases = self.bases
        epochs = self._epochs()
        for number, (base, after) in enumerate(itertools.pairwise(bases)):
            self.copy(base, after - 1, segment_id(number), epochs)
        for base in bases[:-keep] if remove else ():
            for path in self.partition.glob(f"{base:020d}.*"):
                path.unlink()

    def _epochs(self) -> dict[int, int]:
        path = self.partition / "leader-epoch-checkpoint"
        lines = path.read_text().split("\n")[2:] if path.exists() else []
        return {int(line.split()[0]): int(line.split()[1]) for line in lines if line}

    def copy(self, base: int, end: int, its_id: str, epochs: dict[int, int]) -> None:
        """Copy one segment."""
        parts = {
            kind: path.read_bytes() if (path := self.partition / f"{base:020d}.{kind}").exists() else b""
            for kind in ("log", "index", "timeindex", "txnindex")
        }
        snapshot = self.partition / f"{end + 1:020d}.snapshot"
        parts["snapshot"] = snapshot.read_bytes() if snapshot.exists() else b""
        checkpoint = "".join(f"{epoch} {offset}\n" for epoch, offset in epochs.items())
        parts["leader_epoch_checkpoint"] = f"0\n{len(epochs)}\n{checkpoint}".encode()
        name = f"{base:020d}-{its_id}"
        if self.layout == "local":
            for kind, data in parts.items():
                if data or kind != "txnindex":
                    self.put(f"{TOPIC}-0-{self.topic_id}/{name}.{kind}", data)
            return
        self.put_aiven(name, base, end, its_id, epochs, parts)

    def copy_batches(
        self, batches: Sequence[bytes], its_id: str, epochs: dict[int, int], *, aborted: bytes = b""
    ) -> None:
        """Copy some batches as if they were a segment, with an index; ``aborted``: its transaction index."""
        base, end = offsets_of(batches[0])[0], offsets_of(batches[-1])[1]
        index, position = b"", 0
        for batch in batches:
            index += struct.pack(">ii", offsets_of(batch)[1] - base, position)
            position += len(batch)
        empty = b"0\n0\n"
        with tempfile.TemporaryDirectory() as folder:
            other = replace(self, directory=Path(folder))
            other.partition.mkdir()
            shutil.copy(self.partition / "partition.metadata", other.partition)
            (other.partition / f"{base:020d}.log").write_bytes(b"".join(batches))
            (other.partition / f"{base:020d}.index").write_bytes(index)
            if aborted:
                (other.partition / f"{base:020d}.txnindex").write_bytes(aborted)
            (other.partition / "leader-epoch-checkpoint").write_bytes(empty)
            other.copy(base, end, its_id, epochs)

    def put_aiven(
        self, name: str, base: int, end: int, its_id: str, epochs: dict[int, int], parts: dict[str, bytes]
    ) -> None:
        stored, chunks = encode_chunks(parts["log"], self.chunk_size, compressed=self.compressed)
        indexes, data = {}, b""
        kinds = ("index", "timeindex", "snapshot", "leader_epoch_checkpoint", "txnindex")
        names = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")
        for kind, key in zip(kinds, names, strict=True):
            indexes[key] = {"position": len(data), "size": len(parts[kind])}
            data += parts[kind]
        if not parts["txnindex"]:
            indexes["transaction"] = None  # type: ignore[assignment]
        topic = {"topicId": self.topic_id, "topicPartition": {"topic": TOPIC, "partition": 0}}
        manifest = {
            "version": "1",
            "chunkIndex": chunks,
            "segmentIndexes": indexes,
            "compression": self.compressed,
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {"topicIdPartition": topic, "id": its_id},
                "startOffset": base,
                "endOffset": end,
                "maxTimestampMs": 0,
                "brokerId": 1,
                "eventTimestampMs": 1_700_000_000_000,
                "segmentLeaderEpochs": {str(epoch): max(offset, base) for epoch, offset in epochs.items()},
            },
        }
        folder = f"{TOPIC}-{self.topic_id}/0"
        self.put(f"{folder}/{name}.log", stored)
        self.put(f"{folder}/{name}.indexes", data)
        self.put(f"{folder}/{name}.rsm-manifest", json.dumps(manifest).encode())
        self.copied.append(f"{folder}/{name}")


def batches_of(data: bytes) -> list[bytes]:
    """The batches of a segment."""
    found, position = [], 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        found.append(data[position:end])
        position = end
    return found


def offsets_of(batch: bytes) -> tuple[int, int]:
    """(first, last) offset of a batch."""
    base = int.from_bytes(batch[:8], "big")
    return base, base + int.from_bytes(batch[23:27], "big")


def at_offset(batch: bytes, offset: int) -> bytes:
    """The batch with other offsets, which its checksum does not cover."""
    return offset.to_bytes(8, "big") + batch[8:]


def put_below(root: Path) -> Put:
    """Puts files below a directory of this machine."""

    def put(key: str, data: bytes) -> None:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return put
