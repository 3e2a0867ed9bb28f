"""The handler of Fetch (versions 4 to 18): returns slices of logs, or waits for records (Kafka's
``KafkaApis.handleFetchRequest``, ``ReplicaManager.fetchMessages``, ``DelayedFetch``, ``FetchContext``).

::

    1  partitions   those of the request; of a session (``broker.sessions``) those that have changed
    2  logs         looks up the log of each partition, or its error code
    3  read         finds where the batches are: FileSlices, no records
    4  wait         only if max_wait_ms > 0, some partition has a log, no log has an error, and the reads have
                    fewer than min_bytes: parked in the purgatory; then steps 1 to 3 again if a log has moved
    5  respond      in a session only with the partitions that have something new for the client

A fetch begins at once, or in its turn if others wait (``broker.turns``); a parked fetch continues in its
turn.

Records are not read here: a response has slices of the logs' files, which the connection passes to sendfile.
Only the search for an offset reads an index and a few batch headers.

The first partition that has records returns a whole batch even over the limits (KIP-74); later partitions
return what is left of ``max_bytes``, which may cut a batch, as in Kafka.

Steps 2 and 3 run in the loop's thread as long as they need no disk (``_find_logs_and_check_disk``), else in
the pool.
"""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from siltstone.base.errors import OffsetOutOfRangeError
from siltstone.base.files import FileSlice
from siltstone.broker.delayed import DelayedResponse
from siltstone.broker.errors import Code, RequestRefusedError, code_of
from siltstone.broker.purgatory import AwaitedLog
from siltstone.broker.quotas import FETCH, REQUEST
from siltstone.broker.request_context import RequestContext
from siltstone.broker.sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    FetchedPartition,
    FetchSession,
    has_records,
    partitions_of,
)
from siltstone.broker.store import MANY_PARTITIONS, Broker
from siltstone.broker.wire import codec
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
from siltstone.log.indexes import AbortedTransaction as TransactionIndexEntry
from siltstone.log.partition import PartitionLog

_TOPIC_IDS_SINCE = 13
"""The first version that names topics by id."""
_CODES_THAT_WAIT = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
"""A partition with one of these codes does not end the wait for the others; any other code does."""
_LAST: Mapping[int, int] = {Code.UNKNOWN_TOPIC_ID: 1, Code.UNKNOWN_TOPIC_OR_PARTITION: 2}
"""Errors whose partitions come last in a response, in this order."""
_LENGTH_BYTES = 4
"""The size of the length before a response, which counts towards a quota, as in Kafka."""
UNKNOWN_ISOLATION_LEVEL = "there is no such isolation level"
_ISOLATIONS = {0: READ_UNCOMMITTED, 1: READ_COMMITTED}
_NO_DIVERGING_EPOCH = EpochEndOffset()


def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse | DelayedResponse:
    """Answers a Fetch request, at once, or when its turn has come and there are ``min_bytes``."""
    pending, turns = _Fetch(broker, request, context), broker.fetch_turns
    if not turns.is_free:
        turns.add(pending.begin_in_turn)
        return pending.delayed
    began = broker.loop.time()
    response = pending.begin()
    turns.count(began)
    return pending.delayed if response is None else response


def isolation_of(level: int) -> str | None:
    """The isolation level with this number in a request; None if there is none."""
    return _ISOLATIONS.get(level)


class _Read(NamedTuple):
    """The read of one partition. ``data``: its part of the response; ``view``: of the log that was read, None
    if the partition has no log."""

    partition: FetchedPartition
    data: PartitionData
    view: LogView | None


