"""Appends records to a topic (as ``kcat -P``) and reads them (as ``kcat -C``).

Records go to the partitions that ``runtime.producing.Partitioner`` chooses; batches of records without a key
go to one partition after another (round-robin). What was appended before an error stays; all of it is durable
when ``TopicProducer`` is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from siltstone.base.clock import SystemClock, checked_ms
from siltstone.base.closing import Closing
from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.errors import DirectoryRefusedError, OffsetOutOfRangeError, UnknownTopicError, UsageError
from siltstone.base.records.layout import TIMESTAMP_TYPE_BIT
from siltstone.commands.directories import LIST_TOPICS, BrokerDirectories, Snapshot
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, LogView
from siltstone.log.ledger.reading import open_reader
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import EARLIEST, AtTime, PolledRecords, Record, Start, records_of
from siltstone.runtime.producing import NewRecord, Partitioner, batch_of, batches_for


@dataclass(slots=True)
class ProducedRecords:
    """Records appended to one partition: offsets of the first and the last, and their number."""

    topic_partition: TopicPartition
    first_offset: int
    last_offset: int
    records: int


class TopicProducer(Closing):
    """Appends records to a topic of log directories that it opens. Use it as a context manager.

    ``produced``: the records appended so far, by partition.
    """

    def __init__(
        self,
        directories: BrokerDirectories,
        topic: str,
        *,
        partition: int | None = None,
        compression: str | None = None,
    ) -> None:
        """Raises UnknownTopicError, UsageError for a codec, DirectoryLockedError, SiltstoneError."""
        if compression is not None and compression not in CODEC_NAMES:
            advice = f"pass one of {', '.join(CODEC_NAMES)}"
            raise UsageError(f"there is no codec {compression!r}", advice=advice)
        self._compression = compression
        snapshot = directories.snapshot_before_creation()  # before anything is locked or changed
        if topic not in snapshot.names():
            advice = "create it with siltstone topics --create"
            raise UnknownTopicError(f"there is no topic {topic!r}", advice=advice)
        if partition is not None and partition not in snapshot.topic(topic).partitions:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}", advice=LIST_TOPICS)
        self._manager = directories.open()
        try:
            numbers = self._manager.topics.describe(topic).partitions
            self._logs = {n: self._manager[topic, n] for n in numbers if partition in (None, n)}
        except BaseException:
            self._manager.close()
            raise
        self._topic, self._partition, self._numbers = topic, partition, sorted(self._logs)
        self._partition_count = self._manager.partition_count(topic)
        self._partitioner = Partitioner(self._round_robin)
        self._round_robin_count = 0
        self.produced: dict[int, ProducedRecords] = {}

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append records, in their order within each partition. Raises UsageError, LogError."""
        numbers = [self._partition or 0] * len(records)
        if self._partition is None:
            numbers = self._partitioner.partitions(self._topic, records, self._numbers, self._partition_count)
        by_partition: dict[int, list[NewRecord]] = {}
        for number, record in zip(numbers, records, strict=True):
            by_partition.setdefault(number, []).append(record)
        for number, records_of_partition in by_partition.items():
            for batch in batches_for(self._logs[number].config, records_of_partition):
                self._append(number, batch)

    def _round_robin(self, _: Sequence[int]) -> int:
        """The partition of the next batch of records without a key."""
        self._round_robin_count += 1
        return self._numbers[(self._round_robin_count - 1) % len(self._numbers)]

    def _append(self, number: int, records: Sequence[NewRecord]) -> None:
        log = self._logs[number]
        codec = self._compression or log.config.compression_type
        appended = log.append(batch_of(records, codec, SystemClock().now_ms()))
        produced = self.produced.setdefault(
            number,
            ProducedRecords(
                log.topic_partition, first_offset=appended.first_offset, last_offset=0, records=0
            ),
        )
        produced.last_offset = appended.last_offset
        produced.records += len(records)

    def close(self) -> None:
        """Make all records durable and close the directories. Raises StorageError."""
        self._manager.close()


# Reading takes no lock and changes nothing. To follow a topic, the directory is listed repeatedly: only
# partitions whose files have changed are opened again, and new partitions are read from their start. Errors
# that a live broker causes for a moment (a swap of cleaned segments) are tried again.

