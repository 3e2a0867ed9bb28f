"""Consumer groups, their members and lags, read from the topic ``__consumer_offsets`` in the directories."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from siltstone.base.errors import UnknownGroupError
from siltstone.commands import console
from siltstone.commands.groups import ConsumerGroup, GroupOffset, Member
from siltstone.web.guards import VIEWER
from siltstone.web.limits import READING
from siltstone.web.queries import IntText
from siltstone.web.rest.bodies import JsonObject
from siltstone.web.rest.confluent.shapes import (
    CLUSTER_PATH,
    Cluster,
    NamedCluster,
    Page,
    Resource,
    ResourceList,
)

router = APIRouter(tags=["Confluent v3"])
GROUPS = f"{CLUSTER_PATH}/consumer-groups"
GROUP = f"{GROUPS}/{{consumer_group_id}}"
CONSUMER = f"{GROUP}/consumers/{{consumer_id}}"
LAG = f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}"


def _group(cluster: Cluster, name: str) -> ConsumerGroup:
    """A group. Raises UnknownGroupError."""
    for group in console.groups(cluster.served)[0]:
        if group.name == name:
            return group
    raise UnknownGroupError(f"there is no consumer group {name[:256]!r}")


def _group_document(cluster: Cluster, group: ConsumerGroup) -> JsonObject:
    parts = ("consumer-groups", group.name)
    return cluster.resource(
        "KafkaConsumerGroup",
        *parts,
        consumer_group_id=group.name,
        is_simple=group.protocol_type in (None, "") and not group.members,
        partition_assignor=group.protocol or "",
        state=group.state.upper().replace(" ", "_"),
        type=group.type.upper(),
        is_mixed_consumer_group=any(member.uses_classic for member in group.members),
        coordinator=cluster.link("brokers", cluster.broker_id),
        consumers=cluster.link(*parts, "consumers"),
        lag_summary=cluster.link(*parts, "lag-summary"),
    )


@router.get(GROUPS, dependencies=[VIEWER, READING], response_model=ResourceList)
def list_groups(cluster: NamedCluster, page: Page) -> JsonObject:
    """All consumer groups."""
    groups = {group.name: group for group in console.groups(cluster.served)[0]}

    def document(name: str) -> JsonObject:
        return _group_document(cluster, groups[name])

    return cluster.listing("KafkaConsumerGroupList", ["consumer-groups"], sorted(groups), document, page)


@router.get(GROUP, dependencies=[VIEWER, READING], response_model=Resource)
def get_group(cluster: NamedCluster, consumer_group_id: str) -> JsonObject:
    """One consumer group."""
    return _group_document(cluster, _group(cluster, consumer_group_id))


def _consumer_document(cluster: Cluster, group: str, member: Member) -> JsonObject:
    parts = ("consumer-groups", group, "consumers", member.member_id)
    return cluster.resource(
        "KafkaConsumer",
        *parts,
        consumer_group_id=group,
        consumer_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=cluster.link(*parts, "assignments"),
    )


def _member(cluster: Cluster, group_id: str, consumer_id: str) -> Member:
    for member in _group(cluster, group_id).members:
        if member.member_id == consumer_id:
            return member
    raise HTTPException(404, f"group {group_id[:256]!r} has no consumer {consumer_id[:256]!r}")


@router.get(f"{GROUP}/consumers", dependencies=[VIEWER, READING], response_model=ResourceList)
def list_consumers(cluster: NamedCluster, consumer_group_id: str, page: Page) -> JsonObject:
    """The members of a group."""
    members = {member.member_id: member for member in _group(cluster, consumer_group_id).members}

    def document(member_id: str) -> JsonObject:
        return _consumer_document(cluster, consumer_group_id, members[member_id])

    parts = ["consumer-groups", consumer_group_id, "consumers"]
    return cluster.listing("KafkaConsumerList", parts, sorted(members), document, page)


@router.get(CONSUMER, dependencies=[VIEWER, READING], response_model=Resource)
def get_consumer(cluster: NamedCluster, consumer_group_id: str, consumer_id: str) -> JsonObject:
    """One member of a group."""
    member = _member(cluster, consumer_group_id, consumer_id)
    return _consumer_document(cluster, consumer_group_id, member)


def _assignment_document(cluster: Cluster, group: str, consumer: str, topic: str, number: int) -> JsonObject:
    partition = (topic, "partitions", number)
    return cluster.resource(
        "KafkaConsumerAssignment",
        *("consumer-groups", group, "consumers", consumer, "assignments", *partition),
        consumer_group_id=group,
        consumer_id=consumer,
        topic_name=topic,
        partition_id=number,
        partition=cluster.link("topics", *partition),
        lag=cluster.link("consumer-groups", group, "lags", *partition),
    )


@router.get(f"{CONSUMER}/assignments", dependencies=[VIEWER, READING], response_model=ResourceList)
def list_assignments(
    cluster: NamedCluster, consumer_group_id: str, consumer_id: str, page: Page
) -> JsonObject:
    """The partitions that are assigned to a member."""
    assigned = _member(cluster, consumer_group_id, consumer_id).assigned
    parts = ("consumer-groups", consumer_group_id, "consumers", consumer_id, "assignments")
    keys = sorted((partition.topic, partition.partition) for partition in assigned)

    def document(key: tuple[str, int]) -> JsonObject:
        return _assignment_document(cluster, consumer_group_id, consumer_id, *key)

    return cluster.listing("KafkaConsumerAssignmentList", parts, keys, document, page)


@router.get(
    f"{CONSUMER}/assignments/{{topic_name}}/partitions/{{partition_id}}",
    dependencies=[VIEWER, READING],
    response_model=Resource,
)
def get_assignment(
    cluster: NamedCluster, consumer_group_id: str, consumer_id: str, topic_name: str, partition_id: IntText
) -> JsonObject:
    """One partition that is assigned to a member."""
    assigned = _member(cluster, consumer_group_id, consumer_id).assigned
    if (topic_name, partition_id) not in {(partition.topic, partition.partition) for partition in assigned}:
        raise HTTPException(
            404, f"the consumer has nothing of {topic_name[:256]!r}, partition {partition_id}"
        )
    return _assignment_document(cluster, consumer_group_id, consumer_id, topic_name, partition_id)


def _lag_document(cluster: Cluster, group: ConsumerGroup, offset: GroupOffset) -> JsonObject:
    topic, number = offset.topic_partition.topic, offset.topic_partition.partition
    member = _member_of(group, offset)
    return cluster.resource(
        "KafkaConsumerLag",
        *("consumer-groups", group.name, "lags", topic, "partitions", number),
        consumer_group_id=group.name,
        topic_name=topic,
        partition_id=number,
        current_offset=offset.current_offset,
        log_end_offset=offset.log_end_offset,
        lag=offset.lag,
        consumer_id=offset.member_id or "",
        instance_id=None if member is None else member.instance_id,
        client_id="" if member is None else member.client_id,
    )


def _member_of(group: ConsumerGroup, offset: GroupOffset) -> Member | None:
    """The member that the offset's partition is assigned to, None if there is none."""
    return next((member for member in group.members if member.member_id == offset.member_id), None)


