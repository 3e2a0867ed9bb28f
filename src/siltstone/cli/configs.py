"""``siltstone configs``: settings of topics and brokers, as kafka-configs has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from siltstone.base.config import Config, ConfigSource, split_additions
from siltstone.cli import output
from siltstone.cli.quotas import are_for_quotas, quotas
from siltstone.commands import topics as commands
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.commands.quotas import ENTITY_TYPES

if TYPE_CHECKING:
    from siltstone.broker.plain_client import PlainClient
    from siltstone.commands.remote import RemoteBroker

_TYPES = ("topics", "brokers", "namespaces")
_DEFAULT_PORT = 9092


@dataclass(frozen=True, kw_only=True)
class ConfigsFlags(output.DirFlags, output.ServerFlags):
    """The flags of ``siltstone configs``.

    Parameters
    ----------
    alter
        Change a topic's settings with --add-config, --add-config-file and --delete-config.
    describe
        Show settings with their sources.
    all_
        With --describe: also settings that have their default.
    entity_type
        topics, brokers or namespaces; for quotas users, clients or ips.
    entity_name
        The topic, the broker's number, tenant/namespace, or whose quotas they are.
    entity_default
        The settings of all brokers; the quotas of all users, clients or addresses without their own.
    user
        The quotas of this user; with --client, of the two together.
    user_defaults
        The quotas of all users without their own.
    client
        The quotas of this client id.
    client_defaults
        The quotas of all client ids without their own.
    ip
        The quotas of this address.
    ip_defaults
        The quotas of all addresses without their own.
    add_config
        Settings to set, such as retention.ms=1000,cleanup.policy=[compact,delete].
    add_config_file
        A properties file of settings to set.
    delete_config
        Names of settings to remove, separated by commas.
    server_properties
        The broker's server.properties.
    dry_run
        Check everything, change nothing.
    """

    alter: bool = False
    describe: bool = False
    all_: Annotated[bool, Parameter(name="--all")] = False
    entity_type: str | None = None
    entity_name: str | None = None
    entity_default: bool = False
    user: str | None = None
    user_defaults: bool = False
    client: str | None = None
    client_defaults: bool = False
    ip: str | None = None
    ip_defaults: bool = False
    add_config: Sequence[str] = ()
    add_config_file: Path | None = None
    delete_config: Sequence[str] = ()
    server_properties: Path | None = None
    dry_run: bool = False

    def refuse_contradictions(self) -> None:
        """Raises UsageError for flags that do not go together."""
        kind, is_default = self.entity_type, self.entity_default
        changes = bool(self.add_config or self.add_config_file or self.delete_config)
        self._refuse_wrong_action(changes=changes)
        if are_for_quotas(self):
            return
        output.refuse_if(
            kind not in _TYPES,
            f"--entity-type {kind or '(missing)'}: is not a type of entity",
            f"pass --entity-type {', '.join((*_TYPES, *ENTITY_TYPES))}",
        )
        output.refuse_if(
            is_default and (kind != "brokers" or self.entity_name is not None),
            "--entity-default is only for --entity-type brokers, without --entity-name",
            "pass --entity-type brokers --entity-default",
        )
        if self.alter:
            output.refuse_if(
                kind == "brokers" and self.bootstrap_server is None,
                "--entity-type brokers: only a running broker can change its settings",
                "change its server.properties, or pass --bootstrap-server",
            )
            output.refuse_if(
                self.entity_name is None, "--alter: no name", f"pass --entity-name, one of the {kind}"
            )
            output.refuse_if(self.all_, "--all is only for --describe", "leave it out")

    def _refuse_wrong_action(self, *, changes: bool) -> None:
        output.refuse_if(self.alter == self.describe, "no action, or two", "pass --describe or --alter")
        output.refuse_if(
            self.describe and (changes or self.dry_run),
            "--add-config, --add-config-file, --delete-config and --dry-run are only for --alter",
            "pass --alter to change settings",
        )
        output.refuse_if(
            self.alter and not changes,
            "--alter: no change",
            "pass --add-config, --add-config-file or --delete-config",
        )

    def quota_client(self) -> PlainClient:
        """The running broker, for quotas. Raises UsageError, BrokerUnreachableError."""
        from siltstone.broker.plain_client import PlainClient, plain_addresses
        from siltstone.log.checkpoints import read_properties

        assert self.bootstrap_server is not None
        output.refuse_if(bool(self.dir), "a directory and --bootstrap-server", "pass one of them")
        self.refuse_at_a_broker("server_properties")
        config = read_properties(self.command_config) if self.command_config else {}
        addresses = plain_addresses(self.bootstrap_server, config, "quotas", port=_DEFAULT_PORT)
        return PlainClient.first_of(addresses)


def configs(
    directories: output.Directories = (),
    /,
    *,
    flags: ConfigsFlags = ConfigsFlags(),
    json_: output.Json = False,
) -> int:
    """Show and change settings of topics and quotas, show settings of brokers, as kafka-configs does.

    --describe locks nothing and changes nothing. --alter locks the directory, as a broker does.

    Parameters
    ----------
    directories
        The log directories, also as --dir.
    json_
        Print one JSON document instead.
    """
    flags = flags.at(directories)
    flags.refuse_contradictions()
    if are_for_quotas(flags):
        quotas(flags, as_json=json_)
        return 0
    broker = flags.remote()
    if broker is not None:
        _at_broker(broker, flags, as_json=json_)
        return 0
    broker_directories = flags.broker_directories(flags.server_properties)
    if flags.alter:
        _alter(broker_directories, flags, as_json=json_)
    else:
        _describe(broker_directories.snapshot(), flags, as_json=json_)
    return 0


def _at_broker(broker: RemoteBroker, flags: ConfigsFlags, *, as_json: bool) -> None:
    """Show or change the settings of a running broker, by Kafka's protocol."""
    is_of_topics = flags.entity_type == "topics"
    reason = "--entity-type namespaces: a running broker does not know Pulsar's namespaces"
    output.refuse_if(flags.entity_type == "namespaces", reason, "pass the directories with --dir")
    flags.refuse_at_a_broker("server_properties")
    if flags.alter:
        additions, removals = _additions_and_removals(flags)
        if is_of_topics:
            name, options = flags.entity_name or "", {"dry_run": flags.dry_run}
            change = broker.alter_topic_settings(name, additions, removals, **options)
        else:
            new = dict(_broker_assignment(text) for text in additions)
            change = broker.alter_broker_settings(
                flags.entity_name or "", new, removals, dry_run=flags.dry_run
            )
        _show_change(change, "topic" if is_of_topics else "broker", dry_run=flags.dry_run, as_json=as_json)
        return
    if is_of_topics:
        names = broker.names() if flags.entity_name is None else [flags.entity_name]
        entities = {name: broker.settings_of_topic(name, everything=flags.all_) for name in names}
        title = _title_of_topics(flags)
    else:
        of_all = flags.entity_default
        number, settings = broker.settings_of_broker(
            flags.entity_name, everything=flags.all_ or of_all, of_all=of_all
        )
        entities, title = {"default" if of_all else number: settings}, _title_of_brokers(flags)
    _show_entities(flags, title, entities, as_json=as_json)


