"""The broker's server: listening sockets, connections and the thread of the event loop (Kafka's
``SocketServer`` with one ``Acceptor`` and one ``Processor``).

::

    listeners ─► connections ─► dispatch ─► handlers, in the loop's thread; what needs a disk in a pool
    every second:      closes connections that are idle, stalled, or exempt from the memory limit for long
    every ten seconds: lets idle fetch sessions release the logs' files

asyncio's streams and transports are not used: the loop only reports which non-blocking sockets can be read or
written. So bytes go from a socket into the buffer of their request, and from a log's file into a socket,
without a copy between (decision 0020).
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
from siltstone.broker.connection import SCRATCH_BYTES, Connection
from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.dispatch import HANDLERS, Dispatcher, Handler
from siltstone.broker.limits import Limits, MemoryBudget
from siltstone.broker.listeners import BrokerListener
from siltstone.broker.measuring import BrokerClients
from siltstone.broker.quotas import CONNECTION, QuotaManager
from siltstone.broker.request_context import ConnectionInfo, ListenerAddress, ResponseParts
from siltstone.broker.store import Broker
from siltstone.commands.served import Served

AnswerFrame: TypeAlias = Callable[
    [bytearray, ConnectionInfo], "ResponseParts | DelayedResponse | Awaitable[ResponseParts]"
]
"""See ``connection.SharedState.answer``."""
STOP_SECONDS = 10.0
"""How long running requests may take when the server stops, until their connections are closed."""
DELAYED_MAX = 1_000
"""The most sockets that may wait to be closed (``Sockets.delayed``): each takes a file descriptor."""
_SWEEP_SECONDS, _RELEASE_SECONDS = 1.0, 10.0
_ACCEPTED_AT_ONCE = 64
"""The most connections that a listener accepts at once, before other sockets have their turn in the loop."""
_MAPPED = "::ffff:"
"""How the address of an IPv4 client begins on a socket that listens for IPv4 and IPv6."""
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors of ``accept`` that recur until files or connections are closed."""
_logger = logging.getLogger("siltstone.broker")


class BoundListener(NamedTuple):
    """A listening socket, and the address that it advertises."""

    socket: socket.socket
    address: ListenerAddress


class Sockets:
    """The open connections of an event loop, and what they share (``connection.SharedState``). Everything
    runs in the loop's thread.

    ``answer``: makes the response to a frame. ``refused``: how many connections were closed at once because
    their address had too many; ``accepted``: how many were served, ``accepted_by`` by listener. ``delayed``:
    the sockets that are closed later, because their address connects too often, with their timers.
    ``_of_address``: open connections by IP address. ``_is_accepting``: does the loop watch the listeners?
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
        self._all_closed: asyncio.Future[None] | None = None  # set while ``finish`` waits for it

    def open(self, listeners: Sequence[BoundListener]) -> None:
        """Accept connections from now on."""
        self._listeners = listeners
        self._accept_again()
        self._sweep_every_second()

    async def finish(self) -> None:
        """Accept no more connections, wait for the running requests at most ``STOP_SECONDS``, and close all
        connections."""
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
            self._all_closed = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed, STOP_SECONDS)
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: Connection) -> None:
        """Called when a connection was closed, so that another one may be accepted."""
        self.connections.discard(connection)
        peer = connection.info.peer
        self._of_address[peer] -= 1
        if not self._of_address[peer]:
            del self._of_address[peer]
        self._accept_again()
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    def sweep(self, now: float) -> None:
        """Close the connections that are overdue at ``now``, the loop's time."""
        self.now = now
        for connection in [connection for connection in self.connections if connection.is_overdue(now)]:
            connection.close()
        self.budget.end_long_exemption(now)

    def _sweep_every_second(self) -> None:
        self.sweep(self.loop.time())
        self._sweep_timer = self.loop.call_later(_SWEEP_SECONDS, self._sweep_every_second)

    # Accepting

    def _accept_again(self) -> None:
        """Let the loop watch the listeners, unless it does already, or there are ``connections_max``
        connections."""
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
        """The loop's callback for a listener with new connections."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(self.connections) >= self.limits.connections_max:
                # As in Kafka, others wait in the listener's backlog until a connection is closed.
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
                continue  # the client has closed the connection already
            self.welcome(peer, str(address[0]).removeprefix(_MAPPED), listener.address)

    def welcome(self, peer: socket.socket, address: str, listener: ListenerAddress) -> None:
        """Serve a connected socket, or close it: at once if its address has too many connections
        (``max.connections.per.ip``), later if its address connects too often (``connection_creation_rate``;
        Kafka's ``ConnectionQuotas``)."""
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
        """Close a socket after ``throttle_ms``: a client whose connection is closed at once would connect
        again at once."""
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
    """A broker over the open directories of ``siltstone serve``, which answers from ``start`` to ``stop``.

    ``addresses``: the advertised addresses of the listeners, with the bound port for port 0; ``broker``: what
    handlers use; ``sockets``: its connections.
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
        """Binds the listeners; nothing is accepted before ``start``. ``limits``, ``loop`` and ``handlers``
        are for tests and the embedded broker: by default the limits of the settings, a new loop, all
        handlers. Raises UsageError for an address that is in use, NotAllowedError in look mode."""
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
        """Start the thread of the event loop, and accept connections."""
        self._thread = threading.Thread(target=self._run, name="siltstone-kafka", daemon=True)
        self._thread.start()
        self.broker.served.clients = BrokerClients(self.broker, self.sockets)

    def stop(self) -> None:
        """Accept no more connections, answer the parked fetches with the records that there are, wait for the
        running requests, and end the thread. May be called twice."""
        self.broker.served.clients = None
        if self._thread is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_asked.set)
            self._thread.join()
        for listener in self._listeners:  # those of a server that was not started are still open
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
        self._release_repeatedly()
        await self._stop_asked.wait()
        # Parked fetches are answered first: ``finish`` would wait for them.
        self.broker.purgatory.close()
        await self.sockets.finish()
        # Closing a connection cancels the task of its request; wait until these tasks have ended.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _release_repeatedly(self) -> None:
        self.broker.fetch_sessions.release_idle(self._loop.time())
        self._loop.call_later(_RELEASE_SECONDS, self._release_repeatedly)
