"""``view=compacted`` has what ``CompactedReader`` reads: the ledger up to its horizon, then the log."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import LedgerError, SourceChangedError
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore, OpenLedger
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import PushedFilters
from siltstone.tables.table import CompactedLog, plan, read_split
from tests.support.cleaning.logs import NOW, Rec, batch
from tests.support.errors import raises_error
from tests.support.log.views import write_segments
from tests.support.tables.tables import log_directory, offsets, table_of


def records(first: int, end: int) -> bytes:
    """Five keys in turn, the third of them deleted once and again."""
    generated = (
        Rec(offset=at, key=b"k%d" % (at % 5), value=None if at % 10 == 2 else b"%d" % at, timestamp=at)
        for at in range(first, end)
    )
    return batch(list(generated))


def compact(root: Path) -> None:
    with ReadOnlyLogs([root], clock=ManualClock(NOW)) as logs:
        compactor = TwoPhaseCompactor(InProcessCompactionEngine(1), clock=ManualClock(NOW))
        compactor.compact(logs["t", 0], order="offset", retain_null_key=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Compacted twice, so that one run supersedes records of another, with new records after it."""
    log_directory(tmp_path, {"t-0": {0: [records(0, 20)], 20: [records(20, 30)]}})
    compact(tmp_path)
    write_segments(tmp_path / "t-0", {30: [records(30, 33)]}, 100)
    compact(tmp_path)
    write_segments(tmp_path / "t-0", {33: [records(33, 40)]}, 100)
    return tmp_path


def as_read(root: Path) -> list[int]:
    with ReadOnlyLogs([root]) as logs, CompactedReader(logs["t", 0]) as reader:
        return [record.offset for record in reader.records()]


def test_the_view_has_the_records_that_the_compacted_reader_reads(root: Path) -> None:
    compacted = offsets(root, view="compacted")
    assert compacted == as_read(root)
    assert 0 < len(compacted) < 20
    assert table_of(root, view="compacted")["key"].null_count == 0


def test_a_log_that_grew_and_was_compacted_since_it_was_opened_is_read_anew(root: Path) -> None:
    with ReadOnlyLogs([root], clock=ManualClock(NOW)) as logs:
        opened = logs["t", 0]
        assert opened.view.log_end_offset == 40
        write_segments(root / "t-0", {40: [records(40, 50)], 50: [records(50, 52)]}, 100)
        compact(root)
        with contextlib.closing(CompactedLog(opened)) as compacted:
            assert compacted.view.log_end_offset == 52
            assert compacted.log_start_offset < 40


def test_a_compaction_while_a_log_is_opened_takes_no_record_away(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger that is read must not cover offsets that the view of the log does not have."""
    opened, times = LedgerStore.open, 0

    def opening(store: LedgerStore) -> OpenLedger | None:
        nonlocal times
        times += 1
        if times == 2:
            write_segments(root / "t-0", {40: [records(40, 50)], 50: [records(50, 52)]}, 100)
            compact(root)
        return opened(store)

    before = offsets(root, view="compacted")
    monkeypatch.setattr(LedgerStore, "open", opening)
    after = offsets(root, view="compacted")
    assert times >= 2
    assert {at % 5 for at in after} == {at % 5 for at in before}, "every key has a record"


def test_a_log_that_cannot_be_opened_holds_no_ledger(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompactedReader, "_seek", failing)
    with ReadOnlyLogs([root], clock=ManualClock(NOW)) as logs, pytest.raises(LedgerError):
        CompactedLog(logs["t", 0])
    monkeypatch.undo()
    compact_again(root)
    assert "ledger-1.json" not in {path.name for path in (root / "t-0" / ".compacted").iterdir()}


def failing(*_: object) -> None:
    raise LedgerError("cursor.json", "it is damaged")


def compact_again(root: Path) -> None:
    """One more ledger; the one before has no reader, so its files go."""
    write_segments(root / "t-0", {40: [records(40, 50)]}, 100)
    compact(root)


def test_segments_below_the_horizon_are_not_needed(root: Path) -> None:
    whole = offsets(root, view="compacted")
    for base in (0, 20):
        for path in (root / "t-0").glob(f"{base:020}.*"):
            path.unlink()
    assert offsets(root, view="compacted") == whole == as_read(root)
    assert offsets(root) == list(range(30, 40))


def test_bounds_and_filters_apply_to_the_ledger_too(root: Path) -> None:
    whole = offsets(root, view="compacted")
    start = {"startingOffsets": '{"t":{"0":29}}'}
    assert offsets(root, view="compacted", **start) == [at for at in whole if at >= 29]
    assert offsets(root, view="compacted", startingTimestamp="29") == [at for at in whole if at >= 29]
    end = {"endingOffsets": '{"t":{"0":36}}'}
    assert offsets(root, view="compacted", **end) == [at for at in whole if at < 36]
    narrow = PushedFilters(start_offset=29, end_offset=35)
    assert offsets(root, narrow, view="compacted") == [at for at in whole if 29 <= at < 35]


def test_a_log_without_a_ledger_is_read_as_it_is(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {0: [records(0, 20)]}})
    assert offsets(root, view="compacted") == list(range(20))


def test_a_ledger_that_was_deleted_since_the_query_was_planned_is_refused(root: Path) -> None:
    options = ReadOptions.of({"path": str(root), "view": "compacted"})
    planned = plan(options)
    write_segments(root / "t-0", {40: [records(40, 80)]}, 100)
    compact(root)
    LedgerStore(root / "t-0").delete_unused()
    with raises_error(SourceChangedError, advice="run the query again"):
        for split in planned:
            list(read_split(split, options))
