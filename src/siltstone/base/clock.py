"""The clock. It is passed to all code that depends on the time, so that tests and ``--now-ms`` can set it.

No other module reads the wall clock.
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, SupportsIndex

from siltstone.base.errors import UsageError

LATEST_MS = 253_402_300_799_999
"""The last ms of the year 9999. A larger number is most likely a time in micro- or nanoseconds."""
_LIKELY_SECONDS = range(1_000_000_000, 10_000_000_000)
"""Numbers that are most likely seconds: as seconds they are times from September 2001 to the year 2286, as ms
times in the first four months of 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """A source of the time: milliseconds since the epoch, as Kafka counts them."""

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
    """A clock that moves only when it is advanced."""

    time_ms: int = 0

    def now_ms(self) -> int:
        """The time that was set, in ms."""
        return self.time_ms

    def advance(self, by_ms: int) -> None:
        """Move the clock forward by ``by_ms``."""
        self.time_ms += by_ms


def checked_ms(value: SupportsIndex, name: str) -> int:
    """A time in ms since 1970 that a program passes as ``name``. Raises UsageError for another type, and for
    a number that is far more likely in seconds."""
    try:
        time_ms = operator.index(value)
    except TypeError:
        advice = "pass a whole number of ms since 1970, such as int(1000 * when.timestamp())"
        raise UsageError(f"{name}={value!r} is not a time in ms", advice=advice) from None
    if time_ms in _LIKELY_SECONDS:
        advice = f"pass ms, such as {1000 * time_ms}"
        raise UsageError(f"{name}={time_ms} is in seconds: as ms it would be early in 1970", advice=advice)
    return time_ms


def resolve_now_ms(chosen_ms: int | None, clock: Clock) -> int:
    """The time in ms that a command uses: ``chosen_ms``, the value of ``--now-ms``, or the clock's if that is
    None.

    Raises UsageError for a time before 1970 or after the year 9999, and for one that is in seconds. With such
    a time every delete horizon would have passed, or none, or new ones would lie in 1970.
    """
    if chosen_ms is None:
        return clock.now_ms()
    chosen_ms = checked_ms(chosen_ms, "--now-ms")
    if not 0 <= chosen_ms <= LATEST_MS:
        advice = f"pass a time from 0 to {LATEST_MS} (the end of the year 9999)"
        raise UsageError(f"{chosen_ms} is not a time in ms since 1970", path="--now-ms", advice=advice)
    return chosen_ms


def iso_ms(text: str) -> int | None:
    """The ms since 1970 of a date or time in ISO 8601, in UTC unless it has a zone; None if the text is
    none."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    time_with_zone = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (time_with_zone - _EPOCH) // timedelta(milliseconds=1)


def time_text(at_ms: int) -> str:
    """A time (ms) as text, in UTC to the second; the number of ms if ``datetime`` has no such time."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def duration_text(seconds: float) -> str:
    """A duration as text: ``45 s``, ``12 min``, ``3 h 20 min``, ``5 d 2 h``."""
    whole = round(seconds)
    # From how many seconds on a unit is used; the unit and the smaller one after it, each with its seconds.
    for minimum, unit_seconds, unit, subunit_seconds, subunit in (
        (48 * 3600, 86_400, "d", 3600, "h"),
        (2 * 3600, 3600, "h", 60, "min"),
        (120, 60, "min", 0, ""),
    ):
        if whole >= minimum:
            rest = whole % unit_seconds // subunit_seconds if subunit_seconds else 0
            return f"{whole // unit_seconds:,} {unit}{f' {rest} {subunit}' if rest else ''}"
    return f"{whole} s"
