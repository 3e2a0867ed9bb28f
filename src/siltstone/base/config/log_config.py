"""What one log needs to know of its settings, as plain typed attributes (Kafka's ``LogConfig``).

A log reads these on every append, so they are looked up and checked once, when the settings change:
``LogConfig.of(config)``. ``LogConfig()`` is Kafka's defaults; ``dataclasses.replace`` makes another one.
A log that is handed a new one goes by it from then on: a smaller ``segment_bytes`` at its next roll, a new
policy at its next check. Attribute and key correspond by name: ``segment_bytes`` is ``segment.bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from siltstone.base.config.keys import LONG_MAX
from siltstone.base.config.resolve import Config

_DAY_MS = 86_400_000
_KEYS = {"policies": "cleanup.policy", "retention_policy": "siltstone.retention.policy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of one log. Times are in milliseconds, sizes in bytes; retention −1 is without limit."""

    policies: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_decompressed_message_bytes: int = 256 << 20
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    producer_id_expiration_ms: int = _DAY_MS
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    retention_policy: str = "kafka"
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS

    @classmethod
    def of(cls, config: Config) -> LogConfig:
        """What ``base.config`` says for one log."""
        values: dict[str, Any] = {field.name: config[key_of(field.name)] for field in fields(cls)}
        return cls(**values)

    @property
    def compacts(self) -> bool:
        """Whether the cleaner keeps the last record of each key."""
        return "compact" in self.policies

    @property
    def deletes(self) -> bool:
        """Whether old segments go by time and size."""
        return "delete" in self.policies


def key_of(attribute: str) -> str:
    """The key that an attribute of ``LogConfig`` is read from."""
    return _KEYS.get(attribute, attribute.replace("_", "."))
