"""One budget for all: who may go on, who waits, and who is dropped."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

import pytest

from siltstone.base.config import Config, parse_server_properties
from siltstone.base.errors import UsageError
from siltstone.broker.limits import EXEMPT_SECONDS, Limits, MemoryBudget, raise_descriptor_limit
from siltstone.broker.request_context import ConnectionInfo, ResponseParts
from siltstone.broker.wire.codec import ELEMENTS_MAX
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.test_connection import PRODUCE, Later, echo, frame
from tests.support.turned_loop import TurnedLoop
from tests.support.wire_client import WireClient

KIB = 1 << 10


def limits(text: str) -> Limits:
    return Limits.of(Config(static=parse_server_properties(text, "server.properties")))


def test_the_limits_are_those_of_the_settings() -> None:
    parsed = limits(
        "socket.request.max.bytes=1000\nqueued.max.request.bytes=2000\nmax.connections=3\n"
        "max.connections.per.ip=2\nmax.connections.per.ip.overrides=192.0.2.1:9, ::1:1\n"
        "connections.max.idle.ms=1500\nsocket.listen.backlog.size=7\n"
    )
    assert (parsed.request_bytes_max, parsed.memory_bytes_max, parsed.connections_max) == (1000, 2000, 3)
    assert [parsed.connections_from(address) for address in ("192.0.2.1", "::1", "192.0.2.2")] == [9, 1, 2]
    assert (parsed.idle_seconds, parsed.backlog) == (1.5, 7)


def test_connections_leave_half_of_the_descriptors_to_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1000, 5000))
    assert limits("").connections_max == 500
    assert limits("max.connections=10").connections_max == 10


def test_the_limit_of_open_files_is_raised_to_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [(1024, 4096)]

    def set_to(which: int, limits: tuple[int, int]) -> None:
        assert limits[1] == 4096
        now.append(limits)

    monkeypatch.setattr("resource.getrlimit", lambda which: now[-1])
    monkeypatch.setattr("resource.setrlimit", set_to)
    raise_descriptor_limit()
    assert now[-1] == (4096, 4096)
    raise_descriptor_limit()
    assert len(now) == 2
    now.append((-1, -1))  # no limit
    assert limits("").connections_max == ((1 << 31) - 1) // 2


def test_an_override_may_be_in_any_form_of_an_address() -> None:
    overrides = limits("max.connections.per.ip.overrides=[2001:DB8::1]:3,2001:db8:0::2:4,::ffff:192.0.2.1:5")
    assert overrides.connections_of == {"2001:db8::1": 3, "2001:db8::2": 4, "192.0.2.1": 5}


def test_the_name_of_a_host_in_an_override_stands_for_its_addresses() -> None:
    overrides = limits("max.connections.per.ip.overrides=192.0.2.1:3,localhost:4")
    assert (overrides.connections_from("127.0.0.1"), overrides.connections_from("192.0.2.1")) == (4, 3)


NO_OVERRIDES = (
    "a",
    "192.0.2.2",
    "192.0.2.2:",
    ":5",
    "192.0.2.2:b",
    "192.0.2.2:-1",
    "no-such-host.invalid:5",
    f"{'a' * 70}.example:5",
    "a b:5",
    "192.0.2.2:٣",
)


@pytest.mark.parametrize("text", [*NO_OVERRIDES, f"192.0.2.2:{'9' * 5000}"])
def test_a_text_that_is_no_override_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ADDRESS:COUNT"):
        limits(f"max.connections.per.ip.overrides=192.0.2.1:1,{text}")


def half(size: int, sent: int) -> bytes:
    """The first bytes of a frame of Produce."""
    return struct.pack(">i", size) + (PRODUCE + bytes(sent))[:sent]


def test_small_requests_are_answered_beside_large_ones_that_are_not_complete() -> None:
    with TurnedLoop(echo, memory_bytes_max=2 << 20, request_bytes_max=1 << 20) as turned:
        budget, flood = turned.sockets.budget, [turned.connect() for _ in range(20)]
        for _ in range(3):
            for peer in flood:
                peer.send(half(1 << 20, 200 * KIB))
        assert budget.waiting > 10
        assert budget.used <= budget.bytes_max == 4 << 20
        honest = [turned.connect() for _ in range(20)]
        for size in (1, 20 * KIB, 60 * KIB):
            for peer in honest:
                peer.send(frame(b"h" * size))
                assert peer.receive() == frame(b"h" * size)


def test_half_read_frames_cannot_hold_all_memory() -> None:
    with TurnedLoop(echo, memory_bytes_max=300 * KIB, request_bytes_max=1 << 20) as turned:
        budget = turned.sockets.budget
        hogs = [turned.connect() for _ in range(5)]
        for hog in hogs:
            hog.send(half(1 << 20, 200 * KIB))
        assert 300 * KIB <= budget.used <= 300 * KIB + (1 << 20)
        honest = turned.connect()
        honest.send(frame(b"honest"))
        assert honest.receive() == frame(b"honest")
        large = frame(b"l" * 200 * KIB)
        sent = honest.send(large)
        assert budget.waiting
        seconds = 0.0
        for _ in range(2 * len(hogs) + 2):
            seconds += EXEMPT_SECONDS + 1
            turned.sweep(seconds)
            assert budget.used <= budget.bytes_max
            sent += honest.send(large[sent:])
        assert honest.receive() == large
        for peer in (*hogs, honest):
            peer.socket.close()
        turned.turn()
        assert budget.used == 0
        assert budget.exempt is None
        assert not budget.waiting


def test_frames_that_are_sent_are_answered_one_after_the_other_when_memory_is_short() -> None:
    with TurnedLoop(echo, memory_bytes_max=100 * KIB, request_bytes_max=200 * KIB) as turned:
        peers, raw = [turned.connect() for _ in range(8)], frame(b"x" * 150 * KIB)
        positions = [0] * len(peers)
        received = [bytearray() for _ in peers]
        for _ in range(200):
            for number, peer in enumerate(peers):
                positions[number] += peer.send(raw[positions[number] : positions[number] + 40 * KIB])
                received[number] += peer.receive()
                assert turned.sockets.budget.used <= (100 + 64 + 3 * 160) * KIB
        assert all(data == raw for data in received)


def test_a_response_that_is_sent_does_not_end_the_wait_for_memory_of_the_next_request() -> None:
    later = Later()

    def answer(request: bytearray, info: ConnectionInfo) -> ResponseParts | Awaitable[ResponseParts]:
        return echo(request, info) if b"small" in request else later(request, info)

    with TurnedLoop(answer, memory_bytes_max=100 * KIB, request_bytes_max=1 << 20) as turned:
        budget, running, exempt = turned.sockets.budget, turned.connect(), turned.connect()
        running.send(frame(b"r" * 90 * KIB))  # runs, and has all memory of large frames
        exempt.send(half(1 << 20, 100))
        assert budget.exempt is not None
        large = frame(b"l" * (1 << 18))
        pipelining, closed = turned.connect(), turned.connect()
        for peer in (pipelining, closed):
            peer.send(frame(b"small") + large[:100])
            assert peer.receive() == frame(b"small")
        assert budget.waiting == 2
        closed.socket.close()
        turned.sweep(61)
        assert budget.waiting == 1
        later.finish()
        assert running.receive() == frame(b"r" * 90 * KIB)
        exempt.socket.close()
        assert pipelining.send(large[100:]) == len(large) - 100
        later.finish()
        assert pipelining.receive() == large
        running.socket.close()
        pipelining.socket.close()
        turned.turn()
        assert not turned.sockets.connections
        assert budget.used == 0


class Waiting:
    """Holds memory. ``turns``: how often it may go on."""

    def __init__(self) -> None:
        self.turns = self.lost = 0

    def proceed_later(self) -> None:
        self.turns += 1

    def end_exemption(self) -> None:
        self.lost += 1


def test_the_exemption_goes_along_the_queue_and_past_those_who_have_left() -> None:
    budget, (first, leaving, last) = MemoryBudget(60, 20), (Waiting() for _ in range(3))
    budget.hold(150)
    assert [budget.may_take(waiting) for waiting in (first, leaving, last)] == [False, False, False]
    assert budget.exempt is first
    assert budget.may_take(first)
    assert [waiting.turns for waiting in (first, leaving, last)] == [1, 0, 0]
    budget.leave(leaving)
    budget.leave(first)
    assert budget.exempt is last
    assert [waiting.turns for waiting in (first, leaving, last)] == [1, 0, 1]


def test_memory_that_is_returned_lets_all_proceed() -> None:
    budget, holders = MemoryBudget(60, 20), [Waiting() for _ in range(3)]
    budget.hold(150)
    for holder in holders:
        budget.may_take(holder)
    budget.hold(-40)
    assert budget.waiting == 2
    budget.hold(-20)
    assert [holder.turns for holder in holders] == [1, 1, 1]
    assert not budget.waiting


def test_readers_that_take_nothing_leave_memory_for_others_and_are_dropped() -> None:
    answer_bytes = 2 << 20  # more than a socket takes
    with TurnedLoop(echo, memory_bytes_max=3 << 20, stalled_seconds=60.0) as turned:
        budget, raw = turned.sockets.budget, frame(b"x" * answer_bytes)
        slow = [turned.connect() for _ in range(6)]
        for peer in slow:
            peer.send(raw)
            assert budget.used <= budget.bytes_max + 2 * answer_bytes
        honest = turned.connect()
        honest.send(frame(b"honest"))
        answers, seconds = honest.receive(), 0.0
        for _ in range(2 * len(slow) + 2):
            seconds += EXEMPT_SECONDS + 1  # one that was exempt and takes nothing is dropped
            turned.sweep(seconds)
            answers += honest.receive()
            assert budget.used <= budget.bytes_max + 2 * answer_bytes
        assert answers == frame(b"honest")
        assert len(turned.sockets.connections) < len(slow)
        turned.sweep(seconds + 601)  # half frames, for which there is room by now, are idle peers'
        assert not turned.sockets.connections
        assert budget.used == 0


def test_a_peer_that_stops_within_a_frame_is_idle() -> None:
    with TurnedLoop(echo, idle_seconds=600.0) as turned:
        peers = [turned.connect() for _ in range(2)]
        peers[0].send(half(1 << 20, 100))
        peers[1].send(b"\0\0")
        turned.sweep(599)
        assert not any(peer.is_closed for peer in peers)
        turned.sweep(601)
        assert all(peer.is_closed for peer in peers)
        assert turned.sockets.budget.used == 0


def test_a_request_with_too_many_elements_closes_its_connection_only(
    connect: Callable[[], WireClient],
) -> None:
    names = (MetadataRequestTopic(name=""),) * (ELEMENTS_MAX + 1)
    hostile, other = connect(), connect()
    hostile.send(MetadataRequest(topics=names), 9)
    assert hostile.is_closed()
    assert other.ask(MetadataRequest(topics=()), 9).topics == ()


def test_a_parked_request_loses_its_exemption() -> None:
    later = Later()
    with TurnedLoop(later, memory_bytes_max=5 * KIB, request_bytes_max=20 * KIB) as turned:
        peers = [turned.connect() for _ in range(5)]
        for peer in peers[:3]:
            peer.send(frame(b"p" * 19 * KIB))
        for peer in peers[3:]:
            peer.send(frame(b"small"))
        assert len(later.requests) == 3  # the third is exempt
        for number in range(1, 8):
            turned.sweep(number * (EXEMPT_SECONDS + 1))
        assert len(later.requests) == 5
        assert not any(peer.is_closed for peer in peers)


def test_a_budget_counts_what_is_left() -> None:
    budget = MemoryBudget(60, 20)
    budget.hold(99)
    assert budget.may_take(None)  # type: ignore[arg-type]
    budget.hold(-99)
    assert budget.used == 0
