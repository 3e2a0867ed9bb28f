"""Bodies of requests: what all of the REST APIs ask of them."""

from __future__ import annotations

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A request's body: an unknown member is refused, so that none is silently ignored."""

    model_config = ConfigDict(extra="forbid")


def _refuse_other_than_json(request: Request) -> None:
    """Raises HTTPException for a body that says it is something else than JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and kind and kind != "application/json" and not kind.endswith("+json"):
        raise HTTPException(415, f"{kind[:64]!r}: the body is JSON; say Content-Type: application/json")


JSON_ONLY = Depends(_refuse_other_than_json)
"""For a router: ``dependencies=[JSON_ONLY]``."""
