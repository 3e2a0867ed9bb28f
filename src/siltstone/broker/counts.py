"""What requests cost, by API, and what they move, by topic: Kafka's RequestMetrics and BrokerTopicMetrics.

::

    dispatch ─► ApiCounts       of an API: requests, bytes, seconds to the answer       the loop's thread
             ─► errors          by API and code
    handlers ─► TopicCounts     of a topic and of all: records, bytes, failures          any thread

A topic has counts from its first append or fetch on, if there is such a topic: so their number is bounded by
that of the topics. Any thread may read them: the numbers of one line may be of two requests.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from siltstone.broker.wire.apis import APIS, FETCH
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.fetch import FetchableTopicResponse

BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
"""Upper bounds of the histograms of times. A fetch that waits takes its wait, as in Kafka."""
_BOUNDS = tuple(bound / 1000 for bound in BOUNDS_MS)


class ApiCounts:
    """The requests of one API since the start. ``buckets``: how many took at most each of ``BOUNDS_MS``, and
    how many took longer. ``request_bytes`` and ``response_bytes`` are without the four of the length."""

    __slots__ = ("buckets", "request_bytes", "response_bytes", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.request_bytes = self.response_bytes = 0
        self.seconds = 0.0

    def answered(self, request_bytes: int, response_bytes: int, seconds: float) -> None:
        """Count one request, in the loop's thread."""
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        self.seconds += seconds

    @property
    def count(self) -> int:
        """How many requests there were."""
        return sum(self.buckets)

    def quantile_ms(self, share: float) -> float | None:
        """The time within which a share of the requests were answered, in ms, straight between the bounds
        around it, as Prometheus' ``histogram_quantile`` has it; None without requests."""
        buckets = list(self.buckets)
        rank, below = share * sum(buckets), 0
        if not rank:
            return None
        for number, count in enumerate(buckets):
            if below + count >= rank:
                if number == len(BOUNDS_MS):
                    break
                lower = BOUNDS_MS[number - 1] if number else 0.0
                return lower + (BOUNDS_MS[number] - lower) * (rank - below) / count
            below += count
        return float(BOUNDS_MS[-1])


class TopicCounts:
    """What requests have moved of one topic, or of all. Bytes are those of batches."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self.produces = self.fetches = self.failed_produces = self.failed_fetches = 0


class Counts:
    """The counts of a broker. ``of_api``: by API's key; ``errors``: by API's key and code; ``of_all`` and
    ``of_topic``: what was produced and fetched."""

    def __init__(self) -> None:
        self.of_api = {key: ApiCounts() for key in APIS}
        self.errors: Counter[tuple[int, int]] = Counter()
        self.of_all = TopicCounts()
        self.of_topic: dict[str, TopicCounts] = {}
        self._lock = threading.Lock()

    def topic(self, name: str) -> TopicCounts:
        """The counts of a topic that exists."""
        found = self.of_topic.get(name)
        return self.of_topic.setdefault(name, TopicCounts()) if found is None else found

    def appended(self, name: str, messages: int, size: int) -> None:
        """A batch was appended. In any thread."""
        topic, in_all = self.topic(name), self.of_all
        with self._lock:
            topic.produces += 1
            topic.messages_in += messages
            topic.bytes_in += size
            in_all.produces += 1
            in_all.messages_in += messages
            in_all.bytes_in += size

    def refused(self, key: int, codes: Iterable[int]) -> None:
        """Parts of an answer, or all of it, have these errors; 0 is none. In any thread."""
        with self._lock:
            for code in codes:
                if code:
                    self.errors[key, code] += 1

    def not_appended(self, name: str | None, key: int, code: int) -> None:
        """A batch was refused. ``name``: of its topic, if there is one. In any thread."""
        self.refused(key, (code,))
        with self._lock:
            for counts in (self.of_all, *([] if name is None else [self.topic(name)])):
                counts.produces += 1
                counts.failed_produces += 1

    def fetched(self, name: str | None, response: FetchableTopicResponse) -> None:
        """Partitions of a topic were answered. ``name``: the topic's, if there is one."""
        partitions = response.partitions
        size = sum(len(partition.records or b"") for partition in partitions)
        failed = sum(partition.error_code != 0 for partition in partitions)
        self.refused(FETCH, (partition.error_code for partition in partitions))
        with self._lock:
            for counts in (self.of_all, *([] if name is None else [self.topic(name)])):
                counts.fetches += len(partitions)
                counts.failed_fetches += failed
                counts.bytes_out += size

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Forget topics that are gone, as Kafka does."""
        for name in set(self.of_topic).difference(names):
            del self.of_topic[name]


class _Codes(NamedTuple):
    """Where a kind of message has error codes: in itself; in the structures of its fields."""

    has_code: bool
    within: tuple[tuple[str, _Codes], ...]


def codes_in(message: Message) -> Iterator[int]:
    """The error codes of an answer and of its parts, with those that are 0."""
    return _codes_in(message, _codes_of(type(message)))


def _codes_in(message: Any, codes: _Codes) -> Iterator[int]:
    if codes.has_code:
        yield message.error_code
    for name, inner in codes.within:
        value = getattr(message, name)
        for part in value if isinstance(value, tuple) else () if value is None else (value,):
            yield from _codes_in(part, inner)


@cache
def _codes_of(message: type[Message]) -> _Codes:
    within = []
    for name, hint in get_type_hints(message).items():
        for kind in _structures(hint):
            inner = _codes_of(kind)
            if inner.has_code or inner.within:
                within.append((name, inner))
    return _Codes("error_code" in message.__struct_fields__, tuple(within))


def _structures(hint: Any) -> Iterator[type[Message]]:
    """The structures in a field's type, such as ``tuple[PartitionData, ...] | None``."""
    if isinstance(hint, type) and issubclass(hint, Message):
        yield hint
    for inner in get_args(hint):
        yield from _structures(inner)
