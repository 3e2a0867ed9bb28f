"""Limits on what clients may use: the size of a frame, connections, idle time, memory (Kafka's
``ConnectionQuotas`` and ``MemoryPool``).

::

    frames        the length is checked before memory is allocated; the buffer grows with the received bytes
    connections   limited in total and by address; those that are idle or read no response are closed
    memory        MemoryBudget: the buffers of requests, and the bytes of unsent responses

So the length that a client announces takes no memory: the buffer of its frame has at most 64 KiB, or four
times the bytes that it has sent.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import resource
import socket
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from siltstone.base.config import INT_MAX, Config
from siltstone.base.errors import UsageError
from siltstone.broker.request_context import RefusedFrameError
from siltstone.broker.wire.apis import PRODUCE

FRAME_BYTES_MIN = 8
"""The smallest header that Kafka has had (request header v0): API key, version, correlation id."""
OTHER_FRAME_BYTES_MAX = 8 << 20
"""The largest frame of any request but Produce, which alone carries records."""
STALLED_SECONDS = 60.0
"""A connection is closed when its peer has read nothing of a response for this time."""
EXEMPT_SECONDS = 10.0
"""How long one connection may be exempt from the memory limit, for a frame and its response, while others
wait for memory."""
DESCRIPTORS_SHARE = 2
"""Connections may use the file descriptors of the process divided by this number; the others are for the
logs."""

_COUNT = re.compile(r"\d{1,10}", re.ASCII)


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
    ``connections_of``: by IP address, limits that replace ``connections_per_address_max``
    (``max.connections.per.ip.overrides``); ``stalled_seconds``: see ``STALLED_SECONDS``; ``backlog``: of
    ``listen``; a buffer size of -1 is the system's default."""

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
        """The limits that the settings of a broker set. Raises UsageError."""
        memory = config.integer("queued.max.request.bytes")
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            descriptors = INT_MAX
        return cls(
            request_bytes_max=config.integer("socket.request.max.bytes"),
            memory_bytes_max=memory if memory > 0 else 1 << 62,  # -1: no limit
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
            raise RefusedFrameError(
                f"a frame of {size} bytes for API {api_key} is over {OTHER_FRAME_BYTES_MAX}, the limit "
                "of all requests but Produce"
            )


def _overrides(text: str) -> dict[str, int]:
    """Parse ``max.connections.per.ip.overrides``: ``HOST:COUNT``, separated by commas; ``HOST`` is an IP
    address, or a name that stands for all addresses to which it resolves now (in Kafka for the first one).
    Raises UsageError."""
    counts = dict[str, int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = part.rpartition(":")
        addresses = _addresses_of(host) if _COUNT.fullmatch(count) else []
        if not addresses:
            raise UsageError(
                f"{part[:256]!r} is not an IP address, or a host that is known, with a number of connections",
                path="max.connections.per.ip.overrides",
                advice="write ADDRESS:COUNT, separated by commas, such as 192.0.2.1:100",
            )
        counts.update(dict.fromkeys(addresses, int(count)))
    return counts


def _addresses_of(host: str) -> list[str]:
    """The IP addresses of a host, spelled like those of accepted sockets (an IPv4-mapped one as IPv4); none
    if the host's name does not resolve."""
    try:
        addresses = [ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))]
    except ValueError:
        if not host:
            return []
        try:
            resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        addresses = [ipaddress.ip_address(address[0]) for *_, address in resolved]
    return [str(getattr(address, "ipv4_mapped", None) or address) for address in addresses]


class MemoryHolder(Protocol):
    """A connection, which takes memory from a budget."""

    def end_exemption(self) -> None:
        """Called when the connection has been exempt for over ``EXEMPT_SECONDS``."""
        ...

    def proceed_later(self) -> None:
        """Called when the connection may take memory, because some is free or because it has become exempt.
        It must take the memory later, in the next iteration of the event loop, not within this call."""
        ...


class MemoryBudget:
    """The memory that all connections share (Kafka's ``MemoryPool``, ``queued.max.request.bytes``).

    Connections ask before they take memory for a request (``may_take``), and report afterwards how many bytes
    of requests and responses they have (``hold``): ``used`` is the sum. The rules:

    1. Small requests and responses may use all of ``bytes_max``; large frames (over 64 KiB) that are still
       being received, only ``large_bytes_max``, three quarters of the configured memory. So slow senders of
       large frames cannot keep small requests waiting.
    2. A connection that may not take memory waits in one of two queues, small or large. Both are served first
       in, first out, the small one first.
    3. Incomplete large frames could fill their share for ever, each of them waiting for memory for the rest
       of its bytes. So the first connection of a queue becomes ``exempt``: it may exceed the limit until its
       request is answered. One connection is exempt at a time.
    4. A connection that is exempt for over ``EXEMPT_SECONDS`` loses the exemption (``end_long_exemption``),
       and is closed if its request is not complete or its response not read. So a client that stops cannot
       block others.

    So connections take at most the configured memory and two frames: one that grows when a little memory is
    left, and the exempt one. ``bytes_max`` has room for both, so small requests proceed beside them.
    """

    def __init__(self, configured_bytes_max: int, frame_bytes_max: int) -> None:
        self.large_bytes_max = configured_bytes_max * 3 // 4
        self.bytes_max = configured_bytes_max + 2 * frame_bytes_max
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
        """May a connection take more memory now? If not, it is queued, and its ``proceed_later`` is called
        when it may. ``is_large``: for a large frame that is not complete yet."""
        if self.used < (self.large_bytes_max if is_large else self.bytes_max) or self.exempt is holder:
            return True
        (self._large if is_large else self._small)[holder] = None
        self._wake()
        return False

    def hold(self, count: int) -> None:
        """Report that a connection has taken ``count`` more bytes, or has returned them if ``count`` is
        negative."""
        self.used += count
        if count < 0:
            self._wake()

    def leave(self, holder: MemoryHolder) -> None:
        """Report that a connection was closed: it leaves its queue, and is no longer exempt."""
        self._small.pop(holder, None)
        self._large.pop(holder, None)
        self.end_exemption_of(holder)

    def end_exemption_of(self, holder: MemoryHolder) -> None:
        """Report that a connection was answered: it is no longer exempt. It may wait in a queue already, for
        its next request."""
        if self.exempt is holder:
            self.exempt = None
            self._wake()

    def end_long_exemption(self, now: float) -> None:
        """End an exemption that has lasted for over ``EXEMPT_SECONDS``. Called once a second with the event
        loop's time in seconds; the time of an exemption is counted from the first call after it began."""
        if self.exempt is not self._last_exempt:
            self._last_exempt, self._exempt_since = self.exempt, now
        elif self._last_exempt is not None and now - self._exempt_since > EXEMPT_SECONDS:
            self._last_exempt.end_exemption()

    def _wake(self) -> None:
        """Wake the queued connections if memory is free; if not, make the first of them exempt, unless
        another connection is."""
        # Woken connections take memory later, so ``used`` does not change here, and the whole queue wakes.
        # The connections proceed in its order, and those for which nothing is left queue again.
        for queue, limit in ((self._small, self.bytes_max), (self._large, self.large_bytes_max)):
            while queue and (self.used < limit or self.exempt is None):
                holder, _ = queue.popitem(last=False)
                if self.used >= limit:
                    self.exempt = holder
                holder.proceed_later()
