"""What a broker shows of its clients: in the console, by REST, as metrics."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from siltstone.broker.limits import Limits
from siltstone.broker.measuring import METRICS, BrokerClients
from siltstone.broker.server import BrokerServer
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from siltstone.commands.clients import NO_BROKER, ClientConnection, Clients
from siltstone.commands.served import Served, ServeOptions
from tests.broker.conftest import ANY_PORT
from tests.broker.test_connection import frame
from tests.broker.test_server import WAITING_FETCH
from tests.support.broker import ServedBroker, context_of
from tests.support.log.batches import sent
from tests.support.wire_client import WireClient
from tests.web.conftest import client_of
from tests.web.test_pages import checked

BATCH = sent(3).tobytes()
QUOTAS = {
    "producer_byte_rate": 1e9,
    "consumer_byte_rate": 1e9,
    "request_percentage": 1e9,
    "controller_mutation_rate": 10.0,
}
HOSTILE = '<script>alert("=1")</script>' + "x" * 30_000


def produced(*topics: str) -> ProduceRequest:
    data = (PartitionProduceData(records=BATCH),)
    return ProduceRequest(
        acks=1, topic_data=tuple(TopicProduceData(name=name, partition_data=data) for name in topics)
    )


def fetched(*topics: str) -> FetchRequest:
    partition = FetchPartition(partition_max_bytes=1 << 20)
    return FetchRequest(
        max_bytes=1 << 20, topics=tuple(FetchTopic(topic=name, partitions=(partition,)) for name in topics)
    )


class Shared(NamedTuple):
    """A broker, its site, and two clients: one with a fetch that waits, one that was answered six times."""

    server: BrokerServer
    site: TestClient
    parked: WireClient
    busy: WireClient

    def connections(self, *states: str) -> list[ClientConnection]:
        """The connections once they are in these states: a client may have its answer a moment before the
        broker's thread goes on."""
        return shown_in_states(self.server, *states)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("measured")
    options = ServeOptions(paths=(root / "logs",), settings={"log.cleaner.enable": False})
    with Served(options) as served, BrokerServer(served, [ANY_PORT]) as server:
        for name in ("t", "u"):
            served.opened().topics.create(name, 1)
        served.cataloguer.refresh()
        served.opened().topics.replace_quotas({(("user", "ANONYMOUS"),): QUOTAS})
        server.broker.quotas.replace(served.opened().topics.quotas)
        assert server.broker.quotas.mutations(context_of(7), strict_from=0).take(1)
        server.start()
        parked, busy = (WireClient(server.addresses[0]) for _ in range(2))
        with contextlib.closing(parked), contextlib.closing(busy):
            ask(parked, busy)
            yield Shared(server, client_of(served), parked, busy)


def ask(parked: WireClient, busy: WireClient) -> None:
    parked.send(WAITING_FETCH, 12, client_id="parked")
    for request, version in (
        (produced("t"), 9),
        (produced("u", "missing"), 9),
        (fetched("u", "missing"), 12),
        (MetadataRequest(topics=(MetadataRequestTopic(name="bad name"),)), 12),
        (ApiVersionsRequest(), 0),
        (ApiVersionsRequest(), 0),
    ):
        busy.ask(request, version, client_id=HOSTILE)
    parked.receive(WAITING_FETCH, 12)
    parked.send(fetch_at_end(), 12, client_id="parked")


def clients_of(server: BrokerServer) -> Clients:
    clients = server.broker.served.clients
    assert clients is not None
    return clients


def shown_in_states(server: BrokerServer, *states: str) -> list[ClientConnection]:
    pause, connections = threading.Event(), list[ClientConnection]()
    for _ in range(2_000):
        connections = clients_of(server).connections()
        if [connection.state for connection in connections] == list(states):
            return connections
        pause.wait(0.01)
    raise AssertionError(connections)


def fetch_at_end() -> FetchRequest:
    partition = FetchPartition(fetch_offset=3, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=600_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(FetchTopic(topic="t", partitions=(partition,)),),
    )


