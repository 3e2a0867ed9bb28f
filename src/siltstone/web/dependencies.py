"""Dependencies (FastAPI's) that routes take as parameters, such as ``served: CurrentServed``.

The functions are ``async``, although they wait for nothing: FastAPI runs plain functions in a thread, one
after the other, and the switch of threads takes longer than they do.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from siltstone.commands.changes import Actor
from siltstone.commands.latest_keys import LatestViews
from siltstone.commands.served import Served
from siltstone.web.guards import user_of


def served_by(request: Request) -> Served:
    """The log directories that this server serves."""
    return cast(Served, request.app.state.served)


async def served_of(request: Request) -> Served:
    """``served_by`` as a dependency."""
    return served_by(request)


async def actor_of(request: Request) -> Actor:
    """The user and the address that a request comes from, for the audit log."""
    user = user_of(request)
    return Actor(user=user.name, address=user.address, way="http")


async def latest_of(request: Request) -> LatestViews:
    """What this server keeps of the last records of keys, for ``view=latest``."""
    return cast(LatestViews, request.app.state.latest)


CurrentServed = Annotated[Served, Depends(served_of)]
CurrentActor = Annotated[Actor, Depends(actor_of)]
Latest = Annotated[LatestViews, Depends(latest_of)]
