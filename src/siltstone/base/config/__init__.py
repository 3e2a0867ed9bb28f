"""Settings: one table of keys, what is in force and where it came from, and `LogConfig` for a log itself.

- ``key``: what a setting is; ``topic_keys``, ``broker_keys``: one row a setting; ``table``: by every name
- ``values``: text ↔ checked value; ``given``, ``properties``: what people write → settings
- ``resolve``: layers of settings → what is in force; ``checks``: what must hold between settings
- ``log_config``: what a log reads on every append
- ``page``: docs/configuration.md, by ``python -m siltstone.base.config``
"""

# ruff: noqa: I001 - one import a module, each name once

from siltstone.base.config.broker_keys import (
    BROKER_KEYS as BROKER_KEYS,
)
from siltstone.base.config.keys import (
    INT_MAX as INT_MAX,
    LONG_MAX as LONG_MAX,
    Key as Key,
    Kind as Kind,
    Level as Level,
    Synonym as Synonym,
    Value as Value,
)
from siltstone.base.config.log_config import (
    LogConfig as LogConfig,
)
from siltstone.base.config.resolve import (
    Config as Config,
    ConfigSource as ConfigSource,
    Setting as Setting,
    refuse_broker_contradictions as refuse_broker_contradictions,
    refuse_contradictions as refuse_contradictions,
)
from siltstone.base.config.table import (
    ALL_KEYS as ALL_KEYS,
    find_broker_key as find_broker_key,
    find_key as find_key,
    find_topic_key as find_topic_key,
)
from siltstone.base.config.topic_keys import (
    TOPIC_KEYS as TOPIC_KEYS,
)
from siltstone.base.config.values import (
    format_value as format_value,
    parse_assignments as parse_assignments,
    parse_broker_config as parse_broker_config,
    parse_config_file as parse_config_file,
    parse_stored_config as parse_stored_config,
    parse_topic_config as parse_topic_config,
    parse_value as parse_value,
    split_additions as split_additions,
)
