"""Fault injection for tests of clients: an error, a delay or a closed connection for the next requests of an
API (``siltstone.testing.Broker``).

::

    request ─┬─ no fault is due ─────────► handler
             └─ a fault ─► its delay ─┬──► handler, if the fault is only a delay
                                      ├──► (handler, with ``after``) ─► respond with the code
                                      └──► (handler, with ``after``) ─► close the connection

A request that is refused or cut is not carried out, or only reads (``_READ_FOR_ERRORS``). With ``after`` it
is, and the client does not learn of it, as when a broker stops between the append and the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from siltstone.base.errors import UsageError
from siltstone.broker.dispatch import Handler
from siltstone.broker.errors import Code
from siltstone.broker.request_context import CLOSE, NoResponse, RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire import apis
from siltstone.broker.wire.apis import APIS
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from siltstone.broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataResponse
from siltstone.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """The fault of one request. ``code``: the error code of its response, None for no error; ``delay_s``: the
    delay, in seconds; ``cuts``: the connection is closed without a response; ``after``: the request is
    carried out first."""

    code: int | None = None
    delay_s: float = 0.0
    cuts: bool = False
    after: bool = False


class Faults:
    """The faults that are due, by API, in the order in which they were added. ``add``, ``due`` and ``clear``
    are for any thread, the rest for the broker's loop."""

    def __init__(self) -> None:
        self._due: dict[int, deque[InjectedFault]] = {}
        self._has_ended = asyncio.Event()

    def add(self, api: str, fault: InjectedFault, times: int) -> None:
        """Add a fault for the next ``times`` requests of an API, by Kafka's name. Raises UsageError for an
        unknown API, or for a code if there is no way to put it into the API's response."""
        keys = {definition.name: key for key, definition in APIS.items()}
        key = keys.get(api)
        if key is None:
            raise UsageError(f"there is no API {api!r}", advice=f"pass one of {', '.join(sorted(keys))}")
        has_error_code = key in _ERROR_RESPONSES or "error_code" in APIS[key].response.__struct_fields__
        if fault.code is not None and not has_error_code:
            raise UsageError(
                f"the response of {api} has no place for an error of the whole request",
                advice="cut the connection, or delay the response",
            )
        self._due.setdefault(key, deque()).extend([fault] * times)

    @property
    def due(self) -> int:
        """The number of faults that have not happened yet."""
        return sum(map(len, self._due.values()))

    def end(self) -> None:
        """Close the connections of the requests that are delayed, and delay no others. In the broker's
        loop."""
        self._has_ended.set()

    def clear(self) -> None:
        """Forget all faults that are due."""
        self._due.clear()

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Wraps ``handlers``: their requests first meet the faults that are due."""
        return {key: self._around(key, handler) for key, handler in handlers.items()}

    def _around(self, key: int, handler: Handler) -> Handler:
        def handle(broker: Broker, request: Any, context: RequestContext) -> Any:
            due = self._due.get(key)
            if not due:
                return handler(broker, request, context)
            return self._apply(due.popleft(), handler, broker, request, context)

        return handle

    async def _apply(
        self, fault: InjectedFault, handler: Handler, broker: Broker, request: Any, context: RequestContext
    ) -> Any:
        # Waits for the delay, unless the broker is closed first: then the request is not carried out. A
        # TimeoutError means that the delay is over.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), fault.delay_s)
            return CLOSE
        return await _carried_out(fault, handler, broker, request, context)


async def _carried_out(
    fault: InjectedFault, handler: Handler, broker: Broker, request: Any, context: RequestContext
) -> Any:
    """What a request with a fault is answered, after the fault's delay."""
    response: Any = None
    is_called = fault.after or (fault.code is None and not fault.cuts)
    if not is_called and not fault.cuts and context.api_key in _READ_FOR_ERRORS:
        request, is_called = _READ_FOR_ERRORS[context.api_key](request), True
    if is_called:
        response = handler(broker, request, context)
        response = await response if inspect.isawaitable(response) else response
    if fault.cuts:
        return CLOSE
    if fault.code is None or isinstance(response, NoResponse):
        return response
    if context.api_key in _ERROR_RESPONSES:
        return _ERROR_RESPONSES[context.api_key](request, response, fault.code)
    return APIS[context.api_key].response(error_code=fault.code)


def code_named(code: int | str) -> int:
    """Kafka's error code by its number or its name. Raises UsageError."""
    if isinstance(code, int):
        return code
    try:
        return Code[code]
    except KeyError:
        raise UsageError(
            f"there is no error {code!r}", advice="pass Kafka's name of an error, or its number"
        ) from None


# Error responses of APIs that have error codes only for the parts of a request: every part has failed with
# the code. The functions take the request, the handler's response (None if it was not called), and the code.


def _produce(request: ProduceRequest, _: object, code: int) -> ProduceResponse:
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _fetch(request: FetchRequest, _: object, code: int) -> FetchResponse:
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(
                    PartitionData(partition_index=partition.partition, error_code=code, high_watermark=-1)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list_offsets(request: ListOffsetsRequest, _: object, code: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _metadata(_: object, response: MetadataResponse, code: int) -> MetadataResponse:
    topics = (structs.replace(topic, error_code=code, partitions=()) for topic in response.topics)
    return structs.replace(response, topics=tuple(topics))


def _create_topics(request: CreateTopicsRequest, _: object, code: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=tuple(CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics)
    )


_ERROR_RESPONSES: Mapping[int, Callable[[Any, Any, int], Message]] = {
    apis.PRODUCE: _produce,
    apis.FETCH: _fetch,
    apis.LIST_OFFSETS: _list_offsets,
    apis.METADATA: _metadata,
    apis.CREATE_TOPICS: _create_topics,
}


def _without_creation(request: MetadataRequest) -> MetadataRequest:
    return structs.replace(request, allow_auto_topic_creation=False)


_READ_FOR_ERRORS: Mapping[int, Callable[[Any], Message]] = {apis.METADATA: _without_creation}
"""APIs whose error response keeps the rest of the handler's, such as the list of brokers, and the request to
call the handler with instead: one that changes nothing."""
