"""Lists the contents of a log directory: each log with the bytes of its segments, indexes and left-overs, and
what is beside the logs.

::

    DIR/users-0/…0.log  .index .timeindex          segments, indexes
    DIR/users-0/…0.log.swap .cleaned .deleted      left-overs of a swap or a deletion that has not ended
    DIR/users-0/.siltstone/                        staged by a cleaning, or left by one that was interrupted
    DIR/users-0/.compacted/                        compacted ledgers
    DIR/users-0.8b3f…-delete/                      a deleted topic, until file.delete.delay.ms has passed

Nothing is locked or changed. Reading all logs takes time, so it is done in the background (``scans``).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.commands import console
from siltstone.commands.listing import LongList
from siltstone.commands.row_texts import RowTexts
from siltstone.commands.scans import LastScan, Report, no_report
from siltstone.commands.served import Served
from siltstone.log import names
from siltstone.log.names import parse_partition, parse_segment_file
from siltstone.runtime.topics import TopicSettings

SEGMENTS, INDEXES, LEDGERS = "segments", "indexes", "compacted ledgers"
LEFT_OVERS, DELETED_TOPICS = "left-overs of swaps and cleanings", "deleted topics"
MOVED, OTHER = "replicas that move or are stray", "other files"
_FOLDERS = {names.STAGING: LEFT_OVERS, names.STAGED_WRITES: LEFT_OVERS, names.COMPACTED: LEDGERS}
"""The kind of the files in a folder of a log, by the folder's name."""
_WHY = {
    ".swap": "a swap that has not ended: the next start completes it",
    ".cleaned": "a cleaning that was interrupted: the next start removes it",
    ".deleted": "replaced or expired: it is removed when file.delete.delay.ms has passed",
    names.STAGING: "staged by a cleaning that runs, or was interrupted",
    names.STAGED_WRITES: "a table's write that waits for its commit",
    "-delete": "a deleted topic: it is removed when file.delete.delay.ms has passed",
    "-future": "a replica that moves to this directory",
    "-stray": "a replica that no longer belongs to the broker",
}
"""Why a left-over is there, by the suffix of its name, or by the name of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOnDisk:
    """The files of a log: their bytes by kind; ``bytes``: the sum."""

    topic: str
    partition: int
    bytes: int
    segments: int
    indexes: int
    left_overs: int
    ledgers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """A file or folder that is no part of a log of its topic, or that cannot be read (then ``bytes`` and
    ``modified_ms`` are 0): its path in the directory, its bytes, and why it is there."""

    path: str
    bytes: int
    modified_ms: int
    why: str


@dataclass(slots=True, kw_only=True)
class DirectoryContents:
    """One directory. ``shares``: bytes by kind; ``free_bytes``, ``total_bytes``: of its file system, None if
    unknown; ``offline``: why it is offline, None if it is not; ``keys``: the sort keys of ``logs``, by
    column; ``names``: the names of their topics, for filters."""

    path: str
    in_use: bool
    was_stopped_cleanly: bool
    offline: str | None
    free_bytes: int | None
    total_bytes: int | None
    logs: list[LogOnDisk] = field(default_factory=list)
    left_overs: list[LeftOver] = field(default_factory=list)
    shares: Counter[str] = field(default_factory=Counter)
    keys: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=lambda: _keys_of(()))
    names: RowTexts = field(default_factory=lambda: RowTexts(()))

    @property
    def used_bytes(self) -> int | None:
        """Bytes of its file system that are not free, whatever uses them."""
        known = self.total_bytes is not None and self.free_bytes is not None
        return (self.total_bytes or 0) - (self.free_bytes or 0) if known else None

    @property
    def rows(self) -> LongList[LogOnDisk]:
        """The logs as a list that is sorted and filtered."""
        keys: dict[str, Callable[[], npt.NDArray[np.int64]]] = {
            name: partial(self.keys.__getitem__, name) for name in self.keys
        }
        return LongList(
            count=len(self.logs),
            make=self.logs.__getitem__,
            rows_with=self.names.rows_with,
            keys=keys,
        )


def paths_of(served: Served) -> Sequence[str]:
    """The log directories, in the order of their numbers."""
    return list(served.catalogue.directories) or [str(path) for path in served.paths]


def path_of(served: Served, number: int) -> Path:
    """The directory of this number. Raises UsageError if there is none."""
    paths = paths_of(served)
    if not 0 <= number < len(paths):
        raise UsageError(f"there is no directory {number}", advice=f"pass 0 to {len(paths) - 1}")
    return Path(paths[number])


def last_scan(served: Served, number: int) -> LastScan[DirectoryContents]:
    """A directory as the last scan has found it; see ``scans``. Raises UsageError if no directory has this
    number."""
    path = path_of(served, number)
    return served.scans.of(f"directory {path}", lambda report: contents_of(served, path, report))


def contents_of(served: Served, path: Path, report: Report = no_report) -> DirectoryContents:
    """The contents of a directory, the largest log first. Raises SiltstoneError, OSError if it cannot be
    read."""
    contents = outline(served, path)
    if contents.offline is not None:
        return contents
    settings, entries = served.snapshot().settings, list(files.entries(path))
    for number, entry in enumerate(entries):
        report(number, len(entries))
        try:
            if entry.is_directory and parse_partition(entry.name) is not None:
                _add_log(contents, path, entry.name, settings)
            else:
                _add_other(contents, path, entry)
        except FileNotFoundError:
            continue  # deleted or renamed meanwhile
        except OSError as error:
            why = f"it cannot be read: {error.strerror or error}"
            contents.left_overs.append(LeftOver(path=entry.name, bytes=0, modified_ms=0, why=why))
    contents.logs.sort(key=lambda log: -log.bytes)
    contents.left_overs.sort(key=lambda left: -left.bytes)
    contents.keys = _keys_of(contents.logs)
    contents.names = RowTexts(log.topic for log in contents.logs)
    return contents


def _keys_of(logs: Sequence[LogOnDisk]) -> Mapping[str, npt.NDArray[np.int64]]:
    """The sort keys of the logs, by column."""
    number_of = {topic: number for number, topic in enumerate(sorted({log.topic for log in logs}))}
    names = ("partition", "bytes", "segments", "indexes", "left_overs", "ledgers")
    columns = {name: [getattr(log, name) for log in logs] for name in names}
    columns["topic"] = [number_of[log.topic] for log in logs]
    return {name: np.array(values, np.int64) for name, values in columns.items()}


def outline(served: Served, path: Path) -> DirectoryContents:
    """The contents of a directory, as far as they are known without reading its logs."""
    free = None
    with contextlib.suppress(OSError):
        free = files.free_space(path)
    return DirectoryContents(
        path=str(path),
        in_use=served.catalogue.directories.get(str(path), False),
        was_stopped_cleanly=console.was_stopped_cleanly(str(path)),
        offline=console.offline_directories(served).get(str(path)),
        free_bytes=None if free is None else free.free_bytes,
        total_bytes=None if free is None else free.total_bytes,
    )


def _add_log(contents: DirectoryContents, root: Path, name: str, settings: TopicSettings) -> None:
    """Add a log; also to the left-overs if it has the topic id of another topic."""
    sizes = Counter[str]()
    # Any file may vanish meanwhile: every name ends with "".
    for file_name, status in files.list_all(root / name, may_vanish=("",)).items():
        size, parsed = status.size, parse_segment_file(file_name)
        kind = OTHER
        if status.kind == files.DIRECTORY:
            size = _tree_size(root / name / file_name)
            kind = _FOLDERS.get(file_name, OTHER)
        elif parsed is not None:
            kind = LEFT_OVERS if parsed.suffix else SEGMENTS if parsed.kind == "log" else INDEXES
        sizes[kind] += size
        if kind == LEFT_OVERS:
            suffix = parsed.suffix if parsed is not None else file_name
            _add_left_over(contents, f"{name}/{file_name}", size, status.modified_ns, suffix)
    contents.shares.update(sizes)
    log = _log(name, sizes)
    contents.logs.append(log)
    try:
        mismatch = settings.topic_mismatch(log.topic, root / name)
    except CorruptFileError as error:
        mismatch = str(error)
    if mismatch is not None:
        modified_ms = files.stat(root / name, follow=False).modified_ns // 1_000_000
        why = f"it is no log of topic {log.topic}: {mismatch}"
        contents.left_overs.append(LeftOver(path=name, bytes=log.bytes, modified_ms=modified_ms, why=why))


def _log(name: str, sizes: Counter[str]) -> LogOnDisk:
    topic_partition = parse_partition(name)
    assert topic_partition is not None
    return LogOnDisk(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        bytes=sizes.total(),
        segments=sizes[SEGMENTS],
        indexes=sizes[INDEXES],
        left_overs=sizes[LEFT_OVERS],
        ledgers=sizes[LEDGERS],
    )


def _add_other(contents: DirectoryContents, root: Path, entry: files.Entry) -> None:
    """Add an entry that is no log: a deleted or moving log, a checkpoint, a file of another program."""
    status = files.stat(root / entry.name, follow=False)
    size = _tree_size(root / entry.name) if entry.is_directory else status.size
    suffix = next((ending for ending in ("-delete", "-future", "-stray") if entry.name.endswith(ending)), "")
    kind = {"-delete": DELETED_TOPICS, "": OTHER}.get(suffix, MOVED) if entry.is_directory else OTHER
    contents.shares[kind] += size
    if kind != OTHER:
        _add_left_over(contents, entry.name, size, status.modified_ns, suffix)


def _add_left_over(contents: DirectoryContents, path: str, size: int, modified_ns: int, ending: str) -> None:
    """``ending``: a key of ``_WHY``."""
    why = _WHY.get(ending, "")
    left_over = LeftOver(path=path, bytes=size, modified_ms=modified_ns // 1_000_000, why=why)
    contents.left_overs.append(left_over)


def _tree_size(path: Path) -> int:
    """The bytes of all files below a folder; 0 if it cannot be read, or one is removed meanwhile."""
    with contextlib.suppress(OSError):
        return files.tree_size(path)
    return 0
