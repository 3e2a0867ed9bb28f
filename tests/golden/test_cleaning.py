"""Every cleaned round of the golden sets, run through the whole cleaner in place: the files are Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_and_compare
from tests.support.golden.sets import CLEANED, ONLY_RETENTION, RATIO_LISTED_LATER, TRANSACTIONS
from tests.support.thoroughness import in_turn


def test_no_set_is_forgotten(golden: Path, cleaned: Path) -> None:
    assert {*CLEANED, *ONLY_RETENTION} == set(golden_sets.case_names(golden))
    assert set(TRANSACTIONS) == {path.name for path in (cleaned / "transactions").iterdir()}


@pytest.mark.parametrize(("name", "way"), in_turn(CLEANED, WAYS, "grouping", "mixed"))
def test_cleaned_files_are_kafkas(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    rounds = [round_ for round_ in case.rounds if round_.cleaned]
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way, force=name in RATIO_LISTED_LATER)


@pytest.mark.parametrize(("name", "way"), in_turn(TRANSACTIONS, WAYS, "txn_open"))
def test_cleaned_transactions_are_kafkas(cleaned: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(cleaned, f"transactions/{name}")
    rounds = [round_ for round_ in case.rounds if round_.cleaned]
    assert rounds
    for round_ in rounds:
        clean_and_compare(case, round_, tmp_path / str(round_.number), way)
