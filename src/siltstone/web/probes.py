"""``/healthz``: the process answers. ``/readyz``: the directories were read, and at least one serves. Load
balancers ask by GET or by HEAD."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from siltstone.web.dependencies import CurrentServed

router = APIRouter()
_METHODS = ["GET", "HEAD"]


@router.api_route("/healthz", methods=_METHODS, include_in_schema=False)
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.api_route("/readyz", methods=_METHODS, include_in_schema=False)
async def readyz(served: CurrentServed) -> Response:
    """200 when the catalogue was read and a directory is in service, else 503 with the reason."""
    reason = served.unready_reason()
    body = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
    return JSONResponse(body, 200 if reason is None else 503)
