"""Emptying a topic and erasing a key over HTTP: the REST routes, and the console's pages."""

from __future__ import annotations

import errno
import html
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from siltstone.commands import console
from siltstone.commands.served import Served
from siltstone.web import site
from siltstone.web.identity import Role
from tests.web.conftest import client_of
from tests.web.test_pages import checked

ERASE, EMPTY = "/api/v1/topics/users:erase-key", "/api/v1/topics/users:empty"


@pytest.fixture
def client(served: Served) -> TestClient:
    served.opened().send("users", b"the-value", key=b"anna", partition=1)
    served.cataloguer.refresh()
    return client_of(served)


def same_of(text: str) -> str:
    """The commands beside the form of a page."""
    return "".join(re.findall(r'<details class="equivalents">.*?</details>', text, re.S))


def result_of(client: TestClient, served: Served, answer_json: dict[str, str]) -> dict[str, Any]:
    served.jobs.wait(answer_json["id"], 60)
    job = client.get(f"/api/v1/jobs/{answer_json['id']}").json()
    assert job["state"] == "done", job
    result: dict[str, Any] = job["result"]
    return result


def test_a_key_is_erased_as_a_job_that_has_no_key(client: TestClient, served: Served) -> None:
    dry = client.post(ERASE, json={"key": "616e6e61", "key_format": "hex", "dry_run": True})
    assert (dry.status_code, dry.json()["kind"], dry.json()["target"]) == (202, "erase-key", "users")
    (counted,) = result_of(client, served, dry.json())["keys"]
    assert (counted["status"], counted["values"], counted["partitions"]) == ("found", 1, [1])
    (erased,) = result_of(client, served, client.post(ERASE, json={"key": "anna"}).json())["keys"]
    assert erased["status"] == "values_gone"
    assert [record.value for record in served.opened()["users", 1]] == [None]
    shown = client.get("/api/v1/jobs").text + client.get("/api/v1/changes").text + client.get("/ui/jobs").text
    assert "anna" not in shown and "the-value" not in shown
    for page in ("jobs", "changes"):
        assert "no value of the key is left" in client.get(f"/ui/{page}").text
    step, order = client.get("/api/v1/changes").json()["changes"]
    assert (step["receipt"]["step"], order["action"], order["receipt"]) == ("values", "submit-job", None)


def test_a_topic_is_emptied_as_a_job(client: TestClient, served: Served) -> None:
    planned = result_of(
        client, served, client.post(EMPTY, json={"mode": "tombstones", "dry_run": True}).json()
    )
    assert [partition["keys"] for partition in planned["partitions"]] == [1, 1]  # type: ignore[attr-defined]
    assert served.opened()["users", 0].log_end_offset == 1
    result_of(client, served, client.post(EMPTY, json={"mode": "tombstones"}).json())
    assert [record.value for log in served.opened()["users"].logs() for record in log] == [None, None]
    truncated = result_of(client, served, client.post(EMPTY, json={"mode": "truncate"}).json())
    assert [partition["log_start_offset"] for partition in truncated["partitions"]] == [2, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (EMPTY, {}, 400),
        (EMPTY, {"mode": "burn"}, 400),
        (EMPTY, {"mode": "truncate", "force": True}, 400),
        ("/api/v1/topics/none:empty", {"mode": "truncate"}, 404),
        ("/api/v1/topics/events:empty", {"mode": "tombstones"}, 400),
        ("/api/v1/topics/__consumer_offsets:empty", {"mode": "truncate"}, 400),
        (ERASE, {}, 400),
        (ERASE, {"key": None}, 400),
        (ERASE, {"key": "zz", "key_format": "hex"}, 400),
        (ERASE, {"key": "a", "key_format": "rot13"}, 400),
        (ERASE, {"key": "\ud800"}, 400),
        ("/api/v1/topics/none:erase-key", {"key": "a"}, 404),
        ("/api/v1/topics/events:erase-key", {"key": "a"}, 400),
        ("/api/v1/topics/__consumer_offsets:erase-key", {"key": "a"}, 400),
    ],
)
def test_what_is_refused_becomes_no_job(
    client: TestClient, served: Served, path: str, body: dict[str, object], status: int
) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
    served.opened().topics.create("__consumer_offsets", 1, {"cleanup.policy": "compact"})
    answer = client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert served.jobs.all() == []


