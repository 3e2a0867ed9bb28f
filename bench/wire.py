"""``python -m bench.wire``: microseconds to read and write the broker's most frequent messages."""

from __future__ import annotations

import timeit

from siltstone.broker.wire import codec
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from siltstone.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

TOPIC_ID = bytes(range(16))
PARTITIONS = 100


def _microseconds(message: Message, version: int) -> tuple[float, float]:
    """(to read, to write) one message, the best of five."""
    data = memoryview(b"".join(bytes(part) for part in codec.write(message, version)))  # type: ignore[arg-type]
    reading = timeit.repeat(lambda: codec.read(type(message), version, data), number=2_000)
    writing = timeit.repeat(lambda: codec.write(message, version), number=2_000)
    return min(reading) / 2_000 * 1e6, min(writing) / 2_000 * 1e6


def main() -> None:
    """Print a row for each message."""
    sent = PartitionProduceData(records=bytes(16_000))
    stored = PartitionProduceResponse(base_offset=5)
    requested = tuple(FetchPartition(partition=number) for number in range(PARTITIONS))
    fetched = tuple(PartitionData(partition_index=number) for number in range(PARTITIONS))
    messages = {
        "Produce, 16 KB": ProduceRequest(
            topic_data=(TopicProduceData(topic_id=TOPIC_ID, partition_data=(sent,)),)
        ),
        "its answer": ProduceResponse(
            responses=(TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=(stored,)),)
        ),
        f"Fetch, {PARTITIONS} partitions": FetchRequest(
            topics=(FetchTopic(topic_id=TOPIC_ID, partitions=requested),)
        ),
        "its answer, without records": FetchResponse(
            responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=fetched),)
        ),
    }
    for name, message in messages.items():
        reading, writing = _microseconds(message, 13)
        print(f"{name:28} read {reading:6.1f} us   write {writing:6.1f} us")


if __name__ == "__main__":
    main()
