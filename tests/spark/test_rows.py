"""What travels between the stages arrives as it left, or stops the log."""

import os
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.ledger.keys import KeyIndexPart
from siltstone.compaction.ledger.work import CompactionReport
from siltstone.compaction.report import ErrorDetails, LogFailure, RecordCounts
from siltstone.compaction.staging import GroupReport, LogReport, PieceReport, RetainedFile
from siltstone.compaction.work import Extracted, GroupRange, InputSplit
from siltstone.log.transactions import TransactionState
from siltstone.spark import rows
from siltstone.spark.exchange import entries_of, entries_row

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("dirty", [True, False])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_entries_come_as_they_were_sent(dirty: bool, count: int) -> None:
    entries = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
    blob = EntryBlob(bucket=3, is_dirty=dirty, base_offset=1 << 40, entries=entries)
    (row,) = rows.rows_of([entries_row(blob).batch()])
    decoded = entries_of(row, 5)
    assert (decoded.bucket, decoded.is_dirty, decoded.base_offset) == (3, dirty, 1 << 40)
    assert np.array_equal(decoded.entries, entries)
    with pytest.raises(ValueError, match="were sent"):
        entries_of(replace(row, count=count + 1), 5)


@pytest.mark.parametrize("count", [1, 7, 100_000])
def test_many_winners_come_in_several_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOB_BYTES_MAX", 64_000)
    offsets = np.arange(count, dtype=np.uint32)
    sent = list(rows.rows_of(row.batch() for row in rows.array_rows(rows.RETAINED, 4, offsets)))
    assert {row.target for row in sent} == {4}
    assert len(sent) == -(-count // 16_000)
    assert np.array_equal(np.concatenate([row.array(np.uint32) for row in sent]), offsets)
    with pytest.raises(ValueError, match="were sent"):
        replace(sent[0], count=sent[0].count - 1).array(np.uint32)


SPLIT = InputSplit(segment=1, start_position=9, end_position=20, first_offset=7, end_offset=8)
GROUP_RANGE = GroupRange(group=3, task=2, splits=(SPLIT,))


def test_reports_come_as_they_were_sent() -> None:
    error = ErrorDetails(code="CORRUPT_FILE", path="/x/ü", position=1 << 40, advice='say "so"')
    failure = LogFailure(status="failed", reason='a "reason" with \n and ü', details=error)
    for report in (
        Extracted(records=3, keyless=1, failure=failure),
        Extracted(records=3),
        GroupReport(
            group_index=2,
            counts=RecordCounts(records_read=9),
            staged={"log": "/x"},
            identity=[1, 2, 3],
            failure=failure,
        ),
        GroupReport(group_index=2),
        LogReport(
            name="a-0",
            extracted=Extracted(records=3),
            retained_counts={3: 4},
            groups=[GroupReport(group_index=2)],
        ),
        LogReport(
            name="a-0",
            dirty_keys_met=3,
            groups=[GroupReport(group_index=1, failure=failure)],
            files=[RetainedFile(group_range=GROUP_RANGE)],
            pieces=[
                PieceReport(
                    group=GroupReport(group_index=1), base_offset=7, path="/p", transaction_index=b"\0\xff"
                )
            ],
        ),
        RetainedFile(
            group_range=GROUP_RANGE,
            transaction_state=TransactionState(open_producers=(1, 2)),
            failure=failure,
        ),
        CompactionReport(
            retained={3: 4},
            key_index_parts=[KeyIndexPart(first=0, path="/k", counts=(1, 2), checksums=(3, 4))],
        ),
    ):
        (row,) = rows.rows_of([rows.report_row(rows.EXTRACTED, report, 7).batch()])
        assert (row.target, row.kind, rows.report_of(row, type(report))) == (7, rows.EXTRACTED, report)
    with pytest.raises(msgspec.ValidationError):
        rows.report_of(row, LogReport)


def test_a_report_may_name_a_path_that_is_not_utf_8() -> None:
    path = os.fsdecode(b"/logs/\xff/users-0/00000000000000000000.log")
    report = GroupReport(
        group_index=1, staged={"log": path}, failure=LogFailure(status="failed", reason=path)
    )
    (row,) = rows.rows_of([rows.report_row(rows.EXTRACTED, report).batch()])
    assert rows.report_of(row, GroupReport) == report