@router.get(f"{GROUP}/lags", dependencies=[VIEWER, READING], response_model=ResourceList)
def list_lags(cluster: NamedCluster, consumer_group_id: str, page: Page) -> JsonObject:
    """The lag of a group in each partition."""
    group = _group(cluster, consumer_group_id)
    offsets = {
        (offset.topic_partition.topic, offset.topic_partition.partition): offset for offset in group.offsets
    }

    def document(key: tuple[str, int]) -> JsonObject:
        return _lag_document(cluster, group, offsets[key])

    parts = ["consumer-groups", group.name, "lags"]
    return cluster.listing("KafkaConsumerLagList", parts, sorted(offsets), document, page)


@router.get(LAG, dependencies=[VIEWER, READING], response_model=Resource)
def get_lag(
    cluster: NamedCluster, consumer_group_id: str, topic_name: str, partition_id: IntText
) -> JsonObject:
    """The lag of a group in one partition."""
    group = _group(cluster, consumer_group_id)
    for offset in group.offsets:
        if (offset.topic_partition.topic, offset.topic_partition.partition) == (topic_name, partition_id):
            return _lag_document(cluster, group, offset)
    raise HTTPException(404, f"the group has nothing of {topic_name[:256]!r}, partition {partition_id}")


@router.get(f"{GROUP}/lag-summary", dependencies=[VIEWER, READING], response_model=Resource)
def get_lag_summary(cluster: NamedCluster, consumer_group_id: str) -> JsonObject:
    """The largest lag of a group, and the sum. 404 where no lag is known, as Confluent's."""
    group = _group(cluster, consumer_group_id)
    known = [offset for offset in group.offsets if offset.lag is not None]
    if not known:
        raise HTTPException(404, f"no lag of group {group.name[:256]!r} is known")
    total = sum(max(offset.lag or 0, 0) for offset in known)
    return _summary_document(cluster, group, max(known, key=lambda offset: offset.lag or 0), total)


def _summary_document(cluster: Cluster, group: ConsumerGroup, largest: GroupOffset, total: int) -> JsonObject:
    topic, number = largest.topic_partition.topic, largest.topic_partition.partition
    member = _member_of(group, largest)
    parts = ("consumer-groups", group.name)
    return cluster.resource(
        "KafkaConsumerGroupLagSummary",
        *(*parts, "lag-summary"),
        consumer_group_id=group.name,
        max_lag_consumer_id=largest.member_id or "",
        max_lag_instance_id=None if member is None else member.instance_id,
        max_lag_client_id="" if member is None else member.client_id,
        max_lag_topic_name=topic,
        max_lag_partition_id=number,
        max_lag=largest.lag,
        total_lag=total,
        max_lag_consumer=None if member is None else cluster.link(*parts, "consumers", member.member_id),
        max_lag_partition=cluster.link("topics", topic, "partitions", number),
    )
