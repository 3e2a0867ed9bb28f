"""Shows and changes the quotas of users, clients and addresses: those of an open server, and those of the log
directories of a stopped broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone.base.errors import InvalidQuotaError, UsageError
from siltstone.base.records.metadata import QuotaEntity
from siltstone.commands.changes import Actor
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.served import Served
from siltstone.runtime.quotas import (
    CLIENT_ID,
    IP,
    USER,
    EntityMatch,
    Quotas,
    altered_values,
    checked_entity,
    matching,
    with_values,
)

ENTITY_TYPES: Mapping[str, str] = {"users": USER, "clients": CLIENT_ID, "ips": IP}
"""The kind of entity by its name in kafka-configs."""
_PRINTED_TYPES = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}
"""The kinds of entities as kafka-configs prints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """The quotas of an entity before and after a change."""

    entity: QuotaEntity
    before: Mapping[str, float]
    after: Mapping[str, float]


def target_of(entity: QuotaEntity) -> str:
    """How the audit log and errors name an entity: ``client-id=report user=ada``; the default entity of a
    kind has no name, as ``client-id``."""
    return " ".join(kind if name is None else f"{kind}={name}" for kind, name in entity)


def entity_text(entity: QuotaEntity) -> str:
    """An entity as kafka-configs names it: ``user-principal 'ada', the default client-id``."""
    parts = dict(entity)
    return ", ".join(
        f"the default {name}" if parts[kind] is None else f"{name} '{parts[kind]}'"
        for kind, name in _PRINTED_TYPES.items()
        if kind in parts
    )


def parse_quotas(additions: Sequence[str]) -> dict[str, float]:
    """Parse assignments such as ``producer_byte_rate=1024``. Raises UsageError."""
    values = {}
    for text in additions:
        name, equals, value = text.partition("=")
        try:
            if not equals:
                raise ValueError
            values[name.strip()] = float(value)
        except ValueError:
            raise UsageError(
                f"{text!r:.256} is not NAME=NUMBER",
                path="--add-config",
                advice="pass a quota, such as producer_byte_rate=1024",
            ) from None
    return values


def new_values(
    quotas: Quotas, entity: QuotaEntity, set_to: Mapping[str, float], remove: Sequence[str]
) -> Mapping[str, float]:
    """The quotas of an entity after a change: ``set_to`` has the new values, ``remove`` the names of quotas
    to remove. Raises InvalidQuotaError, also if a quota to remove is not set; PolicyViolationError."""
    entity = checked_entity(entity)
    missing = [name for name in remove if name not in quotas.get(entity, {})]
    if missing:
        raise InvalidQuotaError(
            f"{', '.join(missing)} cannot be removed: it is not set",
            path=target_of(entity),
            advice="siltstone configs --describe shows what is set",
        )
    return altered_values(quotas, entity, {**dict.fromkeys(remove), **set_to})


# In log directories


def describe(directories: BrokerDirectories, matches: Sequence[EntityMatch]) -> Quotas:
    """The quotas of the entities that have exactly the parts in ``matches`` (``strict`` in
    DescribeClientQuotas). Takes no lock. Raises SiltstoneError, OSError."""
    snapshot = directories.snapshot()
    quotas = snapshot.registry.effective_quotas(snapshot.settings.cluster)
    return matching(quotas, matches, strict=True)


def alter_in_directories(
    directories: BrokerDirectories,
    entity: QuotaEntity,
    set_to: Mapping[str, float],
    remove: Sequence[str],
    *,
    dry_run: bool,
) -> QuotaChange:
    """Set and remove quotas of an entity in the directories of a stopped broker; ``dry_run``: change nothing.
    Raises InvalidQuotaError, PolicyViolationError, SiltstoneError, OSError."""
    # The change is first checked without a lock, so that a dry run and a refused change touch nothing.
    snapshot = directories.snapshot()
    quotas = snapshot.registry.effective_quotas(snapshot.settings.cluster)
    after = new_values(quotas, entity, set_to, remove)
    if not dry_run:
        with directories.open() as manager:
            quotas = manager.topics.quotas
            after = new_values(quotas, entity, set_to, remove)
            manager.topics.replace_quotas(with_values(quotas, entity, after))
    return QuotaChange(entity=entity, before=quotas.get(entity, {}), after=after)


# In an open server


def alter(
    served: Served,
    actor: Actor,
    entity: QuotaEntity,
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set the quotas in ``changes`` for an entity, and remove those whose value is None; the audit log has
    the change. ``validate_only``: change nothing. Raises InvalidQuotaError, PolicyViolationError,
    StorageError."""
    manager = served.opened()
    with manager.creation_or_deletion_lock:
        quotas = manager.topics.quotas
        before = dict(quotas.get(entity, {}))
        after = altered_values(quotas, entity, changes)
        if validate_only or after == before:
            return
        recorded = served.opened_changes().recorded(
            actor, "alter-quotas", target_of(entity), before=before, after=after
        )
        with recorded:
            manager.topics.replace_quotas(with_values(quotas, entity, after))
