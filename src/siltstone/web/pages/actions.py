"""What the console's forms do. A form that succeeds leads to the page that shows the outcome (303); one that
is refused shows its page again with the reason. ``guards`` has let it through: same origin, not read-only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import administration
from siltstone.commands.cluster import partition_named
from siltstone.commands.topics import parse_assignments
from siltstone.web.errors import status_of
from siltstone.web.guards import ADMIN, EDITOR
from siltstone.web.here import By, Here
from siltstone.web.pages import cleaner, topics
from siltstone.web.pages.rendering import path

router = APIRouter(prefix="/ui")
Text = Annotated[str, Form()]
Checked = Annotated[bool, Form()]


def _answer(target: str, act: Callable[[], object], again: Callable[[str], Response]) -> Response:
    """Act and go to ``target``, or show the page again with what was wrong."""
    try:
        act()
    except (SiltstoneError, OSError) as error:
        answer = again(str(error))
        answer.status_code = status_of(error)[0]
        return answer
    return RedirectResponse(target, 303)


def _confirmed(typed: str, topic: str) -> None:
    """Raises UsageError unless the topic's name was typed."""
    if typed != topic:
        raise UsageError("this may delete data, and was not confirmed", advice=f"type {topic}")


@router.post("/topics", dependencies=[ADMIN])
def create(
    request: Request, served: Here, by: By, name: Text, partitions: Text = "1", settings: Text = ""
) -> Response:
    """Create a topic."""

    def act() -> None:
        if not partitions.isdigit() or len(partitions) > 9:
            raise UsageError(f"partitions={partitions[:20]!r} is no number", advice="pass 1 or more")
        lines = [line.strip() for line in settings.splitlines() if line.strip()]
        parsed = parse_assignments(lines, "settings")
        administration.create_topic(served, by, name, int(partitions), parsed)
        served.cataloguer.refresh()

    again = lambda problem: topics.topics(request, served, topics.ShownTopics(), problem=problem)  # noqa: E731
    return _answer(f"/ui/topics/{path(name)}", act, again)


@router.post("/topics/{topic}/configuration", dependencies=[EDITOR])
def alter(
    request: Request,
    served: Here,
    by: By,
    topic: str,
    name: Text,
    value: Text = "",
    default: Checked = False,
    tag: Text = "",
    typed: Text = "",
) -> Response:
    """Set one of the topic's own settings, or leave it to the default."""

    def act() -> None:
        if name in topics.DELETES:
            _confirmed(typed, topic)
        set_to = {} if default else parse_assignments([f"{name}={value}"], name)
        removed = [name] if default else []
        administration.alter_settings(served, by, topic, set_to, removed, if_match=tag or None)

    again = lambda problem: topics.configuration(request, served, topic, problem=problem)  # noqa: E731
    return _answer(f"/ui/topics/{path(topic)}/configuration", act, again)


@router.post("/topics/{topic}/clean", dependencies=[EDITOR])
def clean(request: Request, served: Here, by: By, topic: str, force: Checked = False) -> Response:
    """Clean the topic now, as a job."""
    again = lambda problem: topics.segments(request, served, topic, problem=problem)  # noqa: E731
    act = lambda: administration.clean_now(served, by, topic, force=force)  # noqa: E731
    return _answer("/ui/jobs", act, again)


@router.post("/topics/{topic}/delete", dependencies=[ADMIN])
def delete(request: Request, served: Here, by: By, topic: str, typed: Text = "") -> Response:
    """Delete the topic."""

    def act() -> None:
        _confirmed(typed, topic)
        administration.delete_topic(served, by, topic)
        served.cataloguer.refresh()

    again = lambda problem: topics.configuration(request, served, topic, problem=problem)  # noqa: E731
    return _answer("/ui/topics", act, again)


@router.post("/topics/{topic}/partitions/{partition}/retry", dependencies=[EDITOR])
def retry(request: Request, served: Here, by: By, topic: str, partition: int) -> Response:
    """Let the cleaner try an uncleanable log again."""

    def act() -> None:
        administration.retry_cleaning(served, by, partition_named(served, topic, partition))
        served.cataloguer.refresh()

    return _answer("/ui/cleaner", act, lambda problem: cleaner.cleaner(request, served, problem=problem))


@router.post("/jobs/{job_id}/cancel", dependencies=[EDITOR])
def cancel(served: Here, by: By, job_id: str) -> Response:
    """Cancel a job."""
    administration.cancel_job(served, by, job_id)
    return RedirectResponse("/ui/jobs", 303)
