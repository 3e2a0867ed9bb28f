"""A Spark job that is killed for good at each stage: the log stays whole, and the next run cleans it.

``test_engine`` has workers that die once, whose tasks go again. Here each attempt dies or raises, so that the
whole job fails. The log has transactions over several groups, with ``.txnindex`` files.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.commands import clean as app
from siltstone.commands import review
from siltstone.compaction.engine import Engine, InProcessEngine
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.report import CLEANED, FAILED, LogResult
from siltstone.spark import clean as pipeline
from siltstone.spark import verify
from siltstone.spark.clean import SparkEngine
from siltstone.spark.tasks import task_numbers
from tests.support.cleaning import judging, logs, oracle
from tests.support.cleaning.lives import Living, cut_at_every_batch
from tests.support.cleaning.open_transactions import ROUND, committed, write
from tests.support.failures import assert_failed
from tests.support.operator.staged import stage_several

pytestmark = pytest.mark.spark

WHOLE, SPREAD, RANGES, WAVES = "whole", "spread", "ranges", "waves"
STAGES = [
    (WHOLE, "clean_whole_task", "killed"),
    (SPREAD, "extract_task", "killed"),
    (SPREAD, "merge_task", "killed"),
    (SPREAD, "rewrite_task", "raised"),
    (RANGES, "rewrite_task", "killed"),
    (RANGES, "assemble_task", "killed"),
    (WAVES, "gather_task", "killed"),
    (WAVES, "rewrite_from_files_task", "killed"),
]


def killed(task: Callable[..., Any], end: str) -> Callable[..., Any]:
    """A task that does its work and is gone before it can say so, in each attempt."""

    def dying(*arguments: Any) -> Iterator[Any]:
        rows = list(task(*arguments))
        if end == "killed" and rows:
            os.kill(os.getpid(), signal.SIGKILL)
        if rows:
            raise MemoryError("no memory for this task")
        yield from rows

    return dying


def limits_of(way: str, living: Living) -> RunLimits:
    if way == WAVES:
        return logs.one_group_a_wave(living.root, living.settings(ROUND), living.clock.now_ms())
    return RunLimits(whole_log_bytes=0) if way in (SPREAD, RANGES) else RunLimits()


def clean(living: Living, engine: Engine, limits: RunLimits) -> LogResult:
    config, now_ms = living.settings(ROUND), living.clock.now_ms()
    return logs.run(living.root, config=config, now_ms=now_ms, engine=lambda: engine, limits=limits)


def files_of(living: Living) -> dict[str, bytes]:
    """All files but what is staged."""
    files = logs.tree(living.root)
    return {name: data for name, data in files.items() if ".siltstone" not in name}


def staged_suffixes(living: Living) -> set[str]:
    return {path.suffix for path in living.partition.glob(".siltstone/*/*")}


ALWAYS = {
    (RANGES, "assemble_task", "killed"),
    (WAVES, "gather_task", "killed"),
}


@pytest.mark.parametrize(
    ("way", "stage", "end"),
    [pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.long) for case in STAGES],
)
def test_the_log_stays_whole_and_the_next_run_cleans_it(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, stage: str, end: str
) -> None:
    living, whole = write(tmp_path / "log"), write(tmp_path / "whole")
    expected = oracle.clean(living.partition, living.rules(ROUND))
    limits, before = limits_of(way, living), files_of(living)
    records = committed(living.partition)
    if way == RANGES:
        cut_at_every_batch(monkeypatch)
    engine = SparkEngine(session, buckets=3, tasks=1 if way == WAVES else 3)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, stage, killed(getattr(pipeline, stage), end))
        result = clean(living, engine, limits)
    assert_failed(result, "ENGINE", path=living.partition.name)
    assert files_of(living) == before
    assert committed(living.partition) == records
    assert staged_suffixes(living) == set()
    result = clean(living, engine, limits)
    assert result.status == CLEANED, result
    judging.assert_cleaned(expected, living.partition, result)
    assert staged_suffixes(living) == set()
    clean(whole, InProcessEngine(), RunLimits())
    assert logs.tree(living.partition) == logs.tree(whole.partition)


def fatal(task: Callable[..., Any], guilty: str, end: str) -> Callable[..., Any]:
    """``clean_whole_task`` of which each attempt dies, or raises, that has a certain log."""

    def dying(parts: Any, batches: Any) -> Iterator[Any]:
        arrived = list(batches)
        names = {work.name for number in task_numbers(arrived) for work in parts[number]}
        if guilty in names and end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if guilty in names:
            raise MemoryError("no memory for this log")
        yield from task(parts, arrived)

    return dying


SEVERAL = ["basic", "codec_zstd", "tombstones", "keyless", "codec_lz4", "grouping", "codec_gzip", "min_lag"]


@pytest.mark.parametrize("end", [pytest.param("killed", marks=pytest.mark.long), "raised"])
def test_a_log_that_costs_its_workers_their_lives_takes_no_other_with_it(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Eight logs in one job: the remaining ones are done again, apart from the guilty one."""
    first, request = stage_several(golden, SEVERAL, tmp_path / "a")
    second, again = stage_several(golden, SEVERAL, tmp_path / "b")
    before = logs.tree(first / "codec_lz4-0")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "clean_whole_task", fatal(pipeline.clean_whole_task, "codec_lz4-0", end))
        report = app.clean(request, engine=lambda *arguments: SparkEngine(session))
    expected = app.clean(again, engine=lambda *arguments: InProcessEngine())
    results = {str(result.topic_partition): result for result in report.results}
    guilty = results.pop("codec_lz4-0")
    about, advice = ("lack of memory", "--master local[1]") if end == "killed" else ("MemoryError", "")
    assert_failed(guilty, "ENGINE", path="codec_lz4-0", about=about, advice=advice)
    assert logs.tree(first / "codec_lz4-0") == before
    for result in expected.results:
        if str(result.topic_partition) in results:
            assert results[str(result.topic_partition)].status == result.status, results[
                str(result.topic_partition)
            ]
            assert logs.tree(first / str(result.topic_partition)) == logs.tree(
                second / str(result.topic_partition)
            )
    assert sum(result.status == CLEANED for result in results.values()) > 4
    app.clean(request, engine=lambda *arguments: SparkEngine(session))
    assert logs.tree(first / "codec_lz4-0") == logs.tree(second / "codec_lz4-0")


