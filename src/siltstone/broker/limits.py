"""How much the broker's clients may take: the size of a frame, connections, idle time, memory.

::

    memory   MemoryBudget: the bytes of requests, as far as they have come, and of unsent answers
    frames   a length is checked before anything is allocated, and a frame grows with the bytes that come
    peers    connections in all and of one address; a silent one, and one that takes no answer, is closed

A peer can only waste what it pays for: a frame that announces 100 MiB takes no more memory than it has sent.
"""

from __future__ import annotations

import contextlib
import resource
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from siltstone.base.config import INT_MAX, Config
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


def raise_descriptor_limit() -> None:
    """Let this process open as many files as it may at most, as Java does: logs and connections soon use up
    the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
    backlog: int = 1024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1

    @classmethod
    def of(cls, config: Config) -> Limits:
        """Those of ``server.properties``. Raises UsageError."""
        memory = config.integer("queued.max.request.bytes")
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            descriptors = INT_MAX
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

    What a connection holds is counted here. One that wants more when nothing is left waits in line. Large
    frames that are not complete have a line of their own, and three quarters of the memory; so that they
    cannot hold it for ever, the first one in line is ``favoured``: it may take more than there is until it
    has been answered. The server drops one that is favoured for long and makes nothing of it. All else, which
    is small, has what is left, whatever the favoured one takes; its line is the first to be served.

    So connections hold at most ``bytes_max``, two frames (one grows when a little memory is left, and one is
    favoured), and the few bytes of each that were read before it came into a line.
    """

    def __init__(self, bytes_max: int, frame_bytes_max: int) -> None:
        self.large_bytes_max = bytes_max * 3 // 4
        self.bytes_max = bytes_max + 2 * frame_bytes_max
        self.used = 0
        self.favoured: MemoryHolder | None = None
        self._small: OrderedDict[MemoryHolder, None] = OrderedDict()
        self._large: OrderedDict[MemoryHolder, None] = OrderedDict()
        self._seen: MemoryHolder | None = None
        self._seen_at = 0.0

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._small) + len(self._large)

    def may_go_on(self, holder: MemoryHolder, *, is_large: bool = False) -> bool:
        """May a connection take more memory now, for a large frame that is not complete or for anything else?
        If not, its ``go_on_later`` is called when it may."""
        if self.used < (self.large_bytes_max if is_large else self.bytes_max) or self.favoured is holder:
            return True
        (self._large if is_large else self._small)[holder] = None
        self._wake()
        return False

    def hold(self, count: int) -> None:
        """A connection holds ``count`` bytes more; less if that is negative: then others may go on."""
        self.used += count
        if count < 0:
            self._wake()

    def leave(self, holder: MemoryHolder) -> None:
        """A connection has been answered or is closed: it is not favoured any longer, and does not wait."""
        self._small.pop(holder, None)
        self._large.pop(holder, None)
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
        for line, limit in ((self._small, self.bytes_max), (self._large, self.large_bytes_max)):
            while line and (self.used < limit or self.favoured is None):
                holder, _ = line.popitem(last=False)
                if self.used >= limit:
                    self.favoured = holder
                holder.go_on_later()