def test_a_key_of_a_megabyte_is_erased(client: TestClient, served: Served) -> None:
    key = "k" * 1_000_000
    served.opened().topics.alter("users", {"segment.bytes": "10000000"})
    served.opened().send("users", b"v", key=key.encode(), partition=0)
    answer = client.post(ERASE, json={"key": key}).json()
    assert [key["status"] for key in result_of(client, served, answer)["keys"]] == ["values_gone"]


def test_many_keys_are_erased_by_one_job(client: TestClient, served: Served) -> None:
    for key in (b"anna", b"bert"):
        served.opened().send("users", b"v", key=key)
    order = {"key": "6e6f", "keys": ["616e6e61", "62657274"], "key_format": "hex"}
    result = result_of(client, served, client.post(ERASE, json=order).json())
    assert [key["status"] for key in result["keys"]] == ["absent", "values_gone", "values_gone"]
    receipts = [change.receipt for change in served.opened_changes().all_of("erase-key", "users")]
    assert len(receipts) == 2 and None not in receipts
    for wrong in ({}, {"keys": []}, {"keys": ["a"] * 1001}, {"keys": "anna"}, {"keys": [None]}):
        assert client.post(ERASE, json=wrong).status_code == 400


def test_one_erasure_of_a_topic_at_a_time(client: TestClient, served: Served) -> None:
    go_on = threading.Event()
    served.jobs.submit("erase-key", "users", "-", lambda progress: go_on.wait(60))
    try:
        assert client.post(ERASE, json={"key": "anna"}).status_code == 429
    finally:
        go_on.set()


