"""How bytes are shown: each decoding, what ``auto`` takes, and values that are cut."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.base.errors import UsageError
from siltstone.commands.decoding import DECODINGS, NULL, DecodedBytes, check_decoding, decode, decode_internal


def shown(data: bytes | None, how: Any = "auto", **options: int) -> tuple[str, str]:
    decoded = decode(data, how, **options)
    assert decoded.size == (None if data is None else len(data))
    return decoded.kind, decoded.text


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"abc\n", "utf8", "abc\n"),
        ("grün".encode(), "utf8", "grün"),
        (b' {"a": 1.50}', "json", ' {"a": 1.50}'),
        (b"[1", "utf8", "[1"),
        (b"12345678", "utf8", "12345678"),
        (b"\0\0\0\0\0\0\1\0", "integer", "256"),
        (b"\xff\xff\xff\xfe", "integer", "-2"),
        (b"\0\0\0\0\7\2a", "confluent", "0261"),
        (b"\1\2\3", "hex", "010203"),
        (b"a\x1b[31m", "hex", "611b5b33316d"),
        (b"[" * 100_000, "utf8", "[" * 8192),
    ],
)
def test_auto_takes_the_first_that_fits(data: bytes | None, kind: str, text: str) -> None:
    assert shown(data) == (kind, text)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("utf8", "utf8", "ab12"),
        ("hex", "hex", "61623132"),
        ("base64", "base64", "YWIxMg=="),
        ("integer", "integer", "1633825074"),
        ("json", "hex", "61623132"),
        ("confluent", "hex", "61623132"),
    ],
)
def test_a_decoding_that_does_not_fit_is_hex_with_a_note(how: Any, kind: str, text: str) -> None:
    assert shown(b"ab12", how) == (kind, text)
    assert (decode(b"ab12", how).note is None) == (how == kind)


def test_the_schema_id_is_shown() -> None:
    assert decode(b"\0\0\1\0\0x").schema_id == 65536


@pytest.mark.parametrize("size", range(1, 12))
def test_text_is_cut_between_characters(size: int) -> None:
    data = "aäb€c😀d".encode()
    decoded = decode(data, "utf8", shown_bytes=size)
    assert decoded.kind == "utf8"
    assert decoded.is_cut == (size < len(data))
    assert "aäb€c😀d".startswith(decoded.text)
    assert size - 3 <= len(decoded.text.encode()) <= size
    assert decoded.size == len(data)


def test_a_large_value_is_cut_with_its_size() -> None:
    decoded = decode(b"x" * 100_000)
    assert (len(decoded.text), decoded.size, decoded.is_cut) == (8192, 100_000, True)


def test_a_record_of_a_coordinator_is_decoded() -> None:
    key = b"\0\1\0\1g\0\1t\0\0\0\2"
    decoded, value = decode_internal("__consumer_offsets", key, None)
    assert (decoded.kind, value.kind) == ("internal", "tombstone")
    assert '"group": "g"' in decoded.text
    broken, _ = decode_internal("__consumer_offsets", b"\x7f\x7f\x80", b"x")
    assert broken.kind == "hex"


def test_an_unknown_decoding_is_refused() -> None:
    assert [check_decoding(name) for name in DECODINGS] == list(DECODINGS)
    with pytest.raises(UsageError, match="no decoding") as raised:
        check_decoding("xml")
    assert raised.value.advice


def test_json_names_every_field() -> None:
    assert NULL.to_json() == {name: getattr(NULL, name) for name in DecodedBytes.__slots__}
