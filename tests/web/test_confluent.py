"""Confluent's REST API v3: every route with right and wrong input."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from httpx import Response
from starlette.testclient import TestClient

from siltstone.commands import cluster as clusters
from siltstone.commands.served import Served, ServeOptions
from siltstone.web.rest.confluent import records
from siltstone.web.rest.confluent.shapes import Paging, listing
from tests.cli.test_groups import CLASSIC, batches, broker
from tests.web.conftest import BASE, client_of

Ask = Callable[..., Response]


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


@pytest.fixture
def root(client: TestClient) -> str:
    """The path of the one cluster."""
    (cluster,) = client.get("/v3/clusters").json()["data"]
    return f"/v3/clusters/{cluster['cluster_id']}"


@pytest.fixture
def ask(client: TestClient, root: str) -> Ask:
    """Sends a request below the cluster's path: ``ask("GET", "topics")``."""

    def send(method: str, path: str = "", **options: Any) -> Response:
        return client.request(method, f"{root}/{path}".rstrip("/"), **options)

    return send


def refused(answer: Response, status: int, number: int, text: str = "") -> None:
    """The answer has this status and Confluent's form of an error."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error_code", "message"}
    assert answer.json()["error_code"] == number, answer.text
    assert text in answer.json()["message"]


def data(answer: Response) -> list[dict[str, Any]]:
    """The resources of a list that has no further page."""
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["next"] is None
    return answer.json()["data"]  # type: ignore[no-any-return]


# Clusters and brokers.


def test_the_cluster_is_that_of_meta_properties(client: TestClient, served: Served, root: str) -> None:
    text = (served.options.paths[0] / "meta.properties").read_text()
    assert f"cluster.id={root.rpartition('/')[2]}\n" in text
    cluster = client.get(root).json()
    assert cluster["kind"] == "KafkaCluster"
    assert cluster["metadata"]["self"] == f"{BASE}{root}"
    assert cluster["topics"] == {"related": f"{BASE}{root}/topics"}
    refused(client.get("/v3/clusters/other"), 404, 404, "not 'other'")


def test_every_link_of_the_resources_leads_somewhere(client: TestClient, root: str) -> None:
    visited, waiting = set[str](), [f"{BASE}/v3/clusters"]
    while waiting:
        url = waiting.pop()
        if url in visited or "/topics/users/configs/" in url or "/brokers/0/configs/" in url:
            continue  # a setting has no further links
        visited.add(url)
        answer = client.get(url)
        assert answer.status_code == (400 if url.endswith("/acls") else 200), url
        waiting += _links(answer.json())
    assert {
        f"{BASE}{root}/{path}" for path in ("topics/users/partitions/1/replicas/0", "consumer-groups")
    } < visited


def _links(document: Any) -> list[str]:
    if isinstance(document, list):
        return [link for item in document for link in _links(item)]
    if not isinstance(document, dict):
        return []
    own = [document[name] for name in ("self", "related") if name in document]
    return own + [link for value in document.values() for link in _links(value)]


def test_the_older_prefix_answers_with_its_own_links(client: TestClient, root: str) -> None:
    answer = client.get(f"/kafka{root}/topics/users")
    assert answer.json()["metadata"]["self"] == f"{BASE}/kafka{root}/topics/users"


def test_there_is_one_broker_which_has_all_replicas(ask: Ask) -> None:
    assert [broker["broker_id"] for broker in data(ask("GET", "brokers"))] == [0]
    assert ask("GET", "brokers/0").json()["kind"] == "KafkaBroker"
    refused(ask("GET", "brokers/7"), 404, 404, "broker 0")
    refused(ask("GET", "brokers/x"), 400, 400, "broker_id")
    replicas = data(ask("GET", "brokers/0/partition-replicas"))
    assert [(replica["topic_name"], replica["partition_id"]) for replica in replicas] == [
        ("users", 0),
        ("users", 1),
    ]
    refused(ask("GET", "brokers/7/partition-replicas"), 404, 404)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_there_are_no_acls(ask: Ask, method: str) -> None:
    refused(ask(method, "acls"), 400, 40002, "security is off")


# Topics.


def test_a_topic_is_created_with_its_place_and_tag(ask: Ask, served: Served, root: str) -> None:
    body = {
        "topic_name": "orders",
        "partitions_count": 3,
        "replication_factor": 1,
        "configs": [{"name": "retention.ms", "value": "5"}, {"name": "segment.ms", "value": None}],
    }
    assert ask("POST", "topics", json={**body, "validate_only": True}).status_code == 200
    assert served.opened().topics.names() == ["users"]
    created = ask("POST", "topics", json=body)
    assert created.status_code == 201
    assert created.headers["location"] == f"{BASE}{root}/topics/orders"
    assert (created.json()["partitions_count"], created.json()["replication_factor"]) == (3, 1)
    assert dict(served.describe("orders").config) == {"retention.ms": "5"}
    assert created.headers["etag"] == ask("GET", "topics/orders").headers["etag"]
    assert [topic["topic_name"] for topic in data(ask("GET", "topics"))] == ["orders", "users"]
    assert ask("POST", "topics", json={"topic_name": "one"}).json()["partitions_count"] == 1


@pytest.mark.parametrize(
    ("body", "number", "text"),
    [
        ({"topic_name": "users"}, 40002, "users"),
        ({"topic_name": "a/b"}, 40002, "a/b"),
        ({"topic_name": "t", "partitions_count": 0}, 40002, "partitions"),
        ({"topic_name": "t", "partitions_count": 10_001}, 40002, "10,001 new partitions are too many"),
        ({"topic_name": "t", "partitions_count": 2147483647.0}, 40002, "too many"),
        ({"topic_name": "t", "replication_factor": 3}, 40002, "one broker"),
        ({"topic_name": "t", "configs": [{"name": "nonsense", "value": "1"}]}, 40002, "nonsense"),
        ({"topic_name": "t", "configs": [{"name": "retention.ms", "value": "x"}]}, 40002, "retention.ms"),
        ({"topic_name": "t", "replicas_assignments": []}, 400, "replicas_assignments"),
        ({}, 400, "topic_name"),
        ([], 400, "body"),
    ],
)
def test_a_bad_topic_is_not_created(ask: Ask, served: Served, body: Any, number: int, text: str) -> None:
    refused(ask("POST", "topics", json=body), 400, number, text)
    assert served.opened().topics.names() == ["users"]


def test_partitions_are_added_and_a_topic_deleted_as_it_was_read(ask: Ask, served: Served) -> None:
    tag = ask("GET", "topics/users").headers["etag"]
    refused(ask("PATCH", "topics/users", json={"partitions_count": 3}, headers={"If-Match": '"x"'}), 412, 412)
    grown = ask("PATCH", "topics/users", json={"partitions_count": 3}, headers={"If-Match": tag})
    assert grown.json()["partitions_count"] == 3
    refused(ask("PATCH", "topics/users", json={"partitions_count": 1}), 400, 40002)
    refused(ask("PATCH", "topics/users", json={"partitions_count": 10_004}), 400, 40002, "10,001 new")
    refused(ask("PATCH", "topics/none", json={"partitions_count": 1}), 404, 40403)
    refused(ask("DELETE", "topics/users", headers={"If-Match": '"x"'}), 412, 412)
    assert ask("DELETE", "topics/users", headers={"If-Match": tag}).status_code == 204
    assert served.opened().topics.names() == []
    refused(ask("DELETE", "topics/users"), 404, 40403)
    refused(ask("GET", "topics/users"), 404, 40403)


def test_pages_neither_repeat_nor_hide_topics(ask: Ask, client: TestClient, served: Served) -> None:
    for name in ("b", "d", "f"):
        served.opened().topics.create(name, 1, {})
    first = ask("GET", "topics?page_size=2").json()
    served.opened().topics.create("a", 1, {})
    served.opened().topics.delete("d")
    second = client.get(first["metadata"]["next"]).json()
    pages = [[topic["topic_name"] for topic in page["data"]] for page in (first, second)]
    assert pages == [["b", "d"], ["f", "users"]]
    assert second["metadata"]["next"] is None


@pytest.mark.parametrize("token", ["!", base64.b64encode(b"{}").decode(), base64.b64encode(b"7").decode()])
def test_a_token_of_another_list_is_refused(ask: Ask, token: str) -> None:
    refused(ask("GET", "topics", params={"page_size": 1, "page_token": token}), 400, 400, "page_token")


@pytest.mark.parametrize("size", ["0", "-1", "x", "10001"])
def test_a_page_has_a_size(ask: Ask, size: str) -> None:
    refused(ask("GET", f"topics?page_size={size}"), 400, 400, "page_size")


def test_partitions_replicas_and_offsets(ask: Ask) -> None:
    assert [partition["partition_id"] for partition in data(ask("GET", "topics/users/partitions"))] == [0, 1]
    assert ask("GET", "topics/users/partitions/1").json()["leader"]["related"].endswith("/1/replicas/0")
    (replica,) = data(ask("GET", "topics/users/partitions/0/replicas"))
    assert (replica["broker_id"], replica["is_leader"], replica["is_in_sync"]) == (0, True, True)
    refused(ask("GET", "topics/users/partitions/0/replicas/3"), 404, 404)
    offset = ask("GET", "topics/users/partitions/0/offset").json()
    assert (offset["beginning_offset"], offset["end_offset"]) == (0, 1)
    assert ask("GET", "topics/users/partitions/0/reassignment").json()["adding_replicas"] == []
    assert data(ask("GET", "topics/users/partitions/-/reassignment")) == []
    for path in ("", "/offset", "/replicas", "/reassignment"):
        refused(ask("GET", f"topics/users/partitions/2{path}"), 404, 40403, "partition 2")
        refused(ask("GET", f"topics/none/partitions/0{path}"), 404, 40403)


def test_the_replication_factor_is_that_of_the_replicas_that_are_listed(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in look mode over one broker of a cluster of several."""
    replicas = clusters.PartitionReplicas(leader=2, replicas=(0, 1, 2), in_sync=(0, 2))
    monkeypatch.setattr(clusters, "replicas_of", lambda *arguments: replicas)
    assert len(data(ask("GET", "topics/users/partitions/0/replicas"))) == 3
    for topic in (*data(ask("GET", "topics")), ask("GET", "topics/users").json()):
        assert topic["replication_factor"] == 3


