"""Bodies of requests: the checks that all REST APIs share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictBool

JsonObject = dict[str, Any]
"""An object of JSON, by the names of its members."""


class Body(BaseModel):
    """A request's body: an unknown member is refused, so that none is silently ignored."""

    model_config = ConfigDict(extra="forbid")


def _refuse_other_than_numbers(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError("a number is needed, not a text or a truth value")
    return value


NUMBERS_ONLY = BeforeValidator(_refuse_other_than_numbers)
"""Refuses a text or a truth value for a number. In ``Annotated[int, Field(ge=0), NUMBERS_ONLY]`` it comes
after the bounds, or the OpenAPI document would not have them."""
WholeNumber = Annotated[int, NUMBERS_ONLY]
"""A whole number in a body. pydantic alone would accept ``true`` as 1, and ``"7"`` as 7. 7.0 is accepted:
JSON has no separate type for whole numbers."""


def _each_once(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


Partitions = Annotated[tuple[WholeNumber, ...], AfterValidator(_each_once)]
"""The partitions of a job, each once, however often a body names it, since the job's target lists them."""


def _refuse_other_than_times(value: object) -> object:
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("a date and a time as in ISO 8601 is needed, such as 2026-11-21T14:00:00Z")
    return value


DATE_AND_TIME = BeforeValidator(_refuse_other_than_times)
"""For a time in a body: pydantic alone would accept a number, and a text of digits, as seconds since 1970."""
Flag = StrictBool
"""``true`` or ``false`` in a body, and not 1 or ``"yes"``."""


def _refuse_other_than_json(request: Request) -> None:
    """Raises HTTPException for a body that says it is something else than JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if has_body and media_type and not is_json:
        reason = f"{media_type[:64]!r}: the body must be JSON, with Content-Type: application/json"
        raise HTTPException(415, reason)


JSON_ONLY = Depends(_refuse_other_than_json)
"""For a router: ``dependencies=[JSON_ONLY]``."""
