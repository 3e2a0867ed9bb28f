"""Metadata records as Kafka writes them, byte by byte: the writing side, apart from the product."""

from __future__ import annotations

import base64

NO_TAGS = b"\x00"


def varint(value: int) -> bytes:
    """An unsigned varint."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


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


def remove_topic(number: int) -> bytes:
    """RemoveTopicRecord."""
    return frame(9, number.to_bytes(16, "big"))


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    """ConfigRecord."""
    return frame(4, bytes([kind]) + text(resource) + text(name) + text(value))


def topic_config(resource: str, name: str, value: str | None) -> bytes:
    """ConfigRecord of a topic."""
    return config(2, resource, name, value)


BEGIN = frame(23, tags=varint(1) + varint(0) + varint(6) + text("named"))
END = frame(24)
ABORT = frame(25)
NO_OP = frame(20)
