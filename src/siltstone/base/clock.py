"""What time it is: handed in, so that tests and ``--now-ms`` can say.

Nothing else in the package reads the wall clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from siltstone.base.errors import UsageError

LATEST_MS = 253_402_300_799_999
"""The last ms of the year 9999. Who gives a later time has counted in micro- or nanoseconds."""


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


def chosen_ms(given_ms: int | None, clock: Clock) -> int:
    """The time in ms that a run goes by: what ``--now-ms`` says, else the clock's.

    Raises UsageError for a time before the epoch or after the year 9999: every horizon would have passed, or
    none, and sums with it would not fit into the 64 bits of a timestamp.
    """
    if given_ms is None:
        return clock.now_ms()
    if not 0 <= given_ms <= LATEST_MS:
        raise UsageError(
            f"--now-ms {given_ms}: no time in milliseconds since 1970; give one from 0 to {LATEST_MS} "
            "(the end of the year 9999)"
        )
    return given_ms


def time_text(at_ms: int) -> str:
    """A time for people, in UTC to the second; the number where it is none."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
