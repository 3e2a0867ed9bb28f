"""The store of a partition's compacted ledgers: commits a new one, opens the current one, deletes old ones.

The current ledger is the one that the cursor names. In Pulsar ``CompactorSubscription`` moves the cursor of
``__compaction``, ``CompactedTopic.newCompactedLedger`` makes a ledger the current one, and
``CompactedTopic.deleteCompactedLedger`` deletes the old one. Here::

    commit         1 rename runs ─► 2 write superseded offsets, manifest ─► 3 verify ─► 4 replace the cursor
    delete_unused  delete each manifest that is neither current nor locked by a reader ─► delete the runs that
                   are in no manifest
    delete_cursor  delete the cursor; ``delete_unused`` deletes the rest

A step is durable before the next one begins. A crash leaves the old cursor or the new one, each with all
files of its ledger, since ``delete_unused`` deletes only files that the current ledger does not need. The
caller of these three methods holds the lock of the log directory. Readers do not need that lock: they hold a
shared lock (``flock``) on their ledger's manifest.

The names in a partition's folder of ledgers::

    cursor.json        the horizon, and the id of the current ledger
    ledger-N.json      the manifest of ledger N: its runs, and sizes and checksums of their files
    ledger-N.hidden    its superseded offsets
    generation-N       run N: segments as in a log, and its key index
    run-NAME           staged files of a compaction that is in progress or was interrupted; NAME is no run's
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from msgspec.structs import replace

from siltstone.base import files
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import CheckFailedError, LedgerError
from siltstone.base.records.layout import Int64
from siltstone.log.directory import has_siltstone_folder, refuse_foreign_folder
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import (
    BY_OFFSET,
    BY_TIME,
    WRONG_CHECKSUM,
    Cursor,
    Ledger,
    Run,
    SegmentEntry,
    broken_rule,
    decode_cursor,
    decode_manifest,
    decode_superseded,
    encode_cursor,
    encode_manifest,
    encode_superseded,
    manifest_name,
    superseded_name,
)
from siltstone.log.names import COMPACTED, segment_file
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import find_segment

NONE_SUPERSEDED: Int64 = np.empty(0, np.int64)
"""The superseded offsets of a run that has none."""

_BUFFER_BYTES = 256 << 10  # of a read for a checksum
_logger = logging.getLogger("siltstone")

# Reading: ``delete_unused`` deletes no file of a ledger that is open.
#
# Opening a ledger checks that the logs in its manifest exist with their sizes, and the indexes with their
# checksums. The checksum of a segment's log is verified before the segment is read. A thread computes that
# checksum while the reader reads the segment before.


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSegment:
    """One segment of a ledger. ``view``: its records, and the range of offsets that it covers in its run.

    ``superseded``: the superseded offsets of its run, int64, ascending. ``entry``: its entry in the manifest.
    """

    view: LogView
    superseded: Int64
    entry: SegmentEntry


class OpenLedger:
    """A ledger that is open for reading: this process holds a shared lock on its manifest. ``segments``:
    those of all runs, ascending.

    Their logs are open, so a reader can read them even after the partition was deleted. An index is opened at
    its first lookup.
    """

    def __init__(self, folder: Path, ledger: Ledger, superseded: dict[int, Int64], lock: files.Flock) -> None:
        """Raises LedgerError, OSError."""
        self.ledger = ledger
        self._lock = lock
        # Paths of the logs whose checksums are verified, and of those whose checksums the thread computes.
        self._verified: set[str] = set()
        self._checksums: dict[str, Future[int]] = {}
        self._thread = ThreadPoolExecutor(1, "ledger")  # starts its thread at the first ``submit``
        self._close_requested = threading.Event()
        self.segments = tuple(
            segment
            for run in ledger.runs
            for segment in open_run_segments(folder, run, superseded.get(run.id, NONE_SUPERSEDED))
        )

    def verify_segment(self, segment: LedgerSegment) -> None:
        """Verify the checksum of a segment's log, once. Raises LedgerError, OSError."""
        reader = segment.view.segments[0].reader
        if reader.path not in self._verified:
            future = self._checksums.pop(reader.path, None)
            checksum = file_checksum(reader) if future is None else future.result()
            if checksum != segment.entry.crc:
                raise LedgerError(reader.path, WRONG_CHECKSUM)
            self._verified.add(reader.path)

    def start_verification(self, segment: LedgerSegment) -> None:
        """Begin to compute, in the thread, the checksum of the segment that is read next."""
        reader = segment.view.segments[0].reader
        if reader.path not in self._verified and reader.path not in self._checksums:
            self._checksums[reader.path] = self._thread.submit(file_checksum, reader, self._close_requested)

    def close(self) -> None:
        """Close the ledger and release its lock. May be called twice."""
        self._close_requested.set()
        self._thread.shutdown(cancel_futures=True)
        self.segments = ()
        self._lock.release()


