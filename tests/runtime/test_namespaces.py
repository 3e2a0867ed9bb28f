"""Pulsar's names: which topic each means, and what a namespace may say."""

from __future__ import annotations

import pytest

from siltstone.base.errors import InvalidConfigError, UnknownTopicError, UsageError
from siltstone.runtime.topic_names import (
    DEFAULT_NAMESPACE,
    AskedTopic,
    Namespace,
    altered_policies,
    find_topic,
    namespace_of,
    parse_namespace,
    persistent_name,
)

HERE = {
    "users": (0, 1),
    "my-tenant.my-ns.orders": (0,),
    "com.acme.users": (0,),
    "a.b": (0,),
    "t-u.v.x": (0,),
    "t.u-v.x": (0,),
    "odd-partition-1": (0,),
    "odd": (0, 1),
}


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
    assert find_topic(text, HERE) == AskedTopic(topic=topic, partition=partition)


@pytest.mark.parametrize(
    "text", ["nobody", "persistent://a/b/c", "users-partition-2", "persistent://x-y/z", "users-partition-01"]
)
def test_what_is_not_there_is_unknown(text: str) -> None:
    with pytest.raises(UnknownTopicError, match="no topic"):
        find_topic(text, HERE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("non-persistent://public/default/users", "only persistent"),
        ("persistent://users", "give persistent"),
        ("persistent://public/default/", "give persistent"),
        ("persistent://a/b/c/d", "give persistent"),
        ("http://a/b/c", "give persistent"),
        ("persistent://a.b/c/d", "no namespace"),
        ("persistent://t-u-v/x", "several topics fit"),
    ],
)
def test_what_is_no_name_of_a_persistent_topic_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_topic(text, HERE)


def test_the_namespace_of_a_topic() -> None:
    assert namespace_of("users") == namespace_of("a.b") == DEFAULT_NAMESPACE
    assert namespace_of("a.b.c.d") == Namespace(tenant="a", name="b") == parse_namespace("a/b")
    assert namespace_of("..x") == namespace_of("a..x") == namespace_of("a.b.") == DEFAULT_NAMESPACE


@pytest.mark.parametrize("topic", ["users", "a.b", "a.b.c", "a.b.c.d", "..x"])
def test_a_topics_name_leads_back_to_it(topic: str) -> None:
    assert find_topic(persistent_name(topic), {topic: (0,)}).topic == topic


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/", "/b", "a.b/c", "a/b c"])
def test_what_is_no_namespace_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no namespace"):
        parse_namespace(text)


def test_policies_are_checked() -> None:
    key = "compactionThreshold"
    assert altered_policies({}, {key: "10"}, (), DEFAULT_NAMESPACE) == {key: "10"}
    assert altered_policies({key: "10"}, {}, (key,), DEFAULT_NAMESPACE) == {}
    for set_to, why in (
        ({key: "-1"}, "at least 0"),
        ({"retention.ms": "1"}, "cannot be set for a namespace"),
        ({"compactionTreshold": "1"}, "did you mean"),
    ):
        with pytest.raises(InvalidConfigError, match=why):
            altered_policies({}, set_to, (), DEFAULT_NAMESPACE)