def _broker_assignment(text: str) -> tuple[str, str]:
    """(name, value) of ``name=value``; the brackets around a list are no part of the value."""
    name, equals, value = text.partition("=")
    output.refuse_if(not equals, f"{text!r} is not a setting", "pass key=value")
    return name.strip(), value.strip().removeprefix("[").removesuffix("]")


def _additions_and_removals(flags: ConfigsFlags) -> tuple[list[str], list[str]]:
    """(Assignments to add, names of settings to remove). Raises UsageError."""
    additions = [] if flags.add_config_file is None else commands.read_additions(flags.add_config_file)
    additions += [assignment for text in flags.add_config for assignment in split_additions(text)]
    return additions, [name.strip() for text in flags.delete_config for name in text.split(",")]


def _alter(broker_directories: BrokerDirectories, flags: ConfigsFlags, *, as_json: bool) -> None:
    assert flags.entity_name is not None
    additions, removals = _additions_and_removals(flags)
    of_namespace = flags.entity_type == "namespaces"
    options = {"of_namespace": of_namespace, "dry_run": flags.dry_run}
    change = commands.alter_settings(broker_directories, flags.entity_name, additions, removals, **options)
    kind = "namespace" if of_namespace else "topic"
    _show_change(change, kind, dry_run=flags.dry_run, as_json=as_json)


