"""What time it is: handed in, so that tests and ``--now-ms`` can say.

Nothing else in the package reads the wall clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the epoch, as Kafka counts them."""

    def now_ms(self) -> int:
        """The time now, in ms."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """The wall clock, in ms."""
        return time.time_ns() // 1_000_000


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is told."""

    time_ms: int = 0

    def now_ms(self) -> int:
        """The time that was set, in ms."""
        return self.time_ms

    def advance(self, by_ms: int) -> None:
        """Let ``by_ms`` pass."""
        self.time_ms += by_ms
