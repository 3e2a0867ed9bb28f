"""Uploads the files of a cleaned copy (clean --out to an object store), rewritten or not, as chunks.

The restore point that names the chunks is written last, by ``inplace.stored_copy`` (the formats of both:
``base.files.backups``). Who puts a file::

    unchanged files of a source in a store    Spark's tasks, if the engine is Spark
    new segments                              the task that wrote them, if executors may be other machines
    all other files                           the process that runs the command

A chunk is named by the SHA-256 of its bytes, so a retried or speculative attempt of a task puts the same
chunks again.
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
"""The mode of files whose source is in a store: an object has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStore:
    """The store that takes a copy's chunks, as tasks get it. ``target``: the prefix of the copy in the object
    store; ``known_chunks``: the names of the chunks that are there already, which are not uploaded again."""

    target: Path
    known_chunks: frozenset[str]

    def writer(self) -> ChunkWriter:
        """A writer that puts chunks into the store."""
        return ChunkWriter(self.target, self.known_chunks)


def put_file(source: Path, name: str, writer: ChunkWriter) -> BackedUpFile:
    """Put a file's chunks. ``name``: its path in the copy. A restore point can be read as a directory; if
    ``source`` is a file of one in the same store, the store itself copies its chunks, and they are not read.
    Raises SourceChangedError, OSError."""
    status = files.stat(source, follow=False)
    stored = files.stored_chunks(source)
    is_same_store = stored is not None and files.is_same_store(stored.target, writer.target)
    # A restore point has chunks of one size; those of another size are read and cut again.
    if stored is not None and is_same_store and stored.chunk_bytes == backups.CHUNK_BYTES:
        chunks = writer.copy(stored.target, stored.names, status.size)
    else:
        with files.Reader(source) as reader:
            chunks = writer.put_file(reader, status.size)
    return BackedUpFile(
        name=name,
        size=status.size,
        modified_ns=status.modified_ns,
        inode=0,  # no file's inode, so that a later backup never takes its file for this one, unchanged
        mode=_READABLE if files.is_object(source) else status.mode,
        chunks=chunks,
    )


def put_staged(staged: Mapping[str, str], store: ChunkStore) -> dict[str, BackedUpFile]:
    """Put the staged files of a segment, in parallel. Both mappings have the file's kind (log, index, …) as
    key. The results have no names: the driver knows those. Raises SourceChangedError, OSError."""
    writer = store.writer()

    def put(path: str) -> BackedUpFile:
        return put_file(Path(path), "", writer)

    with ThreadPoolExecutor(max(len(staged), 1), thread_name_prefix="siltstone-put") as pool:
        return dict(zip(staged, pool.map(put, staged.values()), strict=True))
