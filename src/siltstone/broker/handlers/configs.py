"""DescribeConfigs 1 to 4, IncrementalAlterConfigs 0 to 1, AlterConfigs 0 to 2, ListConfigResources 0 to 1.

Resources are topics, and the broker by its id. The empty id stands for all brokers of the cluster: there is
only this one, but as in Kafka its cluster-wide settings come after those of its id. Settings of brokers that
are changed here are *dynamic*: they are kept in the log directories, apply at once, and come before those of
``server.properties``.

Kafka has three more kinds of resources, which this broker lists as empty and does not change: loggers, groups
with settings, subscriptions of client metrics. Corresponds to Kafka's ``ConfigHelper``,
``ConfigAdminManager`` and ``ConfigurationControlManager``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from siltstone.base.config import Config, ConfigSource, Setting, find_topic_key
from siltstone.base.config_table import Kind, Value
from siltstone.base.errors import (
    InvalidConfigError,
    InvalidTopicError,
    UnknownConfigError,
    UnknownTopicError,
    UsageError,
)
from siltstone.broker.answers import Call
from siltstone.broker.errors import Code, RequestRefusedError, advice_of, code_of, message_of
from siltstone.broker.handlers.settings import (
    SettingEntry,
    broker_entries,
    default_entries,
    refuse_tiered,
    topic_entries,
)
from siltstone.broker.handlers.topics import actor_of
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages import alter_configs as alter_messages
from siltstone.broker.wire.messages import incremental_alter_configs as incremental_messages
from siltstone.broker.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from siltstone.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from siltstone.broker.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from siltstone.broker.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from siltstone.commands import administration, broker_settings
from siltstone.runtime.topic_names import refuse_bad_name
from siltstone.runtime.topics import altered_settings, dynamic_source

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Kinds of resources (``ConfigResource.Type``)."""
_ALL_KINDS = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""
DESCRIBED_MAX = 10_000
"""The most resources that one DescribeConfigs describes: each takes 2 KB in the response."""
TEXT_MAX = 32_767
"""The longest name or value of a setting: old versions of DescribeConfigs have an int16 for its size."""
_VERBS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_FIRST_OF_ALL_TYPES = 1


class SettingOperation(NamedTuple):
    """The change of one setting: SET, DELETE, APPEND or SUBTRACT; ``value`` may be None for DELETE only."""

    name: str
    operation: int
    value: str | None


class AlteredResource(NamedTuple):
    """A resource with the changes of its settings. ``replaces``: settings that are not named are removed
    (AlterConfigs)."""

    kind: int
    name: str
    changes: Sequence[SettingOperation]
    replaces: bool


# DescribeConfigs


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    """The settings of topics and brokers."""
    return await broker.in_pool(_describe_configs, broker, request)


