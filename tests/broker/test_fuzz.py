"""Hostile frames against dispatch, handlers and connections: nothing crashes, memory stays within the budget,
and others are served.

Over 100,000 frames in every run. ``make test-long`` goes on with random ones for two minutes, or
``SILTSTONE_FUZZ_SECONDS``, and says how many there were.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import os
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.dispatch import HANDLERS, Dispatcher
from siltstone.broker.limits import STALLED_SECONDS
from siltstone.broker.request_context import ConnectionInfo, RefusedFrameError, RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.apis import (
    ALTER_CONFIGS,
    API_VERSIONS,
    APIS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
)
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.commands.served import Served
from tests.support.hostile_frames import TOPIC, frames_of, random_change, systematic
from tests.support.thoroughness import THOROUGH
from tests.support.turned_loop import LISTENER, Peer, TurnedLoop
from tests.support.wire_client import read_response, request_frame

CHANGES = {
    CREATE_TOPICS,
    DELETE_TOPICS,
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    ALTER_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
}
"""APIs whose handlers make and remove files: their requests are read, and answered with nothing."""
MEMORY_BYTES = 32 << 20
FRAME_BYTES = 4 << 20
GROWTH_BYTES_MAX = 64 << 20
"""How much larger the process may get: the budget, a frame beyond it, and what Python keeps."""
AT_ONCE = 16
INFO = ConnectionInfo(number=1, listener=LISTENER, peer="192.0.2.1")
SECONDS = float(os.environ.get("SILTSTONE_FUZZ_SECONDS", "120"))


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.enable=false\nauto.create.topics.enable=false\n", "utf-8")
    return path


def answer_nothing(broker: Broker, request: Message, context: RequestContext) -> Message:
    return APIS[context.api_key].response()


class AtOnce(Executor):
    """A pool without threads, which does the work where it is submitted: to change threads for each of a
    hundred thousand frames takes a fifth of the test's time."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(function(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future


class Target:
    """A broker on a loop that the test turns. ``frames``: fair ones, to change."""

    def __init__(self, turned: TurnedLoop, served: Served) -> None:
        self.turned = turned
        self.broker = Broker(served, turned.loop)
        self.broker._pool.shutdown()  # it has loaded the kernels
        self.broker._pool = AtOnce()
        served.opened().topics.create(TOPIC, 1)
        handlers = {key: answer_nothing if key in CHANGES else handler for key, handler in HANDLERS.items()}
        self.dispatcher = Dispatcher(self.broker, handlers)
        turned.sockets.answer = self.dispatcher.answer
        self.frames = frames_of([*HANDLERS, API_VERSIONS], self.broker.id_of_topic(TOPIC))
        self.honest = turned.connect("192.0.2.2")
        self._seconds = 0.0

    def dispatch(self, frames: Iterable[bytes]) -> tuple[int, int]:
        """Answer frames without sockets: how many, and how many were refused."""
        tried = refused = 0
        for frame in frames:
            tried += 1
            if not tried % 1_000:
                self.turned.turn(1)  # takes what the pool has found
            try:
                answer = self.dispatcher.answer(bytearray(frame), INFO)
            except RefusedFrameError:
                refused += 1
                continue
            if inspect.iscoroutine(answer):
                # As far as it gets at once; then the peer has gone.
                with contextlib.suppress(StopIteration):
                    answer.send(None)
                answer.close()
            elif isinstance(answer, DelayedResponse):
                answer.cancel()
        return tried, refused

    def send(self, frames: Iterator[bytes], chance: random.Random) -> int:
        """Send frames to connections, some of them cut, with wrong lengths, or with others behind."""
        tried, sockets = 0, self.turned.sockets
        while batch := list(itertools.islice(frames, AT_ONCE)):
            peers = [self.turned.connect() for _ in batch]
            for peer, frame in zip(peers, batch, strict=True):
                self._send(peer, frame, chance)
            tried += len(batch)
            assert sockets.budget.used <= MEMORY_BYTES + FRAME_BYTES
            self.honest.send(request_frame(ApiVersionsRequest(), 0))
            response = self.honest.receive()[4:]
            assert read_response(ApiVersionsRequest(), 0, response).error_code == 0
            for peer in peers:
                peer.socket.close()
            self.turned.turn()
        # Requests that wait for a peer that has gone end with it.
        self._seconds += STALLED_SECONDS + 1
        self.turned.sweep(self._seconds)
        assert len(sockets.connections) == 1
        assert sockets.budget.used == 0
        assert self.broker.purgatory.parked == 0
        return tried

    def _send(self, peer: Peer, frame: bytes, chance: random.Random) -> None:
        size = len(frame) if chance.random() < 0.8 else chance.choice((-1, 0, 1, len(frame) * 1_000, 1 << 30))
        raw = struct.pack(">i", size) + frame
        if chance.random() < 0.3:
            other = chance.choice(self.frames)
            raw += struct.pack(">i", len(other)) + other
        cut = chance.randrange(len(raw) + 1)
        for part in (raw[:cut], raw[cut:]):
            try:
                peer.socket.send(part)
            except ConnectionError:
                return
            self.turned.turn(1)


@pytest.fixture
def target(broker_served: Served) -> Iterator[Target]:
    with TurnedLoop(
        lambda frame, info: [], memory_bytes_max=MEMORY_BYTES, request_bytes_max=FRAME_BYTES
    ) as turned:
        fuzzed = Target(turned, broker_served)
        yield fuzzed
        for connection in list(turned.sockets.connections):
            connection.close()
        turned.turn()
        fuzzed.broker.close()


def largest_size() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_hostile_frames_are_refused_or_answered(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """A hundred thousand when thorough, a ninth of them in every run."""
    chance, every = random.Random(26), 1 if THOROUGH else 9
    with caplog.at_level(logging.ERROR):
        further, _ = target.dispatch(random_change(target.frames, chance) for _ in range(15_000 // every))
        before = largest_size()  # with what the first requests of each kind load
        tried, refused = target.dispatch(itertools.islice(systematic(target.frames), None, None, every))
        sent = target.send((random_change(target.frames, chance) for _ in range(4_000 // every)), chance)
    assert tried + further + sent >= 100_000 // every
    assert tried // 10 < refused < tried
    assert not caplog.records, [record.getMessage() for record in caplog.records][:10]
    assert largest_size() - before < GROWTH_BYTES_MAX


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 300)
def test_hostile_frames_for_minutes(
    target: Target, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, tried, sent = random.randrange(1 << 32), 0, 0
    chance, end = random.Random(seed), time.monotonic() + SECONDS
    with caplog.at_level(logging.ERROR):
        target.dispatch(random_change(target.frames, chance) for _ in range(15_000))
        before = largest_size()  # with what the first requests of each kind load
        while time.monotonic() < end:
            tried += target.dispatch(random_change(target.frames, chance) for _ in range(10_000))[0]
            sent += target.send((random_change(target.frames, chance) for _ in range(2_000)), chance)
            assert not caplog.records, (seed, [record.getMessage() for record in caplog.records][:10])
    growth = largest_size() - before
    with capsys.disabled():
        sys.stdout.write(
            f"\n{tried:,} frames dispatched, {sent:,} sent, in {SECONDS:.0f} s (seed {seed}); "
            f"the process grew by {growth >> 20} MiB\n"
        )
    assert growth < GROWTH_BYTES_MAX
