"""Connections: frames in pieces, order, memory, and peers that cut, stall or send garbage."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Awaitable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.files import FileSlice
from siltstone.broker.connection import SCRATCH_BYTES
from siltstone.broker.request_context import ConnectionInfo, RefusedFrameError, ResponsePart
from tests.support.turned_loop import TurnedLoop

MIB = 1 << 20
PRODUCE, METADATA = b"\0\0", b"\0\3"


def frame(content: bytes, key: bytes = PRODUCE) -> bytes:
    """A frame that looks like a request of an API, with some content."""
    body = key + b"\0\0" + content.ljust(4, b".")
    return struct.pack(">i", len(body)) + body


def echo(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
    """Answers each frame with itself."""
    return [struct.pack(">i", len(request)), request]


class Later:
    """Answers each frame when the test says so. ``requests``: all frames that have come."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self._futures: list[asyncio.Future[None]] = []
        self.cancelled = 0

    def __call__(self, request: bytearray, info: ConnectionInfo) -> Awaitable[list[ResponsePart]]:
        self.requests.append(bytes(request))
        self._futures.append(asyncio.get_running_loop().create_future())
        return self._answer(request, self._futures[-1])

    async def _answer(self, request: bytearray, future: asyncio.Future[None]) -> list[ResponsePart]:
        try:
            await future
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return echo(request, None)  # type: ignore[arg-type]

    def finish(self) -> None:
        future = self._futures.pop(0)
        if not future.done():  # its peer may have gone
            future.set_result(None)


@pytest.mark.parametrize(
    ("piece_max", "sizes"),
    [(3, [0, 1, 50]), (1_000, [0, 100, 3_000]), (3 * SCRATCH_BYTES, [0, 5_000, 70_000, 200_000, 600_000])],
)
def test_frames_in_any_pieces_are_answered_in_order(piece_max: int, sizes: list[int]) -> None:
    chance = random.Random(piece_max)
    stream = b"".join(frame(chance.randbytes(chance.choice(sizes)) + bytes([n])) for n in range(20))
    with TurnedLoop(echo) as turned:
        peer, sent, received = turned.connect(), 0, bytearray()
        while sent < len(stream):
            sent += peer.send(stream[sent : sent + chance.randint(1, piece_max)])
            received += peer.receive()
        assert received + peer.receive() == stream


def test_a_frames_bytes_are_its_own() -> None:
    requests: list[bytearray] = []

    def keep(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
        requests.append(request)
        request[4:5] = b"X"  # as Produce writes offsets
        return []

    with TurnedLoop(keep) as turned:
        turned.connect().send(frame(b"aaaa") + frame(b"bbbb") + frame(b"c" * 100_000))
        assert [bytes(request[4:8]) for request in requests] == [b"Xaaa", b"Xbbb", b"Xccc"]


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 7, MIB + 1, (1 << 31) - 1])
def test_a_length_that_is_none_closes_after_the_answers_before_it(size: int) -> None:
    with TurnedLoop(echo, request_bytes_max=MIB) as turned:
        peer, other = turned.connect(), turned.connect()
        peer.send(frame(b"first") + struct.pack(">i", size) + b"garbage" * 3)
        assert peer.receive() == frame(b"first")
        assert peer.is_closed
        other.send(frame(b"alive"))
        assert other.receive() == frame(b"alive")


def test_a_frame_takes_no_more_memory_than_four_times_what_has_come() -> None:
    with TurnedLoop(echo) as turned:
        peer, budget = turned.connect(), turned.sockets.budget
        peer.send(struct.pack(">i", 100 * MIB) + PRODUCE + bytes(6))
        assert budget.used <= 64 << 10
        for _ in range(12):
            peer.send(bytes(100_000))
            assert budget.used <= max(4 * 100_000 * 12, 64 << 10)
        peer.socket.close()
        turned.turn()
        assert budget.used == 0


def test_only_produce_may_have_a_frame_over_8_mib() -> None:
    with TurnedLoop(lambda request, info: []) as turned:
        for key, is_refused in ((METADATA, True), (PRODUCE, False)):
            peer = turned.connect()
            raw = frame(bytes(9 * MIB), key)
            assert (peer.send(raw) < len(raw)) == is_refused
            assert peer.is_closed == is_refused
        peer.send(frame(bytes(7 * MIB), METADATA))
        assert not peer.is_closed


def test_one_request_at_a_time_and_little_is_read_ahead() -> None:
    later = Later()
    with TurnedLoop(later) as turned:
        peer, requests = turned.connect(), [frame(bytes([n]) * 1_000) for n in range(60)]
        before = peer.send(b"".join(requests))
        peer.send(bytes(0))
        assert before == sum(map(len, requests))
        assert len(later.requests) == 1
        large = frame(b"x" * 4 * MIB)
        assert peer.send(large) < len(large)  # more than a read ahead stays with the peer
        assert turned.sockets.budget.used <= 2 * SCRATCH_BYTES
        for number in range(60):
            assert len(later.requests) == number + 1
            later.finish()
            assert peer.receive() == requests[number]


