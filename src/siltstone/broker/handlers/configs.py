"""The handlers of DescribeConfigs (versions 1 to 4), IncrementalAlterConfigs (0 to 1), AlterConfigs (0 to 2)
and ListConfigResources (0 to 1).

The resources with settings are topics, and brokers, which are named by their ids; the empty id stands for all
brokers of the cluster. There is one broker, but as in Kafka, its own settings take precedence over those for
all brokers. A broker's settings that are changed here are *dynamic*: they are kept in the log directories,
apply at once, and take precedence over ``server.properties``.

Kafka has three more types of resources: loggers, groups, and subscriptions of client metrics. Here they have
no settings, and changes of them are refused. Corresponds to Kafka's ``ConfigHelper``, ``ConfigAdminManager``
and ``ConfigurationControlManager``.
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
from siltstone.broker.errors import Code, RequestRefusedError, code_of, message_of, message_with_advice_of
from siltstone.broker.handlers.settings import (
    SettingEntry,
    broker_entries,
    default_entries,
    refuse_tiered,
    topic_entries,
)
from siltstone.broker.handlers.topics import actor_of
from siltstone.broker.request_context import RequestContext
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
"""Types of resources (``ConfigResource.Type``)."""
_ALL_TYPES = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""
DESCRIBED_MAX = 10_000
"""The most resources that one DescribeConfigs request may describe: each takes 2 KB in the response."""
TEXT_BYTES_MAX = 32_767
"""The longest name or value of a setting, in UTF-8: old versions of DescribeConfigs have an int16 for its
size."""
_VERBS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_FIRST_VERSION_WITH_TYPES = 1
"""The first version of ListConfigResources that lists more types than subscriptions of client metrics."""


class SettingOperation(NamedTuple):
    """The change of one setting: SET, DELETE, APPEND or SUBTRACT; ``value`` may be None for DELETE only."""

    name: str
    operation: int
    value: str | None


class AlteredResource(NamedTuple):
    """A resource with the changes of its settings. ``replaces``: settings that are not named are removed
    (AlterConfigs)."""

    type: int
    name: str
    changes: Sequence[SettingOperation]
    replaces: bool


# DescribeConfigs


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """The settings of topics and brokers."""
    return await broker.in_pool(_describe_configs, broker, request)


def _describe_configs(broker: Broker, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    unknown = [
        resource.resource_type for resource in request.resources if resource.resource_type not in _ALL_TYPES
    ]
    if unknown:  # as in Kafka, the whole request is refused
        reason = f"Unexpected resource type {unknown[0]}"
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
    result_of = dict[DescribeConfigsResource, DescribeConfigsResult]()
    results = []
    for resource in request.resources[:DESCRIBED_MAX]:
        # A resource that is named again gets the same object: a small request must not take much memory.
        if resource not in result_of:
            result_of[resource] = _describe_resource(broker, resource, request)
        results.append(result_of[resource])
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


def _describe_resource(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    resource_type, name = resource.resource_type, resource.resource_name
    try:
        entries = _entries(broker, resource_type, name)
    except Exception as error:
        return DescribeConfigsResult(
            error_code=code_of(error),
            # As in Kafka, an unknown topic has a code and an empty message.
            error_message="" if isinstance(error, UnknownTopicError) else message_of(error),
            resource_type=resource_type,
            resource_name=name,
        )
    keys = set(resource.configuration_keys or ())  # empty: all settings
    return DescribeConfigsResult(
        resource_type=resource_type,
        resource_name=name,
        configs=tuple(
            _describe_setting(entry, request) for entry in entries if not keys or entry.name in keys
        ),
    )


def _describe_setting(entry: SettingEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        synonyms=tuple(
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ),
        config_type=entry.type,
        documentation=entry.key.doc if request.include_documentation else None,
    )


def _entries(broker: Broker, resource_type: int, name: str) -> list[SettingEntry]:
    """The settings of a resource. Raises RequestRefusedError, UnknownTopicError, InvalidTopicError."""
    if resource_type == TOPIC:
        refuse_bad_name(name)
        broker.manager.partitions_of(name)  # raises UnknownTopicError
        return topic_entries(broker.manager.topics.settings(name))
    if resource_type == BROKER:
        if not name:
            return default_entries(broker.config)
        _refuse_other_node(
            broker, name, "Broker id must be an integer, but it is: ", "expected {} or empty string"
        )
        return broker_entries(_with_start_settings(broker))
    if resource_type == BROKER_LOGGER:
        if not name:
            raise RequestRefusedError(Code.INVALID_REQUEST, "Broker id must not be empty")
        _refuse_other_node(broker, name, "Broker id must be an integer, but it is: ", "expected {}")
        return []
    if resource_type in (CLIENT_METRICS, GROUP):
        if not name:
            what = "Group" if resource_type == GROUP else "Client metrics subscription"
            raise RequestRefusedError(Code.INVALID_REQUEST, f"{what} name must not be empty")
        return []
    raise AssertionError(f"unknown resource type {resource_type}")


def _with_start_settings(broker: Broker) -> Config:
    """The broker's settings. If ``server.properties`` does not set ``log.dirs`` or ``node.id``, the broker's
    directories or id are shown as if it did."""
    source = ConfigSource.STATIC_BROKER_CONFIG
    paths = tuple(str(served.path.absolute()) for served in broker.manager.directories)
    values: dict[str, Value] = {"log.dirs": paths, "node.id": broker.node_id}
    added = {name: Setting(value=value, source=source.value, name=name) for name, value in values.items()}
    return broker.config.with_layer(source, {**added, **broker.config.layer(source)})


def _refuse_other_node(broker: Broker, name: str, not_a_number: str, expected: str) -> None:
    """Raises RequestRefusedError unless ``name`` is this broker's id. ``not_a_number``, ``expected``: parts
    of Kafka's error messages, which differ between its APIs; ``{}`` stands for this broker's id."""
    try:
        # No int32 has more than 11 characters.
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
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from settings."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [
                SettingOperation(config.name, config.config_operation, config.value)
                for config in resource.configs
            ],
            replaces=False,
        )
        for resource in request.resources
    ]
    outcomes = await broker.in_pool(_alter_all, broker, resources, context, request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            incremental_messages.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            for resource, (code, message) in zip(resources, outcomes, strict=True)
        )
    )


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace all settings of resources by those of the request."""
    resources = [
        AlteredResource(
            resource.resource_type,
            resource.resource_name,
            [SettingOperation(config.name, SET, config.value) for config in resource.configs],
            replaces=True,
        )
        for resource in request.resources
    ]
    outcomes = await broker.in_pool(_alter_all, broker, resources, context, request.validate_only)
    return AlterConfigsResponse(
        responses=tuple(
            alter_messages.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            for resource, (code, message) in zip(resources, outcomes, strict=True)
        )
    )


