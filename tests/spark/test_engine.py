"""The Spark engine gives the bytes of the in-process one, both ways of spreading; its workers may die."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.commands import clean as app
from siltstone.compaction import work as work_module
from siltstone.compaction.engine import InProcessEngine, bucket_count
from siltstone.compaction.inplace import cleaner as cleaner_module
from siltstone.compaction.inplace import execution as execution_module
from siltstone.compaction.report import LogResult
from siltstone.spark import clean as pipeline
from siltstone.spark import jobs as spark_jobs
from siltstone.spark import tasks as spark_tasks
from siltstone.spark.clean import SparkEngine
from tests.support.failures import assert_failed, assert_uncleanable
from tests.support.operator.staged import (
    SMALL_WAVES,
    Staged,
    listing,
    log_bytes,
    logs_in,
    no_leftovers,
    stage,
    stage_several,
)
from tests.support.spark.ways import WAYS
from tests.support.thoroughness import few

pytestmark = pytest.mark.spark

SETS = ["basic_zipf_ts", "codec_lz4", "idempotent", "mixed", "tombstones_long"]


@pytest.fixture
def always_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No log is small enough for one task."""
    limits = cleaner_module.RunLimits
    monkeypatch.setattr(app, "RunLimits", lambda **arguments: limits(**arguments, whole_log_bytes=0))


def clean_with(engine: Any, staged: Staged, **changes: Any) -> LogResult:
    (result,) = app.clean(staged.asking(**changes), engine=lambda request, progress: engine).results
    return result


def same(golden: Path, tmp_path: Path, name: str, engine: Any, **changes: Any) -> None:
    """The engine leaves the files and the numbers that the in-process one leaves."""
    here, there = (stage(golden, name, tmp_path / folder) for folder in ("here", "there"))
    expected, result = clean_with(InProcessEngine(), here, **changes), clean_with(engine, there, **changes)
    assert expected.status == "cleaned"
    assert result.status == "cleaned", result.reason
    assert logs_in(there.directory) == logs_in(here.directory)
    counts = replace(expected, directory="", seconds=0.0, settings={})
    assert replace(result, directory="", seconds=0.0, settings={}) == counts
    no_leftovers(there.directory)


@pytest.mark.parametrize("name", few([(name,) for name in SETS], 0, 3))
def test_a_whole_log_in_one_task(golden: Path, tmp_path: Path, session: SparkSession, name: str) -> None:
    same(golden, tmp_path, name, SparkEngine(session))


@pytest.mark.usefixtures("always_spread")
@pytest.mark.parametrize(
    ("name", "buckets", "way"),
    few(
        [
            (name, buckets, way)
            for name, buckets in (("basic_zipf_ts", 1), ("codec_lz4", 5), ("idempotent", 5))
            for way in WAYS
        ],
        *(1, 2),
    ),
)
def test_one_log_over_all_workers(
    golden: Path, tmp_path: Path, session: SparkSession, name: str, buckets: int, way: int
) -> None:
    same(
        golden, tmp_path, name, SparkEngine(session, buckets=buckets, tasks=buckets, exchange_stage_bytes=way)
    )


@pytest.mark.usefixtures("always_spread")
def test_in_several_waves(golden: Path, tmp_path: Path, session: SparkSession) -> None:
    """The retained offsets go through files, the groups one by one and then two by two."""
    for tasks in (1, 2):
        engine = SparkEngine(session, buckets=3, tasks=tasks)
        room = SMALL_WAVES + (tasks - 1) * 15_000
        same(golden, tmp_path / str(tasks), "basic_zipf_ts", engine, max_extra_bytes=room)


class Interrupted(SparkEngine):
    """Ctrl-C when some groups were rewritten."""

    remaining = 3

    def rewrite(self, work: Any, retained: Any) -> Any:
        self.remaining -= len({file.group_range.group for file in retained})
        if self.remaining < 0:
            raise KeyboardInterrupt
        return super().rewrite(work, retained)


