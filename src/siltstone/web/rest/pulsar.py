"""Pulsar's administration of compaction: below ``/admin/v2/persistent/{tenant}/{namespace}/{topic}``.

Errors are ``{"reason"}``. A name ends with ``-partition-N`` for one partition; without it, it stands for all
partitions together, for which Pulsar responds with 404.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, HTTPException
from starlette.responses import JSONResponse, Response

from siltstone.base.errors import UsageError
from siltstone.commands import administration, pulsar
from siltstone.commands.cluster import partitions_of
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.guards import EDITOR, VIEWER
from siltstone.web.queries import BoolText
from siltstone.web.rest.bodies import JSON_ONLY, NUMBERS_ONLY, JsonObject

router = APIRouter(prefix="/admin/v2", tags=["Pulsar"], dependencies=[JSON_ONLY])
TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
NAMESPACE = "/namespaces/{tenant}/{namespace}/compactionThreshold"
Bytes = Annotated[int, Body(le=(1 << 63) - 1), NUMBERS_ONLY]
"""A body that is a number: of bytes."""


def _topic(tenant: str, namespace: str, topic: str) -> str:
    """The full name of the path's topic. A bad name is refused with 412, Pulsar's status for it."""
    try:
        return pulsar.pulsar_name(tenant, namespace, topic)
    except UsageError as error:
        raise HTTPException(412, str(error)) from None


Topic = Annotated[str, Depends(_topic)]


def _namespace(tenant: str, namespace: str) -> str:
    _topic(tenant, namespace, "any")  # refuses a bad tenant or namespace
    return f"{tenant}/{namespace}"


Namespace = Annotated[str, Depends(_namespace)]


def _checked_threshold(size: int) -> int:
    if size < 0:
        raise HTTPException(412, "compactionThreshold: it is 0 or more bytes")
    return size


def _threshold_response(size: int | None) -> Response:
    """A threshold in bytes, or 204 without a body: Pulsar's response for a policy that is not set."""
    return Response(status_code=204) if size is None else JSONResponse(size)


@router.put(f"{TOPIC}/compaction", dependencies=[EDITOR], status_code=204)
def compact(served: CurrentServed, by: CurrentActor, name: Topic) -> None:
    """Begin to compact a topic; 409 while it is compacted."""
    administration.compact_side_by_side(served, by, name)


@router.get(f"{TOPIC}/compaction", dependencies=[VIEWER])
def compaction_status(served: CurrentServed, name: Topic) -> JsonObject:
    """NOT_RUN, RUNNING, SUCCESS or ERROR, and the last error."""
    status = pulsar.compaction_status(served, name)
    return {"status": status.status, "lastError": status.last_error}


@router.get(f"{TOPIC}/compactionThreshold", dependencies=[VIEWER], response_model=int, responses={204: {}})
def threshold(served: CurrentServed, name: Topic, applied: BoolText = False) -> Response:
    """The topic's own threshold in bytes, 204 without one; with ``applied`` the one that is used."""
    return _threshold_response(pulsar.threshold(served, name, applied=applied))


@router.post(f"{TOPIC}/compactionThreshold", dependencies=[EDITOR], status_code=204)
def set_threshold(served: CurrentServed, by: CurrentActor, name: Topic, size: Bytes) -> None:
    """Set the topic's own threshold: the body is a number of bytes."""
    pulsar.set_threshold(served, by, name, _checked_threshold(size))


@router.delete(f"{TOPIC}/compactionThreshold", dependencies=[EDITOR], status_code=204)
def remove_threshold(served: CurrentServed, by: CurrentActor, name: Topic) -> None:
    """Remove the topic's own threshold."""
    pulsar.set_threshold(served, by, name, None)


@router.get(f"{TOPIC}/internalStats", dependencies=[VIEWER])
def internal_stats(served: CurrentServed, name: Topic) -> JsonObject:
    """The compacted ledger and the cursor of compaction, of each partition."""
    return pulsar.internal_stats(served, name)


@router.get(f"{TOPIC}/stats", dependencies=[VIEWER])
def stats(served: CurrentServed, name: Topic) -> JsonObject:
    """Sizes, and the last compaction."""
    return pulsar.topic_stats(served, name)


@router.get(f"{TOPIC}/partitions", dependencies=[VIEWER])
def partitions(served: CurrentServed, name: Topic) -> JsonObject:
    """How many partitions a topic has."""
    return {"partitions": len(partitions_of(served, pulsar.topic_of(served, name))), "deleted": False}


@router.get(NAMESPACE, dependencies=[VIEWER], response_model=int, responses={204: {}})
def namespace_threshold(served: CurrentServed, name: Namespace) -> Response:
    """The namespace's threshold in bytes, 204 without one."""
    return _threshold_response(pulsar.namespace_threshold(served, name))


@router.put(NAMESPACE, dependencies=[EDITOR], status_code=204)
def set_namespace_threshold(served: CurrentServed, by: CurrentActor, name: Namespace, size: Bytes) -> None:
    """Set the namespace's threshold: the body is a number of bytes."""
    pulsar.set_namespace_threshold(served, by, name, _checked_threshold(size))


@router.delete(NAMESPACE, dependencies=[EDITOR], status_code=204)
def remove_namespace_threshold(served: CurrentServed, by: CurrentActor, name: Namespace) -> None:
    """Remove the namespace's threshold."""
    pulsar.set_namespace_threshold(served, by, name, None)


@router.api_route(
    "/non-persistent/{path:path}",
    methods=["GET", "PUT", "POST", "DELETE"],
    dependencies=[EDITOR],
    include_in_schema=False,
)
def not_persistent(path: str) -> None:
    """405: only a topic that is stored can be compacted."""
    raise HTTPException(405, "a non-persistent topic is not stored, and so not compacted")
