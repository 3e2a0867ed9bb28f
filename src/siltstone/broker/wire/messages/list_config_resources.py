"""Requests and responses of ListConfigResources.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ListConfigResourcesRequest(Message, frozen=True):
    """The request in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    resource_types: Annotated[tuple[int, ...], Field("int8", 1, is_array=True)] = ()


class ConfigResource(Message, frozen=True):
    """The type of ``configResources`` in ListConfigResourcesResponse."""

    resource_name: Annotated[str, Field("string", 0)] = ""
    resource_type: Annotated[int, Field("int8", 1)] = 16


class ListConfigResourcesResponse(Message, frozen=True):
    """The response in versions 0-1."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    config_resources: Annotated[tuple[ConfigResource, ...], Field("struct", 0, is_array=True)] = ()