def _describe_configs(broker: Broker, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    unknown = [each for each in request.resources if each.resource_type not in _ALL_KINDS]
    if unknown:  # as in Kafka for the whole request
        reason = f"Unexpected resource type {unknown[0].resource_type}"
        return DescribeConfigsResponse(
            results=tuple(
                DescribeConfigsResult(
                    error_code=Code.INVALID_REQUEST,
                    error_message=reason,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            )
        )
    known = dict[DescribeConfigsResource, DescribeConfigsResult]()
    results = []
    for resource in request.resources[:DESCRIBED_MAX]:
        # A resource that is named again gets the same object: a small request must not take much memory.
        if resource not in known:
            known[resource] = _described(broker, resource, request)
        results.append(known[resource])
    results += [
        DescribeConfigsResult(
            error_code=Code.POLICY_VIOLATION,
            error_message=f"more than {DESCRIBED_MAX} resources in one request",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources[DESCRIBED_MAX:]
    ]
    return DescribeConfigsResponse(results=tuple(results))


def _described(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        entries = _entries(broker, kind, name)
    except Exception as error:
        return DescribeConfigsResult(
            error_code=code_of(error),
            error_message="" if isinstance(error, UnknownTopicError) else message_of(error),
            resource_type=kind,
            resource_name=name,
        )
    keys = set(resource.configuration_keys or ())  # empty: all settings
    return DescribeConfigsResult(
        resource_type=kind,
        resource_name=name,
        configs=tuple(_result(entry, request) for entry in entries if not keys or entry.name in keys),
    )


def _result(entry: SettingEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        synonyms=tuple(
            DescribeConfigsSynonym(name=source.name, value=source.value, source=source.source)
            for source in synonyms
        ),
        config_type=entry.type,
        documentation=entry.key.doc if request.include_documentation else None,
    )


def _entries(broker: Broker, kind: int, name: str) -> list[SettingEntry]:
    """The settings of a resource. Raises RequestRefusedError, UnknownTopicError, InvalidTopicError."""
    if kind == TOPIC:
        refuse_bad_name(name)
        broker.manager.partitions_of(name)  # raises UnknownTopicError
        return topic_entries(broker.manager.topics.settings(name))
    if kind == BROKER:
        if not name:
            return default_entries(broker.config)
        _refuse_other_node(
            broker, name, "Broker id must be an integer, but it is: ", "expected {} or empty string"
        )
        return broker_entries(_as_started(broker))
    if kind == BROKER_LOGGER:
        if not name:
            raise RequestRefusedError(Code.INVALID_REQUEST, "Broker id must not be empty")
        _refuse_other_node(broker, name, "Broker id must be an integer, but it is: ", "expected {}")
        return []
    if kind in (CLIENT_METRICS, GROUP):
        if not name:
            what = "Group" if kind == GROUP else "Client metrics subscription"
            raise RequestRefusedError(Code.INVALID_REQUEST, f"{what} name must not be empty")
        return []
    raise AssertionError(f"unknown resource type {kind}")


def _as_started(broker: Broker) -> Config:
    """The broker's settings, with those that the command line or the directories set instead of the file."""
    source = ConfigSource.STATIC_BROKER_CONFIG
    paths = tuple(str(served.path.absolute()) for served in broker.manager.directories)
    started: dict[str, Value] = {"log.dirs": paths, "node.id": broker.node_id}
    known = {name: Setting(value=value, source=source.value, name=name) for name, value in started.items()}
    return broker.config.with_layer(source, {**known, **broker.config.layer(source)})


def _refuse_other_node(broker: Broker, name: str, not_a_number: str, expected: str) -> None:
    """Raises RequestRefusedError unless ``name`` is this broker's id."""
    try:
        number = int(name) if len(name) < 12 and name.isascii() else None
    except ValueError:
        number = None
    if number is None:
        raise RequestRefusedError(Code.INVALID_REQUEST, not_a_number + name[:100])
    if number != broker.node_id:
        raise RequestRefusedError(
            Code.INVALID_REQUEST,
            f"Unexpected broker id, {expected.format(broker.node_id)}, but received {number}",
        )


# IncrementalAlterConfigs and AlterConfigs


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from settings."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [SettingOperation(one.name, one.config_operation, one.value) for one in resource.configs],
            replaces=False,
        )
        for resource in request.resources
    ]
    answers = await broker.in_pool(_alter_all, broker, resources, call, request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            incremental_messages.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.kind,
                resource_name=resource.name,
            )
            for resource, (code, message) in zip(resources, answers, strict=True)
        )
    )


async def alter_configs(broker: Broker, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Replace all settings of resources by others."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [SettingOperation(one.name, SET, one.value) for one in resource.configs],
            replaces=True,
        )
        for resource in request.resources
    ]
    answers = await broker.in_pool(_alter_all, broker, resources, call, request.validate_only)
    return AlterConfigsResponse(
        responses=tuple(
            alter_messages.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.kind,
                resource_name=resource.name,
            )
            for resource, (code, message) in zip(resources, answers, strict=True)
        )
    )


