"""Transaction markers: Kafka's own are read, and made again byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.base.records.control import (
    EndTransactionMarker,
    end_transaction_marker,
    parse_marker,
    read_batch_marker,
)
from siltstone.base.records.layout import CHECKSUM_START, CONTROL_BIT, Bytes
from siltstone.base.records.scan import scan_batches
from tests.support.errors import raises_error


def test_kafkas_markers_are_made_again(golden: Path) -> None:
    commits = []
    for path in sorted((golden / "txn" / "before").glob("*.log")):
        data = np.frombuffer(path.read_bytes(), np.uint8).copy()
        batches = scan_batches(data).batches
        for row in np.flatnonzero(batches["attributes"] & CONTROL_BIT).tolist():
            batch = batches[row]
            marker = read_batch_marker(data, batches, row)
            assert marker is not None
            rebuilt = end_transaction_marker(
                is_commit=marker.is_commit,
                producer_id=int(batch["producer_id"]),
                producer_epoch=int(batch["producer_epoch"]),
                coordinator_epoch=marker.coordinator_epoch,
                timestamp_ms=int(batch["max_timestamp"]),
            )
            stored = data[batch["position"] : batch["position"] + batch["size"]]
            assert rebuilt[CHECKSUM_START:].tobytes() == stored[CHECKSUM_START:].tobytes()
            assert rebuilt[16:21].tobytes() == stored[16:21].tobytes()
            commits.append(marker.is_commit)
    assert {True, False} == set(commits) and len(commits) > 10


@pytest.mark.parametrize(
    ("key", "value", "marker"),
    [
        (bytes(4), bytes(6), EndTransactionMarker(is_commit=False, coordinator_epoch=0)),
        (b"\0\0\0\1", b"\0\0\0\0\1\0", EndTransactionMarker(is_commit=True, coordinator_epoch=256)),
        (
            b"\0\7\0\1more",
            b"\0\7\xff\xff\xff\xffmore",
            EndTransactionMarker(is_commit=True, coordinator_epoch=-1),
        ),
        (b"\0\0\0\2", None, None),
        (b"\0\0\xff\xff", b"", None),
    ],
)
def test_control_records_are_parsed_as_kafka_does(
    key: bytes, value: bytes | None, marker: EndTransactionMarker | None
) -> None:
    assert parse_marker(key, value) == marker


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (b"\0\0\0", bytes(6)),
        (b"\xff\xff\0\0", bytes(6)),
        (bytes(4), None),
        (bytes(4), bytes(5)),
        (bytes(4), b"\x80" + bytes(5)),
    ],
)
def test_a_malformed_marker_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"control record|marker"):
        parse_marker(key, value)


def control(count: int) -> Bytes:
    return build_batch(
        NewBatchHeader(control=True, transactional=True, producer_id=1),
        offset=np.zeros(count, np.int64),
        timestamp=np.zeros(count, np.int64),
        keys=Spans.of([b"no"] * count),
        values=Spans.of([b"no"] * count),
        last_offset=0,
    )


def test_an_emptied_control_batch_ends_nothing() -> None:
    data = control(0)
    assert read_batch_marker(data, scan_batches(data).batches, 0) is None


def test_a_malformed_marker_is_refused_with_its_position() -> None:
    data = control(1)
    with raises_error(CorruptRecordError, path="x.log", position=40):
        read_batch_marker(data, scan_batches(data).batches, 0, "x.log", 40)
