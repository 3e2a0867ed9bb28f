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
    from siltstone.runtime.embedded import open as open
    from siltstone.runtime.manager import LogManager as LogManager
    from siltstone.runtime.producing import NewRecord as NewRecord
    from siltstone.runtime.producing import append as append
    from siltstone.spark.embedded import start_cleaner as start_cleaner
    from siltstone.spark.embedded import start_compaction as start_compaction
    from siltstone.spark.read import read as read

__version__ = "0.1.0"

_MODULES = {
    "siltstone.log.retention": ("register_policy",),
    "siltstone.runtime.embedded": ("Log", "open"),
    "siltstone.runtime.manager": ("LogManager",),
    "siltstone.runtime.producing": ("NewRecord", "append"),
    "siltstone.spark.embedded": ("start_cleaner", "start_compaction"),
    "siltstone.spark.read": ("read",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}
"""The public names of the package, and the module of each, which is loaded when the name is first used."""
__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
