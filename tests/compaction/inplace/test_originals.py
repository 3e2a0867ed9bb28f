"""Which files an undo may touch."""

from __future__ import annotations

import pytest

from siltstone.compaction.inplace.originals import _is_kept_name

SEGMENT = f"{4:020d}"


@pytest.mark.parametrize("name", [f"{SEGMENT}.{kind}" for kind in ("log", "index", "timeindex", "txnindex")])
def test_files_of_a_segment_are_kept(name: str) -> None:
    assert _is_kept_name(name)


@pytest.mark.parametrize("name", [f"{SEGMENT}.log.swap", f"{SEGMENT}.log.deleted", "undo.json", "../4.log"])
def test_no_other_name_is_taken_from_undo_json(name: str) -> None:
    assert not _is_kept_name(name)