# Settings.


def test_the_settings_of_a_topic(ask: Ask) -> None:
    listed = {setting["name"]: setting for setting in data(ask("GET", "topics/users/configs"))}
    policy = listed["cleanup.policy"]
    assert (policy["value"], policy["source"], policy["is_default"]) == (
        "compact",
        "DYNAMIC_TOPIC_CONFIG",
        False,
    )
    assert policy["synonyms"][0] == {
        "name": "cleanup.policy",
        "value": "compact",
        "source": "DYNAMIC_TOPIC_CONFIG",
    }
    assert listed["retention.ms"]["is_default"]
    one = ask("GET", "topics/users/configs/cleanup.policy")
    assert one.json() == policy
    assert one.headers["etag"] == ask("GET", "topics/users").headers["etag"]
    assert {setting["topic_name"] for setting in data(ask("GET", "topics/-/configs"))} == {"users"}
    refused(ask("GET", "topics/none/configs"), 404, 40403)
    refused(ask("GET", "topics/users/configs/nonsense"), 404, 404)


def test_one_setting_is_set_and_reset(ask: Ask, served: Served) -> None:
    path, tag = "topics/users/configs/retention.ms", ask("GET", "topics/users").headers["etag"]
    assert ask("PUT", path, json={"value": "7"}, headers={"If-Match": tag}).status_code == 204
    assert served.describe("users").config["retention.ms"] == "7"
    refused(ask("PUT", path, json={"value": "8"}, headers={"If-Match": tag}), 412, 412)
    refused(ask("DELETE", path, headers={"If-Match": tag}), 412, 412)
    assert ask("DELETE", path).status_code == 204
    assert "retention.ms" not in served.describe("users").config
    assert ask("DELETE", path).status_code == 204
    refused(ask("PUT", path, json={"value": "x"}), 400, 40002, "retention.ms")
    refused(ask("PUT", path, json={}), 400, 400, "value")
    refused(ask("PUT", "topics/users/configs/nonsense", json={"value": "1"}), 404, 404)
    refused(ask("DELETE", "topics/users/configs/nonsense"), 404, 404)
    refused(ask("PUT", "topics/none/configs/retention.ms", json={"value": "1"}), 404, 40403)


