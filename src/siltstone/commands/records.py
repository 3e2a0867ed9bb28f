"""Records into a topic: partitioned as Kafka's clients do, appended batch by batch (as ``kcat -P``).

Records with a key go where its hash says; those without go to one partition after another, a batch each.
What was appended before an error stays appended; everything is durable when ``Producing`` is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.clock import Clock, SystemClock
from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.errors import DirectoryRefusedError, OffsetOutOfRangeError, UnknownTopicError, UsageError
from siltstone.base.records.build import RECORD_ROOM
from siltstone.base.records.hashing import partition_for_key
from siltstone.base.records.layout import BATCH_OVERHEAD
from siltstone.commands.places import Look, Place
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED, LogView
from siltstone.log.ledger.reading import open_reader
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadOnlyLog
from siltstone.log.reading import EARLIEST, AtTime, Polled, Start
from siltstone.runtime.embedded import NewRecord, batch_of

_BATCH_BYTES = 256 << 10


@dataclass(slots=True)
class Produced:
    """What went into one partition: offsets of the first and the last record, how many."""

    where: TopicPartition
    first_offset: int
    last_offset: int
    records: int


class Producing:
    """An open topic that records are appended to. Use it as a context.

    ``produced``: what was appended so far, by partition.
    """

    def __init__(
        self,
        place: Place,
        topic: str,
        *,
        partition: int | None = None,
        compression: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises UnknownTopicError, UsageError for a codec, DirectoryLockedError, SiltstoneError."""
        if compression is not None and compression not in CODEC_NAMES:
            raise UsageError(f"codec {compression!r}: give one of {', '.join(CODEC_NAMES)}")
        self._compression, self._clock = compression, clock or SystemClock()
        look = place.look_before_making()  # before anything is locked or changed
        if topic not in look.names():
            message = f"there is no topic {topic!r} here; make it with siltstone topics --create"
            raise UnknownTopicError(message)
        if partition is not None and partition not in look.topic(topic).partitions:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}")
        self._manager = place.open()
        try:
            numbers = self._manager.topics.describe(topic).partitions
            self._logs = {n: self._manager[topic, n] for n in numbers if partition in (None, n)}
        except BaseException:
            self._manager.close()
            raise
        self._count = len(numbers)
        self._partition = partition
        self._turn = 0
        self.produced: dict[int, Produced] = {}

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append records, in their order within each partition. Raises LogError."""
        keyless = sorted(self._logs)[self._turn % len(self._logs)]
        self._turn += 1
        by_partition: dict[int, list[NewRecord]] = {}
        for record in records:
            number = keyless if record.key is None else partition_for_key(record.key, self._count)
            by_partition.setdefault(number if self._partition is None else self._partition, []).append(record)
        for number, some in by_partition.items():
            for batch in _batches(some, self._logs[number]):
                self._append(number, batch)

    def _append(self, number: int, records: Sequence[NewRecord]) -> None:
        log = self._logs[number]
        codec = log.config.compression_type if self._compression is None else self._compression
        codec = "uncompressed" if codec == "none" else codec
        appended = log.append(batch_of(records, codec, self._clock.now_ms()))
        produced = self.produced.setdefault(
            number, Produced(log.where, first_offset=appended.first_offset, last_offset=0, records=0)
        )
        produced.last_offset = appended.last_offset
        produced.records += len(records)

    def close(self) -> None:
        """Make everything durable and let go of the directories. Raises StorageError."""
        self._manager.close()

    def __enter__(self) -> Producing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _batches(records: Sequence[NewRecord], log: PartitionLog) -> Iterator[list[NewRecord]]:
    """Runs of records that fit a batch of this log; a record that is larger is one by itself."""
    most = min(_BATCH_BYTES, log.config.max_message_bytes, log.config.segment_bytes) - BATCH_OVERHEAD
    run: list[NewRecord] = []
    room = most
    for record in records:
        headers = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        size = RECORD_ROOM + len(record.key or b"") + len(record.value or b"")
        size += sum(20 + 4 * len(name) + len(value or b"") for name, value in headers)
        if run and size > room:
            yield run
            run, room = [], most
        run.append(record)
        room -= size
    if run:
        yield run


# Records out of a topic: from somewhere on to the end, or on and on (as ``kcat -C``).
#
# Nothing is locked and nothing is changed. Following looks at the directory again and again: a partition
# whose files have not changed is not opened anew, partitions that are made meanwhile are read from their
# start. What cannot be read for a moment beside a live broker (a swap of cleaned segments) is tried again.

ISOLATIONS = (READ_COMMITTED, READ_UNCOMMITTED)
_WORDS = dict.fromkeys(("start", "beginning", "earliest", "oldest"), EARLIEST)
_WORDS |= dict.fromkeys(("end", "latest", "newest"), "end")
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_TRIES = 20
"""How often in a row a directory that cannot be read for the moment is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where to begin and where to end, as ``-o`` says it. ``last``: so many records before the end.

    ``until_ms``: up to the first record at or after that time.
    """

    start: str = EARLIEST
    offset: int | None = None
    last: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Records of one partition; ``polled`` None: its end at ``offset`` was reached."""

    where: TopicPartition
    offset: int
    polled: Polled | None = None


