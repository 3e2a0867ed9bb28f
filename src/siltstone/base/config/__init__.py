"""Settings: one table of keys, what is in force and where it came from, and `LogConfig` for a log itself.

- ``key``: what a setting is; ``topic_keys``, ``broker_keys``: one row a setting; ``table``: by every name
- ``values``: text ↔ checked value; ``given``, ``properties``: what people write → settings
- ``resolve``: layers of settings → what is in force; ``checks``: what must hold between settings
- ``log_config``: what a log reads on every append
- ``page``: docs/configuration.md, by ``python -m siltstone.base.config``
"""

from siltstone.base.config.broker_keys import BROKER_KEYS
from siltstone.base.config.keys import INT_MAX, LONG_MAX, Key, Kind, Level, Synonym, Value
from siltstone.base.config.log_config import LogConfig
from siltstone.base.config.resolve import (
    Config,
    ConfigSource,
    Setting,
    refuse_broker_contradictions,
    refuse_contradictions,
)
from siltstone.base.config.table import ALL_KEYS, find_broker_key, find_key, find_topic_key
from siltstone.base.config.topic_keys import TOPIC_KEYS
from siltstone.base.config.values import (
    format_value,
    parse_assignments,
    parse_broker_config,
    parse_config_file,
    parse_stored_config,
    parse_topic_config,
    parse_value,
    split_additions,
)

__all__ = [
    "ALL_KEYS",
    "BROKER_KEYS",
    "INT_MAX",
    "LONG_MAX",
    "TOPIC_KEYS",
    "Config",
    "ConfigSource",
    "Key",
    "Kind",
    "Level",
    "LogConfig",
    "Setting",
    "Synonym",
    "Value",
    "find_broker_key",
    "find_key",
    "find_topic_key",
    "format_value",
    "parse_assignments",
    "parse_broker_config",
    "parse_config_file",
    "parse_stored_config",
    "parse_topic_config",
    "parse_value",
    "refuse_broker_contradictions",
    "refuse_contradictions",
    "split_additions",
]
