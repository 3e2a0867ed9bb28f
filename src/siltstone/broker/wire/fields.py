"""Describes the fields of messages: the type of a field, and the versions that have it.

``wire.messages`` is generated from Kafka's own definitions by ``scripts/wire_messages.py``. One class serves
all versions of a message::

    class MetadataRequestTopic(Message, frozen=True):
        topic_id: Annotated[bytes, Field("uuid", 10)] = ZERO_ID
        name: Annotated[str | None, Field("string", 0, nullable=10)] = ""

A field that a version lacks has its default when it is read, and is left out when it is written.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec


class Slice(Protocol):
    """A range of a file that the kernel sends (``base.files.FileSlice``): the wire knows only its size."""

    size: int

    def __len__(self) -> int: ...


Records: TypeAlias = bytes | bytearray | memoryview | Slice
"""Batches as they are sent: bytes, or a range of a log's file."""
Piece: TypeAlias = Records
"""A part of what is sent."""
ZERO_ID = bytes(16)
"""The topic id that stands for no topic."""
EVERY_LATER = 32767
"""The last version of a field that no version has removed."""
NEVER = 32767
"""The first flexible version of a message that has none."""


class Field(NamedTuple):
    """A field of a message, from Kafka's definition of the message.

    ``kind``: Kafka's type, such as ``int32``, ``string``, ``uuid``, ``records``; ``struct`` for a message
    within the message. ``first``, ``last``: the versions that have it. ``nullable``: the first version in
    which it may be null, None: never. ``is_array``: an array of ``kind``. ``tag``: its number, if it is a
    tagged field from version ``tagged`` on (KIP-482).
    """

    kind: str
    first: int
    last: int = EVERY_LATER
    nullable: int | None = None
    is_array: bool = False
    tag: int | None = None
    tagged: int = 0


class Message(msgspec.Struct, frozen=True):
    """The root of all messages and of the structures in them. Arrays are tuples, ids 16 bytes.

    ``FIRST_FLEXIBLE``: the first version with compact sizes and tagged fields (KIP-482). For the structures
    in a message, the one of the request or the response counts.
    """

    FIRST_FLEXIBLE: ClassVar[int] = NEVER