def _alter_all(
    broker: Broker, resources: Sequence[AlteredResource], context: RequestContext, validate_only: bool
) -> list[tuple[int, str | None]]:
    """Alter the resources one by one: an error of one does not affect the others. Returns (error code,
    message for the client or None) for each resource."""
    times = Counter((resource.type, resource.name) for resource in resources)
    outcomes = list[tuple[int, str | None]]()
    for resource in resources:
        try:
            if times[resource.type, resource.name] > 1:
                raise RequestRefusedError(Code.INVALID_REQUEST, "Each resource must appear at most once.")
            _alter(broker, resource, context, validate_only=validate_only)
            outcomes.append((Code.NONE, None))
        except UnknownTopicError as error:
            outcomes.append((error.error_code, f"The topic '{resource.name}' does not exist."))
        except Exception as error:
            code, is_unknown = code_of(error), isinstance(error, UnknownConfigError)
            if resource.type == BROKER and isinstance(error, InvalidConfigError) and not is_unknown:
                code = Code.INVALID_REQUEST  # as Kafka answers for brokers
            outcomes.append((code, message_with_advice_of(error)))
    return outcomes


def _alter(
    broker: Broker, resource: AlteredResource, context: RequestContext, *, validate_only: bool
) -> None:
    """Alter one resource. Raises RequestRefusedError, SiltstoneError, OSError."""
    name = resource.name
    if resource.type == TOPIC:
        _refuse_bad_changes(resource)
        _alter_topic(broker, resource, context, validate_only=validate_only)
    elif resource.type == BROKER:
        if name:
            _refuse_other_node(broker, name, "Node id must be an integer, but it is: ", "expected {}")
        _refuse_bad_changes(resource)
        _alter_broker(broker, resource, context, validate_only=validate_only)
    elif resource.type == BROKER_LOGGER and not resource.replaces:
        _refuse_other_node(broker, name, "Node id must be an integer, but it is: ", "expected {}")
        if resource.changes:
            reason = f"Logger {resource.changes[0].name} does not exist!"
            raise RequestRefusedError(Code.INVALID_CONFIG, reason)
    else:
        raise RequestRefusedError(Code.INVALID_REQUEST, f"Unknown resource type {resource.type}")


