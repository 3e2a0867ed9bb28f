"""Spark's filters as a ``Predicate``: only to read less, Spark filters what it gets once more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from siltstone.tables.predicate import EVERYTHING, Predicate

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def predicate_of(filters: Sequence[Filter]) -> Predicate:
    """What all filters together leave; those that say nothing about where a row lies are passed over."""
    found = EVERYTHING
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) == 1:
            found = _ADD.get(attribute[0].lower(), _nothing)(found, each)
    return found


def _nothing(found: Predicate, each: Filter) -> Predicate:
    return found


def _values(each: Filter) -> frozenset[Any] | None:
    """The values that a column can have then, None where that is no list."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return frozenset([each.value])
    return frozenset(each.value) if isinstance(each, In) else None


def _topic(found: Predicate, each: Filter) -> Predicate:
    values = _values(each)
    return found if values is None else found.and_topics(values)


def _partition(found: Predicate, each: Filter) -> Predicate:
    values = _values(each)
    return found if values is None else found.and_partitions(values)


def _offset(found: Predicate, each: Filter) -> Predicate:
    values = _values(each)
    if values is not None:
        numbers = [value for value in values if isinstance(value, int)]
        return found.and_offsets(min(numbers), max(numbers) + 1) if numbers else found
    value = getattr(each, "value", None)
    if not isinstance(value, int):
        return found
    low = (
        value + 1
        if isinstance(each, GreaterThan)
        else value
        if isinstance(each, GreaterThanOrEqual)
        else None
    )
    high = value if isinstance(each, LessThan) else value + 1 if isinstance(each, LessThanOrEqual) else None
    return found.and_offsets(low, high)


def _timestamp(found: Predicate, each: Filter) -> Predicate:
    """Only times from which on: a log may hold early records anywhere."""
    if not isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
        return found
    if not isinstance(each.value, datetime) or each.value.tzinfo is None:
        return found
    return found.and_from((each.value - _EPOCH) // timedelta(milliseconds=1))


_ADD = {"topic": _topic, "partition": _partition, "offset": _offset, "timestamp": _timestamp}
