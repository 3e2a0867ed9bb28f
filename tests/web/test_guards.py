"""Requests that must be refused: every unsafe route of the application × why, without a changed byte.

The routes are those of the application, not a list here. Where a request has to come as far as the audit log,
``REQUESTS`` has one that would change something; a route without one makes the test fail.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import APIRouter
from httpx import Response

from siltstone.commands import administration
from siltstone.commands.changes import CHANGES_FILE, RESTART, ChangeLog
from siltstone.commands.jobs import Progress
from siltstone.commands.served import Served
from siltstone.web import site
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.guards import (
    ADMIN,
    EDITOR,
    SAFE_METHODS,
    VIEWER,
    Rules,
    host_of,
    is_cross_origin,
    is_of_job,
    is_question,
)
from siltstone.web.identity import Identity, Role, Users
from siltstone.web.running import rules_of
from tests.support.thoroughness import few
from tests.web.conftest import client_of

_TOKENS = {role: f"token of {role.name}" for role in Role if role}
_USERS = "\n".join(
    f"{role.name}:{role.name.lower()}:sha256${hashlib.sha256(token.encode()).hexdigest()}"
    for role, token in _TOKENS.items()
)
AS_EDITOR, AS_ADMIN = ({"Authorization": f"Bearer {_TOKENS[role]}"} for role in (Role.EDITOR, Role.ADMIN))
V3, PULSAR, OWN = "/v3/clusters/{cluster_id}", "/admin/v2/persistent/{tenant}/{namespace}/{topic}", "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """A route that may change something."""

    method: str
    path: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A request to a route that would change something."""

    json: object = None
    form: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


