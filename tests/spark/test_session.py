"""A session beside the program's own, and one of spark-submit; ``test_standalone`` has clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from siltstone.base.errors import EngineError
from siltstone.spark import internals, tasks
from siltstone.spark import session as sessions
from siltstone.spark.session import start_session
from siltstone.spark.settings import REQUIRED
from tests.support.errors import raises_error

pytestmark = pytest.mark.spark
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def own(session: SparkSession) -> Iterator[SparkSession]:
    """The program's session, whose batches are of Spark's size."""
    session.conf.set(ROWS, "10000")
    yield session
    session.conf.set(ROWS, REQUIRED[ROWS])


def test_the_programs_session_stays_as_it_is(own: SparkSession) -> None:
    before = own.conf.get(PARTITIONS)
    second = start_session("spark://nowhere:7077", settings={PARTITIONS: "3"})
    assert second is not own and second.sparkContext is own.sparkContext
    assert {name: second.conf.get(name) for name in REQUIRED} == REQUIRED
    assert second.conf.get(PARTITIONS) == "3"
    assert own.conf.get(ROWS) == "10000" and own.conf.get(PARTITIONS) == before
    assert internals.running_session() is own


def test_what_an_application_has_from_its_start_on_comes_too_late(own: SparkSession) -> None:
    memory = own.sparkContext.getConf().get("spark.driver.memory")
    start_session(settings={"spark.driver.memory": memory})
    late = {"spark.driver.memory": "17g", "spark.hadoop.fs.s3a.secret.key": "a-secret"}
    for name, value in late.items():
        with raises_error(EngineError, path="--spark-conf", about=name, advice="session is made") as raised:
            start_session(settings={name: value})
        assert value not in str(raised.value), "it may be a secret"


@pytest.mark.parametrize("master", [None, "local[2]", "sc://nowhere:15002"])
def test_what_siltstone_requires_is_refused_everywhere(master: str | None) -> None:
    with raises_error(EngineError, path="--spark-conf", about=ROWS):
        sessions.session_on(master, settings={ROWS: "10000"})


SUBMITTED = {"spark.master": "spark://host:7077", "spark.app.name": "nightly", "spark.executor.memory": "3g"}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """spark-submit has started this process, and its Java."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(internals, "start_java", lambda builder: dict(SUBMITTED))


def settings_of(master: str | None, **chosen: str) -> dict[str, str]:
    start = sessions._Start(master=master, spill_folder=None, chosen=chosen)
    return dict(start.builder()._options)


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("master", [None, "spark://host:7077"])
def test_spark_submit_has_the_master_and_the_settings(master: str | None) -> None:
    ours = settings_of(master, **{"spark.speculation": "true"})
    assert not set(SUBMITTED) & set(ours)
    assert ours["spark.speculation"] == "true" and ours.items() >= REQUIRED.items()


@pytest.mark.usefixtures("submitted")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_spark_submit_on_this_machine(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """Java runs already, so ``local-cluster`` cannot be told a secret."""
    monkeypatch.setitem(SUBMITTED, "spark.master", master)
    ours = settings_of(None)
    assert ours.items() >= REQUIRED.items() and not set(SUBMITTED) & set(ours)
    assert ("spark.authenticate" in ours) is (master == "local[2]")


@pytest.mark.usefixtures("submitted")
def test_another_master_than_spark_submits_is_refused() -> None:
    with raises_error(EngineError, about="spark://host:7077", advice="--master"):
        settings_of("yarn")


def test_the_errors_of_executors_say_what_to_do() -> None:
    text = f"Job aborted\nUnsharedFolderError: {tasks.UNSHARED}: /logs on host-7: No such file\n\tat a.b"
    error = tasks.job_error("users-0", RuntimeError(text))
    assert error is not None and "--out" in (error.advice or "")
    assert error.reason == f"{tasks.UNSHARED}: /logs on host-7: No such file"
    missing = tasks.job_error("users-0", RuntimeError("ModuleNotFoundError: No module named 'numba'"))
    assert missing is not None and "PYSPARK_PYTHON" in (missing.advice or "") and "numba" in missing.reason