@pytest.mark.usefixtures("always_spread")
def test_an_interrupted_log_is_cleaned_by_the_next_run(
    golden: Path, tmp_path: Path, session: SparkSession
) -> None:
    whole = stage(golden, "basic_zipf_ts", tmp_path / "whole")
    expected = clean_with(InProcessEngine(), whole)
    staged = stage(golden, "basic_zipf_ts", tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        clean_with(Interrupted(session, tasks=1), staged, max_extra_bytes=SMALL_WAVES)
    no_leftovers(staged.directory)
    assert staged.checkpoint() is None
    result = clean_with(SparkEngine(session, tasks=1), staged, max_extra_bytes=SMALL_WAVES)
    assert (result.records_after, result.bytes_after) == (expected.records_after, expected.bytes_after)
    assert 0 < result.discarded.total() < expected.discarded.total()
    assert log_bytes(staged.partition) == log_bytes(whole.partition)
    assert staged.checkpoint() == whole.checkpoint()
    no_leftovers(staged.directory)


@pytest.mark.usefixtures("always_spread")
def test_with_adaptive_execution(golden: Path, tmp_path: Path, session: SparkSession) -> None:
    """What a cluster's own defaults may switch on must not put two groups or buckets together wrongly."""
    before = session.conf.get("spark.sql.adaptive.enabled")
    session.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        same(golden, tmp_path, "codec_lz4", SparkEngine(session, buckets=5))
    finally:
        session.conf.set("spark.sql.adaptive.enabled", before or "false")


@pytest.mark.parametrize("logs_per_job", [1, 16], ids=["several jobs", "one job"])
def test_several_logs(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, logs_per_job: int
) -> None:
    monkeypatch.setattr(pipeline, "_LOGS_PER_JOB", logs_per_job)
    names = ["basic", "tombstones", "codec_zstd", "keyless"]
    first, request = stage_several(golden, names, tmp_path / "a")
    second, again = stage_several(golden, names, tmp_path / "b")
    expected = app.clean(request, engine=lambda request, progress: InProcessEngine()).results
    jobs: list[int] = []
    real = spark_jobs.collect
    monkeypatch.setattr(spark_jobs, "collect", lambda *arguments: jobs.append(1) or real(*arguments))
    results = app.clean(again, engine=lambda request, progress: SparkEngine(session)).results
    assert [(result.topic_partition, result.status) for result in results] == [
        (result.topic_partition, result.status) for result in expected
    ]
    assert logs_in(second) == logs_in(first) and len(jobs) == (2 if logs_per_job == 1 else 1)


def test_memory_is_bounded_by_the_setting_not_by_the_keys(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So little memory that no bucket would hold all keys: the log is spread over many buckets."""
    counts: list[int] = []
    merge_bytes = work_module.MERGE_BYTES_PER_ENTRY
    monkeypatch.setattr(work_module, "MERGE_BYTES_PER_ENTRY", 400_000)

    def counting(work: Any, at_least: int = 1) -> int:
        counts.append(bucket_count(work, at_least))
        return counts[-1]

    monkeypatch.setattr(pipeline, "bucket_count", counting)
    staged = stage(golden, "codec_lz4", tmp_path / "data")
    small = [*staged.request.config, f"log.cleaner.dedupe.buffer.size={1 << 22}"]
    result = clean_with(SparkEngine(session), staged, config=small)
    assert result.status == "cleaned", result.reason
    assert merge_bytes < 400_000 and counts[0] > 20
    whole = stage(golden, "codec_lz4", tmp_path / "whole")
    clean_with(InProcessEngine(), whole)
    assert log_bytes(staged.partition) == log_bytes(whole.partition)


def dying(task: Callable[..., Any], once: str | None, after: int = 0) -> Callable[..., Any]:
    """A task whose Python worker is killed, the first time or every time, after some of its rows."""

    def killed(*arguments: Any) -> Iterator[Any]:
        for number, batch in enumerate(task(*arguments)):
            if number == after:
                try:
                    if once is not None:
                        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                except FileExistsError:
                    pass
            yield batch

    return killed


@pytest.mark.usefixtures("always_spread")
@pytest.mark.parametrize(
    ("task", "way"), few(itertools.product(("extract_task", "merge_task", "rewrite_task"), WAYS), 0, 3, 4)
)
def test_a_worker_is_killed_and_its_task_goes_again(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, task: str, way: int
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setattr(pipeline, task, dying(getattr(pipeline, task), str(marker)))
    same(golden, tmp_path, "basic_zipf_ts", SparkEngine(session, buckets=3, exchange_stage_bytes=way))
    assert marker.exists()


@pytest.mark.usefixtures("always_spread")
@pytest.mark.parametrize("task", ["gather_task", "rewrite_from_files_task"])
def test_a_worker_is_killed_in_waves(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setattr(pipeline, task, dying(getattr(pipeline, task), str(marker)))
    same(golden, tmp_path, "basic_zipf_ts", SparkEngine(session, buckets=3), max_extra_bytes=SMALL_WAVES)
    assert marker.exists()


def test_a_worker_is_killed_in_the_job_of_small_logs(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setattr(pipeline, "clean_whole_task", dying(pipeline.clean_whole_task, str(marker)))
    same(golden, tmp_path, "basic", SparkEngine(session))
    assert marker.exists()


def test_workers_that_always_die_leave_the_log_whole_and_the_session_usable(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "clean_whole_task", dying(pipeline.clean_whole_task, None))
        result = clean_with(SparkEngine(session), staged)
    assert_failed(result, "ENGINE", path="basic-0")
    assert listing(staged.directory) == before
    assert clean_with(SparkEngine(session), staged).status == "cleaned"


@pytest.mark.parametrize("spread", [False, True])
def test_a_bad_log_is_a_row_and_no_failed_job(
    golden: Path, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    path = min((directory / "tombstones-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[80] ^= 0x01
    path.write_bytes(data)
    before = listing(directory / "tombstones-0")
    if spread:
        monkeypatch.setattr(execution_module, "fits_one_task", lambda work, limit: False)
    jobs: list[BaseException] = []
    monkeypatch.setattr(
        spark_tasks, "EngineError", lambda *a, **b: jobs.append(EngineError(*a, **b)) or jobs[-1]
    )
    results = app.clean(request, engine=lambda request, progress: SparkEngine(session)).results
    assert {result.topic: result.status for result in results} == {
        "basic": "cleaned",
        "tombstones": "uncleanable",
    }
    assert jobs == []
    bad = next(result for result in results if result.topic == "tombstones")
    assert_uncleanable(bad, path, position=0, about="checksum")
    assert listing(directory / "tombstones-0") == before


def test_a_dry_run_writes_nothing(golden: Path, tmp_path: Path, session: SparkSession) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    planned = clean_with(SparkEngine(session), staged, dry_run=True)
    assert listing(staged.directory) == before
    cleaned = clean_with(SparkEngine(session), staged)
    assert (planned.bytes_after, planned.records_after, planned.discarded) == (
        cleaned.bytes_after,
        cleaned.records_after,
        cleaned.discarded,
    )
