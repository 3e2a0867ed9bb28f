"""What is to be done later, and when: pure scheduling, and a thin thread that makes it go on by itself.

``Scheduler.tick(now_ms)`` carries out what is due and says what it was; nothing happens between ticks. A
task that was due several times runs once. ``Ticker`` calls ``tick`` from a thread as time passes (Kafka's
``KafkaScheduler``); tests call it themselves.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from siltstone.clock import Clock

Action = Callable[[], object]
Period = Callable[[], int]
"""The period in ms as of now; asked anew whenever the task has run."""

_LONGEST_WAIT_SECONDS = 60.0
_logger = logging.getLogger("siltstone")


class Scheduler:
    """Tasks by the time at which they are due, ms. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticking = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, str, Action, Period | None]] = []
        self.changed = threading.Event()

    def every(self, name: str, period: Period, action: Action, *, first_ms: int) -> None:
        """Run ``action`` at ``first_ms`` and from then on once a period."""
        self._push(first_ms, name, action, period)

    def at(self, when_ms: int, name: str, action: Action) -> None:
        """Run ``action`` once, at ``when_ms``."""
        self._push(when_ms, name, action, None)

    def hasten(self, name: str, when_ms: int) -> None:
        """Let the periodic task ``name`` run no later than at ``when_ms``."""
        with self._lock:
            self._waiting = [
                (min(each[0], when_ms) if each[2] == name else each[0], *each[1:]) for each in self._waiting
            ]
            heapq.heapify(self._waiting)
        self.changed.set()

    def _push(self, when_ms: int, name: str, action: Action, period: Period | None) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (when_ms, next(self._numbers), name, action, period))
        self.changed.set()

    @property
    def next_ms(self) -> int | None:
        """When the next task is due, None when there is none."""
        with self._lock:
            return self._waiting[0][0] if self._waiting else None

    def tick(self, now_ms: int) -> list[str]:
        """Carry out what is due, in order of time; the names of what was run.

        A task that raises keeps nobody else from its turn: the first error is raised at the end.
        """
        ran = []
        errors: list[Exception] = []
        with self._ticking:
            for when_ms, _, name, action, period in self._take_due(now_ms):
                ran.append(name)
                if period is not None:
                    missed = max(now_ms - when_ms, 0) // max(period(), 1)
                    self._push(when_ms + (missed + 1) * max(period(), 1), name, action, period)
                try:
                    action()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return ran

    def _take_due(self, now_ms: int) -> list[tuple[int, int, str, Action, Period | None]]:
        due = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= now_ms:
                due.append(heapq.heappop(self._waiting))
        return due


class Ticker:
    """A daemon thread that ticks as the clock goes; ``stop`` waits for the tick that is under way."""

    def __init__(self, tick: Callable[[], object], scheduler: Scheduler, clock: Clock) -> None:
        self._tick = tick
        self._scheduler = scheduler
        self._clock = clock
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="siltstone-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self._scheduler.changed.clear()
            try:
                self._tick()
            except Exception:
                _logger.exception("a periodic task failed; the others go on")
            due = self._scheduler.next_ms
            wait = _LONGEST_WAIT_SECONDS if due is None else max(due - self._clock.now_ms(), 0) / 1000
            if not self._stopped:
                self._scheduler.changed.wait(min(wait, _LONGEST_WAIT_SECONDS))

    def stop(self) -> None:
        """No further tick begins."""
        self._stopped = True
        self._scheduler.changed.set()
        self._thread.join()
