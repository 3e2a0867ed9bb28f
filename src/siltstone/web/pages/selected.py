"""Ticked topics: what a change of settings, a cleaning or a deletion would do to each, then the deed and its
outcome for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from siltstone.base.config import find_topic_key
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands import administration, console
from siltstone.commands.catalogue import PAGE_MAX
from siltstone.commands.cluster import own_names
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.topics import parse_assignments
from siltstone.web.errors import status_of
from siltstone.web.guards import ADMIN, EDITOR, VIEWER
from siltstone.web.here import CurrentActor, Here
from siltstone.web.pages.confirmation import refuse_unconfirmed
from siltstone.web.pages.equivalents import cluster_url, curl, shell, siltstone
from siltstone.web.pages.rendering import page, path
from siltstone.web.pages.topic_tabs import DELETING_SETTINGS

router = APIRouter(prefix="/ui/selected")
Action = Literal["settings", "clean", "delete"]
TICKED_MAX, PREVIEWED_MAX = 200, 50
"""Topics that are cleaned or deleted at once, so that their page stays below its bytes; topics that a change
of settings is previewed for at once."""


class Selection(BaseModel):
    """The ticked topics, and what is to be done with them."""

    topic: list[str] = Field(default=[], max_length=PAGE_MAX)
    action: Action = "settings"
    name: str = "cleanup.policy"
    value: str = ""
    default: bool = False


class Order(BaseModel):
    """The form that carries out the action. ``tag``: what was read of each topic; ``typed``: confirms a
    deletion."""

    topic: list[str] = Field(default=[], max_length=PAGE_MAX)
    tag: list[str] = Field(default=[], max_length=PAGE_MAX)
    name: str = ""
    value: str = ""
    default: bool = False
    force: bool = False
    typed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One ticked topic: what the action would do, or has done; ``tag``: as it was read."""

    topic: str
    sentences: Sequence[str] = ()
    tag: str = ""
    problem: str | None = None


def confirmation(count: int) -> str:
    """What has to be typed before so many topics are deleted, or their data may be."""
    return counted(count, "topic")


def _told(topic: str, tell: Callable[[], tuple[Sequence[str], str]]) -> Chosen:
    try:
        sentences, tag = tell()
    except (SiltstoneError, OSError) as error:
        return Chosen(topic=topic, problem=str(error))
    return Chosen(topic=topic, sentences=sentences, tag=tag)


def _previewed(served: Here, selection: Selection, topic: str) -> Chosen:
    """What the action would do to one topic."""

    def tell() -> tuple[Sequence[str], str]:
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

    return _told(topic, tell)


@router.get("", dependencies=[VIEWER])
def selected(request: Request, served: Here, selection: Annotated[Selection, Query()]) -> Response:
    """What the action would do to each ticked topic."""
    try:
        find_topic_key(selection.name)
    except UsageError as error:
        return _selected(request, served, selection.model_copy(update={"name": "cleanup.policy"}), str(error))
    return _selected(request, served, selection)


def _selected(request: Request, served: Here, selection: Selection, problem: str | None = None) -> Response:
    limit = TICKED_MAX if selection.action != "settings" else PREVIEWED_MAX
    chosen = [_previewed(served, selection, topic) for topic in selection.topic[:limit]]
    return _shown(request, served, selection, chosen, problem=problem)


def _shown(
    request: Request,
    served: Here,
    selection: Selection,
    chosen: Sequence[Chosen],
    *,
    problem: str | None = None,
    is_done: bool = False,
) -> Response:
    return page(
        request,
        served,
        "selected.html",
        problem=problem,
        selection=selection,
        chosen=chosen,
        left=len(selection.topic) - len(chosen),
        key=find_topic_key(selection.name),
        names=[key.name for key in TOPIC_KEYS if key.is_used],
        deleting=selection.action == "delete"
        or (selection.action == "settings" and selection.name in DELETING_SETTINGS),
        confirmation=confirmation(len(chosen)),
        done=is_done,
        equivalents=() if is_done else _equivalents(request, served, selection),
    )


def _equivalents(request: Request, served: Here, selection: Selection) -> Sequence[str]:
    """The command and the request for the first topic; the others are alike."""
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
    request: Request, served: Here, order: Order, action: Action, act: Callable[[str, str], Sequence[str]]
) -> Response:
    """Carry out the action on each topic; a refusal of one does not stop the others."""
    tags = [*order.tag, *[""] * len(order.topic)]
    done = [
        _told(topic, lambda topic=topic, tag=tag: (act(topic, tag), ""))  # type: ignore[misc]
        for topic, tag in zip(order.topic, tags, strict=False)
    ]
    served.cataloguer.refresh_soon()
    return _shown(request, served, Selection(topic=order.topic, action=action), done, is_done=True)


def _refused(request: Request, served: Here, order: Order, action: Action, error: SiltstoneError) -> Response:
    name = order.name or "cleanup.policy"
    selection = Selection(
        topic=order.topic, action=action, name=name, value=order.value, default=order.default
    )
    response = _selected(request, served, selection, str(error))
    response.status_code = status_of(error)[0]
    return response


def _confirm(order: Order) -> None:
    """Raises UsageError unless the typed text names the number of topics."""
    refuse_unconfirmed(order.typed.strip(), confirmation(len(order.topic)))


@router.post("/settings", dependencies=[EDITOR])
def alter(request: Request, served: Here, by: CurrentActor, order: Annotated[Order, Form()]) -> Response:
    """Change one setting of each topic, as it was read."""
    try:
        if order.name in DELETING_SETTINGS:
            _confirm(order)
        set_to = {} if order.default else parse_assignments([f"{order.name}={order.value}"], order.name)
    except SiltstoneError as error:
        return _refused(request, served, order, "settings", error)

    def act(topic: str, tag: str) -> Sequence[str]:
        removed = own_names(served, topic, [order.name]) if order.default else []
        administration.alter_settings(served, by, topic, set_to, removed, if_match=tag or None)
        return ["changed"]

    return _outcomes(request, served, order, "settings", act)


@router.post("/clean", dependencies=[EDITOR])
def clean(request: Request, served: Here, by: CurrentActor, order: Annotated[Order, Form()]) -> Response:
    """Clean each topic, as a job."""

    def act(topic: str, _: str) -> Sequence[str]:
        administration.clean_now(served, by, topic, force=order.force)
        return ["a job cleans it"]

    return _outcomes(request, served, order, "clean", act)


@router.post("/delete", dependencies=[ADMIN])
def delete(request: Request, served: Here, by: CurrentActor, order: Annotated[Order, Form()]) -> Response:
    """Delete each topic, as it was read."""
    try:
        _confirm(order)
    except SiltstoneError as error:
        return _refused(request, served, order, "delete", error)

    def act(topic: str, tag: str) -> Sequence[str]:
        administration.delete_topic(served, by, topic, if_match=tag or None)
        return ["deleted"]

    return _outcomes(request, served, order, "delete", act)