_SETTING = {"data": [{"name": "retention.ms", "value": "7"}]}
_BROKER_SETTING = {"data": [{"name": "log.retention.ms", "value": "7"}]}
_RECORD = {"value": {"type": "STRING", "data": "x"}}
REQUESTS: Mapping[tuple[str, str], Try] = {
    ("POST", f"{V3}/topics"): Try(json={"topic_name": "new"}),
    ("PATCH", f"{V3}/topics/{{topic_name}}"): Try(json={"partitions_count": 3}),
    ("DELETE", f"{V3}/topics/{{topic_name}}"): Try(),
    ("POST", f"{V3}/topics/{{topic_name}}/configs:alter"): Try(json=_SETTING),
    ("PUT", f"{V3}/topics/{{topic_name}}/configs/{{name}}"): Try(json={"value": "7"}),
    ("DELETE", f"{V3}/topics/{{topic_name}}/configs/{{name}}"): Try(names={"name": "cleanup.policy"}),
    ("POST", f"{V3}/topics/{{topic_name}}/records"): Try(json=_RECORD),
    ("POST", f"{V3}/topics/{{topic_name}}/records:batch"): Try(json={"entries": [{"id": "1", **_RECORD}]}),
    ("POST", f"{V3}/broker-configs:alter"): Try(json=_BROKER_SETTING),
    ("PUT", f"{V3}/broker-configs/{{name}}"): Try(json={"value": "7"}, names={"name": "log.retention.ms"}),
    ("DELETE", f"{V3}/broker-configs/{{name}}"): Try(names={"name": "log.cleaner.enable"}),
    ("POST", f"{V3}/brokers/{{broker_id}}/configs:alter"): Try(json=_BROKER_SETTING),
    ("PUT", f"{V3}/brokers/{{broker_id}}/configs/{{name}}"): Try(
        json={"value": "7"}, names={"name": "log.retention.ms"}
    ),
    ("DELETE", f"{V3}/brokers/{{broker_id}}/configs/{{name}}"): Try(names={"name": "log.cleaner.enable"}),
    ("PUT", f"{PULSAR}/compaction"): Try(),
    ("POST", f"{PULSAR}/compactionThreshold"): Try(json=7),
    ("DELETE", f"{PULSAR}/compactionThreshold"): Try(names={"topic": "with-threshold"}),
    ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}/compactionThreshold"): Try(json=7),
    ("DELETE", "/admin/v2/namespaces/{tenant}/{namespace}/compactionThreshold"): Try(),
    ("POST", f"{OWN}/topics:alter"): Try(
        json={"topics": [{"topic": "users", "set": {"retention.ms": "7"}}]}, headers={"If-Match": "*"}
    ),
    ("POST", f"{OWN}/topics/{{topic}}:clean"): Try(json={"force": True}),
    ("POST", f"{OWN}/topics/{{topic}}/partitions/{{partition}}:retry-cleaning"): Try(
        names={"partition": "1"}
    ),
    ("POST", f"{OWN}/topics/{{topic}}/partitions/{{partition}}:pause"): Try(),
    ("POST", f"{OWN}/topics/{{topic}}/partitions/{{partition}}:resume"): Try(),
    ("DELETE", f"{OWN}/jobs/{{job_id}}"): Try(),
    ("POST", f"{OWN}/broker:restart"): Try(),
    ("POST", f"{OWN}/topics/{{topic}}:empty"): Try(json={"mode": "truncate"}),
    ("POST", f"{OWN}/topics/{{topic}}:erase-key"): Try(json={"key": "a"}),
    ("POST", "/ui/new-topic"): Try(form={"name": "new"}),
    ("POST", "/ui/topics/{topic}/partitions"): Try(form={"count": "3"}),
    ("POST", "/ui/topics/{topic}/produce"): Try(form={"key": "k", "value": "v"}),
    ("POST", "/ui/topics/{topic}/empty"): Try(form={"mode": "truncate", "typed": "users"}),
    ("POST", "/ui/topics/{topic}/erase"): Try(form={"key": "a", "typed": "users"}),
    ("POST", "/ui/topics/{topic}/partitions/{partition}/clean"): Try(),
    ("POST", "/ui/topics/{topic}/partitions/{partition}/pause"): Try(),
    ("POST", "/ui/topics/{topic}/partitions/{partition}/resume"): Try(),
    ("POST", "/ui/selected/settings"): Try(
        form={"topic": "users", "tag": "*", "name": "segment.ms", "value": "700000"}
    ),
    ("POST", "/ui/selected/clean"): Try(form={"topic": "users", "force": "true"}),
    ("POST", "/ui/selected/delete"): Try(form={"topic": "users", "tag": "*", "typed": "1 topic"}),
    ("POST", "/ui/broker"): Try(form={"name": "log.retention.ms", "value": "7"}),
    ("POST", "/ui/broker/restart"): Try(),
    ("POST", "/ui/topics/{topic}/configuration"): Try(
        form={"name": "retention.ms", "value": "7", "typed": "users"}
    ),
    ("POST", "/ui/topics/{topic}/clean"): Try(form={"force": "true"}),
    ("POST", "/ui/topics/{topic}/delete"): Try(form={"typed": "users"}),
    ("POST", "/ui/topics/{topic}/partitions/{partition}/retry"): Try(names={"partition": "1"}),
    ("POST", "/ui/jobs/{job_id}/cancel"): Try(),
    ("POST", "/probe/topics/{name}"): Try(names={"name": "new"}),
    ("DELETE", "/probe/topics/{name}"): Try(names={"name": "users"}),
    ("PUT", "/probe/topics/{name}"): Try(names={"name": "users"}),
}
"""By method and route. What a path's parameters stand for is in ``Table.fill`` unless ``names`` has it."""
CHANGES_NOTHING = ("/acls", "/admin/v2/non-persistent/")
"""Routes that refuse every request."""

_router = APIRouter()


@_router.post("/probe/topics/{name}", dependencies=[ADMIN])
def _create(name: str, served: CurrentServed, by: CurrentActor) -> str:
    return administration.create_topic(served, by, name, 1, {}).status


@_router.delete("/probe/topics/{name}", dependencies=[ADMIN])
def _delete(name: str, served: CurrentServed, by: CurrentActor) -> str:
    return administration.delete_topic(served, by, name).status


