"""One connection: requests in, responses out, one at a time and in order (Kafka's ``KafkaChannel`` with its
``NetworkReceive`` and ``NetworkSend``, muted and unmuted by ``SocketServer.Processor``).

::

    0        4
    | size   | frame: header and body of a request |      size: int32, of what follows it

    1  receive   into a buffer that all connections share: one system call receives many small frames, and
                 each is copied out. A frame that has not come whole gets a buffer of its own, which grows
                 with the bytes that come, and the rest of it is received there
    2  answer    the frame goes to ``dispatch``: a response at once, or later
    3  send      memory with sendmsg, slices of log files with sendfile
    4  settle    report the memory in use to the budget, and register for reads or writes with the loop

A connection is not read (Kafka: muted) while a response is not sent, while a second request waits for the
first one's response, while it waits for memory or its turn in the loop, and while its client is throttled
(``quotas``). So its requests are answered one after the other, which idempotent producers rely on, and a
client that reads nothing cannot pile up requests.

Each frame has a buffer of its own, which no other request shares: Produce writes offsets into it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable
from itertools import islice
from typing import Protocol

from siltstone.base.files import FileSlice
from siltstone.broker.delayed import DelayedResponse, awaited
from siltstone.broker.limits import Limits, MemoryBudget
from siltstone.broker.request_context import ConnectionInfo, RefusedFrameError, ResponsePart, ResponseParts

SCRATCH_BYTES = 128 << 10
"""The size of the buffer into which all connections receive small frames."""
_FIRST_BYTES, _GROWTH = 64 << 10, 4
"""A frame's buffer has at most the larger of ``_FIRST_BYTES`` and ``_GROWTH`` times the bytes that have
come."""
_SHORT_BYTES = 16 << 10
"""The most bytes of one receive while memory is short: the budget counts them only after the receive."""
_TOGETHER_BYTES = 256 << 10
"""Responses to requests that were received together are sent together. Once they take this many bytes, the
next request is answered in the connection's next turn."""
_TURN_BYTES, _TURN_REQUESTS = 4 << 20, 100
"""After so many bytes sent, or so many requests answered, a connection yields to the others in the loop."""
_VECTORS_MAX = 64
"""The most buffers of one ``sendmsg``."""
IDLE, RECEIVING, WAITING, RUNNING, PARKED, SENDING, THROTTLED = (
    "idle receiving waiting running parked sending throttled".split()
)
"""The states of a connection: see ``Connection.state``. RUNNING: its request is carried out; PARKED: its
fetch waits for data (Kafka's purgatory)."""
_PREFIX, _API_KEY = struct.Struct(">i"), struct.Struct(">h")
_EMPTY = memoryview(b"")
_logger = logging.getLogger("siltstone.broker")


