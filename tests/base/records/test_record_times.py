"""Offsets and timestamps alone are those that decoding everything finds; a crafted batch for each refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.columns import DECODE_REASON
from siltstone.base.records.decode import decode_record_times, decode_records
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import scanned

TIMES = st.sampled_from((0, 1, -5, 63, 64, 2**40, -(2**40)))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Message sets, then v2 batches of any codec and kind of time, with gaps; either may be missing."""
    parts, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 2))):
        parts.append(twin.message(offset, b"k", b"v", magic=draw(st.integers(0, 1))))
        offset += draw(st.integers(1, 3))
    for _ in range(draw(st.integers(0, 4))):
        deltas = sorted(draw(st.sets(st.integers(0, 20_000), max_size=6)))
        records = [twin.record(delta, draw(TIMES), b"k" * (delta % 80), None) for delta in deltas]
        codec, attributes = (
            draw(st.sampled_from((0, 0, twin.ZSTD))),
            draw(st.sampled_from((0, twin.LOG_APPEND))),
        )
        last = deltas[-1] if deltas else 0
        parts.append(
            twin.batch(records, base_offset=offset, last_delta=last, codec=codec, attributes=attributes)
        )
        offset += last + draw(st.integers(1, 3))
    return b"".join(parts)


@settings(deadline=None)
@given(logs())
def test_times_alone_are_those_of_all(log: bytes) -> None:
    window, batches = scanned(log)
    full, times = decode_records(window, batches), decode_record_times(window, batches)
    assert len(times) == len(full)
    for name in ("batch", "offset", "timestamp"):
        assert getattr(times, name).tolist() == getattr(full, name).tolist(), name
        assert getattr(times, name).dtype == getattr(full, name).dtype, name


@pytest.mark.parametrize(
    ("records", "last_delta", "reason"),
    [
        ([b"\x02\x00"], 0, "more records"),
        ([b"\xff" * 5 + bytes(10)], 0, DECODE_REASON[3]),
        ([twin.varint(60) + bytes(10)], 0, DECODE_REASON[1]),
        ([twin.varint(12) + bytes(1) + b"\xff" * 11], 0, DECODE_REASON[3]),
        ([twin.record(1, 0, b"", b""), twin.record(1, 0, b"", b"")], 1, DECODE_REASON[5]),
        ([twin.record(2, 0, b"", b"")], 1, DECODE_REASON[5]),
        ([twin.record(0, 0, b"", b"") + b"\x00"], 0, DECODE_REASON[6]),
    ],
)
def test_malformed_records_are_refused_with_their_position(
    records: list[bytes], last_delta: int, reason: str
) -> None:
    sound = twin.batch([twin.record(0, 0, b"k", b"v")])
    window, batches = scanned(sound + twin.batch(records, base_offset=1, last_delta=last_delta))
    with raises_error(CorruptRecordError, path="a.log", position=100 + len(sound), about=reason):
        decode_record_times(window, batches, path="a.log", origin=100)
