"""Executors: how many tasks a job gets while they come and go; without our folder they do nothing."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.commands import clean as app
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.log.checkpoints import write_checkpoint
from siltstone.spark import executors, jobs
from siltstone.spark.clean import SparkEngine
from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.executors import default_task_count
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one
from tests.support.errors import raises_error
from tests.support.ledger.driving import How, compact_and_check, opened
from tests.support.ledger.oracle import Model
from tests.support.operator.staged import stage_several
from tests.support.thoroughness import few

pytestmark = pytest.mark.spark


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master passes for one whose executors may be on other machines."""
    for module in (executors, jobs):
        monkeypatch.setattr(module, "is_local", lambda master: False)
    monkeypatch.setattr(jobs, "tasks_stay_on_this_machine", lambda session: False)
    monkeypatch.setattr(jobs.SparkJobRunner, "parallelism", 2)


@pytest.fixture
def several(golden: Path, tmp_path: Path) -> tuple[Path, app.CleanRequest]:
    return stage_several(golden, ["basic", "tombstones", "codec_zstd"], tmp_path)


def clean(request: app.CleanRequest, session: SparkSession) -> app.CleanOutcome:
    return app.clean(request, engine=lambda *arguments: SparkEngine(session))


@pytest.mark.usefixtures("elsewhere")
def test_workers_of_this_machine_share_the_log_directory(
    session: SparkSession, several: tuple[Path, app.CleanRequest]
) -> None:
    directory, request = several
    assert {result.status for result in clean(request, session).results} == {"cleaned"}
    assert not list(directory.rglob("*.nonce")) and not list(directory.rglob(".siltstone"))


@pytest.mark.usefixtures("elsewhere")
def test_side_by_side_compaction_refuses_workers_of_another_user(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compact(root: Path, spread: bool) -> None:
        logs.write_log(root, {0: [one(number, f"k{number % 3}") for number in range(10)]})
        write_checkpoint(root / "replication-offset-checkpoint", {logs.WHERE: 10})
        how = How(spread=spread, engine=lambda buckets: SparkCompactionEngine(session, buckets=buckets))
        compact_and_check(opened(root), Model(by_time=False, retain_null_key=True), how)

    compact(tmp_path / "spread", True)
    compact(tmp_path / "in one task", False)
    user_id = os.geteuid()
    monkeypatch.setattr(executors.os, "geteuid", lambda: user_id + 1)
    with raises_error(EngineError, about="another user"):
        compact(tmp_path / "unshared", False)


WAYS = ["another user", "another file of the same name", "No such file"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("about", "spread"),
    few(itertools.product(WAYS, [False, True]), 1, 2, 4),  # each way, either once
)
def test_workers_without_the_log_directory_are_refused_before_anything_is_cleaned(
    session: SparkSession,
    several: tuple[Path, app.CleanRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    about: str,
    spread: bool,
) -> None:
    """The run ends: all logs would fail alike. The driver says that it is somebody else, or the nonce lies
    where only the driver looks, or with other bytes where tasks look."""
    (directory, request), before = several, logs.tree(several[0])
    user_id, written, stat = os.geteuid(), files.write_new, files.stat
    apart = tmp_path / "apart-from-all"
    apart.mkdir()
    if about == "another user":
        monkeypatch.setattr(executors.os, "geteuid", lambda: user_id + 1)
    elif about == "No such file":
        monkeypatch.setattr(files, "write_new", lambda path, data: written(apart / path.name, data))
        monkeypatch.setattr(
            files,
            "stat",
            lambda path, **options: stat(apart / Path(path).name if ".nonce" in str(path) else path),
        )
    else:
        monkeypatch.setattr(files, "write_new", lambda path, data: written(path, b"another's"))
    if spread:
        monkeypatch.setattr(app, "RunLimits", functools.partial(RunLimits, whole_log_bytes=0))
    with raises_error(EngineError, about=about, advice="--out") as caught:
        clean(request, session)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert logs.tree(directory) == before


class Fake:
    """A session of a cluster, which has slots as they come; the last number stays."""

    def __init__(self, slots: list[int], master: str = "spark://host:7077", **settings: str) -> None:
        self.slots, self.requests = slots, 0
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf = SimpleNamespace(get=dotted.get)
        self.sparkContext = SimpleNamespace(
            master=master,
            applicationId=f"app-{id(self)}",
            defaultParallelism=7,
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that pass only while ``executors`` waits, not for other threads; the slots follow."""
    now = [0.0]

    def slots(session: Any) -> int:
        session.requests += 1
        return int(session.slots[min(session.requests, len(session.slots)) - 1])

    monkeypatch.setattr(executors, "task_slots", slots)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    yield now


COMING = [0] * 20 + [3] * 5 + [6]
MANY = {"spark_dynamicAllocation_enabled": "true", "spark_sql_shuffle_partitions": "50"}


@pytest.mark.parametrize(
    ("session", "workers", "waited"),
    [
        (Fake(COMING), 6, 4.5),
        (Fake([0] * 9 + [3], spark_executor_instances="3"), 3, 0.9),
        (Fake([0] * 9 + [3] * 40 + [8], spark_executor_instances="4", spark_executor_cores="2"), 8, 4.9),
        (Fake([4], spark_executor_instances="9"), 4, 30.0),
        (Fake([0] * 9 + [4, 8], "local-cluster[2,4,1024]"), 8, 1.0),
        (Fake([0] * 9 + [1, 2], "local-cluster[2,3,1024]", spark_task_cpus="2"), 2, 1.0),
        (Fake([0]), 200, 30.0),
        (Fake([0], spark_executor_instances="300"), 300, 30.0),
        (Fake([0], spark_default_parallelism="7"), 7, 0.0),
        (Fake([0], **MANY), 50, 0.0),
        (Fake([80], **MANY), 80, 0.0),
        (Fake([0], spark_dynamicAllocation_maxExecutors="5", spark_executor_cores="4", **MANY), 20, 0.0),
        (Fake([0], spark_dynamicAllocation_maxExecutors="infinity", **MANY), 50, 0.0),
    ],
)
def test_a_job_has_as_many_tasks_as_executors_run(
    clock: list[float], session: Any, workers: int, waited: float
) -> None:
    """The first job waits until the executors are there; later jobs have as many tasks as there are slots."""
    assert default_task_count(session) == workers
    assert clock[0] == pytest.approx(waited, abs=0.3)
    session.slots = [11]
    assert not waited or default_task_count(session) == 11
    assert clock[0] == pytest.approx(waited, abs=0.3)
