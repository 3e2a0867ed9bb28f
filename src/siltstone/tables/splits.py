"""Planning: what is to be read, cut into pieces that tasks read on their own.

A ``Piece`` is a run of offsets of one partition, with the segments that hold them as they were found; a
``Split`` is what one task reads: a piece of a large log, or many small ones. Both are plain and picklable.
A piece is read from its segments if they are still those files, and by its offsets anew if not (a broker has
rolled, cleaned or deleted meanwhile).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siltstone.log.fetch import AbortedTransaction
from siltstone.log.names import TopicPartition
from siltstone.log.segments import Segment
from siltstone.log.service.read_only import ReadOnlyLog
from siltstone.tables.options import ReadOptions


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets ``[start, end)`` of a partition; ``segments`` hold them, ascending, in ``directory``.

    ``aborted``: the transactions whose records do not count. ``size`` in bytes is about what is read.
    ``winners``: None, or which records stay (``latest.pack_offsets``).
    """

    where: TopicPartition
    directory: str
    segments: tuple[Segment, ...]
    start: int
    end: int
    size: int
    aborted: tuple[AbortedTransaction, ...] = ()
    winners: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads, piece after piece."""

    pieces: tuple[Piece, ...]


def split_ranges(
    logs: Mapping[TopicPartition, ReadOnlyLog],
    ranges: Mapping[TopicPartition, OffsetRange],
    options: ReadOptions,
) -> list[Split]:
    """Cut offset ranges into splits of about ``options.max_partition_bytes``, at least ``min_partitions``."""
    raise NotImplementedError


def plan(options: ReadOptions, logs: Sequence[ReadOnlyLog] | None = None) -> list[Split]:
    """Open the directories, find the bounds and split. Raises what opening raises, UsageError."""
    raise NotImplementedError
