"""InitProducerId, versions 0 to 5: ids for idempotent producers (Kafka's ``TransactionCoordinator``).

Without a transactional id every call gets a new producer id with epoch 0, whatever id and epoch it names.
With one, COORDINATOR_NOT_AVAILABLE: this broker has no transaction coordinator yet. (It does not announce
FindCoordinator either, so clients say so before they come here.)
"""

from __future__ import annotations

from collections.abc import Awaitable

from siltstone.broker.answers import Call
from siltstone.broker.errors import Code, code_of
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """A new producer id; in the pool if a block of ids has to be written first."""
    refused = _refused(request)
    if refused:
        return InitProducerIdResponse(error_code=refused, producer_epoch=-1)
    producer_id = broker.producer_id_at_hand()
    return _from_next_block(broker) if producer_id is None else _given(producer_id)


def _refused(request: InitProducerIdRequest) -> int:
    """Kafka's code for a request that gets no id, else 0."""
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return Code.INVALID_REQUEST
    return Code.NONE if request.transactional_id is None else Code.COORDINATOR_NOT_AVAILABLE


def _given(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _from_next_block(broker: Broker) -> InitProducerIdResponse:
    try:
        return _given(await broker.in_pool(broker.next_producer_id))
    except Exception as error:
        return InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)