@_router.put("/probe/topics/{name}", dependencies=[EDITOR])
def _alter(name: str, served: CurrentServed, by: CurrentActor) -> str:
    administration.alter_settings(served, by, name, {"retention.ms": "1"})
    return "altered"


@_router.get("/probe/crash", dependencies=[VIEWER])
def _crash() -> None:
    raise RuntimeError("the secret")


@pytest.fixture(autouse=True)
def _probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ROUTERS", (*site.ROUTERS, _router))


def _request_of(route: Unsafe) -> Try | None:
    """A request that would change something, if one is known."""
    return REQUESTS.get((route.method, route.path.removeprefix("/kafka")))


class Looks(NamedTuple):
    """Sizes, times and inodes of all files by path, and what the server has in memory."""

    files: Mapping[str, tuple[int, int, int]]
    memory: tuple[object, ...]


class Table:
    """A site over ``served``, every request that may change something, and the means to see that none did."""

    def __init__(self, served: Served, rules: Rules | None = None) -> None:
        self.served, self.client = served, client_of(served, rules)
        job = served.jobs.submit("test", "users", "-", lambda progress: None)
        served.jobs.wait(job.id, 60)
        cluster = self.client.get("/v3/clusters", headers=AS_ADMIN).json()["data"][0]["cluster_id"]
        self.fill = {
            "cluster_id": cluster,
            "broker_id": "0",
            "topic_name": "users",
            "topic": "users",
            "tenant": "public",
            "namespace": "default",
            "partition": "0",
            "name": "retention.ms",
            "job_id": job.id,
        }

    def routes(self) -> list[Unsafe]:
        """The unsafe routes of the application."""
        app = self.client.app._app  # type: ignore[attr-defined]
        routes = [
            Unsafe(method=method, path=path, role=role)
            for path, methods, role in site.routes_with_roles(app)
            for method in sorted(methods - {*SAFE_METHODS})
            if role is not None
        ]
        assert len(routes) > 30
        return routes

    def send(self, route: Unsafe, attempt: Try | None = None, **headers: str) -> Response:
        """A request to a route: one that would change something, or with names filled in and no sense."""
        attempt = attempt or Try(json={})
        names = {**self.fill, **attempt.names}
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda match: names.get(match[1], "users"), route.path)
        body: dict[str, Any] = {"data": dict(attempt.form)} if attempt.form else {"json": attempt.json}
        if attempt.json is None:
            body.pop("json", None)
        return self.client.request(
            route.method, path, headers={**attempt.headers, **headers}, follow_redirects=False, **body
        )

    def looks(self) -> Looks:
        """What a change would alter."""
        files = {}
        for path in self._paths():
            status = path.stat()
            files[str(path)] = status.st_size, status.st_mtime_ns, status.st_ino
        manager, cleaner = self.served.manager, self.served.cleaner
        if manager is None or cleaner is None:
            return Looks(files, ())
        topics = {name: manager.topics.describe(name) for name in manager.topics.names()}
        policies, uncleanable = dict(manager.topics.namespaces), dict(manager.uncleanable)
        return Looks(files, (topics, policies, uncleanable, set(cleaner.paused)))

    def _paths(self) -> Iterator[Path]:
        for folder in self.served.options.paths:
            yield from sorted(folder.rglob("*"))
        assert self.served.options.properties is not None
        yield self.served.options.properties

    def digest(self) -> str:
        """A hash of all bytes of the directories and of the broker's file."""
        digest = hashlib.sha256()
        for path in self._paths():
            digest.update(os.fsencode(path))
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()

    def refused(
        self, status: int, *, but: Callable[[Unsafe], bool] = lambda route: False, **headers: str
    ) -> None:
        """Every route answers with the status, and nothing has changed."""
        before, bytes_before, jobs = self.looks(), self.digest(), len(self.served.jobs.all())
        for route in self.routes():
            if but(route):
                continue
            for attempt in (None, _request_of(route)):
                answer = self.send(route, attempt, **headers)
                assert answer.status_code == status, (route, answer.text)
            assert self.looks() == before, route
        assert self.digest() == bytes_before
        assert len(self.served.jobs.all()) == jobs