def _alter_all(
    broker: Broker, resources: Sequence[AlteredResource], call: Call, validate_only: bool
) -> list[tuple[int, str | None]]:
    """Alter each resource on its own; for each of them (error code, message for the client)."""
    times = Counter((resource.kind, resource.name) for resource in resources)
    answers = list[tuple[int, str | None]]()
    for resource in resources:
        try:
            if times[resource.kind, resource.name] > 1:
                raise RequestRefusedError(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(broker, resource, call, validate_only=validate_only)
            answers.append((Code.NONE, None))
        except UnknownTopicError as error:
            answers.append((error.error_code, f"The topic '{resource.name}' does not exist."))
        except Exception as error:
            code, is_unknown = code_of(error), isinstance(error, UnknownConfigError)
            if resource.kind == BROKER and isinstance(error, InvalidConfigError) and not is_unknown:
                code = Code.INVALID_REQUEST  # as Kafka answers for brokers
            answers.append((code, advice_of(error)))
    return answers


def _alter(broker: Broker, resource: AlteredResource, call: Call, *, validate_only: bool) -> None:
    """Alter one resource. Raises RequestRefusedError, SiltstoneError, OSError."""
    kind, name = resource.kind, resource.name
    if kind == TOPIC:
        _refuse_bad_changes(resource)
        _alter_topic(broker, resource, call, validate_only=validate_only)
    elif kind == BROKER:
        if name:
            _refuse_other_node(broker, name, "Node id must be an integer, but it is: ", "expected {}")
        _refuse_bad_changes(resource)
        _alter_broker(broker, resource, call, validate_only=validate_only)
    elif kind == BROKER_LOGGER and not resource.replaces:
        _refuse_other_node(broker, name, "Node id must be an integer, but it is: ", "expected {}")
        for change in resource.changes:
            raise RequestRefusedError(Code.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    else:
        raise RequestRefusedError(Code.INVALID_REQUEST, f"Unknown resource type {kind}")


def _refuse_bad_changes(resource: AlteredResource) -> None:
    """Raises RequestRefusedError for changes that no kind of resource allows."""
    times = Counter(change.name for change in resource.changes)
    if len(times) < len(resource.changes):
        raise RequestRefusedError(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    for change in resource.changes:
        if change.operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise RequestRefusedError(
                Code.INVALID_REQUEST, f"Unknown operation {change.operation} for {change.name}"
            )
        if change.value is None and change.operation != DELETE:
            raise RequestRefusedError(Code.INVALID_REQUEST, f"Null value not supported for : {change.name}")
        if len(change.value or "") > TEXT_MAX or len(change.name) > TEXT_MAX:
            raise RequestRefusedError(
                Code.INVALID_CONFIG, f"The value of {change.name[:100]} is longer than {TEXT_MAX} characters"
            )


def _alter_topic(broker: Broker, resource: AlteredResource, call: Call, *, validate_only: bool) -> None:
    """Alter a topic. Which of several errors is Kafka's: of lists, the name, settings, the topic."""
    manager, name = broker.manager, resource.name
    with manager.creation_or_deletion_lock:  # APPEND and SUBTRACT read the settings that they change
        before: Mapping[str, str] = {}
        with contextlib.suppress(UnknownTopicError, InvalidTopicError):  # administration says so
            before = manager.topics.describe(name).config
        settings = manager.topics.settings(name)
        set_to, removed = _outcome(
            resource, before, lambda key: _list_now(settings[find_topic_key(key).name]), _topic_kind
        )
        if not name:
            raise RequestRefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
        refuse_bad_name(name)
        refuse_tiered(set_to)
        altered_settings(name, before, set_to, removed, manager.config)
        administration.alter_settings(
            broker.served, actor_of(call), name, set_to, removed, validate_only=validate_only
        )


def _alter_broker(broker: Broker, resource: AlteredResource, call: Call, *, validate_only: bool) -> None:
    of_all = not resource.name
    before = dict.fromkeys(broker.config.layer(dynamic_source(of_all=of_all)), "")

    def list_now(name: str) -> list[str]:
        entries = {entry.name: entry.value for entry in broker_entries(broker.config)}
        return _list_now(tuple((entries[name] or "").split(",")) if entries[name] else ())

    set_to, removed = _outcome(resource, before, list_now, broker_settings.kind_of)
    broker_settings.alter_dynamic(
        broker.served, actor_of(call), set_to, removed, of_all=of_all, validate_only=validate_only
    )


def _topic_kind(name: str) -> Kind | None:
    try:
        return find_topic_key(name).kind
    except UsageError:
        return None


def _list_now(value: object) -> list[str]:
    assert isinstance(value, tuple)
    return list(value)


def _outcome(
    resource: AlteredResource,
    before: Mapping[str, str],
    list_now: Callable[[str], list[str]],
    kind_of: Callable[[str], Kind | None],
) -> tuple[dict[str, str], list[str]]:
    """The outcome of all changes: (the settings to set, the names to remove). As in Kafka, the deletion of a
    setting that is not set is no error. Raises RequestRefusedError."""
    set_to, removed = dict[str, str](), list[str]()
    for change in resource.changes:
        if change.operation == DELETE:
            removed += [change.name] if change.name in before else []
        elif change.operation == SET:
            set_to[change.name] = change.value or ""
        else:
            if kind_of(change.name) is not Kind.LIST:
                reason = (
                    f"Can't {_VERBS[change.operation]} to key {change.name} because its type is not LIST."
                )
                raise RequestRefusedError(Code.INVALID_CONFIG, reason)
            set_to[change.name] = ",".join(_combined(list_now(change.name), change))
    if resource.replaces:
        removed = [name for name in before if name not in set_to]
    return set_to, removed


def _combined(words: Iterable[str], change: SettingOperation) -> list[str]:
    """A list after words were appended to or subtracted from it."""
    changed = [word.strip() for word in (change.value or "").split(",") if word.strip()]
    if change.operation == APPEND:
        return list(dict.fromkeys([*words, *changed]))
    return [word for word in words if word not in changed]


# ListConfigResources


async def list_config_resources(
    broker: Broker, request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
    """The names of the resources that have settings. Version 0 lists subscriptions of client metrics only, so
    nothing."""
    if call.version < _FIRST_OF_ALL_TYPES:
        return ListConfigResourcesResponse()
    kinds = set(request.resource_types) or _ALL_KINDS
    if not kinds <= _ALL_KINDS:
        return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
    resources = [
        ConfigResource(resource_name=str(broker.node_id), resource_type=kind)
        for kind in (BROKER_LOGGER, BROKER)
        if kind in kinds
    ]
    if TOPIC in kinds:
        names = await broker.in_pool(broker.manager.topics.names)
        resources += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    return ListConfigResourcesResponse(config_resources=tuple(resources))
