"""Logs of record formats v0 and v1, which Kafka 2.8 wrote, cleaned: the files are those of Kafka 4.3.

Its clock is known from the horizons that it stamped; where it stamped none, any time will do.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_and_compare

NAMES = """
    v0_basic v0_gzip v0_lz4 v0_snappy v0_tombstones v0_v1_v2 v1_basic v1_grouping v1_gzip
    v1_keyless_then_compact v1_logappend v1_lz4 v1_min_lag v1_mixed v1_snappy v1_to_v2 v1_tombstones
    v1_tombstones_gzip v1_tombstones_zero v2_tombstones_28
""".split()
DIRECTORIES = ("after_43", "after_43_2")


def _rounds(case: golden_sets.Case) -> list[golden_sets.Round]:
    """The rounds of ``after_43.json``: a directory that 2.8 left, and what 4.3 made of it."""
    cleanings = json.loads((case.path / "after_43.json").read_text())
    before = {each.before.name: each for each in case.rounds}
    return [
        replace(
            before[cleaning["from"]],
            after=case.path / after,
            now_ms=_clock(cleaning),
            config=cleaning["config"],
            checkpoints_after=cleaning["checkpoints_after"],
            raw=cleaning,
        )
        for cleaning, after in zip(cleanings, DIRECTORIES, strict=False)
    ]


def _clock(cleaning: dict[str, Any]) -> int:
    horizons = [int(each) for each in cleaning["delete_horizons"]]
    began: int = cleaning["begin_ms"]
    newest = max(horizons, default=0) - int(cleaning["config"]["delete.retention.ms"])
    return newest if abs(newest - began) < 1000 else began


def test_no_set_is_forgotten(cleaned: Path) -> None:
    assert set(NAMES) == {path.name for path in (cleaned / "old_formats").iterdir()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_cleaned_files_are_kafkas(cleaned: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    rounds = _rounds(case)
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way)