def _refuse_bad_changes(resource: AlteredResource) -> None:
    """Raises RequestRefusedError for changes that no type of resource allows."""
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
        if (
            max(len(text.encode("utf-8", "surrogatepass")) for text in (change.name, change.value or ""))
            > TEXT_BYTES_MAX
        ):
            reason = f"The name or the value of {change.name[:100]} is longer than {TEXT_BYTES_MAX} bytes"
            raise RequestRefusedError(Code.INVALID_CONFIG, reason)


def _alter_topic(
    broker: Broker, resource: AlteredResource, context: RequestContext, *, validate_only: bool
) -> None:
    """Alter a topic. Of several errors the first in Kafka's order is raised: an operation on a list, the
    topic's name, a setting, a topic that does not exist."""
    manager, name = broker.manager, resource.name
    with manager.creation_or_deletion_lock:  # APPEND and SUBTRACT read the settings that they change
        before: Mapping[str, str] = {}
        with contextlib.suppress(UnknownTopicError, InvalidTopicError):  # raised below, in Kafka's order
            before = manager.topics.describe(name).config
        settings = manager.topics.settings(name)
        set_to, removed = _resulting_changes(
            resource, before, lambda key: _as_list(settings[find_topic_key(key).name]), _topic_kind
        )
        if not name:
            raise RequestRefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
        refuse_bad_name(name)
        refuse_tiered(set_to)
        # Called for its errors: Kafka reports a bad setting even if the topic does not exist.
        altered_settings(name, before, set_to, removed, manager.config)
        administration.alter_settings(
            broker.served, actor_of(context), name, set_to, removed, validate_only=validate_only
        )


def _alter_broker(
    broker: Broker, resource: AlteredResource, context: RequestContext, *, validate_only: bool
) -> None:
    """Alter the settings of this broker, or those for all brokers."""
    of_all = not resource.name  # the empty name: the settings for all brokers
    # Of the settings before the change only the names are needed (``_resulting_changes``).
    before = dict.fromkeys(broker.config.layer(dynamic_source(of_all=of_all)), "")

    def current_list(name: str) -> list[str]:
        entries = {entry.name: entry.value for entry in broker_entries(broker.config)}
        value = entries[name]
        return value.split(",") if value else []

    set_to, removed = _resulting_changes(resource, before, current_list, broker_settings.kind_of)
    broker_settings.alter_dynamic(
        broker.served, actor_of(context), set_to, removed, of_all=of_all, validate_only=validate_only
    )


def _topic_kind(name: str) -> Kind | None:
    """The type of a topic's setting; None for an unknown name."""
    try:
        return find_topic_key(name).kind
    except UsageError:
        return None


def _as_list(value: object) -> list[str]:
    """The items of a setting whose type is LIST, of which a ``Config`` has a tuple."""
    assert isinstance(value, tuple)
    return list(value)


def _resulting_changes(
    resource: AlteredResource,
    before: Mapping[str, str],
    current_list: Callable[[str], list[str]],
    kind_of: Callable[[str], Kind | None],
) -> tuple[dict[str, str], list[str]]:
    """All changes of a resource as (values to set by name, names to remove). APPEND and SUBTRACT become the
    value of the changed list. As in Kafka, DELETE of a setting that is not set is no error.

    ``before``: the settings that the resource has now; ``current_list``: the items of a list setting now, its
    default included; ``kind_of``: the type of a setting, None for an unknown name. Raises
    RequestRefusedError.
    """
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
            set_to[change.name] = ",".join(_changed_list(current_list(change.name), change))
    if resource.replaces:
        removed = [name for name in before if name not in set_to]
    return set_to, removed


def _changed_list(items: Iterable[str], change: SettingOperation) -> list[str]:
    """The items of a list after APPEND or SUBTRACT."""
    operands = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.operation == APPEND:
        return list(dict.fromkeys([*items, *operands]))
    return [item for item in items if item not in operands]


# ListConfigResources


async def list_config_resources(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """The names of the resources that have settings. Version 0 lists subscriptions of client metrics only,
    and there are none."""
    if context.version < _FIRST_VERSION_WITH_TYPES:
        return ListConfigResourcesResponse()
    types = set(request.resource_types) or _ALL_TYPES
    if not types <= _ALL_TYPES:
        return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
    resources = [
        ConfigResource(resource_name=str(broker.node_id), resource_type=resource_type)
        for resource_type in (BROKER_LOGGER, BROKER)
        if resource_type in types
    ]
    if TOPIC in types:
        names = await broker.in_pool(broker.manager.topics.names)
        resources += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in names]
    return ListConfigResourcesResponse(config_resources=tuple(resources))
