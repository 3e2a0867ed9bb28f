"""The embedded cleaner on logs with transactions: what committed readers see stays, aborted data goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siltstone.base.clock import ManualClock
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.lookup import batch_headers
from siltstone.log.partition import PartitionLog
from tests.support.cleaning.serving import TOPIC, USERS, TransactionalWriter, serving, write
from tests.support.log import driving
from tests.support.log.managed import MINUTE, NOW

RETENTION = {**TOPIC, "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(MINUTE)}


def _committed(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    records = driving.read_all(log, isolation=READ_COMMITTED)
    return {record.key: record.value for record in records}


def _transactions(first: TransactionalWriter, second: TransactionalWriter, rounds: int) -> None:
    for number in range(rounds):
        first.put("a", f"committed {number} ")
        second.put("a", f"aborted {number} ")
        second.put(f"only aborted {number}", "x")
        first.end(commit=True)
        second.end(commit=False)


def test_committed_readers_see_the_same_and_aborted_data_goes(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=RETENTION, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        first, second, third = (TransactionalWriter(log, producer) for producer in (1, 2, 3))
        _transactions(first, second, 12)
        third.put("open", "still")
        stable = log.last_stable_offset
        _transactions(first, second, 12)
        assert log.last_stable_offset == stable < log.log_end_offset
        before = _committed(log)
        (result,) = cleaner.clean_once()
        assert result.cleaned_end_offset is not None and result.cleaned_end_offset <= stable
        assert result.discarded.aborted > 0 and _committed(log) == before
        assert log.last_stable_offset == stable
        third.end(commit=True)
        log.flush()
        after = {**_committed(log)}
        assert after[b"open"] == b"still" * 20
        (result,) = cleaner.clean_once()
        assert result.cleaned_end_offset is not None and result.cleaned_end_offset > stable
        assert _committed(log) == after
    with serving(tmp_path, topic=RETENTION, clock=clock) as (manager, cleaner):
        assert _committed(manager[USERS]) == after


def test_markers_go_in_their_third_pass(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with serving(tmp_path, topic=RETENTION, clock=clock) as (manager, cleaner):
        log = manager[USERS]
        _transactions(TransactionalWriter(log, 1), TransactionalWriter(log, 2), 20)
        markers = []
        for _ in range(3):
            write(log, 30)
            cleaner.clean_once()
            markers.append(_control_batches(log))
            clock.advance(2 * MINUTE)
        assert markers[0] == markers[1] > 10 > markers[2]


def _control_batches(log: PartitionLog) -> int:
    """Of all segments but the active one."""
    count = 0
    for segment in log.view.segments[:-1]:
        for batches in batch_headers(segment.reader, end=segment.size):
            count += int(np.count_nonzero(batches["attributes"] & 0x20))
    return count
