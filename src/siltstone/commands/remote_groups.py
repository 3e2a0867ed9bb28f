"""Reads the consumer groups of a running broker; ``commands.groups`` reads them from its files.

A broker's responses have neither a group's generation and leader nor the time of a commit. Share and streams
groups are left out, since the client does not list them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import ConsumerGroupDescription, MemberDescription  # type: ignore[attr-defined]

from siltstone.base.errors import SiltstoneError, UnknownGroupError
from siltstone.commands.groups import ConsumerGroup, GroupOffset, Member
from siltstone.commands.remote import ANSWER_SECONDS, RemoteBroker, answer, error_of, translated_errors
from siltstone.log.fetch import LATEST_TIMESTAMP
from siltstone.log.names import TopicPartition

_STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}
"""Kafka's names of the states that the client names otherwise."""


def read_groups(
    broker: RemoteBroker, group_ids: Collection[str] = ()
) -> tuple[list[ConsumerGroup], list[str]]:
    """The groups in order of id (``group_ids`` empty: all), without log end offsets, and a line for each one
    that cannot be read. Raises UnknownGroupError, BrokerUnreachableError, BrokerRefusedError."""
    with translated_errors():
        listed = answer(broker.client.list_consumer_groups(request_timeout=ANSWER_SECONDS))
    for error in listed.errors or []:  # without the groups of one broker the list would be incomplete
        raise error_of(error)
    known = {listing.group_id for listing in listed.valid or []}
    for group_id in group_ids:
        if group_id not in known:
            raise UnknownGroupError("the broker has no such group", path=group_id)
    wanted = sorted(set(group_ids) or known)
    if not wanted:
        return [], []
    groups, failures = [], []
    with translated_errors():
        futures = broker.client.describe_consumer_groups(wanted, request_timeout=ANSWER_SECONDS)
    for group_id in wanted:
        try:
            with translated_errors(group_id):
                groups.append(_group(answer(futures[group_id]), _committed(broker, group_id)))
        except SiltstoneError as error:
            failures.append(str(error))
    return groups, failures


def log_ends(
    broker: RemoteBroker, groups: Iterable[ConsumerGroup]
) -> tuple[dict[TopicPartition, int | None], list[str]]:
    """(the log end offset of each partition of the groups, a line for each one that cannot be read)."""
    wanted = sorted({offset.topic_partition for group in groups for offset in group.offsets})
    ends = broker.offsets(wanted, LATEST_TIMESTAMP)
    failures = [
        f"{topic_partition}: {end.failure}"
        for topic_partition, end in ends.items()
        if end.failure is not None
    ]
    return {topic_partition: end.offset for topic_partition, end in ends.items()}, failures


def _committed(broker: RemoteBroker, group_id: str) -> dict[TopicPartition, Any]:
    """The offsets that the group has committed, by partition."""
    wanted = ConsumerGroupTopicPartitions(group_id)
    (future,) = broker.client.list_consumer_group_offsets([wanted], request_timeout=ANSWER_SECONDS).values()
    committed = answer(future).topic_partitions or []
    return {TopicPartition(row.topic, row.partition): row for row in committed if row.offset >= 0}


def _group(described: ConsumerGroupDescription, committed: dict[TopicPartition, Any]) -> ConsumerGroup:
    members = tuple(_member(member) for member in described.members)
    owners = {topic_partition: member.member_id for member in members for topic_partition in member.assigned}
    state = described.state.name
    return ConsumerGroup(
        name=described.group_id,
        type=described.type.name.title(),
        state=_STATES.get(state, state.title()),
        protocol_type=None,
        protocol=described.partition_assignor or None,
        leader=None,
        generation=None,
        members=members,
        offsets=tuple(
            _offset(topic_partition, committed.get(topic_partition), owners.get(topic_partition))
            for topic_partition in sorted({*committed, *owners})
        ),
    )


def _member(member: MemberDescription) -> Member:
    partitions = member.assignment.topic_partitions if member.assignment else []
    return Member(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.host,
        instance_id=member.group_instance_id or None,
        assigned=tuple(sorted(TopicPartition(row.topic, row.partition) for row in partitions)),
    )


def _offset(topic_partition: TopicPartition, committed: Any, owner: str | None) -> GroupOffset:
    if committed is None:
        return GroupOffset(topic_partition=topic_partition, member_id=owner)
    return GroupOffset(
        topic_partition=topic_partition,
        current_offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata or "",
        member_id=owner,
    )
