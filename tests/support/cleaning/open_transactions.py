"""A log with transactions in several segment groups, and what a reader of committed records sees of it."""

from __future__ import annotations

from pathlib import Path

from tests.support.cleaning.lives import DAY, Append, End, Life, Living, Round
from tests.support.cleaning.naive import read_partition

Seen = list[tuple[int, bytes | None, bytes | None]]
VALUES, TOMBSTONES = 3, 0


def _batch(producer: int, *keys: int, kind: int = VALUES) -> Append:
    return Append(producer=producer, records=tuple((key, kind, 0) for key in keys))


ROUND = Round(
    events=(
        *(_batch(-1, 1, 2, 3), _batch(20, 4, 5), _batch(21, 1, 6)),
        *(_batch(20, 2, 7), _batch(-1, 8), _batch(21, 3, 4)),
        *(End(producer=20, commit=True), _batch(10, 9, 10), _batch(21, 9)),
        *(End(producer=21, commit=False), _batch(20, 1, 8, kind=TOMBSTONES), _batch(22, 11)),
        *(_batch(21, 2), End(producer=22, commit=False), _batch(-1, 3)),
        *(End(producer=20, commit=False), End(producer=21, commit=True), _batch(-1, 12)),
        *(_batch(20, 5), End(producer=20, commit=False), _batch(-1, 5, 6)),
        *(_batch(-1, 4), _batch(-1, 7)),
    ),
    rolls=(2,),
    leaves_open=False,
    retention_ms=DAY,
    segment_bytes=700,
)
LIFE = Life(rounds=(ROUND,))


def write(path: Path) -> Living:
    """The log, about to be cleaned."""
    living = Living(path, LIFE)
    living.write(ROUND)
    return living


def committed(partition: Path) -> Seen:
    """What a reader of committed records sees, by the ``.txnindex`` files and nothing else."""
    segments = read_partition(partition)
    aborted = [entry for segment in segments.values() for entry in segment.aborted]
    return [
        (record.offset, record.key, record.value)
        for segment in segments.values()
        for batch in segment.batches
        for record in batch.records
        if not batch.control
        and not any(
            entry.producer_id == batch.producer_id
            and entry.first_offset <= batch.base_offset <= entry.last_offset
            for entry in aborted
            if batch.transactional
        )
    ]


def table(partition: Path) -> dict[bytes | None, bytes]:
    """The last value of each key, deleted ones left out; offsets ascend."""
    rows = committed(partition)
    assert [offset for offset, _, _ in rows] == sorted({offset for offset, _, _ in rows})
    return {key: value for key, value in {key: value for _, key, value in rows}.items() if value is not None}
