"""The POST and DELETE requests of Siltstone's own REST API (beside Confluent's), below ``/api/v1``: changes
of settings of many topics; jobs that clean, explain or empty a topic, erase keys or find the last record of
each key, and the cancelling of a job; partitions that the cleaner tries again, pauses or resumes; the restart
of the broker.

A change of settings needs the ETag that was read, so that it does not overwrite a change of another user:
without ``If-Match``, or ``if_match`` of each topic, it is refused with 428.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, HTTPException
from pydantic import Field

from siltstone.base.errors import SiltstoneError
from siltstone.commands import administration, broker_settings
from siltstone.commands.cluster import partition_named
from siltstone.commands.erasing import ErasureRequest, parse_key
from siltstone.commands.explaining import explain_topic
from siltstone.commands.latest_job import find_latest
from siltstone.web.dependencies import CurrentActor, CurrentServed, Latest
from siltstone.web.errors import sendable, status_of
from siltstone.web.guards import ADMIN, EDITOR, READER
from siltstone.web.queries import IntText
from siltstone.web.rest.bodies import JSON_ONLY, Body, Flag, JsonObject, Partitions

router = APIRouter(prefix="/api/v1", tags=["Siltstone"], dependencies=[JSON_ONLY])
IfMatch = Annotated[str | None, Header(description="The ETag of what was read; * for anything")]
TOPICS_MAX = 1000


class TopicAlteration(Body):
    """Settings of a topic to set, and to remove; ``if_match``: the topic's ETag; None: the
    header If-Match applies."""

    topic: str
    set: dict[str, str] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()
    if_match: str | None = None


class TopicAlterations(Body):
    """Changes of several topics: each is made or refused independently."""

    topics: Annotated[list[TopicAlteration], Field(min_length=1, max_length=TOPICS_MAX)]
    validate_only: Flag = False


class CleaningRequest(Body):
    """``force``: whatever the dirty ratio, and with the active segments; ``partitions``: empty for all."""

    force: Flag = False
    partitions: Partitions = ()


class EmptyingRequest(Body):
    """``tombstones``: one for each key; ``truncate``: the log begins at its end, without tombstones."""

    mode: Literal["tombstones", "truncate"]
    dry_run: Flag = False


class KeyErasureRequest(Body):
    """A key, or several in ``keys``: texts, or bytes in hex or base64."""

    key: str | None = None
    keys: tuple[str, ...] = ()
    key_format: Literal["utf8", "hex", "base64"] = "utf8"
    dry_run: Flag = False


@router.post("/topics:alter", dependencies=[EDITOR])
def alter_topics(
    served: CurrentServed, by: CurrentActor, new: TopicAlterations, if_match: IfMatch = None
) -> JsonObject:
    """Set and remove settings of several topics, each only if it still has the ETag that was read; the
    outcome of each."""
    if any((change.if_match or if_match) is None for change in new.topics):
        raise HTTPException(428, "say what was read: if_match of each topic, or the header If-Match")
    return {"topics": [_altered(served, by, change, if_match, new.validate_only) for change in new.topics]}


def _altered(
    served: CurrentServed,
    by: CurrentActor,
    change: TopicAlteration,
    if_match: str | None,
    validate_only: bool,
) -> JsonObject:
    """Change the settings of one topic, or with ``validate_only`` only check them; the outcome, also a
    refusal."""
    try:
        done = administration.alter_settings(
            *(served, by, change.topic, change.set, change.remove),
            if_match=change.if_match or if_match,
            validate_only=validate_only,
        )
        tag = administration.topic_etag(served, change.topic)
    except (SiltstoneError, OSError) as error:
        message = sendable(str(error))
        return {"topic": sendable(change.topic), "error_code": status_of(error)[1], "message": message}
    return {"topic": change.topic, "before": dict(done.before), "after": dict(done.after), "etag": tag}


@router.post("/topics/{topic}:clean", dependencies=[EDITOR], status_code=202)
def clean(
    served: CurrentServed, by: CurrentActor, topic: str, request: CleaningRequest | None = None
) -> JsonObject:
    """Clean a topic as a job."""
    request = request or CleaningRequest()
    job = administration.clean_now(served, by, topic, request.partitions, force=request.force)
    return job.to_json()


class ExplainingRequest(Body):
    """``partitions``: empty for all."""

    partitions: Partitions = ()


@router.post("/topics/{topic}:explain", dependencies=[READER], status_code=202)
def explain(
    served: CurrentServed, by: CurrentActor, topic: str, request: ExplainingRequest | None = None
) -> JsonObject:
    """What a cleaning of a topic would do, as a job; nothing is changed. Keys are masked."""
    partitions = () if request is None else request.partitions
    # Only the user's name, for the list of jobs: nothing is changed, so the audit log gets no line.
    return explain_topic(served, by.user, topic, partitions).to_json()


class FindLatestRequest(Body):
    """``partitions``: empty for all; ``isolation``: the level with which view=latest will be read
    afterwards."""

    partitions: Partitions = ()
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"


@router.post("/topics/{topic}:find-latest", dependencies=[READER], status_code=202)
def find_latest_records(
    served: CurrentServed,
    by: CurrentActor,
    views: Latest,
    topic: str,
    request: FindLatestRequest | None = None,
) -> JsonObject:
    """Find the last record of each key of a topic with too many keys for view=latest, as a job; nothing is
    changed."""
    request = request or FindLatestRequest()
    job = find_latest(
        served, by.user, topic, views, partitions=request.partitions, isolation=request.isolation
    )
    return job.to_json()


@router.post("/topics/{topic}:empty", dependencies=[ADMIN], status_code=202)
def empty(served: CurrentServed, by: CurrentActor, topic: str, request: EmptyingRequest) -> JsonObject:
    """Empty a topic as a job, or count what would go."""
    return administration.empty_topic(served, by, topic, request.mode, dry_run=request.dry_run).to_json()


@router.post("/topics/{topic}:erase-key", dependencies=[ADMIN], status_code=202)
def erase_key(served: CurrentServed, by: CurrentActor, topic: str, request: KeyErasureRequest) -> JsonObject:
    """Erase keys as a job: first the values; called again after delete.retention.ms, the tombstones with the
    keys, too. No key is stored with the job."""
    texts = request.keys if request.key is None else (request.key, *request.keys)
    erasure = ErasureRequest(topic=topic, keys=tuple(parse_key(text, request.key_format) for text in texts))
    return administration.erase_keys(served, by, erasure, dry_run=request.dry_run).to_json()


@router.post("/topics/{topic}/partitions/{partition}:retry-cleaning", dependencies=[EDITOR], status_code=204)
def retry_cleaning(served: CurrentServed, by: CurrentActor, topic: str, partition: IntText) -> None:
    """Let the cleaner try an uncleanable partition again."""
    administration.retry_cleaning(served, by, partition_named(served, topic, partition))


@router.post("/topics/{topic}/partitions/{partition}:pause", dependencies=[EDITOR], status_code=204)
def pause(served: CurrentServed, by: CurrentActor, topic: str, partition: IntText) -> None:
    """Pause the cleaning of a partition."""
    administration.pause_cleaning(served, by, partition_named(served, topic, partition))


@router.post("/topics/{topic}/partitions/{partition}:resume", dependencies=[EDITOR], status_code=204)
def resume(served: CurrentServed, by: CurrentActor, topic: str, partition: IntText) -> None:
    """End the pause of a partition."""
    administration.resume_cleaning(served, by, partition_named(served, topic, partition))


@router.post("/broker:restart", dependencies=[ADMIN], status_code=202)
def restart(served: CurrentServed, by: CurrentActor) -> None:
    """Shut the directories down cleanly, read server.properties and open them again. The response comes
    before that."""
    broker_settings.restart(served, by)


@router.delete("/jobs/{job_id}", dependencies=[EDITOR])
def cancel_job(served: CurrentServed, by: CurrentActor, job_id: str) -> JsonObject:
    """Cancel a job: one that runs ends at its next check."""
    return administration.cancel_job(served, by, job_id).to_json()
