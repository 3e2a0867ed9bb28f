"""The handler of Produce (versions 3 to 13): appends a request's batches, one for each partition (Kafka's
``KafkaApis.handleProduceRequest``, ``ReplicaManager.appendRecords``).

Checks come in Kafka's order; the first one that fails gives the error code:

::

    whole request    CORRUPT_MESSAGE (2)                          a size or a magic byte that no batch has
                     TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)   transactional batch, no transactional id
                     UNKNOWN_SERVER_ERROR (-1)                    an unknown codec before version 7
    each partition   UNKNOWN_TOPIC_OR_PARTITION (3), UNKNOWN_TOPIC_ID (100)
                     INVALID_RECORD (87)                          no batch, or not one whole batch
                     UNSUPPORTED_COMPRESSION_TYPE (76)            zstd before version 7
                     INVALID_REQUIRED_ACKS (21)                   acks other than -1, 0, 1
                     INVALID_PRODUCER_ID_MAPPING (49)             a transaction: there is no coordinator
                     INVALID_TOPIC_EXCEPTION (17)                 an internal topic
                     CORRUPT_MESSAGE (2), MESSAGE_TOO_LARGE (10), INVALID_TIMESTAMP (32), INVALID_RECORD (87),
                     OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47), INVALID_TXN_STATE (48):
                                                                  by the log (``log.validation``, producers)

A batch is appended in the loop's thread if ``PartitionLog.try_append`` can do so without waiting: if it is
small, no lock is held and no file has to be created or synced. Other batches are *late*: they are appended in
the pool, and the response follows when all are. A batch behind a late one of the same log is late, too, so
their order is that of the request.

An error of the whole request is reported for each of its partitions, and nothing is appended: as in Kafka,
the heads of the batches, up to a transactional one, are checked before the first append.

Batches are not copied: the log writes their offsets into the bytes of the request.

With acks=0 no response is sent; after an error the connection is closed, which is the only way to tell the
producer. acks=-1 is the same as acks=1, since this broker is the only replica. An append is as durable as on
a broker of Kafka: it is in the page cache.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from siltstone.base.codec_table import codec_number
from siltstone.base.errors import (
    CorruptMessageError,
    LogError,
    MessageTooLargeError,
    RecordListTooLargeError,
    RecordRefusedError,
    StorageError,
    UnknownTopicError,
)
from siltstone.base.records.layout import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MIN_SIZE_FIELD,
    SIZE_POSITION,
    TRANSACTIONAL_BIT,
)
from siltstone.broker.errors import Code, RequestRefusedError, code_of, message_of
from siltstone.broker.request_context import CLOSE, NO_RESPONSE, NoResponse, RequestContext
from siltstone.broker.store import MANY_PARTITIONS, Broker
from siltstone.broker.wire.apis import PRODUCE
from siltstone.broker.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from siltstone.log.names import INTERNAL_TOPICS
from siltstone.log.partition import AppendResult, PartitionLog
from siltstone.log.validation import refuse_bad_head, refuse_unless_one_batch

ADMIN_CLIENT_ID = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""
_TOPIC_IDS_SINCE, _ZSTD_SINCE = 13, 7
_ZSTD = codec_number("zstd")
_NO_START_OFFSET = (
    UnknownTopicError,
    StorageError,
    MessageTooLargeError,
    RecordListTooLargeError,
    CorruptMessageError,
)
"""Errors of an append whose response has no log start offset (``ReplicaManager.appendToLocalLog``)."""
_HEAD = struct.Struct(">i4xb5xB")
"""A batch from its size on: size, (leader epoch), magic, (checksum, high byte of the attributes), low byte of
the attributes; what is in parentheses is skipped."""
_HEAD_END = SIZE_POSITION + _HEAD.size
_SIZE_MIN = MIN_SIZE_FIELD[0]
_CHECKED_BITS = CODEC_MASK | TRANSACTIONAL_BIT
"""The bits of a batch's attributes that may be a reason to refuse it before the append."""
_NO_TOPICS: frozenset[str] = frozenset()
Outcome = ProduceResponse | NoResponse
Batch = memoryview | bytes


def produce(broker: Broker, request: ProduceRequest, context: RequestContext) -> Outcome | Awaitable[Outcome]:
    """Appends the batches of a request, at once or in the pool."""
    appends = _Appends(broker, request, context)
    if sum(len(topic.partition_data) for topic in request.topic_data) > MANY_PARTITIONS:
        return broker.in_pool(appends.append_all)
    appends.try_all()
    return appends.finish_in_pool() if appends.late else appends.outcome()