def _show_change(change: commands.SettingsChange, kind: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        changed = {kind: change.name, "before": dict(change.before), "after": dict(change.after)}
        output.write_json({"action": "alter", "dry_run": dry_run, **changed})
        return
    done = "would be completed" if dry_run else "completed"
    output.write_lines(f"updating config for {kind} {change.name} {done}")
    for name in sorted({*change.before, *change.after}):
        before, after = change.before.get(name), change.after.get(name)
        if before != after:
            output.write_lines(f"  {name}: {before or '(default)'} → {after or '(default)'}")


def _describe(snapshot: Snapshot, flags: ConfigsFlags, *, as_json: bool) -> None:
    """Show the settings of the entities that the flags name."""
    notes: Sequence[str] = ()
    if flags.entity_type == "brokers":
        title, entities = _describe_broker(snapshot, flags)
    elif flags.entity_type == "namespaces":
        title, policies = "Policies of namespace {} are:", snapshot.registry.namespaces
        names = sorted(policies) if flags.entity_name is None else [flags.entity_name]
        entities = {name: commands.settings_of_namespace(policies.get(name, {})) for name in names}
    else:
        title = _title_of_topics(flags)
        names = snapshot.names() if flags.entity_name is None else [flags.entity_name]
        described = [snapshot.topic(name) for name in names]
        entities = {
            topic.name: commands.settings_of_topic(snapshot.config_of(topic), everything=flags.all_)
            for topic in described
        }
        notes = snapshot.notes_on(described)
    _show_entities(flags, title, entities, as_json=as_json)
    if not as_json:
        output.note(*notes)


def _title_of_topics(flags: ConfigsFlags) -> str:
    return f"{'All' if flags.all_ else 'Dynamic'} configs for topic {{}} are:"


def _title_of_brokers(flags: ConfigsFlags) -> str:
    if flags.entity_default:
        return "Default configs for brokers in the cluster are:"
    return f"{'All' if flags.all_ else 'Non-default'} configs for broker {{}} are:"


def _show_entities(
    flags: ConfigsFlags,
    title: str,
    entities: Mapping[str, Sequence[commands.EffectiveSetting]],
    *,
    as_json: bool,
) -> None:
    """Show the settings of entities, by name. ``title``: the line before the settings of one, with ``{}`` for
    its name."""
    if as_json:
        documents = [_document(flags.entity_type, name, settings) for name, settings in entities.items()]
        output.write_json({"entities": documents})
        return
    for entity, settings in entities.items():
        output.write_lines(title.format(entity))
        for setting in settings:
            synonyms = ", ".join(f"{source}:{name}={value}" for source, name, value in setting.synonyms)
            output.write_lines(f"  {setting.name}={setting.value} sensitive=false synonyms={{{synonyms}}}")


def _describe_broker(
    snapshot: Snapshot, flags: ConfigsFlags
) -> tuple[str, dict[str, list[commands.EffectiveSetting]]]:
    """(the title, {the broker's number, or "default": settings}), for ``_show_entities``. Raises UsageError
    for another broker's number."""
    number = str(snapshot.broker_id)
    is_another = flags.entity_name not in (None, number)
    reason = f"--entity-name {flags.entity_name}: the log directory belongs to broker {number}"
    output.refuse_if(is_another, reason, f"pass --entity-name {number}, or leave it out")
    config = snapshot.settings.broker
    if flags.entity_default:
        of_all = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        config = Config().with_layer(of_all, config.layer(of_all))
        return _title_of_brokers(flags), {"default": commands.settings_of_broker(config, everything=False)}
    return _title_of_brokers(flags), {number: commands.settings_of_broker(config, everything=flags.all_)}


def _document(
    entity_type: str | None, name: str, settings: Sequence[commands.EffectiveSetting]
) -> dict[str, object]:
    """The JSON object of one entity."""
    configs = [
        {
            "name": setting.name,
            "value": setting.value,
            "source": setting.source,
            "sensitive": False,
            "synonyms": [
                {"source": source, "name": name_there, "value": value}
                for source, name_there, value in setting.synonyms
            ],
        }
        for setting in settings
    ]
    return {"entity_type": entity_type, "entity_name": name, "configs": configs}
