"""How much the broker's clients may take: the size of a frame, connections, idle time, memory.

::

    memory   MemoryBudget: the bytes of requests, as far as they have come, and of unsent answers
    frames   a length is checked before anything is allocated, and a frame grows with the bytes that come
    peers    connections in all and of one address; a silent one, and one that takes no answer, is closed

A peer can only waste what it pays for: a frame that announces 100 MiB takes no more memory than it has sent.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.broker.answers import RefusedFrameError
from siltstone.broker.wire.apis import PRODUCE

FRAME_BYTES_MIN = 8
"""A header without a client id: API key, version, correlation id. A client id's size would follow."""
OTHER_FRAME_BYTES_MAX = 8 << 20
"""The largest frame of any request but Produce."""
STALLED_SECONDS = 60.0
"""A peer is dropped when none of its answer could be sent for so long."""
FAVOUR_SECONDS = 10.0
"""How long a connection may take for a frame and its answer while others wait for memory."""
DESCRIPTORS_SHARE = 2
"""One of so many descriptors of the process may be a connection: logs must always be able to open files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits in effect. ``memory_bytes_max`` bounds the budget, ``connections_of`` has the addresses with
    a limit of their own."""

    request_bytes_max: int = 100 << 20
    memory_bytes_max: int = 256 << 20
    connections_max: int = 10_000
    connections_per_address_max: int = 10_000
    connections_of: Mapping[str, int] = field(default_factory=dict)
    idle_seconds: float = 600.0
    stalled_seconds: float = STALLED_SECONDS
    backlog: int = 50
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1

    @classmethod
    def of(cls, config: Config) -> Limits:
        """Those of ``server.properties``. Raises UsageError."""
        memory = config.integer("queued.max.request.bytes")
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            request_bytes_max=config.integer("socket.request.max.bytes"),
            memory_bytes_max=memory if memory > 0 else 1 << 62,
            connections_max=min(config.integer("max.connections"), descriptors // DESCRIPTORS_SHARE),
            connections_per_address_max=config.integer("max.connections.per.ip"),
            connections_of=_overrides(str(config["max.connections.per.ip.overrides"])),
            idle_seconds=config.integer("connections.max.idle.ms") / 1000,
            backlog=config.integer("socket.listen.backlog.size"),
            send_buffer_bytes=config.integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=config.integer("socket.receive.buffer.bytes"),
        )

    def connections_from(self, address: str) -> int:
        """How many connections an address may have."""
        return self.connections_of.get(address, self.connections_per_address_max)

    def refuse_length(self, size: int) -> None:
        """Raises RefusedFrameError for a frame's length that is none, or too large."""
        if not FRAME_BYTES_MIN <= size <= self.request_bytes_max:
            raise RefusedFrameError(
                f"a frame of {size} bytes: not from {FRAME_BYTES_MIN} to {self.request_bytes_max}, the limit "
                "socket.request.max.bytes"
            )

    def refuse_large(self, size: int, api_key: int) -> None:
        """Raises RefusedFrameError for a frame that only Produce may have."""
        if size > OTHER_FRAME_BYTES_MAX and api_key != PRODUCE:
            reason = f"a frame of {size} bytes for API {api_key}: over {OTHER_FRAME_BYTES_MAX}"
            raise RefusedFrameError(reason)


def _overrides(text: str) -> dict[str, int]:
    """``max.connections.per.ip.overrides``: ``ADDRESS:COUNT`` with commas between them. Raises UsageError."""
    found = dict[str, int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = part.rpartition(":")
        if not address or not count.isdecimal():
            raise UsageError(
                f"{part[:256]!r} is no address with a number",
                path="max.connections.per.ip.overrides",
                advice="write ADDRESS:COUNT, with commas between them",
            )
        found[address] = int(count)
    return found


class MemoryHolder(Protocol):
    """Who holds memory of a budget: a connection."""

    def lose_favour(self) -> None:
        """It was favoured for ``FAVOUR_SECONDS``, and others wait."""
        ...

    def go_on_later(self) -> None:
        """There is memory again, or it is this one's turn to take more than there is: go on in the loop's
        next round."""
        ...


class MemoryBudget:
    """One amount of memory for all connections.

    What a connection holds is counted here. One that wants more when nothing is left waits in line. So that
    half-read frames cannot hold all memory for ever, the first in the line is ``favoured``: it may take more
    than there is until it has been answered, so ``bytes_max`` is exceeded by one frame and its answer. The
    server drops one that is favoured for long and makes nothing of it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.favoured: MemoryHolder | None = None
        self._waiting: OrderedDict[MemoryHolder, None] = OrderedDict()
        self._seen: MemoryHolder | None = None
        self._seen_at = 0.0

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiting)

    def may_go_on(self, holder: MemoryHolder) -> bool:
        """May a connection read or answer more now? If not, its ``go_on`` is called later."""
        if self.used < self.bytes_max or self.favoured is holder:
            return True
        self._waiting[holder] = None
        self._wake()
        return False

    def hold(self, count: int) -> None:
        """A connection holds ``count`` bytes more; less if that is negative: then others may go on."""
        self.used += count
        if count < 0:
            self._wake()

    def leave(self, holder: MemoryHolder) -> None:
        """A connection has been answered or is closed: it is not favoured any longer, and does not wait."""
        if self._waiting:
            self._waiting.pop(holder, None)
        if self.favoured is holder:
            self.favoured = None
            self._wake()

    def expire(self, now: float) -> None:
        """Take the favour from one that has had it since ``FAVOUR_SECONDS`` and longer."""
        if self.favoured is not self._seen:
            self._seen, self._seen_at = self.favoured, now
        elif self._seen is not None and now - self._seen_at > FAVOUR_SECONDS:
            self._seen.lose_favour()

    def _wake(self) -> None:
        while self._waiting and (self.used < self.bytes_max or self.favoured is None):
            holder, _ = self._waiting.popitem(last=False)
            if self.used >= self.bytes_max:
                self.favoured = holder
            holder.go_on_later()