@pytest.fixture
def table(served: Served) -> Table:
    return Table(served)


def _asks(route: Unsafe) -> bool:
    return is_question(route.path)


def _asks_or_cancels(route: Unsafe) -> bool:
    return _asks(route) or is_of_job(route.path)


ELSEWHERE: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:8083"},
]


@pytest.mark.parametrize("headers", few([(headers,) for headers in ELSEWHERE], 1, 5), ids=str)
def test_a_page_of_another_site_changes_nothing(table: Table, headers: dict[str, str]) -> None:
    table.refused(403, **headers)


HOSTS = ("evil.example", "localhost.evil.example", "", "10.0.0.1:8082", "[::2]")


@pytest.mark.parametrize("host", few([(host,) for host in HOSTS], 1, 2))
def test_an_unknown_host_is_misdirected(table: Table, host: str) -> None:
    table.refused(421, Host=host)
    assert table.client.get("/metrics", headers={"Host": host}).status_code == 421


@pytest.fixture
def with_users(served: Served) -> Table:
    """A site whose users are one of each role."""
    return Table(
        served,
        replace(rules_of(served.config, []), identity=Identity(auth="basic", users=Users(_USERS, "users"))),
    )


def test_a_request_without_a_login_changes_nothing(with_users: Table) -> None:
    with_users.refused(401)
    wrong = base64.b64encode(b"ADMIN:wrong").decode()
    for authorization in ("Basic !!!", f"Basic {wrong}", "Bearer x", "Digest x"):
        assert (
            with_users.client.delete(
                "/probe/topics/users", headers={"Authorization": authorization}
            ).status_code
            == 401
        )
    assert with_users.client.get("/metrics").status_code == 401


# The role between differs from them in no route's refusal; test_openapi asks each route as a reader, too.
@pytest.mark.parametrize("role", few([(role,) for role in (Role.VIEWER, Role.READER, Role.EDITOR)], 0, 2))
def test_a_lower_role_than_a_routes_changes_nothing(with_users: Table, role: Role) -> None:
    header = {"Authorization": f"Bearer {_TOKENS[role]}"}
    assert with_users.client.get("/metrics", headers=header).status_code == 200
    with_users.refused(403, but=lambda route: route.role <= role, **header)


def test_read_only_changes_nothing(served: Served) -> None:
    table = Table(served, replace(rules_of(served.config, []), read_only_reason="read only"))
    table.refused(403, but=_asks_or_cancels)


def test_look_mode_changes_nothing(open_served: Callable[..., Served], served: Served) -> None:
    served.opened().flush()
    table = Table(open_served(is_look=True))
    table.refused(403, but=_asks_or_cancels)
    assert "look mode" in table.client.delete("/probe/topics/users").text


def cancels(table: Table) -> None:
    """Each route that cancels a job cancels a dry run, but not for a page of another site."""
    routes = [route for route in table.routes() if is_of_job(route.path)]
    assert len(routes) == 2
    for route in routes:
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
            assert table.send(route, **headers).status_code == 403
        may_end = threading.Event()

        def work(progress: Progress, may_end: threading.Event = may_end) -> None:
            may_end.wait(60)
            progress.check()

        job = table.served.jobs.submit("explain", "users", "-", work)
        page = table.client.get("/ui/jobs").text
        assert "Cancel: explain users" in page and "disabled" not in page
        answer = table.send(route, Try(names={"job_id": job.id}))
        assert answer.status_code < 400, (route, answer.text)
        may_end.set()
        table.served.jobs.wait(job.id, 60)
        assert table.served.jobs.get(job.id).state == "cancelled"
        assert table.send(route, Try(names={"job_id": "none"})).status_code == 404


