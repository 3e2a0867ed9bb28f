"""Finished batches that wait for a commit: a file an attempt of a task, and beside it what is in it.

::

    topic-N/.siltstone-writes/RUN/TASK-ATTEMPT.batches     batches one behind another, base offsets 0
                                  TASK-ATTEMPT.directory   a row a batch: where it goes, where it lies

Made with O_EXCL under a name that only one attempt has, and fsynced by it: an attempt that wakes up late can
touch only its own file. Kafka's loader passes folders in a partition's directory over. ``StagedFile`` is what
the driver is told; nothing but a committed file is ever appended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from siltstone import files
from siltstone.errors import CorruptFileError, DirectoryRefusedError
from siltstone.log.names import TopicPartition
from siltstone.log.own_folders import has_own_folder
from siltstone.records.layout import Bytes, Directory

STAGED = np.dtype(
    [
        ("topic", np.int32),
        ("partition", np.int32),
        ("position", np.int64),
        ("size", np.int32),
        ("count", np.int32),
    ],
    align=True,
)
"""One row a staged batch; ``topic`` counts in ``StagedFile.topics``."""
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """What one task wrote: ``stem`` is the path without its ending, "" for no records at all.

    ``size`` of the batches in bytes, ``directory_crc``: the directory's CRC32C; ``task`` orders the files.
    """

    task: int
    stem: str = ""
    topics: tuple[str, ...] = ()
    size: int = 0
    batches: int = 0
    records: int = 0
    directory_crc: int = 0

    def as_data(self) -> dict[str, Any]:
        """For a file of JSON."""
        return asdict(self)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> StagedFile:
        """The other way round. Raises KeyError, TypeError, ValueError."""
        numbers = ("task", "size", "batches", "records", "directory_crc")
        return cls(
            stem=str(data["stem"]),
            topics=tuple(map(str, data["topics"])),
            **{name: int(data[name]) for name in numbers},
        )

    def directory(self) -> Directory:
        """The rows of its batches. Raises CorruptFileError, DirectoryRefusedError when it is not there."""
        if not self.stem:
            return np.empty(0, STAGED)
        path = f"{self.stem}.directory"
        try:
            raw, size = files.read_bytes(path), files.stat(f"{self.stem}.batches").size
        except FileNotFoundError as error:
            raise DirectoryRefusedError(
                f"{error.filename}: what a task wrote is not there: driver and tasks have to share the file "
                "system, and nobody may remove it before it is committed"
            ) from None
        if crc32c(raw) != self.directory_crc or len(raw) != self.batches * STAGED.itemsize:
            raise CorruptFileError(path, 0, "is not what the task wrote")
        if size != self.size:
            raise CorruptFileError(
                f"{self.stem}.batches", 0, f"has {size} bytes, but {self.size} were written"
            )
        return np.frombuffer(raw, STAGED)


class StagedWriter:
    """Writes one attempt's file; the folder is made when there is something to write. Use it as a context.

    Left without ``finish``, by an error, the files are gone.
    """

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self._writer: files.Writer | None = None
        self._rows: list[tuple[int, int, int, int, int]] = []

    def put(self, topic: int, partition: int, batch: Bytes, records: int) -> None:
        """Append one batch. Raises OSError."""
        if self._writer is None:
            _make_folder(self._stem.parent)
            self._writer = files.Writer(f"{self._stem}.batches")
        self._rows.append((topic, partition, self._writer.size, len(batch), records))
        self._writer.write(batch)

    def finish(self, task: int, topics: tuple[str, ...]) -> StagedFile:
        """Make it durable. Raises OSError."""
        if self._writer is None:
            return StagedFile(task=task)
        directory = np.array(self._rows, STAGED)
        raw = directory.tobytes()
        files.write_new(f"{self._stem}.directory", raw)
        self._writer.sync()
        files.sync_directory(self._stem.parent)
        size = self._writer.size
        self._close()
        return StagedFile(
            task=task,
            stem=str(self._stem),
            topics=topics,
            size=size,
            batches=len(directory),
            records=int(directory["count"].sum()),
            directory_crc=crc32c(raw),
        )

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None

    def __enter__(self) -> StagedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._close()
            for kind in ("batches", "directory"):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(f"{self._stem}.{kind}")


def _make_folder(folder: Path) -> None:
    has_own_folder(folder.parent.parent, folder.parent.name)
    for each in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):  # another task was faster
            files.make_directory(each)
            files.sync_directory(each.parent)


def staged_batches(staged: StagedFile) -> Iterator[tuple[TopicPartition, Bytes, int]]:
    """Each batch in the order of writing: its partition, its bytes (writable, the caller's), its records.

    Raises CorruptFileError, DirectoryRefusedError, OSError.
    """
    rows = staged.directory()
    if not len(rows):
        return
    places = rows["position"].tolist()
    with files.Reader(f"{staged.stem}.batches") as reader:
        first = 0
        while first < len(rows):
            behind = int(np.searchsorted(rows["position"], places[first] + _READ_BYTES))
            behind = max(behind, first + 1)
            end = places[behind] if behind < len(rows) else staged.size
            data = np.empty(end - places[first], np.uint8)
            if reader.read_into(data, places[first]) < len(data):
                raise CorruptFileError(reader.path, places[first], "ends too early")
            for topic, partition, position, size, count in rows[first:behind].tolist():
                start = position - places[first]
                where = TopicPartition(staged.topics[topic], partition)
                yield where, data[start : start + size], count
            first = behind


def remove_staged(folder: Path) -> None:
    """Remove a run's folder, and the one that it is in where that is empty then; none is fine.

    Raises DirectoryRefusedError where another's folder, or a link, has its name.
    """
    with contextlib.suppress(FileNotFoundError):
        has_own_folder(folder.parent.parent, folder.parent.name)
        files.remove_tree(folder)
    with contextlib.suppress(OSError):
        if not files.entries(folder.parent):
            files.remove_directory(folder.parent)
