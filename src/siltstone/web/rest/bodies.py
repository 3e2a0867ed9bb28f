"""Bodies of requests: what all of the REST APIs ask of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool


class Body(BaseModel):
    """A request's body: an unknown member is refused, so that none is silently ignored."""

    model_config = ConfigDict(extra="forbid")


def _refuse_other_than_numbers(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError("it is a number")
    return value


NUMBERS_ONLY = BeforeValidator(_refuse_other_than_numbers)
"""For a number with bounds, after them: ``Annotated[int, Field(ge=0), NUMBERS_ONLY]``, so that the document
has them."""
WholeNumber = Annotated[int, NUMBERS_ONLY]
"""A whole number in a body. pydantic alone would take ``true`` for 1, ``"7"`` for 7; 7.0 is one in JSON."""


def _refuse_numbers(value: object) -> object:
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("it is a date and a time as in ISO 8601, such as 2026-11-21T14:00:00Z")
    return value


DATE_AND_TIME = BeforeValidator(_refuse_numbers)
"""For a time in a body: pydantic alone would take a number, and a text of digits, for seconds since 1970."""
Flag = StrictBool
"""``true`` or ``false`` in a body, and not 1 or ``"yes"``."""


def _refuse_other_than_json(request: Request) -> None:
    """Raises HTTPException for a body that says it is something else than JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and kind and kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(415, f"{kind[:64]!r}: the body is JSON; say Content-Type: application/json")


JSON_ONLY = Depends(_refuse_other_than_json)
"""For a router: ``dependencies=[JSON_ONLY]``."""
