"""The base of the services that work on open logs: the log cleaner, and side-by-side compactions.

A ``LogService`` of a ``LogManager`` claims logs, works on them in its own threads, and releases them when it
is closed. It starts its engine at the first use and keeps it, since a Spark session takes seconds to start.
Each run uses the engine through an ``EngineUse``: when a call fails for another reason than a log, the engine
counts as lost, it is closed, and the next use starts another one.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.runtime.cleaning_states import CleaningStates
from siltstone.runtime.manager import LogManager, Sample

Started = TypeVar("Started")
RETRIED = "the next run starts another engine; see the log of this one"
_logger = logging.getLogger("siltstone.cleaner")


class KeptEngine(Generic[Started]):
    """Keeps one engine: ``start`` makes it, or raises EngineError; ``stop`` closes it."""

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

    def lose(self, engine: Started) -> None:
        """Close a broken engine; the next use starts another one."""
        with self._lock:
            if self._engine is not engine:
                return
            self._engine = None
        self._let_go(engine)

    def _let_go(self, engine: Started) -> None:
        try:
            self._stop(engine)
        except Exception as error:
            _logger.warning("The engine could not be closed: %s; end its process if one is left", error)

    def close(self) -> None:
        """Close the engine; jobs that run on it fail."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            self._let_go(engine)


class EngineUse(Generic[Started]):
    """A proxy of the kept engine for one run: it has the engine's attributes, and checks every call.

    ``engine``: the proxy itself, typed as the engine. ``lost``: why the engine was lost in this run, None
    while it works. ``started``: whether it had started, so that the run's input may be the reason of the
    loss.
    """

    def __init__(self, kept: KeptEngine[Started]) -> None:
        self._kept = kept
        self.lost: Exception | None = None
        self.started = False
        self.engine = cast(Started, self)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Started]:
        """Treat every error that is not about a log as the engine's loss; Java's sockets raise OSErrors,
        too."""
        engine = None
        try:
            engine = self._kept.get()
            self.started = True
            yield engine
        except Exception as error:
            if isinstance(error, SiltstoneError) and not isinstance(error, EngineError):
                raise
            self.lost = error
            if engine is None and isinstance(error, EngineError):
                raise
            if engine is not None:
                self._kept.lose(engine)
            reason = error.reason if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            raise EngineError(f"the engine was lost: {reason}", advice=RETRIED) from error

    def __getattr__(self, name: str) -> Any:
        with self._watched() as engine:
            attribute = getattr(engine, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            with self._watched():
                answer = attribute(*arguments)
            return self._one_by_one(answer) if isinstance(answer, Iterator) else answer

        return call

    def _one_by_one(self, answers: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._watched():
                try:
                    answer = next(answers)
                except StopIteration:
                    return
            yield answer


class LogService(abc.ABC, Generic[Started]):
    """Works on the logs of ``manager``; ``engine`` starts the engine, ``stop_engine`` closes it.

    ``states``: the states under which the service claims logs.
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
        self._engine = KeptEngine(engine, stop_engine)
        self._changed = threading.Condition()
        self._started = False
        self._closed = False
        manager.services.append(self)

    def settings_changed(self) -> None:
        """The broker's settings have changed; they are read again for every run."""

    @abc.abstractmethod
    def samples(self) -> list[Sample]:
        """The service's gauges."""

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
