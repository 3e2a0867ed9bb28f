"""A form that appends one record to a topic."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from siltstone.base.errors import SiltstoneError, UnknownTopicError, UsageError
from siltstone.commands.sending import TEXT_FORMATS, ProducerRecord, bytes_of_text, send_records
from siltstone.web.dependencies import CurrentActor, CurrentServed
from siltstone.web.errors import with_status_of
from siltstone.web.guards import ADMIN, VIEWER
from siltstone.web.pages.equivalents import cluster_url, curl, produce_command
from siltstone.web.pages.rendering import page, path, query_text
from siltstone.web.queries import ConsoleForm, is_whole_number

router = APIRouter(prefix="/ui/topics")


class RecordToSend(ConsoleForm):
    """The form. ``key_kind``: text, or none; ``value_kind``: text, or tombstone; ``headers``: a line each,
    name=value."""

    key: str = ""
    key_kind: str = "text"
    key_format: str = "utf8"
    value: str = ""
    value_kind: str = "text"
    value_format: str = "utf8"
    headers: str = ""
    partition: str = ""

    def record(self) -> ProducerRecord:
        """The record to send. Raises UsageError."""
        partition = self.partition.strip()
        with self.field("partition"):
            if partition and not is_whole_number(partition):
                raise UsageError(
                    f"partition={partition[:20]!r} is no number", advice="leave it empty: the key picks"
                )
        with self.field("key"):
            if self.value_kind == "tombstone" and self.key_kind != "text":
                raise UsageError("a tombstone deletes a key, and there is none", advice="write the key")
            key = bytes_of_text(self.key, self.key_format, "the key") if self.key_kind == "text" else None
        with self.field("value"):
            value = self._value() if self.value_kind == "text" else None
        with self.field("headers"):
            headers = tuple(self._headers())
        where = int(partition) if partition else None
        return ProducerRecord(key=key, value=value, headers=headers, partition=where)

    def _value(self) -> bytes:
        """A browser sends a new line of a field as CR and LF."""
        return bytes_of_text(self.value.replace("\r\n", "\n"), self.value_format, "the value")

    def _headers(self) -> Sequence[tuple[str, bytes | None]]:
        lines = [line for line in self.headers.splitlines() if line.strip()]
        for line in lines:
            if "=" not in line:
                raise UsageError(f"the header {line[:64]!r} has no =", advice="write name=value, a line each")
        pairs = (line.partition("=") for line in lines)
        return [(name.strip(), value.encode("utf-8", "surrogatepass")) for name, _, value in pairs]


class Stored(BaseModel):
    """Where the last record of this form went."""

    partition: int | None = None
    offset: int | None = None


def _form_page(
    request: Request,
    served: CurrentServed,
    topic: str,
    form: RecordToSend,
    *,
    stored: Stored | None = None,
    problem: str | None = None,
) -> Response:
    return page(
        request,
        served,
        "produce.html",
        problem=problem,
        wrong=form.refused_field,
        topic=served.catalogue.topic(topic),
        tab="produce",
        form=form,
        formats=TEXT_FORMATS,
        stored=stored or Stored(),
        equivalents=_equivalents(request, served, topic, form),
    )


def _equivalents(request: Request, served: CurrentServed, topic: str, form: RecordToSend) -> Sequence[str]:
    """What sends the form's record, or a record without key and value while the form's is refused."""
    try:
        record = form.record()
    except SiltstoneError:
        record = ProducerRecord()
    body: dict[str, Any] = {
        name: {"type": "BINARY", "data": base64.b64encode(data).decode()}
        for name, data in (("key", record.key), ("value", record.value))
        if data is not None
    }
    if record.partition is not None:
        body["partition_id"] = record.partition
    if record.headers:
        body["headers"] = [
            {"name": name, "value": base64.b64encode(value or b"").decode()} for name, value in record.headers
        ]
    request_line = curl(request, "POST", cluster_url(served, "topics", topic, "records"), body)
    command = produce_command(served, topic, record)
    return (request_line,) if command is None else (command, request_line)


@router.get("/{topic}/produce", dependencies=[VIEWER])
def empty_form(
    request: Request, served: CurrentServed, topic: str, stored: Annotated[Stored, Query()]
) -> Response:
    """The form, and where the last record went."""
    return _form_page(request, served, topic, RecordToSend(), stored=stored)


@router.post("/{topic}/produce", dependencies=[ADMIN])
def produce(
    request: Request,
    served: CurrentServed,
    by: CurrentActor,
    topic: str,
    form: Annotated[RecordToSend, Form()],
) -> Response:
    """Append the record."""
    try:
        record = form.record()
        with form.field("partition" if record.partition is not None else "", UnknownTopicError):
            (appended,) = send_records(served, by, topic, [record])
            if isinstance(appended, SiltstoneError):
                raise appended
    except (SiltstoneError, OSError) as error:
        return with_status_of(error, _form_page(request, served, topic, form, problem=str(error)))
    served.cataloguer.refresh_soon()
    where = query_text({"partition": appended.partition, "offset": appended.offset})
    return RedirectResponse(f"/ui/topics/{path(topic)}/produce?{where}", 303)
