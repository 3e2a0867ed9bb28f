"""Batches' records in plain form: libzstd, called from a kernel, says what the libraries of Python say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zstandard

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records import codecs as codecs_module
from siltstone.base.records.codecs import (
    DECOMPRESSION_LIMIT_SETTING,
    DEFAULT_DECOMPRESSION_LIMIT,
    RecordSpans,
    Scratch,
    decompress_spans,
)
from siltstone.base.records.decode import decode_records
from siltstone.base.records.decompression import decompress_batches, max_records, refuse_impossible_counts
from siltstone.base.records.layout import BATCH, BATCH_OVERHEAD, BatchHeaders, Bytes
from tests.support.errors import raises_error
from tests.support.records import twin
from tests.support.records.arrays import array
from tests.support.thoroughness import share

Bodies = list[tuple[int, bytes]]
"""Codecs and what they made of records."""


def laid_out(bodies: Bodies) -> tuple[Bytes, BatchHeaders]:
    """A window of batches with these bodies, and their headers as far as decompression looks at it."""
    batches = np.zeros(len(bodies), BATCH)
    batches["size"] = [BATCH_OVERHEAD + len(body) for _, body in bodies]
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    batches["attributes"] = [codec for codec, _ in bodies]
    batches["magic"] = 2
    batches["count"] = [len(body) > 0 for _, body in bodies]
    return array(b"".join(bytes(BATCH_OVERHEAD) + body for _, body in bodies)), batches


def decompressed(
    bodies: Bodies, limit: int = DEFAULT_DECOMPRESSION_LIMIT, scratch: Scratch | None = None
) -> list[bytes]:
    window, batches = laid_out(bodies)
    data, starts, ends = decompress_batches(
        window, batches, scratch or Scratch(), limit=limit, path="a.log", origin=7
    )
    return [data[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def outcome(bodies: Bodies, limit: int = DEFAULT_DECOMPRESSION_LIMIT) -> list[bytes] | str:
    try:
        return decompressed(bodies, limit)
    except CorruptRecordError as error:
        return str(error)


@pytest.fixture(params=["libzstd", "without"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The tests that follow hold with and without libzstd."""
    if request.param == "without":
        monkeypatch.setattr(codecs_module, "_libzstd", None)
    yield request.param


def texts(count: int, seed: int = 5) -> list[bytes]:
    dice = random.Random(seed)
    words = [dice.randbytes(dice.randrange(3, 12)) for _ in range(40)]
    return [b"".join(dice.choices(words, k=dice.randrange(1, 900))) for _ in range(count)]


def test_libzstd_decompresses_every_batch_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch but those for which the scratch has to grow."""
    calls = []
    monkeypatch.setattr(
        "siltstone.base.records.decompression.decompress", lambda *arguments: calls.append(arguments) or 0
    )
    data = texts(300)
    assert (
        decompressed([(twin.ZSTD, twin.compress(twin.ZSTD, text)) for text in data], scratch=Scratch(1 << 22))
        == data
    )
    assert not calls


@pytest.mark.parametrize("other", [twin.GZIP, twin.SNAPPY, twin.LZ4])
def test_libzstd_goes_on_after_a_batch_of_another_codec(other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that batch takes the slower way."""
    data = texts(30)
    codecs: list[int] = []

    def noted(codec: int, *arguments: Any) -> int:
        codecs.append(codec)
        return codecs_module.decompress(codec, *arguments)

    monkeypatch.setattr("siltstone.base.records.decompression.decompress", noted)
    bodies = [(twin.ZSTD, twin.compress(twin.ZSTD, text)) for text in data]
    bodies[0] = bodies[9] = (other, twin.compress(other, data[0]))
    data[9] = data[0]
    assert decompressed(bodies, scratch=Scratch(1 << 22)) == data
    assert codecs == [other, other]


def test_libzstd_does_not_grow_a_full_scratch() -> None:
    frame = twin.compress(twin.ZSTD, b"records")
    scratch = Scratch(capacity=8)
    scratch.append(b"8 bytes.")
    full = scratch.array()
    spans = RecordSpans(np.array([0]), np.array([len(frame)]), np.array([twin.ZSTD]))
    assert decompress_spans(array(frame), spans, 0, scratch, 1 << 20, np.zeros(1, np.int64)) == 0
    assert np.shares_memory(scratch.array(), full)


@pytest.mark.parametrize("capacity", [1, 1000, 1 << 22])
def test_batches_of_all_codecs_side_by_side(library: str, capacity: int) -> None:
    dice, data = random.Random(9), texts(400)
    codecs = [dice.choice([twin.NONE, twin.ZSTD, twin.ZSTD, twin.ZSTD, twin.GZIP, twin.LZ4]) for _ in data]
    bodies = [
        (codec, twin.compress(codec, text) if codec else text)
        for codec, text in zip(codecs, data, strict=True)
    ]
    bodies[17] = bodies[250] = (twin.ZSTD, b"")  # a batch without records has no frame
    expected = ["" if not body else text for (_, body), text in zip(bodies, data, strict=True)]
    assert decompressed(bodies, scratch=Scratch(capacity)) == [text or b"" for text in expected]


