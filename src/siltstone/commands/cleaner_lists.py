"""The rows of the cleaner's lists: its queue, its runs, the logs that it skips."""

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
_PLACE = re.compile(r"(?P<file>/.*?): byte (?P<byte>\d+): (?P<reason>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A compacted log and its place by dirty ratio. ``waits_for``: why it is not cleaned now, "" if it is
    due; ``overdue_ms``: how long it has waited beyond ``max.compaction.lag.ms``."""

    place: int
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


def queue(served: Served) -> LongList[QueueRow]:
    """The compacted logs, the dirtiest first."""
    catalogue = served.catalogue
    paused = frozenset[TopicPartition]() if served.cleaner is None else served.cleaner.paused
    order, columns = catalogue.by_dirty_ratio, catalogue.partition_columns
    places = _places_of(catalogue, paused)

    def make(place: int) -> QueueRow:
        row = catalogue.partition(int(order[place]))
        is_paused = row.topic_partition in paused
        return _queue_row(place + 1, row, PAUSED if is_paused else row.watched.reason, is_paused=is_paused)

    def rows_with(needle: str) -> npt.NDArray[np.int64]:
        chosen = np.zeros(len(order), bool)
        chosen[catalogue.queue_texts.rows_with(needle)] = True
        rows = [make(place) for place in places.tolist()]
        texts = RowTexts(f"{row.topic_partition} {row.state} {row.waits_for}" for row in rows)
        chosen[places] = False
        chosen[places[texts.rows_with(needle)]] = True
        return np.flatnonzero(chosen).astype(np.int64)

    def reasons() -> npt.NDArray[np.int64]:
        ranks = 2 * columns["reason"][order].astype(np.int64) + 1
        ranks[places] = 2 * bisect_left(catalogue.reasons, PAUSED)  # between those of the reasons beside it
        return ranks

    return LongList(
        count=len(order),
        make=make,
        rows_with=rows_with,
        keys={
            "place": lambda: np.arange(len(order)),
            "log": lambda: order,  # the catalogue is in order of names and numbers
            "waits_for": reasons,
            **{
                name: lambda name=name: columns[name][order].astype(float)  # type: ignore[misc]
                for name in ("state", "dirty_bytes", "dirty_ratio", "overdue_ms", "last_cleaning_ms")
            },
        },
    )


def _places_of(catalogue: Catalogue, paused: Collection[TopicPartition]) -> npt.NDArray[np.int64]:
    """The places in the queue of the logs that are paused and in it."""
    rows = list[int]()
    for topic_partition in paused:
        with contextlib.suppress(UnknownTopicError):  # paused, but not in the catalogue yet
            rows.append(catalogue.row_of(topic_partition))
    order = catalogue.by_dirty_ratio
    place = np.full(len(catalogue.watched), UNKNOWN, np.int64)
    place[order] = np.arange(len(order))
    places = place[np.array(rows, np.int64)]
    in_queue: npt.NDArray[np.int64] = places[places != UNKNOWN]
    return in_queue


def _queue_row(place: int, row: PartitionRow, waits_for: str, *, is_paused: bool) -> QueueRow:
    log = row.watched
    assert log.snapshot is not None  # only such logs are in the list
    ratio = None if log.min_ratio is None else log.min_ratio.value
    return QueueRow(
        place=place,
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
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A cleaning that ended. ``what_went``: the removed records by reason, in words."""

    began_ms: int
    topic_partition: TopicPartition
    status: str
    reason: str
    bytes_before: int
    bytes_after: int
    removed: int
    what_went: str
    seconds: float
    recopy_percent: float


def runs(served: Served) -> Iterator[RunRow]:
    """The cleanings in the histories, the newest first. Raises OSError."""
    for cleaning in console.cleanings(served):
        result = cleaning.result
        yield RunRow(
            began_ms=cleaning.began_ms,
            topic_partition=result.topic_partition,
            status=result.status,
            reason=result.reason,
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            removed=result.discarded.total(),
            what_went=removal_words(result.discarded.counts),
            seconds=result.seconds,
            recopy_percent=round(cleaning.recopy_percent, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanableRow:
    """A log that the cleaner skips. ``file``, ``byte``: where it is damaged, None if its reason does not say;
    ``command``: shows the place."""

    topic_partition: TopicPartition
    since_ms: int
    file: str | None
    byte: int | None
    reason: str
    command: str


def uncleanable(served: Served) -> Iterator[UncleanableRow]:
    """The logs that the cleaner skips, in order of name."""
    catalogue = served.catalogue
    return (_uncleanable(catalogue.partition(row)) for row in catalogue.uncleanable_rows.tolist())


def _uncleanable(row: PartitionRow) -> UncleanableRow:
    uncleanable = row.watched.uncleanable
    assert uncleanable is not None
    place = _PLACE.fullmatch(uncleanable.reason)
    file = place["file"] if place is not None else None
    return UncleanableRow(
        topic_partition=row.topic_partition,
        since_ms=uncleanable.since_ms,
        file=file,
        byte=None if place is None else int(place["byte"]),
        reason=uncleanable.reason if place is None else place["reason"],
        command=shlex.join(["siltstone", "dump", file or str(row.watched.directory)]),
    )
