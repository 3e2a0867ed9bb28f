"""What a broker shows of its clients: in the console, by REST, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from siltstone.broker.limits import Limits
from siltstone.broker.measuring import METRICS
from siltstone.broker.server import BrokerServer
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from siltstone.commands.clients import NO_BROKER
from siltstone.commands.served import Served
from tests.broker.test_connection import frame
from tests.broker.test_server import WAITING_FETCH
from tests.support.log.batches import sent
from tests.support.wire_client import WireClient
from tests.web.conftest import client_of
from tests.web.test_pages import checked

BATCH = sent(3).tobytes()
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


@pytest.fixture
def site(broker_served: Served) -> TestClient:
    broker_served.cataloguer.refresh()
    return client_of(broker_served)


@pytest.fixture
def asked(
    broker_server: BrokerServer, broker_served: Served, connect: Callable[[], WireClient]
) -> list[WireClient]:
    """A client with a fetch that waits, and one that has sent six requests; both have answers to all else."""
    for name in ("t", "u"):
        broker_served.opened().topics.create(name, 1)
    parked, busy = connect(), connect()
    parked.send(WAITING_FETCH, 12, client_id="parked")
    for request, version in (
        (produced("t"), 9),
        (produced("u", "missing"), 9),
        (fetched("u", "missing"), 12),
        (MetadataRequest(topics=(MetadataRequestTopic(name="bad name"),)), 12),
    ):
        busy.ask(request, version, client_id=HOSTILE)
    parked.receive(WAITING_FETCH, 12)
    parked.send(fetch_at_end(), 12, client_id="parked")
    busy.ask(ApiVersionsRequest(), 0, client_id=HOSTILE)
    busy.ask(ApiVersionsRequest(), 0, client_id=HOSTILE)
    return [parked, busy]


def fetch_at_end() -> FetchRequest:
    partition = FetchPartition(fetch_offset=3, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=600_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(FetchTopic(topic="t", partitions=(partition,)),),
    )


def shown_in_states(site: TestClient, *states: str) -> Any:
    """The connections once they are in these states: a client may have its answer a moment before the
    broker's thread goes on."""
    found: list[str] = []
    for _ in range(1_000):
        answer = site.get("/api/v1/broker/connections").json()
        found = [one["state"] for one in answer["connections"]]
        if found == list(states):
            return answer
    raise AssertionError(found)


