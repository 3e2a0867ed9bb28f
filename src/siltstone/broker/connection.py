"""One connection: frames in, answers out, in order, one request at a time.

::

    0        4
    | size   | frame: header and body of a request |      size: int32, of the frame alone

    socket ─► scratch (one for all) ─► frame, a bytearray of its own ─► answer ─► pieces ─► sendmsg, sendfile
              many small frames        a large one grows and is
              with one system call     received into directly

A connection is not read while a complete request waits for the one before it, while an answer waits for a
slow reader, and while there is no memory. Its requests are answered one after the other: idempotent producers
rely on that.

A frame's bytearray belongs to its request alone: Produce writes offsets into it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Container
from itertools import islice
from typing import Protocol

from siltstone.base.files import FileSlice
from siltstone.broker.answers import ConnectionInfo, Piece, Pieces, RefusedFrameError
from siltstone.broker.limits import Limits, MemoryBudget

SCRATCH_BYTES = 128 << 10
"""Of the buffer that all connections receive small frames in."""
_FIRST_BYTES, _GROWTH = 64 << 10, 4
"""A frame's bytearray has no more bytes than the first, or than the second times those that have come."""
_SHORT_BYTES = 16 << 10
"""What is received at one time when memory is short: the first bytes of a large frame are in no line yet."""
_TOGETHER_BYTES = 256 << 10
"""Answers to requests that came together are sent together, up to so many bytes."""
_TURN_BYTES, _TURN_REQUESTS = 4 << 20, 100
"""When a connection has sent so many bytes, or was answered so many requests, it is another one's turn."""
_VECTORS_MAX = 64
IDLE, RECEIVING, WAITING, RUNNING, PARKED, SENDING = "idle receiving waiting running parked sending".split()
"""What a connection does: see ``Connection.state``."""
_PREFIX, _KEY = struct.Struct(">i"), struct.Struct(">h")
_EMPTY = memoryview(b"")
_logger = logging.getLogger("siltstone.broker")


