"""The library's functions over directories: clean, explain, verify, the logs of ``st.open``, the embedded
cleaner without Java."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base.clock import ManualClock
from siltstone.base.errors import ReadOnlyError, UnknownKeywordError, UnknownTopicError, UsageError
from siltstone.commands import library
from siltstone.commands.clean import CleanRequest
from siltstone.commands.library import CleanKeywords, ExplainKeywords
from siltstone.commands.review import ExplainRequest, VerifyRequest
from siltstone.compaction.report import CLEANED
from siltstone.log.names import POSITIONS
from siltstone.log.read_only import LOG_MANAGER_CHANGES, PARTITION_LOG_CHANGES
from siltstone.spark import java
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
    kept = {"storage_options", "remote"}  # the library uses them itself
    for keywords, request in (
        (library.CleanKeywords, CleanRequest),
        (library.ExplainKeywords, ExplainRequest),
        (library.LogKeywords, VerifyRequest),
    ):
        names = {renamed.get(name, name) for name in keywords.__annotations__ if name not in kept}
        assert names == {field.name for field in fields(request)} - places


def test_a_directory_is_explained_cleaned_and_verified(tmp_path: Path, directory: Path) -> None:
    keywords: library.LogKeywords = {"topic": "users", "config": COMPACT, "now_ms": NOW, "no_spark": True}
    explained = st.explain(directory, **keywords)
    assert [log.name for log in explained.logs] == ["users-0", "users-1"]
    assert explained.logs[1].topic_partition == st.TopicPartition("users", 1)
    with st.open(directory) as logs:
        assert len(logs.explain(**keywords).logs) == 2
        run = logs.clean(out=str(tmp_path / "new"), force=True, **keywords)
    assert [result.status for result in run.results] == [CLEANED, CLEANED]
    assert run.results[0].records_after is not None and run.results[0].records_after < 100
    verdict = st.verify(directory, tmp_path / "new", **keywords)
    verdict.raise_for_errors()
    assert [log.name for log in run.results] == [log.name for log in verdict.logs] == ["users-0", "users-1"]
    policy = tmp_path / "topics.config"
    policy.write_text("users:cleanup.policy=compact\n")
    with raises_error(UsageError, about="all compacted topics", advice="all_topics=True"):
        st.clean(directory, in_place=True, config_file=policy)
    in_place = st.clean([directory], in_place=True, force=True, **keywords)
    assert [result.status for result in in_place.results] == [CLEANED, CLEANED]
    assert (directory / "users-0" / POSITIONS).exists()


def test_wrong_keywords_are_refused(directory: Path) -> None:
    for wrong, meant in (("topcis", "topic"), ("topics", "topic"), ("stop_after_minutes", "stop_after")):
        with raises_error(UnknownKeywordError, about=wrong, advice=f"did you mean {meant}? The keywords are"):
            st.clean(directory, **{wrong: "users"})  # type: ignore[arg-type]
    with raises_error(UnknownKeywordError, about="'directories'", advice="topic, config, "):
        st.explain(directory, directories=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="all_topics"):
        st.clean(directory, everything=True)  # type: ignore[call-arg]
    with raises_error(UnknownKeywordError, about="'dry_run'"):
        st.verify(directory, directory, dry_run=True)  # type: ignore[call-arg]
    with raises_error(UsageError, about="seconds"):
        st.explain(directory, now_ms=NOW // 1000)
    with raises_error(UsageError, advice="path"):
        st.clean([])
    with raises_error(UsageError, advice="--in-place"):
        st.clean(directory, topic="users")


def test_none_is_as_if_the_keyword_were_left_out(directory: Path) -> None:
    """So that a program can pass on what it may not have."""
    nothing: dict[str, Any] = dict.fromkeys(ExplainKeywords.__annotations__)
    st.explain(directory, **{**nothing, "engine": "process"})
    nothing = dict.fromkeys(CleanKeywords.__annotations__)
    st.clean(directory, **{**nothing, "engine": "process", "dry_run": True})
    with raises_error(UnknownKeywordError, about="'out'"):
        st.explain(directory, out=None)  # type: ignore[call-arg]


def test_logs_that_are_only_read_refuse_changes(directory: Path, tmp_path: Path) -> None:
    with st.open(directory) as logs:
        for owner, names in ((logs, LOG_MANAGER_CHANGES), (logs["users", 0], PARTITION_LOG_CHANGES)):
            for name in names:
                assert not hasattr(owner, name)
                with raises_error(ReadOnlyError, about=name, advice="mode='a'"):
                    getattr(owner, name)
            with pytest.raises(AttributeError, match="no attribute 'sned'"):
                owner.sned  # type: ignore[attr-defined]  # noqa: B018
        with raises_error(UsageError, advice="positions="):
            logs.consumer("billing", "users")
        with raises_error(UsageError, about="ReadableLogs", advice="mode='a'"):
            st.start_cleaner(logs)  # type: ignore[arg-type]
        assert len(list(logs.consumer("billing", "users", positions=tmp_path / "at.json", timeout=0))) == 200
    assert (
        set(dir(st.OpenLogs)) >= LOG_MANAGER_CHANGES - {"topics"}
        and set(dir(st.PartitionLog)) >= PARTITION_LOG_CHANGES
    )


def test_every_open_thing_says_what_and_where_it_is(directory: Path, tmp_path: Path) -> None:
    with st.open(directory, "a", clock=ManualClock(NOW)) as logs:
        assert repr(logs) == f"<OpenLogs {directory}: 2 partitions>"
        assert repr(logs["users", 1]) == f"<PartitionLog users-1 in {directory}: offsets 0 to 100>"
        assert repr(logs["users", 1].reader(7)) == f"<LogReader of {logs['users', 1]!r} at offset 7>"
        assert repr(logs.producer()) == f"<RecordProducer of {logs!r}>"
        assert repr(logs.topics) == f"<Topics of {logs!r}>"
        consumer = logs.consumer("billing", "users", timeout=0)
        assert repr(consumer) == "<Consumer 'billing': users-0 at 1, users-1 at 0>"
        partition = logs["users", 0]
    assert repr(logs) == f"<OpenLogs {directory}: closed>"
    assert repr(partition) == f"<PartitionLog users-0 in {directory}: offsets 0 to 100, closed>"
    with st.open(directory) as readable:
        assert repr(readable) == f"<ReadableLogs {directory}: 2 partitions>"
        assert repr(readable["users", 0]) == f"<ReadOnlyLog users-0 in {directory}: offsets 0 to 100>"
        assert repr(readable["users"].follow(3)) == "<RecordStream: users-0 at 3, users-1 at 3>"
    with st.Log(tmp_path / "own" / "events-0", upkeep=False) as log:
        assert repr(log) == f"<Log events-0 in {tmp_path / 'own'}: offsets 0 to 0>"


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

    monkeypatch.setattr(java, "java_version", no_java)
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
