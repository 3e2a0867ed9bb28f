"""An engine that is started when it is first needed, kept, and started anew once it was lost.

A Spark session takes seconds to start, and goes with its Java process. Whoever cleans makes an ``EngineUse``
of the engine; when a call raises EngineError the engine is taken for lost: it is closed, and the next use
starts another.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from siltstone.base.errors import EngineError, SiltstoneError
from siltstone.compaction.engine import Engine, Gathered, LogDone, WinnersFile
from siltstone.compaction.extraction import Group
from siltstone.compaction.ledger.engine import Compacted, CompactionEngine, Folded
from siltstone.compaction.ledger.staging import FoldWork
from siltstone.compaction.ledger.work import CompactionWork
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import LogWork

Started = TypeVar("Started")
_logger = logging.getLogger("siltstone.cleaner")


class KeptEngine(Generic[Started]):
    """``start`` makes an engine, or raises EngineError; ``stop`` lets go of what one holds.

    Of whatever kind: compactions beside the originals keep theirs so as well.
    """

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


class EngineUse:
    """The kept engine as one run sees it. ``lost``: why it was lost in this run, None while it was not.

    ``started``: whether it was there, so that what it was given may be why it was lost.
    """

    def __init__(self, kept: KeptEngine[Engine]) -> None:
        self._kept = kept
        self.lost: Exception | None = None
        self.started = False

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
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
            if engine is not None:
                self._kept.lose(engine)
            if isinstance(error, EngineError) and engine is None:
                raise
            said = error if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            raise EngineError(f"the engine was lost: {said}") from error

    @property
    def workers(self) -> int:
        """See ``Engine``. Raises EngineError."""
        with self._engine() as engine:
            return engine.workers

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        """See ``Engine``. Raises EngineError."""
        answers = self._answers(works)
        while True:
            with self._engine():
                done = next(answers, None)
            if done is None:
                return
            yield done

    def _answers(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        yield from self._kept.get().clean_whole(works)

    def clean_spread(self, work: LogWork) -> LogDone:
        """See ``Engine``. Raises EngineError."""
        with self._engine() as engine:
            return engine.clean_spread(work)

    def gather(self, work: LogWork) -> Gathered:
        """See ``Engine``. Raises EngineError."""
        with self._engine() as engine:
            return engine.gather(work)

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], winners: Sequence[WinnersFile]
    ) -> list[Rewritten]:
        """See ``Engine``. Raises EngineError."""
        with self._engine() as engine:
            return engine.rewrite(work, groups, winners)


# The kept engine as one compaction sees it: what an engine raises that is not about a log is its own end.


class WatchedEngine:
    """A ``CompactionEngine`` that is given up once a call fails: the next compaction starts another.

    What is wrong with a log is in an engine's answer. An exception is Java's end, whose sockets raise
    OSErrors and whatever else comes to their mind.
    """

    def __init__(self, kept: KeptEngine[CompactionEngine]) -> None:
        """Raises EngineError when none can be started."""
        self._kept = kept
        self._engine = kept.get()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[CompactionEngine]:
        try:
            yield self._engine
        except Exception as error:
            if isinstance(error, SiltstoneError) and not isinstance(error, EngineError):
                raise
            self._kept.lose(self._engine)
            said = error if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            raise EngineError(f"the engine was lost: {said}") from error

    @property
    def workers(self) -> int:
        """See ``CompactionEngine``. Raises EngineError."""
        with self._watched() as engine:
            return engine.workers

    def compact_whole(self, work: CompactionWork) -> Compacted:
        """See ``CompactionEngine``. Raises EngineError."""
        with self._watched() as engine:
            return engine.compact_whole(work)

    def compact_spread(self, work: CompactionWork) -> Compacted:
        """See ``CompactionEngine``. Raises EngineError."""
        with self._watched() as engine:
            return engine.compact_spread(work)

    def fold(self, work: FoldWork) -> Folded:
        """See ``CompactionEngine``. Raises EngineError."""
        with self._watched() as engine:
            return engine.fold(work)
