"""Fetch sessions (KIP-227): a client names its partitions once, and then only what changes.

::

    (session 0, epoch 0) ─► all partitions ─► response with all of them and a session's number
    (number, epoch 1) ─► changed partitions, those to forget ─► response with what is new
    (number, epoch 2) ─► …                                      (number, epoch -1) ─► the session is closed

A response of a session has a partition only if it has records or an error, or if its high watermark or log
start offset differs from what the last response said. A partition that had records moves to the end of the
session, so with a small ``max_bytes`` each partition has its turn.

A session also caches, for each partition, what makes the next read cheap:

- its log;
- the position of the log's end, where the next batch will begin: a read from there searches no index;
- the view of the log up to whose end the client has fetched. While the log still has that view, the partition
  is not read: an idle partition costs one comparison a request.

The position and the view hold segments' files open, also files that were deleted meanwhile, which then still
take space. So they are cleared after an error of the partition, and by ``release_idle`` in a session that was
not used for long: its client may have died.

Everything runs in the loop's thread, except that a read in the pool writes the cached fields of its
partitions. Corresponds to Kafka's ``FetchSession``, ``CachedPartition`` and ``FetchSessionCacheShard``;
unlike Kafka's, the cache also limits the partitions of all sessions together.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from siltstone.broker.errors import Code, RequestRefusedError
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData
from siltstone.log.fetch import FetchPosition, LogView
from siltstone.log.partition import PartitionLog

FIRST_EPOCH: Final = 0
LAST_EPOCH: Final = -1
IDLE_SECONDS: Final = 120.0
"""A session whose last use was longer ago holds no files open, and may be evicted. One that was still used at
a greater age than this may be evicted for a larger one (Kafka's
``MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS``)."""
PARTITIONS_MAX: Final = 200_000
"""The most partitions of all sessions together. They take about 100 MB, which the memory budget does not
count."""
_INT_MAX = (1 << 31) - 1
_Key: TypeAlias = "tuple[str | bytes, int]"
"""The name or the id of a topic, and the partition's number."""


@dataclass(slots=True, eq=False, kw_only=True)
class FetchedPartition:
    """One partition that a client fetches (Kafka's ``CachedPartition``).

    ``requested``: the partition's part of the request. ``topic``: the topic's name; None if the client uses
    ``topic_id``. ``name``: the name that was looked up for the id, None before. ``log``: the open log; None
    if it was not looked up yet, or cannot be read, because of the error ``code``. ``view``: the log's view at
    the last read. ``end_position``: the position of the log's end, if a read came to it. ``high_watermark``,
    ``log_start_offset``: as in the last response; -1 before the first one and after an error.
    ``unchanged_view``: the view up to whose end the client has fetched; while the log still has it, there is
    nothing to send.
    """

    topic: str | None
    topic_id: bytes
    requested: FetchPartition
    name: str | None = None
    log: PartitionLog | None = None
    code: int = Code.NONE
    view: LogView | None = None
    end_position: FetchPosition | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    unchanged_view: LogView | None = None

    @property
    def is_unchanged(self) -> bool:
        """Has the log not changed since a response said that there is nothing more?"""
        log = self.log
        return log is not None and log.view is self.unchanged_view and log.is_open

    @property
    def resume_at(self) -> FetchPosition | None:
        """``end_position``, if the client fetches from there; else None."""
        end = self.end_position
        return end if end is not None and end.offset == self.requested.fetch_offset else None

    def release(self) -> None:
        """Drop the references to segments, and to a log that is closed: the next read finds them again."""
        self.view = self.end_position = self.unchanged_view = None
        if self.log is not None and not self.log.is_open:
            # Without a log there is the code of an error; the next read looks the log up, and sets both.
            self.log, self.code = None, Code.UNKNOWN_TOPIC_OR_PARTITION

    def request_again(self, requested: FetchPartition) -> None:
        """Take the partition's part of a new request, which may have another offset."""
        self.requested, self.unchanged_view = requested, None

    def is_new(self, data: PartitionData) -> bool:
        """Is anything in ``data`` new to the client?"""
        is_new = data.error_code != Code.NONE or data.diverging_epoch.epoch >= 0 or has_records(data)
        is_new = is_new or data.high_watermark != self.high_watermark
        return is_new or data.log_start_offset != self.log_start_offset

    def record_response(self, data: PartitionData, view: LogView | None) -> bool:
        """Remember that the client knows ``data`` from now on, which was read from ``view``. Returns whether
        anything in it is new to the client, so that the response must have it."""
        is_failed = data.error_code != Code.NONE
        is_diverging = data.diverging_epoch.epoch >= 0
        is_new = self.is_new(data)
        # -1 differs from any high watermark, so after an error the next response has the partition again.
        self.high_watermark = -1 if is_failed else data.high_watermark
        self.log_start_offset = data.log_start_offset
        is_at_end = self.requested.fetch_offset >= data.high_watermark
        self.unchanged_view = view if is_at_end and not (is_failed or is_diverging) else None
        return is_new


FetchedPartitions: TypeAlias = "dict[_Key, FetchedPartition]"


def has_records(data: PartitionData) -> bool:
    """Does the response for a partition have records?"""
    return data.records is not None and len(data.records) > 0


def partitions_of(request: FetchRequest, *, by_id: bool) -> FetchedPartitions:
    """The partitions that a request names, in its order. If it names one twice, the later entry counts."""
    partitions: FetchedPartitions = {}
    _add(partitions, request, by_id=by_id)
    return partitions


