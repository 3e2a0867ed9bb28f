"""Limits on what clients may use: the size of a frame, connections, idle time, memory (Kafka's
``ConnectionQuotas`` and ``MemoryPool``).

::

    frames        a length is checked before memory is allocated, and a frame's buffer grows with its bytes
    connections   in all, and by address; one is closed that is idle, or that reads nothing of its response
    memory        MemoryBudget: the received bytes of requests, and the bytes of unsent responses

A client that announces a frame of 100 MiB takes about as much memory as it has sent of it.
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
"""A connection is closed when its peer has read nothing of a response for this time."""
EXEMPT_SECONDS = 10.0
"""How long one connection may be exempt from the memory limit, for a frame and its response, while others
wait for memory."""
DESCRIPTORS_SHARE = 2
"""Connections may use one in this many of the process's file descriptors: the rest is left to the logs."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as Java does: logs and connections soon use up
    the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits in effect. ``memory_bytes_max``: of the memory budget (``queued.max.request.bytes``);
    ``connections_of``: the limits of single addresses (``max.connections.per.ip.overrides``); buffer sizes of
    -1: the system's."""

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
        """The limits that a broker's settings say. Raises UsageError."""
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
        """The largest number of connections of an address."""
        return self.connections_of.get(address, self.connections_per_address_max)

    def refuse_length(self, size: int) -> None:
        """Raises RefusedFrameError for a frame length that is too small for a header, or too large."""
        if not FRAME_BYTES_MIN <= size <= self.request_bytes_max:
            raise RefusedFrameError(
                f"a frame of {size} bytes is not between {FRAME_BYTES_MIN} and {self.request_bytes_max} "
                "(socket.request.max.bytes)"
            )

    def refuse_large(self, size: int, api_key: int) -> None:
        """Raises RefusedFrameError for a frame that is too large for its API, if that is not Produce."""
        if size > OTHER_FRAME_BYTES_MAX and api_key != PRODUCE:
            reason = f"a frame of {size} bytes for API {api_key} has over {OTHER_FRAME_BYTES_MAX}"
            raise RefusedFrameError(reason)


def _overrides(text: str) -> dict[str, int]:
    """``max.connections.per.ip.overrides``: ``ADDRESS:COUNT`` with commas between them. Raises UsageError."""
    counts = dict[str, int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = part.rpartition(":")
        if not address or not count.isdecimal():
            raise UsageError(
                f"{part[:256]!r} is no address with a number",
                path="max.connections.per.ip.overrides",
                advice="write ADDRESS:COUNT, with commas between them",
            )
        counts[address] = int(count)
    return counts


class MemoryHolder(Protocol):
    """A connection, which takes memory of a budget."""

    def end_exemption(self) -> None:
        """Called when it has been exempt for over ``EXEMPT_SECONDS``."""
        ...

    def proceed_later(self) -> None:
        """Called when it may take memory: there is some, or it is exempt now. It must not take it within the
        call, but in the loop's next round."""
        ...


class MemoryBudget:
    """The memory that all connections share (Kafka's ``MemoryPool``, ``queued.max.request.bytes``).

    Connections report what they take (``hold``) and ask before they take more (``may_take``). The rules:

    1. Small requests and responses may use all of ``bytes_max``; large frames that are still being received,
       only ``large_bytes_max``, three quarters of the configured memory. So slow senders of large frames
       cannot keep small requests waiting.
    2. A connection that may not take memory waits in one of two queues, small or large. Both are served first
       in, first out, the small one first.
    3. Unfinished large frames could fill their share for ever, each waiting for memory to grow. So the first
       of a queue is made ``exempt``: it may exceed the limit until it was answered. There is one at a time.
    4. A connection that is exempt for over ``EXEMPT_SECONDS`` loses the exemption (``end_long_exemption``),
       and is closed if its request is not complete or its response not read. So a client that stops cannot
       block others.

    So connections take at most the configured memory and two frames: one that grows when a little memory is
    left, and the exempt one. ``bytes_max`` has room for both, so small requests proceed beside them.
    """

    def __init__(self, bytes_max: int, frame_bytes_max: int) -> None:
        self.large_bytes_max = bytes_max * 3 // 4
        self.bytes_max = bytes_max + 2 * frame_bytes_max
        self.used = 0
        self.exempt: MemoryHolder | None = None
        self._small: OrderedDict[MemoryHolder, None] = OrderedDict()
        self._large: OrderedDict[MemoryHolder, None] = OrderedDict()
        self._last_exempt: MemoryHolder | None = None
        self._exempt_since = 0.0

    @property
    def waiting(self) -> int:
        """The number of connections that wait for memory."""
        return len(self._small) + len(self._large)

    def may_take(self, holder: MemoryHolder, *, is_large: bool = False) -> bool:
        """May a connection take more memory now? ``is_large``: for a large frame that is not complete yet. If
        not, it is queued, and its ``proceed_later`` is called when it may."""
        if self.used < (self.large_bytes_max if is_large else self.bytes_max) or self.exempt is holder:
            return True
        (self._large if is_large else self._small)[holder] = None
        self._wake()
        return False

    def hold(self, count: int) -> None:
        """A connection has taken ``count`` bytes more, or returned some if that is negative."""
        self.used += count
        if count < 0:
            self._wake()

    def leave(self, holder: MemoryHolder) -> None:
        """A connection was answered or closed: it is not exempt any longer, and waits in no queue."""
        self._small.pop(holder, None)
        self._large.pop(holder, None)
        if self.exempt is holder:
            self.exempt = None
            self._wake()

    def end_long_exemption(self, now: float) -> None:
        """End an exemption that has lasted for over ``EXEMPT_SECONDS``. Called once a second, with the loop's
        time, in seconds: an exemption counts from the first call that sees it."""
        if self.exempt is not self._last_exempt:
            self._last_exempt, self._exempt_since = self.exempt, now
        elif self._last_exempt is not None and now - self._exempt_since > EXEMPT_SECONDS:
            self._last_exempt.end_exemption()

    def _wake(self) -> None:
        """Let connections proceed while there is memory, or one as exempt where there is none."""
        for queue, limit in ((self._small, self.bytes_max), (self._large, self.large_bytes_max)):
            while queue and (self.used < limit or self.exempt is None):
                holder, _ = queue.popitem(last=False)
                if self.used >= limit:
                    self.exempt = holder
                holder.proceed_later()