def figures(text: str) -> Mapping[tuple[str, ...], float]:
    """By (name, values of the labels)."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_connections_are_shown_with_what_they_do(asked: list[WireClient], site: TestClient) -> None:
    answer = shown_in_states(site, "parked", "idle")
    parked, busy = answer["connections"]
    assert (answer["total"], answer["next_start"]) == (2, None)
    assert (parked["client_id"], parked["api"], parked["requests"]) == ("parked", "Fetch", 2)
    assert (busy["api"], busy["requests"], busy["for_ms"]) == ("ApiVersions", 6, 0)
    assert busy["client_id"] == HOSTILE[:256]
    assert (busy["address"], busy["listener"]) == ("127.0.0.1", "PLAINTEXT")
    assert busy["bytes_in"] > 6 * 30_000 > busy["bytes_out"] > len(BATCH)
    paged = site.get("/api/v1/broker/connections?start=1&count=1").json()
    assert [one["number"] for one in paged["connections"]] == [busy["number"]]
    assert site.get("/api/v1/broker/connections?count=1").json()["next_start"] == 1


def test_what_a_connection_does_is_seen_while_it_lasts(
    asked: list[WireClient], broker_server: BrokerServer, site: TestClient
) -> None:
    half = WireClient(broker_server.addresses[0])
    half.ask(ApiVersionsRequest(), 0)
    half.send_bytes(frame(b"x" * 1000)[:500])
    shown_in_states(site, "parked", "idle", "receiving")
    half.close()


def test_requests_are_shown_by_api(asked: list[WireClient], site: TestClient) -> None:
    rows = {row["api"]: row for row in site.get("/api/v1/broker/requests").json()["requests"]}
    assert {name: row["requests"] for name, row in rows.items()} == {
        "ApiVersions": 2,
        "Fetch": 2,
        "Metadata": 1,
        "Produce": 2,
    }
    errors = {name: row["errors"] for name, row in rows.items() if row["errors"]}
    assert errors == {
        "Fetch": {"UNKNOWN_TOPIC_OR_PARTITION": 1},
        "Metadata": {"INVALID_TOPIC_EXCEPTION": 1},
        "Produce": {"UNKNOWN_TOPIC_OR_PARTITION": 1},
    }
    for row in rows.values():
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]


def test_the_pages_show_a_hostile_client_as_text(asked: list[WireClient], site: TestClient) -> None:
    connections, requests = (site.get(path).text for path in ("/ui/clients", "/ui/clients/requests"))
    for page in (connections, requests):
        checked(page)
        assert NO_BROKER not in page
    assert "&lt;script&gt;" in connections and "<script>alert" not in connections
    assert "parked" in connections
    assert "UNKNOWN_TOPIC_OR_PARTITION: 1" in requests
    rows = site.get("/ui/clients?contains=PARKED&format=json").json()
    assert [row["client_id"] for row in rows] == ["parked"]
    assert site.get("/ui/clients?sort=nothing").status_code == 400


def test_a_page_of_ten_thousand_connections_is_small(
    broker_server: BrokerServer, site: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = WireClient(broker_server.addresses[0])
    client.ask(ApiVersionsRequest(), 0, client_id="x" * 300)
    (row,) = broker_server.broker.served.clients.connections()  # type: ignore[union-attr]
    monkeypatch.setattr("siltstone.broker.measuring.BrokerClients.connections", lambda self: [row] * 10_000)
    page = site.get("/ui/clients")
    assert "10,000 rows" in page.text
    assert len(page.content) < 150_000
    client.close()


def test_without_a_broker_the_lists_are_empty_and_say_why(broker_served: Served, site: TestClient) -> None:
    assert site.get("/api/v1/broker/connections").json() == {
        "connections": [],
        "total": 0,
        "next_start": None,
    }
    assert site.get("/api/v1/broker/requests").json() == {"requests": []}
    assert NO_BROKER in site.get("/ui/clients").text
    assert "kafka_network" not in site.get("/metrics").text


def test_metrics_have_kafkas_names(
    asked: list[WireClient], site: TestClient, broker_server: BrokerServer
) -> None:
    text = site.get("/metrics").text
    found = figures(text)
    api, topic = "kafka_network_requestmetrics_", "kafka_server_brokertopicmetrics_"
    size = len(BATCH)
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
    }
    assert {key: found.get(key) for key in expected} == expected
    assert not any("missing" in key for key in found)
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert set(METRICS) <= names
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert {kinds[name] for name in METRICS if name.endswith("_total")} == {"counter"}
    opened = site.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text
    families = {family.name for family in openmetrics_families(opened)}
    assert f"{topic}bytesin" in families


def test_a_topic_that_is_deleted_leaves_the_metrics(
    asked: list[WireClient], site: TestClient, broker_served: Served
) -> None:
    broker_served.opened().topics.delete("u")
    found = figures(site.get("/metrics").text)
    name = "kafka_server_brokertopicmetrics_bytesin_total"
    assert (name, "u") not in found
    assert found[name,] == 2 * len(BATCH)


def test_refused_connections_and_memory_are_seen(
    start_broker: Callable[..., BrokerServer], site: TestClient
) -> None:
    server = start_broker(Limits(connections_per_address_max=1, memory_bytes_max=1 << 20))
    one, more = (WireClient(server.addresses[0]) for _ in range(2))
    assert more.is_closed()
    one.ask(ApiVersionsRequest(), 0)
    one.send_bytes(frame(b"x" * 100_000)[:70_000])
    shown_in_states(site, "receiving")
    found = figures(site.get("/metrics").text)
    assert found["kafka_network_socketserver_memorypoolused",] > 0
    assert found["siltstone_broker_refused_connections_total",] == 1
    names = ("kafka_network_socketserver_memorypoolused", "kafka_network_socketserver_memorypoolavailable")
    assert sum(found[name,] for name in names) == 1 << 20
    for client in (one, more):
        client.close()


def test_a_broker_that_has_stopped_is_none(broker_server: BrokerServer, broker_served: Served) -> None:
    assert broker_served.clients is not None
    broker_server.stop()
    assert broker_served.clients is None
