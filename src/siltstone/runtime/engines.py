"""The base of the services that work on open logs: the log cleaner, and side-by-side compactions.

A ``LogService`` of a ``LogManager`` claims logs, works on them in its own threads, and releases them when it
is closed. Its engine is started at the first call and shared by all rounds, since a Spark session takes
seconds to start. Each round calls the engine through an ``EngineProxy``: if a call fails for another reason
than a log, the engine counts as lost, it is closed, and the next call starts another one.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from siltstone.base.closing import Closing
from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.log.names import TopicPartition
from siltstone.runtime.cleaning_states import Claim, CleaningStates
from siltstone.runtime.manager import LogManager, Sample

Started = TypeVar("Started")
_logger = logging.getLogger("siltstone.cleaner")


class SharedEngine(Generic[Started]):
    """A service's engine, for all rounds: ``start`` makes it, or raises EngineError; ``stop`` closes it."""

    def __init__(self, start: Callable[[], Started], stop: Callable[[Started], object] | None = None) -> None:
        self._start = start
        self._stop = stop or (lambda engine: None)
        self._lock = threading.Lock()
        self._engine: Started | None = None
        self._closed = False

    def get(self) -> Started:
        """The engine, started if there is none. Raises EngineError."""
        with self._lock:
            if self._closed:
                raise EngineError("the service is closed", advice="open the logs again")
            if self._engine is None:
                self._engine = self._start()
            return self._engine

    def stop(self, engine: Started) -> None:
        """Close an engine, unless that was done; the next call starts another one."""
        with self._lock:
            if self._engine is not engine:
                return
            self._engine = None
        try:
            self._stop(engine)
        except Exception as error:
            _logger.warning("The engine could not be closed: %s; end its process if one is left", error)

    def close(self) -> None:
        """Close the engine for good; jobs that run on it fail."""
        with self._lock:
            self._closed = True
            engine = self._engine
        if engine is not None:
            self.stop(engine)


class EngineProxy(Generic[Started]):
    """A proxy of the shared engine for one round: it has the engine's attributes, and checks every call.

    ``engine``: the proxy itself, typed as the engine. ``failure``: why the engine was lost, or did not start,
    in this round; None while it works. ``has_started``: it did start, so a log of the round may be the reason
    of the loss.
    """

    def __init__(self, shared: SharedEngine[Started]) -> None:
        self._shared = shared
        self.failure: Exception | None = None
        self.has_started = False
        self.engine = cast(Started, self)

    @contextlib.contextmanager
    def _checked(self) -> Iterator[Started]:
        """Yields the engine. Every error that is not about a log is the engine's loss; Java's sockets raise
        OSErrors, too.

        Raises the EngineError of an engine that does not start as it is; that of a lost engine has a
        ``__cause__``, by which ``compaction.inplace.Cleaner`` tells them apart.
        """
        engine = None
        try:
            engine = self._shared.get()
            self.has_started = True
            yield engine
        except Exception as error:
            if isinstance(error, SiltstoneError) and not isinstance(error, EngineError):
                raise
            self.failure = error
            if engine is None and isinstance(error, EngineError):
                raise
            if engine is not None:
                self._shared.stop(engine)
            reason = error.reason if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            raise EngineError(
                f"the engine was lost: {reason}", advice="the next round starts another engine"
            ) from error

    def __getattr__(self, name: str) -> Any:
        with self._checked() as engine:
            attribute = getattr(engine, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            with self._checked() as engine:
                answer = getattr(engine, name)(*arguments)
            return self._checked_items(answer) if isinstance(answer, Iterator) else answer

        return call

    def _checked_items(self, items: Iterator[Any]) -> Iterator[Any]:
        # The caller's code between two items does not run inside the block: what it raises is its own.
        with self._checked():
            yield from items


class LogService(abc.ABC, Closing, Generic[Started]):
    """Works on the logs of ``manager``; ``engine`` starts the engine, ``stop_engine`` closes it.

    ``states``: the states under which the service claims logs. ``_changed`` guards ``_closed`` and wakes the
    service's threads.
    """

    def __init__(
        self,
        manager: LogManager,
        states: CleaningStates,
        engine: Callable[[], Started],
        stop_engine: Callable[[Started], object] | None,
    ) -> None:
        self._manager = manager
        self._states = states
        self._engine = SharedEngine(engine, stop_engine)
        self._changed = threading.Condition()
        self._started = False
        self._closed = False
        manager.services.append(self)

    def settings_changed(self) -> None:
        """The broker's settings have changed; they are read again for every round."""

    @abc.abstractmethod
    def samples(self) -> list[Sample]:
        """The service's gauges."""

    def _claim(self, topic_partition: TopicPartition) -> Claim | None:
        """Claim a log; None if its state does not allow that, or the service is closed.

        Under the lock, so that ``close`` aborts every claim: it sets ``_closed`` before it aborts them.
        """
        with self._changed:
            return None if self._closed else self._states.begin(topic_partition)

    @abc.abstractmethod
    def _end_work(self) -> None:
        """Wait until all threads of the service have ended."""

    def close(self, *, abort: bool = True) -> None:
        """Abort all work and close the engine; without ``abort``, finish what runs. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if abort:
            self._states.abort_all()
            self._engine.close()
        self._end_work()
        self._engine.close()
        if self in self._manager.services:
            self._manager.services.remove(self)
