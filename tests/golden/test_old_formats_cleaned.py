"""Logs of record formats v0 and v1, which Kafka 2.8 wrote, cleaned: the files are those of Kafka 4.3.

Its clock is known from the horizons that it stamped; where it stamped none, any time will do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_and_compare
from tests.support.golden.sets import OLD_FORMATS, old_format_rounds
from tests.support.thoroughness import in_turn


def test_no_set_is_forgotten(cleaned: Path) -> None:
    assert set(OLD_FORMATS) == {path.name for path in (cleaned / "old_formats").iterdir()}


@pytest.mark.parametrize(("name", "way"), in_turn(OLD_FORMATS, WAYS, "v0_v1_v2"))
def test_cleaned_files_are_kafkas(cleaned: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    rounds = old_format_rounds(case)
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way)