def parse_range(text: str) -> Range:
    """``start``, ``end``, ``n``, ``-n``, ``s@ms``, ``e@ms``, or ``s@ms,e@ms``. Raises UsageError."""
    if text in _WORDS:
        return Range(start=_WORDS[text])
    if _NUMBER.fullmatch(text):
        number = int(text)
        return Range(last=-number) if number < 0 else Range(offset=number)
    times: dict[str, int] = {}
    for part in text.split(","):
        kind, at, number_text = part.partition("@")
        if kind not in ("s", "e") or kind in times or not (at and _NUMBER.fullmatch(number_text)):
            raise UsageError(f"-o {text}: give start, end, an offset, -n, s@ms or s@ms,e@ms")
        times[kind] = int(number_text)
    return Range(from_ms=times.get("s"), until_ms=times.get("e"))


class _Followed:
    """One partition that is read: ``view`` is the newest look at it."""

    def __init__(self, log: ReadOnlyLog, wanted: Range, isolation: str, *, compacted: bool) -> None:
        self.where, self.directory = log.where, log.directory
        self.view: LogView = log.view
        self.seen = _fingerprint(log.directory)
        self.reader = open_reader(
            self,
            _start(log, wanted, isolation),
            read_compacted=compacted,
            isolation=isolation,
            end=_end(log, wanted),
            reset=EARLIEST,
        )
        self.told = False
        start = self.reader.offset
        first = 0 if compacted else log.log_start_offset
        if not first <= start <= log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.where}: offset {start} is outside {log.log_start_offset} to {log.log_end_offset}; "
                "give one between them, start or end"
            )


def _fingerprint(directory: Path) -> dict[str, int]:
    """The sizes of a partition's logs: they change with whatever changes what can be read."""
    names = files.list_files(directory)
    return {name: facts.size for name, facts in names.items() if ".log" in name}


def _limit(view: LogView, isolation: str) -> int:
    return view.last_stable_offset if isolation == READ_COMMITTED else view.high_watermark


def _start(log: ReadOnlyLog, wanted: Range, isolation: str) -> Start:
    if wanted.offset is not None:
        return wanted.offset
    if wanted.from_ms is not None:
        return AtTime(wanted.from_ms)
    if wanted.last is not None:
        return max(_limit(log.view, isolation) - wanted.last, log.log_start_offset)
    return _limit(log.view, isolation) if wanted.start == "end" else EARLIEST


def _end(log: ReadOnlyLog, wanted: Range) -> int | None:
    if wanted.until_ms is None:
        return None
    found = log.offset_for_time(wanted.until_ms)
    return None if found is None else found.offset


class Consuming:
    """The partitions of a topic, read from ``wanted`` on. ``notes``: on the state of the directories.

    ``damage``: partitions of which not all can be read, and why.
    """

    def __init__(
        self,
        place: Place,
        topic: str,
        *,
        partitions: frozenset[int] = frozenset(),
        wanted: Range = Range(),
        isolation: str = READ_COMMITTED,
        to_the_end: bool = False,
        read_compacted: bool = False,
    ) -> None:
        """``read_compacted``: each partition's compacted view, where it has one.

        Raises UnknownTopicError, OffsetOutOfRangeError, UsageError, SiltstoneError, OSError.
        """
        if isolation not in ISOLATIONS:
            raise UsageError(f"--isolation {isolation}: give {' or '.join(ISOLATIONS)}")
        self._place, self._topic, self._isolation = place, topic, isolation
        self._only, self._to_the_end = partitions, to_the_end
        self._compacted = read_compacted
        look = place.look()
        self.notes, self.broker_id = look.notes, look.broker_id
        numbers = look.topic(topic).partitions
        missing = sorted(partitions - set(numbers))
        if missing:
            raise UnknownTopicError(f"topic {topic!r} has no partition {missing[0]}")
        self._followed = {
            number: self._follow(look, number, wanted)
            for number in numbers
            if not partitions or number in partitions
        }
        self.damage = list(filter(None, (look.damage_of(each.where) for each in self._followed.values())))
        self._failures = 0

    def _follow(self, look: Look, number: int, wanted: Range) -> _Followed:
        return _Followed(self._log(look, number), wanted, self._isolation, compacted=self._compacted)

    def _log(self, look: Look, number: int) -> ReadOnlyLog:
        return look.log(TopicPartition(self._topic, number), to_the_end=self._to_the_end)

    def to_the_end(self) -> Iterator[Arrived]:
        """Records up to the end as it is now, a read of each partition in turn; then the end of each.

        Raises CorruptRecordError, OSError.
        """
        waiting = dict(sorted(self._followed.items()))
        while waiting:
            for number, each in list(waiting.items()):
                polled = each.reader.poll()
                if polled is not None:
                    each.told = False
                    yield Arrived(where=each.where, offset=each.reader.offset, polled=polled)
                    continue
                del waiting[number]
                if not each.told:
                    each.told = True
                    yield Arrived(where=each.where, offset=each.reader.offset)

    def on_and_on(self, wait: Callable[[], None]) -> Iterator[Arrived]:
        """The same without an end: ``wait`` is called before the files are looked at again."""
        while True:
            try:
                yield from self.to_the_end()
            except FileNotFoundError as error:
                self._failed(error)
            wait()
            try:
                self._look_again()
                self._failures = 0
            except (FileNotFoundError, DirectoryRefusedError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Again a look that cannot be taken: after some, it is no passing state."""
        self._failures += 1
        if self._failures >= _TRIES:
            raise error

    def _look_again(self) -> None:
        changed = [
            number for number, each in self._followed.items() if _fingerprint(each.directory) != each.seen
        ]
        look = self._place.look()
        for number in look.topic(self._topic).partitions:
            if number in changed:
                each = self._followed[number]
                each.seen = _fingerprint(each.directory)
                each.view = self._log(look, number).view
            elif number not in self._followed and not self._only:
                self._followed[number] = self._follow(look, number, Range())
