"""Whose threshold counts, and how large a backlog is."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.config import Config, parse_broker_config, parse_topic_config
from siltstone.base.errors import UsageError
from siltstone.log.names import TopicPartition
from siltstone.runtime.compactions import Threshold, backlog_bytes, compaction_threshold
from tests.support.errors import raises_error
from tests.support.log.managed import append, opened

BROKERS = "brokerServiceCompactionThresholdInBytes"
SHOP = {"acme/shop": {"compactionThreshold": "30"}, "public/default": {"compactionThreshold": "40"}}


def settings(topic: str | None, broker: str | None) -> Config:
    static = {} if broker is None else {BROKERS: broker}
    own = {} if topic is None else {"compactionThreshold": topic}
    return Config(static=parse_broker_config(static, "test")).with_topic_layer(
        parse_topic_config(own, "test")
    )


@pytest.mark.parametrize(
    ("topic", "broker", "name", "size", "source"),
    [
        ("10", "20", "acme.shop.orders", 10, "topic"),
        (None, "20", "acme.shop.orders", 20, "broker"),
        (None, None, "acme.shop.orders", 30, "namespace"),
        (None, None, "orders", 40, "namespace"),
        (None, None, "acme.office.orders", 0, "default"),
        ("0", "20", "acme.shop.orders", 0, "topic"),
        (None, "0", "acme.shop.orders", 0, "broker"),
    ],
)
def test_the_threshold_is_the_topics_then_the_brokers_then_the_namespaces(
    topic: str | None, broker: str | None, name: str, size: int, source: str
) -> None:
    threshold = compaction_threshold(name, settings(topic, broker), SHOP)
    assert threshold == Threshold(size=size, source=source)


def test_a_backlog_has_to_exceed_the_threshold_and_0_is_never_exceeded() -> None:
    assert Threshold(size=10, source="topic").is_exceeded_by(11)
    assert not Threshold(size=10, source="topic").is_exceeded_by(10)
    assert not Threshold(size=0, source="default").is_exceeded_by(1 << 60)


def test_the_backlog_is_what_lies_above_the_horizon(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", 1, {"segment.bytes": "300"})
        log = manager[TopicPartition("users", 0)]
        sizes = []
        for _ in range(12):
            before = log.size
            append(log, 2)
            sizes.append(log.size - before)
        view = log.view
        assert len(view.segments) > 3
        assert backlog_bytes(view, None) == sum(sizes)
        for number in range(12):
            assert backlog_bytes(view, 2 * number) == sum(sizes[number:])
            assert backlog_bytes(view, 2 * number + 1) == sum(sizes[number:]), "a batch is read as a whole"
        assert backlog_bytes(view, 24) == backlog_bytes(view, 99) == 0


def test_uncommitted_records_are_not_in_the_backlog(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", 1)
        log = manager[TopicPartition("users", 0)]
        append(log, 2)
        size = log.size
        append(log, 2)
        assert backlog_bytes(log.view._replace(high_watermark=2), None) == size
        assert backlog_bytes(log.view._replace(last_stable_offset=2), None) == size
        assert backlog_bytes(log.view._replace(last_stable_offset=2), 2) == 0


def test_deleted_records_are_not_in_the_backlog(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", 1)
        log = manager[TopicPartition("users", 0)]
        append(log, 2)
        size = log.size
        append(log, 2)
        log.delete_records(2)
        assert backlog_bytes(log.view, None) == log.size - size


@pytest.mark.parametrize("text", ["100MB", "", "9" * 30, "-1"])
def test_a_damaged_policy_of_a_namespace_is_an_error_of_its_topics(text: str) -> None:
    """The registry is a file. A check for logs to compact goes on with the other namespaces' topics."""
    namespaces = {"acme/shop": {"compactionThreshold": text}}
    with raises_error(UsageError, about="compactionThreshold"):
        compaction_threshold("acme.shop.orders", settings(None, None), namespaces)
    assert compaction_threshold("orders", settings(None, None), namespaces).source == "default"