def figures(text: str) -> Mapping[tuple[str, ...], float]:
    """By (name, values of the labels)."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_connections_are_shown_with_what_they_do(shared: Shared) -> None:
    shared.connections("parked", "idle")
    answer = shared.site.get("/api/v1/broker/connections").json()
    parked, busy = answer["connections"]
    assert (answer["total"], answer["next_start"]) == (2, None)
    assert (parked["client_id"], parked["api"], parked["requests"]) == ("parked", "Fetch", 2)
    assert (busy["api"], busy["requests"], busy["for_ms"]) == ("ApiVersions", 6, 0)
    assert busy["client_id"] == HOSTILE[:256]
    assert (busy["address"], busy["listener"]) == ("127.0.0.1", "PLAINTEXT")
    assert busy["bytes_in"] > 6 * 30_000 > busy["bytes_out"] > len(BATCH)
    paged = shared.site.get("/api/v1/broker/connections?start=1&count=1").json()
    assert [connection["number"] for connection in paged["connections"]] == [busy["number"]]
    assert shared.site.get("/api/v1/broker/connections?count=1").json()["next_start"] == 1


def test_requests_are_shown_by_api(shared: Shared) -> None:
    rows = {row["api"]: row for row in shared.site.get("/api/v1/broker/requests").json()["requests"]}
    request_counts = {"ApiVersions": 2, "Fetch": 2, "Metadata": 1, "Produce": 2}
    assert {name: row["requests"] for name, row in rows.items()} == request_counts
    assert {name: row["errors"] for name, row in rows.items() if row["errors"]} == {
        "Fetch": {"UNKNOWN_TOPIC_OR_PARTITION": 1},
        "Metadata": {"INVALID_TOPIC_EXCEPTION": 1},
        "Produce": {"UNKNOWN_TOPIC_OR_PARTITION": 1},
    }
    for row in rows.values():
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]


def test_the_pages_show_a_hostile_client_as_text(shared: Shared) -> None:
    connections, requests = (shared.site.get(path).text for path in ("/ui/clients", "/ui/clients/requests"))
    for page in (connections, requests):
        checked(page)
        assert NO_BROKER not in page
    assert "&lt;script&gt;" in connections
    assert "<script>alert" not in connections
    assert "parked" in connections
    assert "UNKNOWN_TOPIC_OR_PARTITION: 1" in requests
    rows = shared.site.get("/ui/clients?contains=PARKED&format=json").json()
    assert [row["client_id"] for row in rows] == ["parked"]
    assert shared.site.get("/ui/clients?sort=nothing").status_code == 400


def test_a_page_of_ten_thousand_connections_is_small(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(clients_of(shared.server).connections()[0], client_id="x" * 256)
    monkeypatch.setattr(BrokerClients, "connections", lambda self: [row] * 10_000)
    page = shared.site.get("/ui/clients")
    assert "10,000 rows" in page.text
    assert len(page.content) < 150_000


def test_metrics_have_kafkas_names(shared: Shared) -> None:
    shared.connections("parked", "idle")
    text = shared.site.get("/metrics").text
    metrics, size = figures(text), len(BATCH)
    api, topic = "kafka_network_requestmetrics_", "kafka_server_brokertopicmetrics_"
    expected = {
        (f"{api}requests_total", "Produce"): 2,
        (f"{api}totaltimems_count", "Fetch"): 2,
        (f"{api}errors_total", "UNKNOWN_TOPIC_OR_PARTITION", "Produce"): 1,
        (f"{topic}messagesin_total",): 6,
        (f"{topic}messagesin_total", "t"): 3,
        (f"{topic}bytesin_total",): 2 * size,
        (f"{topic}bytesout_total", "t"): size,
        (f"{topic}bytesout_total",): 2 * size,
        (f"{topic}failedproducerequests_total",): 1,
        (f"{topic}failedproducerequests_total", "t"): 0,
        (f"{topic}failedfetchrequests_total",): 1,
        ("kafka_server_socket_server_metrics_connection_count", "PLAINTEXT"): 2,
        ("kafka_server_socket_server_metrics_connection_creation_total", "PLAINTEXT"): 2,
        ("kafka_server_delayedoperationpurgatory_purgatorysize", "Fetch"): 1,
        ("siltstone_broker_refused_connections_total",): 0,
        ("siltstone_broker_throttled_connections",): 0,
        ("siltstone_broker_throttled_total", "Produce"): 0,
    }
    assert {key: metrics.get(key) for key in expected} == expected
    assert not any("missing" in key for key in metrics)
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert set(METRICS) <= set(kinds)
    assert {kinds[name] for name in METRICS if name.endswith("_total")} == {"counter"}
    opened = shared.site.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text
    assert f"{topic}bytesin" in {family.name for family in openmetrics_families(opened)}


def test_a_topic_that_is_deleted_leaves_the_metrics(broker: ServedBroker) -> None:
    counts, shown = broker.broker.counts, BrokerClients(broker.broker, None)  # type: ignore[arg-type]
    for name in ("goes", "stays"):
        broker.log(name)
        counts.appended(name, 1, 10)
    broker.manager.topics.delete("goes")
    (series,) = (metric for metric in shown.topic_metrics() if "bytesin" in metric.name)
    assert dict(zip(series.labels, series.values, strict=True)) == {"": 20, '{topic="stays"}': 10}


def test_refused_connections_half_requests_and_memory_are_seen(
    start_broker: Callable[..., BrokerServer], broker_served: Served
) -> None:
    server = start_broker(Limits(connections_per_address_max=1, memory_bytes_max=1 << 20))
    one, more = (WireClient(server.addresses[0]) for _ in range(2))
    assert more.is_closed()
    one.send_bytes(frame(b"x" * 100_000)[:70_000])
    (shown,) = shown_in_states(server, "receiving")
    assert (shown.client_id, shown.api, shown.requests, shown.for_ms) == (None, None, 0, 0)
    values = {sample.name: sample.value for sample in clients_of(server).samples()}
    assert values["siltstone_broker_refused_connections_total"] == 1
    used = values["kafka_network_socketserver_memorypoolused"]
    assert 0 < used == (1 << 20) - values["kafka_network_socketserver_memorypoolavailable"]
    for client in (one, more):
        client.close()
    server.stop()
    assert broker_served.clients is None
