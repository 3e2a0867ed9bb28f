"""``python scripts/configuration_page.py > docs/configuration.md``: the reference page of all settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from siltstone.base.config import format_value
from siltstone.base.config_table import (
    ALL_KEYS,
    BROKER_KEYS,
    INT_MAX,
    LONG_MAX,
    TOPIC_KEYS,
    Key,
    Kind,
    Synonym,
    Value,
)

_HEAD = """\
# Configuration

Made from `src/siltstone/base/config_table.py` by `python scripts/configuration_page.py`; a test holds the two
together. Names, types and defaults are those of Kafka 4. An unknown name is an error that suggests the
nearest one; a value out of range is an error that says what is allowed.

## Which value counts

1. the topic's own (`DYNAMIC_TOPIC_CONFIG`; for `siltstone clean`, `--config` before `--config-file`)
2. this broker's, changed at run time (`DYNAMIC_BROKER_CONFIG`)
3. all brokers', changed at run time (`DYNAMIC_DEFAULT_BROKER_CONFIG`)
4. the broker's `server.properties` (`STATIC_BROKER_CONFIG`)
5. the default (`DEFAULT_CONFIG`)

Within 2, 3 and 4 the first of a broker's names counts: `log.retention.ms` before `log.retention.minutes`
before `log.retention.hours`. Values are shown in the unit of the topic's name. A change at run time counts
from then on: a new policy at the next check of the log, a smaller `segment.bytes` at the next roll. Names
marked *at start* are read when a broker starts. `min.compaction.lag.ms` may not be over
`max.compaction.lag.ms`.

A list is words with commas between them; brackets around it are allowed (`cleanup.policy=[compact,delete]`).
"""

_NAMES = {LONG_MAX: "2^63-1", INT_MAX: "2^31-1", sys.float_info.max: "no limit"}
_UNITS = {60_000: "min", 3_600_000: "h"}


def reference_page() -> str:
    """The page as Markdown."""
    parts: list[str] = [
        _HEAD,
        "\n## Settings of a topic\n\n",
        *_table([key for key in TOPIC_KEYS if key.is_used]),
        "\n## Settings of a broker\n\n",
        *_table([key for key in BROKER_KEYS if key.is_used]),
        "\n## Where Kafka differs\n\n",
        *(
            f"- `{key.name}` (here {_shown(key.default)}): {key.origin_note}\n"
            for key in ALL_KEYS
            if key.origin_note
        ),
        "\n## Accepted names\n\n",
        "Known, so that files made for Kafka can be read; without effect here, at least yet.\n\n",
        *_table([key for key in ALL_KEYS if not key.is_used]),
    ]
    return "".join(parts)


def _table(keys: Iterable[Key]) -> Iterator[str]:
    yield "| name | type | default | range | broker's names | what it does |\n|---|---|---|---|---|---|\n"
    for key in keys:
        cells = (
            "<br>".join(f"`{name}`" for name in (key.name, *key.aliases)),
            key.kind.value,
            _shown(key.default),
            _range(key),
            _broker_names(key),
            key.doc,
        )
        yield f"| {' | '.join(cells)} |\n"


def _shown(value: Value) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value in _NAMES:
        return _NAMES[value]
    return f"`{format_value(value)}`" if format_value(value) else "(empty)"


def _range(key: Key) -> str:
    if key.choices:
        return ", ".join(key.choices)
    if key.kind not in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        return ""
    if key.maximum is not None:
        bounds = f"{key.minimum} … {key.maximum}"
    else:
        bounds = "any" if key.minimum is None else f"≥ {key.minimum}"
    return bounds + "".join(f", not {number}" for number in key.refused)


def _broker_names(key: Key) -> str:
    others = "<br>".join(map(_synonym, key.synonyms))
    if key.name in key.broker_names and not key.synonym(key.name):
        own = "the same" + ("" if key.is_dynamic else ", *at start*")
        return f"{own}<br>{others}" if others else own
    return others


def _synonym(synonym: Synonym) -> str:
    unit = f" ({_UNITS[synonym.unit]})" if synonym.unit != 1 else ""
    return f"`{synonym.name}`{unit}" + ("" if synonym.is_dynamic else ", *at start*")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
