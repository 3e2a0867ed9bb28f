"""The logs of several directories, and where each of them is: the half of ``LogManager`` that finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from siltstone.errors import StorageError, UnknownTopicError
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.service.cleaning_states import CleaningStates
from siltstone.log.service.served_directory import ServedDirectory
from siltstone.log.service.topics import Topics
from siltstone.log.service.uncleanable import Uncleanable


class ServedLogs:
    """What ``LogManager`` is built on; nobody opens it by itself.

    ``directories``: those in service; ``topics``; ``cleaning``: which logs a cleaner has, and from which it
    is kept away; ``compacting``: the same of compactions beside the originals.
    """

    topics: Topics

    def __init__(self, directories: Sequence[ServedDirectory], offline: Mapping[Path, str]) -> None:
        self.directories = tuple(directories)
        self._unopened = dict(offline)
        self.cleaning = CleaningStates()
        self.compacting = CleaningStates("compaction")
        for served in self.directories:
            served.when_offline = self._take_from_cleaner

    def _take_from_cleaner(self, served: ServedDirectory) -> None:
        for where in list(served.logs):
            self.cleaning.abort(where)
            self.compacting.abort(where)

    @contextlib.contextmanager
    def alone_with(self, where: TopicPartition) -> Iterator[None]:
        """Within, neither a cleaner nor a compaction has the log; what they have begun is of no use."""
        with self.cleaning.kept_away(where), self.compacting.kept_away(where):
            yield

    @property
    def offline(self) -> dict[Path, str]:
        """Directories that are out of service, and why."""
        failed = {each.path: each.offline for each in self.directories if each.offline is not None}
        return {**self._unopened, **failed}

    @property
    def refused(self) -> dict[TopicPartition, str]:
        """Partitions that could not be opened, and why."""
        return {
            where: why
            for each in self.directories
            if each.offline is None
            for where, why in each.refused.items()
        }

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(where for served in self.serving() for where in served.logs))

    def __len__(self) -> int:
        return sum(len(served.logs) for served in self.serving())

    def __contains__(self, where: object) -> bool:
        return any(where in served.logs for served in self.serving())

    def __getitem__(self, where: TopicPartition | tuple[str, int]) -> PartitionLog:
        return self.get(where if isinstance(where, TopicPartition) else TopicPartition(*where))

    def serving(self) -> list[ServedDirectory]:
        """The directories that are in service."""
        return [served for served in self.directories if served.offline is None]

    def get(self, where: TopicPartition) -> PartitionLog:
        """The log of a partition.

        Raises UnknownTopicError, StorageError where it is in a directory that is offline or was refused.
        """
        return self.directory_of(where).logs[where]

    def directory_of(self, where: TopicPartition) -> ServedDirectory:
        """The directory that a partition is in. Raises as ``get`` does."""
        for served in self.serving():
            if where in served.logs:
                return served
            if where in served.refused:
                raise StorageError(f"{where}: not served: {served.refused[where]}")
        if self.topics.has(where):
            gone = ", ".join(f"{path} ({why})" for path, why in self.offline.items())
            raise StorageError(
                f"{where}: is in none of the directories in service; offline: {gone or 'none'}; "
                "name the directory that it is in, or delete the topic"
            )
        raise UnknownTopicError(f"{where}: there is no such partition here; create it first")

    # What the cleaner leaves alone

    @property
    def uncleanable(self) -> dict[TopicPartition, Uncleanable]:
        """Partitions that the cleaner leaves alone, why, and since when; kept on disk."""
        return {where: why for served in self.serving() for where, why in served.uncleanable.items()}

    def mark_uncleanable(self, where: TopicPartition, reason: str, now_ms: int) -> None:
        """The cleaner is to leave a partition alone. Raises UnknownTopicError, StorageError."""
        served = self.directory_of(where)
        with served.failing():
            served.mark_uncleanable(where, reason, now_ms)

    def retry_cleaning(self, where: TopicPartition) -> bool:
        """Let the cleaner try a partition again; False when it did not leave it alone.

        Raises UnknownTopicError, StorageError.
        """
        served = self.directory_of(where)
        with served.failing():
            return served.clear_uncleanable(where)
