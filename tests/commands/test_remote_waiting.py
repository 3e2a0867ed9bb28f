"""What a running broker shows a moment after its answer: changed settings, a new topic."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from siltstone.base.errors import TopicExistsError, UnknownTopicError
from siltstone.commands import remote
from siltstone.commands.remote import RemoteBroker
from tests.support.client_answers import answered

OLD, NEW = {"flush.ms": "5"}, {"flush.ms": "6"}


class LateBroker(RemoteBroker):
    """A broker whose settings are ``shown`` in turn, the last of them again and again."""

    def __init__(self, *shown: dict[str, str]) -> None:
        self.shown, self.altered = list(shown), 0

    def own_settings(self, names: object) -> dict[str, dict[str, str]]:
        return {"t": self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]}

    def _set_at_run_time(self, number: str) -> dict[str, str]:
        return self.own_settings(None)["t"]

    def _alter(self, *_: object, **__: object) -> None:
        self.altered += 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_CHECK_SECONDS", 0)


def test_the_settings_after_a_change_are_waited_for() -> None:
    change = LateBroker(OLD, OLD, OLD, NEW).alter_topic_settings("t", ["flush.ms=6"], [])
    assert (change.before, change.after) == (OLD, NEW)
    change = LateBroker(OLD, OLD, {}).alter_topic_settings("t", [], ["flush.ms"])
    assert (change.before, change.after) == (OLD, {})
    change = LateBroker(OLD, OLD, NEW).alter_broker_settings("1", NEW, [])
    assert (change.before, change.after) == (OLD, NEW)


def test_a_change_that_is_not_shown_or_changes_nothing_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "CHANGED_SECONDS", 0)
    assert LateBroker(OLD).alter_topic_settings("t", ["flush.ms=6"], []).after == OLD
    same = LateBroker(OLD)
    assert same.alter_topic_settings("t", ["flush.ms=5"], []).after == OLD
    assert same.altered == 1
    dry = LateBroker(OLD).alter_topic_settings("t", ["flush.ms=6"], [], dry_run=True)
    assert dry.after == NEW


class CreatingBroker(RemoteBroker):
    """A broker that answers that a topic is created, and knows it from the description after ``late``."""

    def __init__(self, late: int) -> None:
        self.client, self.late = self, late  # type: ignore[assignment]

    def create_topics(self, topics: list[Any], **_: object) -> dict[str, Future[None]]:
        return {topic.topic: answered(None) for topic in topics}

    def _described(self, names: object) -> dict[str, Any]:
        self.late -= 1
        if self.late >= 0:
            raise UnknownTopicError("there is no such topic or partition")
        return {"t": SimpleNamespace(topic_id="a+b/c=", partitions=[0, 1])}


def test_a_new_topic_is_waited_for() -> None:
    created = CreatingBroker(late=3).create_topic("t", 2, {})
    assert (created.status, created.topic_id, created.partitions) == ("created", "a-b_c", 2)


def test_a_new_topic_that_the_broker_does_not_show_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHANGED_SECONDS", 0.01)
    with pytest.raises(UnknownTopicError, match="is created, but the broker does not show it yet"):
        CreatingBroker(late=1_000_000).create_topic("t", 2, {})


class SlowerBroker(CreatingBroker):
    """A broker at which another program creates the topic just before."""

    def names(self) -> list[str]:
        return []

    def create_topics(self, topics: list[Any], **_: object) -> dict[str, Future[None]]:
        return {topic.topic: answered(KafkaError.TOPIC_ALREADY_EXISTS) for topic in topics}


def test_a_topic_that_another_program_creates_meanwhile_exists() -> None:
    assert SlowerBroker(late=0).create_topic("t", 2, {}, if_not_exists=True).status == "exists"
    with pytest.raises(TopicExistsError):
        SlowerBroker(late=0).create_topic("t", 2, {})
