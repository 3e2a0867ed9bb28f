"""Puts files of a cleaned copy into a store, as the chunks of a restore point (``base.files.backups``).

The driver of a run calls this, and so do the tasks of an engine whose executors are other machines. A chunk
is named by its bytes, so an attempt of a task that is repeated, or runs beside another one, puts the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.files import backups
from siltstone.base.files.backups import BackedUpFile, ChunkWriter

_READABLE = 0o644
"""The mode of files whose source is an object, which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStore:
    """The prefix of a store that gets the copy; ``known_chunks``: those that it has already."""

    target: Path
    known_chunks: frozenset[str]

    def writer(self) -> ChunkWriter:
        """Puts chunks there."""
        return ChunkWriter(self.target, self.known_chunks)


def put_file(source: Path, name: str, writer: ChunkWriter) -> BackedUpFile:
    """Put a file's chunks. Those of a restore point of the same store are not read: the store copies them.
    Raises SourceChangedError, OSError."""
    status = files.stat(source, follow=False)
    stored = files.stored_chunks(source)
    is_near = stored is not None and files.is_same_store(stored.target, writer.target)
    if stored is not None and is_near and stored.chunk_bytes == backups.CHUNK_BYTES:
        chunks = writer.copy(stored.target, stored.names, status.size)
    else:
        with files.Reader(source) as reader:
            chunks = writer.put_file(reader, status.size)
    return BackedUpFile(
        name=name,
        size=status.size,
        modified_ns=status.modified_ns,
        inode=0,
        mode=_READABLE if files.is_object(source) else status.mode,
        chunks=chunks,
    )


def put_staged(staged: Mapping[str, str], store: ChunkStore) -> dict[str, BackedUpFile]:
    """Put the staged files of a segment, at the same time; paths and results by kind. The results have no
    names: the driver knows those. Raises OSError."""
    writer = store.writer()

    def put(path: str) -> BackedUpFile:
        return put_file(Path(path), "", writer)

    with ThreadPoolExecutor(max(len(staged), 1), thread_name_prefix="siltstone-put") as pool:
        return dict(zip(staged, pool.map(put, staged.values()), strict=True))
