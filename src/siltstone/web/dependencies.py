"""What a route gets: ``served: CurrentServed``.

Its functions are ``async``, although they wait for nothing: FastAPI runs plain ones in a thread, one after
the other, and the change of threads takes longer than they do.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from siltstone.commands.changes import Actor
from siltstone.commands.latest_keys import LatestViews
from siltstone.commands.served import Served
from siltstone.web.guards import user_of


def served_by(request: Request) -> Served:
    """What this server serves."""
    return cast(Served, request.app.state.served)


async def served_of(request: Request) -> Served:
    """The same, for FastAPI."""
    return served_by(request)


async def actor_of(request: Request) -> Actor:
    """Who asks, for the audit log."""
    user = user_of(request)
    return Actor(user=user.name, address=user.address, way="http")


async def latest_of(request: Request) -> LatestViews:
    """The last records of keys that this server keeps."""
    return cast(LatestViews, request.app.state.latest)


CurrentServed = Annotated[Served, Depends(served_of)]
CurrentActor = Annotated[Actor, Depends(actor_of)]
Latest = Annotated[LatestViews, Depends(latest_of)]
