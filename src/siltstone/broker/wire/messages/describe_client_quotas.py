"""Requests and responses of DescribeClientQuotas.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ComponentData(Message, frozen=True):
    """The type of ``components`` in DescribeClientQuotasRequest."""

    entity_type: Annotated[str, Field("string", 0)] = ""
    match_type: Annotated[int, Field("int8", 0)] = 0
    match: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class DescribeClientQuotasRequest(Message, frozen=True):
    """The request in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    components: Annotated[tuple[ComponentData, ...], Field("struct", 0, is_array=True)] = ()
    strict: Annotated[bool, Field("bool", 0)] = False


class EntityData(Message, frozen=True):
    """The type of ``entity`` in EntryData."""

    entity_type: Annotated[str, Field("string", 0)] = ""
    entity_name: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class ValueData(Message, frozen=True):
    """The type of ``values`` in EntryData."""

    key: Annotated[str, Field("string", 0)] = ""
    value: Annotated[float, Field("float64", 0)] = 0.0


class EntryData(Message, frozen=True):
    """The type of ``entries`` in DescribeClientQuotasResponse."""

    entity: Annotated[tuple[EntityData, ...], Field("struct", 0, is_array=True)] = ()
    values: Annotated[tuple[ValueData, ...], Field("struct", 0, is_array=True)] = ()


class DescribeClientQuotasResponse(Message, frozen=True):
    """The response in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    entries: Annotated[tuple[EntryData, ...] | None, Field("struct", 0, nullable=0, is_array=True)] = ()
