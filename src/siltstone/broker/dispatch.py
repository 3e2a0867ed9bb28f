"""From a frame to its answer: header, API, message, handler, and back.

::

    frame ─ read_header ─► API, version ─ codec.read ─► request ─ handler ─► response ─ codec.write ─► pieces

What closes the connection without an answer, as in Kafka: a header or a body that cannot be read, an API that
is not here, and a version that is not, but for ApiVersions, whose answer says which there are. Bytes behind
the body and unknown tagged fields are ignored. Corresponds to ``KafkaApis.handle`` and ``RequestContext``.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from siltstone.broker.answers import (
    CLOSE,
    NO_ANSWER,
    Call,
    ConnectionInfo,
    Piece,
    RefusedFrameError,
    Unanswered,
)
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
    records,
    topics,
    versions,
)
from siltstone.broker.store import Broker
from siltstone.broker.wire import apis, codec
from siltstone.broker.wire.apis import API_VERSIONS, APIS, Api
from siltstone.broker.wire.codec import MalformedRequestError
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import RequestHeader, read_header, response_header

Handler: TypeAlias = Callable[[Broker, Any, Call], "Message | Unanswered | Awaitable[Message | Unanswered]"]
"""Answers one API. It runs in the loop's thread: one that is slow is a coroutine, and awaits
``broker.in_pool``."""

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
    apis.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    apis.ELECT_LEADERS: cluster.elect_leaders,
    apis.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
}
"""All APIs that work, beside ApiVersions, which announces them: a handler that is not here does not exist."""
_PREFIX = struct.Struct(">i")
_logger = logging.getLogger("siltstone.broker")


class Dispatcher:
    """Answers frames with the handlers of a broker."""

    def __init__(self, broker: Broker, handlers: Mapping[int, Handler] = HANDLERS) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {
            **handlers,
            API_VERSIONS: versions.announcing([*handlers, API_VERSIONS]),
        }

    def answer(self, frame: bytearray, connection: ConnectionInfo) -> list[Piece] | Awaitable[list[Piece]]:
        """The pieces of the answer to a frame, at once or later; none where no answer is wanted.

        Raises RefusedFrameError where the connection is to be closed instead.
        """
        data = memoryview(frame)
        try:
            header = read_header(data)
            api = self._api(header)
            if not api.has(header.api_version):
                return _pieces(api, 0, header.correlation_id, versions.unsupported())
            request = codec.read(api.request, header.api_version, data, header.body)
        except MalformedRequestError as error:
            raise RefusedFrameError(str(error)) from error
        call = Call(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            connection=connection,
        )
        try:
            answer = self._handlers[header.api_key](self._broker, request, call)
        except Exception as error:
            return _answer(api, call, _failure(api, call, error))
        if isinstance(answer, (Message, Unanswered)):
            return _answer(api, call, answer)
        return _answer_later(api, call, answer)

    def _api(self, header: RequestHeader) -> Api:
        """The API of a request. Raises RefusedFrameError if it, or its version, is not here."""
        key, version = header.api_key, header.api_version
        if key not in self._handlers:
            raise RefusedFrameError(f"API {key} is not one of this broker's")
        api = APIS[key]
        if not api.has(version) and key != API_VERSIONS:
            raise RefusedFrameError(f"{api.name} has no version {version} here")
        return api


async def _answer_later(api: Api, call: Call, later: Awaitable[Message | Unanswered]) -> list[Piece]:
    try:
        answer = await later
    except Exception as error:
        answer = _failure(api, call, error)
    return _answer(api, call, answer)


def _answer(api: Api, call: Call, answer: Message | Unanswered) -> list[Piece]:
    if isinstance(answer, Message):
        return _pieces(api, call.version, call.correlation_id, answer)
    if answer is CLOSE:
        raise RefusedFrameError(f"{api.name} failed, and its answer has no place for that")
    assert answer is NO_ANSWER
    return []


def _failure(api: Api, call: Call, error: Exception) -> Message | Unanswered:
    """The answer where a handler has failed: with the error's code, if there is a place for it in the message
    as a whole."""
    code = code_of(error)
    if code == Code.UNKNOWN_SERVER_ERROR:
        who = f"{call.client_id!r:.256} at {call.connection.peer}"
        _logger.error("%s version %d of %s failed", api.name, call.version, who)
    if "error_code" not in api.response.__struct_fields__:
        return CLOSE
    return api.response(error_code=code)


def _pieces(api: Api, version: int, correlation_id: int, message: Message) -> list[Piece]:
    head = response_header(api.key, version, correlation_id)
    pieces = codec.write(message, version)
    size = len(head) + sum(map(len, pieces))
    pieces[0] = _PREFIX.pack(size) + head + pieces[0]  # type: ignore[operator]
    return pieces  # type: ignore[return-value]
