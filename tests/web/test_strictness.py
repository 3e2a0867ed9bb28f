"""What a member of a body or a parameter is, it is strictly: no ``true`` for 1, no text for a number.

The routes, members and parameters are those of ``/openapi.json``, not a list here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from siltstone.commands.cluster import cluster_identity
from siltstone.commands.served import Served
from tests.support.thoroughness import THOROUGH
from tests.web.conftest import client_of

Schema = dict[str, Any]
NAMES = {
    **dict.fromkeys(("topic", "topic_name"), "users"),
    **dict.fromkeys(("partition", "partition_id", "offset", "broker_id"), "0"),
    **{"tenant": "public", "namespace": "default", "name": "retention.ms"},
}
WRONG_IN_BODY: dict[str, tuple[object, ...]] = {
    "integer": (True, "7", 1.5, False, "", float("nan"), float("inf"), None, [7], {}),
    "boolean": (1, "true", 0, "yes", 1.0, None, [True]),
    "string": (7, 1.5, True, None, ["x"], {}),
    "array": (True, 7, "0", "", {}, {"0": 1}),
    "object": (True, 7, "x", []),
}
WRONG_IN_TEXT = {
    "integer": ("7.5", "true", "1_0", "1e1", "7.", "+7", " 7", "7 ", "0x7", "\u0667", "", "[7]"),
    "boolean": ("1", "0", "yes", "on", "t", "truth", " true", ""),
}
"""In a path or a query. A parameter of the path cannot be empty."""
TRIED = None if THOROUGH else 2
"""How many of them for each member and each parameter."""


class Operation(NamedTuple):
    """One of the document's, with its path filled and a body that has all that a body may have."""

    method: str
    path: str
    described: Schema
    body: Any


@pytest.fixture
def client(served: Served) -> TestClient:
    return client_of(served)


@pytest.fixture
def document(client: TestClient) -> Schema:
    return client.get("/openapi.json").json()  # type: ignore[no-any-return]


