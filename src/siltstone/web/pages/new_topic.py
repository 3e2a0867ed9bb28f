"""A new topic: its policy as three choices with a sentence each, and the settings that the policy uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Request
from pydantic import ConfigDict, Field
from starlette.responses import RedirectResponse, Response

from siltstone.base.config import format_value
from siltstone.base.config_table import TOPIC_KEYS
from siltstone.base.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    SiltstoneError,
    TopicExistsError,
    UsageError,
)
from siltstone.commands import administration
from siltstone.commands.topics import parse_assignments
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.errors import with_status_of
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.pages.equivalents import cluster_url, curl, siltstone
from siltstone.web.pages.rendering import page, path
from siltstone.web.queries import ConsoleForm, is_whole_number

router = APIRouter(prefix="/ui")
POLICIES = {
    "compact": "Of each key the last record stays, for ever. For tables: state, configuration, the last "
    "value of a thing.",
    "delete": "All records stay until they are old, or the log is large. For events: orders, clicks, "
    "measurements.",
    "compact,delete": "Of each key the last record stays, until it is old. For state that ends, such as "
    "sessions.",
}
COMPACTING = (
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
DELETING = ("retention.ms", "retention.bytes")
ROLLING = ("segment.bytes", "segment.ms")
"""The settings that have fields of their own: of compaction, of retention, of segments."""


class NewTopicForm(ConsoleForm):
    """The form; settings that are left empty are the broker's. ``more``: other settings, a line each."""

    model_config = ConfigDict(populate_by_name=True)
    name: str = ""
    partitions: str = "1"
    policy: str = "compact"
    dirty_ratio: str = Field(default="", alias="min.cleanable.dirty.ratio")
    min_lag: str = Field(default="", alias="min.compaction.lag.ms")
    max_lag: str = Field(default="", alias="max.compaction.lag.ms")
    delete_retention: str = Field(default="", alias="delete.retention.ms")
    retention_ms: str = Field(default="", alias="retention.ms")
    retention_bytes: str = Field(default="", alias="retention.bytes")
    segment_bytes: str = Field(default="", alias="segment.bytes")
    segment_ms: str = Field(default="", alias="segment.ms")
    more: str = ""

    @property
    def texts(self) -> dict[str, str]:
        """The settings that have a field of their own, as they were written."""
        return self.model_dump(by_alias=True, exclude={"name", "partitions", "policy", "more"})

    def settings(self) -> Sequence[str]:
        """All settings as ``name=value``."""
        own = [f"{name}={text.strip()}" for name, text in self.texts.items() if text.strip()]
        lines = [line.strip() for line in self.more.splitlines() if line.strip()]
        return [f"cleanup.policy={self.policy}", *own, *lines]

    def count(self) -> int:
        """The number of partitions. Raises UsageError."""
        with self.field("partitions"):
            if not is_whole_number(self.partitions):
                raise UsageError(f"partitions={self.partitions[:20]!r} is no number", advice="pass 1 or more")
        return int(self.partitions)


def _form_page(
    request: Request,
    served: CurrentServed,
    form: NewTopicForm,
    *,
    problem: str | None = None,
    is_checked: bool = False,
) -> Response:
    """The page with the form. ``is_checked``: a check has found that the topic can be created."""
    broker = served.broker_settings()
    names = (*COMPACTING, *DELETING, *ROLLING)
    return page(
        request,
        served,
        "new_topic.html",
        problem=problem,
        wrong=form.refused_field,
        form=form,
        is_checked=is_checked,
        policies=POLICIES,
        fields=(("compact", COMPACTING), ("delete", DELETING), ("segments", ROLLING)),
        defaults={name: format_value(broker.setting(name).value) for name in names},
        docs={key.name: key for key in TOPIC_KEYS},
        equivalents=_equivalents(request, served, form),
    )


def _equivalents(request: Request, served: CurrentServed, form: NewTopicForm) -> Sequence[str]:
    name, settings = form.name or "NAME", form.settings()
    words = ["topics", "--create", "--topic", name, "--partitions", form.partitions]
    for setting in settings:
        key, _, value = setting.partition("=")
        # As in kafka-topics, a value with commas is in brackets.
        words += ["--config", f"{key}=[{value}]" if "," in value else setting]
    try:
        count = form.count()
    except UsageError:
        count = 1
    body = {
        "topic_name": name,
        "partitions_count": count,
        "configs": [
            {"name": key, "value": value} for key, _, value in (text.partition("=") for text in settings)
        ],
    }
    return siltstone(served, *words), curl(request, "POST", cluster_url(served, "topics"), body)


@router.get("/new-topic", dependencies=[VIEWER])
def new_topic(request: Request, served: CurrentServed) -> Response:
    """The empty form."""
    return _form_page(request, served, NewTopicForm())


def _create(served: CurrentServed, by: CurrentActor, form: NewTopicForm, *, validate_only: bool) -> None:
    """Create the topic, or only check whether it could be. Raises SiltstoneError, OSError."""
    count = form.count()
    # Each field by itself first, so that the form can mark the one that is wrong.
    for name, text in form.texts.items():
        with form.field(name):
            parse_assignments([f"{name}={text.strip()}"] if text.strip() else [], name)
    with form.field("more"):
        parsed = parse_assignments(form.settings(), "settings")
    with (
        form.field("name", (InvalidTopicError, TopicExistsError)),
        form.field("partitions", InvalidPartitionsError),
    ):
        administration.create_topic(served, by, form.name, count, parsed, validate_only=validate_only)


@router.post("/new-topic:check", dependencies=[ADMIN])
def check(
    request: Request, served: CurrentServed, by: CurrentActor, form: Annotated[NewTopicForm, Form()]
) -> Response:
    """Say whether the topic could be created; nothing is changed."""
    try:
        _create(served, by, form, validate_only=True)
    except (SiltstoneError, OSError) as error:
        return with_status_of(error, _form_page(request, served, form, problem=str(error)))
    return _form_page(request, served, form, is_checked=True)


@router.post("/new-topic", dependencies=[ADMIN])
def create(
    request: Request, served: CurrentServed, by: CurrentActor, form: Annotated[NewTopicForm, Form()]
) -> Response:
    """Create the topic."""
    try:
        _create(served, by, form, validate_only=False)
        served.cataloguer.refresh()  # so that the page of the topic finds it
    except (SiltstoneError, OSError) as error:
        return with_status_of(error, _form_page(request, served, form, problem=str(error)))
    return RedirectResponse(f"/ui/topics/{path(form.name)}", 303)
