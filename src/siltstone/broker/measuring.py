"""The metrics of a broker and its lists of connections and requests, from ``Sockets`` and ``Counts``. A
metric that Kafka has, too, has the name of Kafka's MBean, as the usual rules of Prometheus' JMX exporter
spell it; the names of others begin with ``siltstone_``."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from siltstone.base.errors import LogError
from siltstone.broker import quotas
from siltstone.broker.connection import IDLE, RECEIVING, THROTTLED, Connection
from siltstone.broker.counts import BOUNDS_MS, ApiCounts, TopicCounts
from siltstone.broker.errors import Code
from siltstone.broker.request_context import CLIENT_ID_MAX
from siltstone.broker.store import Broker
from siltstone.broker.wire.apis import APIS
from siltstone.commands.clients import ApiRequests, ClientConnection
from siltstone.commands.metrics import MetricFamily, Sample
from siltstone.commands.server_metrics import topic_label
from siltstone.runtime.metrics import samples_of

if TYPE_CHECKING:
    from siltstone.broker.server import Sockets

_API, _TOPIC, _SOCKETS = (
    "kafka_network_requestmetrics_",
    "kafka_server_brokertopicmetrics_",
    "kafka_server_socket_server_metrics_",
)
"""How the names of the metrics of APIs, of topics and of sockets begin."""
_HELP = {
    f"{_API}requests_total": "Requests by API.",
    f"{_API}requestbytes_total": "Bytes of requests by API.",
    f"{_API}responsebytes_total": "Bytes of responses by API; records in them, too.",
    f"{_API}totaltimems": "Milliseconds from the start of a request to its response, by API, with waits.",
    f"{_API}requestqueuetimems": "Milliseconds from the last bytes of a request until it is begun.",
    f"{_API}localtimems": "Milliseconds that a request is worked on, without its wait for records.",
    f"{_API}remotetimems": "Milliseconds that a request waits for records.",
    f"{_API}throttletimems": "Milliseconds for which a client is throttled for a request.",
    f"{_API}responsesendtimems": "Milliseconds from a response until the socket has taken it.",
    f"{_API}errors_total": "Errors in responses by API and Kafka's name, of requests and of their parts.",
    f"{_SOCKETS}connection_count": "Open connections by listener.",
    f"{_SOCKETS}connection_creation_total": "Accepted connections by listener.",
    "siltstone_broker_connections_max": "How many connections there may be: max.connections, or less.",
    "siltstone_broker_refused_connections_total": "Connections that were closed: their address had too many.",
    "kafka_server_delayedoperationpurgatory_purgatorysize": "Parked requests.",
    "kafka_network_socketserver_memorypoolused": "Bytes of requests and unsent responses.",
    "kafka_network_socketserver_memorypoolavailable": "Bytes that requests and responses may still take.",
    "siltstone_broker_memory_waiting_connections": "Connections that wait for memory.",
    "siltstone_broker_throttled_connections": "Connections that are not read: their clients are throttled.",
    "siltstone_broker_throttled_total": "How often a quota was exceeded, by its kind.",
    "siltstone_broker_throttled_ms_total": "Milliseconds of throttling that clients got, by kind of quota.",
    "kafka_server_produce_byte_rate": "Bytes of Produce requests a second, of clients with a quota.",
    "kafka_server_fetch_byte_rate": "Bytes of responses to Fetch a second, of clients with a quota.",
    "kafka_server_request_request_time": "Percent of a thread that requests take, of clients with a quota.",
    "kafka_server_controllermutation_tokens": "Partitions that may still be created or deleted.",
}
_QUOTA_METRICS = {
    quotas.PRODUCE: "kafka_server_produce_byte_rate",
    quotas.FETCH: "kafka_server_fetch_byte_rate",
    quotas.REQUEST: "kafka_server_request_request_time",
    quotas.MUTATION: "kafka_server_controllermutation_tokens",
}
"""The metric of each kind of quota but those of addresses."""
QUOTA_SERIES_MAX = 1_000
"""The most clients with quotas whose rates are metrics: those that took something last."""
_TOPIC_FIGURES: dict[str, tuple[str, Callable[[TopicCounts], int]]] = {
    "messagesin": ("Records that were appended.", lambda counts: counts.messages_in),
    "bytesin": ("Bytes of batches that were appended.", lambda counts: counts.bytes_in),
    "bytesout": ("Bytes of batches in responses to fetches.", lambda counts: counts.bytes_out),
    "totalproducerequests": ("Batches that were sent.", lambda counts: counts.produces),
    "failedproducerequests": ("Batches that were refused.", lambda counts: counts.failed_produces),
    "totalfetchrequests": ("Partitions in responses to fetches.", lambda counts: counts.fetches),
    "failedfetchrequests": (
        "Partitions in responses to fetches with an error.",
        lambda counts: counts.failed_fetches,
    ),
}
"""The metrics of topics by Kafka's name: the help text, and the value."""