def _attributes(batch: Any) -> int:
    """The low byte of a batch's attributes; 0 for a null or incomplete batch, and for format v0 or v1, all of
    which are refused later. Raises CorruptMessageError for a size or a magic byte that no batch has."""
    if batch is None or len(batch) < _HEAD_END:
        if batch is not None:
            refuse_bad_head(np.frombuffer(batch, np.uint8))
        return 0
    size, magic, low_byte = _HEAD.unpack_from(batch, SIZE_POSITION)
    if magic == 2 and _SIZE_MIN <= size <= len(batch) - LOG_OVERHEAD:
        attributes: int = low_byte
        return attributes
    if size < _SIZE_MIN or not 0 <= magic <= 2:
        refuse_bad_head(np.frombuffer(batch, np.uint8))
    return 0


class _Appends:
    """The appends of one request.

    ``responses``: for each topic of the request the responses of its partitions, in the request's order; None
    for a late batch that is not appended yet. ``late``: (row of the topic in the request, row of the
    partition in the topic, log, batch) of the late batches; ``_late_logs``: their logs. ``_refused_topics``:
    those to which the client may not write. ``_may_need_check``: may a batch of the request have any of
    ``_CHECKED_BITS``? (True also if the heads of some batches were not looked at.)
    """

    def __init__(self, broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
        self._broker, self._request, self._version = broker, request, context.version
        self._has_acks = request.acks in (-1, 0, 1)
        self._refused_topics = _NO_TOPICS if context.client_id == ADMIN_CLIENT_ID else INTERNAL_TOPICS
        self.responses: list[list[PartitionProduceResponse | None]] = []
        self.late: list[tuple[int, int, PartitionLog, Batch]] = []
        self._late_logs: set[PartitionLog] = set()
        self._may_need_check = True

    def try_all(self) -> None:
        """Refuse or append each batch; those that cannot be appended without waiting are late."""
        request_error = self._error_of_request()
        for topic_row, topic in enumerate(self._request.topic_data):
            has_name = self._version < _TOPIC_IDS_SINCE
            name = topic.name if has_name else self._broker.topic_of_id(topic.topic_id)
            responses: list[PartitionProduceResponse | None] = []
            self.responses.append(responses)
            for row, data in enumerate(topic.partition_data):
                if request_error is not None:
                    self._broker.counts.append_failed(None, PRODUCE, code_of(request_error))
                    responses.append(_failure_response(data.index, request_error))
                    continue
                responses.append(self._try_one(name, topic_row, row, data))

    def _error_of_request(self) -> Exception | None:
        """The error for which the whole request is refused; None if it is not."""
        is_old, has_unknown_codec, bits = self._version < _ZSTD_SINCE, False, 0
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                try:
                    attributes = _attributes(data.records)
                except CorruptMessageError as error:
                    return error
                bits |= attributes
                if attributes & TRANSACTIONAL_BIT:
                    if self._request.transactional_id is None:
                        reason = "transactional records without a transactional id"
                        return RequestRefusedError(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
                    return None  # as in Kafka, the heads of batches behind it are not looked at
                # An unknown codec counts only for a partition that exists: any other has an error of its own.
                if is_old and attributes & CODEC_MASK > _ZSTD and not has_unknown_codec:
                    has_unknown_codec = self._has(topic.name, data.index)
        self._may_need_check = bits & _CHECKED_BITS != 0
        if has_unknown_codec:
            return RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, "the codec of a batch is unknown")
        return None

    def _has(self, topic: str, partition: int) -> bool:
        """Is there such a partition? Before version 13, which names topics by id."""
        try:
            self._broker.log_of(topic, partition)
        except UnknownTopicError:
            return False
        except StorageError:
            pass  # it is there, but offline
        return True

    def _try_one(
        self, name: str | None, topic_row: int, row: int, data: PartitionProduceData
    ) -> PartitionProduceResponse | None:
        """Append one batch, or refuse it: the response of its partition; None if it is late."""
        log = None
        try:
            if name is None:
                raise RequestRefusedError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
            batch: Any = data.records
            log = self._broker.log_of(name, data.index)
            if batch is None:
                raise RequestRefusedError(Code.INVALID_RECORD, "no batch was sent")
            attributes = _attributes(batch) if self._may_need_check else 0
            if attributes & _CHECKED_BITS or name in self._refused_topics or not self._has_acks:
                self._refuse_before_append(name, batch, attributes)
            # Behind a late batch of the same log, this one is late, too: it must not overtake the other.
            result = None if log in self._late_logs else log.try_append(batch)
            if result is None:
                self._late_logs.add(log)
                self.late.append((topic_row, row, log, batch))
                return None
            return self._appended(data.index, result, log, batch)
        except Exception as error:  # one partition's error is not the others'
            return self._failed(data.index, error, log, data.records)

    def _refuse_before_append(self, name: str, batch: Batch, attributes: int) -> None:
        """Raises RequestRefusedError for a batch that Kafka refuses before the append; before that a
        LogError, such as CorruptMessageError, if its structure is wrong. (Of other batches the log checks the
        structure.)"""
        codec, refused = attributes & CODEC_MASK, None
        is_old = self._version < _ZSTD_SINCE
        if codec == _ZSTD and is_old:
            reason = f"zstd needs version {_ZSTD_SINCE} of Produce"
            refused = RequestRefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, reason)
        elif not self._has_acks:
            refused = RequestRefusedError(
                Code.INVALID_REQUIRED_ACKS, f"acks={self._request.acks} is not -1, 0 or 1"
            )
        elif attributes & TRANSACTIONAL_BIT:
            reason = "this broker knows no transactional ids"
            refused = RequestRefusedError(Code.INVALID_PRODUCER_ID_MAPPING, reason)
        elif name in self._refused_topics:
            refused = RequestRefusedError(Code.INVALID_TOPIC_EXCEPTION, f"only the broker writes to {name}")
        if refused is not None:
            # As in Kafka, a codec that the version does not allow is reported before a second batch is.
            refuse_unless_one_batch(np.frombuffer(batch, np.uint8), or_several=codec >= _ZSTD and is_old)
            raise refused

    def append_all(self) -> Outcome:
        """Append all batches in this thread, one of the pool, and return the response."""
        self.try_all()
        self._append_late()
        return self.outcome()

    async def finish_in_pool(self) -> Outcome:
        """Append the late batches in the pool, and return the response."""
        await self._broker.in_pool(self._append_late)
        return self.outcome()

    def _append_late(self) -> None:
        """Append the late batches in order."""
        for topic_row, row, log, batch in self.late:
            index = self._request.topic_data[topic_row].partition_data[row].index
            try:
                response = self._appended(index, log.append(batch), log, batch)
            except Exception as error:
                response = self._failed(index, error, log, batch)
            self.responses[topic_row][row] = response

    def _failed(
        self, index: int, error: Exception, log: PartitionLog | None, batch: Any
    ) -> PartitionProduceResponse:
        """Count a batch that was refused, and return the response of its partition."""
        if log is not None:
            self._broker.note_failure(log)
        response = _failure_response(index, error, log, batch)
        topic = None if log is None else log.topic_partition.topic
        self._broker.counts.append_failed(topic, PRODUCE, response.error_code)
        return response

    def _appended(
        self, index: int, result: AppendResult, log: PartitionLog, batch: Batch
    ) -> PartitionProduceResponse:
        """Count a batch that was appended, and return the response of its partition."""
        messages = result.last_offset - result.first_offset + 1
        self._broker.counts.appended(log.topic_partition.topic, messages, len(batch))
        return PartitionProduceResponse(
            index=index,
            base_offset=result.first_offset,
            log_append_time_ms=result.log_append_ms,
            log_start_offset=log.view.log_start_offset,
        )

    def outcome(self) -> Outcome:
        """The response, once all batches were appended or refused."""
        if self._request.acks == 0:
            all_responses = (response for topic in self.responses for response in topic)
            has_error = any(response is None or response.error_code for response in all_responses)
            return CLOSE if has_error else NO_RESPONSE
        if len(self.responses) == 1 and self.responses[0]:
            topic = self._request.topic_data[0]
            return ProduceResponse(responses=(_topic_response(topic, self.responses[0]),))
        # As in Kafka, a topic that is named twice is in the response once.
        joined = dict[tuple[str, bytes], tuple[TopicProduceData, list[PartitionProduceResponse | None]]]()
        for topic, responses in zip(self._request.topic_data, self.responses, strict=True):
            if responses:
                joined.setdefault((topic.name, topic.topic_id), (topic, []))[1].extend(responses)
        return ProduceResponse(
            responses=tuple(_topic_response(topic, partitions) for topic, partitions in joined.values())
        )


