"""Metadata records as Kafka writes them, byte by byte: the writing side, apart from the product."""

from __future__ import annotations

import base64

NO_TAGS = b"\x00"


def varint(value: int) -> bytes:
    """An unsigned varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def text(value: str | None) -> bytes:
    """A compact, nullable string."""
    if value is None:
        return varint(0)
    encoded = value.encode()
    return varint(len(encoded) + 1) + encoded


def frame(api_key: int, body: bytes = b"", *, version: int = 0, tags: bytes = NO_TAGS) -> bytes:
    """A record of any kind."""
    return varint(1) + varint(api_key) + varint(version) + body + tags


def topic_id(number: int) -> str:
    """An id as partition.metadata has it."""
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).rstrip(b"=").decode()


def topic(name: str, number: int) -> bytes:
    """TopicRecord."""
    return frame(2, text(name) + number.to_bytes(16, "big"))


def int32s(numbers: list[int]) -> bytes:
    """A compact array of int32."""
    return varint(len(numbers) + 1) + b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)


def partition(index: int, topic_number: int, replicas: list[int], isr: list[int], leader: int) -> bytes:
    """PartitionRecord, version 0."""
    head = index.to_bytes(4, "big") + topic_number.to_bytes(16, "big")
    lists = int32s(replicas) + int32s(isr) + int32s([]) + int32s([])
    epochs = (3).to_bytes(4, "big") + (4).to_bytes(4, "big")
    return frame(3, head + lists + leader.to_bytes(4, "big", signed=True) + epochs)


def partition_change(index: int, topic_number: int, changes: dict[int, bytes]) -> bytes:
    """PartitionChangeRecord; ``changes``: its tagged fields by their tags."""
    tags = [varint(tag) + varint(len(value)) + value for tag, value in sorted(changes.items())]
    head = index.to_bytes(4, "big") + topic_number.to_bytes(16, "big")
    return frame(5, head, tags=varint(len(tags)) + b"".join(tags))


def remove_topic(number: int) -> bytes:
    """RemoveTopicRecord."""
    return frame(9, number.to_bytes(16, "big"))


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    """ConfigRecord."""
    return frame(4, bytes([kind]) + text(resource) + text(name) + text(value))


def topic_config(resource: str, name: str, value: str | None) -> bytes:
    """ConfigRecord of a topic."""
    return config(2, resource, name, value)


def producer_ids(next_id: int, *, version: int = 0) -> bytes:
    """ProducerIdsRecord."""
    ids = (1).to_bytes(4, "big") + (9).to_bytes(8, "big") + next_id.to_bytes(8, "big", signed=True)
    return frame(15, ids, version=version)


BEGIN = frame(23, tags=varint(1) + varint(0) + varint(6) + text("named"))
END = frame(24)
ABORT = frame(25)
NO_OP = frame(20)
