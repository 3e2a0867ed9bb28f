"""Which settings a session gets: all of ours on this machine, on a cluster what nobody else has set."""

from __future__ import annotations

import pytest

from siltstone.base.errors import EngineError
from siltstone.spark.settings import (
    REQUIRED,
    cluster_settings,
    is_local,
    is_this_machine,
    local_settings,
    refuse_changed_required,
    with_retries,
    without_retries,
)
from tests.support.errors import raises_error

CLUSTERS_OWN = [
    *("spark.authenticate", "spark.driver.memory", "spark.ui.enabled", "spark.sql.adaptive.enabled"),
    *("spark.speculation", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.extraJavaOptions"),
    *("spark.shuffle.compress", "spark.python.unix.domain.socket.enabled"),
]


def test_a_clusters_own_settings_are_its_own() -> None:
    ours = cluster_settings(None, "a.daemon", {})
    assert not set(CLUSTERS_OWN) & set(ours) and set(REQUIRED) <= set(ours)
    assert set(CLUSTERS_OWN) <= set(local_settings("local[2]", None, "", "a.daemon"))
    assert ours["spark.python.daemon.module"] == "a.daemon"


def test_what_is_set_stays_but_for_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/cache")
    free = cluster_settings("/spill", "a.daemon", {})
    assert free["spark.local.dir"] == "/spill" and free["spark.executorEnv.NUMBA_CACHE_DIR"] == "/cache"
    present = dict.fromkeys(free, "own")
    assert cluster_settings("/spill", "a.daemon", present) == REQUIRED


@pytest.mark.parametrize("name", ["spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions"])
def test_a_clusters_java_options_are_not_mixed_with_ours(name: str) -> None:
    assert "spark.executor.extraJavaOptions" in cluster_settings(None, "a.daemon", {})
    assert "spark.executor.extraJavaOptions" not in cluster_settings(None, "a.daemon", {name: "-XX:+UseG1GC"})


def test_what_is_required_cannot_be_another() -> None:
    name, value = next(iter(REQUIRED.items()))
    refuse_changed_required({name: value, "spark.executor.memory": "4g"})
    with raises_error(EngineError, path="--spark-conf", about=f"{name}=10000", advice="leave"):
        refuse_changed_required({name: "10000"})


@pytest.mark.parametrize(
    ("master", "local", "here", "tried"),
    [
        ("local", True, True, "local[1,3]"),
        ("local[*]", True, True, "local[*,3]"),
        ("local[4,9]", True, True, "local[4,9]"),
        ("local-cluster[2,1,1024]", False, True, "local-cluster[2,1,1024]"),
        ("spark://local:7077", False, False, "spark://local:7077"),
        ("yarn", False, False, "yarn"),
        ("k8s://https://host:443", False, False, "k8s://https://host:443"),
    ],
)
def test_masters(master: str, local: bool, here: bool, tried: str) -> None:
    assert (is_local(master), is_this_machine(master), with_retries(master)) == (local, here, tried)
    assert without_retries("local[*,3]") == "local[*]"
    assert without_retries("spark://a:1,b:2") == "spark://a:1,b:2"
