"""Dispatches requests: reads a frame, calls the handler of its API, and encodes the response (Kafka's
``KafkaApis.handle`` and ``RequestContext``).

::

    frame ─ read_header ─► API, version ─ codec.read ─► request ─ handler ─► response ─ codec.write ─► parts

As in Kafka, the connection is closed without a response for a header or a body that cannot be read, for an
unknown API, and for an unknown version. One exception: the response to an unknown version of ApiVersions has
the versions that exist, so a newer client can try again. Bytes after the body and unknown tagged fields are
ignored.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from siltstone.broker import quotas
from siltstone.broker.counts import ApiCounts, codes_in
from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.errors import Code, code_of
from siltstone.broker.handlers import (
    cluster,
    configs,
    fetch,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    quorum,
    records,
    topics,
    versions,
)
from siltstone.broker.handlers import quotas as quota_handlers
from siltstone.broker.request_context import (
    CLIENT_ID_MAX,
    CLOSE,
    NO_RESPONSE,
    ConnectionInfo,
    NoResponse,
    RefusedFrameError,
    RequestContext,
    ResponsePart,
)
from siltstone.broker.store import Broker
from siltstone.broker.wire import apis, codec
from siltstone.broker.wire.api import Api
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.codec import MalformedRequestError
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import RequestHeader, read_header, response_header
from siltstone.broker.wire.messages.fetch import FetchResponse

Handler: TypeAlias = Callable[
    [Broker, Any, RequestContext], "Message | NoResponse | DelayedResponse | Awaitable[Message | NoResponse]"
]
"""Answers the requests of one API. It runs in the loop's thread: one that is slow or reads a disk is a
coroutine that awaits ``broker.in_pool``. Fetch returns a ``DelayedResponse`` if it cannot answer at once."""

HANDLERS: Mapping[int, Handler] = {
    apis.PRODUCE: produce.produce,
    apis.FETCH: fetch.fetch,
    apis.LIST_OFFSETS: offsets.list_offsets,
    apis.INIT_PRODUCER_ID: producers.init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    apis.METADATA: metadata.metadata,
    apis.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    apis.DESCRIBE_CLUSTER: metadata.describe_cluster,
    apis.CREATE_TOPICS: topics.create_topics,
    apis.DELETE_TOPICS: topics.delete_topics,
    apis.CREATE_PARTITIONS: topics.create_partitions,
    apis.DELETE_RECORDS: records.delete_records,
    apis.DESCRIBE_CONFIGS: configs.describe_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    apis.ALTER_CONFIGS: configs.alter_configs,
    apis.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    apis.DESCRIBE_CLIENT_QUOTAS: quota_handlers.describe_client_quotas,
    apis.ALTER_CLIENT_QUOTAS: quota_handlers.alter_client_quotas,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: quota_handlers.describe_user_scram_credentials,
    apis.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    apis.ALTER_REPLICA_LOG_DIRS: quorum.alter_replica_log_dirs,
    apis.DESCRIBE_QUORUM: quorum.describe_quorum,
    apis.UPDATE_FEATURES: quorum.update_features,
    apis.ELECT_LEADERS: cluster.elect_leaders,
    apis.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
}
"""The handlers by API key. ApiVersions, which is added to them, announces exactly these."""
_PREFIX = struct.Struct(">i")
_logger = logging.getLogger("siltstone.broker")


class _Route(NamedTuple):
    """The handler of an API and its counters. ``note``: counts the errors, and of Fetch the topics, in a
    response; None for Produce."""

    api: Api
    handler: Handler
    counts: ApiCounts
    note: Callable[[Any], None] | None


class Dispatcher:
    """Answers frames with the handlers of a broker, and counts them in ``broker.counts``."""

    def __init__(self, broker: Broker, handlers: Mapping[int, Handler] = HANDLERS) -> None:
        self._broker, self._counts, self._quotas = broker, broker.counts, broker.quotas
        answered = {**handlers, API_VERSIONS: versions.announcing([*handlers, API_VERSIONS])}
        self._routes = {
            key: _Route(APIS[key], handler, self._counts.of_api[key], self._noting(key))
            for key, handler in answered.items()
        }

    def _noting(self, key: int) -> Callable[[Any], None] | None:
        """The ``_Route.note`` of an API. None for Produce, whose handler counts by itself: with acks=0 there
        is no response."""
        if key == apis.PRODUCE:
            return None
        if key == apis.FETCH:
            return self._note_fetched
        return lambda response: self._counts.refused(key, codes_in(response))

    def _note_fetched(self, response: FetchResponse) -> None:
        counts = self._counts
        counts.refused(apis.FETCH, (response.error_code,))
        for topic in response.responses:
            name = topic.topic or self._broker.topic_of_id(topic.topic_id)
            # Counted by name only if the topic exists: a client could send any number of unknown names.
            is_known = name in counts.of_topic or any(not row.error_code for row in topic.partitions)
            counts.fetched(name if is_known else None, topic)

    def answer(
        self, frame: bytearray, connection: ConnectionInfo
    ) -> list[ResponsePart] | DelayedResponse | Awaitable[list[ResponsePart]]:
        """The parts of the response to a frame, at once or later; empty if no response is to be sent.

        Raises RefusedFrameError, at once or later, if the connection is to be closed.
        """
        data, size = memoryview(frame), len(frame)
        try:
            header = read_header(data)
            route = self._route(header)
            api = route.api
            is_known = api.has(header.api_version)
            request = codec.read(api.request, header.api_version, data, header.body) if is_known else None
        except MalformedRequestError as error:
            raise RefusedFrameError(str(error)) from error
        activity, client_id = connection.activity, header.client_id
        activity.begun_at, activity.api_key = time.perf_counter(), api.key
        activity.parked_seconds = 0.0
        activity.requests += 1
        activity.bytes_in += size + _PREFIX.size
        if client_id != activity.client_id:
            activity.client_id = None if client_id is None else client_id[:CLIENT_ID_MAX]
        context = RequestContext(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=client_id,
            connection=connection,
        )
        if request is None:
            return self._encode(route, context, size, 0, versions.unsupported())
        try:
            response = route.handler(self._broker, request, context)
        except Exception as error:
            response = self._failure(route, context, error)
        if isinstance(response, (Message, NoResponse)):
            return self._answer(route, context, size, response)
        if isinstance(response, DelayedResponse):
            response.encode = partial(self._answer_delayed, route, context, size)
            return response
        return self._answer_later(route, context, size, response)

    def _route(self, header: RequestHeader) -> _Route:
        """The route of a request. Raises RefusedFrameError for an unknown API or version."""
        key, version = header.api_key, header.api_version
        route = self._routes.get(key)
        if route is None:
            raise RefusedFrameError(f"this broker has no API {key}")
        if not route.api.has(version) and key != API_VERSIONS:
            raise RefusedFrameError(f"this broker has no version {version} of {route.api.name}")
        return route

    async def _answer_later(
        self, route: _Route, context: RequestContext, size: int, later: Awaitable[Message | NoResponse]
    ) -> list[ResponsePart]:
        try:
            response: Message | NoResponse | Exception = await later
        except Exception as error:
            response = error
        return self._answer_delayed(route, context, size, response)

    def _answer_delayed(
        self, route: _Route, context: RequestContext, size: int, outcome: Message | NoResponse | Exception
    ) -> list[ResponsePart]:
        """As ``_answer``, also if the outcome is the error that a handler has raised later."""
        if isinstance(outcome, Exception):
            outcome = self._failure(route, context, outcome)
        return self._answer(route, context, size, outcome)

    def _answer(
        self, route: _Route, context: RequestContext, size: int, response: Message | NoResponse
    ) -> list[ResponsePart]:
        """The parts of the response to a frame of ``size`` bytes. Raises RefusedFrameError."""
        # Fetch throttles by itself: it leaves the records out of the response of a client that is throttled.
        if self._quotas.is_set and route.api.key != apis.FETCH:
            response = self._throttled(route.api.key, context, size, response)
        if isinstance(response, Message):
            return self._encode(route, context, size, context.version, response)
        self._count(route.counts, context, size, 0)
        if response is CLOSE:
            raise RefusedFrameError(f"{route.api.name} failed, and no response can say so")
        assert response is NO_RESPONSE
        return []

    def _throttled(self, key: int, context: RequestContext, size: int, response: Message | NoResponse) -> Any:
        """The response to a request of ``size`` bytes, with the time for which its client is throttled."""
        throttle_ms_by_kind = {quotas.REQUEST: 0}
        if key == apis.PRODUCE:
            throttle_ms_by_kind[quotas.PRODUCE] = self._quotas.record(quotas.PRODUCE, context, size)
        if isinstance(response, NoResponse):
            self._quotas.throttle(context, throttle_ms_by_kind)
            return response
        throttle_ms_by_kind[quotas.REQUEST] = self._quotas.used(context, context.seconds)
        # The handlers that create and delete topics count in the quota themselves, and put the time into
        # their responses; the field is 0 in others, or missing.
        throttle_ms_by_kind[quotas.MUTATION] = getattr(response, "throttle_time_ms", 0)
        throttle_ms = self._quotas.throttle(context, throttle_ms_by_kind)
        # DescribeQuorum's response has no such field.
        if throttle_ms and "throttle_time_ms" in response.__struct_fields__:
            return structs.replace(response, throttle_time_ms=throttle_ms)
        return response

    def _failure(self, route: _Route, context: RequestContext, error: Exception) -> Message | NoResponse:
        """The response if a handler has raised: a message with the error's code; CLOSE if the response of the
        API has no field ``error_code``."""
        api, code = route.api, code_of(error)
        if code == Code.UNKNOWN_SERVER_ERROR:
            client = f"{context.client_id!r:.256} at {context.connection.peer}"
            _logger.error("%s version %d of %s failed", api.name, context.version, client)
        if "error_code" not in api.response.__struct_fields__:
            self._counts.refused(api.key, (code,))
            return CLOSE
        return api.response(error_code=code)

    def _encode(
        self, route: _Route, context: RequestContext, frame_bytes: int, version: int, message: Message
    ) -> list[ResponsePart]:
        """Encode a response message in a version, count it, and return its parts. ``frame_bytes``: of the
        request."""
        head = response_header(route.api.key, version, context.correlation_id)
        parts = codec.write(message, version)
        size = len(head) + sum(map(len, parts))
        # The first part is always bytes: ``codec.write`` never begins with a slice of a file.
        parts[0] = _PREFIX.pack(size) + head + parts[0]  # type: ignore[operator]
        if route.note is not None:
            route.note(message)
        self._count(route.counts, context, frame_bytes, size)
        context.connection.activity.unsent += 1
        return parts  # type: ignore[return-value]

    @staticmethod
    def _count(counts: ApiCounts, context: RequestContext, frame_bytes: int, response_bytes: int) -> None:
        """Count a request that is answered now: the bytes of its frame and of its response, 0 without one."""
        activity, now = context.connection.activity, time.perf_counter()
        seconds = now - activity.begun_at
        counts.answered(frame_bytes, response_bytes, seconds)
        counts.note_phases(activity, seconds, now)
