"""Interrupted swaps that a real broker was started on: `finish_replacement` leaves the logs that Kafka left.

The sets' names say where the stop was: us_* without and cs_* with the clean-shutdown marker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.log.replacement import finish_replacement, swap_leftovers
from tests.support import golden_sets
from tests.support.cleaning.logs import logs_of

NAMES = """
    cs_1_cleaned cs_2_log_swap_rest_cleaned cs_3_swap cs_5_swap_all_deleted us_1_cleaned us_1b_cleaned_torn
    us_2_log_swap_rest_cleaned us_2b_index_swap_log_cleaned us_3_swap us_4_swap_first_deleted
    us_4b_swap_first_log_deleted us_4c_swap_last_deleted us_5_swap_all_deleted us_6_log_final_index_swap
    us_6b_log_swap_index_final us_7_final_deleted us_8_two_swaps_cleaned_left
""".split()


def _staged(golden: Path, tmp_path: Path, name: str) -> tuple[Path, Path]:
    case = golden_sets.load_case(golden, f"recovery/{name}")
    (round_,) = case.rounds
    assert round_.after is not None
    topic_partition = golden_sets.stage_round(case, round_, tmp_path / "log")
    return golden_sets.partition_directory(case, topic_partition), round_.after


def test_no_swap_is_forgotten(golden: Path) -> None:
    assert [f"recovery/{name}" for name in NAMES] == golden_sets.recovery_names(golden)


@pytest.mark.parametrize("name", NAMES)
def test_the_logs_are_those_that_kafka_left(golden: Path, tmp_path: Path, name: str) -> None:
    partition, after = _staged(golden, tmp_path, name)
    assert any(finish_replacement(partition))
    assert logs_of(partition) == logs_of(after)
    assert swap_leftovers(partition) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_second_start_finds_nothing_to_do(golden: Path, tmp_path: Path, name: str) -> None:
    partition, _ = _staged(golden, tmp_path, name)
    finish_replacement(partition)
    assert finish_replacement(partition) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_every_index_belongs_to_a_log_and_no_snapshot_to_a_vanished_one(
    golden: Path, tmp_path: Path, name: str
) -> None:
    partition, _ = _staged(golden, tmp_path, name)
    before = {path.name for path in partition.glob("*.snapshot")}
    had_log = {path.name[:20] for path in partition.iterdir() if ".log" in path.name}
    finish_replacement(partition)
    bases = {path.name[:20] for path in partition.glob("*.log")}
    assert {path.name[:20] for path in partition.glob("*index")} <= bases
    remaining = {path.name for path in partition.glob("*.snapshot")}
    never_had = {snapshot for snapshot in before if snapshot[:20] not in had_log}
    assert remaining - never_had <= {f"{base}.snapshot" for base in bases}
