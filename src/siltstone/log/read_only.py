"""Reading log directories without a lock and without changing a byte: a backup, or beside a live broker.

``ReadOnlyLogs`` finds the partitions; a log is looked at when it is first asked for. What a crash left is
read as the next start would leave it: a torn tail is not seen, an index that does not fit is not used. What
would have to be put right before it can be read at all is refused, with the advice to do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from siltstone.base.clock import Clock, SystemClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import DirectoryRefusedError, UnknownTopicError
from siltstone.log.directory import Checkpoints, LogDirectory, open_directories, refuse_strangers
from siltstone.log.fetch import LogView
from siltstone.log.names import TopicPartition, segment_file
from siltstone.log.producers import ProducerStates
from siltstone.log.recovery.partition import Recovered, recover_partition
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import Segment, list_segments
from siltstone.log.viewed import ViewedLog


class ReadOnlyLog(ViewedLog):
    """One partition as it was when it was opened: ``view``; ``where``, ``directory``.

    ``not_shown``: why bytes at its end are not seen, one line each; empty where all of it is.
    ``first_dirty_offset``: below it the log was cleaned, 0 where it never was.
    """

    def __init__(
        self,
        where: TopicPartition,
        directory: Path,
        view: LogView,
        not_shown: tuple[str, ...] = (),
        first_dirty_offset: int = 0,
    ) -> None:
        self.where = where
        self.directory = directory
        self.view = view
        self.not_shown = not_shown
        self.first_dirty_offset = first_dirty_offset


class ReadOnlyLogs:
    """The partitions of some log directories, or of one partition directory, by ``[topic, partition]``."""

    def __init__(self, directories: Sequence[Path | str], *, clock: Clock | None = None) -> None:
        """Raises NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError."""
        opened = open_directories([Path(each) for each in directories], lock=False)
        refuse_strangers(opened)
        self._clock = clock or SystemClock()
        self._checkpoints = [(each, each.checkpoints()) for each in opened]
        self._opened: dict[TopicPartition, ReadOnlyLog] = {}

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(where for each, _ in self._checkpoints for where in each.partitions))

    def __len__(self) -> int:
        return sum(len(each.partitions) for each, _ in self._checkpoints)

    def __contains__(self, where: object) -> bool:
        return any(where in each.partitions for each, _ in self._checkpoints)

    def directory_of(self, where: TopicPartition) -> Path:
        """A partition's directory, without a look at its log. Raises UnknownTopicError."""
        for directory, _ in self._checkpoints:
            if where in directory.partitions:
                return directory.partitions[where]
        raise UnknownTopicError(f"{where}: there is no such partition here")

    def __getitem__(self, where: TopicPartition | tuple[str, int]) -> ReadOnlyLog:
        where = where if isinstance(where, TopicPartition) else TopicPartition(*where)
        if where not in self._opened:
            for directory, checkpoints in self._checkpoints:
                if where in directory.partitions:
                    self._opened[where] = self._open(where, directory, checkpoints)
                    break
            else:
                raise UnknownTopicError(f"{where}: there is no such partition here")
        return self._opened[where]

    def _open(self, where: TopicPartition, directory: LogDirectory, checkpoints: Checkpoints) -> ReadOnlyLog:
        path = directory.partitions[where]
        recovered = recover_partition(
            path,
            clean=directory.was_stopped_cleanly,
            recovery_point=checkpoints.recovery_point.get(where, 0),
            log_start=checkpoints.log_start.get(where, 0),
            config=LogConfig(),
            now_ms=self._clock.now_ms(),
            owned=False,
            dry_run=True,
        )
        mark = checkpoints.high_watermark.get(where, recovered.log_end_offset)
        lost = (*recovered.damage, *recovered.notes) if recovered.truncated_bytes else recovered.damage
        not_shown = tuple(f"{path}: {each}" for each in lost)
        return ReadOnlyLog(where, path, _view(recovered, mark), not_shown, checkpoints.cleaner.get(where, 0))

    def close(self) -> None:
        """Let go of the logs; those that somebody holds go on."""
        self._opened = {}

    def __enter__(self) -> ReadOnlyLogs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _view(recovered: Recovered, high_watermark: int) -> LogView:
    """What recovery would leave, as a view. Raises DirectoryRefusedError where it would have to be made."""
    if recovered.finished_swaps or any(name.endswith("txnindex") for name in recovered.rebuilt_indexes):
        raise DirectoryRefusedError(
            f"{recovered.directory}: a crash left it half changed; "
            "run siltstone recover, or open it with mode='a'"
        )
    known = {segment.base_offset for segment in recovered.segments}
    gone = [each for each in list_segments(recovered.directory) if each.base_offset not in known]
    cut = recovered.truncated_bytes - sum(segment.size for segment in gone)
    segments = tuple(_live(each, recovered) for each in recovered.segments)
    end = recovered.log_end_offset
    mark = min(max(high_watermark, recovered.log_start_offset), end)
    states = ProducerStates.load(recovered.producers, end)
    active_size = max(segments[-1].size - max(cut, 0), 0) if segments else 0
    start = recovered.log_start_offset
    return LogView(segments, start, end, mark, states.last_stable_offset(mark, start), active_size)


def _live(segment: Segment, recovered: Recovered) -> LiveSegment:
    """Without the indexes that would be built again."""

    def size(kind: str, known: int) -> int:
        return 0 if segment_file(segment.base_offset, kind) in recovered.rebuilt_indexes else known

    fit = replace(
        segment,
        offset_index_size=size("index", segment.offset_index_size),
        time_index_size=size("timeindex", segment.time_index_size),
    )
    return LiveSegment(fit, LogConfig(), created_ms=segment.modified_ms)
