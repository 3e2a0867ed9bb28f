"""The handlers of CreateTopics (versions 2 to 7), DeleteTopics (1 to 6) and CreatePartitions (0 to 3); in
Kafka ``ReplicationControlManager``.

``commands.administration`` makes the change of each topic: it checks it, records it in the audit log and
carries it out before the response is sent. An error of one topic does not affect the others. A request's
``timeout_ms`` has no effect.

As in Kafka, a request may create at most ``PARTITIONS_MAX`` partitions, and in CreateTopics a topic counts as
one more. This broker is the only one, so a replication factor can only be 1, and an assignment only name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from siltstone.base.config import parse_topic_config
from siltstone.base.errors import (
    InvalidPartitionsError,
    SiltstoneError,
    TopicExistsError,
    UnknownTopicError,
)
from siltstone.broker.errors import Code, RequestRefusedError, code_of, message_of, message_with_advice_of
from siltstone.broker.handlers.settings import refuse_tiered, topic_entries
from siltstone.broker.quotas import MutationQuota
from siltstone.broker.request_context import CLIENT_ID_MAX, RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.fields import ZERO_ID
from siltstone.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from siltstone.broker.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from siltstone.broker.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from siltstone.commands import administration
from siltstone.commands.changes import LOCAL_USER, Actor
from siltstone.log.names import CLUSTER_METADATA
from siltstone.runtime.topic_names import id_bytes, new_id
from siltstone.runtime.topics import refuse_new_topic

PARTITIONS_MAX = administration.NEW_PARTITIONS_MAX
"""The most partitions (in CreateTopics: and topics) that one request creates, of all its topics together."""
WAY = "kafka"
"""``way`` in the audit log: the change came by Kafka's protocol."""
_TOO_MANY = "Excessively large number of partitions per request."
_DUPLICATE = "Duplicate topic name."
_NO_TOPIC, _NO_ID = (
    "This server does not host this topic-partition.",
    "This server does not host this topic ID.",
)
_FIRST_VERSION_WITH_IDS = 6
_STRICT_CREATION, _STRICT_DELETION, _STRICT_PARTITIONS = 6, 5, 3
"""The first versions of CreateTopics, DeleteTopics and CreatePartitions whose clients know the error
THROTTLING_QUOTA_EXCEEDED (Kafka's strict quotas)."""


def actor_of(context: RequestContext) -> Actor:
    """The origin of a change for the audit log: the client id and the client's address."""
    return Actor(
        user=(context.client_id or LOCAL_USER)[:CLIENT_ID_MAX], address=context.connection.peer, way=WAY
    )