def _topic_response(
    topic: TopicProduceData, partitions: Sequence[PartitionProduceResponse | None]
) -> TopicProduceResponse:
    responses = tuple(partition for partition in partitions if partition is not None)
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=responses)


def _failure_response(
    index: int, error: Exception, log: PartitionLog | None = None, batch: Any = None
) -> PartitionProduceResponse:
    """The response of a partition whose batch was refused. ``log``, ``batch``: None if the partition has no
    log, or no batch was sent: the response then has no log start offset (-1)."""
    refused = error.record_errors if isinstance(error, RecordRefusedError) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=code_of(error),
        base_offset=-1,
        log_start_offset=-1 if log is None else _start_offset_for(error, log, batch),
        record_errors=tuple(
            BatchIndexAndErrorMessage(batch_index=record.index, batch_index_error_message=record.message)
            for record in refused
        ),
        error_message=message_of(error),
    )


def _start_offset_for(error: Exception, log: PartitionLog, batch: Batch | None) -> int:
    """The log start offset in the response of a refused batch: as in Kafka, the log's if the log refused one
    whole batch for its content, else -1."""
    if batch is None or isinstance(error, (RequestRefusedError, *_NO_START_OFFSET)):
        return -1
    try:
        refuse_unless_one_batch(np.frombuffer(batch, np.uint8))
    except LogError:
        return -1
    return log.view.log_start_offset
