"""Requests and responses of InitProducerId.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class InitProducerIdRequest(Message, frozen=True):
    """The request in versions 0-6, of which 6 is not stable and not announced."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    transactional_id: Annotated[str | None, Field("string", 0, nullable=0)] = ""
    transaction_timeout_ms: Annotated[int, Field("int32", 0)] = 0
    producer_id: Annotated[int, Field("int64", 3)] = -1
    producer_epoch: Annotated[int, Field("int16", 3)] = -1
    enable2_pc: Annotated[bool, Field("bool", 6)] = False
    keep_prepared_txn: Annotated[bool, Field("bool", 6)] = False


class InitProducerIdResponse(Message, frozen=True):
    """The response in versions 0-6."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    producer_id: Annotated[int, Field("int64", 0)] = -1
    producer_epoch: Annotated[int, Field("int16", 0)] = 0
    ongoing_txn_producer_id: Annotated[int, Field("int64", 6)] = -1
    ongoing_txn_producer_epoch: Annotated[int, Field("int16", 6)] = -1
