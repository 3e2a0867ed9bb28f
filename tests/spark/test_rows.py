"""What travels between the stages arrives as it left, or stops the log."""

from dataclasses import replace

import numpy as np
import pytest

from siltstone.compaction.extraction import Extracted, Trouble
from siltstone.compaction.keys import EntryBlob
from siltstone.compaction.staging import Rewritten
from siltstone.spark import exchange as rows

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("dirty", [True, False])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_entries(dirty: bool, count: int) -> None:
    entries = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
    blob = EntryBlob(bucket=3, dirty=dirty, base_offset=1 << 40, entries=entries)
    (row,) = rows.rows_of(rows.entries_row(blob).batch())
    found = rows.entries_of(row, 5)
    assert (found.bucket, found.dirty, found.base_offset) == (3, dirty, 1 << 40)
    assert np.array_equal(found.entries, entries)
    with pytest.raises(ValueError, match="arrived"):
        rows.entries_of(replace(row, count=count + 1), 5)


@pytest.mark.parametrize("count", [1, 7, 100_000])
def test_winners_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOB_BYTES", 64_000)
    offsets = np.arange(count, dtype=np.uint32)
    sent = [row for each in rows.winners_rows(4, offsets) for row in rows.rows_of(each.batch())]
    assert {row.target for row in sent} == {4}
    assert len(sent) == -(-count // 16_000)
    assert np.array_equal(np.concatenate([rows.winners_of(row) for row in sent]), offsets)
    with pytest.raises(ValueError, match="arrived"):
        rows.winners_of(replace(sent[0], count=sent[0].count - 1))


def test_reports() -> None:
    trouble = Trouble(status="failed", reason='a "reason" with \n and ü')
    for report, back in (
        (Extracted(records=3, keyless=1, trouble=trouble), rows.extracted_of),
        (Extracted(records=3), rows.extracted_of),
        (
            Rewritten(group=2, records=9, staged={"log": "/x"}, identity=[1, 2, 3], trouble=trouble),
            rows.rewritten_of,
        ),
        (Rewritten(group=2), rows.rewritten_of),
    ):
        (row,) = rows.rows_of(rows.report_row(rows.FOUND, report, 7).batch())
        assert (row.target, row.kind, back(row.report)) == (7, rows.FOUND, report)
