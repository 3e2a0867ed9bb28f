"""Keys and values of ``__consumer_offsets`` and ``__transaction_state``, encoded by hand after Kafka's
message definitions."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence

Places = Mapping[str, Sequence[int]]
"""Partitions by topic."""


def text(content: str | None) -> bytes:
    """A string of an inflexible version."""
    if content is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(content.encode())) + content.encode()


def data(content: bytes) -> bytes:
    """Bytes of an inflexible version."""
    return struct.pack(">i", len(content)) + content


def compact(content: str | None) -> bytes:
    """A string of a flexible version, of less than 127 bytes."""
    return b"\x00" if content is None else bytes([len(content) + 1]) + content.encode()


def key(kind: int, *names: str) -> bytes:
    """A key of this type, of these strings: the group, the member."""
    return struct.pack(">h", kind) + b"".join(map(text, names))


def commit_key(group: str, topic: str, partition: int) -> bytes:
    """The key of an offset commit."""
    return key(1, group, topic) + struct.pack(">i", partition)


def commit(offset: int, metadata: str = "") -> bytes:
    """The value of an offset commit, version 3."""
    return struct.pack(">hqi", 3, offset, 7) + text(metadata) + struct.pack(">q", 9)


def transaction(producer_id: int) -> bytes:
    """The value of a transactional id, version 0: one that is ongoing, of no partition yet."""
    return struct.pack(">hqhibiqq", 0, producer_id, 3, 60_000, 1, -1, 5, 5)


def assignment(places: Places) -> bytes:
    """What the leader of a group of consumers assigns to a member."""
    topics = (
        text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in places.items()
    )
    return struct.pack(">hi", 1, len(places)) + b"".join(topics) + struct.pack(">i", -1)


def group(members: Mapping[str, bytes], protocol_type: str = "consumer") -> bytes:
    """The metadata of a classic group, version 3: members with their encoded assignments."""
    encoded = (
        text(name)
        + text(None)
        + text("client")
        + text("/10.0.0.1")
        + struct.pack(">ii", 1, 2)
        + data(b"")
        + data(part)
        for name, part in members.items()
    )
    head = text(protocol_type) + struct.pack(">i", 4) + text("range") + text("m1") + struct.pack(">q", 5)
    return struct.pack(">h", 3) + head + struct.pack(">i", len(members)) + b"".join(encoded)


def consumer_epoch(epoch: int) -> bytes:
    """The epoch of a group of the consumer protocol (type 3), or of its target assignment (type 6), with the
    tagged number that both have since 4.1 and 4.3."""
    return struct.pack(">hi", 0, epoch) + b"\x01\x00\x08" + struct.pack(">q", 99)


def consumer_member(client: str) -> bytes:
    """A member's subscription (type 5), with a tag that is not known."""
    names = compact("i1") + compact(None) + compact(client) + compact("/10.0.0.2")
    topics = b"\x02" + compact("orders") + compact(None)
    return struct.pack(">h", 0) + names + topics + struct.pack(">i", 3) + compact(None) + b"\x01\x05\x01x"


def current_assignment(epoch: int, places: Mapping[uuid.UUID, Sequence[int]], state: int = 0) -> bytes:
    """A member's current assignment (type 8)."""
    return struct.pack(">hiib", 0, epoch, epoch - 1, state) + _by_id(places.items()) + _by_id(()) + b"\x00"


def _by_id(places: Iterable[tuple[uuid.UUID, Sequence[int]]]) -> bytes:
    topics = [
        topic.bytes + bytes([len(numbers) + 1]) + struct.pack(f">{len(numbers)}i", *numbers) + b"\x00"
        for topic, numbers in places
    ]
    return bytes([len(topics) + 1]) + b"".join(topics)
