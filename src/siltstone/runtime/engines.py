"""What the two services that work on open logs share: the log cleaner, and compactions beside the originals.

A ``LogService`` is an attendant of a ``LogManager``: it claims logs, works on them in threads of its own, and
lets go of them when it is closed. Its engine is started when it is first needed and kept, since a Spark
session takes seconds to start and goes with its Java process. Whoever works makes an ``EngineUse`` of it;
when a call raises EngineError the engine is taken for lost: it is closed, and the next use starts another.
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
_logger = logging.getLogger("siltstone.cleaner")


class KeptEngine(Generic[Started]):
    """``start`` makes an engine, or raises EngineError; ``stop`` lets go of what one holds."""

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
                raise EngineError("the cleaner is closed")
            if self._engine is None:
                self._engine = self._start()
            return self._engine

    def lose(self, engine: Started) -> None:
        """It is of no use any more: the next use starts another one."""
        with self._lock:
            if self._engine is not engine:
                return
            self._engine = None
        self._let_go(engine)

    def _let_go(self, engine: Started) -> None:
        try:
            self._stop(engine)
        except Exception as error:
            _logger.warning("the cleaner's engine could not be closed: %s", error)

    def close(self) -> None:
        """Let go of the engine; jobs that are under way fail."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            self._let_go(engine)


class EngineUse(Generic[Started]):
    """The kept engine as one run sees it: has all that an engine has, and every call is watched.

    ``engine``: itself, by the engine's type. ``lost``: why it was lost in this run, None while it was not.
    ``started``: whether it was there, so that what it was given may be why it was lost.
    """

    def __init__(self, kept: KeptEngine[Started]) -> None:
        self._kept = kept
        self.lost: Exception | None = None
        self.started = False
        self.engine = cast(Started, self)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Started]:
        """Whatever an engine raises that is not about a log is its own end; Java's sockets raise OSErrors."""
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
            reason = error if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            raise EngineError(f"the engine was lost: {reason}") from error

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
    """Works on the logs of ``manager`` with the engine that ``engine`` makes and ``stop_engine`` closes.

    ``states`` say who has a log, and that it is asked back.
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
        manager.attendants.append(self)

    def settings_changed(self) -> None:
        """Settings are read anew for every run."""

    @abc.abstractmethod
    def samples(self) -> list[Sample]:
        """What it is measured by."""

    @abc.abstractmethod
    def _end_work(self) -> None:
        """Wait until no thread works any more."""

    def close(self, *, abort: bool = True) -> None:
        """Let go of all logs and of the engine; twice is once. Without ``abort``, finish what was begun."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if abort:
            self._states.abort_all()
            self._engine.close()
        self._end_work()
        self._engine.close()
        if self in self._manager.attendants:
            self._manager.attendants.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
