"""Makes the rows of the console's three lists of the log cleaner: its queue, past cleanings, uncleanable
logs."""

from __future__ import annotations

import contextlib
import re
import shlex
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from siltstone.base.errors import UnknownTopicError
from siltstone.commands import console
from siltstone.commands.catalogue import UNKNOWN, Catalogue, PartitionRow
from siltstone.commands.explaining import removal_words
from siltstone.commands.listing import LongList
from siltstone.commands.row_texts import RowTexts
from siltstone.commands.served import Served
from siltstone.log.names import TopicPartition

PAUSED = "a user has paused it"
_DAMAGE = re.compile(r"(?P<file>/.*?): byte (?P<byte>\d+): (?P<reason>.*)", re.DOTALL)
"""The text of a ``CorruptRecordError`` or a ``CorruptFileError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A log with ``cleanup.policy=compact``. ``rank``: its place in the order of dirty ratios, from 1 on;
    ``needed_ratio``: ``min.cleanable.dirty.ratio``; ``waits_for``: why it is not cleaned now, "" if it is
    due; ``overdue_ms``: how long it has waited beyond ``max.compaction.lag.ms``; ``damage``: why a file of it
    cannot be read, "" if none was met."""

    rank: int
    topic_partition: TopicPartition
    state: str
    bytes: int
    dirty_bytes: int
    dirty_ratio: float
    needed_ratio: float | None
    overdue_ms: int
    last_cleaning_ms: int | None
    is_paused: bool
    waits_for: str
    damage: str = ""


def queue(served: Served) -> LongList[QueueRow]:
    """The queue of the cleaner: the logs with ``cleanup.policy=compact``, the dirtiest first."""
    catalogue = served.catalogue
    paused = frozenset[TopicPartition]() if served.cleaner is None else served.cleaner.paused
    # ``order`` has the catalogue's row of each log in the queue. A log's *number* is its place there, from 0.
    order, columns = catalogue.by_dirty_ratio, catalogue.partition_columns
    paused_numbers = _numbers_in_queue(catalogue, paused)

    def make(number: int) -> QueueRow:
        row = catalogue.partition(int(order[number]))
        is_paused = row.topic_partition in paused
        return _queue_row(number + 1, row, PAUSED if is_paused else row.watched.reason, is_paused=is_paused)

    def rows_with(needle: str) -> npt.NDArray[np.int64]:
        has_needle = np.zeros(len(order), bool)
        has_needle[catalogue.queue_texts.rows_with(needle)] = True
        # The catalogue's texts do not have the reason PAUSED, so the rows of paused logs are searched here.
        rows = [make(number) for number in paused_numbers.tolist()]
        texts = RowTexts(f"{row.topic_partition} {row.state} {row.waits_for}" for row in rows)
        has_needle[paused_numbers] = False
        has_needle[paused_numbers[texts.rows_with(needle)]] = True
        return np.flatnonzero(has_needle).astype(np.int64)

    def reason_keys() -> npt.NDArray[np.int64]:
        # The catalogue's reasons are sorted: reason n gets the key 2n + 1, and PAUSED an even one between
        # them.
        keys = 2 * columns["reason"][order].astype(np.int64) + 1
        keys[paused_numbers] = 2 * bisect_left(catalogue.reasons, PAUSED)
        return keys

    return LongList(
        count=len(order),
        make=make,
        rows_with=rows_with,
        keys={  # to sort by
            "rank": lambda: np.arange(len(order)),
            "log": lambda: order,  # the catalogue is in order of topics and partitions
            "waits_for": reason_keys,
            **{
                name: lambda name=name: columns[name][order].astype(float)  # type: ignore[misc]
                for name in ("state", "dirty_bytes", "dirty_ratio", "overdue_ms", "last_cleaning_ms")
            },
        },
    )


