"""Reads, checks and changes the settings of the broker of an open server.

Static settings are in the ``server.properties`` that the server was started with (``alter_static``). A change
keeps the comments and the order of the file. Settings that can change at run time apply at once, too; the
others are *pending* until a restart: the process still uses the old value. Dynamic settings are in the log
directories, apply at once and take precedence (``alter_dynamic``), as in Kafka.
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

_BROKER, _ALL_BROKERS = "broker", "brokers"
"""The targets of changes in the audit log: this broker, or all brokers of its cluster."""
LOG_CLEANER, MAIN = "Log Cleaner", "Main"
CLEANER_SWITCH = "log.cleaner.enable"
_CLEANER_PREFIXES = (
    "log.cleaner.",
    "log.cleanup.policy",
    "cleaner.spark.",
    "brokerServiceCompaction",
    "topicCompaction",
)
"""The beginnings of the names of the settings in the group ``LOG_CLEANER``; the last two are Pulsar's."""
_FIRST_SHOWN = (CLEANER_SWITCH, "log.cleanup.policy")
"""The settings that are shown first in their group."""
_lock = threading.Lock()
"""Held while the file is read, changed and written."""


def broker_settings(served: Served) -> list[EffectiveSetting]:
    """All settings of the broker with their sources, sorted by name. Raises SiltstoneError, OSError."""
    return settings_of_broker(served.broker_settings(), everything=True)


def broker_etag(served: Served) -> str:
    """The entity tag of the settings in the file. Raises SiltstoneError, OSError."""
    return etag_of(_BROKER, _texts(_read(served)[1]))


def pending(served: Served) -> dict[str, str]:
    """The settings that have another value in the file than in the process, which uses it after a restart:
    name → value in the file, empty if the file does not set it. Raises UsageError, SiltstoneError,
    OSError."""
    if served.options.properties is None:
        return {}
    _, properties = _read(served)
    in_process = served.broker_settings().layer(ConfigSource.STATIC_BROKER_CONFIG)
    in_file = _parsed(served, properties).layer(ConfigSource.STATIC_BROKER_CONFIG)
    waiting = {}
    for key in ALL_KEYS:
        for name in key.broker_names:
            used, filed = in_process.get(name), in_file.get(name)
            if (used and used.value) != (filed and filed.value) and not key.changes_at_run_time(name):
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
    """(All settings of the broker, those of the log cleaner first; why the file cannot be read, so that it is
    not known what is pending, else None). Raises SiltstoneError, OSError."""
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
                group=LOG_CLEANER if name.startswith(_CLEANER_PREFIXES) else MAIN,
                key=key,
                name=name,
                value=setting.value,
                source=setting.source,
                default=default_text(key, name),
                applies_at_once=key.changes_at_run_time(name),
                pending=by_key.get(key.name),
            )
        )
    rows.sort(key=lambda row: (row.group == MAIN, row.name not in _FIRST_SHOWN))
    return rows, problem


def alter_static(
    served: Served,
    actor: Actor,
    set_to: Mapping[str, str],
    remove: Sequence[str] = (),
    *,
    if_match: str | None = None,
    validate_only: bool = False,
) -> tuple[SettingsChange, list[str]]:
    """Set and remove settings in ``server.properties``; those that can change at run time apply at once.
    Returns the change, and the names of all settings that wait for a restart.

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
            # Only the changed settings have to be known here: the file may have others, which only Kafka
            # knows. Their values, such as passwords, must not get into the audit log.
            parse_broker_config(set_to, str(path))
            for name in remove:
                find_broker_key(name)
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
    return SettingsChange(name=_BROKER, before=before, after=after), waiting


def kind_of(name: str) -> Kind | None:
    """The type of a setting of brokers; None if no setting has this name."""
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
    """Set and remove dynamic settings of this broker, or with ``of_all`` of all brokers of its cluster. They
    apply at once, are kept in the log directories, and take precedence over ``server.properties``.

    Raises InvalidConfigError, also for a setting that cannot change at run time; StorageError.
    """
    manager = served.opened()
    with manager.creation_or_deletion_lock:
        layer = manager.config.layer(dynamic_source(of_all=of_all))
        before = {
            name: text_of(find_broker_key(name), name, setting.value) for name, setting in layer.items()
        }
        after = {**{name: text for name, text in before.items() if name not in remove}, **set_to}
        altered_broker(manager.config, after, of_all=of_all)  # raises if a setting is wrong
        if not validate_only and after != before:
            target = _ALL_BROKERS if of_all else _BROKER
            changes = served.opened_changes()
            with changes.recorded(actor, "alter-broker", target, before=before, after=after):
                manager.update_config(manager.topics.alter_brokers(after, of_all=of_all))
            served.cataloguer.refresh_soon()
    return SettingsChange(name=_ALL_BROKERS if of_all else _BROKER, before=before, after=after)


def restart(served: Served, actor: Actor) -> None:
    """Ask the process to close its directories cleanly, read ``server.properties`` and open them again. The
    outcome is recorded after that. Raises UsageError if the file is invalid, or has listeners or users that
    cannot be used: the process would end; StorageError, OSError."""
    if served.options.properties is not None:
        _parsed(served, _read(served)[1])
    served.refuse_restart()
    before = {"pending": pending(served)}
    served.opened_changes().begin(actor, RESTART, _BROKER, before=before)
    served.restart_asked.set()


def _effective(in_use: Config, in_file: Config) -> Config:
    """The settings of the process after a change of the file. Those that can change at run time come from the
    file; the others stay as they are in use."""
    source = ConfigSource.STATIC_BROKER_CONFIG
    layer = {
        name: setting
        for name, setting in in_file.layer(source).items()
        if find_broker_key(name).changes_at_run_time(name)
    }
    kept = {
        name: setting
        for name, setting in in_use.layer(source).items()
        if not find_broker_key(name).changes_at_run_time(name)
    }
    return in_use.with_layer(source, {**kept, **layer})


def _read(served: Served) -> tuple[Path, javaproperties.PropertiesFile]:
    """(The path of ``server.properties``, its entries with their comments). Raises UsageError if the server
    was started without it, OSError."""
    path = served.options.properties
    if path is None:
        advice = "start siltstone serve with --config FILE, which may be empty"
        raise UsageError("the server was started without a file of settings", advice=advice)
    try:
        text = files.read_input(path).decode()
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
        raise UsageError(reason, path=path, advice="save the file as UTF-8") from None
    return path, javaproperties.PropertiesFile.loads(text)


def _parsed(served: Served, properties: javaproperties.PropertiesFile) -> Config:
    """The settings in ``properties``, without those that only Kafka knows. Raises UsageError."""
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
