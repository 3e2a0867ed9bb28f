"""One list of codecs: every codec in it has its module, its settings and its place in ``LogConfig``."""

from __future__ import annotations

import numpy as np
import pytest

from siltstone.base.codec_table import CODEC_NAMES, CODECS, COMPRESSION_TYPES, Codec, codec_name, codec_number
from siltstone.base.config import LogConfig, find_topic_key
from siltstone.base.records.codecs import Scratch, compress, decompress
from siltstone.base.records.layout import CODEC_MASK


def test_numbers_are_places_and_fit_the_attributes() -> None:
    assert [codec.id for codec in CODECS] == list(range(len(CODECS)))
    assert len(CODECS) <= CODEC_MASK + 1
    assert [codec_number(name) for name in CODEC_NAMES] == list(range(len(CODECS)))
    assert codec_number("producer") == codec_number("uncompressed") == 0
    assert [codec_name(number) for number in (4, 5, 7)] == ["zstd", "unknown(5)", "unknown(7)"]


def test_compression_type_is_kafkas_list() -> None:
    assert COMPRESSION_TYPES == ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
    assert find_topic_key("compression.type").choices == COMPRESSION_TYPES


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
def test_every_codec_has_a_module(codec: Codec) -> None:
    data, scratch = np.arange(100, dtype=np.uint8), Scratch()
    packed = np.frombuffer(compress(codec.id, data), np.uint8)
    assert decompress(codec.id, packed, scratch) == 100
    assert scratch.array().tolist() == data.tolist()


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec.levels], ids=lambda codec: codec.name)
def test_every_level_is_a_setting(codec: Codec) -> None:
    assert codec.levels is not None
    key = find_topic_key(f"compression.{codec.name}.level")
    assert (key.minimum, key.maximum, key.default) == (
        codec.levels.minimum,
        codec.levels.maximum,
        codec.levels.default,
    )
    assert getattr(LogConfig(), f"compression_{codec.name}_level") == codec.levels.default


def test_message_sets_have_the_codecs_of_their_time() -> None:
    of_message_sets = [codec.name for codec in CODECS if codec.first_magic < 2]
    assert of_message_sets == ["none", "gzip", "snappy", "lz4"]
    assert all(codec.first_magic in (0, 2) for codec in CODECS)