class Surroundings(Protocol):
    """What all connections share (``server.Sockets``). ``now``: the loop's time, a second old at most."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    budget: MemoryBudget
    scratch: memoryview
    now: float

    def answer(self, frame: bytearray, info: ConnectionInfo) -> Pieces | Awaitable[Pieces]:
        """The answer to a frame, at once or later. Raises RefusedFrameError to close the connection."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection:
    """A connected socket. Everything runs in the loop's thread.

    ``_data``: bytes that have come and are in no frame yet. ``_frame``: a frame that is not complete or
    waits, with its ``_size`` and the bytes ``_received`` of it. ``_out``: pieces to send; of the first
    ``_skip`` bytes are sent. ``_held``: what the budget has counted. ``_is_ending``: no further request is
    answered. ``_has_eof``: the peer sends nothing more. ``_waits_its_turn``: ``go_on`` will be called.
    """

    def __init__(self, peer: socket.socket, info: ConnectionInfo, around: Surroundings) -> None:
        self.info, self.is_closed = info, False
        self._socket, self._descriptor, self._around = peer, peer.fileno(), around
        self._data: memoryview = _EMPTY
        self._frame: bytearray | None = None
        self._size = self._received = 0
        self._task: asyncio.Future[Pieces] | None = None
        self._running_bytes = self._out_bytes = self._held = self._skip = 0
        self._out: deque[Piece] = deque()
        self._is_reading = self._is_writing = self._has_eof = self._is_ending = False
        self._waits_its_turn = self._is_answered = False
        self._active_at = around.now

    def start(self) -> None:
        """Read from now on."""
        self._settle()

    def finish(self) -> None:
        """Read nothing more, finish the request that runs, and close."""
        self._is_ending = True
        if not self.is_closed:
            self._settle()

    def is_overdue(self, now: float) -> bool:
        """Has the peer been silent too long, or has it taken nothing of its answer for too long?"""
        limits = self._around.limits
        if self._out or (self._task is not None and self._has_eof):
            return now - self._active_at > limits.stalled_seconds
        if self._task is not None:
            # A request may wait for long. Without a read ahead the end of a peer is seen at once.
            is_old = now - self._active_at > limits.stalled_seconds
            return is_old and not self._is_reading and self._has_hung_up()
        if self._waits_its_turn:
            return False
        return now - self._active_at > limits.idle_seconds

    def state(self, parked: Container[object]) -> str:
        """What it does, for people; in any thread. ``parked``: the tasks that wait for records. WAITING is
        for its turn, or for memory."""
        task = self._task
        if task is not None:
            return PARKED if task in parked else RUNNING
        if self._out:
            return SENDING
        if self._waits_its_turn:
            return WAITING
        return IDLE if self._frame is None else RECEIVING

    def _has_hung_up(self) -> bool:
        """Has the peer sent its end, behind bytes that were not read yet?"""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    def lose_favour(self) -> None:
        """It was favoured with memory for too long: let others have it, and close if the peer is to blame."""
        if self._task is None:
            self.close()
        else:
            self._around.budget.leave(self)

    def close(self) -> None:
        """Close at once; a request that runs goes on unanswered, one that waits is cancelled."""
        if self.is_closed:
            return
        self.is_closed, around = True, self._around
        self._watch(reads=False, writes=False)
        self._socket.close()
        if self._task is not None:
            # Not at once: a coroutine that was made must be begun, to be cancelled without a warning.
            around.loop.call_soon(self._task.cancel)
        self._data, self._frame = _EMPTY, None
        self._out.clear()
        around.budget.hold(-self._held)
        around.budget.leave(self)
        around.forget(self)

    # In

    def _readable(self) -> None:
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
        self.go_on()

    def _receive(self) -> int:
        around, scratch = self._around, self._around.scratch
        if around.budget.used >= around.budget.large_bytes_max:
            scratch = scratch[:_SHORT_BYTES]
        count = self._socket.recv_into(scratch)
        if self._data:  # a part of a length
            self._data = memoryview(bytes(self._data) + scratch[:count])
        else:
            self._data = scratch[:count]
        return count

    def go_on_later(self) -> None:
        """See ``limits.MemoryHolder``."""
        self._around.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Send, and answer what is complete, as far as may be done now; then wait for what is missing."""
        if self.is_closed:
            return
        self._active_at, self._waits_its_turn = self._around.now, False
        try:
            if self._out:
                self._flush()
            if not (self._out or self._task or self._is_ending or self.is_closed):
                self._answer_some()
                self._flush()
            if not self.is_closed:
                self._settle()
        except Exception as error:
            self._end("failed", error)
            self.close()

    def _answer_some(self) -> None:
        """Answer frames until something must be waited for, or it is another connection's turn."""
        answered = 0
        try:
            while self._task is None and (self._frame is not None or len(self._data) >= _PREFIX.size):
                self._waits_its_turn = answered == _TURN_REQUESTS or self._out_bytes >= _TOGETHER_BYTES
                if self._waits_its_turn:
                    self.go_on_later()
                    return
                frame = self._next_frame()
                if frame is None:
                    return
                answered += 1
                answer = self._around.answer(frame, self.info)
                if type(answer) is list:
                    self._put(answer)
                else:
                    self._wait_for(answer, len(frame))  # type: ignore[arg-type]
        except RefusedFrameError as error:
            self._end(str(error))
        except Exception as error:
            self._end("failed", error)

    def _next_frame(self) -> bytearray | None:
        """The next frame if it is complete, and there is memory for it. Raises RefusedFrameError."""
        frame, data = self._frame, self._data
        if frame is None:
            (size,) = _PREFIX.unpack_from(data)
            self._around.limits.refuse_length(size)
            end = _PREFIX.size + size
            if len(data) >= end:
                if not self._has_memory(is_large=False):
                    return None
                self._data = data[end:]
                return bytearray(data[_PREFIX.size : end])
            if not self._has_memory(is_large=size > _FIRST_BYTES):
                return None
            # What is missing goes into the frame itself, not through the scratch buffer.
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
        budget = self._around.budget
        # Nearly always there is: the line is only asked where there is not.
        if budget.used < budget.large_bytes_max or budget.may_go_on(self, is_large=is_large):
            return True
        self._waits_its_turn = True
        return False

    def _grow(self, frame: bytearray) -> None:
        if len(frame) >= _KEY.size:
            self._around.limits.refuse_large(self._size, _KEY.unpack_from(frame)[0])
        capacity = min(self._size, max(_GROWTH * len(frame), _FIRST_BYTES))
        # A new bytearray is zeroed by the kernel, when it is written to; one that is extended takes a hundred
        # times as long (750 µs for 1 MiB).
        self._frame = bytearray(capacity)
        self._frame[: len(frame)] = frame

    # Answers

    def _wait_for(self, answer: Awaitable[Pieces], frame_bytes: int) -> None:
        self._running_bytes = frame_bytes
        self._task = asyncio.ensure_future(answer, loop=self._around.loop)
        self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Future[Pieces]) -> None:
        self._task, self._running_bytes = None, 0
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self.is_closed:
            return
        if error is None:
            self._put(task.result())
        elif isinstance(error, RefusedFrameError):
            self._end(str(error))
        else:
            self._end("failed", error)
        self.go_on()

    def _put(self, pieces: Pieces) -> None:
        self._is_answered = True
        for piece in pieces:
            if len(piece):
                self._out.append(piece)
                self._out_bytes += _memory(piece)

    def _end(self, reason: str, error: BaseException | None = None) -> None:
        """Answer nothing more; what was answered before is still sent."""
        self._is_ending = True
        if error is None:
            _logger.info("%s: the connection is closed: %s", self.info.peer, reason)
        else:
            _logger.error("%s: the connection is closed: a request failed", self.info.peer, exc_info=error)

    # Out

    def _flush(self) -> None:
        """Send what the peer takes now."""
        sent = 0
        try:
            while self._out and sent < _TURN_BYTES:
                count = self._send()
                sent += count
                self._take_off(count)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        self.info.activity.bytes_out += sent
        if self._is_answered and not self._out:
            self._is_answered = False
            self._around.budget.leave(self)

    def _send(self) -> int:
        """Send once; how many bytes the kernel took. Raises OSError."""
        out, first = self._out, self._out[0]
        if isinstance(first, FileSlice):
            count = first.send(self._descriptor, self._skip)
            if not count:
                raise OSError("the file was truncated before it was sent")
            return count
        if len(out) == 1:
            return self._socket.send(memoryview(first)[self._skip :] if self._skip else first)
        vectors, flags = [memoryview(first)[self._skip :]], 0
        for piece in islice(out, 1, _VECTORS_MAX):
            if isinstance(piece, FileSlice):
                # The head of an answer waits for its records: one packet, and the reader wakes up once.
                flags = socket.MSG_MORE
                break
            vectors.append(memoryview(piece))
        return self._socket.sendmsg(vectors, (), flags)

    def _take_off(self, count: int) -> None:
        out = self._out
        self._skip += count
        while out and self._skip >= len(out[0]):
            piece = out.popleft()
            self._skip -= len(piece)
            self._out_bytes -= _memory(piece)

    # What to wait for

    def _settle(self) -> None:
        """Close if all is done; else count what is held, and watch the socket for what is missing."""
        # The end of a peer is only read when no complete request is left.
        if (self._is_ending or self._has_eof) and self._task is None and not self._out:
            self.close()
            return
        if self._data and self._data.obj is self._around.scratch.obj:
            self._data = memoryview(bytes(self._data))
        frame = self._frame
        held = len(self._data) + self._running_bytes + self._out_bytes + (0 if frame is None else len(frame))
        if held != self._held:
            self._held, difference = held, held - self._held
            self._around.budget.hold(difference)
        reads = not (self._out or self._has_eof or self._is_ending or self._waits_its_turn)
        if reads and self._task is not None:
            # One request is read ahead. A frame that is full grows when its turn has come.
            reads = not self._data and (frame is None or self._received < len(frame))
        self._watch(reads=reads, writes=bool(self._out))

    def _watch(self, *, reads: bool, writes: bool) -> None:
        loop = self._around.loop
        if reads != self._is_reading:
            self._is_reading = reads
            if reads:
                loop.add_reader(self._descriptor, self._readable)
            else:
                loop.remove_reader(self._descriptor)
        if writes != self._is_writing:
            self._is_writing = writes
            if writes:
                loop.add_writer(self._descriptor, self.go_on)
            else:
                loop.remove_writer(self._descriptor)


def _memory(piece: Piece) -> int:
    """The bytes of memory that a piece takes: a slice of a file takes none."""
    return 0 if isinstance(piece, FileSlice) else len(piece)
