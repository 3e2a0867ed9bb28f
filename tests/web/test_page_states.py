"""Each page of the console in each state that it may be in: nothing there, read for the first time, older
than it should be, being found, read-only, without the right, with an audit log that is full, changed
meanwhile.

The pages are those of the application, not a list here. (Look mode and refused forms: ``test_pages``; the
states of a browser, such as a server that is gone: ``tests/console``.)
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from siltstone.commands import disk_contents, transactions
from siltstone.commands.scans import Report
from siltstone.commands.served import Served
from siltstone.web.guards import Rules
from siltstone.web.identity import Identity, Role, Users
from siltstone.web.running import rules_of
from siltstone.web.site import routes_with_roles
from tests.web.conftest import client_of
from tests.web.test_guards import REQUESTS
from tests.web.test_pages import checked

NO_PAGES = ("/ui/static", "/ui/theme", "/ui/jump", "records:tail", "/ui/broker/restart")
FILLED = {"topic": "users", "partition": "0", "offset": "0", "number": "0"}
_TOKENS = {role: role.name.lower() for role in Role if role}
_USERS = "\n".join(
    f"{name}:{name}:sha256${hashlib.sha256(name.encode()).hexdigest()}" for name in _TOKENS.values()
)


def pages(client: TestClient) -> list[tuple[str, Role]]:
    """(path, role) of each page, with names filled in."""
    filled_pages = []
    for path, methods, role in routes_with_roles(client.app._app):  # type: ignore[attr-defined]
        if (
            "GET" in methods
            and path.startswith("/ui/")
            and role
            and not any(map(path.__contains__, NO_PAGES))
        ):
            filled = re.sub(r"\{(\w+)(:\w+)?\}", lambda name: FILLED[name[1]], path)
            ticked = "?topic=users&action=settings&name=segment.ms&value=700000"
            filled_pages.append((filled + (ticked if path.endswith("/selected") else ""), role))
    assert len(filled_pages) > 25
    return sorted(filled_pages)


def forms(path: str, text: str) -> Iterator[tuple[str, str]]:
    """(where it goes, the form) of each form of a page that changes something."""
    for form in re.findall(r'<form method="post".*?</form>', text, re.S):
        tag = form.partition(">")[0]
        (action,) = re.findall(' action="([^"]*)"', tag) or [path.partition("?")[0]]
        if not action.endswith((":explain", ":find-latest")):  # they only ask
            yield action, form


def buttons_of(form: str) -> list[str]:
    """The buttons of a form that do it, and do not only check."""
    buttons = [button for button in re.findall(r"<button[^>]*>", form) if "formmethod" not in button]
    buttons = [button for button in buttons if ":check" not in button]
    assert buttons, form
    return buttons


@pytest.fixture
def busy(served: Served) -> Iterator[Served]:
    """With a job that runs and an uncleanable log, whose forms stand on pages, too."""
    go_on = threading.Event()
    served.jobs.submit("clean", "users", "-", lambda progress: go_on.wait(60))
    served.opened().mark_uncleanable(served.log("users", 1).topic_partition, "damaged", 1)
    served.cataloguer.refresh()
    yield served
    go_on.set()


def with_rules(served: Served, **changed: object) -> Rules:
    return replace(rules_of(served.config, [], is_look=served.is_look), **changed)  # type: ignore[arg-type]


def test_where_nothing_is_there_each_list_says_what_it_would_hold(open_served: Callable[..., Served]) -> None:
    served = open_served()
    served.cataloguer.refresh()
    client, empty = client_of(served), 0
    for path, _ in pages(client):
        answer = client.get(path)
        if "/topics/users" in path:
            assert answer.status_code == 404, path
            continue
        assert answer.status_code == 200, (path, answer.text)
        checked(answer.text)
        for text in re.findall(r'class="none">(.*?)</td>', answer.text, re.S):
            empty += 1
            assert len(text.split()) >= 3, (path, text)  # a sentence, not "none"
    assert empty >= 10
    texts = {
        path: client.get(path).text for path in ("/ui/topics", "/ui/cleaner/runs", "/ui/jobs", "/ui/changes")
    }
    assert "New topic" in texts["/ui/topics"]
    assert "No cleaning yet" in texts["/ui/cleaner/runs"] and "No job yet" in texts["/ui/jobs"]


def test_before_the_first_reading_each_page_says_that_rows_may_be_missing(
    open_served: Callable[..., Served], served: Served
) -> None:
    served.opened().flush()
    client = client_of(open_served(is_look=True))  # not read yet
    for path, _ in pages(client):
        answer = client.get(path)
        if "/topics/users" in path:
            assert answer.status_code == 404, path
            continue
        assert answer.status_code == 200, (path, answer.text)
        checked(answer.text)
        assert "being read for the first time; rows may be missing" in answer.text, path


def test_what_could_not_be_read_again_is_shown_as_older(served: Served) -> None:
    client = client_of(served)
    served.cataloguer.current = served.catalogue.with_changes(error="disk: <b>Input/output error</b>")
    for path, _ in pages(client):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        checked(answer.text)
        assert "could not be read again: disk: &lt;b&gt;Input/output error" in answer.text, path
        assert "What follows is older" in answer.text


@pytest.mark.parametrize(
    ("path", "module", "name", "subject"),
    [
        ("/ui/transactions", transactions, "open_transactions", "Open transactions"),
        ("/ui/directories/0", disk_contents, "contents_of", "What it is full of"),
    ],
)
def test_what_is_being_found_says_how_far_it_is_and_why_it_failed(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, module: object, name: str, subject: str
) -> None:
    go_on, is_running = threading.Event(), threading.Event()

    def slow(*arguments: object) -> object:
        report: Report = arguments[-1]  # type: ignore[assignment]
        report(3, 7)
        is_running.set()
        assert go_on.wait(20)
        raise OSError("the disk failed")

    monkeypatch.setattr(module, name, slow)
    client = client_of(served)
    client.get(path)
    assert is_running.wait(20)
    text = client.get(path).text
    checked(text)
    assert re.search(rf"{subject} (is|are) being found: 3 of 7 logs", text), text
    assert client.get(f"{path}?format=csv").status_code == 429  # a download is whole
    go_on.set()
    for scan in list(served.scans._futures):
        served.scans.wait(scan)
    text = client.get(path).text
    checked(text)
    assert f"{subject} could not be found: the disk failed" in text


def test_where_the_server_is_read_only_each_button_says_so(busy: Served) -> None:
    reason = "siltstone.http.read.only=true"
    client, form_count = client_of(busy, with_rules(busy, read_only_reason=reason)), 0
    for path, _ in pages(client):
        text = client.get(path).text
        checked(text)
        for action, form in forms(path, text):
            if action.endswith("/cancel"):  # of a job, which can only be a dry run
                continue
            form_count += 1
            assert reason in text, path
            assert all("disabled" in button for button in buttons_of(form)), (path, form)
    assert form_count > 15


@pytest.mark.parametrize(
    "role",
    [
        Role.VIEWER,
        pytest.param(Role.READER, marks=pytest.mark.long),
        Role.EDITOR,
        pytest.param(Role.ADMIN, marks=pytest.mark.long),
    ],
    ids=lambda role: role.name.lower(),
)
def test_each_role_sees_its_pages_and_why_it_may_not_do_the_rest(busy: Served, role: Role) -> None:
    rules = with_rules(busy, identity=Identity(auth="basic", users=Users(_USERS, "users")))
    client, form_count = client_of(busy, rules), 0
    header = {"Authorization": f"Bearer {_TOKENS[role]}"}
    for path, needed in pages(client):
        answer = client.get(path, headers=header)
        checked(answer.text)
        if role < needed:
            assert answer.status_code == 403 and "<h1>Not allowed</h1>" in answer.text, path
            continue
        assert answer.status_code == 200, (path, answer.text)
        assert f"signed in as {_TOKENS[role]} ({_TOKENS[role]})" in answer.text
        for action, form in forms(path, answer.text):
            form_count += 1
            is_allowed = role >= _needed(client, action)
            for button in buttons_of(form):
                assert ("disabled" in button) != is_allowed, (path, role, form)
            assert is_allowed or "this needs the role" in answer.text
    assert form_count > 15


def _needed(client: TestClient, action: str) -> Role:
    """The role of the route of a form."""
    for path, methods, role in routes_with_roles(client.app._app):  # type: ignore[attr-defined]
        pattern = re.sub(r"\{\w+(:\w+)?\}", "[^/:]+", path)
        if "POST" in methods and re.fullmatch(pattern, action.partition("?")[0]):
            assert role is not None
            return role
    raise AssertionError(f"no route for {action}")


def _orders() -> Iterator[tuple[str, dict[str, str]]]:
    """Each form of the console that changes something, filled."""
    for (method, path), attempt in REQUESTS.items():
        if method == "POST" and path.startswith("/ui/"):
            names = {**FILLED, "job_id": "none", **attempt.names}
            yield re.sub(r"\{(\w+)\}", lambda name, names=names: names[name[1]], path), dict(attempt.form)  # type: ignore[misc]


def test_where_the_audit_log_is_full_a_form_says_so_in_the_frame(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    served.opened().mark_uncleanable(served.log("users", 1).topic_partition, "damaged", 1)
    monkeypatch.setattr(served.opened_changes(), "_append", full)
    client, tried = client_of(served), 0
    for path, form in _orders():
        if "/jobs/" in path:
            continue  # of a job that there is not
        answer = client.post(path, data=form, follow_redirects=False)
        tried += 1
        checked(answer.text)
        assert "not recorded" in answer.text and "No space left" in answer.text, path
        assert answer.status_code >= 400 or path.startswith("/ui/selected/"), path
    assert tried > 15
    assert served.opened().topics.names() == ["users"]


def test_a_form_of_what_has_changed_meanwhile_is_refused_with_412(served: Served) -> None:
    client, stale = client_of(served), {"tag": '"stale"', "typed": "users"}
    orders = {
        "/ui/topics/users/configuration": {"name": "segment.ms", "value": "700000"},
        "/ui/topics/users/partitions": {"count": "3"},
        "/ui/topics/users/delete": {},
        "/ui/broker": {"name": "log.retention.ms", "value": "7"},
    }
    actions = {
        action
        for path, _ in pages(client)
        for action, form in forms(path, client.get(path).text)
        if 'name="tag"' in form
    }
    assert actions <= set(orders) | {"/ui/selected/settings", "/ui/selected/delete"}, actions
    before = served.describe("users")
    for path, form in orders.items():
        answer = client.post(path, data={**form, **stale}, follow_redirects=False)
        checked(answer.text)
        assert answer.status_code == 412, (path, answer.text)
    for action, form in (
        ("settings", {"name": "segment.ms", "value": "700000"}),
        ("delete", {"typed": "1 topic"}),
    ):
        answer = client.post(f"/ui/selected/{action}", data={"topic": "users", "tag": '"stale"', **form})
        checked(answer.text)
        assert "has changed" in answer.text or "changed" in answer.text
    assert served.describe("users") == before
    assert served.opened_changes().newest() == []
