"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

Importing the package loads no Spark, no server and no web code. The packages, from the bottom up: ``base``,
``log``, ``compaction`` and ``verify``, ``runtime``, ``tables``, ``spark``, ``commands``, ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siltstone.log.retention import register_policy as register_policy
    from siltstone.runtime.embedded import Log as Log
    from siltstone.runtime.embedded import NewRecord as NewRecord
    from siltstone.runtime.embedded import append as append
    from siltstone.runtime.embedded import open as open
    from siltstone.runtime.manager import LogManager as LogManager
    from siltstone.spark.embedded import start_cleaner as start_cleaner
    from siltstone.spark.embedded import start_compaction as start_compaction
    from siltstone.spark.source import read as read

__version__ = "0.1.0"

_FACE = {
    "Log": "siltstone.runtime.embedded",
    "LogManager": "siltstone.runtime.manager",
    "NewRecord": "siltstone.runtime.embedded",
    "append": "siltstone.runtime.embedded",
    "open": "siltstone.runtime.embedded",
    "read": "siltstone.spark.source",
    "register_policy": "siltstone.log.retention",
    "start_cleaner": "siltstone.spark.embedded",
    "start_compaction": "siltstone.spark.embedded",
}
"""What the package offers by its own name, and the module that has it: loaded when it is first asked for."""
__all__ = list(_FACE)


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_FACE[name]), name)
    globals()[name] = value
    return value
