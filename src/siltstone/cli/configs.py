"""``siltstone configs``: settings of topics and brokers, as kafka-configs has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from siltstone.base.config import Config, ConfigSource, split_additions
from siltstone.base.errors import UsageError
from siltstone.cli.output import Directories, Json, note, place_of, write_json, write_line
from siltstone.commands.places import Place
from siltstone.commands.topics import (
    SettingFacts,
    SettingsChange,
    alter_namespace,
    alter_settings,
    read_additions,
    settings_of_broker,
    settings_of_namespace,
    settings_of_topic,
)

_TYPES = ("topics", "brokers", "namespaces")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigsFlags:
    """The flags of ``siltstone configs``.

    Parameters
    ----------
    dir
        A log directory; several of one broker (log.dirs) by giving it several times.
    alter
        Change a topic's settings with --add-config, --add-config-file and --delete-config.
    describe
        Show settings with their sources.
    all_
        The defaults too.
    entity_type
        topics, brokers or namespaces.
    entity_name
        The topic, the broker's number, or tenant/namespace.
    entity_default
        The settings of all brokers together.
    add_config
        a=1,cleanup.policy=[compact,delete]
    add_config_file
        A properties file of settings to add.
    delete_config
        a,b: settings that the topic is to have no longer.
    server_properties
        The broker's own settings.
    dry_run
        Check everything, change nothing.
    """

    dir: Directories = ()
    alter: bool = False
    describe: bool = False
    all_: Annotated[bool, Parameter(name="--all")] = False
    entity_type: str | None = None
    entity_name: str | None = None
    entity_default: bool = False
    add_config: Sequence[str] = ()
    add_config_file: Path | None = None
    delete_config: Sequence[str] = ()
    server_properties: Path | None = None
    dry_run: bool = False

    def refuse_contradictions(self) -> None:
        """Raises UsageError for flags that do not go together."""
        if self.alter == self.describe:
            raise UsageError("choose one of --describe and --alter")
        if self.entity_type not in _TYPES:
            raise UsageError(f"--entity-type {self.entity_type or '(missing)'}: give {' or '.join(_TYPES)}")
        if self.entity_default and (self.entity_type != "brokers" or self.entity_name is not None):
            raise UsageError("--entity-default is for --entity-type brokers, without --entity-name")
        changes = bool(self.add_config or self.add_config_file or self.delete_config)
        if self.describe and (changes or self.dry_run):
            raise UsageError("--add-config, --add-config-file, --delete-config and --dry-run go with --alter")
        if self.alter and self.entity_type == "brokers":
            raise UsageError(
                "a broker's settings are those of its server.properties; changing them at run time comes "
                "with the broker"
            )
        if self.alter and not changes:
            raise UsageError("--alter: give --add-config, --add-config-file or --delete-config")
        if self.alter and self.entity_name is None:
            raise UsageError(f"--alter: say which of the {self.entity_type} with --entity-name")
        if self.alter and self.all_:
            raise UsageError("--all goes with --describe")


def configs(*, flags: ConfigsFlags | None = None, json_: Json = False) -> int:
    """Show and change settings of topics, show those of brokers, as kafka-configs does.

    --describe locks nothing and changes nothing. --alter locks the directory, as a broker does.

    Parameters
    ----------
    json_
        Print one JSON document instead.
    """
    flags = flags or ConfigsFlags()
    flags.refuse_contradictions()
    place = place_of(flags.dir, flags.server_properties)
    if flags.alter:
        _show_change(_alter(place, flags), flags, as_json=json_)
    elif flags.entity_type == "namespaces":
        _describe_namespaces(place, flags, as_json=json_)
    elif flags.entity_type == "topics":
        _describe_topics(place, flags, as_json=json_)
    else:
        _describe_broker(place, flags, as_json=json_)
    return 0


def _alter(place: Place, flags: ConfigsFlags) -> SettingsChange:
    assert flags.entity_name is not None
    additions = [] if flags.add_config_file is None else read_additions(flags.add_config_file)
    additions += [each for text in flags.add_config for each in split_additions(text)]
    removals = [name.strip() for text in flags.delete_config for name in text.split(",")]
    alter = alter_namespace if flags.entity_type == "namespaces" else alter_settings
    return alter(place, flags.entity_name, additions, removals, dry_run=flags.dry_run)


def _describe_topics(place: Place, flags: ConfigsFlags, *, as_json: bool) -> None:
    snapshot = place.snapshot()
    names = snapshot.names() if flags.entity_name is None else [flags.entity_name]
    found = {
        name: settings_of_topic(snapshot.config_of(snapshot.topic(name)), everything=flags.all_)
        for name in names
    }
    if as_json:
        write_json({"entities": [_document("topics", name, settings) for name, settings in found.items()]})
        return
    for name, settings in found.items():
        _show(f"{'All' if flags.all_ else 'Dynamic'} configs for topic {name} are:", settings)
    note(*snapshot.notes_on([snapshot.topic(name) for name in names]))


def _describe_namespaces(place: Place, flags: ConfigsFlags, *, as_json: bool) -> None:
    listed = place.snapshot().registry.namespaces
    names = sorted(listed) if flags.entity_name is None else [flags.entity_name]
    found = {name: settings_of_namespace(listed.get(name, {})) for name in names}
    if as_json:
        entities = [_document("namespaces", name, settings) for name, settings in found.items()]
        write_json({"entities": entities})
        return
    for name, settings in found.items():
        _show(f"Policies of namespace {name} are:", settings)


def _describe_broker(place: Place, flags: ConfigsFlags, *, as_json: bool) -> None:
    snapshot = place.snapshot()
    number = str(snapshot.broker_id)
    if flags.entity_name not in (None, number):
        raise UsageError(f"--entity-name {flags.entity_name}: the directory is that of broker {number}")
    config = snapshot.settings.broker
    if flags.entity_default:
        number, of_all = "default", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        config = Config().replacing(of_all, config.given(of_all))
    settings = settings_of_broker(config, everything=flags.all_ and not flags.entity_default)
    if as_json:
        write_json({"entities": [_document("brokers", number, settings)]})
    elif flags.entity_default:
        _show("Default configs for brokers in the cluster are:", settings)
    else:
        _show(f"{'All' if flags.all_ else 'Given'} configs for broker {number} are:", settings)


def _document(entity_type: str, name: str, settings: Sequence[SettingFacts]) -> dict[str, object]:
    shown = [
        {
            "name": each.name,
            "value": each.value,
            "source": each.source,
            "sensitive": False,
            "synonyms": [{"source": s, "name": n, "value": v} for s, n, v in each.synonyms],
        }
        for each in settings
    ]
    return {"entity_type": entity_type, "entity_name": name, "configs": shown}


def _show(title: str, settings: Sequence[SettingFacts]) -> None:
    write_line(title)
    for each in settings:
        synonyms = ", ".join(f"{source}:{name}={value}" for source, name, value in each.synonyms)
        write_line(f"  {each.name}={each.value} sensitive=false synonyms={{{synonyms}}}")


def _show_change(change: SettingsChange, flags: ConfigsFlags, *, as_json: bool) -> None:
    kind, dry_run = "namespace" if flags.entity_type == "namespaces" else "topic", flags.dry_run
    if as_json:
        changed = {kind: change.topic, "before": dict(change.before), "after": dict(change.after)}
        write_json({"action": "alter", "dry_run": dry_run, **changed})
        return
    done = "would be completed" if dry_run else "completed"
    write_line(f"updating config for {kind} {change.topic} {done}")
    for name in sorted({*change.before, *change.after}):
        before, after = change.before.get(name), change.after.get(name)
        if before != after:
            write_line(f"  {name}: {before or '(default)'} → {after or '(default)'}")
