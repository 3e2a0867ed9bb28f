"""What our own REST API changes: every route with right and wrong input."""

from __future__ import annotations

import errno

import pytest
from starlette.testclient import TestClient

from siltstone.commands.served import Served
from tests.web.conftest import client_of

PARTITION = "/api/v1/topics/users/partitions/0"


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


def tag_of(client: TestClient) -> str:
    tags = {client.get(f"/api/v1/topics/users{path}").headers["etag"] for path in ("", "/configs")}
    (tag,) = tags
    return tag


def test_settings_change_only_as_they_were_read(client: TestClient, served: Served) -> None:
    change = {"topic": "users", "set": {"retention.ms": "5"}, "remove": ["cleanup.policy"]}
    before = dict(served.describe("users").config)
    blind = client.post("/api/v1/topics:alter", json={"topics": [change]})
    assert (blind.status_code, blind.json()["error_code"]) == (428, 428)
    stale = {**change, "if_match": '"x"'}
    (refused,) = client.post("/api/v1/topics:alter", json={"topics": [stale]}).json()["topics"]
    assert refused["error_code"] == 412
    tagged = {"topics": [{**change, "if_match": tag_of(client)}]}
    (planned,) = client.post("/api/v1/topics:alter", json={**tagged, "validate_only": True}).json()["topics"]
    assert planned["after"] == {"retention.ms": "5"}
    assert dict(served.describe("users").config) == before
    (outcome,) = client.post("/api/v1/topics:alter", json=tagged).json()["topics"]
    assert (outcome["before"], outcome["after"]) == (before, {"retention.ms": "5"})
    assert outcome["etag"] == tag_of(client)


def test_each_of_many_topics_has_its_outcome(client: TestClient, served: Served) -> None:
    served.opened().topics.create("orders", 1, {})
    topics = [
        {"topic": "none", "set": {"retention.ms": "5"}},
        {"topic": "orders", "set": {"retention.ms": "5"}},
        {"topic": "users", "set": {"nonsense": "5"}},
    ]
    answer = client.post("/api/v1/topics:alter", json={"topics": topics}, headers={"If-Match": "*"})
    assert answer.status_code == 200
    assert [outcome.get("error_code") for outcome in answer.json()["topics"]] == [40403, None, 40002]
    assert served.describe("orders").config["retention.ms"] == "5"


def test_a_topic_on_a_broken_disk_hides_no_outcome_of_another(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = served.describe

    def failing(topic: str) -> object:
        if topic == "users":
            raise OSError(errno.EIO, "Input/output error")
        return describe(topic)

    served.opened().topics.create("orders", 1, {})
    monkeypatch.setattr(served, "describe", failing)
    topics = [{"topic": name, "set": {"retention.ms": "5"}} for name in ("orders", "users")]
    answer = client.post("/api/v1/topics:alter", json={"topics": topics}, headers={"If-Match": "*"})
    assert answer.status_code == 200
    assert [outcome.get("error_code") for outcome in answer.json()["topics"]] == [None, 50002]


@pytest.mark.parametrize("body", [{}, {"topics": []}, {"topics": [{"set": {}}]}, {"topics": [], "x": 1}, []])
def test_a_change_without_topics_is_refused(client: TestClient, body: object) -> None:
    assert client.post("/api/v1/topics:alter", json=body, headers={"If-Match": "*"}).status_code == 400


def test_a_topic_is_cleaned_as_a_job(client: TestClient, served: Served) -> None:
    served.opened().send("users", b"2", key=b"a", partition=0)
    queued = client.post("/api/v1/topics/users:clean", json={"force": True, "partitions": [0]})
    assert (queued.status_code, queued.json()["kind"]) == (202, "clean")
    served.jobs._futures[queued.json()["id"]].result(60)
    job = client.get(f"/api/v1/jobs/{queued.json()['id']}").json()
    assert (job["state"], job["error"]) == ("done", None)
    assert [record.value for record in served.opened()["users", 0]] == [b"2"]


@pytest.mark.parametrize("action", ["clean", "explain", "find-latest"])
def test_a_partition_that_is_named_twice_is_in_the_job_once(
    client: TestClient, served: Served, action: str
) -> None:
    job = client.post(f"/api/v1/topics/users:{action}", json={"partitions": [1, 0, 1, 1]}).json()
    assert job["target"] == "users-0, users-1"
    served.jobs.wait(job["id"], 60)


def test_a_cleaning_of_what_cannot_be_cleaned_is_refused(client: TestClient, served: Served) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
    assert client.post("/api/v1/topics/none:clean").status_code == 404
    assert client.post("/api/v1/topics/users:clean", json={"partitions": [9]}).status_code == 404
    assert client.post("/api/v1/topics/events:clean").status_code == 400
    for body in (
        {"force": "perhaps"},
        {"force": 1},
        {"force": "true"},
        {"partitions": [True]},
        {"partitions": ["0"]},
    ):
        assert client.post("/api/v1/topics/users:clean", json=body).status_code == 400
    assert served.jobs.all() == []


def test_a_partition_is_paused_resumed_and_tried_again(client: TestClient, served: Served) -> None:
    assert client.post(f"{PARTITION}:pause").status_code == 204
    assert client.post(f"{PARTITION}:resume").status_code == 204
    served.opened().mark_uncleanable(served.log("users", 0).topic_partition, "broken", 1)
    assert client.post(f"{PARTITION}:retry-cleaning").status_code == 204
    assert served.opened().uncleanable == {}
    assert client.post(f"{PARTITION}:retry-cleaning").status_code == 204
    actions = [change.action for change in served.opened_changes().newest()]
    assert actions == ["retry-cleaning", "resume-cleaning", "pause-cleaning"]


@pytest.mark.parametrize("action", ["pause", "resume", "retry-cleaning"])
def test_an_action_on_a_partition_that_is_not_here_is_refused(client: TestClient, action: str) -> None:
    assert client.post(f"/api/v1/topics/users/partitions/7:{action}").status_code == 404
    assert client.post(f"/api/v1/topics/none/partitions/0:{action}").status_code == 404
    assert client.post(f"/api/v1/topics/users/partitions/x:{action}").status_code == 400


def test_a_job_is_cancelled(client: TestClient, served: Served) -> None:
    job = served.jobs.submit("clean", "users", "-", lambda progress: None)
    served.jobs._futures[job.id].result(60)
    assert client.delete(f"/api/v1/jobs/{job.id}").json()["state"] == "done"
    assert client.delete("/api/v1/jobs/none").status_code == 404
