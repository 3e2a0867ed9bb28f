"""Counters of requests by API and of produced and fetched records by topic (Kafka's ``RequestMetrics`` and
``BrokerTopicMetrics``).

::

    dispatch ─► ApiCounts       of an API: requests, bytes, seconds to the response     the loop's thread
             ─► errors          by API and code                                         any thread
    handlers ─► TopicCounts     of a topic, and of all: records, bytes, failures         any thread

Only topics that exist have counters, so there are at most as many as topics. Any thread may read them,
without a lock: numbers that are read together may differ by the requests that run meanwhile.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from siltstone.broker.request_context import Activity
from siltstone.broker.wire.apis import APIS, FETCH
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.fetch import FetchableTopicResponse

BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
"""Upper bounds of the histograms of times. The time of a fetch includes its wait, as in Kafka."""
_BOUNDS_SECONDS = tuple(bound / 1000 for bound in BOUNDS_MS)


class PhaseCounts:
    """The times of one phase of requests, such as their wait in a queue.

    ``seconds``: the sum of the times. ``buckets``: as those of ``ApiCounts``, but requests whose phase took
    at most the first bound are not counted, to save time; ``with_uncounted`` adds them.
    """

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS_SECONDS) + 1)
        self.seconds = 0.0

    def took(self, seconds: float, requests: int = 1) -> None:
        """Count requests whose phase took ``seconds`` each."""
        self.seconds += seconds * requests
        if seconds > _BOUNDS_SECONDS[0]:
            self.buckets[bisect_left(_BOUNDS_SECONDS, seconds)] += requests

    def with_uncounted(self, requests: int) -> list[int]:
        """The buckets for ``requests`` requests: those that ``took`` has not counted are in the first one."""
        buckets = list(self.buckets)
        buckets[0] += max(requests - sum(buckets), 0)
        return buckets


class ApiCounts:
    """The requests of one API since the start.

    ``buckets``: how many requests took at most one of ``BOUNDS_MS``, but longer than the bound before it; the
    last bucket has those that took longer than all bounds. ``seconds``: the sum of the times, which begin
    when a request is begun, and end with its response. The phases: ``queued``, before that; ``parked``, in
    the purgatory; ``throttled``; ``sent``, from the response until the socket has taken it. Of the
    ``parked_requests`` that were parked, ``parked_in_all`` has the whole times, and ``parked_local`` the
    times without the wait in the purgatory. ``request_bytes`` and ``response_bytes``: of frames, without the
    four bytes of their lengths.
    """

    __slots__ = (
        "buckets",
        "parked",
        "parked_in_all",
        "parked_local",
        "parked_requests",
        "queued",
        "request_bytes",
        "response_bytes",
        "seconds",
        "sent",
        "throttled",
    )

    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS_SECONDS) + 1)
        self.queued, self.parked, self.throttled, self.sent = (PhaseCounts() for _ in range(4))
        self.parked_in_all, self.parked_local = PhaseCounts(), PhaseCounts()
        self.parked_requests = self.request_bytes = self.response_bytes = 0
        self.seconds = 0.0

    def answered(self, request_bytes: int, response_bytes: int, seconds: float) -> None:
        """Count one request that took ``seconds``, in the loop's thread."""
        self.buckets[bisect_left(_BOUNDS_SECONDS, seconds)] += 1
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        self.seconds += seconds

    def note_phases(self, activity: Activity, seconds: float, now: float) -> None:
        """Count the phases of the request that was answered ``now``, after ``seconds``. In the loop's
        thread."""
        queued = activity.begun_at - activity.received_at if activity.received_at else 0.0
        self.queued.seconds += queued  # these lines are ``took`` without its call, which every request makes
        if queued > _BOUNDS_SECONDS[0]:
            self.queued.buckets[bisect_left(_BOUNDS_SECONDS, queued)] += 1
        if activity.parked_seconds:
            self.parked_requests += 1
            self.parked.took(activity.parked_seconds)
            self.parked_in_all.took(seconds)
            self.parked_local.took(max(seconds - activity.parked_seconds, 0.0))
        if activity.throttle_ms:
            self.throttled.took(activity.throttle_ms / 1000)
        # The connection counts the last phase, when the response is sent.
        activity.answered_at, activity.sent_phase = now, self.sent

    def phases(self) -> dict[str, tuple[list[int], float]]:
        """(buckets, seconds in all) of each phase, by Kafka's names. Kafka's ``responsequeuetimems`` is
        missing: there is no queue of responses."""
        count, parked = self.count, self.parked_requests
        parked_in_all = self.parked_in_all.with_uncounted(parked)
        parked_local = self.parked_local.with_uncounted(parked)
        # All of a request's time is local, except for those that were parked: they move from the buckets of
        # their whole times to those of their local times.
        buckets = zip(self.buckets, parked_in_all, parked_local, strict=True)
        local = [all_times - whole + without_wait for all_times, whole, without_wait in buckets]
        return {
            "requestqueuetimems": (self.queued.with_uncounted(count), self.queued.seconds),
            "localtimems": (local, self.seconds - self.parked.seconds),
            "remotetimems": (self.parked.with_uncounted(count), self.parked.seconds),
            "throttletimems": (self.throttled.with_uncounted(count), self.throttled.seconds),
            "responsesendtimems": (self.sent.with_uncounted(count), self.sent.seconds),
        }

    @property
    def count(self) -> int:
        """The number of requests."""
        return sum(self.buckets)

    def quantile_ms(self, share: float) -> float | None:
        """The quantile ``share`` (0 to 1) of the times, in ms; None without requests. It is interpolated
        linearly within its bucket, as by Prometheus' ``histogram_quantile``; in the last bucket, which has no
        upper bound, it is the largest of ``BOUNDS_MS``."""
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
    """Counters of one topic, or of all. ``produces``: batches that were appended or refused; ``fetches``:
    partitions in responses; ``messages_in``: records; bytes are those of batches."""

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
    """The counters of a broker. ``of_api``: by API key; ``errors``: by API key and error code; ``of_all``,
    ``of_topic``: of all topics together, and of each by its name."""

    def __init__(self) -> None:
        self.of_api = {key: ApiCounts() for key in APIS}
        self.errors: Counter[tuple[int, int]] = Counter()
        self.of_all = TopicCounts()
        self.of_topic: dict[str, TopicCounts] = {}
        self._lock = threading.Lock()

    def topic(self, name: str) -> TopicCounts:
        """The counters of a topic, which must exist."""
        counts = self.of_topic.get(name)
        return self.of_topic.setdefault(name, TopicCounts()) if counts is None else counts

    def appended(self, name: str, messages: int, size: int) -> None:
        """Count an appended batch with its records and bytes. In any thread."""
        topic, in_all = self.topic(name), self.of_all
        with self._lock:
            topic.produces += 1
            topic.messages_in += messages
            topic.bytes_in += size
            in_all.produces += 1
            in_all.messages_in += messages
            in_all.bytes_in += size

    def refused(self, key: int, codes: Iterable[int]) -> None:
        """Count the error codes of a response and of its parts; 0 is no error. ``key``: of the API. In any
        thread."""
        with self._lock:
            for code in codes:
                if code:
                    self.errors[key, code] += 1

    def append_failed(self, name: str | None, key: int, code: int) -> None:
        """Count a batch that was refused. ``key``: of the API; ``code``: the error; ``name``: of the topic,
        None if there is no such topic. In any thread."""
        self.refused(key, (code,))
        with self._lock:
            for counts in (self.of_all, *([] if name is None else [self.topic(name)])):
                counts.produces += 1
                counts.failed_produces += 1

    def fetched(self, name: str | None, response: FetchableTopicResponse) -> None:
        """Count the partitions of one topic in a Fetch response. ``name``: the topic's; None: count them only
        for all topics together."""
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
        """Remove the counters of deleted topics, as Kafka does; ``names``: the topics that exist."""
        for name in set(self.of_topic).difference(names):
            del self.of_topic[name]


class _Codes(NamedTuple):
    """Where messages of one class have error codes. ``has_code``: in a field ``error_code``; ``within``: in
    the structures of these fields, as (the field's name, where such a structure has them)."""

    has_code: bool
    within: tuple[tuple[str, _Codes], ...]


def codes_in(message: Message) -> Iterator[int]:
    """The error codes of a response and of its parts, including those that are 0."""
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
    """The message classes in the type of a field, such as ``tuple[PartitionData, ...] | None``."""
    if isinstance(hint, type) and issubclass(hint, Message):
        yield hint
    for inner in get_args(hint):
        yield from _structures(inner)