def test_look_mode_cancels_its_dry_runs_and_changes_nothing(
    open_served: Callable[..., Served], served: Served
) -> None:
    served.opened().flush()
    table = Table(open_served(is_look=True))
    before, bytes_before = table.looks(), table.digest()
    cancels(table)
    assert table.looks() == before and table.digest() == bytes_before


def test_a_read_only_server_cancels_its_dry_runs_and_writes_the_audit_log_alone(served: Served) -> None:
    table = Table(served, replace(rules_of(served.config, []), read_only_reason="read only"))
    before = table.looks()
    cancels(table)
    after = table.looks()
    changed = {Path(path) for path, _ in before.files.items() ^ after.files.items()}
    assert changed == {table.served.opened_changes().path} and after.memory == before.memory


# Audit: what cannot be recorded is not changed, and what was recorded and not made says so.


@pytest.fixture
def prepared(served: Served) -> Table:
    """A server on which each request of ``REQUESTS`` would change something."""
    manager = served.opened()
    manager.topics.create("with-threshold", 1, {"compactionThreshold": "9"})
    manager.topics.alter_namespace("public/default", {"compactionThreshold": "9"})
    manager.mark_uncleanable(served.log("users", 1).topic_partition, "damaged", 1)
    served.cataloguer.refresh()
    return Table(served)


def _changing(table: Table) -> Iterator[tuple[Unsafe, Try]]:
    """Each unsafe route that changes something, with a request that would."""
    for route in table.routes():
        if _asks(route) or any(part in route.path for part in CHANGES_NOTHING):
            continue
        attempt = _request_of(route)
        assert attempt is not None, f"{route}: REQUESTS has no request that changes something"
        yield route, attempt


def _outcome(table: Table, route: Unsafe, attempt: Try) -> str:
    """How a request was refused, and no job made."""
    jobs = len(table.served.jobs.all())
    answer = table.send(route, attempt)
    is_of_several = "error_code" in answer.text or route.path.startswith("/ui/selected/")
    assert answer.status_code >= 400 or is_of_several, (route, answer.text)
    assert len(table.served.jobs.all()) == jobs, route
    return answer.text


def test_what_cannot_be_recorded_is_not_changed(prepared: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepared.served.opened_changes(), "_append", full)
    before, bytes_before = prepared.looks(), prepared.digest()
    for route, attempt in _changing(prepared):
        assert "not recorded" in _outcome(prepared, route, attempt), route
        assert prepared.looks() == before, route
    assert prepared.digest() == bytes_before


def test_a_crash_between_audit_and_change_leaves_the_intent_alone(
    prepared: Table, monkeypatch: pytest.MonkeyPatch, open_served: Callable[..., Served]
) -> None:
    begin = ChangeLog.begin

    def crashing(log: ChangeLog, *arguments: Any, **keywords: Any) -> str:
        begin(log, *arguments, **keywords)
        raise OSError("the process died")

    changes = prepared.served.opened_changes()
    changes.begin(administration.Actor(), "test", "users")  # so that the file is there
    monkeypatch.setattr(ChangeLog, "begin", crashing)
    intents, audit = 1, str(changes.path)
    for route, attempt in _changing(prepared):
        before = prepared.looks()
        assert "died" in _outcome(prepared, route, attempt), route
        after = prepared.looks()
        assert after.memory == before.memory, route
        assert {path for path in after.files if after.files[path] != before.files.get(path)} == {audit}, route
        intents += 1
    monkeypatch.undo()
    topics = prepared.looks().memory[0]
    prepared.served.close()
    again = Table(open_served())
    assert again.looks().memory[0] == topics
    entries = again.served.opened_changes().newest(1000)
    assert len(entries) == intents
    # A restart is done, whatever ended the process, when the directories are open again.
    assert {change.outcome for change in entries if change.action != RESTART} == {None}


