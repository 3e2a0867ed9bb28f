"""Names of segments' files and of partition directories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.log.names import (
    CLEANED,
    DELETED,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    SegmentFile,
    TopicPartition,
    ignore_reason,
    is_not_served,
    parse_partition,
    parse_segment_file,
    segment_file,
)

KINDS, SUFFIXES = [*SEGMENT_KINDS, SNAPSHOT], ["", CLEANED, SWAP, DELETED]


@settings(derandomize=True, deadline=None)
@given(st.integers(0, (1 << 63) - 1), st.sampled_from(KINDS), st.sampled_from(SUFFIXES))
def test_a_segments_name_says_base_kind_and_suffix(base: int, kind: str, suffix: str) -> None:
    name = segment_file(base, kind, suffix)
    assert parse_segment_file(name) == SegmentFile(base_offset=base, kind=kind, suffix=suffix)
    assert len(name.partition(".")[0]) == 20


@pytest.mark.parametrize(
    "name",
    [
        *"""0.log 000000000000000000001.log 00000000000000000001.txt 00000000000000000001.log.bak
    00000000000000000001.log.swap.swap x00000000000000000001.log leader-epoch-checkpoint
    00000000000000000001.log.cleaned.1 00000000000000000001
    99999999999999999999.log 0000000000000000000٣.log""".split(),
        "00000000000000000001.log\n",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("topic-0", "topic", 0),
        ("a-b-12", "a-b", 12),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        ("a.b_c-2147483647", "a.b_c", 2147483647),
        ("x-delete-3", "x-delete", 3),
    ],
)
def test_legal_partitions(name: str, topic: str, partition: int) -> None:
    assert parse_partition(name) == TopicPartition(topic, partition)
    assert str(parse_partition(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "topic",
        "topic-",
        "-0",
        "topic-01",
        "topic--1x",
        "topic-2147483648",
        ".-0",
        "..-1",
        "to pic-0",
        "topic-0\n",
        "täpic-0",
        "topic-٣",
        "a" * 250 + "-0",
        "topic-0.5b7e8d9f0a1b4c2d-delete",
        "topic-0-stray",
        "topic-0.12-future",
        "lost+found",
    ],
)
def test_illegal_partitions(name: str) -> None:
    assert parse_partition(name) is None


def test_an_ignored_directory_has_a_reason() -> None:
    assert is_not_served("topic-0.12-delete") and not is_not_served("lost+found")
    assert not is_not_served("topic-0")
    assert "-delete" in ignore_reason("topic-0.12-delete")
    assert ignore_reason("lost+found") == "its name is not TOPIC-PARTITION"
