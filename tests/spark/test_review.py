"""``explain`` and ``verify`` on Spark say what they say in process."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from siltstone.commands import review
from siltstone.compaction import explain
from siltstone.spark.clean import SparkEngine
from siltstone.spark.executors import default_task_count
from siltstone.spark.verify import SparkChecker, bucket_tasks
from siltstone.verify.pairs import LogPair
from tests.support import golden_sets
from tests.support.cleaning.lives import cut_at_every_batch
from tests.support.explaining import explain_request
from tests.support.operator.staged import stage
from tests.support.thoroughness import few
from tests.support.verify.editing import Spoiler
from tests.support.verify.spoilings import SPOILINGS
from tests.support.verify.staging import stage_pair

pytestmark = pytest.mark.spark


HOW = [
    (False, False, False),
    (True, False, False),
    (True, True, False),
    (True, False, True),
    (True, True, True),
]


@pytest.mark.parametrize(
    ("name", "is_spread", "is_in_exchange_stage", "is_cut"),
    few([(name, *how) for name in ("txn", "mixed", "keyless") for how in HOW], 4, 6, 7, 10),
)
def test_explanations_are_the_same(
    session: SparkSession,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_spread: bool,
    is_in_exchange_stage: bool,
    is_cut: bool,
) -> None:
    staged = stage(golden, name, tmp_path / "logs")
    here = review.explain(explain_request(staged, show_keys=True)).to_json()
    if is_spread:
        monkeypatch.setattr(explain, "WHOLE_LOG_BYTES", 0)
    if is_cut:
        cut_at_every_batch(monkeypatch)
    engine = SparkEngine(session, tasks=3, exchange_stage_bytes=1 << 30 if is_in_exchange_stage else -1)
    there = review.explain(explain_request(staged, show_keys=True), engine=lambda: engine).to_json()
    assert there == here
    assert here["logs"][0]["status"] == ("skipped" if name == "keyless" else "would_clean")


@pytest.mark.parametrize("spoiled", [False, True])
def test_verdicts_are_the_same(session: SparkSession, golden: Path, tmp_path: Path, spoiled: bool) -> None:
    case = golden_sets.load_case(golden, "txn")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    if spoiled:
        names = {"lose_a_value", "put_an_aborted_record_back", "lose_a_marker"}
        for spoiling in SPOILINGS:
            if spoiling.spoil.__name__ in names and (spoiling.case, spoiling.round) in (
                ("txn", 0),
                ("basic", 0),
            ):
                spoiling.spoil(Spoiler(pair=pair, random=random.Random(4)))
    here, there = pair.verdict(), pair.verdict(SparkChecker(session, 3))
    assert here.is_sound is not spoiled
    assert there.to_json() == here.to_json()


def test_all_logs_of_a_broker_in_one_job(
    session: SparkSession, stopped_broker: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(stopped_broker[0], tmp_path / "after", copy_function=shutil.copy2)
    request = review.VerifyRequest(before=stopped_broker[0], after=tmp_path / "after")
    found = review.verify(request, checker=SparkChecker(session, 2))
    assert found.is_sound and len(found.logs) > 3
    assert {log.records_before - log.records_after for log in found.logs} == {0}


@pytest.mark.parametrize(
    ("offsets", "gigabytes", "tasks"),
    [(1000, 1, 4), (10**9, 100, 90), (4 * 10**9, 100, 358), (10**12, 1, 96)],
)
def test_the_tasks_that_check_keys_grow_with_the_log(offsets: int, gigabytes: int, tasks: int) -> None:
    """There were as many as workers, and each held its share of all key entries: 6 GB of a billion records.
    A log with few bytes and many offsets takes few tasks all the same."""
    segment = SimpleNamespace(base_offset=0, size=gigabytes << 30)
    pair = cast(LogPair, SimpleNamespace(before=(segment,), cleaned_end_offset=offsets))
    assert bucket_tasks([pair], 4) == tasks


def test_a_small_log_of_many_offsets_takes_no_tasks_beside_a_large_one_of_few() -> None:
    """The bounds of all logs were summed first: many offsets of one and many bytes of another took 3,200."""

    def pair(offsets: int, size: int) -> LogPair:
        segment = SimpleNamespace(base_offset=0, size=size)
        return cast(LogPair, SimpleNamespace(before=(segment,), cleaned_end_offset=offsets))

    assert bucket_tasks([pair(10**12, 1 << 20), pair(1000, 100 << 30)], 4) == 4


def test_workers_are_read_from_the_settings(session: SparkSession) -> None:
    assert default_task_count(session) == 2
