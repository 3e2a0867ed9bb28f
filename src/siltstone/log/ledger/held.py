"""The current ledger of a log, held for reading: nothing of it is deleted until it is let go.

What is opened is what the manifest says: a file that is missing, or has another size or, for indexes,
another checksum, is a ``LedgerError`` before anything is read. A segment's own bytes are summed up before
anything of it is read, by a thread while the segment before it is.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
from crc32c import crc32c

from siltstone import files
from siltstone.config import LogConfig
from siltstone.errors import LedgerError
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import Generation, Ledger, SegmentEntry
from siltstone.log.live_segment import LiveSegment
from siltstone.log.names import segment_file
from siltstone.log.segments import find_segment
from siltstone.records.layout import Int64

NONE_HIDDEN: Int64 = np.empty(0, np.int64)
INDEXES = ("index", "timeindex")
_SUMMED_AT_ONCE = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One segment of a ledger: ``view`` from where the one before it ends up to where the next one begins.

    ``hidden``: the offsets of its generation that are left out, int64, ascending; ``entry``: its manifest's.
    """

    view: LogView
    hidden: Int64
    entry: SegmentEntry


class HeldLedger:
    """A ledger under a shared claim on its manifest: ``ledger``; ``hidden``: generation id → offsets.

    Its logs are open, so that reading goes on even when the partition is deleted; an index is opened by who
    looks something up in it.
    """

    def __init__(
        self, folder: Path, ledger: Ledger, hidden: dict[int, Int64], claim: files.Claim | None
    ) -> None:
        """Raises LedgerError, OSError."""
        self.ledger = ledger
        self.hidden = hidden
        self._claim = claim
        self._sound: set[str] = set()
        self._ahead: dict[str, Future[int]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._over = threading.Event()
        self._views = tuple(open_generation(folder, each) for each in ledger.generations)

    def generation_views(self) -> tuple[LogView, ...]:
        """What may be read of each generation, hidden records too, in order."""
        return self._views

    def parts(self) -> tuple[Part, ...]:
        """The segments of all generations, in order. Together they reach over all that has records."""
        return tuple(
            part
            for generation, view in zip(self.ledger.generations, self._views, strict=True)
            for part in _parts_of(generation, view, self.hidden.get(generation.id, NONE_HIDDEN))
        )

    def sum_up(self, part: Part) -> None:
        """Is a part's log what was written? Read once for each. Raises LedgerError, OSError."""
        reader = part.view.segments[0].reader
        if reader.path not in self._sound:
            ahead = self._ahead.pop(reader.path, None)
            found = sum_of(reader) if ahead is None else ahead.result()
            if found != part.entry.crc:
                raise LedgerError(reader.path, "damaged: the checksum does not match")
            self._sound.add(reader.path)

    def sum_ahead(self, part: Part) -> None:
        """Begin to sum up a part that is to be read next."""
        reader = part.view.segments[0].reader
        if reader.path not in self._sound and reader.path not in self._ahead:
            self._thread = self._thread or ThreadPoolExecutor(1, "ledger")
            self._ahead[reader.path] = self._thread.submit(sum_of, reader, self._over)

    def close(self) -> None:
        """Let go of the ledger; twice is once."""
        if self._thread is not None:
            self._over.set()
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._views = ()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def __enter__(self) -> HeldLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parts_of(generation: Generation, view: LogView, hidden: Int64) -> list[Part]:
    bases = [each.base_offset for each in generation.segments]
    bounds = pairwise([generation.base_offset, *bases[1:], generation.end_offset])
    rows = zip(bounds, generation.segments, view.segments, strict=False)  # no segments: one bound, no row
    return [
        Part(view=LogView((live,), start, end, end, end, live.size), hidden=hidden, entry=entry)
        for (start, end), entry, live in rows
    ]


def generation_name(generation_id: int) -> str:
    """The name of a generation's directory."""
    return f"generation-{generation_id}"


def open_generation(folder: Path, generation: Generation) -> LogView:
    """A view of all that a generation holds, its files open. Raises LedgerError, OSError."""
    directory = folder / generation_name(generation.id)
    segments = []
    for entry in generation.segments:
        check_files(directory, entry)
        found = find_segment(directory, entry.base_offset)
        live = LiveSegment(found, LogConfig(), created_ms=found.modified_ms)
        _ = live.reader
        segments.append(live)
    end = generation.end_offset
    return LogView(
        tuple(segments), generation.base_offset, end, end, end, segments[-1].size if segments else 0
    )


def check_files(directory: Path, entry: SegmentEntry) -> None:
    """Are a segment's files there, with their sizes, and the indexes with their checksums?

    Raises LedgerError, OSError.
    """
    log = directory / segment_file(entry.base_offset, "log")
    size = size_of(log)
    if size != entry.size:
        raise LedgerError(str(log), f"has {size} bytes and should have {entry.size}")
    for kind, crc in zip(INDEXES, (entry.index_crc, entry.time_index_crc), strict=True):
        path = directory / segment_file(entry.base_offset, kind)
        if crc32c(_bytes_of(path)) != crc:
            raise LedgerError(str(path), "damaged: the checksum does not match")


def size_of(path: Path) -> int:
    """A file's size in bytes. Raises LedgerError when it is missing, OSError."""
    try:
        return files.stat(path).size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(str(path), "missing") from None


def _bytes_of(path: Path) -> bytes:
    try:
        return files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(str(path), "missing") from None


def sum_of(reader: files.Reader, over: threading.Event | None = None) -> int:
    """CRC32C of a whole file; of some of it once nobody wants to know any more."""
    buffer = np.empty(_SUMMED_AT_ONCE, np.uint8)
    crc, position = 0, 0
    while (over is None or not over.is_set()) and (got := reader.read_into(buffer, position)):
        crc = crc32c(buffer[:got].data, crc)
        position += got
    return crc


def segment_entry(directory: Path, base_offset: int) -> SegmentEntry:
    """What a manifest says of a segment, from its files. Raises OSError."""
    with files.Reader(directory / segment_file(base_offset, "log")) as reader:
        size, crc = reader.stat.size, sum_of(reader)
    index, times = (crc32c(files.read_bytes(directory / segment_file(base_offset, kind))) for kind in INDEXES)
    return SegmentEntry(base_offset=base_offset, size=size, crc=crc, index_crc=index, time_index_crc=times)
