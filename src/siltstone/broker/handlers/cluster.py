"""ListPartitionReassignments 0: there is one broker, so no partition is on its way to another."""

from __future__ import annotations

from siltstone.broker.answers import Call
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """None, whatever is asked."""
    return ListPartitionReassignmentsResponse(error_message=None)
