"""What a setting is: its name, the other names it goes by, its type, default, range and one line of doc.

    topic's name   ← aliases of it (``internal.segment.bytes`` wins over ``segment.bytes``)
    broker's names ← ``synonyms``, best first, each with its unit: ``log.retention.hours`` is 3,600,000 ms

Answers to Kafka's ``ConfigDef.ConfigKey`` and ``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

Value = bool | int | float | str | tuple[str, ...]


class Kind(Enum):
    """Kafka's types of values, by Kafka's names."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


class Level(Enum):
    """Who can have the setting."""

    TOPIC = "topic"
    BROKER = "broker"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker's name for a setting. One of it is ``unit`` of the setting's own.

    ``kind`` is its type where that is another than the setting's, ``least`` bounds it in its own unit,
    ``dynamic`` tells whether it can change at run time.
    """

    name: str
    unit: int = 1
    kind: Kind | None = None
    least: float | None = None
    dynamic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting.

    ``least`` and ``most`` bound numbers, ``refused`` names numbers in between, ``choices`` bounds words.
    ``negative_is_unlimited``: any negative number means −1. ``used``: False for names that are only accepted.
    ``dynamic`` is about the name itself where a broker has it. ``kafka`` says where Kafka differs, and why.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    level: Level
    synonyms: tuple[Synonym, ...] = ()
    aliases: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    refused: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    negative_is_unlimited: bool = False
    used: bool = True
    dynamic: bool = True
    kafka: str = ""

    @property
    def topic_names(self) -> tuple[str, ...]:
        """What a topic can call it, best first."""
        return () if self.level is Level.BROKER else (*self.aliases, self.name)

    @property
    def broker_names(self) -> tuple[str, ...]:
        """What a broker can call it, best first."""
        names = tuple(synonym.name for synonym in self.synonyms)
        return (self.name, *names) if self.level is Level.BROKER else names

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, best first."""
        return tuple(dict.fromkeys((*self.topic_names, *self.broker_names)))

    def synonym(self, name: str) -> Synonym | None:
        """The broker's name ``name`` with its unit; None where ``name`` is the setting's own."""
        return next((synonym for synonym in self.synonyms if synonym.name == name), None)

    def changes_at_run_time(self, name: str) -> bool:
        """Whether a broker's ``name`` can change while it runs."""
        synonym = self.synonym(name)
        return self.dynamic if synonym is None else synonym.dynamic
