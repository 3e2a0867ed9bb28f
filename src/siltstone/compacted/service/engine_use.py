"""The kept engine as one compaction sees it: what an engine raises that is not about a log is its own end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from siltstone.cleaner.service.kept_engine import KeptEngine
from siltstone.compacted.engine import Compacted, CompactionEngine, Folded
from siltstone.compacted.staging import FoldWork
from siltstone.compacted.work import CompactionWork
from siltstone.errors import EngineError, SiltstoneError


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
