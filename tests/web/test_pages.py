"""The console's pages, as a browser without script gets them: a real broker's directories in look mode, and
an open directory whose forms change things."""

from __future__ import annotations

import csv
import hashlib
import html
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

from siltstone import web
from siltstone.base.clock import SystemClock
from siltstone.base.errors import UsageError
from siltstone.commands import browsing, console
from siltstone.commands.clients import NO_BROKER
from siltstone.commands.latest_keys import LatestViews, WorkBudget
from siltstone.commands.served import Served, ServeOptions
from siltstone.commands.watch import STATES
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadableLog
from siltstone.web import limits
from siltstone.web.identity import Identity, Users
from siltstone.web.pages import rendering, topic_tabs
from siltstone.web.running import rules_of
from tests.support.golden_sets import unpack_broker
from tests.support.thoroughness import turn
from tests.web.conftest import client_of

LISTS = (
    "/ui/topics /ui/cleaner /ui/cleaner/runs /ui/cleaner/uncleanable /ui/cleaner/savings /ui/broker "
    "/ui/directories /ui/directories/0 /ui/groups /ui/transactions /ui/changes /ui/jobs /ui/api "
    "/ui/clients /ui/clients/requests "
    "/ui/topics/users/history /ui/topics/users/consumers"
).split()
PAGES = [*LISTS, "/ui/", "/ui/help", "/ui/new-topic", "/ui/selected?topic=users&action=clean"]
TABS = ["", "/records", "/configuration", "/history", "/consumers", "/produce"]


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A stopped broker's directories, which no test changes."""
    paths = unpack_broker(tmp_path_factory.mktemp("broker"))
    with Served(ServeOptions(paths=paths, is_look=True)) as served:
        served.cataloguer.refresh()
        while not served.cataloguer.current.figures.is_complete:  # counts take more than one time limit
            served.cataloguer.refresh_figures()
        yield served


@pytest.fixture
def looking(looked_at: Served) -> tuple[Served, TestClient]:
    return looked_at, client_of(looked_at)


class Outline(HTMLParser):
    """What a page is made of: tags that are open, ids, inline styles and scripts."""

    EMPTY = frozenset("meta link input br".split())

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        self.inline += [name for name in attributes if name == "style" or name.startswith(("on", "hx-on"))]
        if tag == "script" and "src" not in attributes:
            self.inline.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (self.open, tag)
        self.open.pop()


def checked(text: str) -> None:
    """A page is whole, has each id once, and nothing that its security policy forbids."""
    outline = Outline(text)
    assert outline.open in ([], ["html"]) and outline.inline == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert len(re.findall("<h1>", text)) == 1 and '<html lang="en"' in text


def test_every_page_of_a_real_brokers_directories_is_shown_and_changes_no_byte(
    looking: tuple[Served, TestClient],
) -> None:
    served, client = looking
    before = {path: path.stat().st_mtime_ns for root in served.paths for path in root.rglob("*")}
    paths = [*PAGES, *(f"/ui/topics/{name}{tab}" for name in served.catalogue.names for tab in TABS)]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[-300:])
        checked(answer.text)
        assert "look mode: nothing is changed" in answer.text
    assert {path: path.stat().st_mtime_ns for root in served.paths for path in root.rglob("*")} == before


def test_without_a_broker_the_lists_of_its_clients_say_so(looking: tuple[Served, TestClient]) -> None:
    _, client = looking
    assert all(NO_BROKER in client.get(f"/ui/clients{tab}").text for tab in ("", "/requests"))
    assert client.get("/api/v1/broker/connections").json()["total"] == 0
    assert client.get("/api/v1/broker/requests").json() == {"requests": []}


