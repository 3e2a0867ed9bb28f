"""Requests and responses of DescribeCluster.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

from typing import Annotated, ClassVar

from siltstone.broker.wire.fields import Field, Message


class DescribeClusterRequest(Message, frozen=True):
    """The request in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    include_cluster_authorized_operations: Annotated[bool, Field("bool", 0)] = False
    endpoint_type: Annotated[int, Field("int8", 1)] = 1
    include_fenced_brokers: Annotated[bool, Field("bool", 2)] = False


class DescribeClusterBroker(Message, frozen=True):
    """The type of ``brokers`` in DescribeClusterResponse."""

    broker_id: Annotated[int, Field("int32", 0)] = 0
    host: Annotated[str, Field("string", 0)] = ""
    port: Annotated[int, Field("int32", 0)] = 0
    rack: Annotated[str | None, Field("string", 0, nullable=0)] = None
    is_fenced: Annotated[bool, Field("bool", 2)] = False


class DescribeClusterResponse(Message, frozen=True):
    """The response in versions 0-2."""

    FIRST_FLEXIBLE: ClassVar[int] = 0

    throttle_time_ms: Annotated[int, Field("int32", 0)] = 0
    error_code: Annotated[int, Field("int16", 0)] = 0
    error_message: Annotated[str | None, Field("string", 0, nullable=0)] = None
    endpoint_type: Annotated[int, Field("int8", 1)] = 1
    cluster_id: Annotated[str, Field("string", 0)] = ""
    controller_id: Annotated[int, Field("int32", 0)] = -1
    brokers: Annotated[tuple[DescribeClusterBroker, ...], Field("struct", 0, is_array=True)] = ()
    cluster_authorized_operations: Annotated[int, Field("int32", 0)] = -2147483648
