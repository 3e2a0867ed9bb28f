"""How an engine is spoken to, and the one that needs no Spark."""

from __future__ import annotations

from typing import Protocol


class CompactionEngine(Protocol):
    """What the compactor asks of whoever spreads the work."""

    @property
    def workers(self) -> int:
        """How many tasks run at one time."""
        ...


class InProcessCompactionEngine:
    """Everything here and now, one piece after another."""

    workers = 1
