"""Settings: one table of keys, what is in force and where it came from, and `LogConfig` for a log itself.

- ``key``: what a setting is; ``topic_keys``, ``broker_keys``: one row a setting; ``table``: by every name
- ``values``: text ↔ checked value; ``given``, ``properties``: what people write → settings
- ``resolve``: layers of settings → what is in force; ``checks``: what must hold between settings
- ``log_config``: what a log reads on every append
- ``page``: docs/configuration.md, by ``python -m siltstone.base.config``
"""

from siltstone.base.config.broker_keys import (
    BROKER_KEYS as BROKER_KEYS,
)
from siltstone.base.config.keys import (
    INT_MAX as INT_MAX,
)
from siltstone.base.config.keys import (
    LONG_MAX as LONG_MAX,
)
from siltstone.base.config.keys import (
    Key as Key,
)
from siltstone.base.config.keys import (
    Kind as Kind,
)
from siltstone.base.config.keys import (
    Level as Level,
)
from siltstone.base.config.keys import (
    Synonym as Synonym,
)
from siltstone.base.config.keys import (
    Value as Value,
)
from siltstone.base.config.log_config import (
    LogConfig as LogConfig,
)
from siltstone.base.config.resolve import (
    Config as Config,
)
from siltstone.base.config.resolve import (
    ConfigSource as ConfigSource,
)
from siltstone.base.config.resolve import (
    Setting as Setting,
)
from siltstone.base.config.resolve import (
    refuse_broker_contradictions as refuse_broker_contradictions,
)
from siltstone.base.config.resolve import (
    refuse_contradictions as refuse_contradictions,
)
from siltstone.base.config.table import (
    ALL_KEYS as ALL_KEYS,
)
from siltstone.base.config.table import (
    find_broker_key as find_broker_key,
)
from siltstone.base.config.table import (
    find_key as find_key,
)
from siltstone.base.config.table import (
    find_topic_key as find_topic_key,
)
from siltstone.base.config.topic_keys import (
    TOPIC_KEYS as TOPIC_KEYS,
)
from siltstone.base.config.values import (
    format_value as format_value,
)
from siltstone.base.config.values import (
    parse_assignments as parse_assignments,
)
from siltstone.base.config.values import (
    parse_broker_config as parse_broker_config,
)
from siltstone.base.config.values import (
    parse_config_file as parse_config_file,
)
from siltstone.base.config.values import (
    parse_stored_config as parse_stored_config,
)
from siltstone.base.config.values import (
    parse_topic_config as parse_topic_config,
)
from siltstone.base.config.values import (
    parse_value as parse_value,
)
from siltstone.base.config.values import (
    split_additions as split_additions,
)
