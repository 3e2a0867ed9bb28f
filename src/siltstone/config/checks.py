"""What must hold between settings, as in ``validateValues`` of Kafka's ``LogConfig`` and ``KafkaConfig``."""

from __future__ import annotations

from siltstone.config.resolve import Config
from siltstone.errors import UsageError

_MEBIBYTE = 1 << 20


def refuse_contradictions(config: Config) -> Config:
    """``config`` itself, where a topic's settings agree with each other. Raises UsageError."""
    shortest, longest = "min.compaction.lag.ms", "max.compaction.lag.ms"
    if config.integer(shortest) > config.integer(longest):
        raise UsageError(f"{_said(config, shortest)} is more than {_said(config, longest)}")
    return config


def refuse_broker_contradictions(config: Config) -> Config:
    """``config`` itself, where a broker's settings agree with each other. Raises UsageError."""
    refuse_contradictions(config)
    if not config.words("log.dirs"):
        raise UsageError("log.dirs names no directory")
    threads = config.integer("log.cleaner.threads")
    buffer_size = config.integer("log.cleaner.dedupe.buffer.size")
    if threads and buffer_size // threads <= _MEBIBYTE:
        raise UsageError(
            f"{_said(config, 'log.cleaner.dedupe.buffer.size')}: must be over {_MEBIBYTE} for each of "
            f"log.cleaner.threads={threads}"
        )
    return config


def _said(config: Config, name: str) -> str:
    setting = config.setting(name)
    return f"{name}={setting.value} ({setting.source})"
