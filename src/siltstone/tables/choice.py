"""Which partitions of a directory a table is over, and from where to where, as Spark's Kafka source has it.

``Choice`` is one of ``assign``, ``subscribe``, ``subscribePattern`` or nothing: all that is there. ``Bound``
is one side: the same for every partition or a number for each; an offset, or a time that stands for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from siltstone.errors import UnknownTopicError, UsageError
from siltstone.log.names import TopicPartition

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a side of the log, in Kafka and in Spark's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Partitions by name; at most one of the three is given. ``pattern`` has to match the whole topic."""

    assign: tuple[TopicPartition, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None

    def of(self, there: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The chosen ones among those that are there, ascending.

        Raises UnknownTopicError for one that is named and not there; a pattern may match nothing.
        """
        found = sorted(there)
        if self.assign is not None:
            missing = [str(each) for each in self.assign if each not in found]
            _refuse_missing(missing, "partition")
            return sorted(self.assign)
        if self.subscribe is not None:
            topics = {each.topic for each in found}
            _refuse_missing([name for name in self.subscribe if name not in topics], "topic")
            return [each for each in found if each.topic in self.subscribe]
        if self.pattern is not None:
            pattern = re.compile(self.pattern)
            return [each for each in found if pattern.fullmatch(each.topic)]
        return found


def _refuse_missing(missing: list[str], what: str) -> None:
    if missing:
        raise UnknownTopicError(f"{', '.join(missing)}: there is no such {what} in the directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One side of what is read: ``every`` for all partitions, or ``each`` its own; offsets or times in ms.

    Offsets may be ``EARLIEST`` or ``LATEST``.
    """

    every: int | None = None
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False

    def of(self, where: TopicPartition) -> int | None:
        """What holds for a partition, None where ``each`` leaves it out."""
        return self.every if self.every is not None else self.each.get(where)


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """``{"topicA":[0,1],"topicB":[2,4]}``. Raises UsageError."""
    found: list[TopicPartition] = []
    for topic, partitions in _object(text).items():
        if not isinstance(partitions, list) or not all(_is_count(each) for each in partitions):
            raise ValueError('is no JSON such as {"topicA":[0,1],"topicB":[2]}')
        found += [TopicPartition(topic, number) for number in partitions]
    return tuple(sorted(set(found)))


def parse_numbers(text: str, least: int) -> dict[TopicPartition, int]:
    """``{"topicA":{"0":23,"1":-2}}``, numbers from ``least`` on. Raises ValueError."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text).items():
        if not isinstance(numbers, dict):
            raise ValueError('is no JSON such as {"topicA":{"0":23,"1":345}}')
        for partition, number in numbers.items():
            if (
                not re.fullmatch(r"\d{1,10}", partition, re.ASCII)
                or type(number) is not int
                or number < least
            ):
                raise ValueError(f"{topic}-{partition}: {number!r} is not allowed here")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def refuse_several(choice: Choice) -> None:
    """Spark's rule: at most one of the three. Raises UsageError."""
    given = [choice.assign is not None, choice.subscribe is not None, choice.pattern is not None]
    if sum(given) > 1:
        raise UsageError("give one of assign, subscribe and subscribePattern, not several")
