"""Describes and alters the quotas of a running broker, by Kafka's protocol. (``commands.quotas`` does the
same in directories.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from siltstone.base.errors import BrokerRefusedError, InvalidQuotaError, LogError, PolicyViolationError
from siltstone.base.records.metadata import QuotaEntity, quota_entity
from siltstone.broker.errors import Code
from siltstone.broker.plain_client import PlainClient
from siltstone.broker.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from siltstone.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from siltstone.broker.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from siltstone.commands.quotas import QuotaChange, new_values, target_of
from siltstone.runtime.quotas import EntityMatch, Quotas, ordered

_EXACT, _DEFAULT, _ANY = range(3)
"""Match types of DescribeClientQuotas."""
_ERRORS_BY_CODE: Mapping[int, type[LogError]] = {
    kind.error_code: kind for kind in (InvalidQuotaError, PolicyViolationError)
}
"""The errors that ``commands.quotas`` raises for directories, too, by Kafka's error code."""


def describe(broker: PlainClient, matches: Sequence[EntityMatch]) -> Quotas:
    """The quotas of the entities that have exactly the kinds of ``matches``, and match each of them. Raises
    BrokerUnreachableError, BrokerRefusedError."""
    components = tuple(
        ComponentData(
            entity_type=match.kind,
            match_type=_ANY if match.is_any else _DEFAULT if match.name is None else _EXACT,
            match=None if match.is_any else match.name,
        )
        for match in matches
    )
    response = broker.ask(
        DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(components=components, strict=True)
    )
    if response.error_code:
        raise _error(response.error_code, response.error_message)
    return ordered(
        {
            quota_entity((part.entity_type, part.entity_name) for part in entry.entity): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }
    )


def alter(
    broker: PlainClient,
    entity: QuotaEntity,
    set_to: Mapping[str, float],
    remove: Sequence[str],
    *,
    dry_run: bool,
) -> QuotaChange:
    """Set and remove quotas of an entity. ``dry_run``: the broker only validates. Raises InvalidQuotaError,
    PolicyViolationError, BrokerUnreachableError, BrokerRefusedError."""
    # The response does not have the quotas: what they were before is asked for, and what they are after the
    # change is computed.
    before = describe(broker, [EntityMatch(kind=kind, name=name) for kind, name in entity]).get(entity, {})
    after = new_values({entity: before}, entity, set_to, remove)
    parts = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    changes = (
        *(OpData(key=key, value=value) for key, value in set_to.items()),
        *(OpData(key=key, remove=True) for key in remove),
    )
    request = AlterClientQuotasRequest(entries=(EntryData(entity=parts, ops=changes),), validate_only=dry_run)
    response = broker.ask(ALTER_CLIENT_QUOTAS, request)
    for entry in response.entries:
        if entry.error_code:
            raise _error(entry.error_code, entry.error_message, target_of(entity))
    return QuotaChange(entity=entity, before=before, after=after)


def _error(code: int, message: str | None, path: str | None = None) -> LogError | BrokerRefusedError:
    """The error to raise for the error code and message of a response."""
    code_name = Code(code).name if code in list(Code) else str(code)
    reason = message or code_name
    kind = _ERRORS_BY_CODE.get(code)
    if kind is None:
        return BrokerRefusedError(f"{reason} ({code_name})", path=path)
    return kind(reason, path=path)
