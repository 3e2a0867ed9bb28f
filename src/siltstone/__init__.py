"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

Importing the package loads no Spark, no server and no web code. The rooms, from the bottom up:
``records`` (bytes and columns), ``log`` (a partition directory), ``cleaner`` (what to clean and how),
``spark`` (how the work is spread), ``app`` (the wiring) and ``cli``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siltstone.log.embedded import Log, NewRecord, append, open
    from siltstone.log.manager import LogManager

__all__ = ["Log", "LogManager", "NewRecord", "append", "open"]
__version__ = "0.1.0"

_FACE = {
    "Log": "siltstone.log.embedded",
    "LogManager": "siltstone.log.manager",
    "NewRecord": "siltstone.log.embedded",
    "append": "siltstone.log.embedded",
    "open": "siltstone.log.embedded",
}
"""What the package offers by its own name, and where it lives: loaded when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_FACE[name]), name)
    globals()[name] = found
    return found
