"""What the console's forms do. A form that succeeds leads to the page that shows the outcome (303); one that
is refused shows its page again with the reason. ``guards`` has let it through: same origin, not read-only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from siltstone.base.errors import ChangedMeanwhileError, SiltstoneError, UsageError
from siltstone.commands import administration
from siltstone.commands.cluster import partition_named
from siltstone.commands.explaining import explain_topic
from siltstone.commands.latest_job import find_latest
from siltstone.commands.topics import parse_assignments
from siltstone.web.dependencies import CurrentActor, CurrentServed, Latest
from siltstone.web.errors import status_of, with_status_of
from siltstone.web.guards import ADMIN, EDITOR, READER
from siltstone.web.pages import cleaner, topic_tabs
from siltstone.web.pages.confirmation import refuse_unconfirmed
from siltstone.web.pages.lists import ListParameters
from siltstone.web.pages.rendering import path, query_text
from siltstone.web.queries import ConsoleForm, is_whole_number, isolation_of

router = APIRouter(prefix="/ui")
Text = Annotated[str, Form()]
Checked = Annotated[bool, Form()]


def _answer(target: str, act: Callable[[], object], again: Callable[..., Response]) -> Response:
    """Carry ``act`` out and redirect to ``target``; if it raises, show the page of the form ``again``."""
    try:
        act()
    except (SiltstoneError, OSError) as error:
        return with_status_of(error, again(problem=str(error)))
    return RedirectResponse(target, 303)


class NewSetting(ConsoleForm):
    """One setting of a topic: its value, or its default. ``tag``: the topic's ETag when the form was made;
    ``typed``: the topic's name, which confirms a change that may delete data."""

    name: str
    value: str = ""
    default: bool = False
    tag: str = ""
    typed: str = ""


@router.post("/topics/{topic}/configuration", dependencies=[EDITOR])
def alter(
    request: Request, served: CurrentServed, by: CurrentActor, topic: str, form: Annotated[NewSetting, Form()]
) -> Response:
    """Set one of the topic's own settings, or leave it to the default."""
    name = form.name
    try:
        with form.field("typed"):
            if name in topic_tabs.DELETING_SETTINGS:
                refuse_unconfirmed(form.typed, topic)
        set_to = {} if form.default else parse_assignments([f"{name}={form.value}"], name)
        removed = [name] if form.default else []
        administration.alter_settings(served, by, topic, set_to, removed, if_match=form.tag or None)
    except (SiltstoneError, OSError) as error:
        setting_form = topic_tabs.SettingForm(name=name, value=form.value, default=form.default)
        is_conflict = isinstance(error, ChangedMeanwhileError)
        wrong = form.refused_field or ("value" if status_of(error)[0] == 400 else "")
        response = topic_tabs.configuration(
            request, served, topic, setting_form, problem=str(error), wrong=wrong, is_conflict=is_conflict
        )
        return with_status_of(error, response)
    served.cataloguer.refresh()
    return RedirectResponse(f"/ui/topics/{path(topic)}/configuration?{query_text({'name': name})}", 303)


@router.post("/topics/{topic}/partitions", dependencies=[ADMIN])
def add_partitions(
    request: Request, served: CurrentServed, by: CurrentActor, topic: str, count: Text = "", tag: Text = ""
) -> Response:
    """Raise the topic's number of partitions."""

    def act() -> None:
        number = count.strip()
        if not is_whole_number(number):
            raise UsageError(f"{number[:20]!r} is no number of partitions", advice="pass a higher number")
        administration.add_partitions(served, by, topic, int(number), if_match=tag or None)
        served.cataloguer.refresh()

    page = partial(topic_tabs.configuration, request, served, topic, topic_tabs.SettingForm())
    again = partial(page, wrong="count", count=count)
    return _answer(f"/ui/topics/{path(topic)}", act, again)


@router.post("/topics/{topic}/clean", dependencies=[EDITOR])
def clean(
    request: Request, served: CurrentServed, by: CurrentActor, topic: str, force: Checked = False
) -> Response:
    """Clean the topic now, as a job."""
    again = partial(topic_tabs.segments, request, served, topic)
    act = partial(administration.clean_now, served, by, topic, force=force)
    return _answer("/ui/jobs", act, again)


