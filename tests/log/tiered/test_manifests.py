"""Manifests of remote segments: what the plugin writes is read, and nothing else is trusted."""

from __future__ import annotations

import base64
import json
import random
import struct
from typing import Any

import numpy as np
import pytest
import zstandard

from siltstone.base.errors import CorruptFileError, DirectoryRefusedError
from siltstone.log.tiered.manifests import SegmentManifest, parse_manifest
from tests.support.tiered import encode_sizes

PATH = "s3://bucket/topic-id/0/x.rsm-manifest"
SIZES_10_20_30 = "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe"
"""The sizes 10, 20 and 30, as the plugin's own tests have them."""


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1",
        "chunkIndex": {
            "type": "variable",
            "originalChunkSize": 100,
            "originalFileSize": 250,
            "transformedChunks": SIZES_10_20_30,
        },
        "segmentIndexes": {
            "offset": {"position": 0, "size": 8},
            "timestamp": {"position": 8, "size": 12},
            "producerSnapshot": {"position": 20, "size": 10},
            "leaderEpoch": {"position": 30, "size": 10},
            "transaction": None,
        },
        "compression": True,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": "lZ6vvmajTWKDBUTV6SQAtQ",
                    "topicPartition": {"topic": "topic1", "partition": 42},
                },
                "id": "adh9f8BMS4anaUnD8KWfWg",
            },
            "startOffset": 0,
            "endOffset": 1000,
            "maxTimestampMs": 1_000_000_000,
            "brokerId": 2,
            "eventTimestampMs": 2_000_000_000,
            "segmentLeaderEpochs": {"10": 300, "0": 100, "1": 200},
        },
    } | changes


def parsed(document: Any, stored_size: int = 60) -> SegmentManifest:
    return parse_manifest(json.dumps(document).encode(), PATH, stored_size=stored_size, indexes_size=40)


def with_chunks(**changes: Any) -> dict[str, Any]:
    return manifest(chunkIndex=manifest()["chunkIndex"] | changes)


