"""An ordinary standalone cluster: processes that share only the log directories."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone_daemon
from siltstone.spark import shipping
from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import Staged, logs_in, no_leftovers, stage
from tests.support.spark.standalone import BARE, INSTALLED, SMALL, Cluster, standalone_cluster, submit

pytestmark = pytest.mark.spark
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


@pytest.mark.parametrize("kind", [INSTALLED, BARE])
def test_it_cleans_where_the_package_is_installed_and_where_it_is_not(
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
    assert set(cluster.packages()) == ({ours} if kind == BARE else set())


def test_spark_submit_says_where_and_how(golden: Path, tmp_path: Path, cluster: Cluster) -> None:
    here, there = stage(golden, SET, tmp_path / "here"), stage(golden, SET, tmp_path / "there")
    here.clean_one()
    script = str(REPOSITORY / "src" / "siltstone" / "__main__.py")
    document = json.loads(cluster.run([*submit(cluster, {}), script, *clean(there), "--json"]))
    assert document["engine"] == f"spark {cluster.master}"
    assert logs_in(there.directory) == logs_in(here.directory)


@pytest.mark.parametrize("kind", [pytest.param(INSTALLED, marks=pytest.mark.long), BARE])
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
    script += [str(there.directory), str(out), json.dumps(keywords), json.dumps(SMALL)]
    said = json.loads(cluster.run(script, kind))
    assert said.pop("engine") == f"spark {cluster.master}"
    assert "spark.executor.memory=9g" in said.pop("too late")
    assert said == {
        "explained": ["would_clean"],
        "cleaned": ["cleaned"],
        "verified": True,
        "unchanged": True,
        "own": 3,
    }
    assert logs_in(out) == logs_in(tmp_path / "here-out")
