"""What answers as brokers in tests of ``broker.plain_client``: any bytes, or a partition with any batches."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from siltstone.broker.plain_client import Address
from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import read_header, response_header
from siltstone.broker.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from siltstone.broker.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from siltstone.broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

Answer = Callable[[bytes], bytes | None]
"""An answer's frame to a request's frame; None: the connection ends."""


@contextmanager
def peer(answer: Answer) -> Iterator[str]:
    """HOST:PORT of a process that answers each frame so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # A client that has read enough resets the connection.
            with connection, suppress(ConnectionError):
                while head := connection.recv(4, socket.MSG_WAITALL):
                    frame = connection.recv(*struct.unpack(">i", head), socket.MSG_WAITALL)
                    answered = answer(frame)
                    if answered is None:
                        break
                    connection.sendall(answered)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


TOPIC = "t"
NODE = 7


class PartitionAnswers:
    """Answers as the one broker of the topic ``t`` with one partition. ``start``, ``end``: its offsets;
    ``parts``: the records of each Fetch's response in turn, the last one again and again, or an error's code,
    or None: the connection ends; ``later_start``: its start once it has answered with a code."""

    def __init__(
        self, parts: list[bytes | int | None], *, start: int = 0, end: int = 1, later_start: int = 0
    ) -> None:
        self.parts, self.start, self.end, self.port = parts, start, end, 0
        self.later_start = later_start

    def __call__(self, frame: bytes) -> bytes | None:
        header = read_header(memoryview(frame))
        is_earliest = struct.pack(">q", -2) in frame
        answer = self._answer(header.api_key, is_earliest=is_earliest)
        if answer is None:
            return None
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        body = head + b"".join(map(bytes, codec.write(answer, header.api_version)))  # type: ignore[arg-type]
        return struct.pack(">i", len(body)) + body

    def _answer(self, key: int, *, is_earliest: bool) -> Message | None:
        if key == API_VERSIONS:
            known = {METADATA: (0, 13), LIST_OFFSETS: (1, 11), FETCH: (4, 12)}
            return ApiVersionsResponse(
                api_keys=tuple(
                    ApiVersion(api_key=api, min_version=low, max_version=high)
                    for api, (low, high) in known.items()
                )
            )
        if key == METADATA:
            node = MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)
            partitions = (MetadataResponsePartition(partition_index=0, leader_id=NODE),)
            topic = MetadataResponseTopic(name=TOPIC, partitions=partitions)
            return MetadataResponse(brokers=(node,), topics=(topic,))
        if key == LIST_OFFSETS:
            row = ListOffsetsPartitionResponse(offset=self.start if is_earliest else self.end)
            return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=TOPIC, partitions=(row,)),))
        part = self.parts[0] if len(self.parts) == 1 else self.parts.pop(0)
        if part is None:
            return None
        if isinstance(part, int):
            self.start = self.later_start
        data = PartitionData(error_code=part) if isinstance(part, int) else PartitionData(records=part)
        return FetchResponse(responses=(FetchableTopicResponse(topic=TOPIC, partitions=(data,)),))


@contextmanager
def partition_of(
    *parts: bytes | int | None, start: int = 0, end: int = 1, later_start: int = 0
) -> Iterator[str]:
    """HOST:PORT of what answers as ``PartitionAnswers``."""
    answers = PartitionAnswers(list(parts), start=start, end=end, later_start=later_start)
    with peer(answers) as address:
        answers.port = Address.parse(address).port
        yield address
