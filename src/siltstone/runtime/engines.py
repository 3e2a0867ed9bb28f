"""The base of the services that work on open logs: the log cleaner, and side-by-side compactions.

A ``LogService`` of a ``LogManager`` claims logs and works on them in its own threads; ``close`` ends both.
Its engine, which carries out cleanings or compactions, is Spark or this process. The first call starts the
engine, and all rounds share it, since a Spark session takes seconds to start. Each round calls the engine
through an ``EngineProxy``. If a call fails for another reason than damage in a log, the engine counts as
lost: the proxy closes it, and the next call starts another one.
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
from siltstone.runtime.manager import LogManager
from siltstone.runtime.metrics import Sample

EngineT = TypeVar("EngineT")
_logger = logging.getLogger("siltstone.cleaner")


class SharedEngine(Generic[EngineT]):
    """A service's engine, for all rounds. ``start`` returns a new engine, or raises EngineError; ``stop``
    closes an engine."""

    def __init__(self, start: Callable[[], EngineT], stop: Callable[[EngineT], object] | None = None) -> None:
        self._start = start
        self._stop = stop or (lambda engine: None)
        self._lock = threading.Lock()
        self._engine: EngineT | None = None
        self._is_closed = False

    def get(self) -> EngineT:
        """Return the engine, and start one if there is none. Raises EngineError."""
        with self._lock:
            if self._is_closed:
                raise EngineError("the service is closed", advice="open the logs again")
            if self._engine is None:
                self._engine = self._start()
            return self._engine

    def stop(self, engine: EngineT) -> None:
        """Close ``engine`` if it is the current one. The next ``get`` starts another one."""
        with self._lock:
            if self._engine is not engine:
                return
            self._engine = None
        try:
            self._stop(engine)
        except Exception as error:
            _logger.warning("The engine could not be closed: %s; end its process if one is left", error)

    def close(self) -> None:
        """Close the engine, and start no other one. Jobs that run on it fail."""
        with self._lock:
            self._is_closed = True
            engine = self._engine
        if engine is not None:
            self.stop(engine)


class EngineProxy(Generic[EngineT]):
    """A proxy of the shared engine for one round. It has the engine's attributes, and each call through it
    notices when the engine is lost.

    ``proxied``: this proxy, with the type of the engine. ``failure``: why the engine was last lost, or did
    not start, in this round, also after another one has started; None if that did not happen.
    ``has_started``: the engine did start, so a log of the round may have caused its loss.
    """

    def __init__(self, shared: SharedEngine[EngineT]) -> None:
        self._shared = shared
        self.failure: Exception | None = None
        self.has_started = False
        self.proxied = cast(EngineT, self)

    @contextlib.contextmanager
    def _checked(self) -> Iterator[EngineT]:
        """Yields the engine. A SiltstoneError in the block, other than EngineError, is about a log. Any other
        exception means that the engine is lost, OSError too: the sockets to the JVM raise it.

        Raises EngineError. It has a ``__cause__`` if the engine was lost, and none if the engine did not
        start; ``compaction.inplace.cleaner.Cleaner`` relies on that.
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
                f"the engine was lost: {reason}", advice="another engine is started for the next logs"
            ) from error

    def __getattr__(self, name: str) -> Any:
        with self._checked() as engine:
            attribute = getattr(engine, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            with self._checked() as engine:
                result = getattr(engine, name)(*arguments)
            return self._checked_items(result) if isinstance(result, Iterator) else result

        return call

    def _checked_items(self, items: Iterator[Any]) -> Iterator[Any]:
        # An exception of the caller's code between two items is not raised in this block: it is no loss.
        with self._checked():
            yield from items


class LogService(abc.ABC, Closing, Generic[EngineT]):
    """Works on the logs of ``manager``; ``start_engine`` starts the engine, ``stop_engine`` closes it.

    ``states``: the cleaning states in which the service claims logs. ``_condition`` guards ``_is_closed`` and
    wakes the service's threads.
    """

    def __init__(
        self,
        manager: LogManager,
        states: CleaningStates,
        start_engine: Callable[[], EngineT],
        stop_engine: Callable[[EngineT], object] | None,
    ) -> None:
        self._manager = manager
        self._states = states
        self._shared_engine = SharedEngine(start_engine, stop_engine)
        self._condition = threading.Condition()
        self._is_started = False
        self._is_closed = False
        manager.services.append(self)

    def settings_changed(self) -> None:
        """Called when the broker's settings have changed. Every round reads them anew, so a service need not
        do anything."""

    @abc.abstractmethod
    def samples(self) -> list[Sample]:
        """The service's gauges."""

    def _claim(self, topic_partition: TopicPartition) -> Claim | None:
        """Claim a log. Returns None if its cleaning state does not allow that, or the service is closed.

        The check and the claim happen under one lock, so that no claim begins after ``close`` has set
        ``_is_closed``.
        """
        with self._condition:
            return None if self._is_closed else self._states.begin(topic_partition)

    @abc.abstractmethod
    def _end_work(self) -> None:
        """Wait until all threads of the service have ended."""

    def close(self, *, abort: bool = True) -> None:
        """Abort all work and close the engine; without ``abort``, finish the work that runs. May be called
        twice."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if abort:
            self._states.abort_all()
            self._shared_engine.close()
        self._end_work()
        self._shared_engine.close()  # not before: work that is finished needs the engine
        if self in self._manager.services:
            self._manager.services.remove(self)
