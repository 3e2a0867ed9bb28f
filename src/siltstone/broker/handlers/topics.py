"""CreateTopics 2 to 7, DeleteTopics 1 to 6, CreatePartitions 0 to 3 (Kafka's ``ReplicationControlManager``).

Each topic of a request is a change of its own, with its own result, by ``commands.administration``: it is
checked, recorded in the audit log and made before the response is sent. ``timeout_ms`` has no effect.

As in Kafka, a request may create ``PARTITIONS_MAX`` partitions. Replication factors and assignments are
checked against the one broker that there is.
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
from siltstone.broker.answers import CLIENT_ID_MAX, Call
from siltstone.broker.errors import Code, RequestRefusedError, advice_of, code_of, message_of
from siltstone.broker.handlers.settings import refuse_tiered, topic_entries
from siltstone.broker.quotas import MutationQuota
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
"""The most partitions that one request creates, of all of its topics together."""
WAY = "kafka"
"""The way by which a change came, in the audit log: Kafka's protocol."""
_TOO_MANY = "Excessively large number of partitions per request."
_DUPLICATE = "Duplicate topic name."
_NO_TOPIC, _NO_ID = (
    "This server does not host this topic-partition.",
    "This server does not host this topic ID.",
)
_FIRST_BY_ID = 6
_STRICT_CREATION, _STRICT_DELETION, _STRICT_PARTITIONS = 6, 5, 3
"""The first versions whose clients know that a quota may refuse what they ask."""


def actor_of(call: Call) -> Actor:
    """The origin of a change for the audit log: the client id and the client's address."""
    return Actor(user=(call.client_id or LOCAL_USER)[:CLIENT_ID_MAX], address=call.connection.peer, way=WAY)


# CreateTopics


