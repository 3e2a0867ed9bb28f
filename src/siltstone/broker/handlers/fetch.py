"""Fetch, versions 4 to 18: batches for consumers, straight from the logs' files (Kafka's ``KafkaApis``,
``ReplicaManager.fetchMessages``, ``DelayedFetch``, ``FetchContext``).

::

    all partitions that are named, or those of a session (``sessions``) that are not quiet
        ─► read ─► max_wait 0, an error of a log, no known partition, or min_bytes there? ─► answer
                   else wait until logs have min_bytes, or for max_wait ─► read again ─► answer
    answer in a session: only what is new to the client

The records of an answer are slices of files, which the connection hands to the kernel; nothing is read or
copied here but the few bytes that a search looks at. The first partition that has records gives a whole
batch, whatever the limits; later ones what is left of ``max_bytes``, possibly a cut batch, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from itertools import groupby
from typing import NamedTuple

from siltstone.base.errors import OffsetOutOfRangeError
from siltstone.base.files import FileSlice
from siltstone.broker.answers import Call
from siltstone.broker.errors import Code, RequestRefusedError, code_of
from siltstone.broker.sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    FetchedPartition,
    FetchSession,
    has_records,
    partitions_of,
)
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
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchPosition, FetchResult, LogView
from siltstone.log.fetch import read as read_view
from siltstone.log.indexes import AbortedTransaction as EndedByAbort
from siltstone.log.partition import PartitionLog

_FIRST_BY_ID = 13
_UNKNOWN = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
"""The codes of partitions that are not told at once if others are waited for."""

_NO_DIVERGING_EPOCH = EpochEndOffset()


def fetch(broker: Broker, request: FetchRequest, call: Call) -> FetchResponse | Awaitable[FetchResponse]:
    """The batches that a client asks for, now or when there are enough."""
    by_id, session = call.version >= _FIRST_BY_ID, None
    if request.isolation_level not in (0, 1) and by_id:
        return FetchResponse(error_code=Code.UNKNOWN_SERVER_ERROR)
    if request.session_epoch in (FIRST_EPOCH, LAST_EPOCH):
        broker.fetch_sessions.end(request.session_id)
    else:
        try:
            session = broker.fetch_sessions.go_on(request, by_id=by_id, now=broker.loop.time())
        except RequestRefusedError as error:
            return FetchResponse(error_code=error.code)
    reads = _Reads(broker, request, session, by_id=by_id)
    if reads.are_many or reads.wait_for_disk():
        return reads.in_pool_or_later()
    reads.read()
    return reads.respond() if reads.is_enough else reads.later()


class _Row(NamedTuple):
    """What was read of a partition, and of which view of its log."""

    partition: FetchedPartition
    data: PartitionData
    view: LogView | None


class _Reads:
    """The reads of one request. After ``read``, ``is_enough`` says whether its answer is to be sent now.

    ``_all``: the partitions in the order of the answer; ``_chosen``: those that are read, the others are
    quiet. ``_rows``: what was read of them.
    """

    def __init__(
        self, broker: Broker, request: FetchRequest, session: FetchSession | None, *, by_id: bool
    ) -> None:
        self._broker, self._request, self._session, self._by_id = broker, request, session, by_id
        self._partitions = partitions_of(request, by_id=by_id) if session is None else session.partitions
        self._is_committed = request.isolation_level != 0
        self._isolation = READ_COMMITTED if self._is_committed else READ_UNCOMMITTED
        self._max_bytes = min(request.max_bytes, broker.config.integer("fetch.max.bytes"))
        self._all = list(self._partitions.values())
        self._rows: list[_Row] = []
        self.is_enough = False
        self._choose()

    def _choose(self) -> None:
        is_refused = self._request.isolation_level not in (0, 1) or self._is_from_follower
        self._chosen = [each for each in self._all if is_refused or not each.is_quiet]

    @property
    def are_many(self) -> bool:
        """Would the reads take over a millisecond?"""
        return len(self._chosen) > MANY_PARTITIONS

    @property
    def _is_from_follower(self) -> bool:
        return self._request.replica_id >= 0 or self._request.replica_state.replica_id >= 0

    def _find(self, partition: FetchedPartition) -> None:
        """Find the log of a partition, or why it is not read."""
        log = partition.log
        try:
            if self._request.isolation_level not in (0, 1):
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, "no such isolation level")
            if log is None or not log.is_open:
                log = self._find_anew(partition)
            if self._is_from_follower:
                raise RequestRefusedError(Code.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")
            # Any negative epoch is none here, as in Kafka; ListOffsets takes only -1 for none.
            refuse_other_epoch(log, max(partition.wanted.current_leader_epoch, -1))
            partition.log, partition.code = log, Code.NONE
        except Exception as error:  # one partition's error is not the others'
            partition.log, partition.code = None, code_of(error)

    def _find_anew(self, partition: FetchedPartition) -> PartitionLog:
        """A log by its topic's name. A session that names topics by their ids keeps the names that were found
        first, so it is told when a topic of this name is another one."""
        partition.place, broker = None, self._broker
        if partition.topic is not None:
            return broker.log_of(partition.topic, partition.wanted.partition)
        if partition.name is None:
            partition.name = broker.topic_of_id(partition.topic_id)
        if partition.name is None:
            raise RequestRefusedError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
        log = broker.log_of(partition.name, partition.wanted.partition)
        if broker.id_of_topic(partition.name) != partition.topic_id:
            raise RequestRefusedError(Code.INCONSISTENT_TOPIC_ID, "the topic has another id now")
        return log

    def wait_for_disk(self) -> bool:
        """Find the logs. Does one of the reads begin below its log's active segment, or look for aborted
        transactions? Older segments may not be in memory any more, the newest one nearly always is; a
        transaction index is read as a whole."""
        for partition in self._chosen:
            self._find(partition)
        return any(
            each.log is not None and self._waits_for_disk(each.log, each.wanted) for each in self._chosen
        )

    def _waits_for_disk(self, log: PartitionLog, wanted: FetchPartition) -> bool:
        active = log.view.segments[-1]
        if wanted.fetch_offset < active.base_offset:
            return True
        return self._is_committed and active.transaction_index_size > 0

    def read(self) -> None:
        """Read the chosen partitions, each what is left of ``max_bytes``."""
        left, size_read, has_error = self._max_bytes, 0, False
        self._rows = []
        for partition in self._chosen:
            row = self._read_one(partition, left, is_first=size_read == 0)
            self._rows.append(row)
            size = len(row.data.records or b"")
            size_read += size
            left = max(left - size, 0)
            # A diverging epoch is told at once, too. Unknown partitions do not end the wait for others.
            is_told = row.data.error_code not in _UNKNOWN or row.data.diverging_epoch.epoch >= 0
            has_error = has_error or is_told
        has_logs = len(self._chosen) < len(self._all) or any(each.log is not None for each in self._chosen)
        self.is_enough = (
            has_error
            or not has_logs
            or self._request.max_wait_ms <= 0
            or size_read >= min(self._request.min_bytes, self._max_bytes)
        )

    def respond(self) -> FetchResponse:
        """The answer of what was read; a session notes that the client knows it. In the loop's thread."""
        session, rows, number = self._session, self._rows, 0
        if session is not None:
            number = session.number
            if not session.is_after(self._request.session_epoch):
                # Another request of the session has come while this one waited.
                return FetchResponse(error_code=Code.INVALID_FETCH_SESSION_EPOCH, session_id=number)
            rows = [row for row in rows if row.partition.tell(row.data, row.view)]
            for row in rows:
                if has_records(row.data):
                    session.move_to_end(row.partition)
        elif self._request.session_epoch == FIRST_EPOCH:
            number = self._begin_session()
        # As in Kafka. In older versions the answer has no place for it.
        code = Code.NONE if self._request.isolation_level in (0, 1) else Code.UNKNOWN_SERVER_ERROR
        return FetchResponse(error_code=code, session_id=number, responses=_by_topic(rows))

    def _begin_session(self) -> int:
        for row in self._rows:
            row.partition.tell(row.data, row.view)
        broker = self._broker
        return broker.fetch_sessions.begin(
            self._partitions,
            by_id=self._by_id,
            slots=broker.config.integer("max.incremental.fetch.session.cache.slots"),
            now=broker.loop.time(),
        )

    def _read_one(self, partition: FetchedPartition, left: int, *, is_first: bool) -> _Row:
        """Read one partition, up to ``left`` bytes."""
        log, wanted = partition.log, partition.wanted
        if log is None:
            return _Row(partition, _failed(wanted, partition.code), None)
        view = partition.view = log.view
        try:
            diverging = _diverging_epoch(log, wanted)
            if diverging is not None:
                return _Row(partition, self._answer(wanted, view, diverging_epoch=diverging), view)
            if (max_bytes := min(wanted.partition_max_bytes, left)) < 0:
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, f"{max_bytes} is no number of bytes")
            fetched = read_view(
                view,
                wanted.fetch_offset,
                max_bytes,
                isolation=self._isolation,
                min_one_batch=is_first,
                resume_at=partition.place_of_offset,
            )
        except Exception as error:
            return _Row(partition, _failed(wanted, code_of(error)), view)
        partition.place = _place_after(fetched) or partition.place
        # A part of one batch, which no client could use, is left out.
        records = fetched.slice if fetched.size >= fetched.first_batch_size else None
        return _Row(partition, self._answer(wanted, view, records=records, aborted=fetched.aborted), view)

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
        await self._broker.in_pool(self._find_and_read)
        return self.respond() if self.is_enough else await self.later()

    def _find_and_read(self) -> None:
        for partition in self._chosen:
            self._find(partition)
        self.read()

    async def later(self) -> FetchResponse:
        """Wait until there are enough bytes or the time is over, then read again if a log has moved."""
        waited = [
            (
                each,
                WaitedLog(
                    log=log,
                    offset=each.wanted.fetch_offset,
                    max_bytes=each.wanted.partition_max_bytes,
                    isolation=self._isolation,
                    position=each.place_of_offset,
                ),
            )
            for each in self._all
            # Another request of the session may find it missing meanwhile, in another thread.
            if (log := each.log) is not None
        ]
        min_bytes = min(self._request.min_bytes, self._max_bytes)
        logs = [parked for _, parked in waited]
        await self._broker.waiting.until_bytes(logs, min_bytes, self._request.max_wait_ms)
        for partition, parked in waited:
            partition.place = parked.position or partition.place
        if any(parked.log.view is not partition.view for partition, parked in waited):
            self._choose()
            if self.are_many or self.wait_for_disk():
                await self._broker.in_pool(self._find_and_read)
            else:
                self.read()
        return self.respond()


def _by_topic(rows: Sequence[_Row]) -> tuple[FetchableTopicResponse, ...]:
    """What was read of partitions; those of one topic that follow each other are together."""
    topics = groupby(rows, key=lambda row: (row.partition.topic, row.partition.topic_id))
    return tuple(
        FetchableTopicResponse(
            topic=name or "", topic_id=topic_id, partitions=tuple(row.data for row in found)
        )
        for (name, topic_id), found in topics
    )


def _place_after(fetched: FetchResult) -> FetchPosition | None:
    """Where the log goes on behind a read that came to its end; else the next read has to search."""
    view, found, segment = fetched.view, fetched.slice, fetched.segment
    if found is None or segment is None or segment is not view.segments[-1]:
        return None
    if found.position + found.size < view.active_size:
        return None
    return FetchPosition(segment, view.active_size, view.log_end_offset)


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
