"""Requests and responses of AlterConfigs.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class AlterableConfig(Message, frozen=True):
    """The type of ``configs`` in AlterConfigsResource."""

    name: Annotated[str, Field("string", 0)] = ""
    value: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class AlterConfigsResource(Message, frozen=True):
    """The type of ``resources`` in AlterConfigsRequest."""

    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""
    configs: Annotated[tuple[AlterableConfig, ...], Field("struct", 0, is_array=True)] = ()


class AlterConfigsRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    resources: Annotated[tuple[AlterConfigsResource, ...], Field("struct", 0, is_array=True)] = ()
    validate_only: Annotated[bool, Field("bool", 0)] = False


class AlterConfigsResourceResponse(Message, frozen=True):
    """The type of ``responses`` in AlterConfigsResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""


class AlterConfigsResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    responses: Annotated[tuple[AlterConfigsResourceResponse, ...], Field("struct", 0, is_array=True)] = ()
