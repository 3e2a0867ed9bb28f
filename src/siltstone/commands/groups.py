"""Reads consumer groups from ``__consumer_offsets``: members, committed offsets, lag (Kafka's
``ConsumerGroupCommand``).

::

    __consumer_offsets-N ─ group_records: last committed record of each key ─► by group ─► ConsumerGroup
    topic-N ─ high watermark ────────────────────────────────────────────────────────► lag

A group is what a coordinator would make of these records when it loads the partition
(``GroupCoordinatorShard.replay``): offsets of an open or aborted transaction do not count. Share and streams
groups are left out.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siltstone.base.errors import SiltstoneError, UnknownGroupError
from siltstone.commands.directories import NOT_HERE, Snapshot
from siltstone.commands.group_records import (
    COMMIT,
    GROUP_METADATA,
    REGULAR_EXPRESSION,
    STREAMS_GROUP_METADATA,
    KeptRecords,
)
from siltstone.log.coordinator_records import Fields
from siltstone.log.names import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
CLASSIC, CONSUMER = "Classic", "Consumer"
EMPTY, STABLE, ASSIGNING, RECONCILING = "Empty", "Stable", "Assigning", "Reconciling"

_Records = Mapping[str, dict[Any, Fields]]
"""The values of one group's current records: by the type of the key (``CoordinatorRecordType``'s number, as
text), then by what the key has besides the group: partition (commits), member id, regular expression, or
None."""
_TopicNames = Mapping[str | None, str]
"""The names of topics by topic id."""
_EPOCH, _MEMBER_METADATA, _TARGET_EPOCH, _CURRENT_ASSIGNMENT = "3", "5", "6", "8"
"""Types of keys of the consumer protocol (KIP-848), in Kafka ``ConsumerGroup…Key``: ``Metadata`` (the group's
epoch), ``MemberMetadata``, ``TargetAssignmentMetadata``, ``CurrentMemberAssignment``."""
_CONSUMER_PROTOCOL_TYPES = frozenset(("3", "4", "5", "6", "7", "8", REGULAR_EXPRESSION))
_MEMBER_STATE_STABLE = 0
"""``MemberState.STABLE``: the member has its target assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group, and the partitions that are ``assigned`` to it. ``instance_id``: the
    ``group.instance.id`` of a static member, None for others. ``uses_classic``: of a group of the consumer
    protocol, a member that still speaks the classic one."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: tuple[TopicPartition, ...]
    uses_classic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A partition in which a group has committed an offset, or that is assigned to a member.

    ``current_offset`` None: nothing was committed. ``log_end_offset`` is the high watermark, as consumers see
    it; None: not read, or not here. ``commit_timestamp`` in ms.
    """

    topic_partition: TopicPartition
    current_offset: int | None = None
    log_end_offset: int | None = None
    leader_epoch: int | None = None
    metadata: str | None = None
    commit_timestamp: int | None = None
    member_id: str | None = None

    @property
    def lag(self) -> int | None:
        """Records from the committed offset on; negative if the log ends below it."""
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """One group. ``type``: Classic or Consumer (KIP-848); ``generation``: its last one, or its epoch."""

    name: str
    type: str
    state: str
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    generation: int | None
    members: tuple[Member, ...]
    offsets: tuple[GroupOffset, ...]

    def to_json(self) -> Fields:
        """One object; see docs/json.md."""
        described = {
            name: getattr(self, name)
            for name in ("name", "type", "state", "protocol_type", "protocol", "leader", "generation")
        }
        members = [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "assigned": [_topic_partition_json(topic_partition) for topic_partition in member.assigned],
            }
            for member in self.members
        ]
        offsets = [
            {
                **_topic_partition_json(offset.topic_partition),
                "current_offset": offset.current_offset,
                "log_end_offset": offset.log_end_offset,
                "lag": offset.lag,
                "leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata,
                "commit_timestamp": offset.commit_timestamp,
                "member_id": offset.member_id,
            }
            for offset in self.offsets
        ]
        return {**described, "members": members, "offsets": offsets}


def _topic_partition_json(topic_partition: TopicPartition) -> Fields:
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def read_groups(
    snapshot: Snapshot, group_ids: Collection[str] = (), kept: KeptRecords | None = None
) -> tuple[list[ConsumerGroup], list[str]]:
    """The groups in order of id (``group_ids`` empty: all), without log end offsets, and a line for each
    partition or record of ``__consumer_offsets`` that cannot be read. ``kept``: what earlier calls have read,
    so that only new records are read. Raises UnknownGroupError."""
    kept = kept or KeptRecords()
    groups: defaultdict[str, _Records] = defaultdict(lambda: defaultdict(dict))
    failures: list[str] = []
    for topic_partition in sorted(snapshot.partitions):
        if topic_partition.topic == OFFSETS_TOPIC:
            failures += _read_partition(snapshot, topic_partition, groups, kept)
    # A streams group commits offsets as other groups do; without this it would be an empty classic group.
    groups_shown = {
        group_id: records for group_id, records in groups.items() if STREAMS_GROUP_METADATA not in records
    }
    for group_id in group_ids:
        if group_id not in groups_shown:
            reason = f"there is no such group in the partitions of {OFFSETS_TOPIC} that are here"
            raise UnknownGroupError("; ".join((reason, *failures)), path=group_id)
    topic_names = functools.cache(
        lambda: {snapshot.topic(topic).topic_id: topic for topic in snapshot.names()}
    )
    chosen = sorted(set(group_ids) or groups_shown)
    return [_group(group_id, groups_shown[group_id], topic_names) for group_id in chosen], failures


def with_log_ends(
    snapshot: Snapshot, groups: Iterable[ConsumerGroup]
) -> tuple[list[ConsumerGroup], list[str]]:
    """The groups with the log end offset of each partition, and a line for each one that cannot be read."""
    failures: list[str] = []

    @functools.cache
    def log_end(topic_partition: TopicPartition) -> int | None:
        if topic_partition not in snapshot.partitions:
            return None
        try:
            end = snapshot.log(topic_partition).high_watermark
        except (SiltstoneError, OSError) as error:
            failures.append(f"{topic_partition}: {error}")
            return None
        damage = snapshot.damage_of(topic_partition)
        failures.extend([] if damage is None else [f"{topic_partition}: {damage}"])
        return end

    return with_ends(groups, log_end), failures


def with_ends(
    groups: Iterable[ConsumerGroup], log_end: Callable[[TopicPartition], int | None]
) -> list[ConsumerGroup]:
    """The groups with the log end offset of each partition."""
    return [
        replace(
            group,
            offsets=tuple(
                replace(offset, log_end_offset=log_end(offset.topic_partition)) for offset in group.offsets
            ),
        )
        for group in groups
    ]


def partitions_elsewhere(snapshot: Snapshot, groups: Iterable[ConsumerGroup]) -> list[str]:
    """A note about the partitions of these groups whose logs are not here: deleted, or on other brokers."""
    topic_partitions = {offset.topic_partition for group in groups for offset in group.offsets}
    missing = sorted(topic_partitions - snapshot.partitions.keys())
    if not missing:
        return []
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    verb = "is" if len(missing) == 1 else "are each"
    location = NOT_HERE.removeprefix("is ")
    return [f"{', '.join(map(str, missing[:4]))}{more} {verb} {location}: no log end offset and no lag"]


def _read_partition(
    snapshot: Snapshot, topic_partition: TopicPartition, groups: Mapping[str, _Records], kept: KeptRecords
) -> Iterator[str]:
    """Adds the partition's current records to ``groups``; yields a line for each thing that cannot be
    read."""
    try:
        current = kept.current(snapshot.log(topic_partition))
    except (SiltstoneError, OSError) as error:
        yield f"{topic_partition}: its groups are not shown: {error}"
        return
    for record in current:
        if record.problem is None:
            groups[record.group_id][record.type][record.subkey] = record.value
        else:
            yield f"{topic_partition}: offset {record.offset}: {record.problem}"
    damage = snapshot.damage_of(topic_partition)
    if damage is not None:
        yield f"{topic_partition}: {damage}"


def _group(group_id: str, records: _Records, topic_names: Callable[[], _TopicNames]) -> ConsumerGroup:
    """The group that these records describe. One that has only committed offsets is an empty classic group,
    as a coordinator makes it (``OffsetMetadataManager.replay``)."""
    is_classic = _CONSUMER_PROTOCOL_TYPES.isdisjoint(records)
    if is_classic:
        metadata = _single_value(records, GROUP_METADATA)
        members = [_classic_member(member) for member in metadata.get("members") or ()]
    else:
        metadata = {"protocolType": "consumer", "generation": _single_value(records, _EPOCH).get("epoch")}
        members = [
            _consumer_member(member_id, records, topic_names())
            for member_id in records.get(_MEMBER_METADATA, ())
        ]
    return ConsumerGroup(
        name=group_id,
        type=CLASSIC if is_classic else CONSUMER,
        state=_state(records, members, is_classic=is_classic),
        protocol_type=metadata.get("protocolType"),
        protocol=metadata.get("protocol"),
        leader=metadata.get("leader"),
        generation=metadata.get("generation"),
        members=tuple(sorted(members, key=lambda member: member.member_id)),
        offsets=tuple(_offsets(records.get(COMMIT, {}), members)),
    )


def _single_value(records: _Records, record_type: str) -> Fields:
    """The value of the one record of this type that a group has; empty if it has none."""
    return records.get(record_type, {}).get(None, {})


def _state(records: _Records, members: Sequence[Member], *, is_classic: bool) -> str:
    """The state that a coordinator gives the group after loading (``GroupMetadataManager.replay``): a classic
    group with members is Stable, one without is Empty. For a consumer group see
    ``ConsumerGroup.maybeUpdateGroupState``."""
    if not members or is_classic:
        return STABLE if members else EMPTY
    target = _single_value(records, _TARGET_EPOCH).get("assignmentEpoch", 0)
    if _single_value(records, _EPOCH).get("epoch", 0) > target:
        return ASSIGNING
    reconciled = {"memberEpoch": target, "state": _MEMBER_STATE_STABLE}
    assignments = records.get(_CURRENT_ASSIGNMENT, {})
    is_stable = all(reconciled.items() <= assignments.get(member.member_id, {}).items() for member in members)
    return STABLE if is_stable else RECONCILING


def _offsets(commits: Mapping[Any, Fields], members: Sequence[Member]) -> Iterator[GroupOffset]:
    owners = {topic_partition: member.member_id for member in members for topic_partition in member.assigned}
    for topic_partition in sorted({*owners, *commits}):
        commit = commits.get(topic_partition, {})
        yield GroupOffset(
            topic_partition=topic_partition,
            current_offset=commit["offset"] if commit.get("offset", -1) >= 0 else None,
            leader_epoch=commit.get("leaderEpoch"),
            metadata=commit.get("metadata"),
            commit_timestamp=commit.get("commitTimestamp"),
            member_id=owners.get(topic_partition),
        )


def _classic_member(member: Fields) -> Member:
    return Member(
        member_id=member["memberId"] or "",
        client_id=member["clientId"] or "",
        host=member["clientHost"] or "",
        instance_id=member.get("groupInstanceId"),
        assigned=tuple(sorted(TopicPartition(*assigned) for assigned in member.get("assigned", ()))),
    )


def _consumer_member(member_id: str, records: _Records, topic_names: _TopicNames) -> Member:
    """A member of the consumer protocol; a topic that is not here is named by its id."""
    metadata = records[_MEMBER_METADATA][member_id]
    assignment = records.get(_CURRENT_ASSIGNMENT, {}).get(member_id, {})
    assigned = (
        TopicPartition(topic_names.get(topic["topicId"], topic["topicId"]), number)
        for topic in assignment.get("assignedPartitions") or ()
        for number in topic["partitions"] or ()
    )
    return Member(
        member_id=member_id,
        client_id=metadata["clientId"] or "",
        host=metadata["clientHost"] or "",
        instance_id=metadata["instanceId"],
        assigned=tuple(sorted(assigned)),
        uses_classic=metadata.get("classicMemberMetadata") is not None,
    )
