"""From frames to handlers and back: what is answered, what closes the connection, and what a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from siltstone.base.errors import InvalidTopicError
from siltstone.broker.counts import Counts
from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.dispatch import HANDLERS, Dispatcher, Handler
from siltstone.broker.quotas import QuotaManager
from siltstone.broker.request_context import (
    CLOSE,
    NO_RESPONSE,
    ConnectionInfo,
    NoResponse,
    RefusedFrameError,
    RequestContext,
)
from siltstone.broker.wire.apis import (
    API_VERSIONS,
    APIS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
)
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.api_versions import ApiVersionsRequest
from siltstone.broker.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from siltstone.broker.wire.messages.list_offsets import ListOffsetsRequest
from tests.support.turned_loop import LISTENER
from tests.support.wire_client import read_response, request_frame

INFO = ConnectionInfo(number=7, listener=LISTENER, peer="192.0.2.1")
REQUEST = InitProducerIdRequest(transactional_id=None)


class Counting:
    """What dispatch needs of a broker, beside what handlers do."""

    def __init__(self) -> None:
        self.counts, self.quotas = Counts(), QuotaManager(lambda: 0.0)


def dispatch(handler: Handler, request: Message = REQUEST, version: int = 5, **header: Any) -> bytes:
    """The bytes that answer a request, its length checked and left out."""
    handlers = {INIT_PRODUCER_ID: handler, LIST_OFFSETS: handler}
    dispatcher = Dispatcher(Counting(), handlers)  # type: ignore[arg-type]

    async def ask() -> Any:
        answer = dispatcher.answer(bytearray(request_frame(request, version, **header)[4:]), INFO)
        return answer if isinstance(answer, list) else await answer

    answer = asyncio.run(ask())
    data = b"".join(map(bytes, answer))
    assert not data or int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


def test_a_handler_gets_the_message_and_where_it_came_from() -> None:
    calls: list[tuple[Message, RequestContext]] = []

    def handler(broker: object, request: Message, context: RequestContext) -> Message:
        calls.append((request, context))
        return InitProducerIdResponse(producer_id=1 << 40)

    for version in range(6):
        data = dispatch(handler, version=version, correlation_id=version - 1, client_id=None)
        assert data[:4] == (version - 1).to_bytes(4, "big", signed=True)
        assert read_response(REQUEST, version, data).producer_id == 1 << 40
        assert calls[-1] == (
            REQUEST,
            RequestContext(
                api_key=INIT_PRODUCER_ID,
                version=version,
                correlation_id=version - 1,
                client_id=None,
                connection=INFO,
            ),
        )


def failing(error: Exception, *, later: str) -> Handler:
    def handler(broker: object, request: Message, context: RequestContext) -> Message:
        raise error

    async def handler_later(broker: object, request: Message, context: RequestContext) -> Message:
        await asyncio.sleep(0)
        raise error

    def handler_delayed(broker: object, request: Message, context: RequestContext) -> DelayedResponse:
        delayed = DelayedResponse()
        asyncio.get_running_loop().call_soon(lambda: delayed.complete(error))
        return delayed

    return {"": handler, "a coroutine": handler_later, "a delayed response": handler_delayed}[later]


@pytest.mark.parametrize("later", ["", "a coroutine", "a delayed response"])
def test_a_failure_has_a_code_where_the_answer_has_a_place_for_it(
    later: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = failing(InvalidTopicError("bad"), later=later)
    assert read_response(REQUEST, 5, dispatch(known)).error_code == 17
    assert not caplog.records
    unknown = failing(ZeroDivisionError(), later=later)
    assert read_response(REQUEST, 5, dispatch(unknown)).error_code == -1
    assert caplog.records
    with pytest.raises(RefusedFrameError, match="ListOffsets failed"):
        dispatch(unknown, ListOffsetsRequest(), 1)


def test_no_answer_is_sent_where_none_is_wanted() -> None:
    def returning(what: NoResponse) -> Handler:
        async def later() -> NoResponse:
            return what

        return lambda broker, request, context: later() if context.version == 1 else what

    for version in (0, 1):
        assert dispatch(returning(NO_RESPONSE), version=version) == b""
        with pytest.raises(RefusedFrameError):
            dispatch(returning(CLOSE), version=version)


def answer(frame: bytes) -> list[Any] | Awaitable[list[Any]]:
    return Dispatcher(Counting(), {INIT_PRODUCER_ID: _never}).answer(bytearray(frame), INFO)  # type: ignore[arg-type]


def _never(broker: object, request: Message, context: RequestContext) -> Message:
    raise AssertionError("no handler is to be called")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "ends within its header"),
        (bytes.fromhex("0016 0005 00000000 0004 6162"), "ends within the client id"),
        (bytes.fromhex("270f 0000 00000000 ffff"), "has no API 9999"),
        (bytes.fromhex("0003 0000 00000000 ffff 00000000"), "has no API 3"),
        (bytes.fromhex("0016 0006 00000000 ffff 00"), "no version 6 of InitProducerId"),
        (bytes.fromhex("0016 ffff 00000000 ffff"), "no version -1 of InitProducerId"),
        (bytes.fromhex("0016 0005 00000000 ffff 00 05 6162"), "4 bytes, 2 are left"),
        (request_frame(REQUEST, 5)[4:-3], "the request ends within"),
        (request_frame(REQUEST, 0)[4:-1], "the request ends within"),
    ],
)
def test_what_cannot_be_read_or_is_not_here_closes_the_connection(frame: bytes, reason: str) -> None:
    with pytest.raises(RefusedFrameError, match=reason):
        answer(frame)


def test_bytes_behind_a_body_are_ignored() -> None:
    handler = lambda broker, request, context: InitProducerIdResponse(producer_id=9)  # noqa: E731
    dispatcher = Dispatcher(Counting(), {INIT_PRODUCER_ID: handler})  # type: ignore[arg-type]
    parts = dispatcher.answer(bytearray(request_frame(REQUEST, 5)[4:] + b"more"), INFO)
    assert isinstance(parts, list)
    assert read_response(REQUEST, 5, b"".join(map(bytes, parts))[4:]).producer_id == 9  # type: ignore[arg-type]


def test_only_what_has_a_handler_is_announced() -> None:
    data = dispatch(_never, ApiVersionsRequest(), 0)
    keys = {row.api_key for row in read_response(ApiVersionsRequest(), 0, data).api_keys}
    assert keys == {INIT_PRODUCER_ID, LIST_OFFSETS, API_VERSIONS}
    assert set(HANDLERS) <= set(APIS)
    assert {PRODUCE} <= set(HANDLERS)
