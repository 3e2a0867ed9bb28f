"""Finds the last offset of each key above the cleaner checkpoint, for pages of the view *latest*.

Below the checkpoint each key has one record, which is the last of its key unless the key occurs above. For
each key, 16 bytes are kept: half of its keyed hash (64 bits) and the offset. They are sorted by hash, in
buckets by the hash's first bits, so a merge needs memory for one bucket. With 16 million keys, the most that
fit, two keys of a log share a hash with a probability of 1 in 100,000; one of them would then be missing from
the view.

``LatestViews`` keeps them for the logs that were requested, within a bound for all of them: the least
recently used ones are dropped. They are built in the background and then brought up to date by
requests. What jobs have found has a bound of its own, so no page of a view drops it.

A log with more keys than the bound allows is read by a job, ``find_last_records``, once for each share of the
keys, so that a share fits. It keeps one bit an offset, and only keys of later records are kept as above::

    offsets    log start ────── checkpoint ────── end of the job ────── end of the log
    kept       without job:      | 16 bytes a key                              |
               after it:         1 bit an offset     | 16 bytes a key          |
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from siltstone.base.errors import TooManyKeysError
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.layout import BATCH_OVERHEAD, Bytes, Flags, Int64, Words
from siltstone.compaction.keys import hashes_of
from siltstone.log.read_only import ReadableLog, ReadOnlyLog
from siltstone.log.reading import LogReader

KEPT_BYTES = 256 << 20
"""Bytes of all key entries that are kept, and of all bits that jobs have found."""
ENTRY_BYTES = 16
_CONCURRENT_BUILDS = 2
"""Logs whose keys are built in the background at one time."""
_BUCKET_BITS = 6
_BUCKET_ENDS = np.arange(1, 1 << _BUCKET_BITS, dtype=np.uint64) << np.uint64(64 - _BUCKET_BITS)
"""The hashes at which a bucket ends and the next one begins."""
_MERGED_AT = 1 << 18
"""The fewest entries that are collected before they are merged into the buckets."""
SHARE_BITS_MAX = 10
"""A job divides the keys of a log into 1,024 shares at most, and reads the log once for each."""
JOB_ADVICE = (
    "let a job find them (the button on the page, or POST …/topics/TOPIC:find-latest); or clean the log "
    "first: below its cleaner checkpoint a key takes no memory; or search for the key"
)
_TABLE_ADVICE = (
    "find those of some partitions only, or read the last records as a table: siltstone.open or export, with "
    "view=latest"
)


class WorkBudget(Protocol):
    """The bounds of a request: ``browsing.Budget``."""

    spent: int

    @property
    def is_over(self) -> bool:
        """Is the budget used up, so that the request must end?"""
        ...


class Tail(NamedTuple):
    """The header of the batch with the last record below offset ``end``, of a log that another process may
    write; empty if there is none.

    A log that is opened again and has the same header there was not truncated below ``end`` meanwhile: in a
    Kafka's log, an offset and its leader epoch identify all records before. Of other logs it is not noticed
    if a program truncates one, and then appends other batches and this very one, with its times, at its
    offset.
    """

    end: int
    header: bytes

    @staticmethod
    def of(log: ReadableLog, end: int) -> Tail:
        """Read it. Raises CorruptRecordError (where batches cannot be told apart), OSError."""
        if not isinstance(log, ReadOnlyLog) or not log.log_start_offset < end <= log.high_watermark:
            return Tail(end, b"")
        fetched = log.read(end - 1, 1)
        if fetched.slice is None or fetched.first_offset >= end:  # a cleaning has removed the batch
            return Tail(end, b"")
        return Tail(end, fetched.slice.read()[:BATCH_OVERHEAD].tobytes())

    def is_in(self, log: ReadableLog) -> bool:
        """Does a log have it, too? Raises CorruptRecordError, OSError."""
        return bool(self.header) and Tail.of(log, self.end) == self


@dataclass(frozen=True, slots=True, eq=False)
class LastRecords:
    """Which of a log's records from offset ``start`` (inclusive) to ``end`` (exclusive) are the last of their
    keys up to ``end``. ``bits``: uint8 of (end - start + 7) // 8, the first offset in the highest bit.
    ``truncations``: how often the log had been truncated then; with another number the bits are no longer
    true. ``tail``: of the log, up to ``end``."""

    start: int
    end: int
    bits: Bytes
    truncations: int
    tail: Tail

    def holds(self, offsets: Int64) -> Flags:
        """Is the record of each offset the last of its key? False outside of the range."""
        is_inside = (offsets >= self.start) & (offsets < self.end)
        index = offsets[is_inside] - self.start
        is_inside[is_inside] = self.bits[index >> 3] & (128 >> (index & 7)) != 0
        return np.asarray(is_inside)


HashKey = tuple[np.uint64, np.uint64]
"""The random key of the keyed hash: no client can choose record keys that share a hash."""


class KeyShare(NamedTuple):
    """One of the 2**``bits`` shares of a log's keys: those whose hashes end with the bits of ``number``.
    All shares have one ``hash_key``."""

    number: int
    bits: int
    hash_key: HashKey

    def holds(self, hashes: Words) -> Flags:
        """Which of the hashes are of this share?"""
        return np.asarray(hashes & np.uint64((1 << self.bits) - 1) == np.uint64(self.number))


class LatestKeys:
    """The last offsets of one log's keys between ``base`` (inclusive) and ``end`` (exclusive).

    ``last_records``: what a job has found; ``base`` is its end then. Once the log was truncated, neither this
    nor the checkpoint may be true of it, and ``base`` is the log start.
    ``until``: read no further than this offset. ``share``: keep no other keys. ``advice``: of the error for
    too many keys. ``is_building``: they wait for a background thread, or it reads; ``failure``: why it could
    not, for the next request.
    """

    def __init__(
        self,
        log: ReadableLog,
        checkpoint: int,
        isolation: str,
        kept_bytes: int = KEPT_BYTES,
        *,
        last_records: LastRecords | None = None,
        until: int | None = None,
        share: KeyShare | None = None,
        advice: str | None = None,
    ) -> None:
        self._log, self._isolation, self._kept_bytes = log, isolation, kept_bytes
        self._checkpoint, self._last_records = checkpoint, last_records
        self._until, self._share, self._advice = until, share, advice
        self._hash_key = _random_hash_key() if share is None else share.hash_key
        self.lock = threading.Lock()
        self.is_building = False
        self.failure: Exception | None = None
        self._restart()

    def _restart(self) -> None:
        view = self._log.view
        self._truncations, self._tail = view.truncations, Tail.of(self._log, self.goal())
        if self._last_records is not None and self._last_records.truncations != view.truncations:
            self._last_records = None
        # A checkpoint beyond the end is not this log's (Kafka's cleaner begins at the log start then, too).
        is_possible = self._checkpoint <= view.log_end_offset and not view.truncations
        base = self._checkpoint if is_possible else 0
        if self._last_records is not None:
            base = self._last_records.end
        self.base = max(base, view.log_start_offset)
        self.end = self.base
        self._buckets = [(np.empty(0, np.uint64), np.empty(0, np.int64))] * (1 << _BUCKET_BITS)
        self._count = 0
        self._pending: list[tuple[Words, Int64]] = []
        self._pending_count = 0

    def continue_in(self, log: ReadableLog) -> bool:
        """Continue in a log of the same directory that was opened again, once what is built in the background
        is done. Returns False if it may have been truncated meanwhile."""
        if log is self._log:
            return True
        if not self._tail.is_in(log):
            return False
        if not self.is_building:
            if self._last_records is not None:
                self._last_records = replace(self._last_records, truncations=log.view.truncations)
            self._log, self._truncations = log, log.view.truncations
            self._tail = Tail.of(log, self.goal())
        return True

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return ENTRY_BYTES * self._count

    def offsets(self) -> Iterator[Int64]:
        """The offsets of the last records, in no order, in several arrays."""
        return (offsets for _, offsets in self._buckets)

    @property
    def covered(self) -> float:
        """How much of the offsets from ``base`` on is covered, 0 to 1."""
        span = self.goal() - self.base
        return 1.0 if span <= 0 else min((self.end - self.base) / span, 1.0)

    def goal(self) -> int:
        """The end of the records that can be covered now: last stable offset or high watermark."""
        end = self._log.view.readable_end(self._isolation)
        return end if self._until is None else min(end, self._until)

    def is_current(self) -> bool:
        """Is everything covered that can be read now?"""
        return self.end >= self.goal()

    def advance(self, budget: WorkBudget | None = None) -> bool:
        """Cover what was appended since, within the budget. Returns whether all is covered now.

        Raises TooManyKeysError, and what ``LogReader.poll`` raises.
        """
        with self.lock:
            if self._log.view.truncations != self._truncations:
                self._restart()
            goal = self.goal()
            reader = LogReader(
                self._log,
                max(self.end, self._log.log_start_offset),
                isolation=self._isolation,
                end=goal,
                reset="earliest",
            )
            while not (budget is not None and budget.is_over):
                before = reader.bytes_read
                polled = reader.poll_once()
                if polled is None:
                    self.end = max(self.end, goal)
                    break
                if len(polled):
                    self._add(polled.columns)
                self.end = reader.offset
                if budget is not None:
                    budget.spent += reader.bytes_read - before
            self._merge()
            return self.end >= goal

    def _add(self, columns: RecordColumns) -> None:
        rows = np.flatnonzero(columns.key_size >= 0)
        hashes, _ = hashes_of(columns, rows, self._hash_key)
        if self._share is not None:
            is_of_share = self._share.holds(hashes)
            rows, hashes = rows[is_of_share], hashes[is_of_share]
        self._pending.append(_last_of_each(hashes, columns.offset[rows]))
        self._pending_count += len(self._pending[-1][0])
        # A merge copies all entries: with half as many new ones it copies three for each of these at most.
        if self._pending_count >= max(_MERGED_AT, self._count // 2):
            self._merge()

    def _merge(self) -> None:
        """Merge the pending entries, which are later, into the buckets."""
        if not self._pending:
            return
        cuts = [[0, *np.searchsorted(hashes, _BUCKET_ENDS), len(hashes)] for hashes, _ in self._pending]
        for number, bucket in enumerate(self._buckets):
            parts = [bucket]
            for (hashes, offsets), cut in zip(self._pending, cuts, strict=True):
                of_bucket = slice(cut[number], cut[number + 1])
                parts.append((hashes[of_bucket], offsets[of_bucket]))
            hashes, offsets = (np.concatenate(column) for column in zip(*parts, strict=True))
            self._buckets[number] = _last_of_each(hashes, offsets)
        self._count = sum(len(hashes) for hashes, _ in self._buckets)
        self._pending, self._pending_count = [], 0
        if self.size > self._kept_bytes:
            self._restart()  # frees the entries
            bound = f"over {self._kept_bytes // ENTRY_BYTES} keys"
            reason = f"the log has {bound} above its cleaner checkpoint"
            if self._share is not None:
                reason = f"one of {1 << self._share.bits} shares of the log's keys has {bound}"
            raise TooManyKeysError(reason, path=str(self._log.topic_partition), advice=self._advice)

    def latest_rows(self, columns: RecordColumns) -> Int64:
        """The rows of records that are the last of their keys; those without a key are not."""
        rows = np.flatnonzero(columns.key_size >= 0)
        if (of_job := self._last_records) is not None:
            offset = columns.offset[rows]
            rows = rows[(offset >= of_job.end) | of_job.holds(offset)]
        if not self._count:
            return rows
        hashes, _ = hashes_of(columns, rows, self._hash_key)
        is_latest, bucket_of = np.ones(len(rows), np.bool_), hashes >> np.uint64(64 - _BUCKET_BITS)
        for number, (known, offsets) in enumerate(self._buckets):
            in_bucket = np.flatnonzero(bucket_of == number)
            if len(in_bucket) and len(known):
                entries = np.minimum(np.searchsorted(known, hashes[in_bucket]), len(known) - 1)
                # A key that is not known has no record above ``base``: its one record below is the last.
                is_known = known[entries] == hashes[in_bucket]
                is_latest[in_bucket] = ~is_known | (offsets[entries] == columns.offset[rows[in_bucket]])
        return np.asarray(rows[is_latest])


def _last_of_each(hashes: Words, offsets: Int64) -> tuple[Words, Int64]:
    """The entries sorted by hash, and of each hash only the last one: a later entry has a higher offset."""
    order = np.argsort(hashes, kind="stable")
    hashes, offsets = hashes[order], offsets[order]
    is_last = np.append(hashes[1:] != hashes[:-1], True)[: len(hashes)]  # without entries: empty
    return hashes[is_last], offsets[is_last]


def find_last_records(
    log: ReadableLog, isolation: str, budget: WorkBudget | None = None, kept_bytes: int = KEPT_BYTES
) -> tuple[LastRecords, int]:
    """The last record of each key of a log, whatever the number of its keys, and into how many shares they
    were divided: for each share the log is read from its start to its present end.

    Memory: at most ``kept_bytes`` of key entries, and one bit an offset. ``budget``: to end the
    work it has to raise an error, since a part of the result is of no use. Raises TooManyKeysError if the
    bits take more than ``kept_bytes``, or 1,024 shares are too few, and what ``LogReader.poll`` raises.
    """
    _require_room_for_bits([log], isolation, kept_bytes, str(log.topic_partition))
    view = log.view
    start, end = view.log_start_offset, view.readable_end(isolation)
    last_records = LastRecords(
        start, end, np.zeros((end - start + 7) // 8, np.uint8), view.truncations, Tail.of(log, end)
    )
    hash_key, share_bits = _random_hash_key(), 0
    while True:
        try:
            shares = (KeyShare(number, share_bits, hash_key) for number in range(1 << share_bits))
            if all(_mark_share(log, isolation, budget, kept_bytes, last_records, share) for share in shares):
                return last_records, 1 << share_bits
            return find_last_records(log, isolation, budget, kept_bytes)  # it was truncated
        except TooManyKeysError:  # the keys of one share take over ``kept_bytes``: halve the shares
            if share_bits == SHARE_BITS_MAX:
                raise
            share_bits += 1


def _mark_share(
    log: ReadableLog,
    isolation: str,
    budget: WorkBudget | None,
    kept_bytes: int,
    last_records: LastRecords,
    share: KeyShare,
) -> bool:
    """Set the bits of the last records of a share's keys. Returns False if the log was truncated since.

    A bit that was set before, by a division into fewer shares, is set again: it is of the same records.
    """
    keys = LatestKeys(
        log,
        last_records.start,
        isolation,
        kept_bytes,
        until=last_records.end,
        share=share,
        advice=_TABLE_ADVICE,
    )
    while not keys.advance(budget):
        pass
    if log.view.truncations != last_records.truncations:
        return False
    for offsets in keys.offsets():
        index = offsets - last_records.start
        np.bitwise_or.at(last_records.bits, index >> 3, (128 >> (index & 7)).astype(np.uint8))
    return True


def _require_room_for_bits(logs: Iterable[ReadableLog], isolation: str, kept_bytes: int, path: str) -> None:
    """Raises TooManyKeysError, whose path is ``path``, if a bit for each offset of these logs takes over
    ``kept_bytes``."""
    count = sum(log.view.readable_end(isolation) - log.log_start_offset for log in logs)
    if count // 8 > kept_bytes:
        reason = f"a bit for each of {count} offsets takes over {kept_bytes} bytes"
        raise TooManyKeysError(reason, path=path, advice=_TABLE_ADVICE)


def _random_hash_key() -> HashKey:
    return np.uint64(secrets.randbits(64)), np.uint64(secrets.randbits(64))


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="latest-keys", daemon=True).start()


ViewName = tuple[str, str]
"""A log's directory and an isolation level."""


