"""The library's functions over directories: clean, explain, verify, the logs of ``st.open``, the embedded
cleaner without Java."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.clock import ManualClock
from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.commands import library
from siltstone.commands.clean import CleanRequest
from siltstone.commands.review import ExplainRequest, VerifyRequest
from siltstone.compaction.report import CLEANED
from siltstone.log.names import POSITIONS
from siltstone.spark import session as sessions
from tests.support.errors import raises_error
from tests.support.log.managed import NOW

COMPACT: dict[str, str | int] = {"cleanup.policy": "compact", "segment.bytes": 1000}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed log directory: a hundred records of five keys in each of two partitions."""
    with st.open(tmp_path / "logs", "a", clock=ManualClock(NOW)) as logs:
        logs.topics.create("users", partitions=2, config=COMPACT)
        for number in range(100):
            for partition in (0, 1):
                key, value = b"%d" % (number % 5), b"%d" % number
                logs.send("users", value, key=key, partition=partition, timestamp=NOW)
        consumer = logs.consumer("billing", "users", timeout=0)
        next(consumer)
        consumer.commit()
    return tmp_path / "logs"


def test_keywords_are_the_fields_of_the_requests() -> None:
    renamed, places = {"topic": "topics"}, {"directories", "before", "after"}
    for keywords, request in (
        (library.CleanKeywords, CleanRequest),
        (library.ExplainKeywords, ExplainRequest),
        (library.LogKeywords, VerifyRequest),
    ):
        names = {renamed.get(name, name) for name in keywords.__annotations__}
        assert names == {field.name for field in fields(request)} - places


def test_a_directory_is_explained_cleaned_and_verified(tmp_path: Path, directory: Path) -> None:
    keywords: library.LogKeywords = {"topic": "users", "config": COMPACT, "now_ms": NOW, "no_spark": True}
    explained = st.explain(directory, **keywords)
    assert [log.name for log in explained.logs] == ["users-0", "users-1"]
    with st.open(directory) as logs:
        assert len(logs.explain(**keywords).logs) == 2
        run = logs.clean(out=str(tmp_path / "new"), force=True, **keywords)
    assert [result.status for result in run.results] == [CLEANED, CLEANED]
    assert run.results[0].records_after is not None and run.results[0].records_after < 100
    st.verify(directory, tmp_path / "new", **keywords).raise_for_errors()
    policy = tmp_path / "topics.config"
    policy.write_text("users:cleanup.policy=compact\n")
    with raises_error(UsageError, about="all compacted topics", advice="all_topics=True"):
        st.clean(directory, in_place=True, config_file=policy)
    in_place = st.clean([directory], in_place=True, force=True, **keywords)
    assert [result.status for result in in_place.results] == [CLEANED, CLEANED]
    assert (directory / "users-0" / POSITIONS).exists()


def test_wrong_keywords_are_refused(directory: Path) -> None:
    with raises_error(UsageError, about="topcis", advice="docs/commands.md"):
        st.clean(directory, topcis="users")  # type: ignore[call-arg]
    with raises_error(UsageError, about="seconds"):
        st.explain(directory, now_ms=NOW // 1000)
    with raises_error(UsageError, advice="path"):
        st.clean([])
    with raises_error(UsageError, advice="--in-place"):
        st.clean(directory, topic="users")


def test_open_logs_are_cleaned_at_once_with_their_active_segments(directory: Path) -> None:
    with st.open(directory, "a", clock=ManualClock(NOW)) as logs:
        logs.topics.create("events")
        results = logs.clean("users")
        assert [result.status for result in results] == [CLEANED, CLEANED]
        assert [record.value for record in logs["users", 0]] == [b"%d" % n for n in range(95, 100)]
        assert logs.clean() == [] or all(result.status != "failed" for result in logs.clean())
        logs.send("users", b"new", key=b"1", partition=0)
        logs.clean(["users"])
        assert len(list(logs["users", 0])) == 5
        with raises_error(UsageError, about="events", advice="cleanup.policy"):
            logs.clean("events")
        with pytest.raises(UnknownTopicError):
            logs.clean("missing")
        assert logs.services == []


@pytest.mark.parametrize("engine", ["process", "auto"])
def test_the_embedded_cleaner_needs_no_java(
    directory: Path, monkeypatch: pytest.MonkeyPatch, engine: library.EngineName
) -> None:
    def no_java() -> str:
        raise st.errors.EngineError("Java is missing", advice="install it")

    monkeypatch.setattr(sessions, "java_version", no_java)
    monkeypatch.setattr(library, "SPARK_BYTES", 0)  # large enough for Spark
    with st.open(directory, "a", config={"log.cleaner.threads": 0}, clock=ManualClock(NOW)) as logs:
        cleaner = st.start_cleaner(logs, engine=engine)
        assert {result.status for result in cleaner.clean_once()} == {CLEANED}
        with raises_error(UsageError, about="cloud", advice="process"):
            st.start_cleaner(logs, engine="cloud")  # type: ignore[arg-type]


def test_without_pyspark_the_engine_that_needs_it_says_how_to_get_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    with st.open(directory, "a", config={"log.cleaner.threads": 0}) as logs:
        with raises_error(st.errors.EngineError, advice="siltstone[spark]"):
            st.start_cleaner(logs, engine="spark")
        monkeypatch.setattr(library, "SPARK_BYTES", 0)
        st.start_cleaner(logs)
