"""Every setting, in one table: Kafka's key, type, default, check, what it does.

``TOPIC_KEYS`` are topic-level keys (Kafka's ``TopicConfig``; the broker-level name is a synonym),
``BROKER_KEYS`` those that only a broker has. A value carries its source, so that a report can say where
each setting came from. Unknown names are refused with the nearest known one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from siltstone.errors import UsageError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting. ``parse`` raises ValueError; ``least`` bounds numbers; ``choices`` bounds words."""

    name: str
    parse: Callable[[str], object]
    default: object
    doc: str
    synonyms: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _key(
    name: str,
    parse: Callable[[str], object],
    default: object,
    doc: str,
    *synonyms: str,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Key:
    return Key(
        name=name,
        parse=parse,
        default=default,
        doc=doc,
        synonyms=synonyms,
        least=least,
        most=most,
        choices=choices,
    )


TOPIC_KEYS = (
    _key("cleanup.policy", _words, ("delete",), "What cleaning a log means.", "log.cleanup.policy", choices=("delete", "compact")),
    _key("compression.type", str, "producer", "The codec kept on disk.", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    _key("compression.gzip.level", int, -1, "gzip's level.", least=-1, most=9),
    _key("compression.lz4.level", int, 9, "lz4's level.", least=1, most=17),
    _key("compression.zstd.level", int, 3, "zstd's level.", least=-131072, most=22),
    _key("delete.retention.ms", int, 86_400_000, "How long a tombstone stays after the first cleaning that met it.", "log.cleaner.delete.retention.ms", least=0),
    _key("file.delete.delay.ms", int, 60_000, "How long a removed segment's files stay as .deleted.", "log.segment.delete.delay.ms", least=0),
    _key("flush.messages", int, LONG_MAX, "Records between two flushes.", "log.flush.interval.messages", least=1),
    _key("flush.ms", int, LONG_MAX, "Time between two flushes.", "log.flush.interval.ms", least=0),
    _key("follower.replication.throttled.replicas", _words, (), "Accepted; without effect here."),
    _key("leader.replication.throttled.replicas", _words, (), "Accepted; without effect here."),
    _key("index.interval.bytes", int, 4096, "Bytes of log between two index entries.", "log.index.interval.bytes", least=0),
    _key("local.retention.bytes", int, -2, "Accepted; tiered logs are left alone.", "log.local.retention.bytes", least=-2),
    _key("local.retention.ms", int, -2, "Accepted; tiered logs are left alone.", "log.local.retention.ms", least=-2),
    _key("max.compaction.lag.ms", int, LONG_MAX, "A record stays uncleaned at most this long.", "log.cleaner.max.compaction.lag.ms", least=1),
    _key("max.message.bytes", int, 1_048_588, "The largest batch.", "message.max.bytes", least=0),
    _key("max.decompressed.message.bytes", int, 256 << 20, "What one batch may hold once decompressed (Siltstone's own key).", least=1),
    _key("message.downconversion.enable", _boolean, True, "Accepted; without effect here.", "log.message.downconversion.enable"),
    _key("message.format.version", str, "3.0-IV1", "Accepted; without effect here.", "log.message.format.version"),
    _key("message.timestamp.after.max.ms", int, 3_600_000, "How far ahead of the clock a timestamp may be.", "log.message.timestamp.after.max.ms", least=0),
    _key("message.timestamp.before.max.ms", int, LONG_MAX, "How far behind the clock a timestamp may be.", "log.message.timestamp.before.max.ms", least=0),
    _key("message.timestamp.difference.max.ms", int, LONG_MAX, "The older name of both.", "log.message.timestamp.difference.max.ms", least=0),
    _key("message.timestamp.type", str, "CreateTime", "Whose time a record carries.", "log.message.timestamp.type", choices=("CreateTime", "LogAppendTime")),
    _key("min.cleanable.dirty.ratio", float, 0.5, "A log is cleaned when its dirty share is over this.", "log.cleaner.min.cleanable.ratio", least=0, most=1),
    _key("min.compaction.lag.ms", int, 0, "A record stays uncleaned at least this long.", "log.cleaner.min.compaction.lag.ms", least=0),
    _key("min.insync.replicas", int, 1, "Accepted; without effect here.", least=1),
    _key("preallocate", _boolean, False, "Make new segments at full size.", "log.preallocate"),
    _key("remote.storage.enable", _boolean, False, "A tiered log: left alone."),
    _key("remote.log.copy.disable", _boolean, False, "Accepted; tiered logs are left alone."),
    _key("remote.log.delete.on.disable", _boolean, False, "Accepted; tiered logs are left alone."),
    _key("remote.copy.lag.ms", int, 0, "Accepted; tiered logs are left alone.", least=-1),
    _key("remote.copy.lag.bytes", int, 0, "Accepted; tiered logs are left alone.", least=-1),
    _key("retention.bytes", int, -1, "Size over which old segments go (policy delete).", "log.retention.bytes", least=-1),
    _key("retention.ms", int, 604_800_000, "Age over which old segments go (policy delete).", "log.retention.ms", least=-1),
    _key("segment.bytes", int, 1 << 30, "Size of a segment, and of a group that is cleaned into one.", "log.segment.bytes", "internal.segment.bytes", least=1, most=INT_MAX),
    _key("segment.index.bytes", int, 10 << 20, "Size of an index.", "log.index.size.max.bytes", least=4, most=INT_MAX),
    _key("segment.jitter.ms", int, 0, "Random share taken off segment.ms.", "log.roll.jitter.ms", least=0),
    _key("segment.ms", int, 604_800_000, "Age at which a segment is rolled.", "log.roll.ms", least=1),
    _key("unclean.leader.election.enable", _boolean, False, "Accepted; without effect here."),
    _key("errors.deadletterqueue.group.enable", _boolean, False, "Accepted; without effect here."),
)  # fmt: skip

BROKER_KEYS = (
    _key("log.cleaner.dedupe.buffer.size", int, 128 << 20, "A quarter of the memory that one cleaning task may use for keys.", least=1 << 20),
    _key("log.cleaner.io.buffer.size", int, 4 << 20, "Size of a reading window (it grows to the largest batch).", least=1 << 12, most=1 << 30),
    _key("log.cleaner.io.buffer.load.factor", float, 0.9, "How full Kafka's key map gets: only for its number of passes.", least=0, most=1),
    _key("producer.id.expiration.ms", int, 86_400_000, "How long a silent producer's last batch is kept.", least=1),
)  # fmt: skip

_ALL = (*TOPIC_KEYS, *BROKER_KEYS)
_BY_NAME = {name: key for key in _ALL for name in (key.name, *key.synonyms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An effective value and where it came from ("default", "--config", "file:line")."""

    value: object
    source: str


def find_key(name: str) -> Key:
    """The key of that name or synonym. Raises UsageError that suggests the nearest."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    nearest = difflib.get_close_matches(name, _BY_NAME, 1, 0.5)
    raise UsageError(f"unknown setting {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))


def parse_value(key: Key, text: str, source: str) -> Setting:
    """A checked value. Raises UsageError that says what is allowed."""
    try:
        value = key.parse(text.strip())
    except ValueError:
        raise UsageError(f"{source}: {key.name}={text!r} is no {_kind(key)}") from None
    for word in value if isinstance(value, tuple) else (value,):
        if key.choices and word not in key.choices:
            raise UsageError(f"{source}: {key.name}={text!r}; choose from {', '.join(key.choices)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _refuse_out_of_bounds(key, value, text, source)
    return Setting(value=value, source=source)


def _refuse_out_of_bounds(key: Key, value: float, text: str, source: str) -> None:
    below = key.least is not None and not value >= key.least  # so that NaN is below
    if below or (key.most is not None and value > key.most):
        bounds = f"at least {key.least}" + (f" and at most {key.most}" if key.most is not None else "")
        raise UsageError(f"{source}: {key.name}={text}: must be {bounds}")


def _kind(key: Key) -> str:
    return {int: "whole number", float: "number", _boolean: "true or false"}.get(key.parse, "value")


class Config:
    """The effective settings of one topic: what was given, over the defaults."""

    def __init__(self, given: Mapping[str, Setting] | None = None) -> None:
        self._given = dict(given or {})

    def __getitem__(self, name: str) -> object:
        return self.setting(name).value

    def setting(self, name: str) -> Setting:
        """Value and source of one key."""
        key = find_key(name)
        return self._given.get(key.name, Setting(value=key.default, source="default"))

    def integer(self, name: str) -> int:
        """A whole-number setting."""
        value = self[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """A number setting."""
        value = self[name]
        assert isinstance(value, (int, float))
        return float(value)

    def flag(self, name: str) -> bool:
        """A true-or-false setting."""
        return self[name] is True

    @property
    def policies(self) -> tuple[str, ...]:
        """``cleanup.policy`` as its words."""
        value = self["cleanup.policy"]
        assert isinstance(value, tuple)
        return value

    def settings(self) -> dict[str, Setting]:
        """Every setting that the cleaner acts on, for reports."""
        return {key.name: self.setting(key.name) for key in _ALL if not key.doc.startswith("Accepted")}

    def over(self, given: Mapping[str, Setting]) -> Config:
        """These settings with ``given`` over them."""
        return Config({**self._given, **given})


def parse_assignments(assignments: Iterable[str], source: str) -> dict[str, Setting]:
    """``key=value`` strings as settings. Raises UsageError."""
    found = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{source} {text!r}: give key=value")
        key = find_key(name.strip())
        found[key.name] = parse_value(key, value, source)
    return found


def parse_config_file(text: str, name: str) -> dict[str, dict[str, Setting]]:
    """Lines ``topic:key=value`` (``#`` starts a comment) as settings by topic. Raises UsageError."""
    found: dict[str, dict[str, Setting]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        topic, colon, assignment = stripped.partition(":")
        if not colon or "=" not in assignment:
            raise UsageError(f"{name}:{number}: give topic:key=value")
        found.setdefault(topic.strip(), {}).update(parse_assignments([assignment], f"{name}:{number}"))
    return found