def run_name(run_id: int) -> str:
    """The name of a run's directory."""
    return f"generation-{run_id}"


def open_run_segments(folder: Path, run: Run, superseded: Int64) -> Iterator[LedgerSegment]:
    """The segments of a run, their files open. Raises LedgerError, OSError."""
    directory = folder / run_name(run.id)
    # A segment covers the offsets up to the base offset of the next segment. The first one covers those from
    # the run's base offset on, whatever its own base offset is (see ``manifest._segments_fit``).
    starts = [run.base_offset, *(entry.base_offset for entry in run.segments[1:])]
    ends = [*starts[1:], run.end_offset]
    # Not strict: a run may cover offsets without having a record or a segment.
    for entry, start, end in zip(run.segments, starts, ends, strict=False):
        check_files(directory, entry)
        segment = find_segment(directory, entry.base_offset)
        live_segment = LiveSegment(segment, LogConfig(), created_ms=segment.modified_ms)
        _ = live_segment.reader  # opens the log
        view = LogView(
            segments=(live_segment,),
            log_start_offset=start,
            high_watermark=end,
            last_stable_offset=end,
            log_end_offset=end,
            active_size=live_segment.size,
        )
        yield LedgerSegment(view=view, superseded=superseded, entry=entry)


def check_files(directory: Path, entry: SegmentEntry) -> None:
    """Check that a segment's files exist: the log with its size, the indexes with their checksums.

    Raises LedgerError, OSError.
    """
    _check_size(directory / segment_file(entry.base_offset, "log"), entry.size)
    for kind, checksum in (("index", entry.index_crc), ("timeindex", entry.time_index_crc)):
        _check_checksum(directory / segment_file(entry.base_offset, kind), checksum)


def _check_checksum(path: Path, expected: int) -> None:
    """Raises LedgerError for a file that is missing or has another checksum, OSError."""
    with _must_exist(path), files.Reader(path) as reader:
        if file_checksum(reader) != expected:
            raise LedgerError(str(path), WRONG_CHECKSUM)


@contextlib.contextmanager
def _must_exist(path: Path) -> Iterator[None]:
    """Raise LedgerError if the block does not find the file ``path``."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(str(path), "the file is missing") from None


def _check_size(path: Path, expected: int) -> None:
    """Raises LedgerError for a file that is missing or has another size, OSError."""
    with _must_exist(path):
        size = files.stat(path).size
    if size != expected:
        raise LedgerError(str(path), f"the file has {size} bytes instead of {expected}")


def _read(path: Path) -> bytes:
    with _must_exist(path):
        return files.read_bytes(path)


def file_checksum(reader: files.Reader, stop: threading.Event | None = None) -> int:
    """The CRC32C of a whole file. If ``stop`` is set meanwhile, it returns early, and the result means
    nothing."""
    buffer = np.empty(_BUFFER_BYTES, np.uint8)
    crc, position = 0, 0
    while (stop is None or not stop.is_set()) and (count := reader.read_into(buffer, position)):
        crc = crc32c(buffer[:count].data, crc)
        position += count
    return crc


# The checks of a new ledger before its files are renamed.

KEYS = "keys"
"""The file of a run's key index: the hashes of its keys, by which the next compaction finds what it
supersedes (``compaction.ledger.keys``). A run without records has none."""
_COMMIT_FAILED = "the cursor has not moved: readers have the ledger before it; compact the log again"


def check_staged(
    folder: Path, ledger: Ledger, superseded: Mapping[int, Int64], staged: Mapping[int, Path]
) -> None:
    """Check that the ledger breaks no rule and that its staged files are as its manifest says.

    Raises CheckFailedError, OSError.
    """
    broken = broken_rule(ledger)
    for run in () if broken else ledger.runs:
        broken = broken or _superseded_problem(run, superseded.get(run.id, NONE_SUPERSEDED))
    if broken:
        raise CheckFailedError(f"ledger {ledger.id}: {broken}", path=folder, advice=_COMMIT_FAILED)
    for run in ledger.runs:
        if run.id in staged:
            _check_run(staged[run.id], run)


def _superseded_problem(run: Run, offsets: Int64) -> str:
    """What is wrong with a run's superseded offsets; empty if nothing is."""
    if len(offsets) != run.superseded:
        return f"{len(offsets)} offsets of run {run.id} are superseded, but {run.superseded} were counted"
    bounded = np.concatenate(([run.base_offset - 1], offsets, [run.end_offset]))
    if (np.diff(bounded) <= 0).any():
        return f"the superseded offsets of run {run.id} do not ascend within its bounds"
    return ""


