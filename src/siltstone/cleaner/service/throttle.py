"""``log.cleaner.io.max.bytes.per.second``: how long the cleaner waits before it goes on (Kafka's
``Throttler``).

Kafka's cleaner waits between buffers, and so does each task of a run here, for its share of the limit
(``cleaner.pacing``). What is done beside the tasks, as the check before a swap, is made up for after the run:
the cleaner rests until the average is within the limit. A run is kept to what may be done in
``WINDOW_SECONDS`` or to one log, whichever is more.
"""

from __future__ import annotations

WINDOW_SECONDS = 10.0


def rest_seconds(size: int, seconds: float, bytes_per_second: float) -> float:
    """How long to rest after ``size`` bytes were read and written in ``seconds``."""
    return max(size / bytes_per_second - seconds, 0.0)


def run_bytes(most: int, bytes_per_second: float) -> int:
    """How many bytes of sources a run may take: ``most`` without a limit."""
    return int(min(most, bytes_per_second * WINDOW_SECONDS))
