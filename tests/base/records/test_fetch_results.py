"""Worked examples 17 to 19, and noise: frames go there and back uncopied, impossible ones are refused."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.fetch_results import (
    MessageSetSend,
    decode_message_set_send,
    decode_multi_message_set_send,
    encode_message_set_send,
    encode_multi_message_set_send,
    frame_size,
)
from siltstone.base.records.scan import ScanEnd
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import array

MESSAGES = [
    twin.message(4, b"k", b"old", magic=0),
    twin.message(5, b"k", b"v" * 300, magic=1),
    twin.batch([twin.record(0, 0, b"k", b"new")], base_offset=6),
]
LOG = b"".join(MESSAGES)
error_codes = st.integers(-(1 << 15), (1 << 15) - 1)


def send(messages: bytes, error_code: int = 0) -> MessageSetSend:
    return MessageSetSend(error_code=error_code, messages=array(messages))


def test_the_drawing_of_a_message_set_send() -> None:
    frame = b"".join(encode_message_set_send(send(LOG, 1)))
    assert frame == struct.pack(">ih", 2 + len(LOG), 1) + LOG
    result = decode_message_set_send(frame)
    assert (result.error_code, result.messages.tobytes()) == (1, LOG)
    assert result.scan().batches["base_offset"].tolist() == [4, 5, 6]


def test_the_drawing_of_a_multi_message_set_send() -> None:
    one, two = send(LOG), send(b"", 3)
    frame = b"".join(encode_multi_message_set_send([one, two]))
    sends = b"".join([*encode_message_set_send(one), *encode_message_set_send(two)])
    assert frame == struct.pack(">ih", 2 + len(sends), 0) + sends
    multi = decode_multi_message_set_send(frame)
    assert [(result.error_code, result.messages.tobytes()) for result in multi.results] == [
        (0, LOG),
        (3, b""),
    ]


def test_a_frame_has_up_to_65536_results_by_default() -> None:
    for count in (65_536, 65_537):
        frame = struct.pack(">ih", 2 + 6 * count, 0) + count * struct.pack(">ih", 2, 0)
        if count == 65_536:
            assert len(decode_multi_message_set_send(frame).results) == count
        else:
            with raises_error(CorruptRecordError, about="65536"):
                decode_multi_message_set_send(frame)


def test_no_message_byte_is_copied() -> None:
    log = array(LOG)
    parts = encode_multi_message_set_send([MessageSetSend(error_code=0, messages=log)] * 2)
    assert all(np.shares_memory(log, np.frombuffer(part, np.uint8)) for part in (parts[2], parts[4]))
    frame = bytearray(b"".join(parts))
    whole = np.frombuffer(frame, np.uint8)
    assert all(
        np.shares_memory(whole, result.messages) for result in decode_multi_message_set_send(frame).results
    )
    assert np.shares_memory(whole, decode_message_set_send(whole).messages)


def test_a_chunk_that_ends_within_a_message_differs_from_one_that_ends_between_two() -> None:
    ends = np.cumsum([0, *map(len, MESSAGES)]).tolist()
    for cut in range(len(LOG) + 1):
        scan = decode_message_set_send(b"".join(encode_message_set_send(send(LOG[:cut])))).scan()
        whole = max(end for end in ends if end <= cut)
        assert scan.end == whole
        assert scan.outcome == (ScanEnd.CLEAN if whole == cut else ScanEnd.TRUNCATED)
        if cut - whole >= 17:
            assert scan.needed == len(MESSAGES[ends.index(whole)])


def test_a_reader_doubles_its_buffer_until_the_message_fits() -> None:
    message = twin.message(0, b"k", bytes(1000), magic=1)
    tried = [64]
    while not len(send(message[: tried[-1]]).scan().batches):
        tried.append(2 * tried[-1])
    assert tried == [64, 128, 256, 512, 1024, 2048]
    assert send(message[:64]).scan().needed == len(message)


def test_damage_in_a_chunk_is_neither_end() -> None:
    damaged = bytearray(LOG)
    damaged[len(MESSAGES[0]) + 16] = 9
    with raises_error(CorruptRecordError, position=len(MESSAGES[0]), about="magic"):
        send(bytes(damaged)).scan()


@pytest.mark.parametrize(
    ("length", "limit", "about"),
    [
        (-(1 << 31), 1 << 31, str(-(1 << 31))),
        (-1, 100, "-1"),
        (0, 100, "0"),
        (1, 100, "1"),
        (97, 100, "100"),
        ((1 << 31) - 1, 1 << 20, str(1 << 20)),
    ],
)
def test_impossible_lengths_are_refused_by_four_bytes(length: int, limit: int, about: str) -> None:
    with raises_error(CorruptRecordError, position=0, about=about):
        frame_size(struct.pack(">i", length), limit)


def test_a_frame_is_four_bytes_longer_than_its_length_says() -> None:
    assert frame_size(struct.pack(">i", 2)) == 6
    assert frame_size(struct.pack(">i", 96), 100) == 100
    assert frame_size(struct.pack(">i", (1 << 31) - 1)) == (1 << 31) + 3  # the largest that can be encoded


def test_a_frame_that_is_cut_says_how_much_is_there() -> None:
    with raises_error(CorruptRecordError, position=0, about="its length says 106 bytes, but 50 are left"):
        decode_message_set_send(struct.pack(">ih", 102, 0) + bytes(44))


@pytest.mark.parametrize(
    ("frame", "position"),
    [
        (b"", 0),
        (b"\0\0\0\2\0", 0),
        (struct.pack(">ih", 3, 0), 0),
        (struct.pack(">ih", 2, 0) + b"x", 6),
        (struct.pack(">ih", -5, 0), 0),
    ],
)
def test_a_frame_is_as_long_as_it_says(frame: bytes, position: int) -> None:
    for decode in (decode_message_set_send, decode_multi_message_set_send):
        with raises_error(CorruptRecordError, position=position):
            decode(frame)


@pytest.mark.parametrize("inner", [b"\0", struct.pack(">ih", 1, 0), struct.pack(">ih", 4, 0) + b"x"])
def test_an_impossible_inner_frame_is_placed(inner: bytes) -> None:
    first = b"".join(encode_message_set_send(send(LOG)))
    frame = struct.pack(">ih", 2 + len(first) + len(inner), 0) + first + inner
    with raises_error(CorruptRecordError, position=6 + len(first)):
        decode_multi_message_set_send(frame)


def test_more_results_than_were_asked_for_are_refused() -> None:
    frame = b"".join(encode_multi_message_set_send([send(b"")] * 3))
    assert len(decode_multi_message_set_send(frame, 3).results) == 3
    with raises_error(CorruptRecordError, position=18, about="2 results"):
        decode_multi_message_set_send(frame, 2)


def test_without_a_number_that_was_asked_for_65536_results_are_decoded() -> None:
    results = [send(b"")] * 65_537
    assert (
        len(decode_multi_message_set_send(b"".join(encode_multi_message_set_send(results[1:]))).results)
        == 65_536
    )
    with raises_error(CorruptRecordError, about="65536 results"):
        decode_multi_message_set_send(b"".join(encode_multi_message_set_send(results)))


@given(error_codes, st.lists(st.tuples(error_codes, st.binary(max_size=80)), max_size=6))
def test_encoded_results_are_decoded_to_the_same(error_code: int, contents: list[tuple[int, bytes]]) -> None:
    sends = [send(messages, code) for code, messages in contents]
    frame = b"".join(encode_multi_message_set_send(sends, error_code))
    assert frame_size(frame[:4], len(frame)) == len(frame)
    multi = decode_multi_message_set_send(frame)
    assert multi.error_code == error_code
    assert [(result.error_code, result.messages.tobytes()) for result in multi.results] == contents


@given(st.binary(max_size=120))
def test_noise_is_decoded_to_itself_or_refused(noise: bytes) -> None:
    try:
        multi = decode_multi_message_set_send(noise)
    except CorruptRecordError as error:
        assert 0 <= error.position <= len(noise)
        return
    assert b"".join(encode_multi_message_set_send(multi.results, multi.error_code)) == noise


def test_every_damaged_length_is_refused_or_decodes_to_its_own_bytes() -> None:
    seed = 20
    chance = random.Random(seed)
    frame = b"".join(encode_multi_message_set_send([send(LOG), send(LOG[:40], 7), send(b"")]))
    refused = 0
    for _ in range(3000):
        damaged = bytearray(frame[: chance.choice((len(frame), chance.randrange(len(frame))))])
        for _ in range(chance.randint(1, 3)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            multi = decode_multi_message_set_send(damaged)
        except CorruptRecordError:
            refused += 1
            continue
        encoded = b"".join(encode_multi_message_set_send(multi.results, multi.error_code))
        assert encoded == damaged, f"seed {seed}"
        for result in multi.results:
            try:
                assert result.scan().end <= len(result.messages)
            except CorruptRecordError as error:
                assert error.position <= len(result.messages)
    assert refused > 1000
