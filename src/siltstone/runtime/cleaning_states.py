"""The cleaning state of each log: who may change its closed segments (Kafka's ``LogCleanerManager``).

::

              begin                       abort                   ``changing`` has ended
    None ─────────────► InProgress ────────────────► Aborted(n) ─────────────────────────► Paused(n)
     ▲ ◄──────────────────── done                                                             │
     └──────────────────────────── resume, n times ◄───── pause: Paused(n) → Paused(n + 1) ◄──┘

    here                        Kafka
    begin                       grabFilthiestCompactedLog: inProgress.put(LogCleaningInProgress)
    Claim.check                 checkCleaningAborted
    Claim.done                  doneCleaning
    abort, abort_and_pause      abortCleaning, abortAndPauseCleaning
    resume                      resumeCleaning
    try_pause                   pauseCleaningForNonCompactedPartitions (for retention)

A log without an entry is in state None. All changes are made under one lock, and waiting threads are notified
of them. A cleaner holds a ``Claim``. Most of the time it works on files of its own: an abort then takes
effect at once, and the result of the work is not used. Only while the cleaner changes the log itself
(``Claim.changing``: a swap, a checkpoint) does an abort wait, in state Aborted; in Kafka it always waits. An
aborted claim still keeps other cleaners from the log until ``done``. Side-by-side compactions have states of
their own, by the same rules.
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
    """The phase that a log is in (Kafka's ``LogCleaningState``)."""

    NONE = "None"
    IN_PROGRESS = "LogCleaningInProgress"
    ABORTED = "LogCleaningAborted"
    PAUSED = "LogCleaningPaused"


class State(NamedTuple):
    """A phase; ``pauses``: how often the log is paused, or will be once the cleaner has released it."""

    phase: Phase
    pauses: int = 0


NONE = State(Phase.NONE)
IN_PROGRESS = State(Phase.IN_PROGRESS)


def paused(pauses: int) -> State:
    """Paused so many times; None for 0."""
    return State(Phase.PAUSED, pauses) if pauses else NONE


class Claim:
    """One cleaner's right to clean a log, from ``CleaningStates.begin`` to ``done``.

    ``was_aborted``: it was aborted, or has ended: the log is no longer this cleaner's. ``is_changing``: the
    cleaner is inside ``changing``.
    """

    def __init__(self, states: CleaningStates, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.was_aborted = False
        self.is_changing = False
        self._states = states

    def check(self) -> None:
        """Raises CleaningAbortedError if the cleaning was aborted, or has ended."""
        states = self._states
        with states._changed:
            # The state alone does not say enough: after ``done`` it may be another cleaner's.
            if self.was_aborted or states._states.get(self.topic_partition) != IN_PROGRESS:
                raise CleaningAbortedError(f"the {states._work} was aborted", path=str(self.topic_partition))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Within the block the log is changed, and an abort waits for its end.

        Raises CleaningAbortedError before the block if the cleaning was aborted.
        """
        with self._states._changed:
            self.check()
            self.is_changing = True
        try:
            yield
        finally:
            with self._states._changed:
                self.is_changing = False
                self._move_on_from_aborted()

    def done(self) -> None:
        """End the claim. May be called twice."""
        states = self._states
        with states._changed:
            if states._claims.get(self.topic_partition) is not self:
                return
            del states._claims[self.topic_partition]
            # After an abort the state belongs to those that aborted: it may be Paused, or None again.
            self._move_on_from_aborted()
            if not self.was_aborted:
                self.was_aborted = True
                states._set(self.topic_partition, NONE)
            states._changed.notify_all()

    def _move_on_from_aborted(self) -> None:
        """Aborted(n) becomes Paused(n), for which ``abort_and_pause`` waits; called under the lock."""
        state = self._states._states.get(self.topic_partition, NONE)
        if state.phase is Phase.ABORTED:
            self.was_aborted = True
            self._states._set(self.topic_partition, paused(state.pauses))


class CleaningStates:
    """The states of all logs of a ``LogManager``; ``work`` names what is done to them in messages.

    ``_changed``: the lock under which states change; waiting threads are notified of every change.
    """

    def __init__(self, work: str = "cleaning") -> None:
        self._work = work
        self._changed = threading.Condition()
        self._states: dict[TopicPartition, State] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._without_compact: set[TopicPartition] = set()

    def state(self, topic_partition: TopicPartition) -> State:
        """The state of a log."""
        with self._changed:
            return self._states.get(topic_partition, NONE)

    def _set(self, topic_partition: TopicPartition, state: State) -> None:
        if state == NONE:
            self._states.pop(topic_partition, None)
        else:
            self._states[topic_partition] = state
        self._changed.notify_all()

    # Called by the cleaner

    def begin(self, topic_partition: TopicPartition) -> Claim | None:
        """Claim a log for cleaning; None unless its state is None and no earlier claim is open."""
        with self._changed:
            if topic_partition in self._states or topic_partition in self._claims:
                return None
            # An aborted claim that is not done yet counts, too: its cleaner still has files in the log's
            # directory.
            claim = self._claims[topic_partition] = Claim(self, topic_partition)
            self._set(topic_partition, IN_PROGRESS)
            return claim

    # Called by truncation, deletion, retention and changes of settings

    def abort(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log, without waiting and without a pause."""
        with self._changed:
            self._abort(topic_partition, pauses=0)

    def abort_all(self) -> None:
        """Abort the cleaning of every log that is claimed."""
        with self._changed:
            for topic_partition in self._claims:
                self._abort(topic_partition, pauses=0)

    def abort_and_pause(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log and pause it: no cleaner has it from the return of this call to
        ``resume``.

        A thread that is inside ``Claim.changing`` must not call this: it would wait for itself.
        """
        with self._changed:
            self._abort(topic_partition, pauses=1)
            # Aborted lasts until the cleaner leaves ``Claim.changing``; else the state is Paused already.
            while self._states.get(topic_partition, NONE).phase is Phase.ABORTED:
                self._changed.wait()

    def _abort(self, topic_partition: TopicPartition, pauses: int) -> None:
        if self._states.get(topic_partition, NONE).phase is not Phase.IN_PROGRESS:
            self._add_pauses(topic_partition, pauses)
            return
        and_paused = " and paused" if pauses else ""
        _logger.info("The %s for partition %s is aborted%s", self._work, topic_partition, and_paused)
        claim = self._claims[topic_partition]
        if claim.is_changing:
            # The swap under way is finished first: the end of ``Claim.changing`` makes the state Paused.
            self._set(topic_partition, State(Phase.ABORTED, pauses))
        else:
            # The cleaner only reads the log's files: ``Claim.check`` stops it before its next change.
            claim.was_aborted = True
            self._set(topic_partition, paused(pauses))

    def _add_pauses(self, topic_partition: TopicPartition, pauses: int) -> None:
        """Change how often the log is paused; it stays Aborted if it is. Called under the lock."""
        state = self._states.get(topic_partition, NONE)
        total = state.pauses + pauses
        self._set(
            topic_partition, State(Phase.ABORTED, total) if state.phase is Phase.ABORTED else paused(total)
        )
        _logger.debug("Pauses of the %s for partition %s: %d", self._work, topic_partition, total)

    def try_pause(self, topic_partition: TopicPartition) -> bool:
        """Pause the log, for retention; False if a cleaner has it, and nothing changes."""
        with self._changed:
            if self._states.get(topic_partition, NONE).phase in (Phase.IN_PROGRESS, Phase.ABORTED):
                return False
            self._add_pauses(topic_partition, 1)
            return True

    def resume(self, topic_partition: TopicPartition) -> None:
        """End one pause."""
        with self._changed:
            state = self._states.get(topic_partition, NONE)
            assert state.pauses > 0, (
                f"{topic_partition} cannot be resumed: it is in state {state.phase.value}"
            )
            self._add_pauses(topic_partition, -1)

    @contextlib.contextmanager
    def aborted_and_paused(self, topic_partition: TopicPartition) -> Iterator[None]:
        """``abort_and_pause`` for the duration of the block."""
        self.abort_and_pause(topic_partition)
        try:
            yield
        finally:
            self.resume(topic_partition)

    def set_compacts(self, topic_partition: TopicPartition, compacts: bool) -> None:
        """Pause a log once while its policy lacks ``compact``; ``compacts`` is True for a deleted
        partition."""
        with self._changed:
            if compacts and topic_partition in self._without_compact:
                self._without_compact.discard(topic_partition)
                self.resume(topic_partition)
                _logger.info("The %s for partition %s is resumed", self._work, topic_partition)
            elif not compacts and topic_partition not in self._without_compact:
                self._without_compact.add(topic_partition)
                self.abort_and_pause(topic_partition)
