"""Batches for the twin: the same bytes for both sides, with times long past that no rule depends on."""

from __future__ import annotations

from tests.support.log.crafted import craft, record
from tests.support.records import twin

TIME_MS = 1_600_000_000_000


def batch(
    count: int = 1,
    *,
    codec: int = 0,
    key: bytes | None = b"k",
    value: bytes = b"v",
    time_ms: int = TIME_MS,
    step_ms: int = 1,
    **header: int,
) -> bytes:
    """``count`` records; their times rise by ``step_ms``."""
    size = twin.varint(-1) if key is None else twin.varint(len(key)) + key
    body = b"".join(
        record(number, key=size, value=twin.varint(len(value)) + value, time=twin.varint(number * step_ms))
        for number in range(count)
    )
    times = {"base_timestamp": time_ms, "max_timestamp": time_ms + step_ms * (count - 1)}
    return craft(body, count, codec=codec, **{**times, **header})


def numbered(sequence: int, count: int = 1, *, producer_id: int, epoch: int = 0, **header: int) -> bytes:
    """A batch of an idempotent producer."""
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **header)