def _add(partitions: FetchedPartitions, request: FetchRequest, *, by_id: bool) -> None:
    """Add the partitions of a request, or change those that are there already."""
    for topic in request.topics:
        for requested in topic.partitions:
            key = (topic.topic_id if by_id else topic.topic, requested.partition)
            if (known := partitions.get(key)) is not None:
                known.request_again(requested)
            else:
                name = None if by_id else topic.topic
                partitions[key] = FetchedPartition(topic=name, topic_id=topic.topic_id, requested=requested)


@dataclass(slots=True, eq=False, kw_only=True)
class FetchSession:
    """One session. ``number``: its id. ``epoch``: the one that the next request must have. ``by_id``: does
    the client name topics by id? ``created``, ``last_used``: the loop's time, in seconds. ``is_released``:
    has ``FetchSessionCache.release_idle`` released its partitions since it was last used?"""

    number: int
    by_id: bool
    partitions: FetchedPartitions
    created: float
    last_used: float
    epoch: int = field(default=FIRST_EPOCH + 1)
    is_released: bool = False

    def change(self, request: FetchRequest) -> None:
        """Add, change and forget partitions as an incremental request says."""
        _add(self.partitions, request, by_id=self.by_id)
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                self.partitions.pop((forgotten.topic_id if self.by_id else forgotten.topic, number), None)

    def move_to_end(self, partition: FetchedPartition) -> None:
        """Move a partition that had records behind the others."""
        key = (partition.topic or partition.topic_id, partition.requested.partition)
        if self.partitions.get(key) is partition:
            self.partitions[key] = self.partitions.pop(key)

    def is_after(self, epoch: int) -> bool:
        """Was a request with ``epoch`` the last one of this session, so that a request with the next epoch
        follows?"""
        return self.epoch == _next_epoch(epoch)


class FetchSessionCache:
    """The sessions of a broker (Kafka's ``FetchSessionCache``). ``partitions``: the number of partitions of
    all sessions."""

    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, partitions: FetchedPartitions, *, by_id: bool, slots: int, now: float) -> int:
        """Create a session (request epoch 0). Returns its id, or 0 if there is no room and no session may be
        evicted: the client then continues without a session. ``slots``: the most sessions
        (``max.incremental.fetch.session.cache.slots``); ``now``: the loop's time, in seconds."""
        if not self._make_room(len(partitions), slots, now):
            return 0
        number = 0
        while not number or number in self._sessions:
            number = secrets.randbelow(_INT_MAX) + 1
        session = FetchSession(number=number, by_id=by_id, partitions=partitions, created=now, last_used=now)
        self._sessions[number] = session
        self.partitions += len(partitions)
        return number

    def resume(self, request: FetchRequest, *, by_id: bool, now: float) -> FetchSession | None:
        """The session of an incremental request (KIP-227), changed as it says; None if that leaves no
        partition, which ends the session.

        Raises RequestRefusedError: FETCH_SESSION_ID_NOT_FOUND, after which the client begins a new session,
        for an unknown session, and if the request adds partitions beyond ``PARTITIONS_MAX``;
        INVALID_FETCH_SESSION_EPOCH for another epoch than the next; FETCH_SESSION_TOPIC_ID_ERROR if the
        client now names topics by id and did not before, or the reverse.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            raise RequestRefusedError(Code.FETCH_SESSION_ID_NOT_FOUND, "there is no such session")
        if request.session_epoch != session.epoch:
            raise RequestRefusedError(Code.INVALID_FETCH_SESSION_EPOCH, f"the epoch is {session.epoch}")
        if by_id != session.by_id:
            raise RequestRefusedError(Code.FETCH_SESSION_TOPIC_ID_ERROR, "topics were named otherwise")
        before = len(session.partitions)
        session.change(request)
        self.partitions += len(session.partitions) - before
        if not session.partitions:
            self.end(session.number)
            return None
        if self.partitions > PARTITIONS_MAX and len(session.partitions) > before:
            self.end(session.number)
            raise RequestRefusedError(Code.FETCH_SESSION_ID_NOT_FOUND, "sessions have too many partitions")
        session.last_used, session.epoch = now, _next_epoch(session.epoch)
        session.is_released = False
        self._sessions[session.number] = self._sessions.pop(session.number)
        return session

    def release_idle(self, now: float) -> None:
        """Let sessions that were not used for ``IDLE_SECONDS`` hold no files open. ``now``: the loop's time,
        in seconds."""
        for session in self._sessions.values():
            if now - session.last_used <= IDLE_SECONDS:
                return  # all sessions behind it were used later
            if not session.is_released:
                session.is_released = True
                for partition in session.partitions.values():
                    partition.release()

    def end(self, number: int) -> None:
        """Remove the session with this id, if there is one."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.partitions -= len(session.partitions)

    def _make_room(self, size: int, slots: int, now: float) -> bool:
        """Evict sessions until one of ``size`` partitions fits; returns whether it does.

        Sessions that were idle for ``IDLE_SECONDS`` are evicted first, the least recently used before others.
        If all slots are still taken, the smallest of the sessions that were in use for longer than that is
        evicted, if it has fewer than ``size`` partitions (Kafka's ``evictableByAll``).
        """
        while len(self._sessions) >= slots or self.partitions + size > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used <= IDLE_SECONDS:
                break
            self.end(oldest.number)
        if self.partitions + size > PARTITIONS_MAX:
            return False
        if len(self._sessions) >= slots:
            older = (
                session
                for session in self._sessions.values()
                if session.last_used - session.created > IDLE_SECONDS
            )
            smallest = min(older, key=lambda session: len(session.partitions), default=None)
            if smallest is not None and len(smallest.partitions) < size:
                self.end(smallest.number)
        return len(self._sessions) < slots


def _next_epoch(epoch: int) -> int:
    """The epoch of the next request. After the largest int32 follows 1, since 0 begins a new session."""
    return epoch + 1 if epoch < _INT_MAX else 1
