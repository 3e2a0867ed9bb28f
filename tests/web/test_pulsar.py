"""Pulsar's administration of compaction: every route with right and wrong input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from httpx import Response
from msgspec.structs import replace
from starlette.testclient import TestClient

from siltstone.commands.served import Served
from tests.web.conftest import client_of

USERS = "/admin/v2/persistent/public/default/users"
NAMESPACE = "/admin/v2/namespaces/public/default/compactionThreshold"
RESOURCES = ("compaction", "compactionThreshold", "internalStats", "stats", "partitions")


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


def refused(answer: Response, status: int, text: str = "") -> None:
    """The answer has this status and Pulsar's form of an error."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"reason"}
    assert text in answer.json()["reason"]


def compacted(client: TestClient, served: Served, path: str = USERS) -> None:
    """Compact a topic and wait for its end."""
    assert client.put(f"{path}/compaction").status_code == 204
    assert served.opened_compactions().wait(60)


def test_a_topic_is_compacted(client: TestClient, served: Served) -> None:
    served.opened().send("users", b"2", key=b"a", partition=0)
    assert client.get(f"{USERS}/compaction").json() == {"status": "NOT_RUN", "lastError": ""}
    compacted(client, served)
    assert client.get(f"{USERS}/compaction").json() == {"status": "SUCCESS", "lastError": ""}
    stats = client.get(f"{USERS}/stats").json()
    assert stats["compaction"]["lastCompactionSucceedTimestamp"] > 0
    assert stats["compaction"]["lastCompactionFailedTimestamp"] == 0
    assert (stats["topic"], stats["backlogSize"]) == ("persistent://public/default/users", 0)
    internal = client.get(f"{USERS}/internalStats").json()
    assert internal["metadata"]["partitions"] == 2
    first = internal["partitions"]["persistent://public/default/users-partition-0"]
    assert first["compactedLedger"]["entries"] == 1
    assert first["cursors"]["__compaction"]["markDeletePosition"] == 1
    assert client.get(f"{USERS}-partition-0/internalStats").json() == first
    change = served.opened_changes().newest(1)[0]
    assert (change.action, change.outcome) == ("compact", "done")


def test_a_compaction_that_runs_is_not_begun_again(client: TestClient, served: Served) -> None:
    claim = served.opened().compaction_states.begin(served.log("users", 0).topic_partition)
    assert claim is not None
    refused(client.put(f"{USERS}/compaction"), 409, "in progress")
    claim.done()
    compacted(client, served)


def test_a_topic_in_a_namespace_of_its_own(client: TestClient, served: Served) -> None:
    served.opened().topics.create("acme.shop.orders", 1, {})
    path = "/admin/v2/persistent/acme/shop/orders"
    assert client.get(f"{path}/partitions").json()["partitions"] == 1
    assert client.post(f"{path}/compactionThreshold", json=7).status_code == 204
    assert served.describe("acme.shop.orders").config["compactionThreshold"] == "7"


def test_the_threshold_of_a_topic_and_of_its_namespace(client: TestClient) -> None:
    path = f"{USERS}/compactionThreshold"
    assert (client.get(path).status_code, client.get(path).content) == (204, b"")
    assert client.get(f"{path}?applied=true").json() == 0
    assert client.get(NAMESPACE).status_code == 204
    assert client.put(NAMESPACE, json=100).status_code == 204
    assert client.get(NAMESPACE).json() == 100
    assert client.get(path).status_code == 204
    assert client.get(f"{path}?applied=true").json() == 100
    assert client.post(path, json=5).status_code == 204
    assert client.get(path).json() == client.get(f"{path}?applied=true").json() == 5
    assert client.delete(path).status_code == client.delete(path).status_code == 204
    assert client.delete(NAMESPACE).status_code == 204
    assert client.get(f"{path}?applied=true").json() == 0


@pytest.mark.parametrize("body", ["x", "7", None, {}, [], 1.5, True, 1 << 63])
def test_a_threshold_is_a_number_of_bytes(client: TestClient, body: object) -> None:
    refused(client.post(f"{USERS}/compactionThreshold", json=body), 400)
    refused(client.put(NAMESPACE, json=body), 400)


def test_a_threshold_is_not_negative(client: TestClient) -> None:
    refused(client.post(f"{USERS}/compactionThreshold", json=-1), 412, "0 or more")
    refused(client.put(NAMESPACE, json=-1), 412, "0 or more")


@pytest.mark.parametrize("resource", RESOURCES)
def test_unknown_and_bad_names(client: TestClient, resource: str) -> None:
    refused(client.get(f"/admin/v2/persistent/public/default/none/{resource}"), 404, "none")
    refused(client.get(f"{USERS}-partition-7/{resource}"), 404)
    refused(client.get(f"/admin/v2/persistent/pub.lic/default/users/{resource}"), 412, "namespace")
    refused(client.get(f"/admin/v2/non-persistent/public/default/users/{resource}"), 405, "not stored")


def test_a_bad_namespace(client: TestClient) -> None:
    path = "/admin/v2/namespaces/a.b/c/compactionThreshold"
    refused(client.get(path), 412)
    refused(client.put(path, json=1), 412)
    refused(client.delete(path), 412)


def test_a_policy_that_was_changed_by_hand_is_an_error_that_names_it(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = served.opened().topics
    policies = {"public/default": {"compactionThreshold": "100MB"}}
    monkeypatch.setattr(topics, "_registry", replace(topics._registry, namespaces=policies))
    for path in (NAMESPACE, f"{USERS}/compactionThreshold?applied=true"):
        refused(client.get(path), 400, "namespace public/default")


def test_unknown_topics_are_not_changed(client: TestClient) -> None:
    path = "/admin/v2/persistent/public/default/none"
    refused(client.put(f"{path}/compaction"), 404)
    refused(client.post(f"{path}/compactionThreshold", json=1), 404)
    refused(client.delete(f"{path}/compactionThreshold"), 404)


def test_directories_in_look_mode(
    client: TestClient, served: Served, open_served: Callable[..., Served]
) -> None:
    compacted(client, served)
    looking = client_of(open_served(is_look=True))
    for resource in RESOURCES:
        here, there = (each.get(f"{USERS}/{resource}") for each in (client, looking))
        assert (here.status_code, here.content) == (there.status_code, there.content)
    refused(looking.put(f"{USERS}/compaction"), 403, "look mode")