ISOLATIONS = (READ_COMMITTED, READ_UNCOMMITTED)
_START_WORDS = dict.fromkeys(("start", "beginning", "earliest", "oldest"), EARLIEST)
_START_WORDS |= dict.fromkeys(("end", "latest", "newest"), "end")
"""The words of ``-o``: kcat's, Kafka's and Siltstone's."""
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_ATTEMPTS_MAX = 20
"""How often in a row reading a directory may fail, as when a live broker swaps segments, before the error is
raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRange:
    """The range of offsets to read, as ``consume -o`` names it. It starts at ``offset``, at the first record
    at or after ``from_ms``, or ``last`` offsets before the end; without these three at ``start``.
    ``until_ms``: end at the first record at or after that time."""

    start: str = EARLIEST
    offset: int | None = None
    last: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    def start_in(self, log: ReadOnlyLog, isolation: str) -> Start:
        """The start of a reader of the log."""
        end = log.view.readable_end(isolation)
        if self.offset is not None:
            return self.offset
        if self.from_ms is not None:
            return AtTime(self.from_ms)
        if self.last is not None:
            return max(end - self.last, log.log_start_offset)
        return end if self.start == "end" else EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Records fetched from a broker. ``is_log_append_time``: for each record, is its timestamp the time of
    the append?"""

    records: Sequence[Record]
    is_log_append_time: Sequence[bool]

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedRecords:
    """Records of one partition, from a directory (``polled``) or from a broker (``fetched``); with neither,
    the end was reached. ``offset``: the offset that is read next."""

    topic_partition: TopicPartition
    offset: int
    polled: PolledRecords | None = None
    fetched: FetchedRecords | None = None

    @property
    def is_end(self) -> bool:
        """Was the end reached?"""
        return self.polled is None and self.fetched is None

    def __len__(self) -> int:
        return len(self.fetched or self.polled or ())

    def first(self, count: int) -> tuple[list[Record], list[bool]]:
        """The first ``count`` records, and for each: is its timestamp the time of the append?"""
        if self.fetched is not None:
            return list(self.fetched.records[:count]), list(self.fetched.is_log_append_time[:count])
        assert self.polled is not None
        attributes = self.polled.batches["attributes"][self.polled.columns.batch[:count]]
        return list(records_of(self.polled, count)), ((attributes & TIMESTAMP_TYPE_BIT) != 0).tolist()


def parse_range(text: str) -> ConsumeRange:
    """``start``, ``end``, ``n``, ``-n``, ``s@ms``, ``e@ms``, or ``s@ms,e@ms``. Raises UsageError."""
    if text in _START_WORDS:
        return ConsumeRange(start=_START_WORDS[text])
    if _NUMBER.fullmatch(text):
        number = int(text)
        return ConsumeRange(last=-number) if number < 0 else ConsumeRange(offset=number)
    times: dict[str, int] = {}
    for part in text.split(","):
        kind, at, number_text = part.partition("@")
        if kind not in ("s", "e") or kind in times or not (at and _NUMBER.fullmatch(number_text)):
            advice = "pass start, end, an offset, -n, s@ms or s@ms,e@ms"
            raise UsageError(f"-o {text}: neither an offset nor a time", advice=advice)
        times[kind] = checked_ms(int(number_text), f"-o {kind}@")
    return ConsumeRange(from_ms=times.get("s"), until_ms=times.get("e"))


class _FollowedPartition:
    """A partition that a ``TopicConsumer`` reads. ``log``: as it was last opened. ``reader`` reads the view
    of this object, which is always that of the newest ``log``."""

    def __init__(
        self, log: ReadOnlyLog, offset_range: ConsumeRange, isolation: str, *, compacted: bool
    ) -> None:
        self.topic_partition, self.directory, self.log = log.topic_partition, log.directory, log
        end = None if offset_range.until_ms is None else log.offset_for_time(offset_range.until_ms)
        self.reader = open_reader(
            self,
            offset_range.start_in(log, isolation),
            read_compacted=compacted,
            isolation=isolation,
            end=None if end is None else end.offset,
            reset=EARLIEST,
        )
        self.end_reported = False
        start = self.reader.offset
        first = 0 if compacted else log.log_start_offset  # a ledger may have records from below the log start
        if not first <= start <= log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {start} is outside {log.log_start_offset} to {log.log_end_offset}",
                path=str(self.topic_partition),
                advice="pass -o with an offset between them, start or end",
            )

    @property
    def view(self) -> LogView:
        """The log's view, which ``reader`` asks for at each poll."""
        return self.log.view


