"""What our own REST API tells: pages of lists, records, previews, cleanings, transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from siltstone.base.records.build import NewBatchHeader
from siltstone.commands import console
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition
from siltstone.runtime.producing import NewRecord, append
from siltstone.web import limits
from tests.web.conftest import client_of

TOPIC = "/api/v1/topics/users"
RECORD = f"{TOPIC}/partitions/0/records"


@dataclass
class Numbered:
    """A row of a list."""

    number: int

    def to_json(self) -> dict[str, object]:
        return {"number": self.number}


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


def test_one_record_and_its_value(client: TestClient, served: Served) -> None:
    served.opened().send("users", b"\0\xff", key=b"b", partition=0)
    served.opened().send("users", None, key=b"a", partition=0)
    shown = client.get(f"{RECORD}/0").json()
    assert shown == client.get(f"{TOPIC}/records?partition=0&offset=0&limit=1").json()["records"][0]
    assert client.get(f"{RECORD}/1?value_decoding=hex").json()["value"]["text"] == "00ff"
    value = client.get(f"{RECORD}/1/value")
    assert (value.status_code, value.content) == (200, b"\0\xff")
    assert value.headers["content-disposition"] == 'attachment; filename="0-1.bin"'
    assert value.headers["content-type"] == "application/octet-stream"
    assert client.get(f"{RECORD}/2/value").status_code == 204
    assert client.get(f"{RECORD}/0/why").json()["superseded_by"] == 2


@pytest.mark.parametrize("part", ["", "/value", "/why"])
def test_a_record_that_is_not_there_is_not_found(client: TestClient, part: str) -> None:
    for offset in (-1, 1, 1 << 70):
        answer = client.get(f"{RECORD}/{offset}{part}")
        assert (answer.status_code, answer.json()["error_code"]) == (404, 404), answer.text
    assert client.get(f"{RECORD}/x{part}").status_code == 400
    assert client.get(f"{TOPIC}/partitions/7/records/0{part}").json()["error_code"] == 40403
    assert client.get(f"/api/v1/topics/none/partitions/0/records/0{part}").json()["error_code"] == 40403


def test_a_masked_record_shows_neither_key_nor_value(
    properties: Path, open_served: Callable[..., Served]
) -> None:
    properties.write_text("log.cleaner.enable=false\nsiltstone.http.mask=users:key,users:value\n")
    served = open_served()
    served.opened().topics.create("users", 1, {})
    served.opened().send("users", b"secret", key=b"who", partition=0)
    client = client_of(served)
    record = client.get(f"{RECORD}/0")
    assert (record.json()["key"]["kind"], record.json()["value"]["kind"]) == ("masked", "masked")
    value = client.get(f"{RECORD}/0/value")
    assert (value.status_code, value.json()["error_code"]) == (400, 40002)
    assert "masked" in value.json()["message"]
    for answer in (record, value):
        assert "secret" not in answer.text and "who" not in answer.text.replace("who set the mask", "")


def test_a_change_is_previewed_and_nothing_changes(client: TestClient, served: Served) -> None:
    before = dict(served.describe("users").config)
    change = {"set": {"retention.ms": "1", "cleanup.policy": "delete"}, "remove": []}
    preview = client.post(f"{TOPIC}/configs:preview", json=change).json()
    assert {setting["name"] for setting in preview["changed"]} == {"retention.ms", "cleanup.policy"}
    assert [part["partition"] for part in preview["partitions"]] == [0, 1]
    assert any("no longer compacts" in sentence for sentence in preview["sentences"])
    assert any("a segment when it is older than 1 ms" in sentence for sentence in preview["sentences"])
    assert dict(served.describe("users").config) == before
    assert served.opened_changes().newest() == []


def test_a_preview_works_in_look_mode(served: Served, open_served: Callable[..., Served]) -> None:
    served.opened().flush()
    looking = open_served(is_look=True)
    looking.cataloguer.refresh()
    answer = client_of(looking).post(f"{TOPIC}/configs:preview", json={"remove": ["cleanup.policy"]})
    assert answer.json()["changed"] == [{"name": "cleanup.policy", "before": "compact", "after": "delete"}]


@pytest.mark.parametrize(
    "body", [[], {"set": {"retention.ms": 5}}, {"set": {"no.such": "1"}}, {"remove": "x"}, {"x": 1}, "x"]
)
def test_a_wrong_preview_is_refused(client: TestClient, body: object) -> None:
    assert client.post(f"{TOPIC}/configs:preview", json=body).status_code == 400
    assert client.post("/api/v1/topics/none/configs:preview", json={}).status_code == 404


def test_the_cleanings_of_one_topic(client: TestClient, served: Served) -> None:
    served.opened().topics.create("other", 1, {"cleanup.policy": "compact"})
    for topic in ("other", "users"):
        for _ in range(2):
            served.opened().send(topic, b"2", key=b"a", partition=0)
        served.opened()[topic, 0].roll()
    served.opened().flush()
    assert client.get(f"{TOPIC}/cleanings").json() == {"cleanings": [], "total": 0, "next_start": None}
    served.opened_cleaner().clean_once()
    served.opened_cleaner().clean_once()
    cleanings = client.get(f"{TOPIC}/cleanings").json()["cleanings"]
    assert {cleaning["topic"] for cleaning in cleanings} == {"users"}
    assert client.get(f"{TOPIC}/cleanings?count=0").status_code == 400
    assert client.get("/api/v1/topics/none/cleanings").status_code == 404


def test_the_cleaners_lists_have_pages(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = served.opened()
    for number in (0, 1):
        manager.mark_uncleanable(TopicPartition("users", number), "a damaged batch", 1)
        manager.send("users", b"2", key=b"a", partition=number)
        manager["users", number].roll()
    served.cataloguer.refresh()
    for name in ("queue", "uncleanable"):
        shown, start = list[int](), 0
        while start is not None:
            page = client.get(f"/api/v1/cleaner/{name}?count=1&start={start}").json()
            assert page["total"] == 2
            shown += [log["partition"] for log in page["logs"]]
            start = page["next_start"]
        assert sorted(shown) == [0, 1]
    monkeypatch.setattr(limits, "PAGE_BYTES", 1)  # at least one row
    for name, rows in (("topics", "topics"), ("cleaner/queue", "logs")):
        page = client.get(f"/api/v1/{name}?count=500").json()
        assert len(page[rows]) == 1 and page["next_start"] == (1 if page["total"] > 1 else None)
    assert client.get("/api/v1/cleaner/runs?start=7").json() == {
        "cleanings": [],
        "total": 0,
        "next_start": None,
    }


def test_offline_directories_and_a_lost_engine_are_shown(tmp_path: Path, properties: Path) -> None:
    paths = (tmp_path / "a", tmp_path / "b")
    with Served(ServeOptions(paths=paths, properties=properties, engine="process")) as served:
        client = client_of(served)
        served.cataloguer.refresh()
        assert client.get("/api/v1/overview").json()["cleaner"] == {
            "enabled": False,
            "engine_up": True,
            "dead_threads": 0,
        }
        served.opened().directories[1].go_offline("the disk failed")
        served.opened_cleaner()._metrics.cleaned([], is_engine_up=False)
        served.cataloguer.refresh()
        overview = client.get("/api/v1/overview").json()
        assert overview["notes"] == []  # that its own directories are in use is no news
        assert overview["offline"] == {str(paths[1]): "the disk failed"}
        assert not overview["cleaner"]["engine_up"]
        rows = {row["path"]: row for row in client.get("/api/v1/directories").json()["directories"]}
        served.cataloguer.refresh()
        assert (rows[str(paths[0])]["offline"], rows[str(paths[1])]["offline"]) == (None, "the disk failed")
        text = client.get("/ui/").text
        assert "1</strong> offline directory" in text and f"{paths[1]} is offline: the disk failed" in text
        assert "log cleaner <strong>off</strong>, engine lost" in text
        text = client.get("/ui/directories").text
        assert "the disk failed" in text and "no: the next start recovers it" in text
    with Served(ServeOptions(paths=paths, properties=properties, is_look=True)) as looking:
        looking.cataloguer.refresh()
        stopped = [
            row["stopped_cleanly"]
            for row in client_of(looking).get("/api/v1/directories").json()["directories"]
        ]
        assert stopped == [True, False]
        assert client_of(looking).get("/api/v1/overview").json()["cleaner"] is None


@pytest.mark.parametrize(
    "path", ["groups", "directories", "jobs", "changes", "cleaner/runs", "cleaner/savings"]
)
def test_lists_have_pages(
    client: TestClient, served: Served, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    name = {"cleaner/runs": "cleanings"}.get(path, path.rpartition("/")[2])
    rows = [Numbered(number) for number in range(60)]
    monkeypatch.setattr(served.jobs, "all", lambda: rows)
    for of_console in ("directories", "cleanings", "savings", "changes"):
        monkeypatch.setattr(console, of_console, lambda served: rows)
    monkeypatch.setattr(console, "groups", lambda served: (rows, ["a note"]))

    def page(query: str) -> tuple[list[int], object]:
        answer = client.get(f"/api/v1/{path}{query}").json()
        assert answer["total"] == 60
        return [row["number"] for row in answer[name]], answer["next_start"]

    assert page("") == (list(range(50)), 50)
    assert page("?start=50") == (list(range(50, 60)), None)
    assert page("?start=7&count=3") == ([7, 8, 9], 10)
    assert page("?start=60") == ([], None)
    for wrong in ("start=-1", "count=0", "count=501", "start=x"):
        assert client.get(f"/api/v1/{path}?{wrong}").status_code == 400


def scanned_transactions(client: TestClient, served: Served, query: str = "") -> dict[str, Any]:
    """What a scan that begins now finds."""
    served.scans.forget("transactions")
    client.get("/api/v1/transactions")
    served.scans.wait("transactions")
    return dict(client.get(f"/api/v1/transactions{query}").json())


def test_open_transactions(client: TestClient, served: Served) -> None:
    none = scanned_transactions(client, served)
    assert none["at_ms"] is not None and (none["error"], none["scanning"], none["looking"]) == (
        None,
        None,
        None,
    )
    assert (none["transactions"], none["total"], none["next_start"], none["notes"]) == ([], 0, None, [])
    shape = NewBatchHeader(producer_id=7, producer_epoch=3, base_sequence=0, transactional=True)
    append(served.opened()["users", 1], [NewRecord(key=b"k", value=b"v")], shape=shape)
    (transaction,) = scanned_transactions(client, served)["transactions"]
    assert (
        transaction["topic"],
        transaction["partition"],
        transaction["producer_id"],
        transaction["first_offset"],
    ) == (
        "users",
        1,
        7,
        0,
    )
    assert scanned_transactions(client, served, "?start=1")["transactions"] == []
    for query in ("start=users-1", "start=-1", "count=0"):
        assert client.get(f"/api/v1/transactions?{query}").status_code == 400, query


def test_a_topic_and_its_segments_have_pages(client: TestClient, served: Served) -> None:
    served.opened()["users", 0].roll()
    first = client.get(f"{TOPIC}?count=1").json()
    assert ([row["partition"] for row in first["logs"]], first["total"], first["next_start"]) == ([0], 2, 1)
    rest = client.get(f"{TOPIC}?start=1").json()
    assert ([row["partition"] for row in rest["logs"]], rest["next_start"]) == ([1], None)
    path = f"{TOPIC}/partitions/0/segments"
    first, rest = (client.get(f"{path}?{query}").json() for query in ("count=1", "start=1"))
    assert (len(first["segments"]), first["total"], first["next_start"]) == (1, 2, 1)
    assert (len(rest["segments"]), rest["next_start"]) == (1, None)
    assert first["segments"][0]["base_offset"] < rest["segments"][0]["base_offset"]
    for wrong in (f"{TOPIC}?start=-1", f"{path}?count=501"):
        assert client.get(wrong).status_code == 400
