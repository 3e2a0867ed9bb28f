"""What kind of place a path is in: free space, file system; and places of our own for a while."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from siltstone.base.files.operations import FILE, FileStat, facts_of, open_regular, read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a file system has left for us: bytes and inodes."""

    free_bytes: int
    free_inodes: int | None


def space(path: str | os.PathLike[str]) -> Space:
    """Free space where ``path`` is; inodes None where the file system does not count them."""
    found = os.statvfs(path)
    return Space(
        free_bytes=found.f_bavail * found.f_frsize, free_inodes=found.f_favail if found.f_files else None
    )


NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "fuse.sshfs",
        "fuse.s3fs",
        "ceph",
        "glusterfs",
        "lustre",
        "afs",
    )
)


_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
"""How the kernel writes a space, a tab, a line end or a backslash of a mount point."""


def file_system(path: str | os.PathLike[str]) -> str:
    """The name of the file system that holds ``path`` ("ext4", "nfs4"…), "" where it cannot be told."""
    real = os.path.realpath(path)
    try:
        lines = read_bytes("/proc/self/mountinfo").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(b" - ")
        mount = os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), left.split()[4]))
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, os.fsdecode(right.split()[0])
    return kind


def temporary_directory(prefix: str, parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """A directory that goes with the context that it is used as; what cannot be removed is left."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def temporary_file() -> IO[bytes]:
    """An open file without a name."""
    return tempfile.TemporaryFile()


def find_program(name: str) -> str | None:
    """The program that the shell would start, None where there is none."""
    return shutil.which(name)


def zip_package(root: Path, target: Path) -> None:
    """Zip a Python package's modules and settings, so that they can be imported from ``target``."""
    with zipfile.ZipFile(target, "w") as archive:
        for source in sorted(root.rglob("*")):
            if source.suffix in (".py", ".properties"):
                archive.write(source, Path(root.name) / source.relative_to(root))


@contextlib.contextmanager
def errors_into(descriptor: int) -> Iterator[None]:
    """Within the block, standard error is ``descriptor``: a process started there inherits it for good."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def silence_output() -> None:
    """Let standard output go nowhere: whoever read it has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


# A directory's files with their sizes, by one scan of its names: what opening a log begins with; and files'
# bytes, a part of them or all.


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