def test_a_page_that_has_not_changed_is_not_sent_again(
    looking: tuple[Served, TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, client = looking
    now_ms = served.clock.now_ms()  # a page changes with each minute that a log is overdue
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: now_ms)
    served.cataloguer.refresh()
    tag = client.get("/ui/topics").headers["etag"]
    served.cataloguer.refresh()  # a later look, and nothing new
    again = client.get("/ui/topics", headers={"If-None-Match": tag})
    assert again.status_code == 304 and again.content == b""


def test_the_list_of_topics_is_rendered_once_for_all_tabs(
    served: Served, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []

    def counted(*arguments: object, **values: object) -> str:
        rendered.append(str(arguments[2]))
        return rendering.render_page(*arguments, **values)  # type: ignore[arg-type]

    monkeypatch.setattr("siltstone.web.pages.topics.render_page", counted)
    first = client.get("/ui/topics")
    tag = {"If-None-Match": first.headers["etag"]}
    assert [client.get("/ui/topics", headers=tag).status_code for _ in range(5)] == [304] * 5
    assert client.get("/ui/topics").text == first.text and len(rendered) == 1
    client.get("/ui/theme/dark")
    assert "theme-dark" in client.get("/ui/topics").text and len(rendered) == 2
    assert client.get("/ui/topics?contains=x").status_code == 200 and len(rendered) == 3
    assert client.get("/ui/topics?sort=no").status_code == 400
    served.opened().topics.create("later", 1, {})
    served.cataloguer.refresh()
    again = client.get("/ui/topics", headers=tag)
    assert again.status_code == 200 and "later" in again.text
    rules = replace(rules_of(served.config, []), read_only_reason="read only")
    assert "later" in client_of(served, rules).get("/ui/topics").text


@pytest.mark.parametrize(("module", "path"), [("overview", "/ui/"), ("topic_tabs", "/ui/topics/users")])
def test_the_overview_and_a_topics_page_are_rendered_once_while_nothing_has_happened(
    served: Served, client: TestClient, monkeypatch: pytest.MonkeyPatch, module: str, path: str
) -> None:
    rendered: list[str] = []

    def counted(*arguments: object, **values: object) -> str:
        rendered.append(str(arguments[2]))
        return rendering.render_page(*arguments, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(f"siltstone.web.pages.{module}.render_page", counted)
    tag = {"If-None-Match": client.get(path).headers["etag"]}
    assert [client.get(path, headers=tag).status_code for _ in range(5)] == [304] * 5
    assert len(rendered) == 1
    catalogue = served.catalogue
    if module == "overview":
        served.opened().directories[0].go_offline("the disk failed")
        words = "the disk failed"
    else:
        served.opened().send("users", b"one more", key=b"kim", partition=0)
        words = f"end {served.opened()[TopicPartition('users', 0)].view.log_end_offset} "
    again = client.get(path, headers=tag)
    assert again.status_code == 200 and words in again.text and served.catalogue is catalogue


def test_a_topics_page_of_many_segments_is_not_kept(
    served: Served, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.web.pages.topic_tabs.CACHED_SEGMENTS_MAX", 0)
    monkeypatch.setattr("siltstone.web.pages.topic_tabs.cached_response", None)
    first = client.get("/ui/topics/users")
    again = client.get("/ui/topics/users", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)


def test_a_page_is_the_same_one_also_where_a_row_shows_the_time_of_the_last_look(
    looking: tuple[Served, TestClient],
) -> None:
    _, client = looking
    text = client.get("/ui/topics").text
    (read_at,) = re.findall("directories read (<time>[^<]*) UTC</time>", text)
    of_the_same_second = text.replace("</table>", f"<tr><td>{read_at}</td></tr></table>")
    later = of_the_same_second.replace(f"read {read_at}", "read <time>2126-11-27 03:00:00")
    assert later != of_the_same_second
    assert rendering.page_etag(later) == rendering.page_etag(of_the_same_second) != rendering.page_etag(text)


def test_in_look_mode_all_buttons_that_change_are_disabled_and_their_forms_refused(
    looking: tuple[Served, TestClient],
) -> None:
    _, client = looking
    ticked = "/ui/selected?topic=users&action="
    for path in (*PAGES, *(f"/ui/topics/users{tab}" for tab in TABS), f"{ticked}clean", f"{ticked}delete"):
        text = client.get(path).text
        for form in re.findall(r'<form method="post".*?</form>', text, re.S):
            if ":explain" in form:  # it only asks
                assert "disabled" not in form
                continue
            assert "look mode changes nothing" in form, (path, form)
            buttons = re.findall(r"<button[^>]*>", form)
            assert buttons and all("disabled" in button or 'formmethod="get"' in button for button in buttons)
    assert client.post("/ui/topics/users/clean").status_code == 403
    assert client.post("/ui/new-topic", data={"name": "new"}).status_code == 403


@pytest.mark.parametrize(
    ("query", "status", "shown"),
    [
        ("sort=bytes&descending=true&count=3", 200, "next page"),
        ("contains=nothing-has-this", 200, "No topic fits"),
        ("contains=HELD_", 200, "held_back"),
        ("state=dirty", 200, "held_back"),
        ("policy=compact,delete", 200, "events.cd"),
        ("sort=shape", 400, "there is no such column"),
        ("start=-1", 400, "start"),
        ("count=100000", 400, "count"),
    ],
)
def test_the_list_of_topics_sorts_filters_and_pages(
    looking: tuple[Served, TestClient], query: str, status: int, shown: str
) -> None:
    answer = looking[1].get(f"/ui/topics?{query}")
    assert answer.status_code == status and shown in answer.text


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", "50 records"),
        ("position=start", "50 records"),
        ("position=offset&offset=756", "2 records"),
        ("key=key-00006&view=latest", "1 record,"),
        ("key=key-00006", "No older record of this key is stored."),
        ("key=key-000", "part=key&amp;contains=key-000"),
        ("tombstones=true&position=start", "tombstone"),
        ("partition=7", "has no partition 7"),
        ("partition=x", "is no partition"),
        ("position=time&time=2000-01-01T00:00:00", "50 records"),
        ("position=time&time=soon", "is no time"),
        ("position=time&offset=7", "the time to begin from is missing"),
        ("position=offset", "the offset to begin from is missing"),
        ("key=key-00006&any_partition=true&committed=true&control=true", " read</caption>"),
        ("part=key&contains=key-00006&position=start", "key-00006"),
        ("part=header&contains=nothing-has-this&position=start", "No record"),
        ("view=newest", "is no view"),
        ("cursor=%00%01", "cursor is not valid"),
        ("value_decoding=rot13", "rot13"),
    ],
)
def test_records_are_found_and_wrong_questions_answered(
    looking: tuple[Served, TestClient], query: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = looking[1]
    # No search ends for its time, beside any load.
    monkeypatch.setattr(browsing.Budget.__init__, "__defaults__", (browsing.READ_BYTES, 300.0))
    # The last records of keys are found by the request, and not beside it: so nothing is "being found".
    client.app._app.state.latest = LatestViews(start=lambda work: work())  # type: ignore[attr-defined]
    answer = client.get(f"/ui/topics/users/records?{query}")
    assert (answer.status_code == 200) != ('role="alert"' in answer.text) and shown in answer.text
    checked(answer.text)


def test_help_has_every_word_that_pages_link_to_and_every_state(looking: tuple[Served, TestClient]) -> None:
    _, client = looking
    explained = set(Outline(client.get("/ui/help").text).ids)
    linked = set[str]()
    places = "/ui/ /ui/topics /ui/cleaner /ui/topics/users/why/0/756".split()
    for path in [*places, *(f"/ui/topics/users{tab}" for tab in TABS)]:
        text = client.get(path).text
        assert 'href="/ui/help"' in text and len(text.encode()) < 150_000, path
        linked |= set(re.findall(r'href="/ui/help#([^"]*)"', text))
    assert {"key", "log-start", "tombstone", "state-dirty"} <= linked <= explained
    assert {f"state-{name}" for name in STATES} <= explained


def test_a_topics_page_says_what_becomes_of_its_records(served: Served, client: TestClient) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete", "retention.bytes": "1000"})
    served.cataloguer.refresh()
    assert "the last record stays" in client.get("/ui/topics/users").text
    text = client.get("/ui/topics/events").text
    assert "older than 7 d or there are more than 1.0 kB" in text and "the last record stays" not in text
    served.opened().topics.alter("events", {"retention.bytes": "-1", "retention.ms": "-1"})
    served.cataloguer.refresh()
    assert "Neither age nor size limits" in client.get("/ui/topics/events").text
    served.opened().topics.alter("users", {"cleanup.policy": "compact,delete"})
    served.cataloguer.refresh()
    assert "also the last of a key, go when they are older than 7 d," in client.get("/ui/topics/users").text


def test_only_what_is_compacted_has_a_dirty_ratio(served: Served, client: TestClient) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete"})
    served.cataloguer.refresh()
    assert client.get("/ui/topics?contains=users").text.count(" / 0.50</td>") == 1
    assert " / 0.50</td>" not in client.get("/ui/topics?contains=events").text


def test_a_damaged_log_is_red_on_the_overview_and_names_the_byte(served: Served, client: TestClient) -> None:
    log = served.opened()[TopicPartition("users", 0)]
    served.opened().send("users", b"1", key=b"a", partition=0)
    log.roll()
    served.opened().serving()[0].write_cleaner_checkpoint(log.topic_partition, 2)
    closed = log.directory / f"{0:020d}.log"
    closed.write_bytes(b"\xff" * closed.stat().st_size)
    os.utime(closed, (0, 0))
    served.cataloguer.refresh()
    assert '<a href="/ui/cleaner/uncleanable"><strong>1</strong> more damaged' in client.get("/ui/").text
    assert ">users</a>" in client.get("/ui/topics?state=unreadable").text
    text = client.get("/ui/topics/users").text
    assert "It cannot be read: " in text and f"{closed}: byte " in text
    assert "unknown: a file is damaged" in text
    text = client.get("/ui/cleaner/uncleanable").text
    checked(text)
    assert str(closed) in text and f"siltstone dump {closed}" in text and "restore the partition" in text
    assert "not skipped yet" in text and "Retry:" not in text


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_damage_that_only_counting_meets_is_told_with_what_to_do(
    served: Served, client: TestClient, policy: str
) -> None:
    served.opened().topics.alter("users", {"cleanup.policy": policy})
    log = served.opened()[TopicPartition("users", 0)]
    log.roll()
    closed = log.directory / f"{0:020d}.log"
    closed.write_bytes(b"\0" * 8 + b"\0\0\0\1" + closed.read_bytes()[12:])  # the size of its batch
    served.cataloguer.refresh()
    assert served.catalogue.topic("users").state != "unreadable"
    text = client.get("/ui/topics/users").text
    checked(text)
    assert "unknown: a file is damaged" in text and "not counted yet" not in text
    assert f"A file of it is damaged: {closed}: byte 0: " in text
    assert ">damaged</a>" in client.get("/ui/topics").text
    row = re.findall("<tr>.*?</tr>", client.get("/ui/cleaner/uncleanable?contains=users").text)[1]
    assert str(closed) in row and "siltstone dump" in row and "users-0" in row
    assert ("it is damaged" in client.get("/ui/cleaner").text) == (policy == "compact")
    assert "<strong>1</strong> more damaged" in client.get("/ui/").text
    served.opened().topics.delete("users")
    served.cataloguer.refresh()
    assert "more damaged" not in client.get("/ui/").text


def test_a_topic_that_is_not_compacted_has_a_dry_run_of_retention_and_no_cleaning(
    served: Served, client: TestClient, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    served.opened().topics.create("events", 1, {"cleanup.policy": "delete", "retention.bytes": "0"})
    served.opened().send("events", b"1" * 100, key=b"a", partition=0)
    served.opened()[TopicPartition("events", 0)].roll()
    served.cataloguer.refresh()
    text = client.get("/ui/topics/events").text
    assert "what retention, as the topic is not compacted, would remove" in text
    assert "There is no Clean now" in text and ">Clean now</button>" not in text and ":clean" not in text
    client.post("/ui/topics/events:explain")
    wait_for(lambda: served.jobs.all()[0].has_ended)
    text = client.get("/ui/topics/events").text
    checked(text)
    assert "Retention would remove <strong>1 segment</strong> now, with 1 record (" in text
    assert "A cleaning now" not in text


def test_an_empty_policy_which_kafka_takes_too_is_said_to_remove_nothing(
    served: Served, client: TestClient
) -> None:
    served.opened().topics.create("keeps", 1, {"cleanup.policy": "", "retention.ms": "1000"})
    served.opened().send("keeps", b"1", key=b"a", partition=0)
    served.cataloguer.refresh()
    assert '>none</a></td><td class="n">' in client.get("/ui/topics").text
    text = client.get("/ui/topics/keeps").text
    checked(text)
    assert "<dd>none</dd>" in text and "(cleanup.policy is empty)" in text
    assert ">Clean now</button>" not in text and ":clean" not in text
    assert "nothing limits how long it stays" in client.get("/ui/topics/keeps/why/0/0").text
    assert "its policy is none." in client.get("/ui/topics/keeps/history").text
    text = client.get("/ui/topics/keeps/configuration").text
    assert '<option value="" selected>none</option>' in text and "Now: empty" in text
    assert "empty → delete" in client.get("/ui/topics/keeps/configuration?value=delete").text
    body = {"set": {"cleanup.policy": ""}}
    preview = client.post("/api/v1/topics/users/configs:preview", json=body).json()
    assert "Nothing is removed any more: cleanup.policy is empty." in preview["sentences"]


@pytest.mark.parametrize(
    ("name", "text", "meaning"),
    [
        ("log.cleaner.dedupe.buffer.size", "134217728", "134.2 MB"),
        ("brokerServiceCompactionThresholdInBytes", "2000", "2.0 kB"),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", "unlimited"),
        ("log.cleaner.threads", "1000", ""),
    ],
)
def test_the_value_of_a_setting_has_a_unit(name: str, text: str, meaning: str) -> None:
    assert rendering._meaning(text, name) == meaning


def test_a_lock_of_its_own_is_no_note(
    served: Served, client: TestClient, open_served: Callable[..., Served]
) -> None:
    note = "in use by another process"
    assert note not in client.get("/ui/").text
    beside = open_served(is_look=True)
    beside.cataloguer.refresh()
    assert note in client_of(beside).get("/ui/").text


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/ui/topics?start=-1", 400, "query.start"),
        ("/ui/topics?sort=<b>", 400, "there is no such column"),
        ("/ui/topics/users/history?count=0", 400, "query.count"),
        ("/ui/topics/<b>", 404, "there is no topic"),
        ("/ui/directories/9", 400, "there is no directory 9"),
        ("/ui/nothing", 404, "Not Found"),
        ("/ui/topics/users/clean", 405, "Method Not Allowed"),
    ],
)
def test_a_wrong_question_is_answered_in_the_frame_of_the_console(
    looking: tuple[Served, TestClient], path: str, status: int, message: str
) -> None:
    _, client = looking
    answer = client.get(path)
    checked(answer.text)
    assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")
    assert message in answer.text and "<b>" not in answer.text and 'aria-label="Pages"' in answer.text
    assert "etag" not in answer.headers
    in_text = client.get(path, headers={"Accept": "text/event-stream"})
    assert in_text.status_code == status and message in in_text.text and "<html" not in in_text.text


def test_a_missing_right_is_shown_in_the_frame_of_the_console(served: Served) -> None:
    users = Users("vera:viewer:sha256$" + hashlib.sha256(b"t").hexdigest(), "users")
    rules = rules_of(served.config, [], is_look=False)
    client = client_of(served, replace(rules, identity=Identity(auth="basic", users=users)))
    answer = client.get("/ui/topics/users/records", headers={"Authorization": "Bearer t"})
    checked(answer.text)
    assert answer.status_code == 403 and "<h1>Not allowed</h1>" in answer.text


def test_an_unknown_topic_and_file_are_404(looking: tuple[Served, TestClient]) -> None:
    _, client = looking
    for path in (
        "/ui/topics/nobody",
        "/ui/topics/nobody/records",
        "/ui/static/../site.py",
        "/ui/static/site.py",
    ):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/ui//evil.example", "/other"])
def test_the_switch_of_the_theme_leads_nowhere_else(looking: tuple[Served, TestClient], back: str) -> None:
    _, client = looking
    answer = client.get("/ui/theme/dark", params={"back": back}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/")
    assert 'class="theme-dark"' in client.get("/ui/").text
    client.get('/ui/theme/"><b>')
    assert 'class="theme-auto"' in client.get("/ui/").text


@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("users", "/ui/topics/users"),
        (" users 0 756 ", "/ui/topics/users/records?partition=0&position=offset&offset=756"),
        ("users x 1", "/ui/topics/users"),
        ("users a&b", "/ui/topics/users/records?key=a%26b"),
        ("log.cleaner.threads", "/ui/broker?name=log.cleaner.threads#change"),
        ("//evil.example", "/ui/topics?contains=%2F%2Fevil.example"),
        ("", "/ui/topics?"),
    ],
)
def test_a_jump_leads_to_what_was_written(looking: tuple[Served, TestClient], to: str, place: str) -> None:
    answer = looking[1].get("/ui/jump", params={"to": to}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, place)


HOSTILE = b"<script>alert(1)</script>\"'&\x00\x1b[31m\xe2\x80\xae\xff"


def test_hostile_records_are_text(served: Served) -> None:
    served.opened().send("users", HOSTILE, key=HOSTILE, partition=0, headers=[("<b>", HOSTILE)])
    for decoding in ("auto", "utf8", "hex", "json"):
        url = f"/ui/topics/users/records?key_decoding={decoding}&value_decoding={decoding}"
        answer = client_of(served).get(url)
        assert answer.status_code == 200 and "<script>alert" not in answer.text and "<b>" not in answer.text
        checked(answer.text)


# Forms.


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


def test_a_topic_is_made_changed_and_deleted(served: Served, client: TestClient) -> None:
    form = {"name": "made", "partitions": "2", "policy": "compact", "segment.ms": "1000"}
    checked_only = client.post("/ui/new-topic:check", data=form)
    assert checked_only.status_code == 200 and "can be created" in checked_only.text
    assert "made" not in served.opened().topics.names()
    answer = client.post("/ui/new-topic", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/topics/made")
    assert served.describe("made").config == {"cleanup.policy": "compact", "segment.ms": "1000"}
    client.post("/ui/topics/made/configuration", data={"name": "segment.ms", "default": "true"})
    assert served.describe("made").config == {"cleanup.policy": "compact"}
    client.post("/ui/topics/made/delete", data={"typed": "made"})
    assert "made" not in served.opened().topics.names()
    assert served.changes is not None
    assert [change.action for change in served.changes.newest()] == ["delete", "alter", "create"]


@pytest.mark.parametrize(
    ("path", "form", "status", "problem"),
    [
        ("new-topic", {"name": "users"}, 400, "already exists"),
        ("new-topic", {"name": "../up"}, 400, "topic"),
        ("new-topic", {"name": "new", "partitions": "-1"}, 400, "is no number"),
        ("new-topic", {"name": "new", "partitions": "999999999"}, 400, "too many for one request"),
        ("topics/users/partitions", {"count": "999999999"}, 400, "too many for one request"),
        ("new-topic", {"name": "new", "partitions": "²"}, 400, "is no number"),
        ("new-topic", {"name": "new", "more": "no.such=1"}, 400, "no.such"),
        ("new-topic", {"name": "new", "policy": "shred"}, 400, "shred"),
        ("new-topic:check", {"name": "users"}, 400, "already exists"),
        ("topics/users/partitions", {"count": "1"}, 400, "partitions"),
        ("topics/users/partitions", {"count": "many"}, 400, "is no number"),
        ("topics/users/produce", {"key": "a", "value": "{", "value_format": "json"}, 400, "is not JSON"),
        ("topics/users/produce", {"key": "ä", "key_format": "base64"}, 400, "the key is not base64"),
        ("topics/users/produce", {"key": "a", "key_format": "rot13"}, 400, "is no format"),
        ("topics/users/produce", {"key": "a", "headers": "none"}, 400, "has no ="),
        ("topics/users/produce", {"key_kind": "none", "value_kind": "tombstone"}, 400, "write the key"),
        ("selected/delete", {"topic": "users", "typed": "users"}, 400, "type 1 topic"),
        ("selected/settings", {"topic": "users", "name": "retention.ms", "value": "1"}, 400, "type 1 topic"),
        ("selected/settings", {"topic": "users", "name": "segment.ms", "value": "x"}, 400, "segment.ms"),
        ("broker", {"name": "no.such", "value": "1"}, 400, "no.such"),
        ("broker", {"name": "log.cleaner.threads", "value": "many"}, 400, "log.cleaner.threads"),
        (
            "broker",
            {"name": "log.cleaner.threads", "value": "2", "tag": '"old"'},
            412,
            "Another user has changed",
        ),
        ("topics/users/configuration", {"name": "segment.ms", "value": "soon"}, 400, "segment.ms"),
        (
            "topics/users/configuration",
            {"name": "segment.ms", "value": "5000", "tag": '"old"'},
            412,
            "has changed",
        ),
        (
            "topics/users/configuration",
            {"name": "cleanup.policy", "value": "delete"},
            400,
            "was not confirmed",
        ),
        (
            "topics/users/configuration",
            {"name": "cleanup.policy", "value": "delete", "typed": "user"},
            400,
            "type users",
        ),
        ("topics/users/delete", {}, 400, "was not confirmed"),
        ("topics/nobody/delete", {"typed": "nobody"}, 404, ""),
    ],
)
def test_a_refused_form_says_why_and_changes_nothing(
    served: Served, client: TestClient, path: str, form: dict[str, str], status: int, problem: str
) -> None:
    before = {name: served.describe(name) for name in served.opened().topics.names()}
    answer = client.post(f"/ui/{path}", data=form, follow_redirects=False)
    assert answer.status_code == status, answer.text[:300]
    assert problem in answer.text.replace("&#39;", "'")
    assert {name: served.describe(name) for name in served.opened().topics.names()} == before
    assert served.changes is not None and served.changes.newest() == []


def test_a_cleaning_is_a_job_whose_outcome_is_on_its_page(
    served: Served, client: TestClient, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    served.opened().send("users", b"2", key=b"a", partition=0)
    answer = client.post("/ui/topics/users/clean", data={"force": "true"}, follow_redirects=False)
    assert answer.headers["location"] == "/ui/jobs"
    wait_for(lambda: served.jobs.all()[0].has_ended)
    (job,) = served.jobs.all()
    assert (job.kind, job.target, job.state) == ("clean", "users", "done")
    shown = client.get("/ui/jobs").text
    assert "as JSON" in shown and "1 older record of a key that has a newer one removed;" in shown
    assert client.get("/ui/jobs?format=json").json()[0]["result"].startswith("1 older record of")
    removed = [
        log["removed"]["superseded"] for log in client.get(f"/api/v1/jobs/{job.id}").json()["result"]["logs"]
    ]
    assert sum(removed) == 1
    history = client.get("/ui/topics/users/history").text
    assert (
        "removed 1 older record of a key" in history
        and "1 cleaning has removed 1 record and saved" in history
    )


def test_the_libraries_are_as_they_were_published() -> None:
    static = Path(web.__file__).parent / "static"
    for name, published in {
        "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
        "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }.items():
        assert hashlib.sha256((static / name).read_bytes()).hexdigest() == published
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE").read_text()
    assert "The MIT License (MIT)" in (static / "uplot.LICENSE").read_text()
    assert len((static / "console.js").read_text().splitlines()) < 100


# Lists.


@pytest.mark.random
@pytest.mark.parametrize("path", LISTS)
def test_a_list_is_sorted_filtered_and_downloaded(looking: tuple[Served, TestClient], path: str) -> None:
    served, client = looking
    client.get(path)
    for name in list(served.scans._futures):  # before the first one has ended, a page has no list to show
        served.scans.wait(name)
    text = client.get(path).text
    columns = dict.fromkeys(re.findall(r'<a href="\?[^"]*sort=([a-z_0-9]+)', text))
    assert columns
    for number, column in enumerate(columns):
        for descending in turn(number, ("", "&descending=true")):
            answer = client.get(f"{path}?sort={column}{descending}")
            assert answer.status_code == 200 and f'aria-sort="{"de" if descending else "a"}' in answer.text
    nothing = client.get(path, params={"contains": "nothing-has-this"})
    assert nothing.status_code == 200 and 'class="none"' in nothing.text
    rows = client.get(path, params={"format": "json"})
    assert rows.headers["content-disposition"].startswith("attachment")
    table = list(csv.DictReader(io.StringIO(client.get(path, params={"format": "csv"}).text)))
    assert len(table) == len(rows.json())
    assert all(list(row) == list(columns) for row in rows.json())
    assert client.get(path, params={"sort": "shape"}).status_code == 400
    assert client.get(path, params={"start": "-1"}).status_code == 400


@pytest.mark.parametrize(
    "path", ["/ui/topics?internal=true", "/ui/groups?", "/ui/cleaner?", "/ui/api?count=500"]
)
def test_a_page_of_a_list_ends_before_it_gets_too_large(
    looking: tuple[Served, TestClient], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    _, client = looking
    whole = len(client.get(f"{path}&format=json").json())
    monkeypatch.setattr(limits, "PAGE_BYTES", 8000)
    rows, pages, start = 0, 0, 0
    while start is not None:
        text = client.get(f"{path}&start={start}").text
        checked(text)
        shown = len(re.findall("<tr>", text)) - 1
        assert len(text.encode()) <= 8000 or shown == 1
        rows, pages = rows + shown, pages + 1
        more = re.search(r'href="\?[^"]*start=(\d+)">next page', text)
        start = None if more is None else int(more[1])
    assert rows == whole and pages > 1


def test_a_long_list_is_not_made_as_a_whole_to_find_that_it_is_too_long() -> None:
    rendered = list[int]()

    def render(rows: int) -> str:
        rendered.append(rows)
        return "x" * (1000 + 700 * rows)

    page = rendering.within_bytes(render, 500, sample=50)
    assert max(rendered) < 500 and sum(rendered) < 300
    assert 0.9 * limits.PAGE_BYTES < len(page) <= limits.PAGE_BYTES
    assert len(rendering.within_bytes(render, 120, sample=50)) == 1000 + 700 * 120
    few = rendering.within_bytes(lambda rows: "x" * rows, 500, sample=50)
    assert len(few) == 500  # all of them, where they fit


def test_large_records_are_cut_before_their_page_gets_too_large(
    served: Served, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        value = b'<"&' * 1500 + b"%d" % number
        served.opened().send("users", value, key=b"k" * 1000, partition=0, headers=[("h", b"x" * 2000)])
    url = "/ui/topics/users/records?partition=0"
    assert "cut, so that" not in client.get(url).text
    monkeypatch.setattr(limits, "PAGE_BYTES", 20_000)
    text = client.get(url).text
    checked(text)
    assert "cut, so that" in text and "4 records" in text and 15_000 < len(text.encode()) <= 20_000


def test_a_record_of_very_many_headers_is_shown_with_the_first_of_them(
    served: Served, client: TestClient
) -> None:
    served.opened().send("users", b"v", key=b"k", partition=0, headers=[("h" * 9, None)] * 3000)
    (record,) = client.get("/api/v1/topics/users/records?partition=0&last=1").json()["records"]
    assert (len(record["headers"]), record["headers_left"]) == (100, 2900)
    assert record["headers"][99]["name"] == "h" * 9
    text = client.get("/ui/topics/users/records?partition=0").text
    checked(text)
    assert "… and 2,900 more headers" in text and text.count("h" * 9) == 100


def test_the_segments_of_a_topic_are_on_as_many_pages_as_they_need(
    served: Served, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        for partition in (0, 1):
            served.opened().send("users", b"x", key=b"%d" % number, partition=partition)
            served.opened()["users", partition].roll()
    served.cataloguer.refresh()
    monkeypatch.setattr(topic_tabs, "SEGMENTS_SHOWN", 3)
    monkeypatch.setattr(limits, "PAGE_BYTES", 7000)
    listed = list[tuple[int, int]]()
    for start in (0, 1):
        query, first = f"start={start}", 0
        while query:
            text = client.get(f"/ui/topics/users?{query}").text
            checked(text)
            assert re.findall(r"<h2>Partition (\d)", text) == [str(start)]
            assert ("next partitions" in text) == (start == 0)
            rows = [
                int(base) for base in re.findall(r'<tr><th scope="row" class="n"><a [^>]*>(\d+)</a>', text)
            ]
            assert len(rows) <= 3
            listed += [(start, base) for base in rows]
            more = re.search(rf'href="\?([^"]*)">next segments of partition {start}<', text)
            query = "" if more is None else html.unescape(more[1])
            first += 3
    bases = [
        [segment.base_offset for segment in log.view.segments] for log in served.opened()["users"].logs()
    ]
    assert listed == [(start, base) for start in (0, 1) for base in bases[start]] and len(bases[0]) > 6


def test_a_list_has_pages(looking: tuple[Served, TestClient]) -> None:
    _, client = looking
    whole = client.get("/ui/groups?format=json").json()
    shown, start = 0, 0
    while start is not None:
        text = client.get(f"/ui/groups?count=3&start={start}&sort=log").text
        shown += len(re.findall(r'<tr><th scope="row"', text))
        more = re.search(r'href="\?[^"]*start=(\d+)">next page', text)
        start = None if more is None else int(more[1])
    assert shown == len(whole) > 3


# The broker's page.


def test_how_records_are_decoded_is_remembered_for_each_topic(served: Served, client: TestClient) -> None:
    served.opened().topics.create("users2", 1, {})
    served.opened().send("users2", b"1", key=b"a", partition=0)
    served.cataloguer.refresh()
    chosen = "<option selected>{}</option>"
    path = "/ui/topics/users/records"
    assert chosen.format("hex") not in client.get(path).text
    answer = client.get(f"{path}?key_decoding=hex&value_decoding=base64")
    assert "; Path=/ui/topics/users/records; SameSite=strict" in answer.headers["set-cookie"]
    text = client.get(f"{path}?position=start").text
    assert chosen.format("hex") in text and chosen.format("base64") in text and ">61</" in text
    assert chosen.format("hex") not in client.get("/ui/topics/users2/records").text
    assert "set-cookie" not in client.get(f"{path}?key_decoding=hex&value_decoding=base64").headers
    client.get(f"{path}?key_decoding=auto&value_decoding=auto")
    assert chosen.format("hex") not in client.get(path).text
    refused = client.get(f"{path}?key_decoding=no&value_decoding=auto")
    assert refused.status_code == 400 and "set-cookie" not in refused.headers
    for cookie in ("no.auto", "hex", "", "<b>.hex", "." * 5000):
        page = client.get(path, headers={"Cookie": f"siltstone-decoding={cookie}"})
        assert page.status_code == 200 and chosen.format("hex") not in page.text


def test_a_job_that_failed_says_where_to_try_again(
    served: Served, client: TestClient, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    def fail(progress: object) -> None:
        raise UsageError("the work was not possible", advice="do it another way")

    for kind in ("clean", "empty", "erase-key"):
        served.jobs.wait(served.jobs.submit(kind, "users", "-", fail).id, 30)
    text = client.get("/ui/jobs").text
    checked(text)
    for tab in ("", "/empty", "/erase"):
        assert (
            f'the work was not possible; do it another way <a href="/ui/topics/users{tab}">try again</a>'
            in text
        )


def test_a_topic_has_the_groups_that_read_it(looking: tuple[Served, TestClient]) -> None:
    _, client = looking
    every = client.get("/ui/groups?format=json").json()
    topics = {row["log"].rpartition("-")[0] for row in every}
    for topic in topics:
        rows = client.get(f"/ui/topics/{topic}/consumers?format=json").json()
        expected = [row for row in every if row["log"].rpartition("-")[0] == topic]
        assert [(row["group"], f"{topic}-{row['partition']}", row["lag"]) for row in rows] == [
            (row["group"], row["log"], row["lag"]) for row in expected
        ]
        text = client.get(f"/ui/topics/{topic}/consumers").text
        checked(text)
        assert all(row["group"] in text for row in rows)
    without = next(name for name in client.get("/ui/topics?format=json").json() if name["name"] not in topics)
    text = client.get(f"/ui/topics/{without['name']}/consumers").text
    assert "No group has committed an offset of this topic" in text


def test_where_no_group_is_kept_a_topics_consumers_say_so(served: Served, client: TestClient) -> None:
    assert "where a broker keeps its groups" in client.get("/ui/topics/users/consumers").text
    assert client.get("/ui/topics/nobody/consumers").status_code == 404


def test_the_log_cleaners_switch_is_saved_and_waits_for_the_restart(
    served: Served, client: TestClient, properties: Path
) -> None:
    assert "Now off." in client.get("/ui/broker").text
    form = {"name": "log.cleaner.enable", "value": ["false", "true"]}  # as the hidden input and the tick
    assert client.post("/ui/broker", data=form, follow_redirects=False).status_code == 303
    assert "log.cleaner.enable=true" in properties.read_text("utf-8")
    text = client.get("/ui/broker").text
    assert "Restart pending: <code>log.cleaner.enable</code> = true" in text and "Now off." in text
    answer = client.post("/ui/broker/restart")
    assert answer.status_code == 200 and "goes on by itself" in answer.text
    checked(answer.text)
    assert served.restart_asked.is_set()
    assert client.get("/ui/broker/restart", follow_redirects=False).headers["location"] == "/ui/broker"
    assert served.changes is not None
    assert [change.action for change in served.changes.newest()] == ["restart", "alter-broker"]


def test_a_dynamic_setting_applies_at_once(served: Served, client: TestClient) -> None:
    text = client.get("/ui/broker?name=log.cleaner.backoff.ms").text
    assert "It applies at once." in text and "curl -X PUT http://localhost:8082/v3/clusters/" in text
    client.post("/ui/broker", data={"name": "log.cleaner.backoff.ms", "value": "5"})
    assert served.opened().config.integer("log.cleaner.backoff.ms") == 5
    assert "Restart pending" not in client.get("/ui/broker").text
    assert [row["name"] for row in client.get("/ui/broker?changed=true&format=json").json()] == [
        "log.cleaner.enable",
        "log.cleaner.backoff.ms",
    ]
    client.post("/ui/broker", data={"name": "log.cleaner.backoff.ms", "default": "true"})
    assert served.opened().config.integer("log.cleaner.backoff.ms") == 15_000


def test_a_properties_file_that_is_broken_meanwhile_is_shown_and_forbids_a_restart(
    client: TestClient, properties: Path
) -> None:
    properties.write_text("log.cleaner.threads=many\n", "utf-8")
    answer = client.get("/ui/broker")
    assert answer.status_code == 200 and "log.cleaner.threads" in answer.text
    assert client.post("/ui/broker/restart").status_code == 400


# The same by a command.


def commands_of(text: str) -> list[str]:
    """The lines that stand beside the forms of a page."""
    return [html.unescape(line) for line in re.findall(r"<pre><code>(.*?)</code></pre>", text, re.S)]


def test_each_form_shows_what_does_the_same(served: Served, client: TestClient) -> None:
    where, own = f"--dir={served.paths[0]}", "curl -X POST http://localhost:8082/api/v1/topics/users"
    cluster = client.get("/v3/clusters").json()["data"][0]["cluster_id"]
    v3 = f"http://localhost:8082/v3/clusters/{cluster}"
    served.opened().mark_uncleanable(TopicPartition("users", 1), "a damaged batch", 1)
    served.opened_cleaner().pause(TopicPartition("users", 0))
    served.cataloguer.refresh()
    body = "-H 'Content-Type: application/json' -d"
    expected = {
        "/ui/topics/users/configuration": [
            f"siltstone topics --alter --topic users --partitions 3 {where}",
            f"curl -X PATCH {v3}/topics/users {body} '{{\"partitions_count\": 3}}'",
            f"siltstone topics --delete --topic users {where}",
            f"curl -X DELETE {v3}/topics/users",
        ],
        "/ui/cleaner?sort=log": [
            f'{own}:clean {body} \'{{"force": true, "partitions": [0]}}\'',
            f"{own}/partitions/0:resume",
        ],
        "/ui/cleaner?sort=log&descending=true": [f"{own}/partitions/1:pause"],
        "/ui/cleaner/uncleanable": [f"{own}/partitions/1:retry-cleaning"],
        "/ui/broker": [
            f'curl -X PUT {v3}/broker-configs/log.cleaner.enable {body} \'{{"value": "true"}}\'',
            "curl -X POST http://localhost:8082/api/v1/broker:restart",
        ],
        "/ui/topics/users/empty?mode=truncate": [
            f"siltstone empty {served.paths[0]} --topic users --mode truncate --dry-run",
            f'{own}:empty {body} \'{{"mode": "truncate", "dry_run": true}}\'',
        ],
        "/ui/groups?contains=%22&sort=lag": [
            "curl -X GET 'http://localhost:8082/ui/groups?sort=lag&contains=%22&format=json'"
        ],
        "/ui/topics/users/erase": [
            f"siltstone erase {served.paths[0]} --topic users --key-file FILE",
            f'{own}:erase-key {body} \'{{"key": "KEY", "dry_run": true}}\'',
        ],
    }
    for path, lines in expected.items():
        shown = commands_of(client.get(path).text)
        assert [line for line in lines if line not in shown] == [], (path, shown)


def test_a_compaction_beside_the_log_is_in_the_history(served: Served, client: TestClient) -> None:
    served.opened().send("users", b"2", key=b"a", partition=0)
    served.opened_compactions().trigger("users")
    assert served.opened_compactions().wait(60)
    text = client.get("/ui/topics/users/history").text
    checked(text)
    assert "the ledger has 1 record; 1 record removed so far (1 success, 0 failures)" in text
    rows = client.get("/ui/topics/users/history?format=json&sort=partition").json()
    assert [(row["what"], row["partition"], row["status"]) for row in rows] == [
        ("side-by-side compaction", 0, "success"),
        ("side-by-side compaction", 1, "success"),
    ]
    assert all(row["saved_bytes"] is None for row in rows)


# Dry runs, records as they are sent and come.


def test_a_dry_run_is_shown_on_the_page_of_segments(
    served: Served, client: TestClient, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    for value in (b"1", b"2", b"3"):
        served.opened().send("users", value, key=b"secret-key", partition=0)
    for log in served.opened().sorted_logs():
        log.roll()
    answer = client.post("/ui/topics/users:explain", follow_redirects=False)
    assert answer.headers["location"] == "/ui/topics/users"
    wait_for(lambda: served.jobs.all()[0].has_ended)
    text = client.get("/ui/topics/users").text
    checked(text)
    assert "2 older records of keys that have a newer one" in text
    assert "secret-key" not in text and "••••" in text
    assert served.changes is not None and served.changes.newest() == []


def test_a_dry_run_works_where_nothing_may_be_changed(
    looking: tuple[Served, TestClient], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    served, client = looking
    job = client.post("/api/v1/topics/users:explain")
    assert job.status_code == 202
    wait_for(lambda: served.jobs.get(job.json()["id"]).has_ended)
    ended = client.get(f"/api/v1/jobs/{job.json()['id']}").json()
    assert ended["error"] is None
    logs = ended["result"]["logs"]
    assert [log["partition"] for log in logs] == sorted(row.partition for row in _partitions(served, "users"))
    assert all("settings" not in log and "removed_words" in log for log in logs)
    assert client.post("/api/v1/topics/nobody:explain").status_code == 404


@pytest.mark.parametrize("by_rest", [False, True])
def test_a_view_of_too_many_keys_is_found_by_a_job(
    looking: tuple[Served, TestClient],
    wait_for: Callable[[Callable[[], bool]], None],
    by_rest: bool,
) -> None:
    served, client = looking
    client.app._app.state.latest = LatestViews(start=lambda work: work())  # type: ignore[attr-defined]
    expected = client.get("/api/v1/topics/users/records?view=latest").json()["records"]
    assert expected
    client.app._app.state.latest = LatestViews(kept_bytes=800, start=lambda work: work())  # type: ignore[attr-defined]
    refused = client.get("/ui/topics/users/records?view=latest")
    checked(refused.text)
    assert 'action="/ui/topics/users:find-latest"' in refused.text and "disabled" not in refused.text
    if by_rest:
        job = client.post("/api/v1/topics/users:find-latest", json={"isolation": "read_uncommitted"})
        assert job.status_code == 202
    else:
        answer = client.post("/ui/topics/users:find-latest", follow_redirects=False)
        assert answer.headers["location"] == "/ui/jobs"
    wait_for(lambda: served.jobs.all()[0].has_ended)
    ended = served.jobs.all()[0].to_json()
    assert ended["error"] is None and ended["kind"] == "find-latest", ended
    result = client.get(f"/api/v1/jobs/{ended['id']}").json()["result"]
    assert {row["partition"] for row in result["partitions"]} == {
        where.partition for where in _partitions(served, "users")
    }
    assert max(row["shares"] for row in result["partitions"]) > 1
    jobs = client.get("/ui/jobs").text
    checked(jobs)
    assert "The last record of each key was found" in jobs and "/ui/topics/users/records?view=latest" in jobs
    assert client.get("/api/v1/topics/users/records?view=latest").json()["records"] == expected
    assert "Find them by a job" not in client.get("/ui/topics/users/records?view=latest").text
    for path in ("nobody:find-latest", "users:find-latest"):
        wrong = {} if "nobody" in path else {"json": {"partitions": [99]}}
        assert client.post(f"/api/v1/topics/{path}", **wrong).status_code == 404
    assert client.post("/ui/topics/nobody:find-latest").status_code == 404
    bad = client.post("/api/v1/topics/users:find-latest", json={"isolation": "serializable"})
    assert bad.status_code == 400


class _WaitingViews(LatestViews):
    """Its jobs wait for ``may_go_on``."""

    def __init__(self, kept_bytes: int) -> None:
        super().__init__(kept_bytes, start=lambda work: work())
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def find(self, log: ReadableLog, isolation: str, budget: WorkBudget) -> int:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return super().find(log, isolation, budget)


def test_the_job_that_finds_last_records_is_shown_beside_the_view_and_can_be_cancelled(
    looking: tuple[Served, TestClient], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    served, client = looking
    views = client.app._app.state.latest = _WaitingViews(kept_bytes=800)  # type: ignore[attr-defined]
    page = "/ui/topics/users/records?view=latest&partition=0"
    assert 'name="partition" value="0"' in client.get(page).text
    try:
        client.post("/ui/topics/users:find-latest", data={"partition": "0"})
        assert views.has_begun.wait(60)
        text = client.get(page).text
        checked(text)
        assert "A job is finding the last record of each key" in text and 'href="/ui/jobs"' in text
        assert "Find them by a job" not in text
        assert "A job is finding" not in client.get("/ui/topics/users/records").text
        job = served.jobs.all()[0]
        assert job.target == "users-0"
        assert client.delete(f"/api/v1/jobs/{job.id}").status_code < 300
    finally:
        views.may_go_on.set()
    wait_for(lambda: served.jobs.all()[0].has_ended)
    assert served.jobs.all()[0].state == "cancelled"
    assert "Find them by a job" in client.get(page).text
    client.post("/ui/topics/users:find-latest", data={"partition": "0"})
    wait_for(lambda: served.jobs.all()[0].has_ended)
    assert (
        'href="/ui/topics/users/records?view=latest&amp;partition=0">Look</a>' in client.get("/ui/jobs").text
    )
    assert "Find them by a job" not in client.get(page).text
    assert client.post("/ui/topics/users:find-latest", data={"partition": "x"}).status_code == 400


def test_a_job_that_could_not_keep_the_last_records_of_all_partitions_is_refused(
    looking: tuple[Served, TestClient],
) -> None:
    served, client = looking
    before = served.jobs.all()
    ends = [served.log("ledger", where.partition).log_end_offset for where in _partitions(served, "ledger")]
    assert len(ends) > 1
    client.app._app.state.latest = LatestViews(kept_bytes=max(ends) // 8)  # type: ignore[attr-defined]
    answer = client.post("/api/v1/topics/ledger:find-latest")
    assert answer.status_code == 400, answer.text
    assert f"{sum(ends)} offsets" in answer.text and "some partitions only" in answer.text
    assert served.jobs.all() == before


def _partitions(served: Served, topic: str) -> list[TopicPartition]:
    return [row.topic_partition for row in served.catalogue.partitions_of(topic)]


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [
        ({"key": "a", "value": "1"}, b"a", b"1"),
        (
            {"key": "YQ==", "key_format": "base64", "value": '{"b": 1}', "value_format": "json"},
            b"a",
            b'{"b": 1}',
        ),
        ({"key": "", "value": ""}, b"", b""),
        ({"key": "a", "value": "ignored", "value_kind": "tombstone"}, b"a", None),
    ],
    ids=["text", "base64 and JSON", "empty", "tombstone"],
)
def test_a_record_is_produced(
    served: Served, client: TestClient, form: dict[str, str], key: bytes, value: bytes | None
) -> None:
    more = {"headers": "trace=1\nempty=", "partition": "0"}
    answer = client.post("/ui/topics/users/produce", data={**form, **more}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    record = list(served.opened()["users", 0].records())[-1]
    assert (record.key, record.value) == (key, value)
    assert list(record.headers) == [(b"trace", b"1"), (b"empty", b"")]
    shown = client.get(answer.headers["location"]).text
    assert f"at offset {record.offset}" in shown
    checked(shown)


@pytest.mark.parametrize(
    ("form", "status", "problem", "is_partitions"),
    [
        ({"key_kind": "none", "value": "x", "partition": "0"}, 400, "key", False),
        ({"key": "a", "partition": "9"}, 404, "has no partition 9", True),
    ],
)
def test_a_record_that_the_log_refuses_stays_in_the_form(
    served: Served, client: TestClient, form: dict[str, str], status: int, problem: str, is_partitions: bool
) -> None:
    end = served.opened()["users", 0].log_end_offset
    answer = client.post("/ui/topics/users/produce", data=form)
    assert answer.status_code == status and problem in answer.text
    assert ("aria-invalid" in answer.text) == is_partitions
    assert served.opened()["users", 0].log_end_offset == end


def test_partitions_are_added(served: Served, client: TestClient) -> None:
    before = len(served.describe("users").partitions)
    assert client.post("/ui/topics/users/partitions", data={"count": str(before + 2)}).status_code == 200
    assert len(served.describe("users").partitions) == before + 2


def test_ticked_topics_are_previewed_and_changed_each_for_itself(served: Served, client: TestClient) -> None:
    served.opened().topics.create("plain", 1, {})
    served.cataloguer.refresh()
    ticked = [("topic", "users"), ("topic", "plain")]
    params = [*ticked, ("action", "settings"), ("name", "segment.ms"), ("value", "5000")]
    text = client.get("/ui/selected", params=params).text
    checked(text)
    tags = [html.unescape(tag) for tag in re.findall(r'name="tag" value="([^"]*)"', text)]
    assert len(tags) == 2
    served.opened().topics.alter("plain", {"retention.ms": "7"})
    form = {"topic": ["users", "plain"], "tag": tags, "name": "segment.ms", "value": "5000"}
    text = client.post("/ui/selected/settings", data=form).text
    assert "changed" in text and "has changed since it was read" in text
    assert served.describe("users").config["segment.ms"] == "5000"
    assert "segment.ms" not in served.describe("plain").config
    text = client.get("/ui/selected", params=[*ticked, ("action", "clean")]).text
    assert "It is not compacted" in text and 'name="typed"' not in text  # nothing has to be confirmed
    text = client.post("/ui/selected/clean", data={"topic": ["users", "plain"]}).text
    assert "a job cleans it" in text and "is not compacted" in text
    assert client.get("/ui/selected", params=[("topic", "nobody"), ("action", "delete")]).status_code == 200
    form = {"topic": ["users", "plain"], "tag": ["*", "*"], "typed": "2 topics"}
    client.post("/ui/selected/delete", data=form)
    assert served.opened().topics.names() == []


@pytest.mark.parametrize("tags", [[], ["", ""], ["", "*"], [" "]])
def test_a_ticked_topic_whose_preview_failed_is_neither_changed_nor_deleted(
    served: Served, client: TestClient, tags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.opened().topics.create("plain", 1, {})
    served.cataloguer.refresh()
    ticked = {"topic": ["users", "plain"], "name": "segment.ms", "value": "5000"}
    with monkeypatch.context() as failing:
        failing.setattr(console, "preview_change", Mock(side_effect=OSError(5, "Input/output error")))
        text = client.get("/ui/selected", params={**ticked, "action": "settings"}).text
    assert "Input/output error" in text and re.findall(r'name="tag" value="([^"]*)"', text) == ["", ""]
    text = client.post("/ui/selected/settings", data={**ticked, "tag": tags}).text
    checked(text)
    assert "could not be shown" in text or "has changed since" in text
    deletion = {"topic": ["users", "plain"], "tag": tags, "typed": "2 topics"}
    assert "segment.ms" not in served.describe("users").config
    client.post("/ui/selected/delete", data=deletion)
    allowed = {"plain"} if tags[1:] == ["*"] else set()
    assert set(served.opened().topics.names()) == {"users", "plain"} - allowed


def test_two_editors_see_each_others_values(served: Served, client: TestClient) -> None:
    text = client.get("/ui/topics/users/configuration?name=segment.ms").text
    (tag,) = {html.unescape(tag) for tag in re.findall(r'name="tag" value="([^"]*)"', text)}
    served.opened().topics.alter("users", {"segment.ms": "7777"})
    form = {"name": "segment.ms", "value": "8888", "tag": tag}
    answer = client.post("/ui/topics/users/configuration", data=form)
    assert answer.status_code == 412
    checked(answer.text)
    assert "<strong>7777</strong>" in answer.text and "<strong>8888</strong>" in answer.text
    (tag,) = {html.unescape(tag) for tag in re.findall(r'name="tag" value="([^"]*)"', answer.text)}
    client.post("/ui/topics/users/configuration", data={**form, "tag": tag})
    assert served.describe("users").config["segment.ms"] == "8888"


def test_a_log_is_paused_resumed_and_cleaned_from_the_queue(
    served: Served, client: TestClient, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    served.cataloguer.refresh()
    client.post("/ui/topics/users/partitions/0/pause")
    assert "a user has paused it" in client.get("/ui/cleaner").text
    matching = client.get("/ui/cleaner", params={"contains": "HAS paused", "sort": "waits_for"}).text
    assert "users-0" in matching and "a user has paused it" in matching
    everything = client.get("/ui/cleaner", params={"sort": "waits_for", "format": "json"}).json()
    reasons = [row["waits_for"] for row in everything]
    assert reasons == sorted(reasons) and "a user has paused it" in reasons
    client.post("/ui/topics/users/partitions/0/resume")
    assert "a user has paused it" not in client.get("/ui/cleaner").text
    assert client.post("/ui/topics/users/partitions/0/clean").status_code == 200
    wait_for(lambda: served.jobs.all()[0].has_ended)
    assert client.post("/ui/topics/users/partitions/9/pause").status_code == 404
    assert served.changes is not None
    actions = [change.action for change in served.changes.newest()]
    assert actions == ["clean", "submit-job", "resume-cleaning", "pause-cleaning"]
