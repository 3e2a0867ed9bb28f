"""Requests and responses of UpdateFeatures.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class FeatureUpdateKey(Message, frozen=True):
    """The type of ``featureUpdates`` in UpdateFeaturesRequest."""

    feature: Annotated[str, Field("string", 0)] = ""
    max_version_level: Annotated[int, Field("int16", 0)] = 0
    allow_downgrade: Annotated[bool, Field("bool", 0, last=0)] = False
    upgrade_type: Annotated[int, Field("int8", 1)] = 1


class UpdateFeaturesRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    timeout_ms: Annotated[int, Field("int32", 0)] = 60000
    feature_updates: Annotated[tuple[FeatureUpdateKey, ...], Field("struct", 0, is_array=True)] = ()
    validate_only: Annotated[bool, Field("bool", 1)] = False


class UpdatableFeatureResult(Message, frozen=True):
    """The type of ``results`` in UpdateFeaturesResponse."""

    feature: Annotated[str, Field("string", 0)] = ""
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""


class UpdateFeaturesResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    results: Annotated[tuple[UpdatableFeatureResult, ...], Field("struct", 0, last=1, is_array=True)] = ()
