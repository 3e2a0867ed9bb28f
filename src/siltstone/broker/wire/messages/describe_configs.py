"""Requests and responses of DescribeConfigs. Made by ``scripts/wire_messages.py``."""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DescribeConfigsResource(Message, frozen=True):
    """``resources`` of DescribeConfigsRequest."""

    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""
    configuration_keys: Annotated[tuple[str, ...] | None, Field("string", 0, nullable=0, is_array=True)] = ()


class DescribeConfigsRequest(Message, frozen=True):
    """Versions 1-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    resources: Annotated[tuple[DescribeConfigsResource, ...], Field("struct", 0, is_array=True)] = ()
    include_synonyms: Annotated[bool, Field("bool", 1)] = False
    include_documentation: Annotated[bool, Field("bool", 3)] = False


class DescribeConfigsSynonym(Message, frozen=True):
    """``synonyms`` of DescribeConfigsResourceResult."""

    name: Annotated[str, Field("string", 1)] = ""
    value: Annotated[str | None, Field("string", 1, nullable=0)] = ""
    source: Annotated[int, Field("int8", 1)] = 0


class DescribeConfigsResourceResult(Message, frozen=True):
    """``configs`` of DescribeConfigsResult."""

    name: Annotated[str, Field("string", 0)] = ""
    value: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    read_only: Annotated[bool, Field("bool", 0)] = False
    config_source: Annotated[int, Field("int8", 1)] = -1
    is_sensitive: Annotated[bool, Field("bool", 0)] = False
    synonyms: Annotated[tuple[DescribeConfigsSynonym, ...], Field("struct", 1, is_array=True)] = ()
    config_type: Annotated[int, Field("int8", 3)] = 0
    documentation: Annotated[str | None, Field("string", 3, nullable=0)] = ""


class DescribeConfigsResult(Message, frozen=True):
    """``results`` of DescribeConfigsResponse."""

    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    resource_type: Annotated[int, Field("int8", 0)] = 0
    resource_name: Annotated[str, Field("string", 0)] = ""
    configs: Annotated[tuple[DescribeConfigsResourceResult, ...], Field("struct", 0, is_array=True)] = ()


class DescribeConfigsResponse(Message, frozen=True):
    """Versions 1-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    results: Annotated[tuple[DescribeConfigsResult, ...], Field("struct", 0, is_array=True)] = ()
