"""Reads, checks and changes the broker's own settings of an open server; some wait for a restart.

Every change goes into the ``server.properties`` that the server was started with, its comments and order
kept. Settings that can change at run time apply at once, too; the others are *pending* until a restart: the
file says something else than the process uses.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from siltstone.base import files
from siltstone.base.config import (
    Config,
    ConfigSource,
    find_broker_key,
    parse_broker_config,
    parse_server_properties,
    refuse_contradictions,
)
from siltstone.base.config_table import ALL_KEYS, Key, Kind
from siltstone.base.errors import DirectoryRefusedError, InvalidConfigError, SiltstoneError, UsageError
from siltstone.commands.administration import etag_of, refuse_other_tag
from siltstone.commands.changes import RESTART, Actor
from siltstone.commands.served import Served
from siltstone.commands.topics import (
    EffectiveSetting,
    SettingsChange,
    default_text,
    settings_of_broker,
    text_of,
)
from siltstone.runtime.topics import altered_broker, dynamic_source

_BROKER, _CLUSTER = "broker", "brokers"
LOG_CLEANER, MAIN = "Log Cleaner", "Main"
CLEANER_SWITCH = "log.cleaner.enable"
_CLEANERS = (
    "log.cleaner.",
    "log.cleanup.policy",
    "cleaner.spark.",
    "brokerServiceCompaction",
    "topicCompaction",
)
_FIRST = (CLEANER_SWITCH, "log.cleanup.policy")
_lock = threading.Lock()
"""One change of a file at a time."""


def broker_settings(served: Served) -> list[EffectiveSetting]:
    """All settings of the broker with their sources, sorted by name. Raises SiltstoneError, OSError."""
    return settings_of_broker(served.broker_settings(), everything=True)


def broker_etag(served: Served) -> str:
    """The entity tag of the settings in the file. Raises SiltstoneError, OSError."""
    return etag_of(_BROKER, _texts(_read(served)[1]))


def pending(served: Served) -> dict[str, str]:
    """The settings that the file has and the process does not use until it is restarted: name → text in the
    file, empty where the file leaves the setting out. Raises UsageError, SiltstoneError, OSError."""
    if served.options.properties is None:
        return {}
    _, properties = _read(served)
    in_file, waiting = _parsed(served, properties), {}
    for key in ALL_KEYS:
        for name in key.broker_names:
            now = served.broker_settings().layer(ConfigSource.STATIC_BROKER_CONFIG).get(name)
            then = in_file.layer(ConfigSource.STATIC_BROKER_CONFIG).get(name)
            if (now and now.value) != (then and then.value) and not key.changes_at_run_time(name):
                waiting[name] = properties.get(name) or ""
    return waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A setting of the broker, for display. ``group``: ``LOG_CLEANER`` or ``MAIN``; ``pending``: the value in
    the file that a restart will use, "" where the file leaves the setting out, None if nothing is pending."""

    group: str
    key: Key
    name: str
    value: str
    source: str
    default: str
    applies_at_once: bool
    pending: str | None


def broker_rows(served: Served) -> tuple[list[BrokerRow], str | None]:
    """All settings of the broker, those of the log cleaner first, and why it is not known what is pending.
    Raises SiltstoneError, OSError."""
    waiting, problem = dict[str, str](), None
    if not served.is_look:
        try:
            waiting = pending(served)
        except (SiltstoneError, OSError) as error:
            problem = str(error)
    by_key = {find_broker_key(name).name: text for name, text in waiting.items()}
    rows = []
    for setting in broker_settings(served):
        key, name = find_broker_key(setting.name), setting.name
        rows.append(
            BrokerRow(
                group=LOG_CLEANER if name.startswith(_CLEANERS) else MAIN,
                key=key,
                name=name,
                value=setting.value,
                source=setting.source,
                default=default_text(key, name),
                applies_at_once=key.changes_at_run_time(name),
                pending=by_key.get(key.name),
            )
        )
    rows.sort(key=lambda row: (row.group == MAIN, row.name not in _FIRST))
    return rows, problem


