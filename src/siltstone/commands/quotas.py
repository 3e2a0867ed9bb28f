"""Quotas of users, clients and addresses: of an open server and of directories, shown and changed."""

from __future__ import annotations

from collections.abc import Mapping

from siltstone.base.records.metadata import QuotaEntity
from siltstone.commands.changes import Actor
from siltstone.commands.served import Served
from siltstone.runtime.quotas import altered_values, with_values


def target_of(entity: QuotaEntity) -> str:
    """An entity in the audit log: ``client-id=report user=ada``, without a name for the default."""
    return " ".join(kind if name is None else f"{kind}={name}" for kind, name in entity)


def alter(
    served: Served,
    actor: Actor,
    entity: QuotaEntity,
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set quotas of an entity, and remove those that are None. Raises InvalidQuotaError,
    PolicyViolationError, StorageError."""
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
