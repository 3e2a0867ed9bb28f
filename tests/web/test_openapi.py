"""``/openapi.json`` describes the REST APIs as they are; no operation answers bad input with a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from siltstone.commands.served import Served
from siltstone.web.identity import Identity, Role, Users, scrypt_hash
from siltstone.web.openapi import FAMILIES
from siltstone.web.running import rules_of
from siltstone.web.site import routes_with_roles
from tests.support.thoroughness import THOROUGH, turn
from tests.web.conftest import client_of

BAD_BODIES = (
    None,
    [],
    {},
    "x",
    0,
    {"data": [{}]},
    {"topics": [None]},
    {"topic_name": "\x00"},
    {"entries": 1},
)
BAD_NAMES = ("-", "%00", "..%2f..", "%C3%A4", "x" * 300, "-1", "9" * 30)


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        if isinstance(document.get("$ref"), str):
            yield document["$ref"]
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from references(part)


def test_every_rest_route_is_described(client: TestClient, document: dict[str, Any]) -> None:
    routes = {
        (method, re.sub(r":\w+\}", "}", path))
        for path, methods, _ in routes_with_roles(client.app._app)  # type: ignore[attr-defined]
        for method in methods
        if path.startswith((*FAMILIES, "/v3/clusters")) and not path.startswith("/admin/v2/non-persistent")
    }
    assert {(method, path) for method, path, _ in operations(document)} == routes
    assert document["openapi"] == "3.1.0"
    assert len(routes) > 70


def test_references_and_names_are_sound(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert {reference.removeprefix("#/components/schemas/") for reference in references(document)} <= set(
        schemas
    )
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_refusals_have_the_form_of_their_family(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        assert "422" not in operation["responses"]
        form = operation["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[
            2
        ]
        assert form == ("PulsarError" if path.startswith("/admin/") else "Error")


def test_answers_that_are_no_json_are_described_as_such(document: dict[str, Any]) -> None:
    kinds = {
        path: set(operation["responses"]["200"].get("content", {}))
        for method, path, operation in operations(document)
        if method == "GET"
    }
    topic = "/api/v1/topics/{topic}"
    other = {path: kind for path, kind in kinds.items() if kind != {"application/json"}}
    assert other == {
        f"{topic}/partitions/{{partition}}/records/{{offset}}/value": {"application/octet-stream"},
        f"{topic}/records:tail": {"text/event-stream", "application/x-ndjson"},
    }


def test_descriptions_are_markdown_and_no_sphinx(document: dict[str, Any]) -> None:
    texts = [operation["description"] for _, _, operation in operations(document)]
    assert all(texts) and not any("``" in text for text in texts)


def filled(path: str, value: str) -> str:
    return re.sub(r"\{[^}]*\}", value, path)


@pytest.mark.random
def test_bad_input_is_refused_and_no_failure(client: TestClient, document: dict[str, Any]) -> None:
    (cluster,) = client.get("/v3/clusters").json()["data"]
    for number, (method, path, _) in enumerate(operations(document)):
        if path.endswith("records:tail"):
            continue  # "-" … are no topics, but a stream that is opened does not end
        here = path.replace("{cluster_id}", cluster["cluster_id"])
        bodies = BAD_BODIES if THOROUGH else BAD_BODIES[number % 5 :: 5]
        for name in dict.fromkeys(("-", *turn(number, BAD_NAMES))):
            for body in bodies if method not in ("GET", "DELETE") and name == "-" else (None,):
                options = {} if method in ("GET", "DELETE") else {"json": body}
                answer = client.request(method, filled(here, name), **options)  # type: ignore[arg-type]
                assert answer.status_code < 500, (method, path, name, body, answer.text)
                if answer.status_code >= 400:
                    assert set(answer.json()) in ({"error_code", "message"}, {"reason"})


@pytest.mark.random
def test_each_route_needs_its_role_and_no_more(served: Served) -> None:
    users = "\n".join(f"{role.name}:{role.name.lower()}:{scrypt_hash('x', b'salt')}" for role in Role if role)
    identity = Identity(auth="basic", users=Users(users, "users"))
    client = client_of(served, replace(rules_of(served.config, []), identity=identity))
    roles, checked = [role for role in Role if role], 0
    for path, methods, role in routes_with_roles(client.app._app):  # type: ignore[attr-defined]
        if not path.startswith((*FAMILIES, "/v3/clusters")) or role is None or path.endswith("records:tail"):
            continue
        at = roles.index(role)
        for method in methods:
            # The role itself and the next one with less; all others are further from it.
            for user in roles if THOROUGH else roles[max(at - 1, 0) : at + 1]:
                answer = client.request(method, filled(path, "0"), auth=(user.name, "x"))
                assert (answer.status_code == 403) == (user < role), (method, path, user, answer.text)
                checked += 1
    assert checked > (250 if THOROUGH else 120)