class SharedState(Protocol):
    """The state that all connections share (``server.Sockets``). ``scratch``: the buffer for small frames;
    ``now``: the loop's time in seconds, as of the last sweep, at most a second ago."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    budget: MemoryBudget
    scratch: memoryview
    now: float

    def answer(
        self, frame: bytearray, info: ConnectionInfo
    ) -> ResponseParts | DelayedResponse | Awaitable[ResponseParts]:
        """The response to a frame, at once or later. Raises RefusedFrameError to close the connection."""
        ...

    def forget(self, connection: Connection) -> None:
        """Called when a connection is closed."""
        ...


class Connection:
    """A connected socket. Everything but ``state`` runs in the loop's thread.

    Received: ``_data`` has the bytes that are in no frame yet; ``_frame`` is the buffer of a frame that is
    not complete, or not answered yet, ``_size`` the frame's bytes, of which ``_received`` have come;
    ``_has_eof``: the peer has closed its side.

    Answered: ``_delayed`` is the response that is not ready yet, None if no request runs;
    ``_running_bytes``: the size of its request; ``_is_ending``: no further request is answered;
    ``_is_waiting``: for memory or its turn; the budget or the loop will call ``proceed``.

    Sent: ``_out`` has the parts to send; ``_skip`` bytes of the first one are sent already; ``_out_bytes``:
    the memory that the parts take; ``_has_unsent_response``: a response was queued, and is not sent whole.

    ``_unmuting``: the timer that ends a throttling; None if there is none.

    ``_held``: the bytes that the budget counts for this connection. ``_active_at``: the loop's time at
    the last ``proceed``, in seconds.
    """

    def __init__(self, peer: socket.socket, info: ConnectionInfo, shared: SharedState) -> None:
        self.info, self.is_closed = info, False
        self._socket, self._descriptor, self._shared = peer, peer.fileno(), shared
        self._data: memoryview = _EMPTY
        self._frame: bytearray | None = None
        self._size = self._received = 0
        self._delayed: DelayedResponse | None = None
        self._running_bytes = self._out_bytes = self._held = self._skip = 0
        self._out: deque[ResponsePart] = deque()
        self._is_reading = self._is_writing = self._has_eof = self._is_ending = False
        self._is_waiting = self._has_unsent_response = False
        self._unmuting: asyncio.TimerHandle | None = None
        self._active_at = shared.now

    def start(self) -> None:
        """Begin to read."""
        self._settle()

    def finish(self) -> None:
        """Read nothing more, send the response to the request that runs and those that are not sent yet, and
        close."""
        self._is_ending = True
        if not self.is_closed:
            self._settle()

    def is_overdue(self, now: float) -> bool:
        """Should the connection be closed at ``now``, the loop's time: has the peer been silent for
        ``connections.max.idle.ms``, or read nothing of a response for ``stalled_seconds``?"""
        limits = self._shared.limits
        # A peer that has closed its side while its request runs may still read the response.
        if self._out or (self._delayed is not None and self._has_eof):
            return now - self._active_at > limits.stalled_seconds
        if self._delayed is not None or self._is_waiting:
            # A request may run or wait for long: that alone is no reason. But if the connection is not read
            # meanwhile, the loop does not report that the peer has gone, so the socket is asked.
            is_old = now - self._active_at > limits.stalled_seconds
            return is_old and not self._is_reading and self._has_hung_up()
        return now - self._active_at > limits.idle_seconds

    @property
    def state(self) -> str:
        """One of the states above, for the list of connections; in any thread. WAITING: for memory, or for
        its turn in the loop."""
        delayed = self._delayed
        if delayed is not None:
            return PARKED if delayed.is_parked else RUNNING
        if self._out:
            return SENDING
        if self._is_waiting:
            return WAITING
        if self._unmuting is not None:
            return THROTTLED
        return IDLE if self._frame is None else RECEIVING

    def _has_hung_up(self) -> bool:
        """Has the peer closed its side, perhaps behind bytes that were not read yet?"""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    def end_exemption(self) -> None:
        """The connection was exempt from the memory limit for too long (see ``limits.MemoryHolder``). While
        its request runs, the peer is not to blame: another connection becomes exempt. Else the peer has
        stopped within a frame or a response, and is closed."""
        if self._delayed is None:
            self.close()
        else:
            self._shared.budget.end_exemption_of(self)

    def close(self) -> None:
        """Close at once. A request that runs in the pool is carried out, but its response is dropped; a
        parked fetch is cancelled."""
        if self.is_closed:
            return
        self.is_closed, shared = True, self._shared
        self._watch(reads=False, writes=False)
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
        self._socket.close()
        if self._delayed is not None:
            self._delayed.cancel()
        self._data, self._frame = _EMPTY, None
        self._out.clear()
        shared.budget.hold(-self._held)
        shared.budget.leave(self)
        shared.forget(self)

    # Receiving

    def _readable(self) -> None:
        """The loop's callback for a socket that is readable: receive once, and proceed."""
        try:
            if self._frame is None:
                count = self._receive()
            else:
                with memoryview(self._frame) as view:
                    count = self._socket.recv_into(view[self._received :])
                self._received += count
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError):
            self.close()
            return
        self._has_eof = not count
        self.info.activity.received_at = time.perf_counter()
        self.proceed()

    def _receive(self) -> int:
        """Receive into the shared buffer, and add to ``_data``. Returns how many bytes have come, 0 at the
        end of file. Raises OSError."""
        shared, scratch = self._shared, self._shared.scratch
        if shared.budget.used >= shared.budget.large_bytes_max:
            scratch = scratch[:_SHORT_BYTES]
        count = self._socket.recv_into(scratch)
        # ``_data`` has at most three bytes here, a part of a size: four or more begin a frame, which is
        # answered, or moved into ``_frame``, before anything else is received.
        if self._data:
            self._data = memoryview(bytes(self._data) + scratch[:count])
        else:
            self._data = scratch[:count]
        return count

    def proceed_later(self) -> None:
        """See ``limits.MemoryHolder``."""
        self._shared.loop.call_soon(self.proceed)

    def proceed(self) -> None:
        """Send and answer as much as is possible now, then settle. Called after a receive, by the loop when
        the socket is writable or the connection's turn has come, by the budget when there is memory, by a
        delayed response when it is complete, and when a throttling ends."""
        if self.is_closed:
            return
        self._active_at, self._is_waiting = self._shared.now, False
        try:
            if self._out:
                self._flush()
            if not (self._out or self._delayed or self._unmuting or self._is_ending or self.is_closed):
                self._answer_some()
                self._flush()
            if not self.is_closed:
                self._settle()
        except Exception as error:
            self._end("failed", error)
            self.close()

    def _answer_some(self) -> None:
        """Answer complete frames until one is answered later, none is complete, there is no memory, or the
        connection has had its turn."""
        answered = 0
        try:
            while self._delayed is None and (self._frame is not None or len(self._data) >= _PREFIX.size):
                if self._unmuting is not None:
                    return
                self._is_waiting = answered == _TURN_REQUESTS or self._out_bytes >= _TOGETHER_BYTES
                if self._is_waiting:
                    self.proceed_later()
                    return
                frame = self._next_frame()
                if frame is None:
                    return
                answered += 1
                response = self._shared.answer(frame, self.info)
                if type(response) is list:
                    self._put(response)
                else:
                    self._wait_for(response, len(frame))  # type: ignore[arg-type]
        except RefusedFrameError as error:
            self._end(str(error))
        except Exception as error:
            self._end("failed", error)

    def _next_frame(self) -> bytearray | None:
        """The next frame; None if there is no memory for it, or it is not complete: an incomplete one is
        received into a buffer of its own from then on. Raises RefusedFrameError for a length that is not
        allowed."""
        frame, data = self._frame, self._data
        if frame is None:
            (size,) = _PREFIX.unpack_from(data)
            self._shared.limits.refuse_length(size)
            end = _PREFIX.size + size
            if len(data) >= end:
                if not self._has_memory(is_large=False):
                    return None
                self._data = data[end:]
                return bytearray(data[_PREFIX.size : end])
            if not self._has_memory(is_large=size > _FIRST_BYTES):
                return None
            # From now on the socket is received into the frame, not into the shared buffer.
            self._size, self._received = size, len(data) - _PREFIX.size
            self._frame = frame = bytearray(data[_PREFIX.size :])
            self._data = _EMPTY
        if self._received == self._size:
            if not self._has_memory(is_large=False):
                return None
            self._frame = None
            return frame
        if self._received == len(frame) and self._has_memory(is_large=self._size > _FIRST_BYTES):
            self._grow(frame)
        return None

    def _has_memory(self, *, is_large: bool) -> bool:
        """May the connection take memory for a frame now? If not, the budget queues it (``_is_waiting``).
        ``is_large``: for a frame over ``_FIRST_BYTES`` that is not complete."""
        budget = self._shared.budget
        # Nearly always there is memory for everything: only otherwise may the connection have to queue.
        if budget.used < budget.large_bytes_max or budget.may_take(self, is_large=is_large):
            return True
        self._is_waiting = True
        return False

    def _grow(self, frame: bytearray) -> None:
        """Give an incomplete frame, which fills its buffer, a larger one. Raises RefusedFrameError once its
        API is known and may not have so large a frame."""
        if len(frame) >= _API_KEY.size:
            self._shared.limits.refuse_large(self._size, _API_KEY.unpack_from(frame)[0])
        capacity = min(self._size, max(_GROWTH * len(frame), _FIRST_BYTES))
        # A new bytearray takes zeroed pages from the kernel; ``extend`` would write the zeros itself, which
        # takes a hundred times as long (750 µs for 1 MiB).
        self._frame = bytearray(capacity)
        self._frame[: len(frame)] = frame

    # Answering

    def _wait_for(self, response: DelayedResponse | Awaitable[ResponseParts], frame_bytes: int) -> None:
        self._running_bytes = frame_bytes
        delayed = response if isinstance(response, DelayedResponse) else awaited(response, self._shared.loop)
        self._delayed = delayed
        delayed.deliver_to(self._answered)

    def _answered(self, outcome: ResponseParts | BaseException) -> None:
        """The delayed response is complete: queue its parts, or end the connection after an error."""
        self._delayed, self._running_bytes = None, 0
        if isinstance(outcome, RefusedFrameError):
            self._end(str(outcome))
        elif isinstance(outcome, BaseException):
            self._end("failed", outcome)
        else:
            self._put(outcome)
        self.proceed()

    def _put(self, parts: ResponseParts) -> None:
        """Queue the parts of a response; if it throttles the client, mute the connection."""
        # Also without parts (a Produce with acks=0): ``_flush`` then ends an exemption of the connection.
        self._has_unsent_response = True
        if self.info.activity.throttle_ms:
            self._mute()
        for part in parts:
            if len(part):
                self._out.append(part)
                self._out_bytes += _memory(part)

    def _mute(self) -> None:
        """Read nothing more until the client has waited as long as its response says."""
        activity = self.info.activity
        seconds, activity.throttle_ms = activity.throttle_ms / 1000, 0
        self._unmuting = self._shared.loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self.proceed()

    def _end(self, reason: str, error: BaseException | None = None) -> None:
        """Answer no further request; earlier responses are still sent, then the connection is closed."""
        self._is_ending = True
        if error is None:
            _logger.info("%s: the connection is closed: %s", self.info.peer, reason)
        else:
            _logger.error("%s: the connection is closed: a request failed", self.info.peer, exc_info=error)

    # Sending

    def _flush(self) -> None:
        """Send as much as the socket takes now, at most about ``_TURN_BYTES``."""
        sent = 0
        try:
            while self._out and sent < _TURN_BYTES:
                count = self._send()
                sent += count
                self._drop_sent(count)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        self.info.activity.bytes_out += sent
        if self._has_unsent_response and not self._out:
            self._has_unsent_response = False
            self._shared.budget.end_exemption_of(self)
            self._count_sent()

    def _count_sent(self) -> None:
        """Count the time from when the last of the unsent responses was made until all of them were sent."""
        activity = self.info.activity
        if activity.sent_phase is not None and activity.unsent:
            activity.sent_phase.took(time.perf_counter() - activity.answered_at, activity.unsent)
            activity.unsent = 0

    def _send(self) -> int:
        """Send once, and return how many bytes the kernel took. Raises OSError."""
        out, first = self._out, self._out[0]
        if isinstance(first, FileSlice):
            count = first.send(self._descriptor, self._skip)
            if not count:  # the response's length was sent already, so only closing is left
                raise OSError("the file was truncated before it was sent")
            return count
        if len(out) == 1:
            return self._socket.send(memoryview(first)[self._skip :] if self._skip else first)
        vectors, flags = [memoryview(first)[self._skip :]], 0
        for part in islice(out, 1, _VECTORS_MAX):
            if isinstance(part, FileSlice):
                # The kernel holds the response's header back until its records follow by sendfile. They go in
                # one packet, so the client wakes once.
                flags = socket.MSG_MORE
                break
            vectors.append(memoryview(part))
        return self._socket.sendmsg(vectors, (), flags)

    def _drop_sent(self, count: int) -> None:
        """Remove ``count`` bytes that were sent from the front of ``_out``."""
        out = self._out
        self._skip += count
        while out and self._skip >= len(out[0]):
            part = out.popleft()
            self._skip -= len(part)
            self._out_bytes -= _memory(part)

    # Settling

    def _settle(self) -> None:
        """Close if all is done; else report the memory in use to the budget, and wait for the socket."""
        # Once the peer's end of file has been read, no complete frame is unanswered: while one waits for its
        # answer, the socket is not read.
        if (self._is_ending or self._has_eof) and self._delayed is None and not self._out:
            self.close()
            return
        # The next connection overwrites the shared buffer, so what is left of it is copied.
        if self._data and self._data.obj is self._shared.scratch.obj:
            self._data = memoryview(bytes(self._data))
        frame = self._frame
        held = len(self._data) + self._running_bytes + self._out_bytes + (0 if frame is None else len(frame))
        if held != self._held:
            self._held, difference = held, held - self._held
            self._shared.budget.hold(difference)
        is_muted = self._unmuting is not None
        reads = not (self._out or self._has_eof or self._is_ending or self._is_waiting or is_muted)
        if reads and self._delayed is not None:
            # While a request runs, the next one is read ahead, as far as its buffer goes: the buffer grows
            # only after the response.
            reads = not self._data and (frame is None or self._received < len(frame))
        self._watch(reads=reads, writes=bool(self._out))

    def _watch(self, *, reads: bool, writes: bool) -> None:
        """Let the loop watch the socket for reads and writes, or no longer."""
        loop = self._shared.loop
        if reads != self._is_reading:
            self._is_reading = reads
            if reads:
                loop.add_reader(self._descriptor, self._readable)
            else:
                loop.remove_reader(self._descriptor)
        if writes != self._is_writing:
            self._is_writing = writes
            if writes:
                loop.add_writer(self._descriptor, self.proceed)
            else:
                loop.remove_writer(self._descriptor)


def _memory(part: ResponsePart) -> int:
    """The memory that a part takes, in bytes; a slice of a file takes none."""
    return 0 if isinstance(part, FileSlice) else len(part)