# CreateTopics


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create topics, or check whether they could be."""
    return await broker.in_pool(_create_topics, broker, request, context)


def _create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    times = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if times[topic.name] == 1]
    default = broker.config.integer("num.partitions")
    # As in Kafka, the limit counts metadata records: one a topic, one a partition.
    total = sum(_requested_count(topic, default) + 1 for topic in topics)
    results, quota = [], broker.quotas.mutations(context, _STRICT_CREATION)
    for topic in topics:
        try:
            if total > PARTITIONS_MAX:
                raise RequestRefusedError(Code.POLICY_VIOLATION, _TOO_MANY)
            results.append(_create_topic(broker, topic, context, quota, validate_only=request.validate_only))
        except Exception as error:  # the other topics are created
            results.append(_not_created(topic.name, code_of(error), _creation_message(topic.name, error)))
    results += [
        _not_created(name, Code.INVALID_REQUEST, _DUPLICATE) for name, count in times.items() if count > 1
    ]
    return CreateTopicsResponse(topics=tuple(results), throttle_time_ms=quota.throttle_ms)


def _take_quota(quota: MutationQuota, partitions: int) -> None:
    """Count the creation or deletion of partitions. Raises RequestRefusedError if the quota is exceeded."""
    if not quota.take(partitions):
        reason = "The throttling quota has been exceeded."
        raise RequestRefusedError(Code.THROTTLING_QUOTA_EXCEEDED, reason)


def _requested_count(topic: CreatableTopic, default: int) -> int:
    """The number of partitions that a topic would have, from a request that was not checked yet. ``default``:
    for a topic that leaves it to the broker (-1)."""
    return len(topic.assignments) or (default if topic.num_partitions == -1 else max(topic.num_partitions, 0))


def _not_created(name: str, code: int, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


def _creation_message(name: str, error: Exception) -> str | None:
    """The message for the client; in Kafka's words for errors that Kafka's tools print."""
    if isinstance(error, TopicExistsError):
        return f"Topic '{name}' already exists."
    if isinstance(error, InvalidPartitionsError):
        return "Number of partitions was set to an invalid non-positive value."
    return message_with_advice_of(error)


def _create_topic(
    broker: Broker,
    topic: CreatableTopic,
    context: RequestContext,
    quota: MutationQuota,
    *,
    validate_only: bool,
) -> CreatableTopicResult:
    """Create one topic. Raises RequestRefusedError, SiltstoneError, OSError."""
    name = topic.name
    if name == CLUSTER_METADATA:
        raise RequestRefusedError(Code.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    try:
        count, overrides = _parse_topic(topic, broker.node_id)
    except (RequestRefusedError, SiltstoneError):
        # As in Kafka, a bad name, an existing topic and a bad setting are reported before this error; but
        # settings are not checked if one is named twice or has no value. (1: a valid number of partitions.)
        settings = {setting.name: setting.value for setting in topic.configs if setting.value is not None}
        checked = settings if len(settings) == len(topic.configs) else {}
        refuse_new_topic(name, broker.manager.topics.names(), 1, checked, broker.manager.config)
        raise
    create = partial(administration.create_topic, broker.served, actor_of(context), name, count, overrides)
    if validate_only or quota.is_set:  # checked before the quota, which a refused topic must not use up
        create(validate_only=True)
    _take_quota(quota, count or broker.config.integer("num.partitions"))
    if not validate_only:
        create()
    manager = broker.manager
    if validate_only:
        config = manager.config.with_topic_layer(parse_topic_config(overrides, name))
        partition_count = count or manager.config.integer("num.partitions")
        topic_id = id_bytes(new_id(manager.random_bytes))  # as in Kafka, an id that no topic gets
    else:
        config, partition_count = manager.topics.settings(name), len(manager.partitions_of(name))
        topic_id = broker.id_of_topic(name)
    entries = sorted(topic_entries(config), key=lambda entry: (entry.is_own_to_siltstone, entry.name))
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partition_count,
        replication_factor=1,
        configs=tuple(
            # As in Kafka, the topic's own settings are repeated as the client wrote them.
            CreatableTopicConfigs(
                name=entry.name, value=overrides.get(entry.name, entry.value), config_source=entry.source
            )
            for entry in entries
        ),
    )


def _parse_topic(topic: CreatableTopic, node_id: int) -> tuple[int | None, dict[str, str]]:
    """(The number of partitions or None for the default, the settings) of a topic in a request. Raises
    RequestRefusedError, SiltstoneError."""
    overrides: dict[str, str] = {}
    for setting in topic.configs:  # as in Kafka, of several settings with one name the last one counts
        if setting.value is None:
            raise RequestRefusedError(
                Code.INVALID_CONFIG, f"Null value not supported for topic configs: {setting.name}"
            )
        overrides[setting.name] = setting.value
    factor, count = topic.replication_factor, topic.num_partitions
    if not topic.assignments and factor not in (-1, 1):
        if factor > 0 and (count < -1 or count == 0):  # as in Kafka, reported before a factor above 1
            raise InvalidPartitionsError(f"topic {topic.name!r}: {count} partitions are not possible")
        raise RequestRefusedError(Code.INVALID_REPLICATION_FACTOR, _factor_message(factor))
    refuse_tiered(overrides)
    if topic.assignments:
        return _assigned_count(topic, node_id), overrides
    return None if topic.num_partitions == -1 else topic.num_partitions, overrides


def _factor_message(factor: int) -> str:
    if factor < 1:
        return "Replication factor must be larger than 0, or -1 to use the default value."
    return (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
        "cannot be reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


def _assigned_count(topic: CreatableTopic, node_id: int) -> int:
    """The number of partitions in a manual assignment of replicas. Raises RequestRefusedError for an
    assignment that is not possible with this broker alone."""
    for value, what in (
        (topic.num_partitions, "numPartitions"),
        (topic.replication_factor, "replication factor"),
    ):
        if value != -1:
            reason = f"A manual partition assignment was specified, but {what} was not set to -1."
            raise RequestRefusedError(Code.INVALID_REQUEST, reason)
    _refuse_bad_replicas([assignment.broker_ids for assignment in topic.assignments], node_id)
    _refuse_bad_numbers(topic.assignments)
    return len(topic.assignments)


def _refuse_bad_numbers(assignments: Sequence[CreatableReplicaAssignment]) -> None:
    """Raises RequestRefusedError unless the assigned partitions have the numbers 0, 1, …, each once."""
    numbers = [assignment.partition_index for assignment in assignments]
    if len(set(numbers)) != len(numbers):
        raise RequestRefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT, "Found multiple manual partition assignments for a partition"
        )
    if sorted(numbers) != list(range(len(numbers))):
        raise RequestRefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )


def _refuse_bad_replicas(replicas_of: Sequence[Sequence[int]], node_id: int) -> None:
    """Raises RequestRefusedError unless the replicas of each partition are this broker alone."""
    for replicas in replicas_of:
        reason = None
        if not replicas:
            reason = "The manual partition assignment includes an empty replica list."
        elif len(set(replicas)) != len(replicas):
            twice = next(broker for broker, times in Counter(sorted(replicas)).items() if times > 1)
            reason = f"The manual partition assignment includes the broker {twice} more than once."
        elif tuple(replicas) != (node_id,):
            other = min(broker for broker in replicas if broker != node_id)
            reason = (
                f"The manual partition assignment includes broker {other}, but no such broker is registered."
            )
        if reason is not None:
            raise RequestRefusedError(Code.INVALID_REPLICA_ASSIGNMENT, reason)


# DeleteTopics


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete topics by their names, from version 6 on also by their ids."""
    return await broker.in_pool(_delete_topics, broker, request, context)