def test_settings_change_together_or_not_at_all(ask: Ask, served: Served) -> None:
    path = "topics/users/configs:alter"
    changes = [
        {"name": "retention.ms", "value": "7"},
        {"name": "cleanup.policy", "operation": "DELETE"},
        {"name": "segment.ms", "operation": "DELETE"},
    ]
    before = dict(served.describe("users").config)
    assert ask("POST", path, json={"data": changes, "validate_only": True}).status_code == 204
    bad = [*changes, {"name": "max.message.bytes", "value": "-5"}]
    refused(ask("POST", path, json={"data": bad}), 400, 40002, "max.message.bytes")
    refused(ask("POST", path, json={"data": [{"name": "nonsense", "operation": "DELETE"}]}), 400, 40002)
    refused(ask("POST", path, json={"data": [{"name": "retention.ms"}]}), 400, 400, "without a value")
    refused(ask("POST", path, json={"data": [{"name": "a", "operation": "APPEND"}]}), 400, 400)
    for again in ({"name": "retention.ms", "value": "8"}, {"name": "retention.ms", "operation": "DELETE"}):
        refused(ask("POST", path, json={"data": [*changes, again]}), 400, 400, "retention.ms is there twice")
    refused(ask("POST", path, json={"data": changes}, headers={"If-Match": '"x"'}), 412, 412)
    assert dict(served.describe("users").config) == before
    assert ask("POST", path, json={"data": changes}).status_code == 204
    assert dict(served.describe("users").config) == {"retention.ms": "7"}


