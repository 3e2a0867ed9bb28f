"""The cleaning state of each log: who may change its closed segments (Kafka's ``LogCleanerManager``).

::

              begin                       abort                   ``uninterrupted`` ends
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

A log without an entry is in state None, and so is one that is paused 0 times. All states change under one
lock, and every change wakes the waiting threads. A cleaner holds a ``Claim`` on each log that it cleans. Most
of the time it writes staged files only: an abort then takes effect at once, and the staged files are not
used. While the cleaner changes the log itself (``Claim.uninterrupted``: a swap, a checkpoint), an abort
waits, and the state is Aborted; in Kafka it always waits. An aborted claim still keeps other cleaners from
the log until ``done``. Side-by-side compactions have their own ``CleaningStates``, with the same rules.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Iterator
from functools import cache
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
    """The state of a log: its phase, and ``paused_count``, how often the log is paused now (Paused), or will
    be paused when the cleaner leaves ``Claim.uninterrupted`` (Aborted)."""

    phase: Phase
    paused_count: int = 0


NONE = State(Phase.NONE)
IN_PROGRESS = State(Phase.IN_PROGRESS)


@cache
def paused(paused_count: int) -> State:
    """The state Paused(``paused_count``), one object for all logs; None for a count of 0."""
    return State(Phase.PAUSED, paused_count) if paused_count else NONE


class Claim:
    """One cleaner's right to clean a log, from ``CleaningStates.begin`` to ``done``.

    ``has_ended``: the claim was aborted, or its cleaner has called ``done``. ``is_changing``: the cleaner is
    inside ``uninterrupted``.
    """

    def __init__(self, states: CleaningStates, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.has_ended = False
        self.is_changing = False
        self._states = states

    def check(self) -> None:
        """Raises CleaningAbortedError if the cleaning was aborted, or has ended."""
        states = self._states
        with states._condition:
            # The state alone does not tell: after ``done`` another cleaner may have begun.
            if self.has_ended or states._states.get(self.topic_partition) != IN_PROGRESS:
                raise CleaningAbortedError(
                    f"the {states._activity} was aborted", path=str(self.topic_partition)
                )

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """The cleaner changes the log within the block. An abort waits until the block ends.

        Raises CleaningAbortedError before the block if the cleaning was aborted.
        """
        with self._states._condition:
            self.check()
            self.is_changing = True
        try:
            yield
        finally:
            with self._states._condition:
                self.is_changing = False
                self._aborted_to_paused()

    def done(self) -> None:
        """End the claim. May be called twice."""
        states = self._states
        with states._condition:
            if states._claims.get(self.topic_partition) is not self:
                return
            del states._claims[self.topic_partition]
            # After an abort the state is up to the threads that aborted: Paused, or None again.
            self._aborted_to_paused()
            if not self.has_ended:
                self.has_ended = True
                states._set(self.topic_partition, NONE)
            states._condition.notify_all()

    def _aborted_to_paused(self) -> None:
        """Change Aborted(n) to Paused(n); ``abort_and_pause`` waits for that. Called under the lock."""
        state = self._states._states.get(self.topic_partition, NONE)
        if state.phase is Phase.ABORTED:
            self.has_ended = True
            self._states._set(self.topic_partition, paused(state.paused_count))


class CleaningStates:
    """The states of all logs of a ``LogManager``. ``activity``: "cleaning" or "compaction", for messages.

    ``_condition``: the lock under which states change; every change notifies the threads that wait.
    ``_not_compacted``: logs that are paused because their policy lacks ``compact``.
    """

    def __init__(self, activity: str = "cleaning") -> None:
        self._activity = activity
        self._condition = threading.Condition()
        self._states: dict[TopicPartition, State] = {}
        self._claims: dict[TopicPartition, Claim] = {}
        self._not_compacted: set[TopicPartition] = set()

    def state(self, topic_partition: TopicPartition) -> State:
        """The state of a log."""
        with self._condition:
            return self._states.get(topic_partition, NONE)

    def _set(self, topic_partition: TopicPartition, state: State) -> None:
        if state == NONE:
            self._states.pop(topic_partition, None)
        else:
            self._states[topic_partition] = state
        self._condition.notify_all()

    # Called by the cleaner

    def begin(self, topic_partition: TopicPartition) -> Claim | None:
        """Claim a log for cleaning. Returns None if its state is not None, or an earlier claim is not
        done."""
        with self._condition:
            if topic_partition in self._states or topic_partition in self._claims:
                return None
            # An aborted claim counts until it is done: its cleaner still has files in the log's directory.
            claim = self._claims[topic_partition] = Claim(self, topic_partition)
            self._set(topic_partition, IN_PROGRESS)
            return claim

    # Called by truncation, deletion, retention and changes of settings

    def abort(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log, without waiting and without a pause."""
        with self._condition:
            self._abort(topic_partition, pauses=0)

    def abort_all(self) -> None:
        """Abort the cleaning of every log that is claimed."""
        with self._condition:
            for topic_partition in self._claims:
                self._abort(topic_partition, pauses=0)

    def abort_and_pause(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log and pause the log: from the return of this call to ``resume`` no
        cleaner changes it.

        A thread that is inside ``Claim.uninterrupted`` must not call this: it would wait for itself.
        """
        with self._condition:
            self._abort(topic_partition, pauses=1)
            # The state is Aborted until the cleaner leaves ``Claim.uninterrupted``, or Paused already.
            while self._states.get(topic_partition, NONE).phase is Phase.ABORTED:
                self._condition.wait()

    def _abort(self, topic_partition: TopicPartition, pauses: int) -> None:
        """Abort the cleaning of a log, if there is one, and add ``pauses`` (0 or 1). Called under the
        lock."""
        if self._states.get(topic_partition, NONE).phase is not Phase.IN_PROGRESS:
            self._add_pauses(topic_partition, pauses)
            return
        and_paused = " and paused" if pauses else ""
        _logger.info("The %s for partition %s is aborted%s", self._activity, topic_partition, and_paused)
        claim = self._claims[topic_partition]
        if claim.is_changing:
            # The cleaner finishes its swap first; then ``Claim.uninterrupted`` makes the state Paused.
            self._set(topic_partition, State(Phase.ABORTED, pauses))
        else:
            # The cleaner only reads the log's files: ``Claim.check`` stops it before its next change.
            claim.has_ended = True
            self._set(topic_partition, paused(pauses))

    def _add_pauses(self, topic_partition: TopicPartition, pauses: int) -> None:
        """Add ``pauses`` (-1: end one) to the paused count; Aborted stays Aborted. Called under the lock."""
        state = self._states.get(topic_partition, NONE)
        count = state.paused_count + pauses
        self._set(
            topic_partition, State(Phase.ABORTED, count) if state.phase is Phase.ABORTED else paused(count)
        )
        _logger.debug("Pauses of the %s for partition %s: %d", self._activity, topic_partition, count)

    def try_pause(self, topic_partition: TopicPartition) -> bool:
        """Pause the log, for retention. Returns False, and changes nothing, if a cleaner has claimed the
        log."""
        with self._condition:
            if self._states.get(topic_partition, NONE).phase in (Phase.IN_PROGRESS, Phase.ABORTED):
                return False
            self._add_pauses(topic_partition, 1)
            return True

    def resume(self, topic_partition: TopicPartition) -> None:
        """End one pause."""
        with self._condition:
            state = self._states.get(topic_partition, NONE)
            assert state.paused_count > 0, (
                f"{topic_partition} cannot be resumed: it is in state {state.phase.value}"
            )
            self._add_pauses(topic_partition, -1)

    @contextlib.contextmanager
    def aborted_and_paused(self, topic_partition: TopicPartition) -> Iterator[None]:
        """Abort the cleaning of a log, and pause the log until the block ends."""
        self.abort_and_pause(topic_partition)
        try:
            yield
        finally:
            self.resume(topic_partition)

    def wait_until_unclaimed(self, topic_partition: TopicPartition, timeout: float | None = None) -> bool:
        """Wait until no cleaner has a claim on the log, also none that was aborted; False after ``timeout``
        seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: topic_partition not in self._claims, timeout)

    def set_is_compacted(self, topic_partition: TopicPartition, is_compacted: bool) -> None:
        """Pause a log while its ``cleanup.policy`` lacks ``compact``. Pass True for a deleted partition: the
        pause must not outlive it."""
        with self._condition:
            if is_compacted and topic_partition in self._not_compacted:
                self._not_compacted.discard(topic_partition)
                self.resume(topic_partition)
                _logger.info("The %s for partition %s is resumed", self._activity, topic_partition)
            elif not is_compacted and topic_partition not in self._not_compacted:
                self._not_compacted.add(topic_partition)
                self.abort_and_pause(topic_partition)