@router.post("/topics/{topic}:explain", dependencies=[READER])
def explain(request: Request, served: CurrentServed, by: CurrentActor, topic: str) -> Response:
    """Explain the topic's next cleaning, as a job; its result is on the page of segments."""
    again = partial(topic_tabs.segments, request, served, topic)
    act = partial(explain_topic, served, by.user, topic)
    return _answer(f"/ui/topics/{path(topic)}", act, again)


@router.post("/topics/{topic}:find-latest", dependencies=[READER])
def find_latest_records(
    request: Request,
    served: CurrentServed,
    by: CurrentActor,
    latest: Latest,
    topic: str,
    committed: Checked = False,
    partition: Annotated[int | None, Form(ge=0)] = None,
) -> Response:
    """Find the last record of each key of a topic with very many keys, or of one partition, as a job."""
    isolation, chosen = isolation_of(committed=committed), () if partition is None else (partition,)
    again = partial(topic_tabs.segments, request, served, topic)
    act = partial(find_latest, served, by.user, topic, latest, partitions=chosen, isolation=isolation)
    return _answer("/ui/jobs", act, again)


@router.post("/topics/{topic}/delete", dependencies=[ADMIN])
def delete(
    request: Request, served: CurrentServed, by: CurrentActor, topic: str, typed: Text = "", tag: Text = ""
) -> Response:
    """Delete the topic, unless it has changed since its page was made."""

    def act() -> None:
        refuse_unconfirmed(typed, topic)
        administration.delete_topic(served, by, topic, if_match=tag or None)
        served.cataloguer.refresh()

    page = partial(topic_tabs.configuration, request, served, topic, topic_tabs.SettingForm())
    return _answer("/ui/topics", act, partial(page, wrong="deletion"))


@router.post("/topics/{topic}/partitions/{partition}/retry", dependencies=[EDITOR])
def retry(request: Request, served: CurrentServed, by: CurrentActor, topic: str, partition: int) -> Response:
    """Let the cleaner try an uncleanable log again."""

    def act() -> None:
        administration.retry_cleaning(served, by, partition_named(served, topic, partition))
        served.cataloguer.refresh()

    again = partial(cleaner.uncleanable, request, served, ListParameters())
    return _answer("/ui/cleaner/uncleanable", act, again)


def _in_queue(request: Request, served: CurrentServed, target: str, act: Callable[[], object]) -> Response:
    """``_answer`` for a button in the cleaner's queue, which is shown again with the problem."""
    return _answer(target, act, partial(cleaner.queue, request, served, ListParameters()))


@router.post("/topics/{topic}/partitions/{partition}/clean", dependencies=[EDITOR])
def clean_partition(
    request: Request, served: CurrentServed, by: CurrentActor, topic: str, partition: int
) -> Response:
    """Clean one log now, as a job, whatever its dirty ratio."""
    act = partial(administration.clean_now, served, by, topic, [partition], force=True)
    return _in_queue(request, served, "/ui/jobs", act)


@router.post("/topics/{topic}/partitions/{partition}/pause", dependencies=[EDITOR])
def pause(request: Request, served: CurrentServed, by: CurrentActor, topic: str, partition: int) -> Response:
    """Pause the cleaning of a log."""

    def act() -> None:
        administration.pause_cleaning(served, by, partition_named(served, topic, partition))

    return _in_queue(request, served, "/ui/cleaner", act)


@router.post("/topics/{topic}/partitions/{partition}/resume", dependencies=[EDITOR])
def resume(request: Request, served: CurrentServed, by: CurrentActor, topic: str, partition: int) -> Response:
    """End the pause of a log."""

    def act() -> None:
        administration.resume_cleaning(served, by, partition_named(served, topic, partition))

    return _in_queue(request, served, "/ui/cleaner", act)


@router.post("/jobs/{job_id}/cancel", dependencies=[EDITOR])
def cancel(served: CurrentServed, by: CurrentActor, job_id: str) -> Response:
    """Cancel a job."""
    administration.cancel_job(served, by, job_id)
    return RedirectResponse("/ui/jobs", 303)
