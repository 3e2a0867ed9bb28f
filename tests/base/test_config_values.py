"""Text ↔ value: units, overflow, negative limits, and the way there and back."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.config import INT_MAX, LONG_MAX, find_key, format_value, parse_text
from siltstone.base.config_table import ALL_KEYS, Key, Kind, Value
from siltstone.base.errors import UsageError
from tests.support.errors import raises_error
from tests.support.thoroughness import examples

HOUR_MS = 3_600_000


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_default_is_allowed(key: Key) -> None:
    assert parse_text(key, format_value(key.default)) == key.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.retention.hours", "168", 604_800_000),
        ("log.retention.minutes", "1", 60_000),
        ("log.retention.ms", "1", 1),
        ("log.retention.hours", "-1", -1),
        ("log.retention.minutes", "-7", -1),
        ("log.retention.ms", "-7", -1),
        ("log.retention.hours", str(INT_MAX), INT_MAX * HOUR_MS),
        ("log.retention.bytes", "-7", -1),
        ("retention.bytes", "-7", -1),
        ("retention.ms", "-1", -1),
        ("retention.ms", "0", 0),
        ("log.roll.hours", "2", 2 * HOUR_MS),
        ("log.roll.jitter.hours", "0", 0),
        ("log.roll.jitter.hours", "3", 3 * HOUR_MS),
        ("log.cleanup.interval.mins", "5", 300_000),
        ("log.flush.interval.ms", "1000", 1000),
        ("segment.bytes", " +7 ", 7),
        ("segment.bytes", str(INT_MAX), INT_MAX),
        ("retention.ms", str(LONG_MAX), LONG_MAX),
        ("compression.gzip.level", "-1", -1),
        ("min.cleanable.dirty.ratio", "5e-1", 0.5),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", sys.float_info.max),
        ("log.dirs", "/a, /b", ("/a", "/b")),
        ("preallocate", "TRUE", True),
    ],
)
def test_values_are_in_the_unit_of_the_settings_own_name(name: str, text: str, value: Value) -> None:
    parsed = parse_text(find_key(name), text, name)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.retention.hours", str(INT_MAX + 1)),
        ("log.retention.hours", str(-INT_MAX - 2)),
        ("log.retention.hours", "0"),
        ("log.retention.hours", "1.5"),
        ("log.retention.ms", "0"),
        ("log.retention.ms", str(LONG_MAX + 1)),
        ("log.retention.ms", str(-LONG_MAX - 2)),
        ("retention.ms", "-2"),
        ("retention.bytes", str(-LONG_MAX - 2)),
        ("log.roll.hours", "0"),
        ("log.roll.hours", "-1"),
        ("log.roll.jitter.hours", "-1"),
        ("log.cleanup.interval.mins", str(INT_MAX + 1)),
        ("log.cleanup.interval.mins", "0"),
        ("log.cleanup.interval.mins", "-5"),
        ("segment.bytes", str(INT_MAX + 1)),
        ("flush.messages", "0"),
        ("max.compaction.lag.ms", "0"),
        ("segment.index.bytes", "3"),
        ("producer.id.expiration.ms", str(INT_MAX + 1)),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("segment.bytes", "\u0661"),
        ("segment.bytes", ""),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused(name: str, text: str) -> None:
    with raises_error(UsageError, about=name):
        parse_text(find_key(name), text, name)


def test_an_infinite_number_is_written_as_java_writes_it() -> None:
    key = find_key("log.cleaner.io.max.bytes.per.second")
    value = parse_text(key, "Infinity")
    assert format_value(value) == "Infinity" and parse_text(key, format_value(value)) == value


def values_of(key: Key) -> st.SearchStrategy[Value]:
    """Values that a key allows."""
    if key.choices:
        words = st.sampled_from(key.choices)
        return words if key.kind is Kind.STRING else st.lists(words, unique=True).map(tuple)
    if key.kind is Kind.BOOLEAN:
        return st.booleans()
    text = st.text(st.characters(codec="utf-8", exclude_characters=","), min_size=1).filter(
        lambda word: word == word.strip()
    )
    if key.kind is Kind.STRING:
        return text
    if key.kind is Kind.LIST:
        return st.lists(text, unique=True).map(tuple)
    if key.kind is Kind.DOUBLE:
        return st.floats(key.minimum, key.maximum, allow_nan=False)
    longest = INT_MAX if key.kind is Kind.INT else LONG_MAX
    minimum = -1 if key.negative_is_unlimited else -longest - 1 if key.minimum is None else key.minimum
    maximum = longest if key.maximum is None else key.maximum
    return st.integers(int(minimum), int(maximum)).filter(lambda number: number not in key.refused)


@settings(derandomize=True, deadline=None, max_examples=examples(400))
@given(st.sampled_from(ALL_KEYS).flatmap(lambda key: st.tuples(st.just(key), values_of(key))))
def test_a_formatted_value_parses_to_itself(key_and_value: tuple[Key, Value]) -> None:
    key, value = key_and_value
    assert parse_text(key, format_value(value)) == value


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (1e-7, "1.0E-7"),
        (9_999_999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (123_456_789.0, "1.23456789E8"),
        (-2.5e10, "-2.5E10"),
        (sys.float_info.max, "1.7976931348623157E308"),
        (math.inf, "Infinity"),
    ],
)
def test_numbers_are_written_as_java_writes_them(number: float, text: str) -> None:
    assert format_value(number) == text
