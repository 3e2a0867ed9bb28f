"""Requests that must be refused, by every unsafe route, without a changed byte."""

from __future__ import annotations

import base64
import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import APIRouter
from starlette.testclient import TestClient

from siltstone.commands import administration
from siltstone.commands.changes import CHANGES_FILE
from siltstone.commands.served import Served
from siltstone.web import site
from siltstone.web.guards import ADMIN, EDITOR, VIEWER, Rules, host_of, is_cross_origin
from siltstone.web.here import By, Here
from siltstone.web.identity import Identity, Role, Users, scrypt_hash
from siltstone.web.running import rules_of
from tests.web.conftest import client_of

_router = APIRouter()
_PASSWORDS = {role.name.lower(): scrypt_hash(role.name, b"salt") for role in Role if role}
_USERS = "\n".join(f"{name}:{name}:{secret}" for name, secret in _PASSWORDS.items())


@_router.post("/probe/topics/{name}", dependencies=[ADMIN])
def _create(name: str, served: Here, by: By) -> str:
    return administration.create_topic(served, by, name, 1, {}).status


@_router.delete("/probe/topics/{name}", dependencies=[ADMIN])
def _delete(name: str, served: Here, by: By) -> str:
    return administration.delete_topic(served, by, name).status


@_router.put("/probe/topics/{name}", dependencies=[EDITOR])
def _alter(name: str, served: Here, by: By) -> str:
    administration.alter_settings(served, by, name, {"retention.ms": "1"})
    return "altered"


@_router.get("/probe/crash", dependencies=[VIEWER])
def _crash() -> None:
    raise RuntimeError("the secret")


@pytest.fixture(autouse=True)
def _probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ROUTERS", (*site.ROUTERS, _router))


def _unsafe_routes(client: TestClient) -> list[tuple[str, str]]:
    """(Method, a path) of each route that may change something."""
    app = client.app._app  # type: ignore[attr-defined]
    found = []
    for path, methods, _ in site.routes_with_roles(app):
        filled = re.sub(r"\{[^}]*\}", "users", path)
        found += [(method, filled) for method in methods if method not in ("GET", "HEAD")]
    assert len(found) >= 3
    return found


def _bytes_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _refused_everywhere(
    served: Served,
    status: int,
    *,
    headers: Mapping[str, str] | None = None,
    rules: Rules | None = None,
    questions: bool = True,
) -> None:
    """``questions``: with the routes that only ask, and so are allowed to who changes nothing."""
    client, before = client_of(served, rules), _bytes_of(served.options.paths[0])
    for method, path in _unsafe_routes(client):
        if not questions and path.endswith((":preview", ":explain")):
            continue
        answer = client.request(method, path, headers=headers or {}, json={})
        assert answer.status_code == status, (method, path, answer.text)
    assert _bytes_of(served.options.paths[0]) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8083"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(served: Served, headers: dict[str, str]) -> None:
    _refused_everywhere(served, 403, headers=headers)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "10.0.0.1:8082", "[::2]"])
def test_an_unknown_host_is_misdirected(served: Served, host: str) -> None:
    _refused_everywhere(served, 421, headers={"Host": host})
    assert client_of(served).get("/metrics", headers={"Host": host}).status_code == 421


def test_who_does_not_log_in_changes_nothing(served: Served) -> None:
    rules = replace(
        rules_of(served.config, []), identity=Identity(auth="basic", users=Users(_USERS, "users"))
    )
    _refused_everywhere(served, 401, rules=rules)
    for given in ("Basic !!!", "Basic " + base64.b64encode(b"admin:wrong").decode(), "Bearer x", "Digest x"):
        _refused_everywhere(served, 401, rules=rules, headers={"Authorization": given})


def test_a_viewer_and_a_reader_change_nothing(served: Served) -> None:
    rules = replace(
        rules_of(served.config, []), identity=Identity(auth="basic", users=Users(_USERS, "users"))
    )
    for name in ("viewer", "reader"):
        given = base64.b64encode(f"{name}:{name.upper()}".encode()).decode()
        headers = {"Authorization": f"Basic {given}"}
        assert client_of(served, rules).get("/metrics", headers=headers).status_code == 200
        _refused_everywhere(served, 403, rules=rules, headers=headers, questions=False)


def test_read_only_changes_nothing(served: Served) -> None:
    rules = replace(rules_of(served.config, []), read_only_reason="read only")
    client, before = client_of(served, rules), _bytes_of(served.options.paths[0])
    for method, path in _unsafe_routes(client):
        if not path.endswith((":preview", ":explain", ":check")):
            assert client.request(method, path, json={}).status_code == 403, path
    assert _bytes_of(served.options.paths[0]) == before


def test_look_mode_changes_nothing(open_served: Callable[..., Served], served: Served) -> None:
    looking = open_served(is_look=True)
    client, before = client_of(looking), _bytes_of(served.options.paths[0])
    for method, path in _unsafe_routes(client):
        if not path.endswith((":preview", ":explain", ":check")):
            answer = client.request(method, path, json={})
            assert answer.status_code == 403, path
            assert "only looked at" in answer.text
    assert _bytes_of(served.options.paths[0]) == before


def test_what_cannot_be_recorded_is_not_changed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(served.opened_changes(), "_append", full)
    before = _bytes_of(served.options.paths[0])
    client = client_of(served)
    for method, path in (("POST", "new"), ("DELETE", "users"), ("PUT", "users")):
        answer = client.request(method, f"/probe/topics/{path}")
        assert answer.status_code == 500
        assert answer.json()["error_code"] == 50002
        assert "not recorded" in answer.json()["message"]
    assert _bytes_of(served.options.paths[0]) == before


def test_a_program_and_a_page_of_ours_may_change(served: Served) -> None:
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


def test_errors_have_the_form_of_their_family(served: Served) -> None:
    client = client_of(served)
    assert client.get("/v3/nothing").json() == {"error_code": 404, "message": "Not Found"}
    assert client.get("/admin/v2/nothing").json() == {"reason": "Not Found"}
    assert client.get("/ui/nothing").text == "Not Found\n"
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
