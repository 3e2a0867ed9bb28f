"""A directory's files with their sizes, by one scan of its names: what opening a log begins with; and files'
bytes, a part of them or all."""

from __future__ import annotations

import mmap
import os
import stat

import numpy as np
import numpy.typing as npt

from siltstone.files.operations import FileStat


def list_files(directory: str | os.PathLike[str]) -> dict[str, FileStat]:
    """Every regular file of the directory and its facts, links left out. Raises OSError."""
    found = {}
    with os.scandir(directory) as names:
        for name in names:
            facts = name.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                found[name.name] = FileStat(
                    size=facts.st_size,
                    modified_ns=facts.st_mtime_ns,
                    inode=facts.st_ino,
                    device=facts.st_dev,
                    owner=facts.st_uid,
                    group=facts.st_gid,
                    mode=facts.st_mode & 0o7777,
                    links=facts.st_nlink,
                )
    return found


def read_slice(path: str | os.PathLike[str], position: int, size: int) -> bytes:
    """Up to ``size`` bytes of a file from ``position`` on, fewer only at its end. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)


def mapped(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """A file's bytes, read-only and not copied: for files that nobody cuts off. Raises OSError.

    They stay as long as the array does, whatever becomes of the name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