def test_a_large_log_that_costs_its_workers_their_lives_takes_no_other_with_it(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, request = stage_several(golden, SEVERAL[:3], tmp_path)
    extract = pipeline.extract_task

    def dying(work: Any, *arguments: Any) -> Iterator[Any]:
        if work.name == "codec_zstd-0":
            os.kill(os.getpid(), signal.SIGKILL)
        yield from extract(work, *arguments)

    monkeypatch.setattr(pipeline, "extract_task", dying)
    monkeypatch.setattr(app, "RunLimits", functools.partial(RunLimits, whole_log_bytes=0))
    report = app.clean(request, engine=lambda *arguments: SparkEngine(session))
    statuses = {str(result.topic_partition): result.status for result in report.results}
    assert statuses == {"basic-0": CLEANED, "codec_zstd-0": FAILED, "tombstones-0": CLEANED}
    assert any("lack of memory" in result.reason for result in report.results)


@pytest.mark.long
def test_explain_and_verify_continue_without_a_log_that_kills_their_workers(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``explain`` and ``verify`` have all small logs in one job."""
    directory, request = stage_several(golden, SEVERAL[:3], tmp_path)
    settings = {"config_file": request.config_file, "now_ms": request.now_ms}
    clean, span = pipeline.clean_whole_task, verify.span_task

    def counting(inputs: Any, *others: Any) -> Iterator[Any]:
        if any(work.name == "codec_zstd-0" for works in inputs for work in works):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from clean(inputs, *others)

    def checking(pairs: Any, *others: Any) -> Iterator[Any]:
        if any(pair.name == "codec_zstd-0" for pair in pairs):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from span(pairs, *others)

    monkeypatch.setattr(pipeline, "clean_whole_task", counting)
    monkeypatch.setattr(verify, "span_task", checking)
    engine = SparkEngine(session, tasks=2)
    explanation = review.explain(
        review.ExplainRequest(directories=[directory], **settings), engine=lambda: engine
    )
    assert {log.name: log.status for log in explanation.logs} == {
        "basic-0": "would_clean",
        "codec_zstd-0": FAILED,
        "tombstones-0": "would_clean",
    }
    shutil.copytree(directory, tmp_path / "before")
    verify_request = review.VerifyRequest(before=tmp_path / "before", after=directory, **settings)
    verdict = review.verify(verify_request, checker=verify.SparkChecker(session, 2))
    kinds = {
        f"{log.topic}-{log.partition}": {problem.kind for problem in log.problems} for log in verdict.logs
    }
    assert "unchecked" in kinds.pop("codec_zstd-0")
    assert not any("unchecked" in log_kinds for log_kinds in kinds.values()) and len(kinds) == 2