def test_a_flood_of_one_connection_lets_others_have_their_turn() -> None:
    answered: list[int] = []

    def answer(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
        answered.append(info.number)
        return []

    with TurnedLoop(answer) as turned:
        flood, other = turned.connect(), turned.connect()
        for _ in range(5):
            flood.socket.send(b"".join(frame(b"%d" % number) for number in range(1_000)))
        other.socket.send(frame(b"other"))
        turned.turn(200)
        assert answered.count(1) == 5_000
        assert answered.index(2) <= 200


def test_a_reader_that_takes_nothing_is_not_read_and_then_dropped() -> None:
    with TurnedLoop(echo, stalled_seconds=60.0, idle_seconds=600.0) as turned:
        slow, idle = turned.connect(), turned.connect()
        answer = frame(b"x" * 4 * MIB)
        while slow.send(answer) == len(answer):
            assert turned.sockets.budget.used <= 3 * len(answer)
        turned.sweep(59)
        assert len(turned.sockets.connections) == 2
        turned.sweep(61)
        assert [connection.info.number for connection in turned.sockets.connections] == [2]
        assert turned.sockets.budget.used == 0
        turned.sweep(599)
        assert not idle.is_closed
        turned.sweep(602)
        assert idle.is_closed


def test_a_request_that_runs_is_not_idle() -> None:
    later = Later()
    with TurnedLoop(later, idle_seconds=1.0) as turned:
        peer = turned.connect()
        peer.send(frame(b"wait"))
        turned.sweep(1_000)
        later.finish()
        assert peer.receive() == frame(b"wait")


def test_a_half_closed_peer_gets_its_answers_then_the_end() -> None:
    later = Later()
    with TurnedLoop(later) as turned:
        peer = turned.connect()
        peer.send(frame(b"one") + frame(b"two") + frame(b"half")[:6])
        peer.socket.shutdown(1)
        for content in (b"one", b"two"):
            later.finish()
            assert peer.receive() == frame(content)
        assert peer.is_closed
        assert not turned.sockets.connections


def test_a_half_closed_peer_whose_request_waits_for_long_is_dropped() -> None:
    later = Later()
    with TurnedLoop(later, stalled_seconds=60.0) as turned:
        peer = turned.connect()
        peer.send(frame(b"wait"))
        peer.socket.shutdown(1)
        turned.turn()
        turned.sweep(61)
        turned.turn()
        assert not turned.sockets.connections
        assert later.cancelled == 1


def test_a_peer_that_went_behind_what_is_not_read_yet_is_dropped() -> None:
    later = Later()
    with TurnedLoop(later, stalled_seconds=60.0) as turned:
        closed, connected = turned.connect(), turned.connect()
        for peer in (closed, connected):
            peer.send(frame(b"wait") + frame(b"ahead"))
        closed.socket.close()
        turned.sweep(59)
        assert len(turned.sockets.connections) == 2
        turned.sweep(61)
        assert [connection.info.number for connection in turned.sockets.connections] == [2]


def test_a_peer_that_goes_at_any_point_leaves_nothing_behind() -> None:
    later, raw = Later(), frame(b"a request") * 2
    with TurnedLoop(later) as turned:
        for end in range(len(raw) + 1):
            peer = turned.connect()
            peer.send(raw[:end])
            if end % 2:
                peer.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
            peer.socket.close()
            while later._futures:
                later.finish()
                turned.turn()
            turned.turn()
        assert not turned.sockets.connections
        assert turned.sockets.budget.used == 0


def test_an_exception_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> list[ResponsePart]:
        raise ZeroDivisionError

    def answer(
        request: bytearray, info: ConnectionInfo
    ) -> list[ResponsePart] | Awaitable[list[ResponsePart]]:
        if request.endswith(b"now."):
            raise ZeroDivisionError
        if request.endswith(b"refuse"):
            raise RefusedFrameError("no")
        return fail() if request.endswith(b"later") else echo(request, info)

    with TurnedLoop(answer) as turned, caplog.at_level(logging.ERROR):
        other = turned.connect()
        for content in (b"now.", b"later", b"refuse"):
            peer = turned.connect()
            peer.send(frame(b"good") + frame(content) + frame(b"not answered"))
            assert peer.receive() == frame(b"good")
            assert peer.is_closed
        other.send(frame(b"alive"))
        assert other.receive() == frame(b"alive")
    assert len(caplog.records) == 2


def test_slices_of_files_go_between_bytes_in_order(tmp_path: Path) -> None:
    path = tmp_path / "records"
    content = random.Random(2).randbytes(3 * MIB)
    files.write_new(path, content)
    with files.Reader(path) as reader:

        def answer(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
            cut = FileSlice(reader, 5, 1), FileSlice(reader, 9, 0), FileSlice(reader, 10, 2 * MIB)
            return [b"head", *cut, memoryview(b"tail"), bytearray(), b"end"]

        expected = b"head" + content[5:6] + content[10 : 10 + 2 * MIB] + b"tailend"
        with TurnedLoop(answer) as turned:
            peer = turned.connect()
            peer.send(frame(b"1") + frame(b"2"))
            assert turned.sockets.budget.used < 1_000  # slices take no memory
            assert peer.receive() == 2 * expected


def test_a_file_that_was_cut_closes_the_connection_not_the_server(tmp_path: Path) -> None:
    path = tmp_path / "records"
    files.write_new(path, bytes(100))
    with files.Reader(path) as reader:

        def answer(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
            return [b"head", FileSlice(reader, 50, 100)] if request[4:5] == b"x" else echo(request, info)

        with TurnedLoop(answer) as turned:
            peer, other = turned.connect(), turned.connect()
            peer.send(frame(b"x"))
            assert len(peer.receive()) == 54
            assert peer.is_closed
            other.send(frame(b"alive"))
            assert other.receive() == frame(b"alive")


def test_finishing_answers_what_runs_and_closes() -> None:
    later = Later()
    with TurnedLoop(later) as turned:
        busy, idle = turned.connect(), turned.connect()
        busy.send(frame(b"runs") + frame(b"comes too late"))
        finishing = turned.loop.create_task(turned.sockets.finish())
        turned.turn()
        assert idle.is_closed
        assert not busy.is_closed
        later.finish()
        assert busy.receive() == frame(b"runs")
        assert busy.is_closed
        assert finishing.done()
        assert len(later.requests) == 1
