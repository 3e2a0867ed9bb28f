"""Requests and responses of DeleteTopics.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import ZERO_ID, Field, Message


class DeleteTopicState(Message, frozen=True):
    """The type of ``topics`` in DeleteTopicsRequest."""

    name: Annotated[str | None, Field("string", 6, nullable=6)] = None
    topic_id: Annotated[bytes, Field("uuid", 6)] = ZERO_ID


class DeleteTopicsRequest(Message, frozen=True):
    """The request in versions 1-6."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    topics: Annotated[tuple[DeleteTopicState, ...], Field("struct", 6, is_array=True)] = ()
    topic_names: Annotated[tuple[str, ...], Field("string", 0, last=5, is_array=True)] = ()
    timeout_ms: Annotated[int, Field("int32", 0)] = 0


class DeletableTopicResult(Message, frozen=True):
    """The type of ``responses`` in DeleteTopicsResponse."""

    name: Annotated[str | None, Field("string", 0, nullable=6)] = ""
    topic_id: Annotated[bytes, Field("uuid", 6)] = ZERO_ID
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 5, nullable=5)] = None


class DeleteTopicsResponse(Message, frozen=True):
    """The response in versions 1-6."""

    FIRST_FLEXIBLE: ClassVar[int] = 4

    throttle_time_ms: Annotated[int, Field("int32", 1)] = 0
    responses: Annotated[tuple[DeletableTopicResult, ...], Field("struct", 0, is_array=True)] = ()