class LatestViews:
    """The ``LatestKeys`` of logs, and what jobs have found of logs: ``kept_bytes`` of each. ``start``: runs
    work in the background, by default in a thread of its own."""

    def __init__(
        self, kept_bytes: int = KEPT_BYTES, start: Callable[[Callable[[], None]], None] = _start_thread
    ) -> None:
        self._kept_bytes, self._start = kept_bytes, start
        self._lock = threading.Lock()  # of all that follows
        self._to_build, self._builders = deque[LatestKeys](), 0
        self._kept: OrderedDict[ViewName, LatestKeys] = OrderedDict()
        self._last_records: dict[ViewName, tuple[ReadableLog, LastRecords]] = {}

    def of(
        self, topic: str, logs: Mapping[int, ReadableLog], checkpoints: Mapping[int, int], isolation: str
    ) -> dict[int, LatestKeys]:
        """The keys of a topic's logs that a page shows, by partition, perhaps not built yet. For a log that
        was opened again, and may have been truncated meanwhile, new ones are begun.

        Raises TooManyKeysError if they take too much together, CorruptRecordError, OSError.
        """
        with self._lock:
            shown = {
                partition: self._of_log(log, checkpoints.get(partition, 0), isolation)
                for partition, log in logs.items()
            }
            size = sum(keys.size for keys in self._kept.values())
            for name, keys in list(self._kept.items()):
                if size > self._kept_bytes and keys not in shown.values():
                    del self._kept[name]
                    size -= keys.size
            if size > self._kept_bytes:
                self._kept.clear()
                reason = (
                    f"its partitions have over {self._kept_bytes // ENTRY_BYTES} keys above their checkpoints"
                )
                raise TooManyKeysError(reason, path=topic, advice=JOB_ADVICE)
            return shown

    def _of_log(self, log: ReadableLog, checkpoint: int, isolation: str) -> LatestKeys:
        """The keys of a log, which are now the last ones to be dropped. The caller holds the lock."""
        name = str(log.directory), isolation
        keys = self._kept.get(name)
        if isinstance(log, ReadOnlyLog):  # its own is not older than the log
            checkpoint = log.first_dirty_offset
        if keys is None or not keys.continue_in(log):
            keys = LatestKeys(
                log,
                checkpoint,
                isolation,
                self._kept_bytes,
                last_records=self._last_records_of(name, log),
                advice=JOB_ADVICE,
            )
            self._kept[name] = keys
        self._kept.move_to_end(name)
        return keys

    def _last_records_of(self, name: ViewName, log: ReadableLog) -> LastRecords | None:
        """What a job has found of a log, if that is true of the log as it is now."""
        searched_log, last_records = self._last_records.get(name, (None, None))
        if last_records is not None and searched_log is not log:
            is_true = last_records.tail.is_in(log)
            return replace(last_records, truncations=log.view.truncations) if is_true else None
        return last_records

    def require_room(self, topic: str, logs: Iterable[ReadableLog], isolation: str) -> None:
        """Raises TooManyKeysError if a job could not keep what it finds of all these logs of a topic."""
        _require_room_for_bits(logs, isolation, self._kept_bytes, topic)

    def find(self, log: ReadableLog, isolation: str, budget: WorkBudget) -> int:
        """Find the last records of a log, and keep them for the view; what was found first of other logs is
        dropped where the bound is reached. Returns into how many shares the keys were divided.

        Raises what ``find_last_records`` raises.
        """
        last_records, shares = find_last_records(log, isolation, budget, self._kept_bytes)
        name = str(log.directory), isolation
        with self._lock:
            self._kept.pop(name, None)
            self._last_records.pop(name, None)
            self._last_records[name] = log, last_records
            while sum(records.bits.nbytes for _, records in self._last_records.values()) > self._kept_bytes:
                del self._last_records[next(iter(self._last_records))]
        return shares

    def bring_up_to_date(self, keys: LatestKeys, budget: WorkBudget) -> bool:
        """Read what was appended, within the budget; if that is not enough, continue in the background.
        Returns whether the keys are up to date. Raises TooManyKeysError, and what made the background work
        fail."""
        if keys.failure is not None:
            failure, keys.failure = keys.failure, None
            raise failure
        if keys.is_building:
            return False
        if keys.advance(budget):
            return True
        with self._lock:
            keys.is_building = True
            self._to_build.append(keys)
            starts = self._builders < _CONCURRENT_BUILDS
            self._builders += starts
        if starts:
            try:
                self._start(self._build)
            except BaseException:  # such as RuntimeError: there can be no more threads
                with self._lock:
                    self._end_builder()
                raise
        # ``start`` may have done the work already, in this thread.
        return keys.is_current() and not keys.is_building

    def _build(self) -> None:
        """Build the keys that wait, one log's after another's."""
        while (keys := self._next_to_build()) is not None:
            try:
                keys.advance()
            except Exception as error:  # shown by the next request
                keys.failure = error
            finally:
                keys.is_building = False

    def _next_to_build(self) -> LatestKeys | None:
        """The keys that have waited longest; None, which ends the builder, if none wait or the bound is
        reached. (``of`` then drops those of other logs, or raises the error, when a page is requested.)"""
        with self._lock:
            is_full = sum(keys.size for keys in self._kept.values()) > self._kept_bytes
            if self._to_build and not is_full:
                return self._to_build.popleft()
            self._end_builder()
            return None

    def _end_builder(self) -> None:
        """Note that a builder ends. After the last one the keys that wait are no longer being built: the next
        request for them begins anew. The caller holds the lock."""
        self._builders -= 1
        while self._to_build and not self._builders:
            self._to_build.popleft().is_building = False