def _check_sizes(directory: Path, run: Run) -> None:
    """Check that a run's logs and its key index exist with their sizes. Raises LedgerError, OSError."""
    for segment in run.segments:
        _check_size(directory / segment_file(segment.base_offset, "log"), segment.size)
    if run.keys_size:
        _check_size(directory / KEYS, run.keys_size)


def _check_run(directory: Path, run: Run) -> None:
    """Compare a staged run's files with its manifest entries. Raises CheckFailedError, OSError."""
    try:
        _check_sizes(directory, run)
        for entry in run.segments:
            check_files(directory, entry)
            _check_checksum(directory / segment_file(entry.base_offset, "log"), entry.crc)
        if run.keys_size:
            _check_checksum(directory / KEYS, run.keys_crc)
    except LedgerError as error:
        reason = f"run {run.id}: {error.reason}"
        raise CheckFailedError(reason, path=error.path, advice=_COMMIT_FAILED) from error


CURSOR = "cursor.json"
_LEDGER_FILE_PATTERN = re.compile(r"ledger-(?P<id>\d+)\.(?P<kind>json|hidden)\Z", re.ASCII)
_RUN_PATTERN = re.compile(r"generation-(?P<id>\d+)\Z", re.ASCII)
_UNFINISHED_PATTERN = re.compile(r"(run-.+|cursor\.json\.tmp)\Z")
_OPEN_ATTEMPTS, _OPEN_PAUSE_S = 100, 0.005
"""How often ``LedgerStore.open`` tries to lock a manifest that another thread or process deletes or locks,
and how long it waits in between."""