METRICS = {**_HELP, **{f"{_TOPIC}{name}_total": meaning for name, (meaning, _) in _TOPIC_FIGURES.items()}}
"""The help texts of all metrics of a broker, by name."""


class BrokerClients:
    """The connections, requests and metrics of a broker (``commands.clients.Clients``). Its methods run in
    threads of the web server, and only read what the loop's thread writes; but ``topic_metrics`` removes the
    counts of deleted topics."""

    def __init__(self, broker: Broker, sockets: Sockets) -> None:
        self._broker, self._sockets = broker, sockets

    # Rows of the console and of REST

    def connections(self) -> list[ClientConnection]:
        """The open connections, the oldest first."""
        # A copy: the loop's thread may change the set meanwhile, but not during ``copy``, which is atomic.
        connections = sorted(self._sockets.connections.copy(), key=lambda connection: connection.info.number)
        now = time.perf_counter()
        return [_shown(connection, now) for connection in connections]

    def requests(self) -> list[ApiRequests]:
        """The APIs that had requests, by name."""
        errors = defaultdict[int, dict[str, int]](dict)
        for (key, code), count in self._errors():
            errors[key][_code_name(code)] = count
        return [
            ApiRequests(
                api=APIS[key].name,
                requests=counts.count,
                errors=errors[key],
                request_bytes=counts.request_bytes,
                response_bytes=counts.response_bytes,
                p50_ms=counts.quantile_ms(0.5),
                p95_ms=counts.quantile_ms(0.95),
                p99_ms=counts.quantile_ms(0.99),
            )
            for key, counts in self._requested_apis()
        ]

    def _requested_apis(self) -> list[tuple[int, ApiCounts]]:
        """(API key, counters) of the APIs that had requests, in the order of the APIs' names."""
        of_api = self._broker.counts.of_api
        return sorted(
            ((key, counts) for key, counts in of_api.items() if counts.count),
            key=lambda pair: APIS[pair[0]].name,
        )

    def _errors(self) -> list[tuple[tuple[int, int], int]]:
        """((API key, error code), how often), sorted."""
        return sorted(self._broker.counts.errors.copy().items())

    # Metrics

    def samples(self) -> list[Sample]:
        """The metrics of requests, connections, memory and quotas."""
        samples = list[Sample]()
        for key, counts in self._requested_apis():
            name = APIS[key].name
            values = {
                f"{_API}requests_total": counts.count,
                f"{_API}requestbytes_total": counts.request_bytes,
                f"{_API}responsebytes_total": counts.response_bytes,
            }
            samples += samples_of(values, _HELP, request=name)
            samples.append(_times(name, "totaltimems", counts.buckets, counts.seconds))
            for phase, (buckets, seconds) in counts.phases().items():
                samples.append(_times(name, phase, buckets, seconds))
        for (key, code), count in self._errors():
            value = {f"{_API}errors_total": count}
            samples += samples_of(value, _HELP, request=APIS[key].name, error=_code_name(code))
        return samples + self._socket_samples() + self._quota_samples()

    def _quota_samples(self) -> list[Sample]:
        quota_manager = self._broker.quotas
        states = Counter(connection.state for connection in self._sockets.connections.copy())
        samples = samples_of({"siltstone_broker_throttled_connections": states[THROTTLED]}, _HELP)
        for kind, totals in quota_manager.totals.items():
            values = {
                "siltstone_broker_throttled_total": totals.times,
                "siltstone_broker_throttled_ms_total": totals.milliseconds,
            }
            samples += samples_of(values, _HELP, quota=kind)
        for kind, group, value in quota_manager.rates()[-QUOTA_SERIES_MAX:]:
            if kind in _QUOTA_METRICS:
                rate, client_id = {_QUOTA_METRICS[kind]: value}, group.client_id[:CLIENT_ID_MAX]
                samples += samples_of(rate, _HELP, user=group.user, client_id=client_id)
        return samples

    def _socket_samples(self) -> list[Sample]:
        sockets, budget, samples = self._sockets, self._sockets.budget, list[Sample]()
        open_by_listener = Counter(connection.info.listener.name for connection in sockets.connections.copy())
        for listener in sorted(sockets.accepted_by.copy()):
            values = {
                f"{_SOCKETS}connection_count": open_by_listener[listener],
                f"{_SOCKETS}connection_creation_total": sockets.accepted_by[listener],
            }
            samples += samples_of(values, _HELP, listener=listener)
        parked = {"kafka_server_delayedoperationpurgatory_purgatorysize": self._broker.purgatory.parked}
        samples += samples_of(parked, _HELP, delayedOperation="Fetch")
        values = {
            "siltstone_broker_connections_max": sockets.limits.connections_max,
            "siltstone_broker_refused_connections_total": sockets.refused,
            "kafka_network_socketserver_memorypoolused": budget.used,
            "kafka_network_socketserver_memorypoolavailable": max(
                sockets.limits.memory_bytes_max - budget.used, 0
            ),
            "siltstone_broker_memory_waiting_connections": budget.waiting,
        }
        return samples + samples_of(values, _HELP)

    def topic_metrics(self) -> list[MetricFamily]:
        """The metrics of topics: of all topics together, without a label, and of each topic that exists."""
        counts, manager = self._broker.counts, self._broker.manager
        counts.forget_all_but(manager.topics.names())
        topics = sorted(counts.of_topic.copy().items())
        rows = [counts.of_all, *(of_topic for _, of_topic in topics)]
        labels = ["", *(topic_label(name) for name, _ in topics)]
        return [
            MetricFamily(
                name=f"{_TOPIC}{name}_total",
                help=meaning,
                labels=labels,
                values=[figure(row) for row in rows],
            )
            for name, (meaning, figure) in _TOPIC_FIGURES.items()
        ]


