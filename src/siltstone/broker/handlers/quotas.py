"""The handlers of DescribeClientQuotas (versions 0 to 1), AlterClientQuotas (0 to 1) and
DescribeUserScramCredentials (0); in Kafka ``ClientQuotaControlManager``, ``ClientQuotasImage`` and
``ScramImage``.

A change is durable, and enforced, before the response is sent. Each entity of a request is altered, or fails,
on its own. This broker stores no passwords, so it has no SCRAM credentials of any user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from siltstone.broker.errors import Code, RequestRefusedError, code_of, message_with_advice_of
from siltstone.broker.handlers.topics import actor_of
from siltstone.broker.request_context import RequestContext
from siltstone.broker.store import Broker
from siltstone.broker.wire.messages import alter_client_quotas as alter_messages
from siltstone.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ResponseEntryData,
)
from siltstone.broker.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from siltstone.broker.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from siltstone.commands import quotas as commands
from siltstone.runtime.quotas import CLIENT_ID, IP, USER, EntityMatch, checked_entity, matching

EXACT, DEFAULT, ANY = range(3)
"""How a component of the filter matches (``DescribeClientQuotasRequest.MATCH_TYPE_*``)."""
_Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""An entity, as (kind, name) pairs, such as (("user", "alice"), ("client-id", None)); None: the default."""
ENTRIES_MAX = 1_000
"""The most entities that one request alters: each is written to all log directories."""


def describe_client_quotas(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that match the request's filter."""
    try:
        matches = _matches(request.components)
    except RequestRefusedError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.reason, entries=None)
    entities = matching(broker.manager.topics.quotas, matches, strict=request.strict)
    return DescribeClientQuotasResponse(
        entries=tuple(
            EntryData(
                entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
                values=tuple(ValueData(key=key, value=value) for key, value in values.items()),
            )
            for entity, values in entities.items()
        )
    )


def _matches(components: Sequence[ComponentData]) -> list[EntityMatch]:
    """The matches of a request's filter. Raises RequestRefusedError for a filter that is not valid."""
    matches = dict[str, EntityMatch]()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise RequestRefusedError(Code.INVALID_REQUEST, "a component of the filter has no entity type")
        if kind in matches:
            raise RequestRefusedError(Code.INVALID_REQUEST, f"the filter names {kind:.100} twice")
        if kind not in (USER, CLIENT_ID, IP):
            raise RequestRefusedError(Code.UNSUPPORTED_VERSION, f"the entity type {kind:.100} is unknown")
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise RequestRefusedError(Code.INVALID_REQUEST, f"there is no match type {component.match_type}")
        if (component.match_type == EXACT) == (component.match is None):
            raise RequestRefusedError(
                Code.INVALID_REQUEST, "an exact match needs a name, and the other matches take none"
            )
        matches[kind] = EntityMatch(kind=kind, name=component.match, is_any=component.match_type == ANY)
    if IP in matches and len(matches) > 1:
        raise RequestRefusedError(Code.INVALID_REQUEST, "an ip cannot be combined with a user or a client id")
    return list(matches.values())


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas."""
    return await broker.in_pool(_alter_all, broker, request, context)


def _alter_all(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    times = Counter(_entity_of(entry) for entry in request.entries)
    responses = dict[_Entity, ResponseEntryData]()
    for entry in request.entries:
        entity = _entity_of(entry)
        if entity in responses:  # named before: one result says so
            continue
        try:
            if len(times) > ENTRIES_MAX:
                raise RequestRefusedError(Code.POLICY_VIOLATION, f"more than {ENTRIES_MAX} entities")
            if times[entity] > 1 or len({change.key for change in entry.ops}) < len(entry.ops):
                raise RequestRefusedError(
                    Code.INVALID_REQUEST, "the request has an entity, or a quota of it, twice"
                )
            _alter(broker, entry, context, validate_only=request.validate_only)
            code, message = int(Code.NONE), None
        except Exception as error:  # one entity's error is not the others'
            code, message = code_of(error), message_with_advice_of(error)
        responses[entity] = _response_entry(entity, code, message)
    return AlterClientQuotasResponse(entries=tuple(responses.values()))


def _entity_of(entry: alter_messages.EntryData) -> _Entity:
    """The entity of an entry, sorted by kind: an entity is the same in any order. A kind that is listed twice
    has the later name, as in Kafka."""
    by_kind = {part.entity_type: part.entity_name for part in entry.entity}
    return tuple((kind, by_kind[kind]) for kind in sorted(by_kind))


def _response_entry(entity: _Entity, code: int, message: str | None) -> ResponseEntryData:
    return ResponseEntryData(
        error_code=code,
        error_message=message,
        entity=tuple(alter_messages.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
    )


def _alter(
    broker: Broker, entry: alter_messages.EntryData, context: RequestContext, *, validate_only: bool
) -> None:
    """Alter the quotas of one entity. Raises InvalidQuotaError, PolicyViolationError, StorageError."""
    changes = {change.key: None if change.remove else change.value for change in entry.ops}
    entity = checked_entity(_entity_of(entry))
    commands.alter(broker.served, actor_of(context), entity, changes, validate_only=validate_only)
    if not validate_only:
        broker.quotas.replace(broker.manager.topics.quotas)


def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """No user has credentials: an error for each user that the request names, and no row if it asks for all
    users."""
    times = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        results=tuple(
            DescribeUserScramCredentialsResult(
                user=name,
                error_code=Code.DUPLICATE_RESOURCE if count > 1 else Code.RESOURCE_NOT_FOUND,
                error_message="the user is named twice" if count > 1 else "there is no such user",
            )
            for name, count in times.items()
        )
    )