class LedgerStore:
    """The ledgers of a partition directory, in ``folder``, which the first compaction creates."""

    def __init__(self, partition_directory: Path) -> None:
        self.folder = partition_directory / COMPACTED
        self._partition_directory = partition_directory

    # Reading

    def cursor(self) -> Cursor | None:
        """The cursor, None if the log has no ledger. Raises LedgerError, OSError."""
        path = self.folder / CURSOR
        try:
            data = files.read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return decode_cursor(path, data)

    def current(self) -> Ledger | None:
        """The ledger that the cursor names, None without a cursor. Raises LedgerError, also if a file of the
        ledger is missing, and OSError."""
        while (cursor := self.cursor()) is not None:
            try:
                ledger = self._ledger_of(cursor)
                for run in ledger.runs:
                    _check_sizes(self.folder / run_name(run.id), run)
                return ledger
            except LedgerError:
                if self.cursor() == cursor:  # otherwise a commit replaced the cursor meanwhile: try again
                    raise
        return None

    def _ledger_of(self, cursor: Cursor) -> Ledger:
        """The ledger that the cursor names. Raises LedgerError if their horizons differ, OSError."""
        ledger = self._load(cursor.ledger_id)
        if ledger.horizon != cursor.horizon:
            raise LedgerError(
                str(self.folder / CURSOR),
                f"the cursor has horizon {cursor.horizon}, but its ledger {ledger.id} has {ledger.horizon}",
            )
        return ledger

    def _load(self, ledger_id: int) -> Ledger:
        path = self.folder / manifest_name(ledger_id)
        return decode_manifest(path, _read(path))

    def superseded(self, ledger: Ledger) -> dict[int, Int64]:
        """Run id → the offsets that later runs have superseded: int64, ascending.

        Runs without any are left out. Raises LedgerError, OSError.
        """
        if ledger.superseded_crc is None:
            return {}
        path = self.folder / superseded_name(ledger.id)
        superseded = decode_superseded(path, _read(path), ledger)
        counts = {run.id: run.superseded for run in ledger.runs if run.superseded}
        if {run: len(offsets) for run, offsets in superseded.items()} != counts:
            raise LedgerError(str(path), "the number of superseded offsets is not that of the manifest")
        return superseded

    def open(self) -> OpenLedger | None:
        """Open the current ledger for reading; None without one. ``delete_unused`` keeps its files until it
        is closed. Raises LedgerError, OSError.
        """
        for _ in range(_OPEN_ATTEMPTS):
            cursor = self.cursor()
            if cursor is None:
                return None
            try:
                lock = files.Flock(self.folder / manifest_name(cursor.ledger_id))
            except (FileNotFoundError, BlockingIOError):
                if self.cursor() == cursor:
                    self.current()  # raises with the file that is missing
                    # All files are there: ``_try_lock_exclusively`` holds the lock for a moment.
                    time.sleep(_OPEN_PAUSE_S)
                continue
            with contextlib.ExitStack() as stack:
                stack.callback(lock.release)
                if self.cursor() == cursor:
                    ledger = self._ledger_of(cursor)
                    opened = OpenLedger(self.folder, ledger, self.superseded(ledger), lock)
                    stack.pop_all()
                    return opened
        reason = f"the ledger was replaced or locked {_OPEN_ATTEMPTS} times while it was opened"
        raise LedgerError(str(self.folder / CURSOR), reason, advice="try again")

    def first_needed_offset(self) -> int | None:
        """The first offset of the log that the next compaction, or a reader of a ledger, still needs.

        Retention must not delete records from that offset on. None without a ledger. Raises OSError, and
        LedgerError for a damaged ledger, which may have to be rebuilt from all records of the log.
        """
        ledger = self.current()
        horizons = [] if ledger is None else [ledger.horizon]
        for number in self._ledgers():
            if ledger is not None and number == ledger.id:
                continue
            lock = self._try_lock_exclusively(number)
            if lock is not None:  # no reader has it open
                lock.release()
                continue
            try:
                horizons.append(self._load(number).horizon)
            except LedgerError:
                if files.exists(self.folder / manifest_name(number)):  # otherwise it was deleted meanwhile
                    raise
        return min(horizons, default=None)

    def is_ordered_by_offset(self) -> bool:
        """Are there manifests, and do all say that their ledger is ordered by offset? False if one is
        corrupt, or the current ledger's is missing. Raises OSError."""
        try:
            return {self._load(number).order for number in self._needed_ledgers()} == {BY_OFFSET}
        except LedgerError:
            return False

    def _needed_ledgers(self) -> list[int]:
        """The ids of the ledgers that have a manifest, and of the current one even if its manifest is
        missing, ascending. Raises OSError."""
        current = set[int]()
        with contextlib.suppress(LedgerError):
            cursor = self.cursor()
            current = set() if cursor is None else {cursor.ledger_id}
        return sorted(current.union(self._ledgers()))

    def _try_lock_exclusively(self, ledger_id: int) -> files.Flock | None:
        """An exclusive lock on a ledger's manifest; None if a reader has it open, or if it does not exist."""
        try:
            return files.Flock(self.folder / manifest_name(ledger_id), exclusive=True)
        except (BlockingIOError, FileNotFoundError):
            return None

    def _ledgers(self) -> list[int]:
        """The ids of the ledgers that have a manifest, ascending."""
        matches = self._matches(_LEDGER_FILE_PATTERN)
        return sorted({int(match["id"]) for match in matches if match["kind"] == "json"})

    def _matches(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """The matches of the pattern among the names in the folder."""
        if not files.is_directory(self.folder):
            return []
        matches = (pattern.match(entry.name) for entry in files.entries(self.folder))
        return [match for match in matches if match is not None]

    # Changing

    def next_ids(self) -> tuple[int, int]:
        """(id for the next ledger, first id for its new runs): no file has these ids yet."""
        cursor = self.cursor()
        ledgers = [int(match["id"]) for match in self._matches(_LEDGER_FILE_PATTERN)]
        ledgers += [] if cursor is None else [cursor.ledger_id]
        runs = [int(match["id"]) for match in self._matches(_RUN_PATTERN)]
        return max(ledgers, default=-1) + 1, max(runs, default=-1) + 1

    def make_folder(self) -> None:
        """Create ``folder`` if it is missing. Raises OSError, and DirectoryRefusedError if something else has
        its name."""
        if not has_siltstone_folder(self._partition_directory, COMPACTED):
            files.make_directory(self.folder)
            files.sync_directory(self._partition_directory)

    def make_staging(self, name: str) -> Path:
        """Create a folder for the staged files of a compaction. Raises FileExistsError, and what
        ``make_folder`` raises."""
        self.make_folder()
        path = self.folder / f"run-{name}"
        if files.exists(path):
            raise FileExistsError(errno.EEXIST, "a compaction of this name exists", str(path))
        files.make_directory(path)
        files.sync_directory(self.folder)
        return path

    def commit(self, ledger: Ledger, superseded: Mapping[int, Int64], staged: Mapping[int, Path]) -> Ledger:
        """Make a ledger the current one, durably; returns it with its ``superseded_crc``.

        ``superseded``: run id → superseded offsets, int64, strictly ascending. ``staged``: id of a new run →
        its directory, complete and durable. Raises CheckFailedError when a check fails: the cursor is
        unchanged then. After an OSError the cursor is the old one or the new one.
        """
        bases = {run.id: run.base_offset for run in ledger.runs}
        superseded = {number: offsets for number, offsets in superseded.items() if len(offsets)}
        if unknown := (set(superseded) | set(staged)) - set(bases):
            reason = f"ledger {ledger.id} has no runs {sorted(unknown)}"
            raise CheckFailedError(reason, path=self.folder, advice=_COMMIT_FAILED)
        data = encode_superseded(ledger.id, bases, superseded)
        ledger = replace(ledger, superseded_crc=crc32c(data) if superseded else None)
        check_staged(self.folder, ledger, superseded, staged)
        self._refuse_overtaken(ledger)
        # Steps 1 to 3: the cursor does not name the new ledger yet. After a crash ``delete_unused`` deletes
        # its files.
        self._rename_runs(staged)
        if superseded:
            files.write_new(self.folder / superseded_name(ledger.id), data)
        files.write_new(self.folder / manifest_name(ledger.id), encode_manifest(ledger))
        files.sync_directory(self.folder)
        self._check_written(ledger)
        # Step 4: one rename moves the cursor, so that readers open the new ledger.
        cursor = Cursor(horizon=ledger.horizon, ledger_id=ledger.id)
        files.replace(self.folder / CURSOR, encode_cursor(cursor))
        return ledger

    def _refuse_overtaken(self, ledger: Ledger) -> None:
        """Raises CheckFailedError if another compaction has committed a later ledger meanwhile."""
        cursor = self.cursor()
        if cursor is not None and (ledger.id <= cursor.ledger_id or ledger.horizon < cursor.horizon):
            raise CheckFailedError(
                f"ledger {ledger.id} with horizon {ledger.horizon} does not follow ledger "
                f"{cursor.ledger_id} with horizon {cursor.horizon}, which another compaction has committed",
                path=self.folder,
                advice=_COMMIT_FAILED,
            )

    def _rename_runs(self, staged: Mapping[int, Path]) -> None:
        for number, path in sorted(staged.items()):
            files.rename(path, self.folder / run_name(number))
        for folder in (*{path.parent for path in staged.values()}, self.folder):
            files.sync_directory(folder)

    def _check_written(self, ledger: Ledger) -> None:
        """Verify the new ledger from disk before the cursor moves to it. Raises CheckFailedError."""
        try:
            written = self._load(ledger.id)
            self.superseded(written)
            for run in written.runs:
                list(open_run_segments(self.folder, run, NONE_SUPERSEDED))
            if written != ledger:
                path = self.folder / manifest_name(ledger.id)
                raise LedgerError(str(path), "the manifest differs from the ledger that was written")
        except LedgerError as error:
            raise CheckFailedError(error.reason, path=error.path, advice=_COMMIT_FAILED) from error

    def delete_cursor(self) -> None:
        """Delete the cursor, durably; ``delete_unused`` deletes the ledger's files. Raises
        DirectoryRefusedError, OSError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            refuse_foreign_folder(self._partition_directory, COMPACTED)
            files.unlink(self.folder / CURSOR)
            files.sync_directory(self.folder)

    def delete_unused(self, keep: Collection[str] = ()) -> list[str]:
        """Delete all files that neither the current ledger nor a reader needs; returns their names.

        ``keep``: the names of staging folders of compactions in progress. If a manifest that must stay is
        corrupt, or the current ledger's is missing, all runs stay. Raises LedgerError for a corrupt cursor,
        DirectoryRefusedError, OSError."""
        if not has_siltstone_folder(self._partition_directory, COMPACTED):
            return []
        cursor = self.cursor()
        removed = []
        for number in self._ledgers():
            if cursor is not None and number == cursor.ledger_id:
                continue
            lock = self._try_lock_exclusively(number)
            if lock is not None:
                with lock:
                    removed.append(self._remove(manifest_name(number)))
        ledgers = self._needed_ledgers()
        ledger_files = self._matches(_LEDGER_FILE_PATTERN)
        orphans = [
            match for match in ledger_files if match["kind"] == "hidden" and int(match["id"]) not in ledgers
        ]
        unfinished = self._matches(_UNFINISHED_PATTERN)
        runs = self._unreferenced_runs(ledgers)
        if runs:
            # First make the deletions of manifests durable. Otherwise a crash could bring a manifest back,
            # but not its runs.
            files.sync_directory(self.folder)
        matches = (*orphans, *runs, *unfinished)
        unused = [match[0] for match in matches if match[0] not in keep]  # ``match[0]``: the name
        removed += [self._remove(name) for name in unused]
        if removed:
            files.sync_directory(self.folder)
        return removed

    def _unreferenced_runs(self, ledgers: list[int]) -> list[re.Match[str]]:
        """The directories of runs that are in no manifest; none if a manifest is corrupt or missing."""
        try:
            referenced = {run.id for number in ledgers for run in self._load(number).runs}
        except LedgerError:
            return []
        return [match for match in self._matches(_RUN_PATTERN) if int(match["id"]) not in referenced]

    def _remove(self, name: str) -> str:
        path = self.folder / name
        if files.is_directory(path, follow=False):
            files.remove_tree(path)
        else:
            files.unlink(path)
        return name


# What a log does with its ledger when it is opened, truncated or cleaned. A corrupt ledger stops none of
# these; what changes the ledger's files logs a warning.
#
# If a ledger covers offsets beyond the log's end, its cursor is deleted, since new records will get these
# offsets. This happens before a truncation, so that a crash never leaves the shorter log with that ledger. If
# a crash has shortened the log, it happens when the log is opened, before the first append.


def delete_cursor_beyond(directory: Path, end_offset: int) -> None:
    """Delete a partition's cursor if the log ends, or will end, below its horizon. Raises
    DirectoryRefusedError, OSError."""
    store = LedgerStore(directory)
    try:
        cursor = store.cursor()
    except LedgerError as error:
        _logger.warning("%s", error)
        return
    if cursor is not None and cursor.horizon > end_offset:
        store.delete_cursor()
        _logger.warning(
            "%s: removed compacted ledger %d, since it covers offsets below %d and the log now ends at %d; "
            "compact the log again",
            directory,
            cursor.ledger_id,
            cursor.horizon,
            end_offset,
        )


def recover_ledgers(directory: Path, end_offset: int) -> None:
    """Recover a partition's ledgers when its log is opened for writing: delete the cursor of a ledger that
    covers offsets beyond the log's end, and files that are not needed. Raises DirectoryRefusedError,
    OSError."""
    if not has_siltstone_folder(directory, COMPACTED):
        return
    delete_cursor_beyond(directory, end_offset)
    try:
        LedgerStore(directory).delete_unused()
    except LedgerError as error:
        _logger.warning("%s", error)


class CleaningBounds(NamedTuple):
    """What cleaning in place must leave for the next side-by-side compaction: tombstones from offset
    ``tombstones_from`` on, and all records from offset ``clean_below`` on.

    A tombstone at or above the horizon stays until a compaction has applied it to the ledger, which may have
    a record with its key. If the ledger is ordered by time, nothing at or above its horizon is cleaned: a
    cleaning compares offsets, and could discard the record with the latest timestamp of its key.
    """

    tombstones_from: int = LONG_MAX
    clean_below: int = LONG_MAX


def cleaning_bounds(partition: Path) -> CleaningBounds:
    """The bounds that a partition's ledger sets to cleaning in place. Raises OSError.

    If the ledger is corrupt, all tombstones stay. The ledger then counts as one that is ordered by time,
    unless all manifests can be read and say otherwise: nothing at or above the cursor's horizon is cleaned,
    and nothing at all if the cursor is corrupt, too.
    """
    store = LedgerStore(partition)
    try:
        ledger = store.current()
    except LedgerError:
        clean_below = LONG_MAX if store.is_ordered_by_offset() else _horizon_or_limit(store)
        return CleaningBounds(tombstones_from=0, clean_below=clean_below)
    if ledger is None:
        return CleaningBounds()
    return CleaningBounds(ledger.horizon, ledger.horizon if ledger.order == BY_TIME else LONG_MAX)


def _horizon_or_limit(store: LedgerStore) -> int:
    """The cursor's horizon, 0 if it is corrupt, no limit if it was deleted meanwhile. Raises OSError."""
    try:
        cursor = store.cursor()
    except LedgerError:
        return 0
    return LONG_MAX if cursor is None else cursor.horizon
