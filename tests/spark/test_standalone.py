"""An ordinary standalone cluster: processes that share only the log directories."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import siltstone_daemon
from siltstone.spark import shipping
from siltstone.spark.settings import REQUIRED
from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import Staged, last_values, logs_in, no_leftovers, stage
from tests.support.spark.fenced_on_cluster import (
    EXCHANGED,
    EXECUTOR_DECOMMISSIONED,
    GAVE_UP,
    HELD,
    IDLE_BETWEEN,
    IDLE_WITHIN,
    KILLED,
    KILLED_IN_MERGE,
    KILLED_IN_REWRITE,
    LEFT,
    TWICE,
    WORKER_DECOMMISSIONED,
)
from tests.support.spark.standalone import (
    BARE,
    INSTALLED,
    JAVA_OPTIONS,
    QUICK,
    SMALL,
    Cluster,
    standalone_cluster,
    submit,
)

pytestmark = [pytest.mark.spark, pytest.mark.long]
SET = "basic_zipf_ts"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def words(staged: Staged) -> list[str]:
    """The flags that choose and configure the log."""
    config = [word for text in staged.request.config for word in ("--config", text)]
    return ["--topic", staged.case.topic, *config, "--now-ms", str(staged.request.now_ms)]


def clean(staged: Staged) -> list[str]:
    return ["clean", str(staged.directory), "--in-place", *words(staged)]


DEFAULTS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.speculation": "true",
    "spark.shuffle.compress": "true",
    "spark.executor.defaultJavaOptions": JAVA_OPTIONS,
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


DRIVERS = {"spark.driver.extraJavaOptions": JAVA_OPTIONS}
"""Spark adds to these."""


def test_the_clusters_settings_and_spark_submits_hold(golden: Path, tmp_path: Path, cluster: Cluster) -> None:
    """Those of ``spark-defaults.conf`` and of the command line, as Spark's event log tells them."""
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    here.clean_one()
    folder, events = tmp_path / "conf", tmp_path / "events"
    folder.mkdir()
    events.mkdir()
    defaults = {**DEFAULTS, "spark.eventLog.dir": events.as_uri()}
    text = "".join(f"{name} {value}\n" for name, value in {**defaults, **DRIVERS}.items())
    (folder / "spark-defaults.conf").write_text(text)
    script = str(REPOSITORY / "src" / "siltstone" / "__main__.py")
    command = [*submit(cluster, {"spark.app.name": "nightly"}), script, *clean(there), "--json"]
    document = json.loads(cluster.run(command, SPARK_CONF_DIR=str(folder)))
    assert document["engine"] == f"spark {cluster.master}"
    assert logs_in(there.directory) == logs_in(here.directory)
    assert not cluster.packages(), "these executors have it installed"
    (event_log,) = (path for path in events.iterdir() if path.is_file() and not path.name.startswith("."))
    lines = [json.loads(line) for line in event_log.read_text().splitlines()]
    settings = next(line["Spark Properties"] for line in lines if "Spark Properties" in line)
    assert DRIVERS["spark.driver.extraJavaOptions"] in settings.pop("spark.driver.extraJavaOptions")
    expected = {**defaults, **SMALL, **REQUIRED, "spark.app.name": "nightly", "spark.master": cluster.master}
    assert settings.items() >= expected.items()
    assert "spark.authenticate" not in settings
    assert "TieredStopAtLevel" not in settings.get("spark.executor.extraJavaOptions", "")
    starts = [line["Properties"] for line in lines if line["Event"] == "SparkListenerJobStart"]
    titles = {properties.get("spark.job.description") for properties in starts}
    assert titles == {f"siltstone: {there.partition.name}"}


@pytest.mark.parametrize("kind", [INSTALLED, BARE])
def test_a_cluster_cleans_where_the_package_is_installed_and_where_it_is_not(
    golden: Path, tmp_path: Path, cluster: Cluster, kind: str
) -> None:
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    assert here.clean_one().status == "cleaned"
    document = cluster.siltstone(clean(there), kind)
    assert document["engine"] == f"spark {cluster.master}"
    assert [log["status"] for log in document["logs"]] == ["cleaned"]
    assert logs_in(there.directory) == logs_in(here.directory)
    no_leftovers(there.directory)
    ours = siltstone_daemon.fingerprint_of_archive(Path(shipping.package_zip()))
    if kind == BARE:
        assert set(cluster.packages()) == {ours}


@pytest.mark.parametrize("kind", [INSTALLED, BARE])
def test_a_programs_own_session_is_used_and_stays_as_it_is(
    golden: Path, tmp_path: Path, cluster: Cluster, kind: str
) -> None:
    """The program knows nothing of Siltstone when its session starts: PySpark's own daemon serves it."""
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    here.clean(in_place=False, out=tmp_path / "here-out")
    request, out = there.request, tmp_path / "there-out"
    config = dict(text.split("=") for text in request.config)
    keywords = {"topic": there.case.topic, "config": config, "now_ms": request.now_ms}
    script = [sys.executable, "-m", "tests.support.spark.own_session_on_cluster", cluster.master]
    script += [str(there.directory), str(out), json.dumps(keywords), json.dumps({**SMALL, **QUICK})]
    outcome = json.loads(cluster.run(script, kind))
    assert outcome.pop("engine") == f"spark {cluster.master}"
    too_late = outcome.pop("too late")
    assert "spark.executor.memory" in too_late and "9g" not in too_late  # a value may be a secret
    assert outcome == {
        "explained": ["would_clean"],
        "cleaned": ["cleaned"],
        "verified": True,
        "unchanged": True,
        "own": 3,
    }
    assert logs_in(out) == logs_in(tmp_path / "here-out")


