"""Pulsar's names: which topic each means, and what a namespace may say."""

from __future__ import annotations

import pytest

from siltstone.base.errors import InvalidConfigError, UnknownTopicError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.runtime.topic_names import (
    DEFAULT_NAMESPACE,
    altered_policies,
    find_partitions,
    namespace_of,
    persistent_name,
    refuse_bad_namespace,
)
from tests.support.errors import raises_error

PARTITIONS = {
    "users": (0, 1),
    "my-tenant.my-ns.orders": (0,),
    "com.acme.users": (0,),
    "a.b": (0,),
    "t-u.v.x": (0,),
    "t.u-v.x": (0,),
    "odd-partition-1": (0,),
    "odd": (0, 1),
}
EXISTING = [TopicPartition(topic, number) for topic, numbers in PARTITIONS.items() for number in numbers]


@pytest.mark.parametrize(
    ("text", "topic", "partition"),
    [
        ("users", "users", None),
        ("persistent://public/default/users", "users", None),
        ("persistent://my-tenant/my-ns/orders", "my-tenant.my-ns.orders", None),
        ("my-tenant.my-ns.orders", "my-tenant.my-ns.orders", None),
        ("persistent://com/acme/users", "com.acme.users", None),
        ("persistent://public/default/com.acme.users", "com.acme.users", None),
        ("persistent://public/default/a.b", "a.b", None),
        ("persistent://public/default/users-partition-1", "users", 1),
        ("users-partition-0", "users", 0),
        ("persistent://my-tenant-my-ns/orders", "my-tenant.my-ns.orders", None),
        ("persistent://public-default/users", "users", None),
        ("odd-partition-1", "odd-partition-1", None),
    ],
)
def test_the_topic_that_a_name_means(text: str, topic: str, partition: int | None) -> None:
    numbers = PARTITIONS[topic] if partition is None else (partition,)
    assert find_partitions(text, EXISTING) == [TopicPartition(topic, number) for number in numbers]


@pytest.mark.parametrize(
    "text", ["nobody", "persistent://a/b/c", "users-partition-2", "persistent://x-y/z", "users-partition-01"]
)
def test_a_name_without_a_topic_is_unknown(text: str) -> None:
    with raises_error(UnknownTopicError, about=repr(text), advice="topics --list"):
        find_partitions(text, EXISTING)


@pytest.mark.parametrize(
    ("text", "named", "advice"),
    [
        ("non-persistent://public/default/users", "non-persistent://", "persistent topic"),
        ("persistent://users", "persistent://users", "persistent://tenant/namespace/name"),
        ("persistent://public/default/", "persistent://public/", "persistent://tenant/namespace/name"),
        ("persistent://a/b/c/d", "persistent://a/b/c/d", "persistent://tenant/namespace/name"),
        ("http://a/b/c", "http://a/b/c", "persistent://tenant/namespace/name"),
        ("persistent://a.b/c/d", "a.b/c", "tenant/namespace"),
        ("persistent://t-u-v/x", "persistent://t-u-v/x", "persistent://t-u/v/x, persistent://t/u-v/x"),
    ],
)
def test_a_text_that_names_no_persistent_topic_or_several_is_refused(
    text: str, named: str, advice: str
) -> None:
    with raises_error(UsageError, about=named, advice=advice):
        find_partitions(text, EXISTING)


def test_the_namespace_of_a_topic() -> None:
    assert namespace_of("users") == namespace_of("a.b") == DEFAULT_NAMESPACE
    assert namespace_of("a.b.c.d") == "a/b"
    refuse_bad_namespace("a/b")
    assert namespace_of("..x") == namespace_of("a..x") == namespace_of("a.b.") == DEFAULT_NAMESPACE


@pytest.mark.parametrize("topic", ["users", "a.b", "a.b.c", "a.b.c.d", "..x"])
def test_a_topics_name_leads_back_to_it(topic: str) -> None:
    partition = TopicPartition(topic, 0)
    assert find_partitions(persistent_name(topic), [partition]) == [partition]


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/", "/b", "a.b/c", "a/b c"])
def test_a_text_that_is_not_a_namespace_is_refused(text: str) -> None:
    with raises_error(UsageError, about=repr(text), advice="tenant/namespace"):
        refuse_bad_namespace(text)


def test_policies_are_checked() -> None:
    key = "compactionThreshold"
    assert altered_policies({}, {key: "10"}, (), DEFAULT_NAMESPACE) == {key: "10"}
    assert altered_policies({key: "10"}, {}, (key,), DEFAULT_NAMESPACE) == {}
    for set_to, why in (
        ({key: "-1"}, key),
        ({"retention.ms": "1"}, "retention.ms"),
        ({"compactionTreshold": "1"}, "compactionTreshold"),
    ):
        with raises_error(InvalidConfigError, about=why):
            altered_policies({}, set_to, (), DEFAULT_NAMESPACE)