class _Fetch:
    """The fetch of one request, in steps. A step returns the response, or None if it comes later, as
    ``delayed``.

    ``_by_id``: does this version name topics by id? ``_partitions``: those of the session, else of the
    request, by topic and number; ``_all``: the same, in order. ``_chosen``: those that are read; of the
    others the session knows that nothing has changed.
    ``_reads``: the reads of the chosen partitions. ``_max_bytes``: of the response. ``_isolation``: None for
    an unknown level, which is an error of each partition (from version 13 on, of the request).
    ``_is_enough``: is the response due after the last read? ``_watched``: each partition with the log that
    the purgatory watches for it; ``_parked_at``: when the fetch was parked, by ``time.perf_counter``, in
    seconds.
    """

    def __init__(self, broker: Broker, request: FetchRequest, context: RequestContext) -> None:
        self._broker, self._request, self._context = broker, request, context
        self._by_id = context.version >= _TOPIC_IDS_SINCE
        self._isolation = isolation_of(request.isolation_level)
        self._reads_committed = self._isolation == READ_COMMITTED
        self._session: FetchSession | None = None
        self._reads: list[_Read] = []
        self._is_enough = False
        self.delayed = DelayedResponse()

    # Steps

    def begin(self) -> FetchResponse | None:
        """Find the partitions, and read them."""
        request, sessions = self._request, self._broker.fetch_sessions
        if self._isolation is None and self._by_id:
            return FetchResponse(error_code=Code.UNKNOWN_SERVER_ERROR)
        session = None
        # As in KIP-227, both of these epochs end the session of the request, if it has one; the first one
        # begins another after the read.
        if request.session_epoch in (FIRST_EPOCH, LAST_EPOCH):
            sessions.end(request.session_id)
        else:
            try:
                session = sessions.resume(request, by_id=self._by_id, now=self._broker.loop.time())
            except RequestRefusedError as error:
                return FetchResponse(error_code=error.code)
        self._session = session
        self._partitions = (
            partitions_of(request, by_id=self._by_id) if session is None else session.partitions
        )
        self._max_bytes = self._limit()
        self._all = list(self._partitions.values())
        return self._read_and(self._respond_or_park)

    def begin_in_turn(self) -> None:
        """As ``begin``, for a request that has waited for its turn: this wait is counted as time in a
        queue."""
        self._context.connection.activity.begun_at = time.perf_counter()
        self._go_on(self.begin)

    def _go_on(self, step: Callable[[], FetchResponse | None]) -> None:
        """Carry out a step in a later turn of the loop, and complete ``delayed`` if it returns the
        response."""
        if self.delayed.is_cancelled:
            return
        try:
            response = step()
        except Exception as error:
            self.delayed.complete(error)
            return
        if response is not None:
            self.delayed.complete(response)

    def _read_and(self, then: Callable[[], FetchResponse | None]) -> FetchResponse | None:
        """Read what has changed, in the pool if that may take long, and then carry out the step ``then``."""
        self._choose()
        if len(self._chosen) <= MANY_PARTITIONS and not self._find_logs_and_check_disk():
            self._read()
            return then()

        def finish(pooled: Future[None]) -> None:
            self._go_on(lambda: pooled.result() or then())  # ``result`` is None, or raises the read's error

        self._broker.in_pool(self._find_and_read).add_done_callback(finish)
        return None

    def _respond_or_park(self) -> FetchResponse | None:
        """Respond if the reads are enough; else wait for ``min_bytes``, at most ``max_wait_ms``."""
        if self._is_enough:
            return self._respond()
        self._watched = [
            (
                partition,
                AwaitedLog(
                    log=log,
                    offset=partition.requested.fetch_offset,
                    max_bytes=partition.requested.partition_max_bytes,
                    isolation=self._isolation or READ_UNCOMMITTED,
                    position=partition.resume_at,
                ),
            )
            for partition in self._all
            # Bound once: another request of the session may set ``log`` to None meanwhile, in the pool.
            if (log := partition.log) is not None
        ]
        request, purgatory, delayed = self._request, self._broker.purgatory, self.delayed
        self._parked_at, delayed.is_parked = time.perf_counter(), True
        logs, min_bytes = [watched for _, watched in self._watched], min(request.min_bytes, self._max_bytes)
        parked = purgatory.park(logs, min_bytes, request.max_wait_ms, self._resume)
        delayed.on_cancel = lambda: purgatory.forget(parked)
        return None

    def _resume(self) -> None:
        """Respond after the wait, with what is there now."""
        # ``on_cancel`` refers to this fetch, which refers to ``delayed``: without this reference there is no
        # cycle that Python's garbage collector would have to find.
        self.delayed.is_parked, self.delayed.on_cancel = False, None
        self._context.connection.activity.parked_seconds += time.perf_counter() - self._parked_at
        self._go_on(self._read_moved)

    def _read_moved(self) -> FetchResponse | None:
        """Respond after the wait; if a log has moved since its last read, read again first."""
        for partition, watched in self._watched:
            # When the purgatory counted at the end of the log, it noted where the next batch would begin.
            partition.end_position = watched.position or partition.end_position
        if any(watched.log.view is not partition.view for partition, watched in self._watched):
            return self._read_and(self._respond)
        return self._respond()

    # Reading

    def _limit(self) -> int:
        """The most bytes of the response: the request's, the broker's, and what the client's quota leaves."""
        broker = self._broker
        limit = min(self._request.max_bytes, broker.config.integer("fetch.max.bytes"))
        if broker.quotas.is_set and (allowed := broker.quotas.fetched_bytes_max(self._context)) is not None:
            limit = min(limit, allowed)
        return limit

    def _choose(self) -> None:
        """Choose the partitions to read: all for a request that is refused, since each gets the error."""
        is_refused = self._isolation is None or self._is_from_follower
        self._chosen = [partition for partition in self._all if is_refused or not partition.is_unchanged]

    @property
    def _is_from_follower(self) -> bool:
        return self._request.replica_id >= 0 or self._request.replica_state.replica_id >= 0

    def _set_log(self, partition: FetchedPartition) -> None:
        """Set the log of a partition; if it cannot be read, None and the code of the error."""
        log = partition.log
        try:
            if self._isolation is None:
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, UNKNOWN_ISOLATION_LEVEL)
            if log is None or not log.is_open:
                log = self._look_up(partition)
            if self._is_from_follower:
                raise RequestRefusedError(Code.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")
            # As in Kafka, any negative epoch means "unknown" in Fetch; in ListOffsets only -1 does.
            refuse_other_epoch(log, max(partition.requested.current_leader_epoch, -1))
            partition.log, partition.code = log, Code.NONE
        except Exception as error:  # one partition's error is not the others'
            partition.release()
            partition.log, partition.code = None, code_of(error)

    def _look_up(self, partition: FetchedPartition) -> PartitionLog:
        """Look up the log of a partition.

        In a session that names topics by id, a partition keeps the name that was looked up first. So when the
        topic is deleted and created again, the client gets INCONSISTENT_TOPIC_ID, as in Kafka. Raises
        RequestRefusedError, UnknownTopicError, StorageError.
        """
        partition.end_position, broker = None, self._broker
        if partition.topic is not None:
            return broker.log_of(partition.topic, partition.requested.partition)
        if partition.name is None:
            partition.name = broker.topic_of_id(partition.topic_id)
        if partition.name is None:
            raise RequestRefusedError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
        log = broker.log_of(partition.name, partition.requested.partition)
        if broker.id_of_topic(partition.name) != partition.topic_id:
            raise RequestRefusedError(Code.INCONSISTENT_TOPIC_ID, "the topic has another id now")
        return log

    def _find_logs_and_check_disk(self) -> bool:
        """Find the logs, and return whether a read may wait for a disk.

        It may if it begins below the active segment: older segments need not be in the page cache, the active
        one nearly always is. It may, too, if it has to read a transaction index, which is read as a whole.
        """
        for partition in self._chosen:
            self._set_log(partition)
        return any(
            partition.log is not None and self._needs_disk(partition.log, partition.requested)
            for partition in self._chosen
        )

    def _needs_disk(self, log: PartitionLog, requested: FetchPartition) -> bool:
        active = log.view.segments[-1]
        if requested.fetch_offset < active.base_offset:
            return True
        return self._reads_committed and active.transaction_index_size > 0

    def _read(self) -> None:
        """Read the chosen partitions in order, each within what is left of ``max_bytes``."""
        left, size_read, has_error = self._max_bytes, 0, False
        self._reads = []
        for partition in self._chosen:
            read = self._read_one(partition, left, is_first=size_read == 0)
            self._reads.append(read)
            size = len(read.data.records or b"")
            size_read += size
            # As in Kafka, a ``max_bytes`` below 0 becomes 0 after the first partition that is read; unknown
            # partitions are not.
            if read.data.error_code not in _LAST:
                left = max(left - size, 0)
            # As in Kafka: an error or a diverging epoch ends the wait, an unknown partition does not.
            ends_wait = read.data.error_code not in _CODES_THAT_WAIT or read.data.diverging_epoch.epoch >= 0
            has_error = has_error or ends_wait
        # An unchanged partition, which is not among the chosen ones, has a log.
        has_logs = len(self._chosen) < len(self._all) or any(
            partition.log is not None for partition in self._chosen
        )
        self._is_enough = (
            has_error
            or not has_logs
            or self._request.max_wait_ms <= 0
            or size_read >= min(self._request.min_bytes, self._max_bytes)
        )

    def _respond(self) -> FetchResponse:
        """The response with what was read; its session records what the client now knows. In the loop's
        thread."""
        session, reads, number = self._session, self._in_order(), 0
        if session is not None:
            # The read holds files open again. If the session was released during a long wait, it has to be
            # released once more when it is idle.
            number, session.is_released = session.number, False
            if not session.is_after(self._request.session_epoch):
                # The client has sent another request of the session, on another connection, meanwhile.
                return FetchResponse(error_code=Code.INVALID_FETCH_SESSION_EPOCH, session_id=number)
        if self._broker.quotas.is_set and (throttle_ms := self._throttle_ms()):
            # The client gets no partitions, and asks again.
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=number)
        if session is not None:
            reads = [read for read in reads if read.partition.record_response(read.data, read.view)]
            # Partitions that had records come last in the next response, so each gets its share of max_bytes.
            for read in reads:
                if has_records(read.data):
                    session.move_to_end(read.partition)
        elif self._request.session_epoch == FIRST_EPOCH:
            number = self._begin_session(reads)
        # As in Kafka. Before version 7 the response has no error_code of its own.
        code = Code.UNKNOWN_SERVER_ERROR if self._isolation is None else Code.NONE
        return FetchResponse(error_code=code, session_id=number, responses=_by_topic(reads))

    def _in_order(self) -> list[_Read]:
        """The reads in the order of the response: as in Kafka, unknown topics and partitions come last."""
        if any(read.view is None for read in self._reads):
            return sorted(self._reads, key=lambda read: _LAST.get(read.data.error_code, 0))
        return self._reads

    def _throttle_ms(self) -> int:
        """For how many ms the client is throttled, for the bytes of this response or for the time that it
        took; 0 if the client is not throttled."""
        quotas, context = self._broker.quotas, self._context
        reads = [read for read in self._reads if self._session is None or read.partition.is_new(read.data)]
        response = FetchResponse(responses=_by_topic(reads))
        size = _LENGTH_BYTES + sum(map(len, codec.write(response, context.version)))
        throttle_ms_by_kind = {
            FETCH: quotas.record(FETCH, context, size),
            REQUEST: quotas.used(context, context.seconds),
        }
        throttle_ms = quotas.throttle(context, throttle_ms_by_kind)
        if throttle_ms:
            quotas.give_back(FETCH, context, size)  # these bytes are not sent
        return throttle_ms

    def _begin_session(self, reads: Sequence[_Read]) -> int:
        """Create a session for the partitions, in the order of the response: its id, or 0 if there is no room
        for it."""
        for read in reads:
            read.partition.record_response(read.data, read.view)
        ordered, broker = self._partitions, self._broker
        if reads is not self._reads:  # ``_in_order`` has sorted them
            places = {id(read.partition): place for place, read in enumerate(reads)}
            ordered = dict(sorted(ordered.items(), key=lambda item: places[id(item[1])]))
        return broker.fetch_sessions.begin(
            ordered,
            by_id=self._by_id,
            slots=broker.config.integer("max.incremental.fetch.session.cache.slots"),
            now=broker.loop.time(),
        )

    def _read_one(self, partition: FetchedPartition, left: int, *, is_first: bool) -> _Read:
        """Read one partition, at most ``left`` bytes; ``is_first``: no partition before had records."""
        log, requested = partition.log, partition.requested
        if log is None:
            return _Read(partition, _failed(requested, partition.code), None)
        view = partition.view = log.view
        try:
            diverging = _diverging_epoch(log, requested)
            if diverging is not None:
                return _Read(partition, self._answer(requested, view, diverging_epoch=diverging), view)
            max_bytes = min(requested.partition_max_bytes, left)
            fetched = read_view(
                view,
                requested.fetch_offset,
                max(max_bytes, 0),
                isolation=self._isolation or READ_UNCOMMITTED,
                min_one_batch=is_first,
                resume_at=partition.resume_at,
            )
            # As in Kafka, the limit is checked after the offset, and not at the end of the log.
            end = view.last_stable_offset if self._reads_committed else view.high_watermark
            if max_bytes < 0 and requested.fetch_offset < end:
                raise RequestRefusedError(Code.UNKNOWN_SERVER_ERROR, f"max bytes is negative: {max_bytes}")
        except Exception as error:
            return _Read(partition, _failed(requested, code_of(error)), view)
        partition.end_position = _position_after(fetched) or partition.end_position
        # A slice that is shorter than its first batch is not sent: a client could decode nothing of it.
        is_cut = 0 < fetched.size < fetched.first_batch_size
        records = None if is_cut else fetched.slice
        aborted = None if is_cut else fetched.aborted
        return _Read(partition, self._answer(requested, view, records=records, aborted=aborted), view)

    def _answer(
        self,
        requested: FetchPartition,
        view: LogView,
        *,
        records: FileSlice | None = None,
        aborted: Sequence[TransactionIndexEntry] | None = None,
        diverging_epoch: EpochEndOffset = _NO_DIVERGING_EPOCH,
    ) -> PartitionData:
        """The response for one partition. ``aborted``: the aborted transactions, None if nothing was read.
        They are sent to ``read_committed`` fetches only: for others the field is null, since some clients
        filter aborted records whenever it is set. As in Kafka, None is null, too."""
        transactions = None
        if aborted is not None and self._reads_committed:
            transactions = tuple(
                AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in aborted
            )
        return PartitionData(
            partition_index=requested.partition,
            high_watermark=view.high_watermark,
            last_stable_offset=view.last_stable_offset,
            log_start_offset=view.log_start_offset,
            diverging_epoch=diverging_epoch,
            aborted_transactions=transactions,
            records=records or b"",
        )

    def _find_and_read(self) -> None:
        """Find the logs and read them, in a thread of the pool."""
        for partition in self._chosen:
            self._set_log(partition)
        self._read()


