"""What Kafka's own cleaner made of its logs passes, every round of every set; so does what ours makes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import golden_sets
from tests.support.golden.rounds import WAYS, clean_round
from tests.support.golden.sets import CLEANED, OLD_FORMATS, ONLY_RETENTION, TRANSACTIONS, old_format_rounds
from tests.support.thoroughness import in_turn
from tests.support.verify.staging import Pair, stage_pair, with_clock

CASES = [*CLEANED, *sorted(ONLY_RETENTION)]


def _all_pass(case: golden_sets.Case, rounds: list[golden_sets.Round], path: Path) -> None:
    assert rounds
    for number, round_ in enumerate(rounds):
        staged = stage_pair(case, round_, path / str(number))
        for exact in dict.fromkeys((round_.now_is_exact, False)):
            verdict = with_clock(staged, round_, is_exact=exact).verdict()
            assert verdict.is_sound, (round_.number, exact, verdict.problems)
            assert verdict.records_before == verdict.records_after + sum(verdict.removed.values())


@pytest.mark.parametrize("name", CASES)
def test_kafkas_results_pass(golden: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(golden, name)
    _all_pass(case, [round_ for round_ in case.rounds if round_.after is not None], tmp_path)


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_kafkas_results_with_transactions_pass(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"transactions/{name}")
    _all_pass(case, [round_ for round_ in case.rounds if round_.after is not None], tmp_path)


@pytest.mark.parametrize("name", ["map_full", "map_full_lz4"])
def test_cleanings_that_ended_with_a_full_offset_map_pass(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"map_full/{name}")
    _all_pass(case, [round_ for round_ in case.rounds if round_.after is not None], tmp_path)


@pytest.mark.parametrize("name", OLD_FORMATS)
def test_kafkas_results_with_message_sets_pass(cleaned: Path, tmp_path: Path, name: str) -> None:
    case = golden_sets.load_case(cleaned, f"old_formats/{name}")
    _all_pass(case, old_format_rounds(case), tmp_path)


@pytest.mark.parametrize(
    ("name", "way"),
    in_turn(["mixed", "tombstones", "txn", "idempotent_gzip", "keyless", "mixed_logappend"], WAYS, "mixed"),
)
def test_our_own_results_pass(golden: Path, tmp_path: Path, name: str, way: str) -> None:
    case = golden_sets.load_case(golden, name)
    for round_ in (round_ for round_ in case.rounds if round_.cleaned):
        pair = stage_pair(case, round_, tmp_path / str(round_.number))
        shutil.rmtree(pair.after)
        shutil.copytree(pair.before, pair.after, copy_function=shutil.copy2)
        assert round_.now_ms is not None
        clean_round(pair.after, round_.command_config, round_.now_ms, way)
        exact = replace(pair.settings, cleaned_at_ms=round_.now_ms, cleaned_at_is_exact=True)
        verdict = Pair(
            before=pair.before, after=pair.after, topic_partition=pair.topic_partition, settings=exact
        ).verdict()
        assert verdict.is_sound, verdict.problems
        assert sum(verdict.removed.values()) > 0
