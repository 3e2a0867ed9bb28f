"""Quotas of users, clients and addresses: set, removed, described, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.side import (
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    Side,
)

USER, CLIENT, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, CONSUME, REQUEST, MUTATION = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
CONNECTIONS = "connection_creation_rate"


def entity_of(**names: str | None) -> list[Message]:
    """An entity of its parts; None: the default."""
    return [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in names.items()]


def _entry(entity: list[Message], *ops: tuple[str, float | None]) -> Message:
    changes = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops]
    return {"entity": entity, "ops": changes}


def alter_quietly(side: Side, *changes: tuple[list[Message], str, float | None]) -> None:
    """Set quotas, or remove them, without an answer to compare."""
    entries = [_entry(entity, (key, value)) for entity, key, value in changes]
    answer = side.quietly(ALTER_CLIENT_QUOTAS, 1, entries=entries)
    assert not any(entry["error_code"] for entry in answer["entries"]), answer


def _component(kind: str, match_type: int, match: str | None = None) -> Message:
    return {"entity_type": kind, "match_type": match_type, "match": match}


def _alter(side: Side, what: str, version: int, **message: Any) -> None:
    """Ask, and keep the answer by entity."""
    answer = side.quietly(ALTER_CLIENT_QUOTAS, version, **message)
    by_entity = {
        _label(entry["entity"]): {"code": entry["error_code"], "error_message": entry["error_message"]}
        for entry in answer["entries"]
    }
    side.keep(f"{what} v{version}", {**answer, "entries": by_entity})
    side.asked.add((ALTER_CLIENT_QUOTAS, version))


def _label(entity: list[Message]) -> str:
    parts = sorted((part["entity_type"], part["entity_name"] or "") for part in entity)
    return " ".join(f"{kind}={name}" for kind, name in parts)


def alter_client_quotas(side: Side, versions: range) -> None:
    """What is taken, then described; and what is refused."""
    for version in versions:
        _refused(side, version)
        name = f"altered-{version}"
        entries = [
            _entry(entity_of(user=name), (PRODUCE, 1000.0), (CONSUME, 2000.0), (REQUEST, 12.5)),
            _entry(entity_of(client_id=name), (MUTATION, 2.5)),
            _entry(entity_of(user=name, client_id=None), (PRODUCE, 5.0)),
            _entry(entity_of(ip="192.0.2.7"), (CONNECTIONS, 7.0)),
        ]
        _alter(side, "set, checked", version, entries=entries, validate_only=True)
        _alter(side, "set", version, entries=entries)
        _described_when(
            side, f"after set v{version}", {f"user={name}": {PRODUCE: 1000.0, CONSUME: 2000.0, REQUEST: 12.5}}
        )
        changes = [
            _entry(entity_of(user=name), (PRODUCE, 1500.0), (CONSUME, None), (MUTATION, None)),
            _entry(entity_of(client_id="altered-nothing"), (PRODUCE, None)),
            _entry(entity_of(user=name, client_id=None), (PRODUCE, None)),
        ]
        _alter(side, "changed", version, entries=changes)
        _described_when(side, f"after changed v{version}", {f"user={name}": {PRODUCE: 1500.0, REQUEST: 12.5}})
        without_rate = _entry(entity_of(user=name), (REQUEST, None))
        _alter(
            side,
            "entity twice",
            version,
            entries=[without_rate, _entry(entity_of(user=name), (PRODUCE, None))],
        )
        # Kafka's answers come before its changes are seen, but these are seen in order.
        alter_quietly(side, (entity_of(client_id=name), MUTATION, 3.0))
        _described_when(side, f"after twice v{version}", {f"client-id={name}": {MUTATION: 3.0}})
        _alter(side, "nothing", version, entries=[])
        _alter(side, "no changes", version, entries=[_entry(entity_of(user=name))])
        partly = [
            _entry(entity_of(user="altered-partly"), (PRODUCE, 9.0)),
            _entry(entity_of(user="altered-partly-2"), ("no.such", 9.0)),
        ]
        _alter(side, "partly", version, entries=partly)
        _removed(side, name)


def _refused(side: Side, version: int) -> None:
    bad = "altered-bad"
    cases = {
        "no entity": _entry([], (PRODUCE, 1.0)),
        "unknown type": _entry(entity_of(group=bad), (PRODUCE, 1.0)),
        "empty type": _entry([{"entity_type": "", "entity_name": bad}], (PRODUCE, 1.0)),
        "empty name": _entry(entity_of(user=""), (PRODUCE, 1.0)),
        "empty address": _entry(entity_of(ip=""), (CONNECTIONS, 1.0)),
        "type twice": _entry([*entity_of(user=bad), *entity_of(user=bad)], (PRODUCE, 1.0)),
        "address and user": _entry(entity_of(user=bad, ip="192.0.2.1"), (PRODUCE, 1.0)),
        "address and user 2": _entry(entity_of(user=bad, ip="192.0.2.1"), (CONNECTIONS, 1.0)),
        "unknown key": _entry(entity_of(user=bad), ("no.such", 1.0)),
        "unknown key removed": _entry(entity_of(user=bad), ("no.such", None)),
        "a key of addresses": _entry(entity_of(user=bad), (CONNECTIONS, 1.0)),
        "a key of clients": _entry(entity_of(ip="192.0.2.1"), (PRODUCE, 1.0)),
        "a client's fraction": _entry(entity_of(client_id=bad), (CONSUME, 0.5)),
        "no address": _entry(entity_of(ip="no such address"), (CONNECTIONS, 1.0)),
        "IPv6": _entry(entity_of(ip="2001:db8::1"), (CONNECTIONS, 1.0)),
        "bad IPv4": _entry(entity_of(ip="300.1.2.3"), (CONNECTIONS, 1.0)),
        "zero": _entry(entity_of(user=bad), (PRODUCE, 0.0)),
        "negative": _entry(entity_of(user=bad), (PRODUCE, -1.0)),
        "fraction": _entry(entity_of(user=bad), (PRODUCE, 1.5)),
        "small fraction": _entry(entity_of(user=bad), (PRODUCE, 1.0000001)),
        "fraction of connections": _entry(entity_of(ip="192.0.2.1"), (CONNECTIONS, 1.5)),
        "connections beyond int32": _entry(entity_of(ip="192.0.2.1"), (CONNECTIONS, 3e9)),
        "beyond int64": _entry(entity_of(user=bad), (PRODUCE, 1e19)),
        "largest": _entry(entity_of(user=bad), (PRODUCE, 9.2e18)),
        "request fraction": _entry(entity_of(user=bad), (REQUEST, 0.001)),
        "request zero": _entry(entity_of(user=bad), (REQUEST, 0.0)),
        "no number": _entry(entity_of(user=bad), (REQUEST, float("nan"))),
        "infinite": _entry(entity_of(user=bad), (REQUEST, float("inf"))),
        "infinite bytes": _entry(entity_of(user=bad), (PRODUCE, float("inf"))),
        "key twice": _entry(entity_of(user=bad), (PRODUCE, 1.0), (PRODUCE, 2.0)),
        "key twice, removed": _entry(entity_of(user=bad), (PRODUCE, 1.0), (PRODUCE, None)),
        "strange name": _entry(entity_of(user="a b/%ü"), (PRODUCE, 1.0)),
        "zero connections": _entry(entity_of(ip="192.0.2.1"), (CONNECTIONS, 0.0)),
        "default address": _entry(entity_of(ip=None), (CONNECTIONS, 100.0)),
        "a host": _entry(entity_of(ip="localhost"), (CONNECTIONS, 100.0)),
        "long name": _entry(entity_of(user="x" * 300), (PRODUCE, 1.0)),
    }
    for what, entry in cases.items():
        _alter(side, what, version, entries=[entry], validate_only=True)


def describe_client_quotas(side: Side, versions: range) -> None:
    """Filters of every kind over the same quotas."""
    alice, bob, cli = "described-a", "described-b", "described-c"
    entries = [
        _entry(entity_of(user=alice), (PRODUCE, 1000.0), (REQUEST, 12.5)),
        _entry(entity_of(user=alice, client_id=cli), (PRODUCE, 2000.0)),
        _entry(entity_of(user=alice, client_id=None), (PRODUCE, 3000.0)),
        _entry(entity_of(user=None), (CONSUME, 1e15)),
        _entry(entity_of(user=None, client_id=cli), (CONSUME, 1e15)),
        _entry(entity_of(user=None, client_id=None), (CONSUME, 1e15)),
        _entry(entity_of(client_id=cli), (CONSUME, 1e15)),
        _entry(entity_of(client_id=None), (CONSUME, 1e15)),
        _entry(entity_of(user=bob), (MUTATION, 0.5)),
        _entry(entity_of(ip="192.0.2.9"), (CONNECTIONS, 9.0)),
        _entry(entity_of(ip=None), (CONNECTIONS, 1e9)),
    ]
    answer = side.quietly(ALTER_CLIENT_QUOTAS, 1, entries=entries)
    assert not any(entry["error_code"] for entry in answer["entries"]), answer

    def are_visible() -> bool:
        answer = side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])
        return len(quotas_in(answer)) >= len(entries)

    side.until(are_visible, "quotas")
    kinds: dict[str, tuple[Any, ...]] = {
        "user": (_component(USER, EXACT, alice),),
        "other user": (_component(USER, EXACT, "described-nobody"),),
        "default user": (_component(USER, DEFAULT),),
        "any user": (_component(USER, ANY),),
        "client": (_component(CLIENT, EXACT, cli),),
        "default client": (_component(CLIENT, DEFAULT),),
        "any client": (_component(CLIENT, ANY),),
        "user and client": (_component(USER, EXACT, alice), _component(CLIENT, EXACT, cli)),
        "client and user": (_component(CLIENT, EXACT, cli), _component(USER, EXACT, alice)),
        "user and any client": (_component(USER, EXACT, alice), _component(CLIENT, ANY)),
        "any and any": (_component(USER, ANY), _component(CLIENT, ANY)),
        "default and default": (_component(USER, DEFAULT), _component(CLIENT, DEFAULT)),
        "address": (_component(IP, EXACT, "192.0.2.9"),),
        "default address": (_component(IP, DEFAULT),),
        "any address": (_component(IP, ANY),),
        "all": (),
        "address and user": (_component(IP, ANY), _component(USER, ANY)),
        "unknown type": (_component("group", ANY),),
        "empty type": (_component("", ANY),),
        "unknown match": (_component(USER, 7),),
        "exact null": (_component(USER, EXACT, None),),
        "default with a name": (_component(USER, DEFAULT, alice),),
        "any with a name": (_component(USER, ANY, alice),),
        "type twice": (_component(USER, EXACT, alice), _component(USER, EXACT, bob)),
        "empty name": (_component(USER, EXACT, ""),),
    }
    for version in versions:
        for what, components in kinds.items():
            for strict in (False, True):
                filters = {"components": list(components), "strict": strict}
                described = side.quietly(DESCRIBE_CLIENT_QUOTAS, version, **filters)
                side.keep(
                    f"{what}{' strictly' * strict} v{version}",
                    described if "closed" in described else without_order(described),
                )
        side.asked.add((DESCRIBE_CLIENT_QUOTAS, version))
    for name in (alice, bob, cli, None, "192.0.2.9"):
        _removed(side, name)


def quotas_in(answer: Message) -> dict[str, dict[str, float]]:
    """Quotas of this script by entity, ``user=a client-id=`` (the empty name: the default)."""
    quotas = {}
    for entry in answer["entries"] or ():
        quotas[_label(entry["entity"])] = {value["key"]: value["value"] for value in entry["values"]}
    return quotas


def without_order(answer: Message) -> Message:
    """An answer without the order of its entries."""
    return {
        **answer,
        "has entries": answer["entries"] is not None,
        "entries": dict(sorted(quotas_in(answer).items())),
    }


def _described_when(side: Side, what: str, expected: dict[str, dict[str, float]]) -> None:
    def are_visible() -> bool:
        quotas = quotas_in(side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[]))
        return all(quotas.get(name, {}) == values for name, values in expected.items())

    side.until(are_visible, what)
    side.keep(what, without_order(side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])))


def _removed(side: Side, name: str | None) -> None:
    """Remove the quotas of all entities with a name, and wait until they are gone."""
    label = "" if name is None else name
    entries = side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])["entries"] or ()
    removals = [
        {
            "entity": entry["entity"],
            "ops": [{"key": v["key"], "value": 0.0, "remove": True} for v in entry["values"]],
        }
        for entry in entries
        if any((part["entity_name"] or "") == label for part in entry["entity"])
    ]
    side.quietly(ALTER_CLIENT_QUOTAS, 1, entries=removals)

    def are_removed() -> bool:
        remaining = quotas_in(side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[]))
        return not any(part.partition("=")[2] == label for entity in remaining for part in entity.split())

    side.until(are_removed, f"the end of the quotas of {label}")


def describe_user_scram_credentials(side: Side, versions: range) -> None:
    """Nobody has a password."""
    for version in versions:
        cases: dict[str, Any] = {
            "all": None,
            "none": [],
            "one": [{"name": "scram-a"}],
            "two": [{"name": "scram-a"}, {"name": "scram-b"}],
            "twice": [{"name": "scram-a"}, {"name": "scram-a"}, {"name": "scram-b"}],
            "empty": [{"name": ""}],
        }
        for what, users in cases.items():
            side.ask(what, DESCRIBE_USER_SCRAM_CREDENTIALS, version, users=users)