def _delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    states = request.topics
    if context.version < _FIRST_VERSION_WITH_IDS:
        states = tuple(DeleteTopicState(name=name) for name in request.topic_names)
    refused, names = _resolve_topics(broker, states)
    results, quota = list(refused), broker.quotas.mutations(context, _STRICT_DELETION)
    asked_by_id = {state.topic_id for state in states if state.name is None} - {ZERO_ID}
    for name, topic_id in names.items():
        by_id = topic_id in asked_by_id
        try:
            _take_quota(quota, len(broker.manager.partitions_of(name)))
            # The deletions before this one may take seconds: by now a new topic may have the name.
            wanted = topic_id if by_id else None
            administration.delete_topic(broker.served, actor_of(context), name, topic_id=wanted)
            results.append(DeletableTopicResult(name=name, topic_id=topic_id))
        except UnknownTopicError:
            if by_id:
                results.append(_not_deleted(None, topic_id, Code.UNKNOWN_TOPIC_ID, _NO_ID))
            else:
                results.append(_not_deleted(name, topic_id, Code.UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC))
        except Exception as error:
            results.append(_not_deleted(name, topic_id, code_of(error), message_of(error)))
    return DeleteTopicsResponse(responses=tuple(results), throttle_time_ms=quota.throttle_ms)


