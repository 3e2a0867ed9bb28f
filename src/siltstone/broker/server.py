"""The broker's sockets and its event loop, in a thread of its own.

::

    listeners ─► connections ─► dispatch ─► handlers, in the loop's thread; what waits for a disk in a pool
    once a second: idle, stalled and overdue connections are closed

The sockets are our own and non-blocking; the loop only says which of them can be read or written. So bytes go
from a socket into a request's own buffer, and from a log's file into a socket, without a copy between.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.closing import Closing
from siltstone.base.errors import SiltstoneError
from siltstone.broker.answers import ConnectionInfo, ListenerAddress, Pieces
from siltstone.broker.connection import SCRATCH_BYTES, Connection
from siltstone.broker.dispatch import HANDLERS, Dispatcher, Handler
from siltstone.broker.limits import Limits, MemoryBudget
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.measuring import BrokerClients
from siltstone.broker.quotas import CONNECTION, QuotaManager
from siltstone.broker.store import Broker
from siltstone.commands.served import Served

AnswerFrame: TypeAlias = Callable[[bytearray, ConnectionInfo], "Pieces | Awaitable[Pieces]"]
"""See ``connection.SharedState.answer``."""
STOP_SECONDS = 10.0
"""How long requests may take to be finished when the server stops."""
DELAYED_MAX = 1_000
"""The most sockets that are closed later: each takes a descriptor."""
_SWEEP_SECONDS = 1.0
_ACCEPTED_AT_ONCE = 64
_MAPPED = "::ffff:"
"""Before an IPv4 address at a socket that listens for both."""
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_logger = logging.getLogger("siltstone.broker")


class BoundListener(NamedTuple):
    """A listening socket, and the address that it advertises."""

    socket: socket.socket
    address: ListenerAddress


class Sockets:
    """The connections of an event loop; everything runs in its thread.

    ``answer``: answers a frame. ``connections``: those that are open. ``refused``: how many were closed
    because their address had too many; ``accepted_by``: how many were not, by listener. ``delayed``: sockets
    that are closed later, because their address connects too often.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        answer: AnswerFrame,
        clock: Clock | None = None,
        quotas: QuotaManager | None = None,
    ) -> None:
        self.loop, self.limits, self.answer = loop, limits, answer
        self.budget = MemoryBudget(limits.memory_bytes_max, limits.request_bytes_max)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.now = loop.time()
        self.connections: set[Connection] = set()
        self.refused = self.accepted = 0
        self.accepted_by: Counter[str] = Counter()
        self.delayed: dict[socket.socket, asyncio.TimerHandle] = {}
        self._quotas = quotas or QuotaManager(loop.time)
        self._clock = clock or SystemClock()
        self._of_address: Counter[str] = Counter()
        self._listeners: Sequence[BoundListener] = ()
        self._is_accepting = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_empty: asyncio.Future[None] | None = None

    def open(self, listeners: Sequence[BoundListener]) -> None:
        """Accept connections from now on."""
        self._listeners = listeners
        self._accept_again()
        self._sweep_later()

    async def finish(self) -> None:
        """Accept nothing more, finish the requests that run, ``STOP_SECONDS`` long, and close all."""
        self._accept_no_more()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for listener in self._listeners:
            listener.socket.close()
        self._listeners = ()
        for peer in list(self.delayed):
            self._close_delayed(peer)
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            self._is_empty = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty, STOP_SECONDS)
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """The connection is closed: there is room for another one."""
        self.connections.discard(connection)
        peer = connection.info.peer
        self._of_address[peer] -= 1
        if not self._of_address[peer]:
            del self._of_address[peer]
        self._accept_again()
        if self._is_empty is not None and not self.connections and not self._is_empty.done():
            self._is_empty.set_result(None)

    def sweep(self, now: float) -> None:
        """Close the connections whose time is up."""
        self.now = now
        for connection in [one for one in self.connections if one.is_overdue(now)]:
            connection.close()
        self.budget.expire(now)

    def _sweep_later(self) -> None:
        self.sweep(self.loop.time())
        self._sweep_timer = self.loop.call_later(_SWEEP_SECONDS, self._sweep_later)

    # Accepting

    def _accept_again(self) -> None:
        if not self._is_accepting and self._listeners and len(self.connections) < self.limits.connections_max:
            self._is_accepting = True
            for listener in self._listeners:
                self.loop.add_reader(listener.socket.fileno(), partial(self._accept_some, listener))

    def _accept_no_more(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener in self._listeners:
                self.loop.remove_reader(listener.socket.fileno())

    def _accept_some(self, listener: BoundListener) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self.connections) >= self.limits.connections_max:
                # As in Kafka: others wait in the listener's queue until a connection is closed.
                self._accept_no_more()
                return
            try:
                peer, address = listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    _logger.warning("cannot accept a connection: %s", error.strerror)
                    self._accept_no_more()
                    self.loop.call_later(_SWEEP_SECONDS, self._accept_again)
                    return
                continue  # it was closed again before it was accepted
            self.welcome(peer, str(address[0]).removeprefix(_MAPPED), listener.address)

    def welcome(self, peer: socket.socket, address: str, listener: ListenerAddress) -> None:
        """Serve a connected socket from now on, or close it if its address has too many, or, after a while,
        if it connects too often (Kafka's ``ConnectionQuotas``)."""
        if self._quotas.limits_connections and (throttle_ms := self._quotas.connected(address)):
            self._delay(peer, throttle_ms)
            return
        if self._of_address[address] >= self.limits.connections_from(address):
            self.refused += 1
            peer.close()
            return
        peer.setblocking(False)
        self.accepted += 1
        self.accepted_by[listener.name] += 1
        self._of_address[address] += 1
        info = ConnectionInfo(
            number=self.accepted, listener=listener, peer=address, since_ms=self._clock.now_ms()
        )
        connection = Connection(peer, info, self)
        self.connections.add(connection)
        connection.start()

    def _delay(self, peer: socket.socket, throttle_ms: int) -> None:
        """Close a socket after so long: a client that is closed at once would connect again at once."""
        self._quotas.throttled(CONNECTION, throttle_ms)
        if len(self.delayed) >= DELAYED_MAX:
            peer.close()
            return
        self.delayed[peer] = self.loop.call_later(throttle_ms / 1000, self._close_delayed, peer)

    def _close_delayed(self, peer: socket.socket) -> None:
        timer = self.delayed.pop(peer, None)
        if timer is not None:
            timer.cancel()
        peer.close()


