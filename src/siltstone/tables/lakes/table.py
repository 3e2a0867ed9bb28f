"""The common part of Delta and Iceberg tables: the progress of each log, data files, and the one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import TableChangedError, UsageError

DATA = "data"
"""The folder of data files in a table's directory."""
BUCKET_COLUMN = "bucket"
"""A Delta table's column with the key bucket. (In Iceberg it is a partition's value only.)"""


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """How far a log is in the table: ``end``, the first offset that it does not have.

    ``topic_id``: 63 bits of the topic's id, so that a signed 64-bit number holds it, 0 without one;
    ``start``: the log start offset at that export, 0 in a table of all records; ``leader_epoch``: of the
    record before ``end``, -1 if it is not known.
    """

    topic_id: int
    start: int
    end: int
    leader_epoch: int


Progress = Mapping[int, LogProgress]
"""By partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of the table: ``path`` is absolute, or relative to the table's directory. ``partition`` and
    ``bucket`` are -1 in a table of all records."""

    path: str
    partition: int = -1
    bucket: int = -1
    records: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The fixed properties of a table: its ``topic``, its ``columns`` (without the bucket), and
    ``buckets``, the number of key buckets of each partition; 0: the table has all records."""

    topic: str
    columns: pa.Schema
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One commit: files that appear and disappear together, and the progress of logs from then on.
    ``replaces_all``: no other log is in the table any more."""

    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    progress: Progress
    replaces_all: bool = False


class LakeTable(Protocol):
    """A table as it was when it was opened, or one that its first commit makes."""

    root: Path

    @property
    def version(self) -> int | None:
        """The version, None if there is no table yet."""
        ...

    def buckets_of(self, topic: str) -> int | None:
        """The number of key buckets; None if the table is not an export of this topic."""
        ...

    def columns(self) -> pa.Schema:
        """The table's columns, without the bucket."""
        ...

    def has_columns(self, columns: pa.Schema) -> bool:
        """Are these the table's columns?"""
        ...

    def progress(self, topic: str, partitions: Sequence[int]) -> dict[int, LogProgress]:
        """The progress of those of the partitions that are in the table."""
        ...

    def data_files(self) -> list[DataFile]:
        """All files of this version."""
        ...

    def file_schema(self, shape: TableShape) -> pa.Schema:
        """The schema that data files are written with."""
        ...

    def commit(self, shape: TableShape, change: Change) -> int:
        """Commit onto this version, and return the new one. Raises TableChangedError."""
        ...


_FOOTER_BYTES = 64 << 10
"""How much of an object's end is fetched first: most footers fit."""


def read_footer(path: Path, size: int) -> pq.FileMetaData:
    """The footer of a Parquet file of ``size`` bytes; of an object no more than its end is fetched. Raises
    OSError."""
    if not files.is_object(path):
        return pq.read_metadata(pa.py_buffer(files.map_file(path)))
    end = files.read_range(path, max(size - _FOOTER_BYTES, 0), size, size)
    needed = min(int.from_bytes(end[-8:-4], "little") + 8, size)  # footer, its length, the magic
    if needed > len(end):
        end = files.read_range(path, size - needed, size, size)
    return pq.read_metadata(pa.BufferReader(end))


def other_commit_error(root: Path) -> TableChangedError:
    """The error of an export that cannot commit, since another writer has committed since it began."""
    return TableChangedError("another export or writer has committed to the table meanwhile", path=root)


def refuse_other_directory(root: Path) -> None:
    """Raises UsageError if there is something in a directory that is no table yet, other than what an
    interrupted first export has left."""
    if not files.is_link(root) and not files.exists(root):
        return
    advice = "pass another directory, or remove it yourself"
    if not files.is_directory(root, follow=False):
        raise UsageError("the target is no directory", path=root, advice=advice)
    for entry in files.entries(root):
        is_left = entry.name in _LEFT and files.is_directory(root / entry.name, follow=False)
        if not is_left or not all(
            file.name.endswith(_LEFT[entry.name]) for file in files.entries(root / entry.name)
        ):
            reason = "the target has other files than a table of this format"
            raise UsageError(reason, path=root, advice=advice)


_LEFT = {DATA: (".parquet", ".nonce"), "metadata": (".avro", ".new"), "_delta_log": (".tmp",)}
"""By folder, how the names of files end that an interrupted first export leaves. ``.nonce``: a job's test
whether executors share the folder (``spark.executors``)."""
