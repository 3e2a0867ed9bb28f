"""Which files an undo may touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.compaction.inplace.destination import InPlace
from siltstone.compaction.inplace.originals import Originals, _is_kept_name, check_log, read_run
from siltstone.compaction.report import CLEANED
from siltstone.log.directory import LogDirectory
from tests.support.cleaning import logs

SEGMENT = f"{4:020d}"


@pytest.mark.parametrize("name", [f"{SEGMENT}.{kind}" for kind in ("log", "index", "timeindex", "txnindex")])
def test_files_of_a_segment_are_kept(name: str) -> None:
    assert _is_kept_name(name)


@pytest.mark.parametrize("name", [f"{SEGMENT}.log.swap", f"{SEGMENT}.log.deleted", "undo.json", "../4.log"])
def test_no_other_name_is_taken_from_undo_json(name: str) -> None:
    assert not _is_kept_name(name)


def test_a_log_that_is_cleaned_again_after_its_undo_can_be_undone_again(tmp_path: Path) -> None:
    """Its segment keeps all records, so the second cleaning links the restored ``.log``. Only its indexes
    are others: the cleaning writes fewer entries."""
    directory, keep = tmp_path / "log", tmp_path / "keep" / "run"
    segments = {0: [logs.one(0, "a"), logs.one(1, "b")], 2: [logs.one(2, "c")]}
    partition = logs.write_log(directory, segments, interval=0)
    before = logs.tree(partition)
    for destination in (InPlace("first", Originals(keep)), InPlace("second")):
        assert logs.run(directory, config={"segment.bytes": 100}, destination=destination).status == CLEANED
        assert logs.tree(partition) != before
        with LogDirectory.open(directory) as locked:
            ((place, log),) = read_run(keep)
            check_log(place, log).restore(locked)
        assert logs.tree(partition) == before