class BrokerServer(Closing):
    """Kafka's protocol over the open directories of a server, from ``start`` to ``stop``.

    ``addresses``: where it listens, with the ports that it really has. ``broker``: what handlers get.
    """

    def __init__(
        self,
        served: Served,
        listeners: Sequence[BrokerListener],
        *,
        limits: Limits | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        handlers: Mapping[int, Handler] = HANDLERS,
    ) -> None:
        """Listens at once, and answers from ``start`` on. Raises UsageError for an address that is in use,
        NotAllowedError in look mode."""
        self._loop = loop or asyncio.new_event_loop()
        self._stop_asked = asyncio.Event()
        self._thread: threading.Thread | None = None
        self.limits = limits or Limits.of(served.config)
        self.broker = Broker(served, self._loop)
        self._listeners = list[BoundListener]()
        try:
            for listener in listeners:
                bound = listener.bind(self.limits)
                self._listeners.append(BoundListener(bound, listener.address(bound)))
        except SiltstoneError:
            self.stop()
            raise
        self.addresses = [listener.address for listener in self._listeners]
        answer = Dispatcher(self.broker, handlers).answer
        self.sockets = Sockets(self._loop, self.limits, answer, served.clock, self.broker.quotas)

    def start(self) -> None:
        """Answer requests from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="siltstone-kafka", daemon=True)
        self._thread.start()
        self.broker.served.clients = BrokerClients(self.broker, self.sockets)

    def stop(self) -> None:
        """Accept nothing more, answer the requests that run, parked fetches with what there is, and end."""
        self.broker.served.clients = None
        if self._thread is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_asked.set)
            self._thread.join()
        for listener in self._listeners:
            listener.socket.close()
        self.broker.close()
        if not self._loop.is_closed():
            self._loop.close()

    def close(self) -> None:
        """The same as ``stop``."""
        self.stop()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self.sockets.open(self._listeners)
        await self._stop_asked.wait()
        self.broker.purgatory.close()
        await self.sockets.finish()
        # Tasks of connections that were cut end as cancelled.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