def fenced(cluster: Cluster, logs: Sequence[Staged], what: str, marks: Path, **settings: str) -> list[str]:
    """The command of cleanings to which something happens, one after another."""
    marks.mkdir()
    request, directories = logs[0].request, [str(staged.directory) for staged in logs]
    request_fields = {
        "topics": list(request.topics),
        "now_ms": request.now_ms,
        "config": list(request.config),
    }
    words = [what, cluster.master, json.dumps(directories), json.dumps(request_fields)]
    words += [json.dumps({**SMALL, **QUICK, **settings}), str(marks)]
    return [sys.executable, "-m", "tests.support.spark.fenced_on_cluster", *words]


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.mark.parametrize(
    ("what", "settings", "adaptive"),
    [(KILLED, {}, "true"), (TWICE, SPECULATION, "false"), (KILLED, SPECULATION, "false")],
)
def test_the_bytes_are_the_same_whatever_is_lost_or_done_twice(
    golden: Path, tmp_path: Path, cluster: Cluster, what: str, settings: dict[str, str], adaptive: str
) -> None:
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    here.clean_one()
    marks, settings = tmp_path / "marks", {**settings, "spark.sql.adaptive.enabled": adaptive}
    (result,) = json.loads(cluster.run(fenced(cluster, [there], what, marks, **settings)))
    assert result["status"] == "cleaned", result
    assert len(list(marks.glob("0.*"))) > 1 if what == TWICE else (marks / "killed").exists()
    assert logs_in(there.directory) == logs_in(here.directory)
    no_leftovers(there.directory)


@pytest.mark.parametrize("what", [EXCHANGED, KILLED_IN_MERGE, KILLED_IN_REWRITE])
def test_executors_of_this_machine_exchange_rows_through_files(
    golden: Path, tmp_path: Path, cluster: Cluster, what: str
) -> None:
    """If one is lost, the workers that wait for it give up, and the job runs with shuffles."""
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    here.clean_one()
    marks = tmp_path / "marks"
    (result,) = json.loads(cluster.run(fenced(cluster, [there], what, marks)))
    assert result["status"] == "cleaned", result
    assert (marks / (EXCHANGED if what == EXCHANGED else GAVE_UP)).exists()
    assert (marks / "killed").exists() == (what != EXCHANGED)
    assert logs_in(there.directory) == logs_in(here.directory)
    no_leftovers(there.directory)


DECOMMISSION = {"spark.decommission.enabled": "true"}
MOVES_ROWS = {
    **DECOMMISSION,
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
}
"""An executor that leaves gives its rows to another one; by default they are lost, and made again."""
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both are there before the first task
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
TRACKED = {**DYNAMIC, "spark.dynamicAllocation.shuffleTracking.timeout": "1s"}
UNTRACKED = {**DYNAMIC, **MOVES_ROWS, "spark.dynamicAllocation.shuffleTracking.enabled": "false"}
LEAVING = [
    (EXECUTOR_DECOMMISSIONED, DECOMMISSION, "true"),
    (EXECUTOR_DECOMMISSIONED, MOVES_ROWS, "false"),
    (IDLE_WITHIN, UNTRACKED, "true"),
    (IDLE_BETWEEN, TRACKED, "false"),
]
"""What makes an executor leave, Spark's settings for that, and whether Spark plans anew while it runs."""


def leaves(cluster: Cluster, golden: Path, folder: Path, what: str, settings: dict[str, str]) -> None:
    """Clean two logs while executors leave: the same bytes as in this process."""
    here = stage(golden, SET, folder / "here")
    here.clean_one()
    logs = [stage(golden, SET, folder / name) for name in ("there", "next")]
    marks = folder / "marks"
    results = json.loads(cluster.run(fenced(cluster, logs, what, marks, **settings)))
    assert [result["status"] for result in results] == ["cleaned", "cleaned"], results
    assert (marks / LEFT).exists(), "an executor has left"
    for staged in logs:
        assert logs_in(staged.directory) == logs_in(here.directory)
        no_leftovers(staged.directory)


@pytest.mark.parametrize(("what", "settings", "adaptive"), LEAVING)
def test_the_bytes_are_the_same_when_executors_leave(
    golden: Path, tmp_path: Path, cluster: Cluster, what: str, settings: dict[str, str], adaptive: str
) -> None:
    leaves(cluster, golden, tmp_path, what, {**settings, "spark.sql.adaptive.enabled": adaptive})


def test_the_bytes_are_the_same_when_a_worker_is_decommissioned(golden: Path, tmp_path: Path) -> None:
    """It starts no executor any more, so the cluster is this test's own."""
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster") as cluster:
        leaves(cluster, golden, tmp_path, WORKER_DECOMMISSIONED, DECOMMISSION)


def test_a_killed_driver_leaves_the_log_whole_and_the_next_one_cleans_it(
    golden: Path, tmp_path: Path, cluster: Cluster
) -> None:
    """Its executors have staged segments, and may live on for a while."""
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    values = last_values(there.partition)
    here.clean_one()
    marks = tmp_path / "marks"
    command = fenced(cluster, [there], HELD, marks)
    environment = cluster.environment(INSTALLED)
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE) as driver:
        while driver.poll() is None and not list(marks.iterdir()):
            time.sleep(0.1)
        processes = [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]
        for process in processes:
            process.kill()
    assert list(there.partition.glob(".siltstone/*/*.log")), "a segment was staged"
    assert there.checkpoint() is None and last_values(there.partition) == values
    document = cluster.siltstone(clean(there))
    assert [log["status"] for log in document["logs"]] == ["cleaned"]
    assert logs_in(there.directory) == logs_in(here.directory)
    no_leftovers(there.directory)