def packed(data: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


def test_what_the_plugin_writes_is_read() -> None:
    segment = parsed(manifest())
    assert segment.chunks is not None
    assert (segment.log_size, segment.chunks.chunk_size, segment.chunks.starts.tolist()) == (
        250,
        100,
        [0, 10, 30, 60],
    )
    assert segment.indexes == {
        "index": (0, 8),
        "timeindex": (8, 12),
        "snapshot": (20, 10),
        "leader_epoch_checkpoint": (30, 10),
    }
    assert (segment.topic, segment.partition, segment.topic_id) == ("topic1", 42, "lZ6vvmajTWKDBUTV6SQAtQ")
    assert (segment.segment_id, segment.start_offset, segment.end_offset) == (
        "adh9f8BMS4anaUnD8KWfWg",
        0,
        1000,
    )
    assert segment.epochs == ((0, 100), (1, 200), (10, 300))


def test_a_log_without_compression_is_the_object_itself() -> None:
    fixed = {"type": "fixed", "transformedChunkSize": 100, "finalTransformedChunkSize": 50}
    segment = parsed(with_chunks(**fixed) | {"compression": False}, stored_size=250)
    assert (segment.log_size, segment.chunks) == (250, None)


@pytest.mark.parametrize(
    "sizes", [[], [7], [0, 1000, 2, 44002, 369], [2**31 - 1, 2**31 - 2, 10], [1, 2**25, 3]]
)
def test_lists_of_sizes_come_back(sizes: list[int]) -> None:
    chunks = {"originalChunkSize": 1, "originalFileSize": len(sizes)}
    document = with_chunks(transformedChunks=packed(encode_sizes(sizes)), **chunks)
    segment = parsed(document, stored_size=sum(sizes))
    assert segment.chunks is not None
    assert np.diff(segment.chunks.starts).tolist() == sizes


def test_random_lists_of_sizes_come_back() -> None:
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    for _ in range(50):
        largest = 1 << numbers.randrange(1, 31)
        sizes = [numbers.randrange(largest) for _ in range(numbers.randrange(40))]
        chunks = {"originalChunkSize": 3, "originalFileSize": 3 * len(sizes)}
        document = with_chunks(transformedChunks=packed(encode_sizes(sizes)), **chunks)
        stored_chunks = parsed(document, stored_size=sum(sizes)).chunks
        assert stored_chunks is not None, seed
        assert stored_chunks.starts.tolist()[-1] == sum(sizes), seed


def bomb() -> str:
    return packed(struct.pack(">iiB", 1 << 27, 0, 1) + bytes(64 << 20))


WRONG = {
    "no object": [1],
    "negative chunk size": with_chunks(originalChunkSize=-100),
    "no chunk size": with_chunks(originalChunkSize=0),
    "negative file size": with_chunks(originalFileSize=-1),
    "a size that is no number": with_chunks(originalFileSize="250"),
    "a size that is true": with_chunks(originalFileSize=True),
    "a size of 2 GiB": with_chunks(originalFileSize=1 << 31),
    "a fraction": with_chunks(originalFileSize=250.5),
    "more chunks than the file has": with_chunks(originalFileSize=100),
    "two billion chunks": with_chunks(originalChunkSize=1, originalFileSize=(1 << 31) - 1),
    "two billion fixed chunks": with_chunks(
        type="fixed",
        originalChunkSize=1,
        originalFileSize=(1 << 31) - 1,
        transformedChunkSize=1,
        finalTransformedChunkSize=1,
    )
    | {"compression": False},
    "fixed chunks with compression": with_chunks(
        type="fixed", transformedChunkSize=100, finalTransformedChunkSize=50
    ),
    "fixed chunks of another size": with_chunks(
        type="fixed", transformedChunkSize=110, finalTransformedChunkSize=60
    )
    | {"compression": False},
    "sizes that are no base64": with_chunks(transformedChunks="%%%"),
    "sizes with another character": with_chunks(transformedChunks=f"%{SIZES_10_20_30}"),
    "sizes that are no zstd": with_chunks(transformedChunks=base64.b64encode(bytes(20)).decode()),
    "truncated sizes": with_chunks(transformedChunks=SIZES_10_20_30[:16]),
    "sizes that decompress to 64 MiB": with_chunks(transformedChunks=bomb()),
    "a count without values": with_chunks(transformedChunks=packed(struct.pack(">iiB", 1 << 30, 0, 1))),
    "a negative count": with_chunks(transformedChunks=packed(struct.pack(">i", -5))),
    "a negative size": with_chunks(transformedChunks=packed(struct.pack(">iiB3sI", 3, -20, 1, b"\0\0", 30))),
    "bytes after the sizes": with_chunks(transformedChunks=packed(encode_sizes([10, 20, 30]) + b"\0")),
    "sizes of another object": with_chunks(transformedChunks=packed(encode_sizes([10, 20, 31]))),
    "another type": with_chunks(type="other"),
    "compression that is no bool": manifest(compression="yes"),
    "an index outside of its object": manifest(
        segmentIndexes=manifest()["segmentIndexes"] | {"offset": {"position": 36, "size": 8}}
    ),
    "an index before its object": manifest(
        segmentIndexes=manifest()["segmentIndexes"] | {"offset": {"position": -8, "size": 8}}
    ),
    "no index": manifest(segmentIndexes={}),
    "no segment": manifest(remoteLogSegmentMetadata=None),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_agree_is_refused(case: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        parsed(WRONG[case])
    assert caught.value.path == PATH
    assert "manifest" in caught.value.reason
    assert len(caught.value.reason) < 200


@pytest.mark.parametrize(("regular", "last"), [(110, 50), (100, 60)])
def test_chunks_of_another_size_are_not_the_log_itself(regular: int, last: int) -> None:
    fixed = {"type": "fixed", "transformedChunkSize": regular, "finalTransformedChunkSize": last}
    with pytest.raises(CorruptFileError, match="fixed sizes that are not those"):
        parsed(with_chunks(**fixed) | {"compression": False}, stored_size=250)


@pytest.mark.parametrize("sizes", [[], [60]])
def test_bytes_after_a_short_list_of_sizes_are_refused(sizes: list[int]) -> None:
    chunks = {"originalFileSize": 100 * len(sizes), "transformedChunks": packed(encode_sizes(sizes) + b"\0")}
    with pytest.raises(CorruptFileError, match="not a list of chunk sizes"):
        parsed(with_chunks(**chunks), stored_size=sum(sizes))


def test_the_end_of_an_index_is_named() -> None:
    indexes = manifest()["segmentIndexes"] | {"offset": {"position": 36, "size": 8}}
    with pytest.raises(CorruptFileError, match="ends at byte 44, and the indexes have 40 bytes"):
        parsed(manifest(segmentIndexes=indexes))


@pytest.mark.parametrize(
    "changes",
    [
        {"startOffset": -1},
        {"startOffset": 5, "endOffset": 4},
        {"endOffset": 1 << 63},
        {"eventTimestampMs": -2},
        {"segmentLeaderEpochs": []},
        {"segmentLeaderEpochs": {"-1": 0}},
        {"segmentLeaderEpochs": {"0": -1}},
        {"segmentLeaderEpochs": {"99999999999": 1}},
        {"segmentLeaderEpochs": {"1" * 5000: 1}},
    ],
)
def test_what_a_manifest_says_of_its_segment_is_checked(changes: dict[str, Any]) -> None:
    metadata = manifest()["remoteLogSegmentMetadata"] | changes
    with pytest.raises(CorruptFileError):
        parsed(manifest(remoteLogSegmentMetadata=metadata))


def test_chunks_that_no_memory_has_are_refused() -> None:
    size = (1 << 31) - 1
    chunks = {
        "originalChunkSize": size,
        "originalFileSize": size,
        "transformedChunks": packed(encode_sizes([60])),
    }
    with pytest.raises(CorruptFileError, match="at most 268435456 are read"):
        parsed(with_chunks(**chunks))


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff", b'{"version": "1", "version"'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_manifest(text, PATH, stored_size=1, indexes_size=1)


def test_an_encrypted_segment_and_another_version_are_refused_with_what_to_do() -> None:
    encryption = {"dataKey": "key:SECRET", "aad": "CgsMDQ=="}
    for document in (manifest(encryption=encryption), manifest(version="2"), manifest(version=None)):
        with pytest.raises(DirectoryRefusedError) as caught:
            parsed(document)
        assert caught.value.advice == "read these records through the broker"
        assert "SECRET" not in str(caught.value)
