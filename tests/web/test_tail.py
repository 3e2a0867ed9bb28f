"""Streams of records, over a real connection: a test client has an answer only when it has ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.testclient import TestClient

from siltstone.base.errors import BusyError, StorageError
from siltstone.commands import streaming
from siltstone.commands.served import Served
from siltstone.web.limits import TAILS_MAX
from siltstone.web.rest.tail import NDJSON
from siltstone.web.running import WebServer
from tests.web.conftest import client_of

Event = tuple[str, str, dict[str, Any]]


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


@contextmanager
def tailing(
    server: WebServer, query: str = "", headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    url = urlsplit(server.urls[0])
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    connection.request("GET", f"/api/v1/topics/users/records:tail{query}", headers=dict(headers or {}))
    try:
        yield connection.getresponse()
    finally:
        connection.close()


@pytest.fixture
def server(served: Served) -> Iterator[WebServer]:
    server = WebServer(served, ["http://127.0.0.1:0"])
    server.start()
    yield server
    server.stop()


def event(answer: http.client.HTTPResponse) -> Event:
    """The next event: its id, its kind and its data."""
    fields = {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, text = line.partition(": ")
        fields[name] = text
    return fields.get("id", ""), fields["event"], json.loads(fields["data"])


def offsets(data: Mapping[str, Any]) -> list[int]:
    return [record["offset"] for record in data["records"]]


def test_a_tail_sees_new_records_until_the_topic_is_deleted(server: WebServer, served: Served) -> None:
    with tailing(server, "?offset=0&partition=0") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        _, kind, data = event(answer)
        assert (kind, offsets(data)) == ("records", [0])
        served.opened().send("users", b"2", key=b"b", partition=0)
        _, kind, data = event(answer)
        assert (kind, offsets(data)) == ("records", [1])
        served.opened().topics.delete("users")
        assert event(answer)[1] == "end"
        assert answer.read() == b""


def test_tails_of_one_log_read_in_one_thread_and_each_sees_every_record_once(
    server: WebServer, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, step = set[str](), streaming._Stream.step

    def stepping(stream: streaming._Stream) -> streaming._Step:
        threads.add(threading.current_thread().name)
        return step(stream)

    monkeypatch.setattr(streaming._Stream, "step", stepping)
    with contextlib.ExitStack() as stack:
        tails = [stack.enter_context(tailing(server, "?offset=0&partition=0&limit=2")) for _ in range(3)]
        for number in range(4):
            served.opened().send("users", b"%d" % number, key=b"a", partition=0)
        for tail in tails:
            received = list[int]()
            while len(received) < 5:
                received += offsets(event(tail)[2])
            assert received == [0, 1, 2, 3, 4]
    assert threads == {"siltstone-tails_0"}


def test_a_topic_of_the_same_name_is_another_one(server: WebServer, served: Served) -> None:
    with tailing(server, "?offset=0&partition=0") as answer:
        place, _, _ = event(answer)
        with served.opened().creation_or_deletion_lock:
            served.opened().topics.delete("users")
            served.opened().topics.create("users", 2, {})
        _, kind, data = event(answer)
        assert kind == "end"
        assert "users" in data["reason"]
    with tailing(server, "?partition=0", {"Last-Event-ID": place}) as refused:
        assert refused.status == 400


def test_the_compacted_view_is_read_on_after_a_lost_connection(server: WebServer, served: Served) -> None:
    for number in range(8):
        served.opened().send("users", b"%d" % number, key=b"k%d" % (number % 4), partition=0)
    compact(served)
    with tailing(server, "?view=compacted&partition=0&limit=2") as answer:
        place, kind, data = event(answer)
        assert (kind, offsets(data)) == ("records", [0, 5])
    # The reader is gone. A key that it has read is deleted, and a compaction applies that.
    served.opened().send("users", None, key=b"a", partition=0)
    compact(served)
    served.opened().send("users", b"new", key=b"k9", partition=0)
    for query, headers in (
        ("", {"Last-Event-ID": place}),
        (f"&cursor={quote(place)}", {"Last-Event-ID": "the cursor counts"}),
    ):
        with tailing(server, f"?view=compacted&partition=0&wait=false{query}", headers) as answer:
            *events, (_, end, _) = all_events(answer)
        assert {kind for _, kind, _ in events} == {"records"}
        assert [offset for _, _, data in events for offset in offsets(data)] == [6, 7, 8, 9, 10]
        assert end == "end"
    with tailing(server, "?view=compacted&partition=0&wait=false") as answer:
        fresh = [offset for _, _, data in all_events(answer) for offset in offsets(data)]
    assert fresh == [5, 6, 7, 8, 10]


def compact(served: Served) -> None:
    served.opened_compactions().trigger("users")
    assert served.opened_compactions().wait(60)


def all_events(answer: http.client.HTTPResponse) -> list[Event]:
    events: list[Event] = []
    while not events or events[-1][1] != "end":
        events.append(event(answer))
    return events


def test_lines_of_json_have_what_the_events_have(server: WebServer, served: Served) -> None:
    with tailing(server, "?view=compacted&wait=false") as answer:
        events = all_events(answer)
    with tailing(server, "?view=compacted&wait=false", {"Accept": NDJSON}) as answer:
        assert answer.headers["Content-Type"].startswith(NDJSON)
        lines = [json.loads(line) for line in answer.read().splitlines()]
    assert lines == [{"kind": kind, "id": place or None, **data} for place, kind, data in events]
    assert [line["kind"] for line in lines] == ["records", "end"]


def test_a_tail_says_why_it_ends(server: WebServer, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(topic: str, partition: int) -> None:
        raise StorageError("the directory is offline", path="logs")

    with tailing(server) as answer:
        monkeypatch.setattr(served, "log", offline)
        _, kind, data = event(answer)
        assert kind == "end"
        assert "offline" in str(data["reason"])


def test_tails_beyond_the_limit_are_refused(server: WebServer, served: Served) -> None:
    with tailing(server) as first:
        assert first.status == 200
        tails = server._server.config.app._app.state.tails  # type: ignore[union-attr]
        assert tails.count == 1
        tails.count = TAILS_MAX
        with tailing(server) as refused:
            assert refused.status == 429
            assert json.loads(refused.read())["error_code"] == 42901
        tails.count = 1
        served.opened().topics.delete("users")
        assert event(first)[1] == "end"
        assert first.read() == b""
    server.stop()  # the reader may have the last byte before the server has freed the place
    assert tails.count == 0


def test_a_tail_ends_with_the_server(served: Served) -> None:
    server = WebServer(served, ["http://127.0.0.1:0"])
    server.start()
    with tailing(server) as answer:
        assert answer.status == 200
        server.stop()
        _, kind, data = event(answer)
        assert (kind, data["reason"]) == ("end", "the reader was stopped")
        assert answer.read() == b""
    with pytest.raises(BusyError):
        server._tails.claim()


def test_a_tail_of_no_topic_or_with_wrong_parameters_is_refused(client: TestClient) -> None:
    assert client.get("/api/v1/topics/none/records:tail").status_code == 404
    assert client.get("/api/v1/topics/users/records:tail?partition=9").status_code == 404
    for query in (
        *("isolation=x", "cursor=x", "last=1", "until_ms=1", "view=latest", "view=x", "limit=0"),
        *("wait=perhaps", "key_decoding=x", "offset=-1", f"from_ms={1 << 80}", "newest_first=true"),
    ):
        answer = client.get(f"/api/v1/topics/users/records:tail?{query}")
        assert answer.status_code == 400, query
    assert client.get("/api/v1/topics/users/records:tail", headers={"Last-Event-ID": "x"}).status_code == 400