@pytest.mark.parametrize("place", ["broker-configs", "brokers/0/configs"])
def test_the_brokers_settings_are_changed_in_its_file(
    ask: Ask, served: Served, properties: Path, place: str
) -> None:
    listed = ask("GET", place)
    tag = {"If-Match": listed.headers["etag"]}
    names = [setting["name"] for setting in listed.json()["data"]]
    assert "log.cleaner.enable" in names
    assert ("log.retention.ms" in names) == (place != "broker-configs")
    assert ask("PUT", f"{place}/log.retention.ms", json={"value": "9000"}, headers=tag).status_code == 204
    assert "log.retention.ms=9000\n" in properties.read_text()
    assert served.broker_settings()["retention.ms"] == 9000
    refused(ask("PUT", f"{place}/log.retention.ms", json={"value": "1"}, headers=tag), 412, 412)
    waits = ask("POST", f"{place}:alter", json={"data": [{"name": "log.cleaner.enable", "value": "true"}]})
    assert (waits.status_code, waits.json()) == (200, {"restart_pending": ["log.cleaner.enable"]})
    one = ask("GET", f"{place}/log.cleaner.enable").json()
    assert (one["value"], one["restart_pending"], one["is_read_only"]) == ("false", True, True)
    assert ask("DELETE", f"{place}/log.retention.ms").status_code == 204
    assert "retention" not in properties.read_text()
    refused(ask("PUT", f"{place}/nonsense", json={"value": "1"}), 404, 404)
    refused(ask("GET", f"{place}/nonsense"), 404, 404)
    refused(ask("DELETE", f"{place}/nonsense"), 404, 404)
    refused(ask("POST", f"{place}:alter", json={"data": [{"name": "nonsense", "value": "1"}]}), 400, 40002)
    refused(ask("GET", "brokers/9/configs"), 404, 404)


# Records.


def test_one_record_is_produced(ask: Ask, served: Served) -> None:
    body = {
        "partition_id": 1,
        "headers": [{"name": "h", "value": base64.b64encode(b"x").decode()}, {"name": "n", "value": None}],
        "key": {"type": "STRING", "data": "ä"},
        "value": {"type": "JSON", "data": {"a": [1, "ü"]}},
        "timestamp": "2026-01-02T03:04:05.678Z",
    }
    report = ask("POST", "topics/users/records", json=body)
    assert report.status_code == 200
    assert report.json() == {
        "error_code": 200,
        "cluster_id": report.json()["cluster_id"],
        "topic_name": "users",
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "key": {"type": "STRING", "size": 2},
        "value": {"type": "JSON", "size": 14},
    }
    (record,) = served.opened()["users", 1]
    assert (record.key, record.value) == ("ä".encode(), '{"a":[1,"ü"]}'.encode())
    assert list(record.headers) == [(b"h", b"x"), (b"n", None)]
    change = served.opened_changes().newest(1)[0]
    assert (change.action, change.target, dict(change.after)) == ("produce", "users", {"records": 1})