def test_what_cannot_be_recorded_is_not_done(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(served.opened_changes(), "_append", full)
    for path, body in (
        (ERASE, {"key": "anna"}),
        (EMPTY, {"mode": "tombstones"}),
        (EMPTY, {"mode": "truncate"}),
    ):
        refused = client.post(path, json=body)
        assert refused.status_code == 500 and "not recorded" in refused.json()["message"]
    assert served.jobs.all() == []
    logs = served.opened()["users"].logs()
    assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [(0, 1), (0, 1)]


def test_emptying_and_erasing_need_an_administrator(served: Served) -> None:
    app = client_of(served).app._app  # type: ignore[attr-defined]
    of_changes = {path: role for path, methods, role in site.routes_with_roles(app) if "POST" in methods}
    names = ("/api/v1/topics/{topic}:empty", "/api/v1/topics/{topic}:erase-key")
    for path in (*names, "/ui/topics/{topic}/empty", "/ui/topics/{topic}/erase"):
        assert of_changes[path] is Role.ADMIN


# Pages.


def test_a_page_shows_at_once_what_would_go_and_asks_for_the_name(client: TestClient, served: Served) -> None:
    text = client.get("/ui/topics/users/empty").text
    checked(text)
    assert "keys with a value" in text and "siltstone empty" in text
    refused = client.post("/ui/topics/users/empty", data={"mode": "tombstones", "typed": "user"})
    assert refused.status_code == 400 and "type users" in refused.text
    assert served.jobs.all() == []
    answer = client.post(
        "/ui/topics/users/empty", data={"mode": "tombstones", "typed": "users"}, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    assert served.jobs.wait(served.jobs.all()[0].id, 60).state == "done"
    assert [record.value for log in served.opened()["users"].logs() for record in log] == [None, None]


def test_the_mode_that_fits_the_policy_is_chosen(client: TestClient, served: Served) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
    served.opened().send("events", b"1", partition=0)
    served.cataloguer.refresh()
    text = client.get("/ui/topics/events/empty").text
    checked(text)
    assert "What would go" in text and "<option selected>truncate" in text
    assert "<option disabled>tombstones" in text and "a tombstone removes nothing" not in text
    assert "<option selected>tombstones" in client.get("/ui/topics/users/empty").text
    client.post("/ui/topics/events/empty", data={"mode": "truncate", "typed": "events"})
    assert served.jobs.wait(served.jobs.all()[0].id, 60).state == "done"
    assert list(served.opened()["events", 0]) == []


def test_a_key_is_looked_for_at_once_and_erased_when_the_name_is_typed(
    client: TestClient, served: Served
) -> None:
    form = {"key": "anna", "key_format": "utf8"}
    preview = client.post("/ui/topics/users/erase", data=form)
    checked(preview.text)
    assert "1 value and 0 tombstones of the key in 2 files (" in preview.text
    assert preview.headers["cache-control"] == "no-store" and "anna" not in same_of(preview.text)
    assert served.opened()["users", 1].log_end_offset == 1
    refused = client.post("/ui/topics/users/erase", data={**form, "typed": "x"})
    assert refused.status_code == 400 and "type users" in refused.text
    absent = client.post("/ui/topics/users/erase", data={"key": "nobody"})
    assert "No record has this key" in absent.text and 'name="typed"' not in absent.text
    answer = client.post("/ui/topics/users/erase", data={**form, "typed": "users"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    assert served.jobs.wait(served.jobs.all()[0].id, 60).state == "done"
    assert [record.value for record in served.opened()["users", 1]] == [None]


def test_a_large_topic_is_counted_and_searched_by_jobs(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "READ_BYTES", 0)
    assert "not counted" in client.get("/ui/topics/users/empty").text
    answer = client.post("/ui/topics/users/erase", data={"key": "anna"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    ended = served.jobs.wait(served.jobs.all()[0].id, 60)
    assert ended.result["keys"][0]["status"] == "found"  # type: ignore[index]


def test_a_hostile_key_is_text(client: TestClient) -> None:
    key = '"><script>alert(1)</script>\x1b'
    for form in ({"key": key}, {"key": key, "typed": "<b>"}, {"key": key, "key_format": "<i>"}):
        answer = client.post("/ui/topics/users/erase", data=form)
        checked(answer.text)
        assert "<script>alert" not in answer.text and html.escape("<script>") in answer.text


@pytest.mark.parametrize("topic", ["events", "__consumer_offsets", "none"])
def test_pages_of_topics_that_are_not_emptied(client: TestClient, served: Served, topic: str) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
    served.opened().topics.create("__consumer_offsets", 1, {"cleanup.policy": "compact"})
    served.cataloguer.refresh()
    for path in ("empty", "erase"):
        shown = client.get(f"/ui/topics/{topic}/{path}")
        assert shown.status_code == (404 if topic == "none" else 200)
        refused = client.post(f"/ui/topics/{topic}/{path}", data={"key": "a", "typed": topic})
        assert refused.status_code == (404 if topic == "none" else 400)
    assert served.jobs.all() == []


def test_look_mode_shows_what_would_go_and_changes_nothing(
    open_served: Callable[..., Served], served: Served, tmp_path: Path
) -> None:
    served.opened().flush()
    looking = open_served(is_look=True)
    looking.cataloguer.refresh()
    client = client_of(looking)
    for path in ("empty", "empty?mode=truncate", "erase"):
        text = client.get(f"/ui/topics/users/{path}").text
        checked(text)
        assert "<button disabled" in text and "look mode changes nothing" in text
    assert "keys with a value" in client.get("/ui/topics/users/empty").text
    assert client.post(ERASE, json={"key": "a", "dry_run": True}).status_code == 403
