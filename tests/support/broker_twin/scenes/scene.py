"""What a scene of the twin is: an API, the versions that it covers, the requests that it sends to a side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.broker_twin.side import Side

ZERO_ID = bytes(16)
NO_SUCH_ID = bytes(15) + b"\x07"
NODE = 1
"""The id of either broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """``run`` asks ``key`` in every one of ``versions``; its topics' names begin with the scene's name."""

    name: str
    key: int
    versions: range
    run: Callable[[Side, range], None]
