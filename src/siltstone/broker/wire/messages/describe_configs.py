"""Requests and responses of DescribeConfigs.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DescribeConfigsResource(Message, frozen=True):
    """The type of ``resources`` in DescribeConfigsRequest."""

    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""
    configuration_keys: Annotated[tuple[str, ...] | None, Field("string", 0, nullable=0, is_array=True)] = ()


class DescribeConfigsRequest(Message, frozen=True):
    """The request in versions 1-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    resources: Annotated[tuple[DescribeConfigsResource, ...], Field("struct", 0, is_array=True)] = ()
    include_synonyms: Annotated[bool, Field("bool", 1)] = False
    include_documentation: Annotated[bool, Field("bool", 3)] = False


class DescribeConfigsSynonym(Message, frozen=True):
    """The type of ``synonyms`` in DescribeConfigsResourceResult."""

    name: Annotated[str, Field("string", 1)] = ""
    value: Annotated[str | None, Field("string", 1, nullable=0)] = ""
    source: Annotated[int, Field("int8", 1)] = 0


class DescribeConfigsResourceResult(Message, frozen=True):
    """The type of ``configs`` in DescribeConfigsResult."""

    name: Annotated[str, Field("string", 0)] = ""
    value: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    read_only: Annotated[bool, Field("bool", 0)] = False
    config_source: Annotated[int, Field("int8", 1)] = -1
    is_sensitive: Annotated[bool, Field("bool", 0)] = False
    synonyms: Annotated[tuple[DescribeConfigsSynonym, ...], Field("struct", 1, is_array=True)] = ()
    config_type: Annotated[int, Field("int8", 3)] = 0
    documentation: Annotated[str | None, Field("string", 3, nullable=0)] = ""


class DescribeConfigsResult(Message, frozen=True):
    """The type of ``results`` in DescribeConfigsResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""
    configs: Annotated[tuple[DescribeConfigsResourceResult, ...], Field("struct", 0, is_array=True)] = ()


class DescribeConfigsResponse(Message, frozen=True):
    """The response in versions 1-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    results: Annotated[tuple[DescribeConfigsResult, ...], Field("struct", 0, is_array=True)] = ()
