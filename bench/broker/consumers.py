"""Many consumers on raw sockets, cheap enough to have a thousand: ``python -m bench.broker.consumers``.

::

    waiting   connections whose fetches find nothing and wait, each for half a second, as consumers by default
    busy      connections that fetch what a producer sends, as it comes
    reading   connections that read a topic from the start to its end, as fast as they can

They are coroutines of one process beside the bench's. A fetch has version 4, one topic and one partition, so
that the places of what is read of a response are known.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import FETCH
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

VERSION = 4
WAIT_MS, MAX_BYTES = 500, 1 << 20
_HEADER = struct.Struct(">ihhih")
_BATCH = struct.Struct(">qi")
_DELTA_AT, _BATCH_HEAD = 23, 61


class Fetches:
    """Fetch requests of one partition, and what is read of their responses::

    correlation id 4 | throttle 4 | topics 4 | name 2 + n | partitions 4 | partition 4 | error 2
    | high watermark 8 | last stable offset 8 | aborted 4 | size of records 4 | batches
    """

    def __init__(self, topic: str) -> None:
        offset = 0x0102030405060708
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MAX_BYTES)
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        )
        body = b"".join(bytes(part) for part in codec.write(request, VERSION))  # type: ignore[arg-type]
        frame = _HEADER.pack(len(body) + 10, FETCH, VERSION, 7, -1) + body
        self._before, self._after = frame.split(struct.pack(">q", offset))
        self._error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        self._records_at = self._error_at + 2 + 8 + 8 + 4 + 4

    def frame(self, offset: int) -> bytes:
        """A request for what is at an offset."""
        return self._before + struct.pack(">q", offset) + self._after

    def end_of(self, response: bytes, offset: int) -> int:
        """The offset after the whole batches of a response, ``offset`` if it has none."""
        (error,) = struct.unpack_from(">h", response, self._error_at)
        assert error == 0, f"the broker refuses a fetch: {error}"
        position = self._records_at
        while position + _BATCH_HEAD <= len(response):
            base, size = _BATCH.unpack_from(response, position)
            if position + _BATCH.size + size > len(response):
                break
            offset = base + int.from_bytes(response[position + _DELTA_AT : position + _DELTA_AT + 4]) + 1
            position += _BATCH.size + size
        return offset


async def fetch_for_ever(address: str, fetches: Fetches) -> None:
    """One consumer: it fetches from the topic's start on, until it is cancelled."""
    async for _ in _responses(address, fetches):
        pass


async def read_all(address: str, fetches: Fetches, end: int) -> int:
    """Read up to an offset; the bytes of the responses."""
    size = 0
    async for count, offset in _responses(address, fetches):
        size += count
        if offset >= end:
            break
    return size


async def _responses(address: str, fetches: Fetches) -> AsyncIterator[tuple[int, int]]:
    """(bytes, next offset) of each response."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=4 * MAX_BYTES)
    try:
        offset = 0
        while True:
            writer.write(fetches.frame(offset))
            size = int.from_bytes(await reader.readexactly(4))
            offset = fetches.end_of(await reader.readexactly(size), offset)
            yield size, offset
    finally:
        writer.close()


async def _attend(address: str, topic: str, waiting: int, busy: int) -> None:
    quiet, talked = Fetches("quiet"), Fetches(topic)
    consumers = [
        asyncio.ensure_future(fetch_for_ever(address, fetches))
        for fetches in itertools.chain([quiet] * waiting, [talked] * busy)
    ]
    print("attending", flush=True)
    await asyncio.gather(*consumers)


async def _read(address: str, topic: str, end: int, clients: int) -> None:
    fetches, started = Fetches(topic), time.perf_counter()
    sizes = await asyncio.gather(*(read_all(address, fetches, end) for _ in range(clients)))
    print(sum(sizes) / (time.perf_counter() - started), flush=True)


@contextlib.contextmanager
def attending(address: str, topic: str, waiting: int, busy: int) -> Iterator[None]:
    """So many consumers of the topic ``quiet``, and of ``topic``, within the block."""
    command = [sys.executable, "-m", "bench.broker.consumers", address, topic]
    options = ["--waiting", str(waiting), "--busy", str(busy)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"attending\n"
        time.sleep(2)  # until all are connected
        yield
        assert process.poll() is None, "the consumers have ended"
    finally:
        process.terminate()
        process.wait()


def bytes_per_second(address: str, topic: str, end: int, clients: int) -> float:
    """Bytes that clients read a second together, each of them the whole topic, which ends at ``end``."""
    command = [sys.executable, "-m", "bench.broker.consumers", address, topic]
    options = ["--end", str(end), "--clients", str(clients)]
    completed = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return float(completed.stdout)


def main() -> None:
    """The process of the consumers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("topic")
    for name in ("waiting", "busy", "end", "clients"):
        parser.add_argument(f"--{name}", type=int, default=0)
    flags = parser.parse_args()
    if flags.clients:
        asyncio.run(_read(flags.address, flags.topic, flags.end, flags.clients))
    else:
        asyncio.run(_attend(flags.address, flags.topic, flags.waiting, flags.busy))


if __name__ == "__main__":
    main()
