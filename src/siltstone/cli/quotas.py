"""``siltstone configs`` of users, clients and addresses: their quotas, as kafka-configs shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from siltstone.base.config import format_value, split_additions
from siltstone.base.records.metadata import QuotaEntity, quota_entity
from siltstone.cli import output
from siltstone.commands import quotas as commands
from siltstone.commands.quotas import ENTITY_TYPES, QuotaChange
from siltstone.runtime.quotas import EntityMatch, Quotas

if TYPE_CHECKING:
    from siltstone.cli.configs import ConfigsFlags


def are_for_quotas(flags: ConfigsFlags) -> bool:
    """Do the flags name users, clients or addresses, which have quotas?"""
    return flags.entity_type in ENTITY_TYPES or any(_of_flags(flags))


def _of_flags(flags: ConfigsFlags) -> Iterator[EntityMatch]:
    """The parts of the entity that ``--user``, ``--user-defaults`` and so on name."""
    for entity_type, kind in ENTITY_TYPES.items():
        flag = entity_type.removesuffix("s")
        name, is_default = getattr(flags, flag), getattr(flags, f"{flag}_defaults")
        reason = f"--{flag} and --{flag}-defaults"
        output.refuse_if(name is not None and is_default, reason, "pass one of them")
        if name is not None or is_default:
            yield EntityMatch(kind=kind, name=name)


def _matches(flags: ConfigsFlags) -> list[EntityMatch]:
    """The parts of the entity that the flags name: its user, its client id or its address. Raises
    UsageError."""
    matches = list(_of_flags(flags))
    kind = ENTITY_TYPES.get(flags.entity_type or "")
    if kind is not None:
        reason = f"--entity-type {flags.entity_type} beside a flag for the same"
        output.refuse_if(any(match.kind == kind for match in matches), reason, "pass one of them")
        name, is_default = flags.entity_name, flags.entity_default
        reason = "--entity-name and --entity-default"
        output.refuse_if(name is not None and is_default, reason, "pass one of them")
        matches.append(EntityMatch(kind=kind, name=name, is_any=name is None and not is_default))
    else:
        reason = f"--entity-type {flags.entity_type}: is not for --user, --client and --ip"
        output.refuse_if(flags.entity_type is not None, reason, "leave it out")
        reason = "--entity-name and --entity-default need a type"
        has_name = flags.entity_name is not None or flags.entity_default
        output.refuse_if(has_name, reason, f"pass --entity-type {', '.join(ENTITY_TYPES)}")
    kinds = [match.kind for match in matches]
    reason = "an address has quotas of its own, without a user or a client"
    output.refuse_if(len(kinds) > 1 and ENTITY_TYPES["ips"] in kinds, reason, "pass one of them")
    return matches


def quotas(flags: ConfigsFlags, *, as_json: bool) -> None:
    """Show or change quotas. Raises UsageError, SiltstoneError, OSError."""
    matches = _matches(flags)
    output.refuse_if(
        flags.all_, "--all is not for quotas: one that is not set has no default value", "leave it out"
    )
    output.refuse_if(
        flags.add_config_file is not None, "--add-config-file is not for quotas", "pass --add-config"
    )
    if flags.alter:
        reason = "--alter: no name"
        has_no_name = any(match.is_any for match in matches)
        output.refuse_if(has_no_name, reason, "pass --entity-name NAME or --entity-default")
        _alter(flags, quota_entity((match.kind, match.name) for match in matches), as_json=as_json)
    else:
        _show(_described(flags, matches), as_json=as_json)


def _described(flags: ConfigsFlags, matches: list[EntityMatch]) -> Quotas:
    if flags.bootstrap_server is None:
        return commands.describe(flags.broker_directories(flags.server_properties), matches)
    from siltstone.broker import remote_quotas

    with flags.quota_client() as broker:
        return remote_quotas.describe(broker, matches)


def _alter(flags: ConfigsFlags, entity: QuotaEntity, *, as_json: bool) -> None:
    additions = commands.parse_quotas([part for text in flags.add_config for part in split_additions(text)])
    remove = [name.strip() for text in flags.delete_config for name in text.split(",")]
    options = {"dry_run": flags.dry_run}
    if flags.bootstrap_server is None:
        directories = flags.broker_directories(flags.server_properties)
        change = commands.alter_in_directories(directories, entity, additions, remove, **options)
    else:
        from siltstone.broker import remote_quotas

        with flags.quota_client() as broker:
            change = remote_quotas.alter(broker, entity, additions, remove, **options)
    _show_change(change, dry_run=flags.dry_run, as_json=as_json)


def _show(quotas: Quotas, *, as_json: bool) -> None:
    if as_json:
        entities = [{"entity": dict(entity), "quotas": dict(values)} for entity, values in quotas.items()]
        output.write_json({"entities": entities})
        return
    for entity, values in quotas.items():
        texts = ", ".join(f"{name}={format_value(value)}" for name, value in values.items())
        output.write_lines(f"Quota configs for {commands.entity_text(entity)} are {texts}")


def _show_change(change: QuotaChange, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        changed = {"before": dict(change.before), "after": dict(change.after)}
        output.write_json({"action": "alter", "dry_run": dry_run, "entity": dict(change.entity), **changed})
        return
    done = "Would complete" if dry_run else "Completed"
    parts = dict(change.entity)
    entity_type, kind = next((name, kind) for name, kind in ENTITY_TYPES.items() if kind in parts)
    if parts[kind] is None:
        output.write_lines(f"{done} updating default config for {entity_type} in the cluster.")
    else:
        output.write_lines(f"{done} updating config for {entity_type.removesuffix('s')} {parts[kind]}.")
