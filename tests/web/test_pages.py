"""The console's pages, as a browser without script gets them: a real broker's directories in look mode, and
an open directory whose forms change things."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from siltstone import web
from siltstone.commands.served import Served, ServeOptions
from tests.web.conftest import client_of

PAGES = "/ui/ /ui/topics /ui/cleaner /ui/broker /ui/directories /ui/groups /ui/changes /ui/jobs".split()
TABS = ["", "/records", "/configuration", "/history"]


@pytest.fixture
def looking(stopped_broker: tuple[Path, Path]) -> Iterator[tuple[Served, TestClient]]:
    with Served(ServeOptions(paths=stopped_broker, is_look=True)) as served:
        served.cataloguer.refresh()
        yield served, client_of(served)


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
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.inline += [name for name in given if name == "style" or name.startswith(("on", "hx-on"))]
        if tag == "script" and "src" not in given:
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
    looking: tuple[Served, TestClient], stopped_broker: tuple[Path, Path]
) -> None:
    served, client = looking
    before = {path: path.stat().st_mtime_ns for root in stopped_broker for path in root.rglob("*")}
    paths = [*PAGES, *(f"/ui/topics/{name}{tab}" for name in served.catalogue.names for tab in TABS)]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[-300:])
        checked(answer.text)
        assert "look mode: nothing is changed" in answer.text
    assert {path: path.stat().st_mtime_ns for root in stopped_broker for path in root.rglob("*")} == before


def test_a_page_that_has_not_changed_is_not_sent_again(looking: tuple[Served, TestClient]) -> None:
    served, client = looking
    tag = client.get("/ui/topics").headers["etag"]
    served.cataloguer.refresh()  # a later look, and nothing new
    again = client.get("/ui/topics", headers={"If-None-Match": tag})
    assert again.status_code == 304 and again.content == b""


def test_in_look_mode_all_buttons_that_change_are_disabled_and_their_forms_refused(
    looking: tuple[Served, TestClient],
) -> None:
    _, client = looking
    for path in ("/ui/topics/users", "/ui/topics/users/configuration", "/ui/topics"):
        text = client.get(path).text
        for form in re.findall(r'<form method="post".*?</form>', text, re.S):
            assert "<button disabled" in form and "look mode changes nothing" in form
    assert client.post("/ui/topics/users/clean").status_code == 403
    assert client.post("/ui/topics", data={"name": "new"}).status_code == 403


@pytest.mark.parametrize(
    ("query", "status", "shown"),
    [
        ("sort=bytes&descending=true&count=3", 200, "next page"),
        ("contains=nothing-has-this", 200, "No topic fits"),
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
        ("key=key-00006&view=latest", "1 records"),
        ("tombstones=true&position=start", "tombstone"),
        ("partition=7", "has no partition 7"),
        ("partition=x", "partition and offset are numbers"),
        ("view=newest", "is no view"),
        ("cursor=%00%01", "cursor is not valid"),
        ("value_decoding=rot13", "rot13"),
    ],
)
def test_records_are_found_and_wrong_questions_answered(
    looking: tuple[Served, TestClient], query: str, shown: str
) -> None:
    answer = looking[1].get(f"/ui/topics/users/records?{query}")
    assert answer.status_code == 200 and shown in answer.text
    checked(answer.text)


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
    form = {"name": "made", "partitions": "2", "settings": "cleanup.policy=compact\nsegment.ms=1000\n"}
    answer = client.post("/ui/topics", data=form, follow_redirects=False)
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
        ("", {"name": "users"}, 400, "already exists"),
        ("", {"name": "../up"}, 400, "topic"),
        ("", {"name": "new", "partitions": "-1"}, 400, "is no number"),
        ("", {"name": "new", "settings": "no.such=1"}, 400, "no.such"),
        ("/users/configuration", {"name": "segment.ms", "value": "soon"}, 400, "segment.ms"),
        ("/users/configuration", {"name": "segment.ms", "value": "5000", "tag": '"old"'}, 412, "has changed"),
        ("/users/configuration", {"name": "cleanup.policy", "value": "delete"}, 400, "was not confirmed"),
        (
            "/users/configuration",
            {"name": "cleanup.policy", "value": "delete", "typed": "user"},
            400,
            "type users",
        ),
        ("/users/delete", {}, 400, "was not confirmed"),
        ("/nobody/delete", {"typed": "nobody"}, 404, ""),
    ],
)
def test_a_refused_form_says_why_and_changes_nothing(
    served: Served, client: TestClient, path: str, form: dict[str, str], status: int, problem: str
) -> None:
    before = {name: served.describe(name) for name in served.opened().topics.names()}
    answer = client.post(f"/ui/topics{path}", data=form, follow_redirects=False)
    assert answer.status_code == status and problem in answer.text.replace("&#39;", "'")
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
    assert "as JSON" in client.get("/ui/jobs").text
    removed = [
        log["removed"]["superseded"] for log in client.get(f"/api/v1/jobs/{job.id}").json()["result"]["logs"]
    ]
    assert sum(removed) == 1
    assert "records removed" in client.get("/ui/topics/users/history").text


def test_the_script_is_htmx_as_it_was_published() -> None:
    static = Path(web.__file__).parent / "static"
    digest = hashlib.sha256((static / "htmx.min.js").read_bytes()).hexdigest()
    assert digest == "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE").read_text()
