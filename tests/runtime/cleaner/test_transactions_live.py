"""The embedded cleaner on logs with transactions: what committed readers see stays, aborted data goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siltstone.base.clock import ManualClock
from siltstone.base.records.control import end_transaction_marker
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.lookup import batch_headers
from siltstone.log.partition import PartitionLog
from siltstone.log.validation import Origin
from tests.support.cleaning.logs import Rec
from tests.support.cleaning.serving import TOPIC, USERS, serving, write
from tests.support.log import driving
from tests.support.log.batches import of_records
from tests.support.log.managed import MINUTE, NOW

RETENTION = {**TOPIC, "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(MINUTE)}


class Writer:
    """A transactional producer, a batch of one record at a time."""

    def __init__(self, log: PartitionLog, producer_id: int) -> None:
        self.log, self.producer_id, self.sequence = log, producer_id, 0

    def put(self, key: str, value: str) -> None:
        data = of_records(
            [Rec(offset=0, key=key.encode(), value=value.encode() * 20, timestamp=NOW)],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.log.append(data)
        self.sequence += 1

    def end(self, *, commit: bool) -> None:
        marker = end_transaction_marker(
            commit=commit,
            producer_id=self.producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=NOW,
        )
        self.log.append(marker, origin=Origin.COORDINATOR)


def _committed(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    found = driving.read_all(log, isolation=READ_COMMITTED)
    return {record.key: record.value for record in found}


def _transactions(first: Writer, second: Writer, rounds: int) -> None:
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
        first, second, third = (Writer(log, producer) for producer in (1, 2, 3))
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
        _transactions(Writer(log, 1), Writer(log, 2), 20)
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
