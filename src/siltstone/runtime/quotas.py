"""Quotas: how much users, clients and addresses may take of a broker (KIP-13, 55, 124, 546, 599, 612).

::

    entity (kind, name or None for all others)        values
    user=ada                                          producer_byte_rate=1048576.0
    client-id=report user=ada                         consumer_byte_rate=…, request_percentage=50.0
    client-id (default)                               controller_mutation_rate=…
    ip=192.0.2.7                                      connection_creation_rate=10.0

The quotas are kept in the registry of topics (``runtime.topics``), or come from the metadata log of a
Kafka's directory; ``broker.quotas`` enforces them. Everything here is pure. Corresponds to Kafka's
``ClientQuotaControlManager`` and ``ClientQuotasImage``.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from siltstone.base.config import INT_MAX
from siltstone.base.config_table import LONG_MAX
from siltstone.base.errors import InvalidQuotaError, PolicyViolationError
from siltstone.base.records.metadata import QuotaEntity, quota_entity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
ENTITIES_MAX = 10_000
"""The most entities with quotas: all of them are written with each change."""
NAME_MAX = 1_024
"""The longest name of an entity."""
_NO_LIMIT = "remove the quota for no limit"
_EPSILON = 1e-6
"""A number that differs from a whole one by at most this counts as whole, as in Kafka."""
Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]
"""The values of each entity that has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKey:
    """A kind of quota. ``maximum``: the largest value, which is a whole number; None: there is no largest
    value, and a fraction is allowed. ``doc``: its description. ``is_of_addresses``: for addresses, not for
    users and clients."""

    name: str
    maximum: int | None
    doc: str
    is_of_addresses: bool = False


QUOTA_KEYS: Mapping[str, QuotaKey] = {
    key.name: key
    for key in (
        QuotaKey(name=CONSUMER_BYTE_RATE, maximum=LONG_MAX, doc="bytes of responses to Fetch a second"),
        QuotaKey(name=CONTROLLER_MUTATION_RATE, maximum=None, doc="partitions created or deleted a second"),
        QuotaKey(name=REQUEST_PERCENTAGE, maximum=None, doc="time of requests, in percent of one thread"),
        QuotaKey(name=PRODUCER_BYTE_RATE, maximum=LONG_MAX, doc="bytes of Produce requests a second"),
        QuotaKey(
            name=CONNECTION_CREATION_RATE,
            maximum=INT_MAX,
            doc="new connections a second",
            is_of_addresses=True,
        ),
    )
}
"""All kinds of quotas by name, in the order in which Kafka lists them."""


class QuotaEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entity and its values, as a file has them."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


def to_entries(quotas: Quotas) -> tuple[QuotaEntry, ...]:
    """Quotas as a file has them."""
    return tuple(
        QuotaEntry(entity=dict(entity), values=dict(values)) for entity, values in ordered(quotas).items()
    )


def from_entries(entries: Iterable[QuotaEntry]) -> Quotas:
    """Quotas of a file."""
    return {quota_entity(entry.entity.items()): dict(entry.values) for entry in entries if entry.values}


def ordered(quotas: Quotas) -> Quotas:
    """The same quotas, sorted by entity, a default before names; the values in Kafka's order."""
    orders = {name: order for order, name in enumerate(QUOTA_KEYS)}
    return {
        entity: dict(sorted(values.items(), key=lambda item: (orders.get(item[0], len(orders)), item[0])))
        for entity, values in sorted(
            quotas.items(), key=lambda item: [(kind, name is not None, name or "") for kind, name in item[0]]
        )
    }


def checked_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity with these (kind, name) parts; the name None is the default's. Raises InvalidQuotaError for
    an entity that can have no quota."""
    if not parts:
        raise InvalidQuotaError("a quota needs a user, a client id or an address")
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidQuotaError(f"{kind!r:.100} is no kind of entity", advice="user, client-id or ip")
        if name == "":
            raise InvalidQuotaError(f"the name of a {kind} is empty", advice="leave it out for the default")
        if name is not None and len(name) > NAME_MAX:
            raise InvalidQuotaError(f"the name of a {kind} is longer than {NAME_MAX} characters")
    entity = quota_entity(parts)
    kinds = dict(entity)
    if IP in kinds and len(kinds) > 1:
        raise InvalidQuotaError("an address has quotas of its own, without a user or a client id")
    address = kinds.get(IP)
    if address is not None and not is_address(address):
        raise InvalidQuotaError(f"{address!r:.100} is no address", advice="pass an IPv4 or IPv6 address")
    return entity


def is_address(text: str) -> bool:
    """Is this an IPv4 or an IPv6 address?"""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def altered_values(
    quotas: Quotas, entity: QuotaEntity, changes: Mapping[str, float | None]
) -> Mapping[str, float]:
    """An entity's values after ``changes`` (name → value, None: remove it). To remove a value that is not set
    is no error. Raises InvalidQuotaError, PolicyViolationError."""
    values = dict(quotas.get(entity, {}))
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        else:
            _refuse_bad_value(entity, name, value)
            values[name] = value
    if values and entity not in quotas and len(quotas) >= ENTITIES_MAX:
        raise PolicyViolationError(
            f"{ENTITIES_MAX} entities have quotas already", advice="remove some, or set defaults"
        )
    return values


def with_values(quotas: Quotas, entity: QuotaEntity, values: Mapping[str, float]) -> Quotas:
    """Quotas with these values of one entity; without any it is not listed."""
    others = {other: kept for other, kept in quotas.items() if other != entity}
    return {**others, entity: values} if values else others


def _refuse_bad_value(entity: QuotaEntity, name: str, value: float) -> None:
    key = QUOTA_KEYS.get(name)
    if key is None or key.is_of_addresses != (IP in dict(entity)):
        kinds = " and ".join(dict(entity))
        raise InvalidQuotaError(f"{name!r:.100} is no quota of {kinds}", advice=_names_for(entity))
    if not math.isfinite(value) and key.maximum is None:
        raise InvalidQuotaError(f"the value {value} of {name} is no number", advice=_NO_LIMIT)
    if not value > 0:
        raise InvalidQuotaError(f"the value {value} of {name} is not over 0", advice=_NO_LIMIT)
    if key.maximum is not None:
        if value > key.maximum:
            raise InvalidQuotaError(f"the value {value} of {name} is over {key.maximum}")
        if abs(value - round(value)) > _EPSILON:
            raise InvalidQuotaError(f"the value {value} of {name} is no whole number")


def _names_for(entity: QuotaEntity) -> str:
    names = (name for name, key in QUOTA_KEYS.items() if key.is_of_addresses == (IP in dict(entity)))
    return ", ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityMatch:
    """A condition on one part of an entity. ``is_any``: whatever its name, also the default; else ``name``,
    None for the default."""

    kind: str
    name: str | None = None
    is_any: bool = False

    def accepts(self, entity: Mapping[str, str | None]) -> bool:
        """Has an entity such a part?"""
        return self.kind in entity and (self.is_any or entity[self.kind] == self.name)


def matching(quotas: Quotas, matches: Sequence[EntityMatch], *, strict: bool) -> Quotas:
    """The quotas of the entities that have all these parts; ``strict``: and no others. In order."""
    return {
        entity: values
        for entity, values in ordered(quotas).items()
        if all(match.accepts(dict(entity)) for match in matches)
        and not (strict and len(entity) != len(matches))
    }
