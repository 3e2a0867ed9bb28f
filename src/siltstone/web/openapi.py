"""``/openapi.json``: OpenAPI 3.1 of the three REST APIs, made from the models that check the requests.

FastAPI describes a refused request as its own 422; here each family has its form of an error, with the
statuses of ``errors``. The pages are not part of it.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from siltstone.web.errors import PULSAR
from siltstone.web.guards import SAFE_METHODS, VIEWER
from siltstone.web.rest.bodies import JsonObject
from siltstone.web.rest.confluent.records import ProduceRequest

router = APIRouter()
FAMILIES = ("/v3/", PULSAR, "/api/v1/")
_TEMPLATE = "#/components/schemas/{model}"
_ERRORS: JsonObject = {
    "Error": {
        "type": "object",
        "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
        "required": ["error_code", "message"],
    },
    "PulsarError": {
        "type": "object",
        "properties": {"reason": {"type": "string"}},
        "required": ["reason"],
    },
}
_SECURITY: JsonObject = {
    "basic": {"type": "http", "scheme": "basic"},
    "token": {"type": "http", "scheme": "bearer"},
}


@router.get("/openapi.json", dependencies=[VIEWER], include_in_schema=False)
def openapi(request: Request) -> JsonObject:
    """The description of the REST APIs."""
    return description_of(request.app)


def description_of(app: FastAPI) -> JsonObject:
    """The description, kept for the next request."""
    if app.openapi_schema is None:
        app.openapi_schema = _described(app)
    return app.openapi_schema


def _described(app: FastAPI) -> JsonObject:
    document = get_openapi(
        title="Siltstone",
        version=version("siltstone"),
        openapi_version="3.1.0",
        summary="Kafka-format logs: Confluent's REST API v3, Pulsar's of compaction, and Siltstone's own",
        routes=app.routes,
    )
    paths = {path: item for path, item in document["paths"].items() if _is_rest(path)}
    for path, item in paths.items():
        for method, operation in item.items():
            _describe_errors(path, method, operation)
            # Docstrings are written for Sphinx, descriptions are Markdown.
            operation["description"] = operation.get("description", "").replace("``", "`")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    _, models = models_json_schema([(ProduceRequest, "validation")], ref_template=_TEMPLATE)
    document["components"]["schemas"] = {**models["$defs"], **schemas, **_ERRORS}
    document["components"]["securitySchemes"] = _SECURITY
    # {}: a server without authentication needs neither.
    return {**document, "paths": paths, "security": [{}, {"basic": []}, {"token": []}]}


def _is_rest(path: str) -> bool:
    return path == "/v3/clusters" or path.startswith(FAMILIES)


def _describe_errors(path: str, method: str, operation: JsonObject) -> None:
    """The family's error for every status but success."""
    schema = "PulsarError" if path.startswith(PULSAR) else "Error"
    content = {"application/json": {"schema": {"$ref": _TEMPLATE.format(model=schema)}}}
    responses = operation["responses"]
    responses.pop("422", None)
    responses["4XX"] = {"description": "Refused", "content": content}
    responses["5XX"] = {"description": "Failed", "content": content}
    if method.upper() not in SAFE_METHODS:
        responses["403"] = {"description": "No right, read-only, or look mode", "content": content}
