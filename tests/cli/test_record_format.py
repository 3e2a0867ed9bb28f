"""kcat's format strings and envelopes."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.base.errors import UsageError
from siltstone.cli.records import delimiter, envelope, record_format
from siltstone.log.names import TopicPartition
from siltstone.log.reading import Record
from tests.support.errors import raises_error

WHERE = TopicPartition("orders", 3)


def record(**given: Any) -> Record:
    facts: dict[str, Any] = {"offset": 7, "timestamp": 1234, "key": b"k", "value": b"v", "headers": ()}
    return Record(**{**facts, **given}, leader_epoch=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %o %k %s", b"orders 3 7 k v"),
        ("%T:%K:%S", b"1234:1:1"),
        ("%s\\n\\t\\r\\x00\\xfF\\\\", b"v\n\t\r\0\xff\\"),
        ("100%%", b"100%"),
        ("%R", b"\0\0\0\1"),
        ("", b""),
        ("é%k", "ék".encode()),
    ],
)
def test_a_token_writes_its_part_of_the_record(text: str, expected: bytes) -> None:
    assert record_format(text)(WHERE, record()) == expected


def test_null_is_written_as_chosen_and_headers_as_pairs() -> None:
    empty = record(key=None, value=None, headers=((b"a", b"1"), (b"b", None)))
    assert record_format("%k|%s|%K|%S|%h")(WHERE, empty) == b"||-1|-1|a=1,b=NULL"
    assert record_format("%k|%s|%R", null=b"NULL")(WHERE, empty) == b"NULL|NULL|\xff\xff\xff\xff"


def test_contents_are_escaped_and_the_format_is_not() -> None:
    shown = record_format("%k\\x1b%s", escape=lambda raw: b"[%d]" % len(raw))(WHERE, record())
    assert shown == b"[1]\x1b[1]"


@pytest.mark.parametrize("text", ["%", "%z", "\\q", "\\x1", "abc\\"])
def test_unknown_tokens_and_escapes_are_refused(text: str) -> None:
    with raises_error(UsageError, about="-f", advice="pass"):
        record_format(text)


def test_a_delimiter_has_at_least_one_byte() -> None:
    assert delimiter("\\x00\\n", "-D") == b"\0\n"
    with raises_error(UsageError, about="-K", advice="at least one character"):
        delimiter("", "-K")


def test_an_envelope_is_that_of_kcat() -> None:
    plain = envelope(WHERE, record(headers=((b"h", b"1"), (b"i", None))), log_append=False, broker=1)
    assert list(plain.items()) == [
        ("topic", "orders"),
        ("partition", 3),
        ("offset", 7),
        ("tstype", "create"),
        ("ts", 1234),
        ("broker", 1),
        ("headers", ["h", "1", "i", None]),
        ("key", "k"),
        ("payload", "v"),
    ]
    odd = envelope(WHERE, record(key=None, value=b"\xff", timestamp=-1), log_append=True, broker=1)
    assert (odd["key"], odd["payload_base64"], odd["tstype"]) == (None, "/w==", "unknown")
    assert envelope(WHERE, record(), log_append=True, broker=1)["tstype"] == "logappend"
