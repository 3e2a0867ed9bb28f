"""A raw client: produce requests of one record, one after another or several in flight.

The client is the same for both brokers, and cheap: the frames are made before the clock runs, an answer is
read but not decoded beyond its error code.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

from siltstone.base.records.build import NewBatchHeader, Spans, build_batch
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import PRODUCE
from siltstone.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSION = 9
"""A version with topic names, so that no metadata is needed."""
_HEADER = struct.Struct(">ihhih")


def produce_frame(topic: str, value_bytes: int = 100, acks: int = 1) -> bytes:
    """A produce request of one record, with its length."""
    batch = build_batch(
        NewBatchHeader(),
        offset=np.zeros(1, np.int64),
        timestamp=np.full(1, int(time.time() * 1000)),
        keys=Spans.of([b"key"]),
        values=Spans.of([bytes(value_bytes)]),
    )
    partition = PartitionProduceData(index=0, records=batch.tobytes())
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=(partition,)),)
    )
    body = b"".join(bytes(part) for part in codec.write(request, VERSION))  # type: ignore[arg-type]
    return _HEADER.pack(len(body) + 11, PRODUCE, VERSION, 7, -1) + b"\0" + body


def requests_per_second(address: str, topic: str, *, in_flight: int, seconds: float) -> float:
    """Answered produce requests a second, with so many in flight."""
    host, _, port = address.partition(":")
    frame = produce_frame(topic)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb", buffering=1 << 16)
        connection.sendall(frame * in_flight)
        _check(_answer(answers))
        connection.sendall(frame)
        started = time.perf_counter()
        end, count = started + seconds, 0
        while time.perf_counter() < end:
            for _ in range(in_flight):
                _answer(answers)
            connection.sendall(frame * in_flight)
            count += in_flight
        elapsed = time.perf_counter() - started
        for _ in range(in_flight):
            _answer(answers)
    return count / elapsed


def fill(address: str, topic: str, *, count: int, value_bytes: int) -> None:
    """Produce so many records of a size, one after another."""
    host, _, port = address.partition(":")
    frame = produce_frame(topic, value_bytes)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        answers = connection.makefile("rb", buffering=1 << 16)
        for _ in range(count):
            connection.sendall(frame)
            _check(_answer(answers))


def latencies_ms(address: str, topic: str, *, rate: float, seconds: float) -> list[float]:
    """The times from sending a produce request to its answer, in order of size, at so many requests a second.

    A request is due by the clock, whether the one before was slow or not: its time counts from when it was
    due.
    """
    host, _, port = address.partition(":")
    frame, latencies = produce_frame(topic), list[float]()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb", buffering=1 << 16)
        connection.sendall(frame)
        _check(_answer(answers))
        started = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = started + number / rate
            while (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            connection.sendall(frame)
            _answer(answers)
            latencies.append((time.perf_counter() - due) * 1_000)
    return sorted(latencies)


def _answer(answers: socket.SocketIO) -> bytes:
    size = int.from_bytes(answers.read(4), "big")
    return answers.read(size)


def _check(answer: bytes) -> None:
    response = codec.read(ProduceResponse, VERSION, memoryview(answer), 5)
    code = response.responses[0].partition_responses[0].error_code
    assert code == 0, f"the broker refuses the record: {code}"
