"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

Importing the package loads no Spark, no server and no web code. The packages, from the bottom up: ``base``,
``log``, ``compaction`` and ``verify``, ``runtime``, ``tables``, ``spark``, ``commands``, ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siltstone.log.retention import register_policy
    from siltstone.runtime.embedded import Log, NewRecord, append, open
    from siltstone.runtime.manager import LogManager
    from siltstone.spark.embedded import start_cleaner, start_compaction
    from siltstone.spark.read import read

__all__ = [
    "Log",
    "LogManager",
    "NewRecord",
    "append",
    "open",
    "read",
    "register_policy",
    "start_cleaner",
    "start_compaction",
]
__version__ = "0.1.0"

_FACE = {
    "Log": "siltstone.runtime.embedded",
    "LogManager": "siltstone.runtime.manager",
    "NewRecord": "siltstone.runtime.embedded",
    "append": "siltstone.runtime.embedded",
    "open": "siltstone.runtime.embedded",
    "read": "siltstone.spark.read",
    "register_policy": "siltstone.log.retention",
    "start_cleaner": "siltstone.spark.embedded",
    "start_compaction": "siltstone.spark.embedded",
}
"""What the package offers by its own name, and where it lives: loaded when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_FACE[name]), name)
    globals()[name] = value
    return value