@pytest.mark.parametrize(
    ("body", "status", "number", "text"),
    [
        (b"", 422, 42206, "empty"),
        (b" \n ", 422, 42206, "empty"),
        (b"{", 400, 400, "malformed JSON"),
        (b"\xff", 400, 400, "UTF-8"),
        (b"[]", 400, 400, ""),
        (b'{"key": {"type": "JSON", "data": NaN}}', 400, 400, "NaN"),
        (b'{"key": {"type": "JSON", "data": [1e400]}}', 400, 400, "key: it cannot be written as JSON"),
        pytest.param(b"[" * 100_000, 400, 400, "malformed JSON", id="deep"),
        (b'{"value": {"type": "AVRO", "data": 1}}', 422, 42206, "schema"),
        (b'{"value": {"data": 1}}', 422, 42206, "schema"),
        (b'{"value": {"type": "JSON", "data": 1, "schema_id": 7}}', 422, 42206, "schema"),
        (b'{"value": {"type": "BINARY", "data": "!"}}', 400, 400, "base64"),
        (b'{"value": {"type": "STRING", "data": 1}}', 400, 400, "STRING data must be a string"),
        (b'{"headers": [{"name": "h", "value": "!"}]}', 400, 400, "header h"),
        (b'{"timestamp": "2026-01-02T03:04:05"}', 400, 400, "timestamp"),
        (b'{"partition_id": -1}', 400, 400, "partition_id"),
        (b'{"partition_id": 9, "key": {"type": "STRING", "data": "k"}}', 404, 40403, "partition 9"),
        (b'{"value": {"type": "STRING", "data": "without a key"}}', 400, 40002, "key"),
        (b'{"nonsense": 1}', 400, 400, "nonsense"),
    ],
)
def test_a_bad_record_is_not_produced(
    ask: Ask, served: Served, body: bytes, status: int, number: int, text: str
) -> None:
    refused(ask("POST", "topics/users/records", content=body), status, number, text)
    assert [log.log_end_offset for log in served.opened()["users"].logs()] == [1, 0]


def test_concatenated_records_get_a_report_each(ask: Ask, served: Served) -> None:
    def record(key: str, partition: int = 0) -> str:
        return json.dumps({"partition_id": partition, "key": {"type": "STRING", "data": key}})

    body = f"{record('a')}\n{record('b', 5)}  {record('c')}{{"
    answer = ask("POST", "topics/users/records", content=body)
    reports = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.status_code == 200
    assert [report["error_code"] for report in reports] == [200, 40403, 200, 400]
    assert [record.key for record in served.opened()["users", 0]] == [b"a", b"a", b"c"]
    refused(ask("POST", "topics/none/records", content=record("a")), 404, 40403)


