"""Requests and responses of ApiVersions.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class ApiVersionsRequest(Message, frozen=True):
    """The request in versions 0-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 3

    client_software_name: Annotated[str, Field("string", 3)] = ""
    client_software_version: Annotated[str, Field("string", 3)] = ""


class ApiVersion(Message, frozen=True):
    """The type of ``apiKeys`` in ApiVersionsResponse."""

    api_key: Annotated[int, Field("int16", 0)] = 0
    min_version: Annotated[int, Field("int16", 0)] = 0
    max_version: Annotated[int, Field("int16", 0)] = 0


class SupportedFeatureKey(Message, frozen=True):
    """The type of ``supportedFeatures`` in ApiVersionsResponse."""

    name: Annotated[str, Field("string", 3)] = ""
    min_version: Annotated[int, Field("int16", 3)] = 0
    max_version: Annotated[int, Field("int16", 3)] = 0


class FinalizedFeatureKey(Message, frozen=True):
    """The type of ``finalizedFeatures`` in ApiVersionsResponse."""

    name: Annotated[str, Field("string", 3)] = ""
    max_version_level: Annotated[int, Field("int16", 3)] = 0
    min_version_level: Annotated[int, Field("int16", 3)] = 0


class ApiVersionsResponse(Message, frozen=True):
    """The response in versions 0-4."""

    FIRST_FLEXIBLE: ClassVar[int] = 3

    error_code: Annotated[int, Field("int16", 0)] = 0
    api_keys: Annotated[tuple[ApiVersion, ...], Field("struct", 0, is_array=True)] = ()
    throttle_time_ms: Annotated[int, Field("int32", 1)] = 0
    supported_features: Annotated[
        tuple[SupportedFeatureKey, ...], Field("struct", 3, is_array=True, tag=0, tagged=3)
    ] = ()
    finalized_features_epoch: Annotated[int, Field("int64", 3, tag=1, tagged=3)] = -1
    finalized_features: Annotated[
        tuple[FinalizedFeatureKey, ...], Field("struct", 3, is_array=True, tag=2, tagged=3)
    ] = ()
    zk_migration_ready: Annotated[bool, Field("bool", 3, tag=3, tagged=3)] = False
