"""Directories of this machine with files of a remote storage joined to them, which are only read.

::

    path       joined://LOCAL+REMOTE+RUN/users-0/00000000000000000000.log    LOCAL, REMOTE and RUN are
               joined://LOCAL+REMOTE+RUN+OTHER+…/users-0/…       percent-quoted, so they have no slashes
    file       one of LOCAL, or a ``JoinedFile``: bytes of a remote file under a name that LOCAL does not have
    source     the remote file as it is; a range of it; or chunks of it that are decompressed one by one

The path says all that a process needs, so a worker of Spark finds the same files as its driver. RUN is
another text in each run, so that a worker uses no listing that it made for an earlier run. OTHER are the
broker's other log directories: one of them may have the partition of ``__remote_log_metadata`` that lists a
log's remote segments. The function that ``find_with`` was passed (``log.tiered``) chooses which files are
joined to a directory; it is called when the directory is listed, and its result holds until the next listing.
A remote file is read in ranges, as any object is, and never as a whole unless it is small; only the chunks
that are needed are decompressed, one at a time. Each read is of the version that was listed (If-Match with
its ETag).

These paths are never shown: errors name the remote object, or the local file (``shown``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import zstandard

from siltstone.base import errors
from siltstone.base.errors import CorruptFileError
from siltstone.base.files import objects
from siltstone.base.files.objects import SMALL_BYTES, ObjectStatus, Windows

if TYPE_CHECKING:
    from siltstone.base.files import FileStat

_SCHEME = "joined:/"
"""How a joined path begins as a ``Path``, which has only one of the slashes."""
_FORM = re.compile(r"joined:/+([^/+]*)\+([^/+]*)\+([^/+]*)((?:\+[^/+]*)*)(?:/+(.*))?\Z", re.DOTALL)
_IN_TEXT = re.compile(r"joined:/+[^/+\s]*(?:\+[^/+\s]*){2,}(?:/+[\w.-]+)*")
"""A joined path within a text."""
_LARGEST_ZSTD_WINDOW = 128 << 20
"""A frame that declares a larger window (in bytes) is refused."""
_CHANGED = "the file was replaced while it was read"


class JoinedPlace(NamedTuple):
    """The parts of a joined path. ``run``: another text in each run. ``beside``: the broker's other log
    directories (OTHER). ``inside``: the path below ``local``, "" for the directory itself."""

    local: str
    remote: str
    run: str
    beside: tuple[str, ...]
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """Where the zstd frames of a log's chunks are.

    ``chunk_size``: bytes of every chunk but the last, before compression. ``log_size``: bytes of all chunks
    together. ``starts``: int64, where each frame begins, and the end of the last one.
    """

    chunk_size: int
    log_size: int
    starts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedFile:
    """A remote file, or a part of one, under a name of its own.

    ``path``: the remote file. ``origin``: its status when it was listed. ``stat``: the status of what is
    joined. ``position``: where that begins in the remote file, or, with ``chunks``, in what they decompress
    to.
    """

    path: str
    origin: FileStat
    stat: FileStat
    position: int = 0
    chunks: ChunkTable | None = None

    @property
    def is_whole(self) -> bool:
        """Is it the whole remote file, with its bytes as they are stored?"""
        return self.chunks is None and self.position == 0 and self.stat.size == self.origin.size


JoinedFiles = Mapping[str, JoinedFile]
"""The files that are joined to a directory, by name."""
Finder = Callable[[JoinedPlace], JoinedFiles]
"""Chooses the files that are joined to a directory directly below LOCAL."""

_finder: Finder | None = None
_known: dict[JoinedPlace, JoinedFiles] = {}
"""What the finder returned last for each directory."""


def find_with(finder: Finder) -> None:
    """Let ``finder`` choose which files are joined to directories, from now on."""
    global _finder  # noqa: PLW0603 - set once, when the package of logs is imported
    _finder = finder


def is_joined(path: str | os.PathLike[str] | int) -> bool:
    """Is it a path of this module?"""
    return _place(path) is not None


def join(local: Path, remote: str, *, run: str = "", beside: Sequence[Path] = ()) -> Path:
    """The path of a directory with a remote storage joined to it. What is known of this pair from earlier
    listings is forgotten."""
    for place in [place for place in list(_known) if place[:2] == (os.fspath(local), remote)]:
        _known.pop(place, None)
    parts = (os.fspath(local), remote, run, *map(os.fspath, beside))
    return Path(f"{_SCHEME}/{'+'.join(quote(part, safe='') for part in parts)}")


def place_of_joined(path: str | os.PathLike[str]) -> JoinedPlace:
    """The parts of a path for which ``is_joined`` holds."""
    place = _place(path)
    assert place is not None, path
    return place


def _place(path: str | os.PathLike[str] | int) -> JoinedPlace | None:
    """The parts of a joined path, None for any other path."""
    text = path if isinstance(path, (str, int)) else os.fspath(path)
    if not isinstance(text, str) or not text.startswith(_SCHEME):
        return None
    match = _FORM.match(text)
    if match is None:
        return None
    local, remote, run = map(unquote, match.group(1, 2, 3))
    beside = tuple(map(unquote, match[4].split("+")[1:]))
    return JoinedPlace(local, remote, run, beside, (match[5] or "").rstrip("/"))


def joined_files(path: str | os.PathLike[str], *, again: bool) -> JoinedFiles:
    """The files that are joined to the directory ``path``; ``again``: call the finder even if it was called
    for this directory before. Raises OSError, SiltstoneError."""
    return _files_of(place_of_joined(path), again=again)


def _files_of(place: JoinedPlace, *, again: bool) -> JoinedFiles:
    """``joined_files``; none for a directory that is not directly below LOCAL, where partitions are."""
    if not place.inside or "/" in place.inside or _finder is None:
        return {}
    if again or place not in _known:
        _known[place] = _finder(place)
    return _known[place]


def located(path: str | os.PathLike[str]) -> tuple[str | os.PathLike[str], JoinedFile | None]:
    """(the path where the bytes are, what is joined there): for a joined path that of the local or of the
    remote file, else ``path`` itself. Raises OSError, SiltstoneError."""
    place = _place(path)
    if place is None:
        return path, None
    folder, _, name = place.inside.rpartition("/")
    if folder and "/" not in folder:
        file = _files_of(place._replace(inside=folder), again=False).get(name)
        if file is not None:
            return file.path, file
    return local_path(place), None


def local_path(place: JoinedPlace) -> str:
    """The path in the local directory."""
    return f"{place.local}/{place.inside}" if place.inside else place.local


def shown(text: str) -> str:
    """A text as it is shown, with the paths of the remote or the local files in place of joined ones. The
    finder is not called."""
    return _IN_TEXT.sub(lambda match: _shown_path(match[0]), text) if _SCHEME in text else text


def _shown_path(path: str) -> str:
    place = place_of_joined(path)
    folder, _, name = place.inside.rpartition("/")
    file = _known.get(place._replace(inside=folder), {}).get(name)
    return local_path(place) if file is None else _with_slashes(file.path)


def _with_slashes(path: str) -> str:
    """The path of a remote file as its address: that of an object with both slashes."""
    return str(objects.place_of(path)) if objects.is_object(path) else path


errors.show_paths_with(shown)


class _MountedFile:
    """A file of a remote storage that is a directory of this machine (``LocalTieredStorage``): opened without
    following a link, and only if it is still the one that was listed."""

    def __init__(self, file: JoinedFile) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._path = file.path
        self._descriptor = -1
        self._descriptor = os.open(file.path, flags)
        status = os.fstat(self._descriptor)
        if (status.st_ino, status.st_size, status.st_mtime_ns) != file.origin.identity:
            raise OSError(errno.ESTALE, _CHANGED, file.path)

    def read_into(self, buffer: npt.NDArray[np.uint8], position: int) -> int:
        view, done = memoryview(buffer.data), 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], position + done)
            if count == 0:
                raise OSError(errno.ESTALE, _CHANGED, self._path)
            done += count
        return done

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


@functools.lru_cache(maxsize=16)
def _small_object(path: str, status: ObjectStatus) -> npt.NDArray[np.uint8]:
    """All bytes of a small object, kept for the next reads: one object has several indexes of a segment."""
    data = np.empty(status.size, np.uint8)
    windows = Windows(path, status)
    windows.read_into(data, 0)
    return data


class JoinedReader:
    """The bytes of a ``JoinedFile``. Several threads may read."""

    def __init__(self, file: JoinedFile) -> None:
        """Raises OSError."""
        self._file = file
        self._source: _MountedFile | Windows | None = None
        self._status = ObjectStatus(file.origin.size, file.origin.modified_ns, file.origin.etag)
        self._is_object = objects.is_object(file.path)
        self._chunk = -1, b""  # (number, bytes) of the chunk that was decompressed last; -1: none yet
        self._reading = threading.Lock()
        if not self._is_object:
            self._source = _MountedFile(file)

    def read_into(self, buffer: np.ndarray[Any, Any], position: int) -> int:
        """Fill ``buffer`` from ``position``; returns the bytes read, fewer only at the end. Raises OSError,
        CorruptFileError."""
        view = np.frombuffer(buffer.data, np.uint8)
        wanted = max(min(len(view), self._file.stat.size - position), 0)
        with self._reading:
            if self._file.chunks is None:
                return self._stored_into(view[:wanted], self._file.position + position)
            done = 0
            while done < wanted:
                at = self._file.position + position + done
                number, offset = divmod(at, self._file.chunks.chunk_size)
                part = np.frombuffer(self._decompressed(number, self._file.chunks), np.uint8)[offset:]
                part = part[: wanted - done]
                view[done : done + len(part)] = part
                done += len(part)
            return done

    def _stored_into(self, view: npt.NDArray[np.uint8], position: int) -> int:
        """Fill ``view`` with bytes of the remote file itself."""
        if self._is_object and self._status.size <= SMALL_BYTES and self._status.etag is not None:
            view[:] = _small_object(self._file.path, self._status)[position : position + len(view)]
            return len(view)
        if self._source is None:
            self._source = Windows(self._file.path, self._status)
        return self._source.read_into(view, position)

    def _decompressed(self, number: int, chunks: ChunkTable) -> bytes:
        """The bytes of a chunk; the last one is kept. Raises CorruptFileError, OSError."""
        if self._chunk[0] == number:
            return self._chunk[1]
        start, end = int(chunks.starts[number]), int(chunks.starts[number + 1])
        size = min(chunks.chunk_size, chunks.log_size - number * chunks.chunk_size)
        stored = np.empty(end - start, np.uint8)
        self._stored_into(stored, start)
        self._chunk = number, _one_frame(stored.data, size, self._file.path, start)
        return self._chunk[1]

    def close(self) -> None:
        """Close the file; nothing is read after that."""
        if self._source is not None:
            with contextlib.suppress(OSError):
                self._source.close()
        self._chunk = -1, b""


def _one_frame(data: memoryview, size: int, path: str, position: int) -> bytes:
    """Decompress one zstd frame that must have ``size`` bytes. Raises CorruptFileError before it allocates
    more."""
    reason = None
    try:
        declared = zstandard.frame_content_size(data)
        if declared >= 0 and declared != size:
            reason = f"the chunk's frame declares {declared} bytes, but the manifest {size}"
        else:
            decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
            frame = decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
            if len(frame) == size:
                return frame
            reason = f"the chunk decompresses to {len(frame)} bytes, but the manifest says {size}"
    except zstandard.ZstdError as error:
        reason = f"the chunk is no whole zstd frame of {size} bytes ({error})"
    raise CorruptFileError(path, position, reason)