def test_a_body_of_too_many_records_appends_none(
    ask: Ask, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CONCATENATED_MAX", 2)
    end = served.log("users", 0).log_end_offset
    record = '{"partition_id": 0, "key": {"type": "STRING", "data": "k"}}'
    refused(ask("POST", "topics/users/records", content=record * 3), 413, 413, "more than 2 records")
    assert served.log("users", 0).log_end_offset == end
    assert ask("POST", "topics/users/records", content=record * 2).status_code == 200


def test_a_batch_names_what_was_refused(ask: Ask, served: Served) -> None:
    entries = [
        {"id": "1", "key": {"type": "STRING", "data": "k"}, "value": {"type": "BINARY", "data": "AAE="}},
        {"id": "2", "key": {"type": "STRING", "data": "k"}, "value": None, "partition_id": 1},
        {"id": "3", "value": {"type": "PROTOBUF", "data": ""}},
    ]
    answer = ask("POST", "topics/users/records:batch", json={"entries": entries})
    assert answer.status_code == 200
    assert [success["id"] for success in answer.json()["successes"]] == ["1", "2"]
    assert [(failure["id"], failure["error_code"]) for failure in answer.json()["failures"]] == [("3", 42206)]
    is_json = {"Content-Type": "application/json"}
    for number in ("NaN", "-Infinity", "1e400"):
        body = f'{{"entries": [{{"id": "1", "key": {{"type": "JSON", "data": {number}}}}}]}}'
        answer = ask("POST", "topics/users/records:batch", content=body, headers=is_json)
        (failure,) = answer.json()["failures"]
        assert (failure["id"], failure["error_code"]) == ("1", 400), failure
    refused(ask("POST", "topics/users/records:batch", json={"entries": []}), 400, 400, "entries")
    refused(ask("POST", "topics/none/records:batch", json={"entries": entries}), 404, 40403)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"])
def test_a_body_that_is_no_json_is_refused(ask: Ask, kind: str) -> None:
    options: dict[str, Any] = {"content": b"{}", "headers": {"Content-Type": kind}}
    refused(ask("POST", "topics/users/records", **options), 415, 415, "application/json")
    refused(ask("POST", "topics", **options), 415, 415, "application/json")
    options["headers"] = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    refused(ask("POST", "topics/users/records", **options), 400, 40002)


# Consumer groups.


@pytest.fixture
def looking(tmp_path: Path) -> Callable[[str], Response]:
    """Asks a server that looks at a broker's directory with the group ``billing``."""
    directory = broker(tmp_path / "logs", batches(CLASSIC))
    with Served(ServeOptions(paths=(directory,), is_look=True)) as served:
        served.cataloguer.refresh()
        client = client_of(served)
        (cluster,) = client.get("/v3/clusters").json()["data"]

        def get(path: str) -> Response:
            return client.get(f"/v3/clusters/{cluster['cluster_id']}/{path}")

        yield get


def test_groups_are_read_from_the_directory(looking: Callable[[str], Response]) -> None:
    (group,) = data(looking("consumer-groups"))
    assert group == looking("consumer-groups/billing").json()
    assert (group["consumer_group_id"], group["is_simple"]) == ("billing", False)
    consumers = data(looking("consumer-groups/billing/consumers"))
    assert [consumer["consumer_id"] for consumer in consumers] == ["m1", "m2"]
    assert looking("consumer-groups/billing/consumers/m1").json() == consumers[0]
    assigned = data(looking("consumer-groups/billing/consumers/m1/assignments"))
    assert [(assignment["topic_name"], assignment["partition_id"]) for assignment in assigned] == [
        ("new", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    lags = {
        (lag["topic_name"], lag["partition_id"]): (
            lag["current_offset"],
            lag["log_end_offset"],
            lag["lag"],
        )
        for lag in data(looking("consumer-groups/billing/lags"))
    }
    assert lags[("orders", 0)] == (12, 10, -2)
    assert lags[("orders", 1)] == (10, 10, 0)
    assert lags[("gone", 0)] == (1, None, None)
    one = looking("consumer-groups/billing/lags/orders/partitions/1").json()
    assert (one["lag"], one["consumer_id"]) == (0, "m1")
    summary = looking("consumer-groups/billing/lag-summary").json()
    assert (summary["max_lag"], summary["max_lag_partition_id"], summary["total_lag"]) == (0, 1, 0)


def test_what_a_group_does_not_have_is_not_found(looking: Callable[[str], Response]) -> None:
    for path in ("", "/consumers", "/lags", "/lag-summary", "/consumers/m1", "/lags/orders/partitions/0"):
        refused(looking(f"consumer-groups/none{path}"), 404, 40405, "none")
    refused(looking("consumer-groups/billing/consumers/m9"), 404, 404)
    refused(looking("consumer-groups/billing/consumers/m9/assignments"), 404, 404)
    refused(looking("consumer-groups/billing/lags/orders/partitions/9"), 404, 404)


def test_directories_in_look_mode_are_described_and_not_changed(
    looking: Callable[[str], Response],
) -> None:
    assert [topic["topic_name"] for topic in data(looking("topics"))] == ["__consumer_offsets", "orders"]
    assert looking("topics/orders").headers["etag"]
    assert looking("topics/orders/partitions/0/offset").json()["log_end_offset"] == 10
    assert looking("topics/orders/configs/retention.ms").json()["source"] == "DEFAULT_CONFIG"
    assert looking("broker-configs").status_code == 200


def test_a_page_asks_for_no_more_keys_than_it_needs() -> None:
    def keys() -> Iterator[tuple[str, int]]:
        yield from (("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1))
        raise AssertionError("this page needs no more")

    def page(token: str | None) -> tuple[list[object], str | None]:
        answer = listing(
            "KafkaList", "http://x", keys(), lambda key: {"key": key}, Paging(size=2, token=token)
        )
        query = urlsplit(answer["metadata"]["next"]).query
        return [row["key"] for row in answer["data"]], parse_qs(query)["page_token"][0]

    first, token = page(None)
    second, _ = page(token)
    assert (first, second) == ([("a", 1), ("a", 2)], [("b", 1), ("b", 2)])
