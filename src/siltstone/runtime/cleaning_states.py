"""Who may touch a log's closed segments: the cleaner, or who makes the log shorter (``LogCleanerManager``).

::

              begin                       abort                     the cleaner has let go
    None ─────────────► InProgress ────────────────► Aborted(n) ──────────────────────────► Paused(n)
     ▲ ◄──────────────────── done                                                              │
     └──────────────────────────── resume, n times ◄───── pause: Paused(n) → Paused(n + 1) ◄───┘

No entry is None. Every change is under one lock, and whoever waits is told of it. A cleaner holds a
``Claim``. It works on files of its own most of the time: whoever aborts then has the log at once, and the
claim is *lost*, so that nothing of that work is used. Only while the cleaner changes the log itself
(``Claim.changing``: a swap, a checkpoint) does an abort wait, in Aborted. A lost claim still keeps other
cleaners away until ``done``. Compactions beside the originals have states of their own, by the same rules.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Iterator
from typing import NamedTuple

from siltstone.base.errors import CleaningAbortedError
from siltstone.log.names import TopicPartition

_logger = logging.getLogger("siltstone.cleaner")


class Phase(enum.Enum):
    """What is going on with a log, by Kafka's names."""

    NONE = "None"
    IN_PROGRESS = "LogCleaningInProgress"
    ABORTED = "LogCleaningAborted"
    PAUSED = "LogCleaningPaused"


class State(NamedTuple):
    """A phase; ``pauses``: how often it is paused, or will be once the cleaner has let go."""

    phase: Phase
    pauses: int = 0


NONE = State(Phase.NONE)
IN_PROGRESS = State(Phase.IN_PROGRESS)


def paused(pauses: int) -> State:
    """Paused that often; None for 0."""
    return State(Phase.PAUSED, pauses) if pauses else NONE


class Claim:
    """A log in the hands of one cleaner, from ``CleaningStates.begin`` to ``done``."""

    def __init__(self, states: CleaningStates, where: TopicPartition) -> None:
        self.where = where
        self.is_lost = False
        self.is_changing = False
        self._states = states

    def check(self) -> None:
        """Raises CleaningAbortedError when the log was asked back."""
        states = self._states
        with states._changed:
            if self.is_lost or states._states.get(self.where) != IN_PROGRESS:
                raise CleaningAbortedError(f"{self.where}: its {states._work} was aborted")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """The log itself is changed within; whoever wants it waits. Raises CleaningAbortedError before."""
        with self._states._changed:
            self.check()
            self.is_changing = True
        try:
            yield
        finally:
            with self._states._changed:
                self.is_changing = False
                self._let_go()

    def done(self) -> None:
        """The cleaner is through with the log; twice is once."""
        states = self._states
        with states._changed:
            if states._claims.get(self.where) is not self:
                return
            del states._claims[self.where]
            self._let_go()
            if not self.is_lost:
                self.is_lost = True
                states._set(self.where, NONE)
            states._changed.notify_all()

    def _let_go(self) -> None:
        """Whoever has waited for the log has it now; under the lock."""
        state = self._states._states.get(self.where, NONE)
        if not self.is_lost and state.phase is Phase.ABORTED:
            self.is_lost = True
            self._states._set(self.where, paused(state.pauses))


class CleaningStates:
    """The states of all logs of a ``LogManager``; ``work`` is what is done to them, in messages.

    ``_changed``: the lock under which states change, and where whoever waits is told of it.
    """

    def __init__(self, work: str = "cleaning") -> None:
        self._work = work
        self._changed = threading.Condition()
        self._states: dict[TopicPartition, State] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._without_compact: set[TopicPartition] = set()

    def state(self, where: TopicPartition) -> State:
        """What is going on with a log."""
        with self._changed:
            return self._states.get(where, NONE)

    def _set(self, where: TopicPartition, state: State) -> None:
        if state == NONE:
            self._states.pop(where, None)
        else:
            self._states[where] = state
        self._changed.notify_all()

    # The cleaner

    def begin(self, where: TopicPartition) -> Claim | None:
        """Claim a log for cleaning; None while it is anything but None, or an earlier cleaner is at it."""
        with self._changed:
            if where in self._states or where in self._claims:
                return None
            claim = self._claims[where] = Claim(self, where)
            self._set(where, IN_PROGRESS)
            return claim

    # Those who keep it away

    def abort(self, where: TopicPartition) -> None:
        """Take the log away from a cleaner that has it, without waiting and without a pause."""
        with self._changed:
            self._abort(where, pauses=0)

    def abort_all(self) -> None:
        """The same for every log that is claimed."""
        with self._changed:
            for where in self._claims:
                self._abort(where, pauses=0)

    def abort_and_pause(self, where: TopicPartition) -> None:
        """No cleaner has the log when this returns, nor will one before ``resume``.

        Not to be called by who changes the log under a claim: it would wait for itself.
        """
        with self._changed:
            self._abort(where, pauses=1)
            while self._states.get(where, NONE).phase is Phase.ABORTED:
                self._changed.wait()

    def _abort(self, where: TopicPartition, pauses: int) -> None:
        state = self._states.get(where, NONE)
        if state.phase is Phase.IN_PROGRESS:
            claim = self._claims[where]
            also = " and paused" if pauses else ""
            _logger.info("The %s for partition %s is aborted%s", self._work, where, also)
            if claim.is_changing:
                self._set(where, State(Phase.ABORTED, pauses))
            else:
                claim.is_lost = True
                self._set(where, paused(pauses))
        elif state.phase is Phase.ABORTED:
            self._set(where, State(Phase.ABORTED, state.pauses + pauses))
        else:
            self._set(where, paused(state.pauses + pauses))
            _logger.debug("Cleaning for partition %s is paused %d times", where, state.pauses + pauses)

    def try_pause(self, where: TopicPartition) -> bool:
        """Pause the log unless a cleaner has it, as retention does: False then, and nothing has changed."""
        with self._changed:
            state = self._states.get(where, NONE)
            if state.phase in (Phase.IN_PROGRESS, Phase.ABORTED):
                return False
            self._set(where, paused(state.pauses + 1))
            return True

    def resume(self, where: TopicPartition) -> None:
        """Take one pause back."""
        with self._changed:
            state = self._states.get(where, NONE)
            assert state.pauses > 0, f"{where} cannot be resumed: it is in state {state.phase.value}"
            if state.phase is Phase.ABORTED:
                self._set(where, State(Phase.ABORTED, state.pauses - 1))
            else:
                self._set(where, paused(state.pauses - 1))
            _logger.debug("A pause of partition %s is over; there are %d more", where, state.pauses - 1)

    @contextlib.contextmanager
    def kept_away(self, where: TopicPartition) -> Iterator[None]:
        """Abort and pause, and resume in the end."""
        self.abort_and_pause(where)
        try:
            yield
        finally:
            self.resume(where)

    def set_compacts(self, where: TopicPartition, compacts: bool) -> None:
        """A log whose policy lacks ``compact`` is paused once for as long as it does."""
        with self._changed:
            if compacts and where in self._without_compact:
                self._without_compact.discard(where)
                self.resume(where)
                _logger.info("Cleaning for partition %s is resumed", where)
            elif not compacts and where not in self._without_compact:
                self._without_compact.add(where)
                self.abort_and_pause(where)

    def forget(self, where: TopicPartition) -> None:
        """The partition is gone: another one of its name has a policy of its own."""
        self.set_compacts(where, True)