def _by_topic(reads: Sequence[_Read]) -> tuple[FetchableTopicResponse, ...]:
    """The reads, grouped by topic: consecutive partitions of one topic become one entry."""
    topics = groupby(reads, key=lambda read: (read.partition.topic, read.partition.topic_id))
    return tuple(
        FetchableTopicResponse(
            topic=name or "", topic_id=topic_id, partitions=tuple(read.data for read in topic_reads)
        )
        for (name, topic_id), topic_reads in topics
    )


def _position_after(fetched: FetchResult) -> FetchPosition | None:
    """The position at which the log's next batch will begin, after a read up to the log's end; None after any
    other read, so the next one searches for its offset."""
    view, batches, segment = fetched.view, fetched.slice, fetched.segment
    if batches is None or segment is None or segment is not view.segments[-1]:
        return None
    if batches.position + batches.size < view.active_size:
        return None
    return FetchPosition(segment, view.active_size, view.log_end_offset)


def refuse_other_epoch(log: PartitionLog, epoch: int) -> None:
    """Raises RequestRefusedError if the client's leader ``epoch`` is not the log's (KIP-320):
    FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one. -1: the client does not know
    the epoch."""
    if epoch in (-1, log.leader_epoch):
        return
    is_old = epoch < log.leader_epoch
    code = Code.FENCED_LEADER_EPOCH if is_old else Code.UNKNOWN_LEADER_EPOCH
    raise RequestRefusedError(code, f"the log's leader epoch is {log.leader_epoch}, not {epoch}")


def _diverging_epoch(log: PartitionLog, requested: FetchPartition) -> EpochEndOffset | None:
    """Where the log diverges from what the client has fetched (KIP-595): the largest epoch of the log up to
    the client's, and its end offset; None if the log does not diverge, or the request has no last epoch.
    Raises OffsetOutOfRangeError."""
    if requested.last_fetched_epoch < 0:
        return None
    epoch_and_end = log.end_of_epoch(requested.last_fetched_epoch)
    if epoch_and_end is None or requested.fetch_offset < log.view.log_start_offset:
        reason = f"offset {requested.fetch_offset} of epoch {requested.last_fetched_epoch} is not in the log"
        raise OffsetOutOfRangeError(reason, path=str(log.topic_partition))
    epoch, end_offset = epoch_and_end
    if epoch < requested.last_fetched_epoch or end_offset < requested.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _failed(requested: FetchPartition, code: int) -> PartitionData:
    """The response for a partition with an error."""
    return PartitionData(
        partition_index=requested.partition,
        error_code=code,
        high_watermark=-1,
        # Kafka has an empty list for unknown partitions, null for other errors.
        aborted_transactions=() if code in _CODES_THAT_WAIT else None,
    )
