"""Actions on the topics that are ticked in the list: change a setting, clean, delete. A first page shows what
the action would do to each topic; its form carries the action out, and a second page shows the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from siltstone.base.config import find_topic_key, parse_topic_config
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import administration, console
from siltstone.commands.catalogue import PAGE_MAX
from siltstone.commands.cluster import own_names
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.topics import parse_assignments
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.errors import with_status_of
from siltstone.web.guards import ADMIN, EDITOR, VIEWER
from siltstone.web.limits import READING
from siltstone.web.pages.confirmation import is_confirmed, refuse_unconfirmed
from siltstone.web.pages.equivalents import cluster_url, curl, shell, siltstone
from siltstone.web.pages.rendering import page, path
from siltstone.web.pages.topic_tabs import DELETING_SETTINGS

router = APIRouter(prefix="/ui/selected")
Action = Literal["settings", "clean", "delete"]
TOPICS_OF_ACTION_MAX, TOPICS_OF_CHANGE_MAX = 200, 50
"""The most topics that one form cleans or deletes (the page's size is bounded, ``limits.PAGE_BYTES``), and
the most of which it changes a setting (a preview reads logs). With more ticked, the page shows these and has
no form."""


class Selection(BaseModel):
    """The ticked topics, and what is to be done with them. ``name``: a setting; ``value``: its new value;
    ``default``: remove it from the topic instead, so that its default counts."""

    topic: list[str] = Field(default=[], max_length=PAGE_MAX)
    action: Action = "settings"
    name: str = "cleanup.policy"
    value: str = ""
    default: bool = False


class ActionForm(BaseModel):
    """The form that carries out the action. ``tag``: the ETag of each topic when the page was made, "" for
    one whose preview failed; ``name``, ``value``, ``default``: as in ``Selection``; ``typed``: the text that
    confirms a deletion."""

    topic: list[str] = Field(default=[], max_length=PAGE_MAX)
    tag: list[str] = Field(default=[], max_length=PAGE_MAX)
    name: str = ""
    value: str = ""
    default: bool = False
    force: bool = False
    typed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickedTopic:
    """One ticked topic: what the action would do, or has done; ``tag``: its ETag when the page was made."""

    topic: str
    sentences: Sequence[str] = ()
    tag: str = ""
    problem: str | None = None


def confirmation(count: int) -> str:
    """The text that a user types to confirm that ``count`` topics, or records of theirs, may be deleted."""
    return counted(count, "topic")


def _ticked_topic(topic: str, describe: Callable[[], tuple[Sequence[str], str]]) -> TickedTopic:
    """``describe`` returns the sentences and the tag; its error is the topic's problem."""
    try:
        sentences, tag = describe()
    except (SiltstoneError, OSError) as error:
        return TickedTopic(topic=topic, problem=str(error))
    return TickedTopic(topic=topic, sentences=sentences, tag=tag)


def _previewed(served: CurrentServed, selection: Selection, topic: str) -> TickedTopic:
    """What the action would do to one topic."""

    def describe() -> tuple[Sequence[str], str]:
        row, tag = served.catalogue.topic(topic), administration.topic_etag(served, topic)
        if selection.action == "delete":
            text = counted(row.partitions, "partition") + f" with {size_text(row.bytes)} "
            text += "goes, for good" if row.partitions == 1 else "go, for good"
            records = "" if row.records is None else f" ({counted(row.records, 'record')})"
            return [text + records], tag
        if selection.action == "clean":
            if "compact" not in (row.policy or ""):
                return ["It is not compacted: a cleaning is refused."], tag
            dirty = f"{size_text(row.dirty_bytes)} of {size_text(row.bytes)} are dirty"
            return [dirty, row.reason] if row.reason else [dirty], tag
        if not selection.value and not selection.default:
            return [f"{selection.name} is {served.settings_of(topic).setting(selection.name).value}"], tag
        set_to, remove = (
            ({}, [selection.name]) if selection.default else ({selection.name: selection.value}, [])
        )
        return console.preview_change(served, topic, set_to, remove).sentences, tag

    return _ticked_topic(topic, describe)


@router.get("", dependencies=[VIEWER, READING])
def selected(request: Request, served: CurrentServed, selection: Annotated[Selection, Query()]) -> Response:
    """What the action would do to each ticked topic."""
    try:
        find_topic_key(selection.name)
    except UsageError as error:
        # Not the name of a setting: the page still needs one, to show its form.
        selection = selection.model_copy(update={"name": "cleanup.policy"})
        return _preview_page(request, served, selection, str(error))
    if selection.action == "settings" and selection.value and not selection.default:
        try:
            parse_topic_config({selection.name: selection.value}, selection.name)
        except UsageError as error:
            return _preview_page(request, served, selection, str(error), "value")
    return _preview_page(request, served, selection)


def _preview_page(
    request: Request,
    served: CurrentServed,
    selection: Selection,
    problem: str | None = None,
    wrong_field: str = "",
) -> Response:
    """The page with what the action would do, and its form."""
    limit = TOPICS_OF_ACTION_MAX if selection.action != "settings" else TOPICS_OF_CHANGE_MAX
    ticked = [_previewed(served, selection, topic) for topic in selection.topic[:limit]]
    return _ticked_page(request, served, selection, ticked, problem=problem, wrong_field=wrong_field)


def _ticked_page(
    request: Request,
    served: CurrentServed,
    selection: Selection,
    ticked: Sequence[TickedTopic],
    *,
    problem: str | None = None,
    wrong_field: str = "",
    is_done: bool = False,
) -> Response:
    """The page of the ticked topics: what the action would do to each, or, if ``is_done``, its outcomes."""
    return page(
        request,
        served,
        "selected.html",
        problem=problem,
        wrong=wrong_field,
        selection=selection,
        ticked=ticked,
        not_shown=len(selection.topic) - len(ticked),
        key=find_topic_key(selection.name),
        names=[key.name for key in TOPIC_KEYS if key.is_used],
        deleting=selection.action == "delete"
        or (selection.action == "settings" and selection.name in DELETING_SETTINGS),
        confirmation=confirmation(len(ticked)),
        done=is_done,
        equivalents=() if is_done else _equivalents(request, served, selection),
    )


def _equivalents(request: Request, served: CurrentServed, selection: Selection) -> Sequence[str]:
    """The commands and requests that do the same: for all topics where one takes several, else for the
    first."""
    if not selection.topic:
        return ()
    topic = selection.topic[0]
    if selection.action == "delete":
        url = cluster_url(served, "topics", topic)
        return siltstone(served, "topics", "--delete", "--topic", topic), curl(request, "DELETE", url)
    if selection.action == "clean":
        names = [word for name in selection.topic for word in ("--topic", name)]
        url = f"/api/v1/topics/{path(topic)}:clean"
        return shell("siltstone", "clean", *served.paths, *names), curl(request, "POST", url, {})
    change = {"remove": [selection.name]} if selection.default else {"set": {selection.name: selection.value}}
    changes = [{"topic": name, **change, "if_match": "*"} for name in selection.topic]
    return (curl(request, "POST", "/api/v1/topics:alter", {"topics": changes}),)


def _outcomes(
    request: Request,
    served: CurrentServed,
    form: ActionForm,
    action: Action,
    act: Callable[[str, str], Sequence[str]],
) -> Response:
    """Carry out the action ``act`` (of a topic and its tag) on each topic; a refusal of one does not stop the
    others."""
    tags = [*form.tag, *[""] * len(form.topic)]  # a request may have fewer tags than topics
    done = [
        _ticked_topic(topic, lambda topic=topic, tag=tag: (act(topic, tag), ""))  # type: ignore[misc]
        for topic, tag in zip(form.topic, tags, strict=False)
    ]
    served.cataloguer.refresh_soon()
    return _ticked_page(request, served, Selection(topic=form.topic, action=action), done, is_done=True)


def _refused(
    request: Request, served: CurrentServed, form: ActionForm, action: Action, error: SiltstoneError
) -> Response:
    name = form.name or "cleanup.policy"
    selection = Selection(topic=form.topic, action=action, name=name, value=form.value, default=form.default)
    needs_confirmation = action == "delete" or form.name in DELETING_SETTINGS
    wrong_field = "typed" if needs_confirmation and not _is_confirmed(form) else "value"
    return with_status_of(error, _preview_page(request, served, selection, str(error), wrong_field))


def _is_confirmed(form: ActionForm) -> bool:
    return is_confirmed(form.typed, confirmation(len(form.topic)))


def _tag_of_preview(tag: str) -> str:
    """Raises UsageError if there is no tag: the page could not show what the action would do to the topic."""
    if not tag:
        raise UsageError("what would be done to it could not be shown", advice="open the page again")
    return tag


def _confirm(form: ActionForm) -> None:
    """Raises UsageError unless the typed text names the number of topics."""
    refuse_unconfirmed(form.typed, confirmation(len(form.topic)))


@router.post("/settings", dependencies=[EDITOR, READING])
def alter(
    request: Request, served: CurrentServed, by: CurrentActor, form: Annotated[ActionForm, Form()]
) -> Response:
    """Change one setting of each topic that has not changed since the page was made."""
    try:
        if form.name in DELETING_SETTINGS:
            _confirm(form)
        set_to = {} if form.default else parse_assignments([f"{form.name}={form.value}"], form.name)
    except SiltstoneError as error:
        return _refused(request, served, form, "settings", error)

    def act(topic: str, tag: str) -> Sequence[str]:
        # To remove a setting that the topic does not have would be refused; here it is no change.
        removed = own_names(served, topic, [form.name]) if form.default else []
        administration.alter_settings(served, by, topic, set_to, removed, if_match=_tag_of_preview(tag))
        return ["changed"]

    return _outcomes(request, served, form, "settings", act)


@router.post("/clean", dependencies=[EDITOR])
def clean(
    request: Request, served: CurrentServed, by: CurrentActor, form: Annotated[ActionForm, Form()]
) -> Response:
    """Clean each topic, as a job."""

    def act(topic: str, _: str) -> Sequence[str]:
        administration.clean_now(served, by, topic, force=form.force)
        return ["a job cleans it"]

    return _outcomes(request, served, form, "clean", act)


@router.post("/delete", dependencies=[ADMIN])
def delete(
    request: Request, served: CurrentServed, by: CurrentActor, form: Annotated[ActionForm, Form()]
) -> Response:
    """Delete each topic that has not changed since the page was made."""
    try:
        _confirm(form)
    except SiltstoneError as error:
        return _refused(request, served, form, "delete", error)

    def act(topic: str, tag: str) -> Sequence[str]:
        administration.delete_topic(served, by, topic, if_match=_tag_of_preview(tag))
        return ["deleted"]

    return _outcomes(request, served, form, "delete", act)