def test_frames_without_a_size_several_frames_and_skippable_ones(library: str) -> None:
    one, other = texts(2)
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(one)
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(other)
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    bodies = [(twin.ZSTD, body) for body in (streamed, streamed + whole, skipped + whole, whole + skipped)]
    assert decompressed(bodies) == [one, one + other, other, other]


def test_a_damaged_frame_is_refused_with_its_position(library: str) -> None:
    good = (twin.ZSTD, twin.compress(twin.ZSTD, b"some records " * 50))
    for place in (0, 3, 6):
        bodies = [good] * 7
        bodies[place] = (twin.ZSTD, good[1][:-1])
        with raises_error(
            CorruptRecordError, position=7 + place * (BATCH_OVERHEAD + len(good[1])), about="zstd"
        ):
            decompressed(bodies)


def test_every_frame_is_bound_by_the_limit(library: str) -> None:
    bodies = [(twin.ZSTD, twin.compress(twin.ZSTD, bytes(size))) for size in (1000, 999, 1000)]
    assert [len(data) for data in decompressed(bodies, limit=1000)] == [1000, 999, 1000]
    with raises_error(CorruptRecordError, about="999 bytes", advice=DECOMPRESSION_LIMIT_SETTING):
        decompressed(bodies, limit=999)


def test_damaged_frames_have_the_same_outcome_without_libzstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a bit that only newer libraries check: an older one returns the original text."""
    dice, frames = random.Random(2), []
    for text in (texts(1)[0][:2000], bytes(3000), dice.randbytes(300), b"x"):
        for checked in (False, True):
            packed = zstandard.ZstdCompressor(write_checksum=checked).compress(text)
            for place in share(range(len(packed)), 5):
                damaged = bytearray(packed)
                damaged[place] ^= dice.choice([1, 0x80, 0x55])
                frames += [
                    (text, frame) for frame in (bytes(damaged), packed[:place], packed + packed[: place + 1])
                ]
    with_libzstd = [outcome([(twin.ZSTD, frame)], 20_000) for _, frame in frames]
    monkeypatch.setattr(codecs_module, "_libzstd", None)
    refused = 0
    for (text, frame), ours in zip(frames, with_libzstd, strict=True):
        theirs = outcome([(twin.ZSTD, frame)], 20_000)
        assert ours == theirs or (isinstance(theirs, str) and ours == [text])
        refused += isinstance(ours, str)
    assert 0 < refused < len(with_libzstd)


def test_threads_decompress_side_by_side(library: str) -> None:
    data = texts(200)
    bodies = [(twin.ZSTD, twin.compress(twin.ZSTD, text)) for text in data]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: decompressed(bodies) == data, range(24)))


@pytest.mark.parametrize("codec", [twin.GZIP, twin.SNAPPY, twin.ZSTD])
def test_a_batch_that_declares_too_much_is_refused_before_allocating(library: str, codec: int) -> None:
    scratch = Scratch(64)
    bodies = [(codec, twin.compress(codec, bytes(size))) for size in (500, 3 << 20)]
    with raises_error(CorruptRecordError, about="1048576 bytes", advice=DECOMPRESSION_LIMIT_SETTING):
        decompressed(bodies, limit=1 << 20, scratch=scratch)
    assert len(scratch.reserve(0)) == 64


def test_memory_for_declared_sizes_is_allocated_once(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_growth(scratch: Scratch, size: int) -> None:
        assert len(scratch._view) - scratch.used >= size, "it had to grow"

    monkeypatch.setattr(Scratch, "_grow", no_growth)
    scratch = Scratch(64)
    for size in (3 << 20, 1000, 5 << 20):
        bodies = [(twin.ZSTD, twin.compress(twin.ZSTD, bytes(size)))] * 3
        assert [len(data) for data in decompressed(bodies, scratch=scratch)] == [size] * 3
    assert len(scratch.reserve(0)) == 0


def test_a_frame_that_declares_more_than_it_holds_is_refused(library: str) -> None:
    whole = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    forged = bytearray(whole)
    forged[whole.index((100 << 20).to_bytes(4, "little")) + 3] += 2  # 32 MiB more
    assert "zstd" in str(outcome([(twin.ZSTD, bytes(forged))]))


def test_counts_are_bound_by_the_bytes_and_by_the_limit() -> None:
    """The refusal comes before a row of the columns is allocated."""
    window, batches = laid_out([(twin.ZSTD, twin.compress(twin.ZSTD, bytes(70_000)))])
    batches["last_offset"] = 1 << 30
    for count, reason in ((10_001, "more records"), (10_000, "a record's")):
        batches["count"] = count
        with raises_error(CorruptRecordError, about=reason):
            decode_records(window, batches)
    sizes = np.array([1 << 40])
    for limit in (1, DEFAULT_DECOMPRESSION_LIMIT, 1 << 30):
        maximum = max_records(limit)
        assert maximum == max(limit, 256 << 20) // 64
        refuse_impossible_counts(batches, np.array([maximum]), sizes, "a.log", 0, limit)
        with raises_error(
            CorruptRecordError, path="a.log", about=f"{maximum} records", advice=DECOMPRESSION_LIMIT_SETTING
        ):
            refuse_impossible_counts(batches, np.array([maximum + 1]), sizes, "a.log", 0, limit)