def _not_deleted(name: str | None, topic_id: bytes, code: int, message: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


def _resolve_topics(
    broker: Broker, states: Sequence[DeleteTopicState]
) -> tuple[list[DeletableTopicResult], dict[str, bytes]]:
    """Find the topics that a request names by name or by id. Returns (the results of the refused entries; the
    topics to delete, as ids by name, ``ZERO_ID`` for a name that does not exist)."""
    refused, names = [], dict[str, bytes]()
    times = Counter((state.name, state.topic_id) for state in states)
    for (name, topic_id), count in times.items():
        if (name is None) == (topic_id == ZERO_ID):
            reason = "Neither topic name nor id were specified."
            if name is not None:
                reason = "You may not specify both topic name and topic id."
            # As in Kafka, an entry that is there ``count`` times has as many results, the last one below.
            refused += [_not_deleted(name, topic_id, Code.INVALID_REQUEST, reason)] * (count - 1)
        elif count > 1:
            reason = _DUPLICATE if name is not None else "Duplicate topic id."
        else:
            topic = name if name is not None else broker.topic_of_id(topic_id)
            if topic is None:
                refused.append(_not_deleted(None, topic_id, Code.UNKNOWN_TOPIC_ID, _NO_ID))
            elif topic in names:  # once by its name, once by its id
                del names[topic]
                reason = "The provided topic name maps to an ID that was already supplied."
                refused.append(_not_deleted(topic, broker.id_of_topic(topic), Code.INVALID_REQUEST, reason))
            else:
                names[topic] = broker.id_of_topic(topic) if name is not None else topic_id
            continue
        refused.append(_not_deleted(name, topic_id, Code.INVALID_REQUEST, reason))
    return refused, names


# CreatePartitions


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to topics, or check whether they could be added."""
    return await broker.in_pool(_create_partitions, broker, request, context)


def _create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    times = Counter(topic.name for topic in request.topics)
    results, remaining = [], PARTITIONS_MAX
    quota = broker.quotas.mutations(context, _STRICT_PARTITIONS)

    def add(topic: CreatePartitionsTopic, existing: int) -> None:
        nonlocal remaining
        remaining -= topic.count - existing
        if remaining < 0:
            raise RequestRefusedError(Code.POLICY_VIOLATION, _TOO_MANY)
        _take_quota(quota, topic.count - existing)
        administration.add_partitions(
            broker.served, actor_of(context), topic.name, topic.count, validate_only=request.validate_only
        )

    for topic in request.topics:
        if times[topic.name] == 1:
            results.append(_add_partitions(broker, topic, add))
    results += [
        CreatePartitionsTopicResult(name=name, error_code=Code.INVALID_REQUEST, error_message=_DUPLICATE)
        for name, count in times.items()
        if count > 1
    ]
    return CreatePartitionsResponse(results=tuple(results), throttle_time_ms=quota.throttle_ms)


def _add_partitions(
    broker: Broker, topic: CreatePartitionsTopic, add: Callable[[CreatePartitionsTopic, int], None]
) -> CreatePartitionsTopicResult:
    """Check one topic, call ``add`` with its present number of partitions, and return the result."""
    try:
        existing = len(broker.manager.partitions_of(topic.name))
        if topic.count > existing and topic.assignments is not None:
            more, assigned = topic.count - existing, len(topic.assignments)
            if assigned != more:
                raise RequestRefusedError(
                    Code.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {more} additional partition(s), but only {assigned} assignment(s) "
                    "were specified.",
                )
            _refuse_bad_replicas([assignment.broker_ids for assignment in topic.assignments], broker.node_id)
        if topic.count <= existing:
            raise InvalidPartitionsError(_count_message(topic.name, existing, topic.count))
        add(topic, existing)
    except UnknownTopicError as error:
        return CreatePartitionsTopicResult(name=topic.name, error_code=error.error_code)
    except Exception as error:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=code_of(error), error_message=message_of(error)
        )
    return CreatePartitionsTopicResult(name=topic.name)


def _count_message(name: str, existing: int, count: int) -> str:
    if count == existing:
        return f"Topic already has {existing} partition(s)."
    return f"The topic {name} currently has {existing} partition(s); {count} would not be an increase."