class TopicConsumer:
    """Reads ``partitions`` (empty: all) of a topic in ``offset_range``. ``notes``: on the state of the
    directories.

    ``damage``: partitions that can only be read in part, and why.
    """

    def __init__(
        self,
        directories: BrokerDirectories,
        topic: str,
        *,
        partitions: frozenset[int] = frozenset(),
        offset_range: ConsumeRange = ConsumeRange(),
        isolation: str = READ_COMMITTED,
        beyond_high_watermark: bool = False,
        read_compacted: bool = False,
    ) -> None:
        """``read_compacted``: the compacted view of each partition that has one.

        Raises UnknownTopicError, OffsetOutOfRangeError, UsageError, SiltstoneError, OSError.
        """
        if isolation not in ISOLATIONS:
            advice = f"pass {' or '.join(ISOLATIONS)}"
            raise UsageError(f"--isolation {isolation}: there is no such level", advice=advice)
        self._directories, self._topic, self._isolation = directories, topic, isolation
        self._requested, self._beyond_high_watermark = partitions, beyond_high_watermark
        self._compacted = read_compacted
        snapshot = directories.snapshot()
        self.notes, self.broker_id = snapshot.notes, snapshot.broker_id
        numbers = snapshot.topic(topic).partitions
        missing = sorted(partitions - set(numbers))
        if missing:
            raise UnknownTopicError(f"topic {topic!r} has no partition {missing[0]}", advice=LIST_TOPICS)
        self._followed = {
            number: self._follow(snapshot, number, offset_range)
            for number in numbers
            if not partitions or number in partitions
        }
        damage = (snapshot.damage_of(followed.topic_partition) for followed in self._followed.values())
        self.damage = list(filter(None, damage))
        self._failures = 0

    def _follow(self, snapshot: Snapshot, number: int, offset_range: ConsumeRange) -> _FollowedPartition:
        log = self._log(snapshot, number)
        return _FollowedPartition(log, offset_range, self._isolation, compacted=self._compacted)

    def _log(self, snapshot: Snapshot, number: int) -> ReadOnlyLog:
        topic_partition = TopicPartition(self._topic, number)
        return snapshot.log(topic_partition, beyond_high_watermark=self._beyond_high_watermark)

    def read_to_end(self) -> Iterator[ConsumedRecords]:
        """Read the partitions in turn up to their current ends; then report the end of each.

        Raises CorruptRecordError, OSError.
        """
        unread = dict(sorted(self._followed.items()))
        while unread:
            for number, followed in list(unread.items()):
                polled = followed.reader.poll()
                if polled is not None:
                    followed.end_reported = False
                    yield ConsumedRecords(
                        topic_partition=followed.topic_partition, offset=followed.reader.offset, polled=polled
                    )
                    continue
                del unread[number]
                if not followed.end_reported:
                    followed.end_reported = True
                    yield ConsumedRecords(
                        topic_partition=followed.topic_partition, offset=followed.reader.offset
                    )

    def follow(self, wait: Callable[[], None]) -> Iterator[ConsumedRecords]:
        """Read without an end; ``wait`` is called before each check of the files for new records."""
        while True:
            try:
                yield from self.read_to_end()
            except FileNotFoundError as error:
                self._failed(error)
            wait()
            try:
                self._read_again()
                self._failures = 0
            except (FileNotFoundError, DirectoryRefusedError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Raise ``error`` once the directory could not be read ``_ATTEMPTS_MAX`` times in a row."""
        self._failures += 1
        if self._failures >= _ATTEMPTS_MAX:
            raise error

    def _read_again(self) -> None:
        """Open the partitions again whose files have changed, and begin to read new partitions."""
        changed = [number for number, followed in self._followed.items() if not followed.log.is_current]
        snapshot = self._directories.snapshot()
        for number in snapshot.topic(self._topic).partitions:
            if number in changed:
                followed = self._followed[number]
                followed.log = self._log(snapshot, number)
            elif number not in self._followed and not self._requested:
                self._followed[number] = self._follow(snapshot, number, ConsumeRange())
