"""Fetch, versions 4 to 18: batches for consumers, straight from the logs' files (Kafka's ``KafkaApis``,
``ReplicaManager.fetchMessages``, ``DelayedFetch``).

::

    read ─► max_wait 0, an error of a log, no known partition, or min_bytes there? ─► answer
            else wait until logs have min_bytes, or for max_wait ─► read again ─► answer

The records of an answer are slices of files, which the connection hands to the kernel; nothing is read or
copied here but the few bytes that a search looks at. The first partition that has records gives a whole
batch, whatever the limits; later ones what is left of ``max_bytes``, possibly a cut batch, as in Kafka.

Without sessions (KIP-227): every answer has session id 0, which tells a client that there is none, so it asks
for all its partitions each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass

from siltstone.base.errors import OffsetOutOfRangeError
from siltstone.base.files import FileSlice
from siltstone.broker.answers import Call
from siltstone.broker.errors import Code, RequestRefusedError, code_of
from siltstone.broker.store import MANY_PARTITIONS, Broker
from siltstone.broker.waiting import WaitedLog
from siltstone.broker.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, LogView
from siltstone.log.fetch import read as read_view
from siltstone.log.indexes import AbortedTransaction as EndedByAbort
from siltstone.log.partition import PartitionLog

_FIRST_BY_ID = 13
_FIRST_EPOCH, _LAST_EPOCH = 0, -1
_UNKNOWN = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
"""The codes of partitions that are not told at once if others are waited for."""

_NO_DIVERGING_EPOCH = EpochEndOffset()


def fetch(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse | Awaitable[FetchResponse]:
    """The batches that a client asks for, now or when there are enough."""
    if request.session_epoch not in (_FIRST_EPOCH, _LAST_EPOCH):
        return FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
    if request.isolation_level not in (0, 1) and call.version >= _FIRST_BY_ID:
        return FetchResponse(error_code=Code.UNKNOWN_SERVER_ERROR)
    if sum(len(topic.partitions) for topic in request.topics) > MANY_PARTITIONS:
        return _fetch_in_pool(broker, request, call)
    reads = _Reads(broker, request, call.version)
    if reads.waits_for_disk:
        return reads.in_pool_or_later()
    response = reads.read()
    return response if reads.is_enough else reads.later(response)


async def _fetch_in_pool(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse:
    reads = await broker.in_pool(_Reads, broker, request, call.version)
    return await reads.in_pool_or_later()


@dataclass(slots=True, eq=False, kw_only=True)
class _Read:
    """What is read of one partition: from ``log``, or nothing, because of an error with ``code``. ``view``:
    the log as it was when it was read last."""

    wanted: FetchPartition
    log: PartitionLog | None = None
    code: int = Code.NONE
    view: LogView | None = None
    waited: WaitedLog | None = None


class _Reads:
    """The reads of one request. After ``read``, ``is_enough`` says whether its answer is to be sent now."""

    def __init__(self, broker: Broker, request: FetchRequest, version: int) -> None:
        self._broker, self._request = broker, request
        self._is_committed = request.isolation_level != 0
        self._isolation = READ_COMMITTED if self._is_committed else READ_UNCOMMITTED
        self._max_bytes = min(request.max_bytes, broker.config.integer("fetch.max.bytes"))
        self._topics = [
            # Of a partition that is listed twice the later entry counts.
            [self._find(name, wanted) for wanted in {row.partition: row for row in topic.partitions}.values()]
            for topic in request.topics
            for name in [topic.topic if version < _FIRST_BY_ID else broker.topic_of_id(topic.topic_id)]
        ]
        self.is_enough = False

    def _find(self, name: str | None, wanted: FetchPartition) -> _Read:
        """The log of a partition, or why it is not read."""
        try:
            if self._request.isolation_level not in (0, 1):
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, "no such isolation level")
            if name is None:
                raise RequestRefusedError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
            if self._request.replica_id >= 0 or self._request.replica_state.replica_id >= 0:
                raise RequestRefusedError(Code.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")
            log = self._broker.log_of(name, wanted.partition)
            # Any negative epoch is none here, as in Kafka; ListOffsets takes only -1 for none.
            refuse_other_epoch(log, max(wanted.current_leader_epoch, -1))
            return _Read(wanted=wanted, log=log)
        except Exception as error:  # one partition's error is not the others'
            return _Read(wanted=wanted, code=code_of(error))

    @property
    def _all(self) -> Iterator[_Read]:
        return (read for topic in self._topics for read in topic)

    @property
    def waits_for_disk(self) -> bool:
        """Does one of the reads begin below its log's active segment, or look for aborted transactions? Older
        segments may not be in memory any more, the newest one nearly always is; a transaction index is read
        as a whole."""
        return any(read.log is not None and self._waits_for_disk(read.log, read.wanted) for read in self._all)

    def _waits_for_disk(self, log: PartitionLog, wanted: FetchPartition) -> bool:
        active = log.view.segments[-1]
        if wanted.fetch_offset < active.base_offset:
            return True
        return self._is_committed and active.transaction_index_size > 0

    def read(self) -> FetchResponse:
        """Read all partitions, each what is left of ``max_bytes``."""
        left, size_read, has_error = self._max_bytes, 0, False
        responses = []
        for topic, reads in zip(self._request.topics, self._topics, strict=True):
            if not reads:
                continue
            answers = []
            for read in reads:
                answer, size = self._read_one(read, left, is_first=size_read == 0)
                answers.append(answer)
                size_read += size
                left = max(left - size, 0)
                # A diverging epoch is told at once, too. Unknown partitions do not end the wait for others.
                is_told = answer.error_code not in _UNKNOWN or answer.diverging_epoch.epoch >= 0
                has_error = has_error or is_told
            responses.append(
                FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(answers))
            )
        self.is_enough = (
            has_error
            or all(read.log is None for read in self._all)
            or self._request.max_wait_ms <= 0
            or size_read >= min(self._request.min_bytes, self._max_bytes)
        )
        # As in Kafka. In older versions the answer has no place for it.
        code = Code.NONE if self._request.isolation_level in (0, 1) else Code.UNKNOWN_SERVER_ERROR
        return FetchResponse(error_code=code, responses=tuple(responses))

    def _read_one(self, read: _Read, left: int, *, is_first: bool) -> tuple[PartitionData, int]:
        """(the answer of one partition, the bytes of its records)."""
        log, wanted = read.log, read.wanted
        if log is None:
            return _failed(wanted, read.code), 0
        view = read.view = log.view
        try:
            diverging = _diverging_epoch(log, wanted)
            if diverging is not None:
                return self._answer(wanted, view, diverging_epoch=diverging), 0
            if (max_bytes := min(wanted.partition_max_bytes, left)) < 0:
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, f"{max_bytes} is no number of bytes")
            fetched = read_view(
                view,
                wanted.fetch_offset,
                max_bytes,
                isolation=self._isolation,
                min_one_batch=is_first,
                resume_at=None if read.waited is None else read.waited.position,
            )
        except Exception as error:
            return _failed(wanted, code_of(error)), 0
        # A part of one batch, which no client could use, is left out.
        records = fetched.slice if fetched.size >= fetched.first_batch_size else None
        answer = self._answer(wanted, view, records=records, aborted=fetched.aborted)
        return answer, 0 if records is None else records.size

    def _answer(
        self,
        wanted: FetchPartition,
        view: LogView,
        *,
        records: FileSlice | None = None,
        aborted: Sequence[EndedByAbort] = (),
        diverging_epoch: EpochEndOffset = _NO_DIVERGING_EPOCH,
    ) -> PartitionData:
        """``aborted``: told only to those who asked to read committed records; null for others, since some
        clients would leave out records for it."""
        rows = (
            AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
            for entry in aborted
        )
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=view.high_watermark,
            last_stable_offset=view.last_stable_offset,
            log_start_offset=view.log_start_offset,
            diverging_epoch=diverging_epoch,
            aborted_transactions=tuple(rows) if self._is_committed else None,
            records=records or b"",
        )

    async def in_pool_or_later(self) -> FetchResponse:
        """Read in the pool, and wait if that is not enough."""
        response = await self._broker.in_pool(self.read)
        return response if self.is_enough else await self.later(response)

    async def later(self, response: FetchResponse) -> FetchResponse:
        """Wait until there are enough bytes or the time is over, then read again; ``response`` is what there
        was before, and is the answer if no log has moved."""
        waited = list[WaitedLog]()
        for read in self._all:
            if read.log is not None:
                read.waited = WaitedLog(
                    log=read.log,
                    offset=read.wanted.fetch_offset,
                    max_bytes=read.wanted.partition_max_bytes,
                    isolation=self._isolation,
                )
                waited.append(read.waited)
        min_bytes = min(self._request.min_bytes, self._max_bytes)
        await self._broker.waiting.until_bytes(waited, min_bytes, self._request.max_wait_ms)
        if all(read.log is None or read.log.view is read.view for read in self._all):
            return response
        is_slow = len(waited) > MANY_PARTITIONS or self.waits_for_disk
        return await self._broker.in_pool(self.read) if is_slow else self.read()


def refuse_other_epoch(log: PartitionLog, epoch: int) -> None:
    """Raises RequestRefusedError unless ``epoch``, which a client takes for the log's leader epoch, is that,
    or -1: unknown."""
    if epoch in (-1, log.leader_epoch):
        return
    is_old = epoch < log.leader_epoch
    code = Code.FENCED_LEADER_EPOCH if is_old else Code.UNKNOWN_LEADER_EPOCH
    raise RequestRefusedError(code, f"the log's leader epoch is {log.leader_epoch}, not {epoch}")


def _diverging_epoch(log: PartitionLog, wanted: FetchPartition) -> EpochEndOffset | None:
    """Where the log left what a client has read last, if it did (KIP-595). Raises OffsetOutOfRangeError."""
    if wanted.last_fetched_epoch < 0:
        return None
    end = log.end_of_epoch(wanted.last_fetched_epoch)
    if end is None or wanted.fetch_offset < log.view.log_start_offset:
        reason = f"offset {wanted.fetch_offset} of epoch {wanted.last_fetched_epoch} is not in the log"
        raise OffsetOutOfRangeError(reason, path=str(log.topic_partition))
    if end[0] < wanted.last_fetched_epoch or end[1] < wanted.fetch_offset:
        return EpochEndOffset(epoch=end[0], end_offset=end[1])
    return None


def _failed(wanted: FetchPartition, code: int) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=() if code in _UNKNOWN else None,
    )