def meant(schema: Schema, document: Schema) -> Schema:
    """A schema without references, and without the null that it may be."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif "anyOf" in schema:
            (schema,) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        else:
            return schema


def may_be_null(schema: Schema, document: Schema) -> bool:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return "type" not in schema or {"type": "null"} in schema.get("anyOf", ())


def whole(schema: Schema, document: Schema) -> Any:
    """A value with every member that a schema has."""
    schema = meant(schema, document)
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {name: whole(each, document) for name, each in schema["properties"].items()}
        case "object":
            return {"x": whole(schema["additionalProperties"], document)}
        case "array":
            return [whole(schema["items"], document)]
        case "integer":
            return max(schema.get("minimum", 0), 0)
        case "boolean":
            return False
        case "string" if schema.get("format") == "date-time":
            return "2026-11-21T14:00:00Z"
        case "string":
            return schema.get("enum", [schema.get("const", "x")])[0]
        case kind:
            assert kind is None, schema  # a member that may be anything
            return "x"


def places(schema: Schema, document: Schema, at: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """(way to it, its type, may it be null) of everything in ``whole``."""
    nullable, schema = may_be_null(schema, document), meant(schema, document)
    kind = schema.get("type")
    if kind is None:
        return
    yield at, kind, nullable
    if kind == "array":
        yield from places(schema["items"], document, (*at, 0))
    members = schema.get(
        "properties",
        {"x": schema["additionalProperties"]}
        if at and kind == "object" and "properties" not in schema
        else {},
    )
    for name, each in members.items():
        yield from places(each, document, (*at, name))


def with_value(body: Any, at: tuple[str | int, ...], value: object) -> Any:
    """A copy of a body in which something else stands at a place."""
    if not at:
        return value
    changed = copy.deepcopy(body)
    inner = changed
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = value
    return changed


def operations(served: Served, document: Schema) -> Iterator[Operation]:
    names = {**NAMES, "cluster_id": cluster_identity(served).cluster_id}
    for path, item in document["paths"].items():
        for method, described in item.items():
            content = described.get("requestBody", {}).get("content", {})
            body = whole(content["application/json"]["schema"], document) if content else None
            filled = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "none"), path)
            yield Operation(method.upper(), filled, described, body)


@pytest.mark.random
def test_a_member_of_a_body_has_the_type_that_the_document_says(
    client: TestClient, document: Schema, served: Served
) -> None:
    tried = set[str]()
    before = {name: served.describe(name).config for name in served.opened().topics.names()}
    for method, path, described, body in operations(served, document):
        if body is None:
            continue
        (content,) = described["requestBody"]["content"].values()
        is_optional = not described["requestBody"].get("required", False)
        for at, kind, nullable in places(content["schema"], document):
            for wrong in WRONG_IN_BODY[kind][:TRIED]:
                if wrong is None and (nullable or (not at and is_optional)):
                    continue
                text = json.dumps(with_value(body, at, wrong))
                answer = client.request(
                    method, path, content=text, headers={"Content-Type": "application/json", "If-Match": "*"}
                )
                where = (method, path, at, wrong, answer.text)
                assert answer.status_code == 400, where
                reason = answer.json().get("message") or answer.json()["reason"]
                place = ".".join(map(str, at))
                assert place in reason or "JSON" in reason, where
            tried.add(kind)
    assert tried == set(WRONG_IN_BODY)
    assert {name: served.describe(name).config for name in served.opened().topics.names()} == before
    assert served.jobs.all() == []


HALF = "\ud800"
"""Half a character: JSON may have it, UTF-8 may not, so no response can have it as it is."""


def test_half_a_character_in_a_body_is_answered(client: TestClient, document: Schema, served: Served) -> None:
    headers = {"Content-Type": "application/json", "If-Match": "*"}
    for method, path, described, body in operations(served, document):
        if body is None:
            continue
        (content,) = described["requestBody"]["content"].values()
        for at, kind, _ in places(content["schema"], document):
            if kind == "string":
                changed = json.dumps(with_value(body, at, HALF))
                answer = client.request(method, path, content=changed, headers=headers)
                assert answer.status_code < 500, (method, path, at, answer.text)
            if kind == "object" and at:
                changed = json.dumps(with_value(body, at, {HALF: "1"}))
                answer = client.request(method, path, content=changed, headers=headers)
                assert answer.status_code < 500, (method, path, at, answer.text)


def test_half_a_character_is_in_no_setting(client: TestClient, served: Served) -> None:
    name = "leader.replication.throttled.replicas"
    configs = f"/v3/clusters/{cluster_identity(served).cluster_id}/topics/users/configs"
    answer = client.put(
        f"{configs}/{name}", content=json.dumps({"value": HALF}), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400 and "is no character" in answer.json()["message"]
    assert client.get(configs).status_code == 200 and served.describe("users").config.get(name) is None


@pytest.mark.random
def test_a_parameter_has_the_type_that_the_document_says(
    client: TestClient, document: Schema, served: Served
) -> None:
    tried = set[tuple[str, str]]()
    for path, item in document["paths"].items():
        for method, described in item.items():
            for parameter in described.get("parameters", ()):
                schema = meant(parameter["schema"], document)
                is_list = schema.get("type") == "array"
                kind = meant(schema["items"], document)["type"] if is_list else schema["type"]
                for wrong in WRONG_IN_TEXT.get(kind, ())[:TRIED]:
                    if parameter["in"] == "path" and not wrong:
                        continue
                    answer = _asked(client, served, method, path, parameter, wrong, described)
                    where = (method, path, parameter["name"], wrong, answer.text)
                    assert answer.status_code == 400, where
                    assert parameter["name"] in answer.text, where
                    tried.add((parameter["in"], kind))
    assert tried == {("path", "integer"), ("query", "integer"), ("query", "boolean")}


def _asked(
    client: TestClient,
    served: Served,
    method: str,
    path: str,
    parameter: Schema,
    wrong: str,
    described: Schema,
) -> Any:
    names: dict[str, str] = {**NAMES, "cluster_id": cluster_identity(served).cluster_id}
    query = dict[str, str]()
    if parameter["in"] == "path":
        names[parameter["name"]] = wrong
    else:
        query[parameter["name"]] = wrong
    filled = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "none"), path)
    body = {"json": {}} if "requestBody" in described else {}
    return client.request(method.upper(), filled, params=query, **body)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", ["false", "False"])
def test_a_truth_in_the_letters_of_python(client: TestClient, wait: str) -> None:
    path = "/admin/v2/persistent/public/default/users/compactionThreshold"
    assert client.get(path, params={"applied": wait}).status_code == 204


def test_the_refusal_names_the_member_of_a_list(client: TestClient) -> None:
    answer = client.post("/api/v1/topics/users:explain", json={"partitions": [False, True]})
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "body.partitions.0: Value error, a number is needed, not a text or a truth value",
    )


@pytest.mark.parametrize("start", ["9" * 38, "7.0", "9" * 400])
def test_a_large_number_is_a_number(client: TestClient, start: str) -> None:
    assert client.get("/api/v1/topics", params={"start": start}).json()["topics"] == []
    assert client.get("/api/v1/topics", params={"start": "9" * 5000}).status_code == 400
