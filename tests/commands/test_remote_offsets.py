"""Offsets at a running broker: a partition that is refused keeps no other one from its answer."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from siltstone.base.errors import BrokerRefusedError
from siltstone.commands import remote_emptying
from siltstone.commands.emptying import TOMBSTONES
from siltstone.commands.remote import RemoteBroker
from siltstone.commands.topics import EffectiveSetting
from siltstone.log.fetch import LATEST_TIMESTAMP
from siltstone.log.names import TopicPartition
from siltstone.runtime.topics import TopicDescription
from tests.support.client_answers import answered

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NO_LEADER = KafkaError.LEADER_NOT_AVAILABLE


class Broker(RemoteBroker):
    """A broker with the topic ``t`` of two partitions, that answers with offsets or with an error's code
    (negative: of the client). ``asked``: the partitions whose records it was to delete."""

    def __init__(self, ends: Mapping[int, object], deleted: Mapping[int, object] = {}) -> None:
        self.client, self.requested = cast("Any", self), list[int]()
        self._ends, self._deleted = ends, deleted

    def list_offsets(
        self, partitions: Mapping[ClientPartition, object], **_: object
    ) -> dict[Any, Future[Any]]:
        return {where: answered(self._ends[where.partition]) for where in partitions}

    def delete_records(self, *arguments: Any, **options: Any) -> Any:
        if "request_timeout" not in options:
            return super().delete_records(*arguments, **options)
        (where,) = arguments[0]
        self.requested.append(where.partition)
        return {where: answered(self._deleted[where.partition])}

    def topic(self, name: str) -> TopicDescription:
        return TopicDescription(
            name=name, topic_id=None, partitions=(0, 1), config={}, offline=(), is_registered=False
        )

    def settings_of_topic(self, name: str, *, everything: bool) -> list[EffectiveSetting]:
        return [EffectiveSetting(name="cleanup.policy", value="compact,delete", source="", synonyms=())]


def at(offset: int) -> SimpleNamespace:
    return SimpleNamespace(offset=offset, low_watermark=offset)


def test_a_partition_without_a_leader_hides_the_offset_of_no_other() -> None:
    broker = Broker({0: NO_LEADER, 1: at(7)})
    offsets = broker.offsets([T0, T1], LATEST_TIMESTAMP)
    assert offsets[T1].offset == 7 and offsets[T1].failure is None
    assert offsets[T0].offset is None and "LEADER_NOT_AVAILABLE" in str(offsets[T0].failure)
    with pytest.raises(BrokerRefusedError, match="LEADER_NOT_AVAILABLE"):
        broker.known_offsets([T0, T1], LATEST_TIMESTAMP)


def test_what_was_deleted_is_said_whatever_the_other_partitions_answer() -> None:
    broker = Broker({}, {0: KafkaError.TOPIC_AUTHORIZATION_FAILED, 1: at(5)})
    refused, deleted = broker.delete_records({T0: 5, T1: 5})
    assert "TOPIC_AUTHORIZATION_FAILED" in str(refused.failure)
    assert (deleted.offset, deleted.failure) == (5, None)
    # A broker that does not answer is not asked for each of the others.
    broker = Broker({}, {0: at(5), 1: KafkaError._TIMED_OUT})
    results = broker.delete_records({T0: 5, T1: 5, TopicPartition("u", 0): 5})
    assert results[0].offset == 5 and broker.requested == [0, 1]
    assert all("(BROKER_UNREACHABLE)" in str(result.failure) for result in results[1:])


def test_a_dry_run_of_a_deletion_at_a_partition_without_a_leader_has_its_failure() -> None:
    (result,) = Broker({0: NO_LEADER}).delete_records({T0: -1}, dry_run=True)
    assert result.offset is None and "LEADER_NOT_AVAILABLE" in str(result.failure)


def test_a_topic_whose_ends_are_not_known_is_not_said_to_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends say whether a transaction is open. Records of one were not read, so they are not removed."""
    monkeypatch.setattr(remote_emptying._LiveKeys, "read", lambda *_: None)
    monkeypatch.setattr(remote_emptying, "_write_tombstones", lambda *_: None)
    emptied = remote_emptying.empty_at(Broker({0: KafkaError.KAFKA_STORAGE_ERROR, 1: at(7)}), "t", TOMBSTONES)
    assert not emptied.is_empty
    held, empty = (partition.not_removed for partition in emptied.partitions)
    assert empty is None and held is not None and "Disk error" in held.reason
