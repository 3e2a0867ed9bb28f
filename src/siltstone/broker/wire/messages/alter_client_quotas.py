"""Requests and responses of AlterClientQuotas.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class EntityData(Message, frozen=True):
    """The type of ``entity`` in EntryData."""

    entity_type: Annotated[str, Field("string", 0)] = ""
    entity_name: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class OpData(Message, frozen=True):
    """The type of ``ops`` in EntryData."""

    key: Annotated[str, Field("string", 0)] = ""
    value: Annotated[float, Field("float64", 0)] = 0.0
    remove: Annotated[bool, Field("bool", 0)] = False


class EntryData(Message, frozen=True):
    """The type of ``entries`` in AlterClientQuotasRequest."""

    entity: Annotated[tuple[EntityData, ...], Field("struct", 0, is_array=True)] = ()
    ops: Annotated[tuple[OpData, ...], Field("struct", 0, is_array=True)] = ()


class AlterClientQuotasRequest(Message, frozen=True):
    """The request in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    entries: Annotated[tuple[EntryData, ...], Field("struct", 0, is_array=True)] = ()
    validate_only: Annotated[bool, Field("bool", 0)] = False


class ResponseEntryData(Message, frozen=True):
    """The type of ``entries`` in AlterClientQuotasResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    entity: Annotated[tuple[EntityData, ...], Field("struct", 0, is_array=True)] = ()


class AlterClientQuotasResponse(Message, frozen=True):
    """The response in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    entries: Annotated[tuple[ResponseEntryData, ...], Field("struct", 0, is_array=True)] = ()