async def create_topics(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    """Create topics, or check whether they could be."""
    return await broker.in_pool(_create_topics, broker, request, call)


def _create_topics(broker: Broker, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    times = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if times[topic.name] == 1]
    default = broker.config.integer("num.partitions")
    # As in Kafka, the limit counts metadata records: one a topic, one a partition.
    total = sum(_count(topic, default) + 1 for topic in topics)
    results, quota = [], broker.quotas.mutations(call, _STRICT_CREATION)
    for topic in topics:
        try:
            if total > PARTITIONS_MAX:
                raise RequestRefusedError(Code.POLICY_VIOLATION, _TOO_MANY)
            results.append(_create_topic(broker, topic, call, quota, validate_only=request.validate_only))
        except Exception as error:  # one topic's error is not the others'
            results.append(_not_created(topic.name, code_of(error), _creation_message(topic.name, error)))
    results += [
        _not_created(name, Code.INVALID_REQUEST, _DUPLICATE) for name, count in times.items() if count > 1
    ]
    return CreateTopicsResponse(topics=tuple(results), throttle_time_ms=quota.throttle_ms)


def _refuse_over(quota: MutationQuota, partitions: int) -> None:
    """Raises RequestRefusedError if a client must not create or delete so many partitions now."""
    if not quota.take(partitions):
        reason = "The throttling quota has been exceeded."
        raise RequestRefusedError(Code.THROTTLING_QUOTA_EXCEEDED, reason)


def _count(topic: CreatableTopic, default: int) -> int:
    """The number of partitions of a topic that is to be created."""
    return len(topic.assignments) or (default if topic.num_partitions == -1 else max(topic.num_partitions, 0))


def _not_created(name: str, code: int, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


def _creation_message(name: str, error: Exception) -> str | None:
    """The message for the client; in Kafka's words where its tools print them."""
    if isinstance(error, TopicExistsError):
        return f"Topic '{name}' already exists."
    if isinstance(error, InvalidPartitionsError):
        return "Number of partitions was set to an invalid non-positive value."
    return advice_of(error)


def _create_topic(
    broker: Broker, topic: CreatableTopic, call: Call, quota: MutationQuota, *, validate_only: bool
) -> CreatableTopicResult:
    """Create one topic. Raises RequestRefusedError, SiltstoneError, OSError."""
    name = topic.name
    if name == CLUSTER_METADATA:
        raise RequestRefusedError(Code.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    try:
        count, overrides = _checked(topic, broker.node_id)
    except (RequestRefusedError, SiltstoneError):
        # As in Kafka a bad name, a topic that exists and bad settings come first.
        settings = {setting.name: setting.value for setting in topic.configs if setting.value is not None}
        known = settings if len(settings) == len(topic.configs) else {}
        refuse_new_topic(name, broker.manager.topics.names(), 1, known, broker.manager.config)
        raise
    create = partial(administration.create_topic, broker.served, actor_of(call), name, count, overrides)
    if validate_only or quota.is_set:
        create(validate_only=True)
    _refuse_over(quota, count or broker.config.integer("num.partitions"))
    if not validate_only:
        create()
    manager = broker.manager
    if validate_only:
        config = manager.config.with_topic_layer(parse_topic_config(overrides, name))
        created = count or manager.config.integer("num.partitions")
        topic_id = id_bytes(new_id(manager.random_bytes))  # as in Kafka, an id that no topic gets
    else:
        config, created = manager.topics.settings(name), len(manager.partitions_of(name))
        topic_id = broker.id_of_topic(name)
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=created,
        replication_factor=1,
        configs=tuple(
            # As in Kafka, the topic's own settings are repeated as the client wrote them.
            CreatableTopicConfigs(
                name=entry.name, value=overrides.get(entry.name, entry.value), config_source=entry.source
            )
            for entry in sorted(
                topic_entries(config), key=lambda entry: (entry.is_own_to_siltstone, entry.name)
            )
        ),
    )


def _checked(topic: CreatableTopic, node_id: int) -> tuple[int | None, dict[str, str]]:
    """The number of partitions, None: the default, and the settings of a topic that is to be created. Raises
    RequestRefusedError, SiltstoneError."""
    overrides: dict[str, str] = {}
    for setting in topic.configs:  # of several with one name the last one counts, as in Kafka
        if setting.value is None:
            raise RequestRefusedError(
                Code.INVALID_CONFIG, f"Null value not supported for topic configs: {setting.name}"
            )
        overrides[setting.name] = setting.value
    factor, count = topic.replication_factor, topic.num_partitions
    if not topic.assignments and factor not in (-1, 1):
        if factor > 0 and (count < -1 or count == 0):  # comes before a factor that is too large
            raise InvalidPartitionsError(f"topic {topic.name!r}: {count} partitions are not possible")
        raise RequestRefusedError(Code.INVALID_REPLICATION_FACTOR, _factor_message(factor))
    refuse_tiered(overrides)
    if topic.assignments:
        return _assigned(topic, node_id), overrides
    return None if topic.num_partitions == -1 else topic.num_partitions, overrides


def _factor_message(factor: int) -> str:
    if factor < 1:
        return "Replication factor must be larger than 0, or -1 to use the default value."
    return (
        f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
        "cannot be reached because only 1 broker(s) are registered or some brokers have all their log "
        "directories cordoned."
    )


def _assigned(topic: CreatableTopic, node_id: int) -> int:
    """The number of partitions in a manual assignment of replicas. Raises RequestRefusedError for one that
    this broker cannot have."""
    for value, what in (
        (topic.num_partitions, "numPartitions"),
        (topic.replication_factor, "replication factor"),
    ):
        if value != -1:
            reason = f"A manual partition assignment was specified, but {what} was not set to -1."
            raise RequestRefusedError(Code.INVALID_REQUEST, reason)
    _refuse_bad_replicas([assignment.broker_ids for assignment in topic.assignments], node_id)
    return _number_of(topic.assignments)


def _number_of(assignments: Sequence[CreatableReplicaAssignment]) -> int:
    """The number of assigned partitions. Raises RequestRefusedError for a gap or a duplicate in their
    numbers."""
    numbers = [assignment.partition_index for assignment in assignments]
    if len(set(numbers)) != len(numbers):
        raise RequestRefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT, "Found multiple manual partition assignments for a partition"
        )
    if sorted(numbers) != list(range(len(numbers))):
        raise RequestRefusedError(
            Code.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return len(numbers)


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


async def delete_topics(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    """Delete topics by their names, from version 6 on also by their ids."""
    return await broker.in_pool(_delete_topics, broker, request, call)


def _delete_topics(broker: Broker, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    states = request.topics
    if call.version < _FIRST_BY_ID:
        states = tuple(DeleteTopicState(name=name) for name in request.topic_names)
    refused, names = _resolved(broker, states)
    results, quota = list(refused), broker.quotas.mutations(call, _STRICT_DELETION)
    for name, topic_id in names.items():
        try:
            _refuse_over(quota, len(broker.manager.partitions_of(name)))
            administration.delete_topic(broker.served, actor_of(call), name)
            results.append(DeletableTopicResult(name=name, topic_id=topic_id))
        except UnknownTopicError:
            results.append(_not_deleted(name, topic_id, Code.UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC))
        except Exception as error:
            results.append(_not_deleted(name, topic_id, code_of(error), message_of(error)))
    return DeleteTopicsResponse(responses=tuple(results), throttle_time_ms=quota.throttle_ms)


def _not_deleted(name: str | None, topic_id: bytes, code: int, message: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


def _resolved(
    broker: Broker, states: Sequence[DeleteTopicState]
) -> tuple[list[DeletableTopicResult], dict[str, bytes]]:
    """(results for the refused entries, name to id of the topics to delete; the id is ``ZERO_ID`` for
    a name that does not exist)."""
    refused, names = [], dict[str, bytes]()
    times = Counter((state.name, state.topic_id) for state in states)
    for (name, topic_id), count in times.items():
        if (name is None) == (topic_id == ZERO_ID):
            reason = "Neither topic name nor id were specified."
            if name is not None:
                reason = "You may not specify both topic name and topic id."
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
                names[topic] = broker.id_of_topic(topic)
            continue
        refused.append(_not_deleted(name, topic_id, Code.INVALID_REQUEST, reason))
    return refused, names


# CreatePartitions


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    """Add partitions to topics, or check whether they could be added."""
    return await broker.in_pool(_create_partitions, broker, request, call)


def _create_partitions(
    broker: Broker, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    times = Counter(topic.name for topic in request.topics)
    results, left = [], PARTITIONS_MAX
    quota = broker.quotas.mutations(call, _STRICT_PARTITIONS)

    def add(topic: CreatePartitionsTopic, existing: int) -> None:
        nonlocal left
        left -= topic.count - existing
        if left < 0:
            raise RequestRefusedError(Code.POLICY_VIOLATION, _TOO_MANY)
        _refuse_over(quota, topic.count - existing)
        administration.add_partitions(
            broker.served, actor_of(call), topic.name, topic.count, validate_only=request.validate_only
        )

    for topic in request.topics:
        if times[topic.name] == 1:
            results.append(_added(broker, topic, add))
    results += [
        CreatePartitionsTopicResult(name=name, error_code=Code.INVALID_REQUEST, error_message=_DUPLICATE)
        for name, count in times.items()
        if count > 1
    ]
    return CreatePartitionsResponse(results=tuple(results), throttle_time_ms=quota.throttle_ms)


def _added(
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
            raise InvalidPartitionsError(_no_increase(topic.name, existing, topic.count))
        add(topic, existing)
    except UnknownTopicError as error:
        return CreatePartitionsTopicResult(name=topic.name, error_code=error.error_code)
    except Exception as error:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=code_of(error), error_message=message_of(error)
        )
    return CreatePartitionsTopicResult(name=topic.name)


def _no_increase(name: str, existing: int, count: int) -> str:
    if count == existing:
        return f"Topic already has {existing} partition(s)."
    return f"The topic {name} currently has {existing} partition(s); {count} would not be an increase."
