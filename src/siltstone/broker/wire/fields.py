"""The classes from which the messages of Kafka's protocol are made: a field's type, and the versions that
have it.

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
    """A range of a file (``base.files.FileSlice``), which the operating system sends (``sendfile``).
    ``size``: its bytes, all that this package needs of it."""

    size: int

    def __len__(self) -> int: ...


Records: TypeAlias = bytes | bytearray | memoryview | Slice
"""Batches as they are sent: bytes, or a range of a log's file."""
MessagePart: TypeAlias = Records
"""A part of an encoded message: bytes of it, or the records of a field, not copied."""
ZERO_ID = bytes(16)
"""The topic id that stands for no topic."""
EVERY_LATER = 32767
"""``Field.last`` of a field that no version has removed: the largest int16."""
NEVER = 32767
"""``Message.FIRST_FLEXIBLE`` of a message without flexible versions: the largest int16."""


class Field(NamedTuple):
    """A field of a message, from Kafka's definition of the message.

    ``kind``: Kafka's type, such as ``int32``, ``string``, ``uuid``, ``records``; ``struct`` for a structure
    of fields. ``first``, ``last``: the versions that have it. ``nullable``: the first version in
    which it may be null, None: never. ``is_array``: an array of ``kind``. ``tag``: its number, if it is a
    tagged field from version ``tagged`` on (KIP-482); None if it never is.
    """

    kind: str
    first: int
    last: int = EVERY_LATER
    nullable: int | None = None
    is_array: bool = False
    tag: int | None = None
    tagged: int = 0


class Message(msgspec.Struct, frozen=True):
    """The base class of requests, responses and the structures in them. Arrays are tuples, uuids 16 bytes.

    ``FIRST_FLEXIBLE``: the first version of a request or response with compact sizes and tagged fields
    (KIP-482). A structure has the format of the request or response that it is in; the ``FIRST_FLEXIBLE`` of
    its own class has no effect.
    """

    FIRST_FLEXIBLE: ClassVar[int] = NEVER
