"""A directory's files with their sizes, by one scan of its names: what opening a log begins with; and files'
bytes, a part of them or all."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from siltstone.files.operations import FILE, FileStat, facts_of, open_regular


def list_all(directory: str | os.PathLike[str], *, may_go: tuple[str, ...] = ()) -> dict[str, FileStat]:
    """Every name of the directory and its own facts: of a link, not of what it points to.

    Names that end with one of ``may_go`` may be removed meanwhile. Raises FileNotFoundError when another one
    is, OSError.
    """
    found = {}
    with os.scandir(directory) as names:
        for name in names:
            try:
                found[name.name] = facts_of(name.stat(follow_symlinks=False))
            except FileNotFoundError:
                if not name.name.endswith(may_go):
                    raise
    return found


def list_files(directory: str | os.PathLike[str]) -> dict[str, FileStat]:
    """Every regular file of the directory and its facts, links left out. Raises OSError."""
    return {name: facts for name, facts in list_all(directory).items() if facts.kind == FILE}


def read_slice(path: str | os.PathLike[str], position: int, size: int) -> bytes:
    """Up to ``size`` bytes of a regular file from ``position`` on, fewer only at its end. Raises OSError."""
    descriptor = open_regular(path)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)


def mapped(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """A file's bytes, read-only and not copied: for files that nobody cuts off. Raises OSError.

    They stay as long as the array does, whatever becomes of the name.
    """
    descriptor = open_regular(path)
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