def alter_broker(
    served: Served,
    actor: Actor,
    set_to: Mapping[str, str],
    remove: Sequence[str] = (),
    *,
    if_match: str | None = None,
    validate_only: bool = False,
) -> tuple[SettingsChange, list[str]]:
    """Set and remove settings of the broker. Returns the change, and the names that wait for a restart.

    Raises InvalidConfigError, ChangedMeanwhileError, UsageError without a file, StorageError if the change
    cannot be recorded, OSError.
    """
    manager = served.opened()
    with _lock:
        path, properties = _read(served)
        before = _texts(properties)
        refuse_other_tag(if_match, etag_of(_BROKER, before), _BROKER)
        missing = [name for name in remove if name not in before]
        if missing:
            raise InvalidConfigError(f"{missing[0]} is not set", path=str(path), advice="leave it out")
        try:
            # Only the changed settings are checked: the file may have others, which only Kafka knows.
            parse_broker_config(set_to, str(path))
            for name, text in set_to.items():
                properties[name] = text
            for name in remove:
                del properties[name]
            config = refuse_contradictions(_parsed(served, properties))
        except UsageError as error:
            raise InvalidConfigError(error.reason, path=_BROKER, advice=error.advice) from None
        after = _texts(properties)
        if not validate_only and after != before:
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            shown = ({name: texts.get(name) for name in sorted(changed)} for texts in (before, after))
            old, new = shown
            with served.opened_changes().recorded(actor, "alter-broker", _BROKER, before=old, after=new):
                _write(path, properties)
                with manager.creation_or_deletion_lock:  # alter_dynamic changes the other layers
                    manager.update_config(_effective(manager.config, config))
            served.cataloguer.refresh_soon()
        waiting = list(pending(served)) if not validate_only else []
    return SettingsChange(topic=_BROKER, before=before, after=after), waiting


def kind_of(name: str) -> Kind | None:
    """The type of a broker's setting, None if there is none of this name."""
    try:
        key = find_broker_key(name)
    except UsageError:
        return None
    synonym = key.synonym(name)
    return (synonym and synonym.kind) or key.kind


def alter_dynamic(
    served: Served,
    actor: Actor,
    set_to: Mapping[str, str],
    remove: Sequence[str] = (),
    *,
    of_all: bool = False,
    validate_only: bool = False,
) -> SettingsChange:
    """Set and remove settings at run time, for this broker or for all of its cluster: they apply at once, are
    kept in the log directories, and count before ``server.properties``.

    Raises InvalidConfigError, also for a setting that cannot change at run time; StorageError.
    """
    manager = served.opened()
    with manager.creation_or_deletion_lock:
        layer = manager.config.layer(dynamic_source(of_all=of_all))
        before = {
            name: text_of(find_broker_key(name), name, setting.value) for name, setting in layer.items()
        }
        after = {**{name: text for name, text in before.items() if name not in remove}, **set_to}
        altered_broker(manager.config, after, of_all=of_all)
        if not validate_only and after != before:
            target = _CLUSTER if of_all else _BROKER
            changes = served.opened_changes()
            with changes.recorded(actor, "alter-broker", target, before=before, after=after):
                manager.update_config(manager.topics.alter_brokers(after, of_all=of_all))
            served.cataloguer.refresh_soon()
    return SettingsChange(topic=_CLUSTER if of_all else _BROKER, before=before, after=after)


def restart(served: Served, actor: Actor) -> None:
    """Let the process close its directories in order, read its file and open them again. Its outcome is
    recorded when they are open again. Raises UsageError if the file is bad, StorageError, OSError."""
    if served.options.properties is not None:
        _parsed(served, _read(served)[1])
    before = {"pending": pending(served)}
    served.opened_changes().begin(actor, RESTART, _BROKER, before=before)
    served.restart_asked.set()


def _effective(now: Config, in_file: Config) -> Config:
    """The settings of the process after a change: those of the file that can change at run time, and of the
    others those of now."""
    source = ConfigSource.STATIC_BROKER_CONFIG
    layer = {
        name: setting
        for name, setting in in_file.layer(source).items()
        if find_broker_key(name).changes_at_run_time(name)
    }
    kept = {
        name: setting
        for name, setting in now.layer(source).items()
        if not find_broker_key(name).changes_at_run_time(name)
    }
    return now.with_layer(source, {**kept, **layer})


def _read(served: Served) -> tuple[Path, javaproperties.PropertiesFile]:
    """The file, and its entries with their comments. Raises UsageError without one, OSError."""
    path = served.options.properties
    if path is None:
        advice = "start siltstone serve with --config FILE, which may be empty"
        raise UsageError("the server was started without a file for its settings", advice=advice)
    try:
        text = files.read_input(path).decode()
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
        raise UsageError(reason, path=path, advice="save the file as UTF-8") from None
    return path, javaproperties.PropertiesFile.loads(text)


def _parsed(served: Served, properties: javaproperties.PropertiesFile) -> Config:
    path = str(served.options.properties)
    return Config(static=parse_server_properties(properties.dumps(), path, skip_unknown=True))


def _texts(properties: javaproperties.PropertiesFile) -> dict[str, str]:
    return dict(properties.items())


def _write(path: Path, properties: javaproperties.PropertiesFile) -> None:
    """Replace the file durably, with the permissions that it had. Raises DirectoryRefusedError, OSError."""
    if files.is_link(path):
        raise DirectoryRefusedError(
            "the file is a link, which would be replaced",
            path=path,
            advice="pass the file itself as --config",
        )
    files.replace(path, properties.dumps().encode())
