"""Which engine does a command's work, and the settings that users pass to Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.errors import UsageError
from siltstone.commands.engines import parse_spark_conf, uses_spark
from tests.support.errors import raises_error


def test_spark_settings_are_split_at_their_first_equals_sign() -> None:
    arguments = ["spark.executor.memory=4g", "spark.x=", "spark.hadoop.a=b=c", "spark.x="]
    expected = {"spark.executor.memory": "4g", "spark.x": "", "spark.hadoop.a": "b=c"}
    assert parse_spark_conf(arguments) == expected
    assert parse_spark_conf(()) == {}


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["spark.executor.memory"], "not a setting"),
        (["executor.memory=4g"], "not a setting"),
        (["=4g"], "not a setting"),
        (["spark.executor.memory =4g"], "not a setting"),
        (["spark.x=1", "spark.x=2"], "twice"),
        (["spark.master=yarn"], "spark.master"),
    ],
)
def test_wrong_spark_settings_are_refused(arguments: list[str], about: str) -> None:
    with raises_error(
        UsageError, path="--spark-conf", about=about, advice="pass" if about != "twice" else ""
    ):
        parse_spark_conf(arguments)


@pytest.mark.parametrize("name", ["hadoop.fs.s3a.secret.key", "spark.ssl.keyPassword ", "spark.password"])
def test_no_error_has_the_value_of_a_setting(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spark_conf([f"{name}=hunter2", f"{name}=hunter3"])
    assert name in str(caught.value) and "hunter" not in str(caught.value)


def test_spark_submit_asks_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> int:
        return 1

    assert not uses_spark("process", None, size)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert uses_spark("auto", None, size) and not uses_spark("process", None, size)


@pytest.mark.parametrize("name", ["clean", "explain", "verify"])
def test_a_wrong_setting_is_refused_before_anything_is_done(tmp_path: Path, name: str) -> None:
    logs = tmp_path / "logs"
    with st.open(logs, "a") as opened:
        opened.topics.create("users", partitions=1)
    wrong = {"engine": "process", "spark_conf": {"executor.memory": "4g"}}
    places = [logs, logs] if name == "verify" else [logs]
    options = {**wrong, "out": tmp_path / "out"} if name == "clean" else wrong
    with raises_error(UsageError, path="--spark-conf", about="executor.memory"):
        getattr(st, name)(*places, **options)
    assert not (tmp_path / "out").exists()
