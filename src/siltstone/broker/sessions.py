"""Fetch sessions (KIP-227): a client names its partitions once, and then only what changes.

::

    (session 0, epoch 0) ─► all partitions ─► answer with all of them and a session's number
    (number, epoch 1) ─► those that changed, those to forget ─► answer with what is new
    (number, epoch 2) ─► …                                      (number, epoch -1) ─► the session is closed

New is a partition with records, another high watermark or log start offset than the client was told, or an
error. One that had records moves to the end, so that with a small limit each has its turn.

A session also keeps what the broker knows of a partition: its log, the place where the next batch will begin,
so that a read at the end of the log searches nothing, and the view of the log for which nothing new is to be
told. While a log has that view it is passed over: a session of a thousand idle partitions costs a comparison
for each.

Everything runs in the loop's thread, but what a read notes of a partition. Corresponds to ``FetchSession``
and ``FetchSessionCacheShard``; unlike there, the partitions of all sessions have a limit, too.
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
"""A session that was not used for longer makes room for others, as one that is older does for larger ones
(``FetchSession.EVICTION_MS``)."""
PARTITIONS_MAX: Final = 200_000
"""Of all sessions: about 100 MB, beside what requests and answers may take."""
_INT_MAX = (1 << 31) - 1
_Key: TypeAlias = "tuple[str | bytes, int]"
"""The name or the id of a topic, and the partition's number."""


@dataclass(slots=True, eq=False, kw_only=True)
class FetchedPartition:
    """One partition that a client fetches: what it wants, and what is known for its next read.

    ``topic``: its name; None where the client names it by ``topic_id``. ``name``: the name that was found for
    an id. ``log``: where it is read; None with the ``code`` of why not. ``view``: the log as it was when it
    was read last. ``place``: where the log went on behind the last read. ``high_watermark``,
    ``log_start_offset``: what the client was told last, -1: nothing, or an error. ``quiet_view``: the log's
    view for which the client knows all that there is.
    """

    topic: str | None
    topic_id: bytes
    wanted: FetchPartition
    name: str | None = None
    log: PartitionLog | None = None
    code: int = Code.NONE
    view: LogView | None = None
    place: FetchPosition | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    quiet_view: LogView | None = None

    @property
    def is_quiet(self) -> bool:
        """Has the log not moved since the client was told that there is nothing?"""
        log = self.log
        return log is not None and log.view is self.quiet_view and log.is_open

    @property
    def place_of_offset(self) -> FetchPosition | None:
        """The place, if that is where the client goes on."""
        place = self.place
        return place if place is not None and place.offset == self.wanted.fetch_offset else None

    def want(self, wanted: FetchPartition) -> None:
        """The client says anew what it wants."""
        self.wanted, self.quiet_view = wanted, None

    def tell(self, data: PartitionData, view: LogView | None) -> bool:
        """Note that the client is told ``data``, which was read from ``view``; is anything new in it?"""
        is_failed = data.error_code != Code.NONE
        is_diverging = data.diverging_epoch.epoch >= 0
        is_new = is_failed or is_diverging or has_records(data)
        is_new = is_new or data.high_watermark != self.high_watermark
        is_new = is_new or data.log_start_offset != self.log_start_offset
        # After an error the partition is told again.
        self.high_watermark = -1 if is_failed else data.high_watermark
        self.log_start_offset = data.log_start_offset
        is_at_end = self.wanted.fetch_offset >= data.high_watermark
        self.quiet_view = view if is_at_end and not (is_failed or is_diverging) else None
        return is_new


FetchedPartitions: TypeAlias = "dict[_Key, FetchedPartition]"


def has_records(data: PartitionData) -> bool:
    """Does an answer have records?"""
    return data.records is not None and len(data.records) > 0


def partitions_of(request: FetchRequest, *, by_id: bool) -> FetchedPartitions:
    """The partitions that a request names; of one that is listed twice the later entry counts."""
    partitions: FetchedPartitions = {}
    _add(partitions, request, by_id=by_id)
    return partitions


def _add(partitions: FetchedPartitions, request: FetchRequest, *, by_id: bool) -> None:
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.topic_id if by_id else topic.topic, wanted.partition)
            if (known := partitions.get(key)) is not None:
                known.want(wanted)
            else:
                name = None if by_id else topic.topic
                partitions[key] = FetchedPartition(topic=name, topic_id=topic.topic_id, wanted=wanted)


@dataclass(slots=True, eq=False, kw_only=True)
class FetchSession:
    """One session. ``epoch``: of the next request. ``by_id``: are topics named by id? ``begun`` and ``used``:
    the loop's time, in seconds."""

    number: int
    by_id: bool
    partitions: FetchedPartitions
    begun: float
    used: float
    epoch: int = field(default=FIRST_EPOCH + 1)

    def change(self, request: FetchRequest) -> None:
        """Add, change and forget partitions."""
        _add(self.partitions, request, by_id=self.by_id)
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                self.partitions.pop((forgotten.topic_id if self.by_id else forgotten.topic, number), None)

    def move_to_end(self, partition: FetchedPartition) -> None:
        """It had records: others come before it in the next answer."""
        key = (partition.topic or partition.topic_id, partition.wanted.partition)
        if self.partitions.get(key) is partition:
            self.partitions[key] = self.partitions.pop(key)

    def is_after(self, epoch: int) -> bool:
        """Is a request with ``epoch`` the session's latest?"""
        return self.epoch == _next_epoch(epoch)


class FetchSessions:
    """The sessions of a broker. ``partitions``: of all of them together."""

    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}  # in the order of their last use
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, partitions: FetchedPartitions, *, by_id: bool, slots: int, now: float) -> int:
        """Keep partitions for later requests, if one of ``slots`` can be had: a session's number, or 0."""
        if not self._make_room(len(partitions), slots, now):
            return 0
        number = 0
        while not number or number in self._sessions:
            number = secrets.randbelow(_INT_MAX) + 1
        session = FetchSession(number=number, by_id=by_id, partitions=partitions, begun=now, used=now)
        self._sessions[number] = session
        self.partitions += len(partitions)
        return number

    def go_on(self, request: FetchRequest, *, by_id: bool, now: float) -> FetchSession | None:
        """The session of a request, changed as it says; None if that leaves no partition, which ends it.
        Raises RequestRefusedError."""
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
        session.used, session.epoch = now, _next_epoch(session.epoch)
        self._sessions[session.number] = self._sessions.pop(session.number)
        return session

    def end(self, number: int) -> None:
        """Forget a session, if there is one with this number."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.partitions -= len(session.partitions)

    def _make_room(self, size: int, slots: int, now: float) -> bool:
        """Is there room for a session of ``size`` partitions? Those that were idle for long make it. One slot
        may also be had from the smallest of the older sessions, if that is smaller."""
        while len(self._sessions) >= slots or self.partitions + size > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used <= IDLE_SECONDS:
                break
            self.end(oldest.number)
        if self.partitions + size > PARTITIONS_MAX:
            return False
        if len(self._sessions) >= slots:
            older = (each for each in self._sessions.values() if each.used - each.begun > IDLE_SECONDS)
            smallest = min(older, key=lambda each: len(each.partitions), default=None)
            if smallest is not None and len(smallest.partitions) < size:
                self.end(smallest.number)
        return len(self._sessions) < slots


def _next_epoch(epoch: int) -> int:
    return epoch + 1 if epoch < _INT_MAX else 1
