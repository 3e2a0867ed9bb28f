"""InitProducerId."""

from __future__ import annotations

import pytest

from siltstone.broker.handlers.producers import init_producer_id
from siltstone.broker.producer_ids import BLOCK
from siltstone.broker.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.broker import ServedBroker
from tests.support.log.managed import failing


def test_every_call_gets_a_new_id(broker: ServedBroker) -> None:
    requests = [
        InitProducerIdRequest(transactional_id=None),
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1),
        InitProducerIdRequest(transactional_id=None, producer_id=0, producer_epoch=0),
    ]
    answers = [broker.call(init_producer_id, request, 4) for request in requests]
    assert answers == [InitProducerIdResponse(producer_id=number, producer_epoch=0) for number in range(3)]


def test_the_next_block_begins_where_one_ends(broker: ServedBroker) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    ids = [broker.call(init_producer_id, request, 4).producer_id for _ in range(BLOCK + 2)]
    assert ids == list(range(BLOCK + 2))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerIdRequest(transactional_id=""), 42),
        (InitProducerIdRequest(transactional_id=None, producer_id=5), 42),
        (InitProducerIdRequest(transactional_id="x", producer_epoch=5), 42),
        (InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 15),
    ],
    ids=["empty", "id without epoch", "epoch without id", "no coordinator"],
)
def test_a_request_that_is_refused_gets_no_producer_id(
    broker: ServedBroker, request_: InitProducerIdRequest, code: int
) -> None:
    answer = broker.call(init_producer_id, request_, 4)
    assert answer == InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def test_a_full_disk_gives_no_producer_id(broker: ServedBroker) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    with failing(broker.manager.directories[0].path, "create", error=28):
        answer = broker.call(init_producer_id, request, 4)
    assert (answer.error_code, answer.producer_id) == (56, -1)
    assert broker.call(init_producer_id, request, 4).producer_id == 0
