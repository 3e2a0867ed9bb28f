"""Kafka's small text files: what is written is read again, garbage is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log.checkpoints import read_checkpoint, read_properties, read_topic_id, write_checkpoint
from siltstone.log.names import TopicPartition
from tests.support import golden_sets
from tests.support.errors import raises_error
from tests.support.thoroughness import examples

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 1000)), st.integers(0, (1 << 63) - 1), max_size=8
)
QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@QUICK
@given(OFFSETS)
def test_a_checkpoint_that_was_written_is_read_again(
    tmp_path: Path, offsets: dict[TopicPartition, int]
) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, offsets)
    assert read_checkpoint(path) == offsets
    entries = golden_sets.read_checkpoint(path)
    assert entries == {
        (topic_partition.topic, topic_partition.partition): offset
        for topic_partition, offset in offsets.items()
    }


def test_no_file_and_an_empty_file_have_no_entries(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "none") == {}
    (tmp_path / "empty").touch()
    assert read_checkpoint(tmp_path / "empty") == {}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1\n0\n", 0),
        ("x", 0),
        ("0\n", 0),
        ("0\nx\n", 2),
        ("0\n²\n", 2),
        ("0\n" + "9" * 5000 + "\n", 2),
        ("0\n1\n", 2),
        ("0\n0\ntopic 0 5\n", 2),
        ("0\n2\ntopic 0 5\n", 2),
        ("0\n1\ntopic 0\n", 4),
        ("0\n1\ntopic 0 5 6\n", 4),
        ("0\n2\ntopic 0 5\ntopic zero 5\n", 14),
        ("0\n1\ntopic 0 five\n", 4),
        ("0\n1\ntopic 0 " + "9" * 5000, 4),
    ],
)
def test_an_error_names_the_damaged_checkpoint_and_the_line(tmp_path: Path, text: str, position: int) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text, encoding="utf-8")
    with raises_error(CorruptFileError, path=path, position=position):
        read_checkpoint(path)


@QUICK
@given(st.binary(max_size=60))
@example(b"0\n\xc2\xb2\n")
@example(b"\xff")
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    for read in (read_checkpoint, read_properties):
        try:
            read(path)
        except CorruptFileError as error:
            assert error.position <= len(data)


@QUICK
@given(st.binary(max_size=60))
def test_random_bytes_are_not_a_topic_id(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(data)
    with pytest.raises(CorruptFileError):
        read_topic_id(tmp_path)


def test_the_topic_id_of_a_real_partition(golden: Path, tmp_path: Path) -> None:
    topic_id = read_topic_id(golden / "basic" / "before")
    assert topic_id is not None and len(topic_id) == 22
    assert read_topic_id(tmp_path) is None


def test_a_checkpoint_is_replaced_by_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, {TopicPartition("a", 0): 1})
    verbs: list[str] = []
    with files.observe(lambda operation: verbs.append(operation[0])):
        write_checkpoint(path, {TopicPartition("a", 0): 2})
    order = [verb for verb in verbs if verb in ("create", "write", "fsync", "rename")]
    assert order == ["create", "write", "fsync", "rename", "fsync"]


def test_properties_are_read_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("#comment\n!too=1\nversion=1\n cluster.id = a=b \nnothing\n")
    assert read_properties(path) == {"version": "1", "cluster.id": "a=b"}