def test_a_program_and_a_page_of_the_console_may_change(served: Served) -> None:
    client = client_of(served)
    assert client.post("/probe/topics/one").status_code == 200
    own = {"Sec-Fetch-Site": "same-origin"}
    assert client.post("/probe/topics/two", headers=own).status_code == 200
    assert client.post("/probe/topics/three", headers={"Origin": "http://localhost:8082"}).status_code == 200
    assert client.delete("/probe/topics/one").status_code == 200
    assert served.opened().topics.names() == ["three", "two", "users"]
    changes = served.opened_changes().newest()
    assert [(change.action, change.target, change.outcome) for change in changes] == [
        ("delete", "one", "done"),
        ("create", "three", "done"),
        ("create", "two", "done"),
        ("create", "one", "done"),
    ]
    assert (served.options.paths[0] / CHANGES_FILE).exists()


def test_each_answer_has_the_headers_that_bind_a_browser(served: Served) -> None:
    client = client_of(served)
    for path in ("/healthz", "/metrics", "/nothing", "/probe/crash"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_bug_shows_nothing_of_itself(served: Served) -> None:
    answer = client_of(served).get("/probe/crash")
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_a_large_body_is_refused(served: Served) -> None:
    client = client_of(served)
    assert client.post("/probe/topics/x", content=b" " * ((1 << 20) + 1)).status_code == 413
    assert client.post("/probe/topics/x", headers={"Content-Length": "x"}).status_code in (400, 413)
    kinds = {"/api/v1/topics:alter": "application/json", "/ui/new-topic": "application/x-www-form-urlencoded"}
    for path, kind in kinds.items():
        in_chunks = (b" " * (1 << 16) for _ in range(17))  # without Content-Length
        answer = client.post(path, content=in_chunks, headers={"Content-Type": kind})
        assert (answer.status_code, "too large" in answer.text) == (413, True), path


def test_only_who_may_append_records_sends_a_large_body(with_users: Table) -> None:
    content = b'{"entries": [], "padding": "' + b"x" * (1 << 20) + b'"}'
    for path, header, status in (
        ("topics/users/records:batch", AS_EDITOR, 413),
        ("topics/users/records:batch", AS_ADMIN, 400),
        ("topics/users/configs/records", AS_ADMIN, 413),
    ):
        url = f"/v3/clusters/{with_users.fill['cluster_id']}/{path}"
        method = "PUT" if "configs" in path else "POST"
        headers = {**header, "Content-Type": "application/json"}
        assert with_users.client.request(method, url, content=content, headers=headers).status_code == status


def test_errors_have_the_form_of_their_family(served: Served) -> None:
    client = client_of(served)
    assert client.get("/v3/nothing").json() == {"error_code": 404, "message": "Not Found"}
    assert client.get("/admin/v2/nothing").json() == {"reason": "Not Found"}
    assert "<h1>Not found</h1>" in client.get("/ui/nothing").text
    assert client.get("/ui/nothing", headers={"Accept": "text/event-stream"}).text == "Not Found\n"
    assert client.get("/ui/", headers={"Host": "evil"}).text.startswith("this server is not 'evil'")
    assert client.delete("/probe/topics/none").json()["error_code"] == 40403


def test_a_route_without_a_role_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.add_api_route("/free", lambda: "x", methods=["POST"])
    monkeypatch.setattr(site, "ROUTERS", (router,))
    with pytest.raises(AssertionError, match="/free: no role"):
        client_of(served)


@pytest.mark.parametrize(
    ("header", "host"),
    [("a:1", "a"), ("[::1]:8082", "::1"), ("[::1]", "::1"), ("LOCALHOST.", "localhost"), ("", "")],
)
def test_the_name_in_a_host_header(header: str, host: str) -> None:
    assert host_of(header) == host


def test_the_browsers_word_counts_more_than_the_origin() -> None:
    assert not is_cross_origin({"sec-fetch-site": "none", "origin": "http://evil"})
    assert is_cross_origin({"sec-fetch-site": "cross-site", "origin": "http://a", "host": "a"})
    assert not is_cross_origin({})
