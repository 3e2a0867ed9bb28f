"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

Importing the package loads no Spark, no server and no web code. The rooms, from the bottom up:
``records`` (bytes and columns), ``log`` (a partition directory), ``cleaner`` (what to clean and how),
``spark`` (how the work is spread), ``app`` (the wiring) and ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siltstone.log.service.embedded import Log, NewRecord, append, open
    from siltstone.log.service.manager import LogManager
    from siltstone.log.service.retention import register_policy
    from siltstone.spark.embedded import start_cleaner, start_compaction
    from siltstone.spark.source.face import read

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
    "Log": "siltstone.log.service.embedded",
    "LogManager": "siltstone.log.service.manager",
    "NewRecord": "siltstone.log.service.embedded",
    "append": "siltstone.log.service.embedded",
    "open": "siltstone.log.service.embedded",
    "read": "siltstone.spark.source.face",
    "register_policy": "siltstone.log.service.retention",
    "start_cleaner": "siltstone.spark.embedded",
    "start_compaction": "siltstone.spark.embedded",
}
"""What the package offers by its own name, and where it lives: loaded when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_FACE[name]), name)
    globals()[name] = found
    return found
