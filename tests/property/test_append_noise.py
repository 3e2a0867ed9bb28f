"""Appends of damaged and senseless bytes: refused without a trace, or harmless."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptRecordError, InvalidRecordError, LogError
from siltstone.base.records.check import FAULT, FINDING_COLUMNS, MAX_TIMESTAMP, Fault, check_batches
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BATCH, Bytes
from siltstone.base.records.scan import ScanEnd, scan_batches
from siltstone.log.producers import ProducerStates
from siltstone.log.validation import Origin, validate_and_assign
from tests.support.cleaning.logs import Rec, records_in
from tests.support.log.batches import TIME, array, of_body, of_records, sent
from tests.support.thoroughness import examples

bounded = settings(max_examples=examples(200), deadline=None, print_blob=True)
CONFIG = LogConfig(max_decompressed_message_bytes=1 << 16)
SIZES = (1, 3, 150)
CODECS = (0, 1, 2, 3, 4)


@cache
def valid(count: int, codec: int) -> bytes:
    return sent(count, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9).tobytes()


def append(data: Bytes, states: ProducerStates, origin: Origin = Origin.CLIENT) -> bytes | None:
    """What would be written, None where it is refused; then neither bytes nor state have changed."""
    before, known = data.tobytes(), states.snapshot()
    try:
        validated = validate_and_assign(
            data, config=CONFIG, next_offset=100, now_ms=TIME, leader_epoch=2, origin=origin
        )
    except LogError:
        assert data.tobytes() == before
        return None
    finally:
        assert states.snapshot() == known
    scan = scan_batches(validated.data)
    assert scan.outcome == ScanEnd.CLEAN and scan.batches.tolist() == validated.batches.tolist()
    assert validated.first_offset >= 100
    decode_records(validated.data, validated.batches)
    return validated.data.tobytes()


@bounded
@given(st.sampled_from(SIZES), st.sampled_from(CODECS), st.data())
def test_a_flipped_byte_is_refused_or_harmless(count: int, codec: int, draw: st.DataObject) -> None:
    right = append(array(valid(count, codec)), ProducerStates())
    data = array(valid(count, codec))
    position = draw.draw(st.integers(0, len(data) - 1))
    data[position] ^= draw.draw(st.integers(1, 255))
    written = append(data, ProducerStates())
    assert written is None or written == right
    assert written is None or 12 <= position < 16  # a leader epoch, which is given anew


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_every_flipped_byte_of_a_small_batch_is_refused_outside_the_leader_epoch(mask: int) -> None:
    for position in range(len(valid(1, 0))):
        data = array(valid(1, 0))
        data[position] ^= mask
        assert (append(data, ProducerStates()) is None) == (not 12 <= position < 16), position


@bounded
@given(st.sampled_from(SIZES), st.sampled_from(CODECS), st.data())
def test_a_replicated_flipped_byte_is_refused_or_harmless(
    count: int, codec: int, draw: st.DataObject
) -> None:
    data = array((100).to_bytes(8, "big") + valid(count, codec)[8:])
    right = data.tobytes()
    position = draw.draw(st.integers(8, len(data) - 1))
    data[position] ^= draw.draw(st.integers(1, 255))
    written = append(data, ProducerStates(), Origin.REPLICATION)
    assert written is None or written[16:] == right[16:]


@bounded
@given(st.binary(max_size=200), st.integers(0, 9), st.sampled_from((0, 1, 2, 3, 4)))
def test_record_bytes_of_noise_end_in_a_refusal_or_success(body: bytes, count: int, codec: int) -> None:
    append(of_body(body, count, codec), ProducerStates())


@bounded
@given(st.binary(max_size=300), st.sampled_from(list(Origin)))
def test_noise_ends_in_a_refusal_or_success(noise: bytes, origin: Origin) -> None:
    append(array(noise), ProducerStates(), origin)


@bounded
@given(st.sampled_from(SIZES), st.data())
def test_only_whole_batches_of_a_cut_request_are_appended(count: int, draw: st.DataObject) -> None:
    """A whole batch in front is taken, and the start of another one behind it left out."""
    whole = valid(count, 0)
    start, end = (
        draw.draw(st.sampled_from((0, draw.draw(st.integers(0, len(whole)))))),
        draw.draw(st.integers(0, len(whole))),
    )
    written = append(array(whole[start:] + whole[:end]), ProducerStates())
    right = append(array(whole), ProducerStates())
    one_whole = (start == 0 and end < len(whole)) or (start == len(whole) == end)
    assert written == (right if one_whole else None)


@bounded
@given(
    st.sampled_from(SIZES), st.sampled_from(CODECS), st.binary(max_size=100), st.sampled_from(list(Origin))
)
def test_noise_behind_a_batch_is_refused_or_left_out(
    count: int, codec: int, noise: bytes, origin: Origin
) -> None:
    """It is never stored, and never changes what is."""
    whole = (
        valid(count, codec)
        if origin is not Origin.REPLICATION
        else (100).to_bytes(8, "big") + valid(count, codec)[8:]
    )
    written = append(array(whole + noise), ProducerStates(), origin)
    right = append(array(whole), ProducerStates(), origin)
    assert written is None or written == right
    if origin is Origin.CLIENT and len(noise) < 12:
        assert written == right
    if origin is Origin.COORDINATOR and noise:
        assert written is None


@bounded
@given(st.binary(max_size=60), st.integers(1, 3), st.integers(0, 80), st.integers(0, 255))
def test_the_check_refuses_what_the_decoder_refuses(
    value: bytes, count: int, position: int, byte: int
) -> None:
    """One walks the records, the other fills columns: the same leaves, the same answer."""
    records = [
        Rec(offset=i, key=b"k", value=value, timestamp=TIME - i, headers=((b"h", None),))
        for i in range(count)
    ]
    body = bytearray(of_records(records).tobytes()[61:])
    body[position % len(body)] = byte
    data = of_body(bytes(body), count)
    rows, findings = np.empty(1, BATCH), np.empty((1, FINDING_COLUMNS), np.int64)
    check_batches(data, rows, findings, -1, (True, False, -(1 << 63), (1 << 63) - 1))
    contiguous = True
    try:
        columns = decode_records(data, rows)
    except CorruptRecordError:
        assert findings[0, FAULT] != Fault.NONE
        return
    contiguous = columns.offset.tolist() == list(range(count))
    assert contiguous and findings[0, FAULT] == Fault.NONE
    assert findings[0, MAX_TIMESTAMP] == max(-1, int(columns.timestamp.max()))


@bounded
@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=300)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(CODECS),
    st.sampled_from(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    st.booleans(),
)
def test_every_record_comes_out_again(
    pairs: list[tuple[bytes | None, bytes | None]], codec: int, compression: str, compact: bool
) -> None:
    records = [Rec(offset=i, key=k, value=v, timestamp=TIME + i) for i, (k, v) in enumerate(pairs)]
    config = replace(CONFIG, compression_type=compression, policies=("compact",) if compact else ("delete",))
    data = of_records(records, codec=codec)
    try:
        validated = validate_and_assign(data, config=config, next_offset=7, now_ms=TIME, leader_epoch=0)
    except InvalidRecordError as error:
        keyless = [i for i, (key, _) in enumerate(pairs) if key is None]
        assert compact and error.record_index == keyless[0]
        assert [record_error.index for record_error in error.record_errors] == keyless
        return
    assert not (compact and any(key is None for key, _ in pairs))
    decoded = records_in(validated.data.tobytes())
    assert [(r.offset, r.timestamp, r.key, r.value) for r in decoded] == [
        (7 + i, TIME + i, key, value) for i, (key, value) in enumerate(pairs)
    ]
