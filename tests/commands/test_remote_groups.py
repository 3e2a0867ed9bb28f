"""Groups as a broker tells them: what the client's classes become. (Against a Kafka: tests/kafka.)"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, Node
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ListConsumerGroupsResult,
    MemberAssignment,
    MemberDescription,
)

from siltstone.base.errors import UnknownGroupError
from siltstone.commands.groups import GroupOffset, Member
from siltstone.commands.remote import RemoteBroker
from siltstone.commands.remote_groups import read_groups
from siltstone.log.names import TopicPartition
from tests.support.client_answers import answered


class Client:
    """A client of a broker with one group: a member has ``orders-0`` and ``orders-1``, and 7 is committed in
    the first, 9 in a partition that no member has."""

    def list_consumer_groups(self, **_: object) -> Future[Any]:
        return answered(ListConsumerGroupsResult([ConsumerGroupListing("billing", False)]))

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        assignment = MemberAssignment([ClientPartition("orders", 1), ClientPartition("orders", 0)])
        member = MemberDescription("m-1", "me", "/127.0.0.1", assignment)
        described = ConsumerGroupDescription(
            "billing",
            False,
            [member],
            "range",
            ConsumerGroupState.COMPLETING_REBALANCING,
            Node(1, "here", 9092),
            type=ConsumerGroupType.CLASSIC,
        )
        return {name: answered(described) for name in groups}

    def list_consumer_group_offsets(self, groups: Any, **_: object) -> dict[str, Future[Any]]:
        committed = [
            ClientPartition("orders", 0, 7, metadata="note"),
            ClientPartition("orders", 1, -1001),
            ClientPartition("orders", 2, 9),
        ]
        return {"billing": answered(ConsumerGroupTopicPartitions("billing", committed))}


class Broker:
    """A broker that only its client matters of."""

    client = Client()


def test_a_group_is_what_the_broker_says() -> None:
    (group,), failures = read_groups(cast("RemoteBroker", Broker()))
    assert (group.name, group.type, group.state) == ("billing", "Classic", "CompletingRebalance")
    assert (group.protocol, group.leader, group.generation, failures) == ("range", None, None, [])
    orders = [TopicPartition("orders", number) for number in range(3)]
    assert group.members == (
        Member(
            member_id="m-1",
            client_id="me",
            host="/127.0.0.1",
            instance_id=None,
            assigned=(orders[0], orders[1]),
        ),
    )
    first, second, third = group.offsets
    assert (first.topic_partition, first.current_offset, first.metadata) == (orders[0], 7, "note")
    assert (first.member_id, third.member_id, third.current_offset) == ("m-1", None, 9)
    assert second == GroupOffset(topic_partition=orders[1], member_id="m-1")


def test_a_group_that_the_broker_does_not_know_is_an_error() -> None:
    with pytest.raises(UnknownGroupError):
        read_groups(cast("RemoteBroker", Broker()), ["nope"])
