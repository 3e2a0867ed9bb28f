"""The handler of InitProducerId (versions 0 to 5): ids for idempotent producers (Kafka's
``TransactionCoordinator``).

A request without a transactional id gets a new producer id with epoch 0, whatever id and epoch it has, as in
Kafka. A request with one gets COORDINATOR_NOT_AVAILABLE: this broker has no transaction coordinator. (It does
not announce FindCoordinator either, so transactional clients fail before they send this request.)
"""

from __future__ import annotations

from collections.abc import Awaitable

from siltstone.broker.errors import Code, code_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Answers with a new producer id; in the pool if a new block of ids has to be written first."""
    code = _refusal_code(request)
    if code:
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    producer_id = broker.producer_id_at_hand()
    return _from_next_block(broker) if producer_id is None else _with_id(producer_id)


def _refusal_code(request: InitProducerIdRequest) -> int:
    """The error code for a request that gets no id, 0 for others. (A producer's first request has the id and
    the epoch -1; a later one has those that the producer got.)"""
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return Code.INVALID_REQUEST
    return Code.NONE if request.transactional_id is None else Code.COORDINATOR_NOT_AVAILABLE


def _with_id(producer_id: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _from_next_block(broker: Broker) -> InitProducerIdResponse:
    try:
        return _with_id(await broker.in_pool(broker.next_producer_id))
    except Exception as error:
        return InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)