def _numbers_in_queue(catalogue: Catalogue, paused: Collection[TopicPartition]) -> npt.NDArray[np.int64]:
    """The numbers, from 0 on, that the paused logs have in the queue; without those that are not in it."""
    rows = list[int]()
    for topic_partition in paused:
        with contextlib.suppress(UnknownTopicError):  # paused, but not in the catalogue yet
            rows.append(catalogue.row_of(topic_partition))
    order = catalogue.by_dirty_ratio
    number_of_row = np.full(len(catalogue.watched), UNKNOWN, np.int64)
    number_of_row[order] = np.arange(len(order))
    numbers = number_of_row[np.array(rows, np.int64)]
    in_queue: npt.NDArray[np.int64] = numbers[numbers != UNKNOWN]
    return in_queue


def _queue_row(rank: int, row: PartitionRow, waits_for: str, *, is_paused: bool) -> QueueRow:
    log = row.watched
    assert log.snapshot is not None  # the log's state was read, else it were not in the queue
    ratio = None if log.min_ratio is None else log.min_ratio.value
    return QueueRow(
        rank=rank,
        topic_partition=row.topic_partition,
        state=log.state,
        bytes=row.bytes,
        dirty_bytes=log.snapshot.range.cleanable_bytes,
        dirty_ratio=log.snapshot.range.dirty_ratio,
        needed_ratio=float(ratio) if isinstance(ratio, (int, float)) else None,
        overdue_ms=log.snapshot.range.overdue_ms,
        last_cleaning_ms=None if log.last_cleaning is None else log.last_cleaning.began_ms,
        is_paused=is_paused,
        waits_for=waits_for,
        damage=row.damage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRow:
    """A cleaning that ended. ``removed``: how many records it removed; ``removed_by_reason``: the same by
    reason, in words; ``recopy_percent``: bytes after the cleaning, as a percentage of those before."""

    began_ms: int
    topic_partition: TopicPartition
    status: str
    reason: str
    bytes_before: int
    bytes_after: int
    removed: int
    removed_by_reason: str
    seconds: float
    recopy_percent: float


def ended_cleanings(served: Served) -> Iterator[CleaningRow]:
    """The cleanings in the histories, the newest first. Raises OSError."""
    for cleaning in console.cleanings(served):
        result = cleaning.result
        yield CleaningRow(
            began_ms=cleaning.began_ms,
            topic_partition=result.topic_partition,
            status=result.status,
            reason=result.reason,
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            removed=result.discarded.total(),
            removed_by_reason=removal_words(result.discarded.counts),
            seconds=result.seconds,
            recopy_percent=round(cleaning.recopy_percent, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanableRow:
    """A log that the cleaner has marked uncleanable after a failure, or (``is_marked`` False) one with a file
    that cannot be read. ``since_ms``: since when it is marked; ``file``, ``byte``: the position of the
    damage, None if the failure's reason names none; ``command``: a command line that shows the batches
    there."""

    topic_partition: TopicPartition
    is_marked: bool
    since_ms: int | None
    file: str | None
    byte: int | None
    reason: str
    command: str


def uncleanable(served: Served) -> Iterator[UncleanableRow]:
    """The logs that the cleaner skips, and those with a file that cannot be read, in order of name: the
    catalogue's ``damaged_rows`` are both."""
    catalogue = served.catalogue
    return (_uncleanable(catalogue.partition(row)) for row in catalogue.damaged_rows.tolist())


def _uncleanable(row: PartitionRow) -> UncleanableRow:
    uncleanable = row.watched.uncleanable
    why = row.damage if uncleanable is None else uncleanable.reason
    damage = _DAMAGE.fullmatch(why)
    file = damage["file"] if damage is not None else None
    return UncleanableRow(
        topic_partition=row.topic_partition,
        is_marked=uncleanable is not None,
        since_ms=None if uncleanable is None else uncleanable.since_ms,
        file=file,
        byte=None if damage is None else int(damage["byte"]),
        reason=why if damage is None else damage["reason"],
        command=shlex.join(["siltstone", "dump", file or str(row.watched.directory)]),
    )
