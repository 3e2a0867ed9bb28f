"""Settings: one table of keys, what is in force and where it came from, `LogConfig` for a log itself."""

from siltstone.config.log_config import LogConfig
from siltstone.config.table import (
    BROKER_KEYS,
    INT_MAX,
    LONG_MAX,
    TOPIC_KEYS,
    Config,
    Key,
    Setting,
    find_key,
    parse_assignments,
    parse_config_file,
    parse_value,
)

__all__ = [
    "BROKER_KEYS",
    "INT_MAX",
    "LONG_MAX",
    "TOPIC_KEYS",
    "Config",
    "Key",
    "LogConfig",
    "Setting",
    "find_key",
    "parse_assignments",
    "parse_config_file",
    "parse_value",
]
