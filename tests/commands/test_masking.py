"""``siltstone.http.mask``: rules, and what they leave of values."""

from __future__ import annotations

import json

import pytest

from siltstone.base.errors import UsageError
from siltstone.commands.masking import MASK, MaskedParts, Masking


def masked(rules: str, value: bytes) -> bytes | None:
    return Masking.parse(rules).of_topic("users").masked_value(value)


def test_a_rule_counts_for_the_whole_name_of_a_topic() -> None:
    masking = Masking.parse("users:key, pay.*:value,a:b:/x")
    assert masking.of_topic("users") == MaskedParts(key=True)
    assert masking.of_topic("users2") == MaskedParts()
    assert masking.of_topic("payments") == MaskedParts(value=True)
    assert masking.of_topic("a:b") == MaskedParts(pointers=(("x",),))
    assert Masking.parse("") == Masking()


def test_a_pointer_masks_what_it_leads_to() -> None:
    value = json.dumps({"a": [{"b": 1}, {"b": 2}], "c/d": {"~": 3}, "e": None}).encode()
    assert json.loads(masked("users:/a/1/b", value) or b"")["a"] == [{"b": 1}, {"b": MASK}]
    assert json.loads(masked("users:/a/*/b", value) or b"")["a"] == [{"b": MASK}, {"b": MASK}]
    assert json.loads(masked("users:/c~1d/~0,users:/e", value) or b"")["c/d"] == {"~": MASK}
    assert json.loads(masked("users:/e", value) or b"")["e"] == MASK
    assert json.loads(masked("users:/nowhere/else", value) or b"") == json.loads(value)


@pytest.mark.parametrize(
    "value",
    [b"secret", b'{"a": "secret"', b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b"", b"4000", b'"{}"'],
)
def test_what_is_no_json_is_masked_whole(value: bytes) -> None:
    assert masked("users:/b", value) is None


def test_a_name_that_occurs_twice_hides_nothing() -> None:
    assert b"secret" not in (masked("users:/a", b'{"a": "secret 1", "a": "secret 2"}') or b"")


def test_without_a_rule_the_value_stays() -> None:
    assert masked("other:value", b"as it is") == b"as it is"
    assert masked("users:key", b"as it is") == b"as it is"
    assert masked("users:value", b"as it is") is None


@pytest.mark.parametrize("rule", ["users", ":key", "users:card", "users:", "(:key", "users:card/number"])
def test_a_rule_that_is_none_is_refused(rule: str) -> None:
    with pytest.raises(UsageError) as raised:
        Masking.parse(rule)
    assert raised.value.path == "siltstone.http.mask"
    assert raised.value.advice