def _shown(connection: Connection, now: float) -> ClientConnection:
    """The row of a connection in the list of connections. ``now``: by ``time.perf_counter``, in seconds."""
    # ``state`` is read once: the loop's thread may change it meanwhile.
    info, activity, state = connection.info, connection.info.activity, connection.state
    api = APIS.get(activity.api_key)
    return ClientConnection(
        number=info.number,
        client_id=activity.client_id,
        address=info.peer,
        listener=info.listener.name,
        since_ms=info.since_ms,
        requests=activity.requests,
        bytes_in=activity.bytes_in,
        bytes_out=activity.bytes_out,
        api=None if api is None else api.name,
        state=state,
        for_ms=0 if state in (IDLE, RECEIVING) else max(int((now - activity.begun_at) * 1000), 0),
    )


def _times(api: str, name: str, counts: Sequence[int], seconds: float) -> Sample:
    """The histogram, in ms, of the times of an API's requests. ``name``: Kafka's, such as ``totaltimems``;
    ``counts``: requests by bucket, not cumulated; ``seconds``: the sum of their times."""
    total, buckets = 0, list[tuple[float, int]]()
    for bound, count in zip((*BOUNDS_MS, math.inf), counts, strict=True):
        total += count
        buckets.append((float(bound), total))
    metric = f"{_API}{name}"
    return Sample(
        name=metric,
        value=1000 * seconds,
        help=_HELP[metric],
        labels={"request": api},
        buckets=tuple(buckets),
    )


@cache
def _names_of_codes() -> dict[int, str]:
    """Kafka's names of the error codes that handlers set or that errors of logs have."""
    of_logs = {kind.error_code: kind.code for kind in LogError.__subclasses__()}
    return of_logs | {code.value: code.name for code in Code}


def _code_name(code: int) -> str:
    return _names_of_codes().get(code, str(code))
