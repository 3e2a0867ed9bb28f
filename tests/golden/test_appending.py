"""Kafka's logs appended again batch by batch: its producer snapshots and transaction indexes come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.config import LogConfig
from siltstone.base.records.layout import CONTROL_BIT, Bytes
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.names import segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.segments import list_segments
from siltstone.log.validation import Origin, ValidatedBatches, validate_and_assign

SETS = ("txn", "idempotent", "idempotent_gzip")
CONFIG = LogConfig(policies=("compact",))


def stored_batches(log: Path) -> Iterator[Bytes]:
    data = np.frombuffer(log.read_bytes(), np.uint8)
    for batch in scan_batches(data).batches:
        yield data[batch["position"] : batch["position"] + batch["size"]].copy()


def bytes_of(directory: Path, base: int, kind: str) -> bytes:
    path = directory / segment_file(base, kind)
    return path.read_bytes() if path.exists() else b""


def append(
    states: ProducerStates, data: Bytes, origin: Origin, next_offset: int
) -> tuple[ValidatedBatches, bytes]:
    """What is written, and the entries of the transaction index that come of it."""
    validated = validate_and_assign(
        data, config=CONFIG, next_offset=next_offset, now_ms=1 << 50, leader_epoch=0, origin=origin
    )
    assert states.check(validated.batches, validated.data, origin=origin) is None
    aborted = states.update(validated.batches, validated.data)
    return validated, np.array([(0, *transaction) for transaction in aborted], TRANSACTION_ENTRY).tobytes()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("origin", [Origin.REPLICATION, Origin.CLIENT])
def test_snapshots_and_transaction_indexes(golden: Path, name: str, origin: Origin) -> None:
    directory, states, appended = golden / name / "before", ProducerStates(), 0
    for segment in list_segments(directory):
        if segment.base_offset:
            assert states.snapshot() == bytes_of(directory, segment.base_offset, "snapshot")
            assert states.end_offset == segment.base_offset
        entries = b""
        for stored in stored_batches(Path(segment.path)):
            data, who = stored.copy(), origin
            if origin is Origin.CLIENT:
                who = Origin.COORDINATOR if stored[22] & CONTROL_BIT else Origin.CLIENT
                data[:8] = 0
            validated, indexed = append(states, data, who, states.end_offset)
            assert validated.data.tobytes() == stored.tobytes()
            entries += indexed
            appended += 1
        assert entries == bytes_of(directory, segment.base_offset, "txnindex")
    end = states.end_offset
    assert states.snapshot() == bytes_of(directory, end, "snapshot")
    assert appended > 50


def test_a_batch_that_is_sent_again_is_a_duplicate(golden: Path) -> None:
    states = ProducerStates()
    for segment in list_segments(golden / "idempotent" / "before"):
        for stored in stored_batches(Path(segment.path)):
            data = stored.copy()
            validated, _ = append(states, data, Origin.REPLICATION, states.end_offset)
            before = states.snapshot()
            again = states.check(validated.batches, data, origin=Origin.CLIENT)
            if validated.batches["producer_id"][0] >= 0:
                assert again is not None
                assert (again.first_offset, again.last_offset) == (
                    validated.first_offset,
                    validated.last_offset,
                )
            assert states.snapshot() == before
