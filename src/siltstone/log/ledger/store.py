"""The store of a partition's ledgers: commits a new one, opens the current one, deletes old ones.

Pulsar's counterparts: ``CompactorSubscription`` moves the cursor of ``__compaction``, and with it
``CompactedTopic.newCompactedLedger`` the horizon; ``CompactedTopic.deleteCompactedLedger`` deletes the old
ledger::

    commit    1 rename the runs ─► 2 write superseded offsets and manifest ─► 3 verify ─► 4 replace the cursor
    collect   delete a manifest that is neither current nor held by a reader ─► runs that no manifest names
    forget    delete the cursor; ``collect`` deletes the rest

Each arrow is a sync. A crash leaves the old cursor or the new one, each with all of its files, since
``collect`` deletes only files that no cursor leads to. The caller of ``commit``, ``collect`` and ``forget``
has the directory's lock, and compacts the partition alone. Readers need no lock: they hold a shared claim
(``flock``) on the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import threading
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
from siltstone.log.directory import has_siltstone_folder
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import (
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

# A ledger that is open for reading: ``collect`` deletes none of its files until it is closed.
#
# Opening it checks that all files of the manifest are there, with their sizes and, for indexes, checksums.
# The checksum of a segment's log is verified before the segment is read, in a thread while the reader is
# still at the segment before.

NONE_SUPERSEDED: Int64 = np.empty(0, np.int64)

_BUFFER_BYTES = 256 << 10
_logger = logging.getLogger("siltstone")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSegment:
    """One segment of a ledger: ``view`` from where the one before it ends up to where the next one begins.

    ``superseded``: the superseded offsets of its run, int64, ascending; ``entry``: the one in the manifest.
    """

    view: LogView
    superseded: Int64
    entry: SegmentEntry


class HeldLedger:
    """A ledger under a shared claim on its manifest. ``parts``: the segments of all runs, in order, which
    together have all records.

    Its logs are open, so that they can be read even when the partition is deleted. An index is opened at its
    first lookup.
    """

    def __init__(
        self, folder: Path, ledger: Ledger, superseded: dict[int, Int64], claim: files.Flock
    ) -> None:
        """Raises LedgerError, OSError."""
        self.ledger = ledger
        self._claim = claim
        self._verified: set[str] = set()
        self._ahead: dict[str, Future[int]] = {}
        self._thread = ThreadPoolExecutor(1, "ledger")  # begins with the first call
        self._closed = threading.Event()
        self.parts = tuple(
            part
            for run in ledger.runs
            for part in open_parts(folder, run, superseded.get(run.id, NONE_SUPERSEDED))
        )

    def verify_part(self, part: LedgerSegment) -> None:
        """Verify the checksum of a part's log, once. Raises LedgerError, OSError."""
        reader = part.view.segments[0].reader
        if reader.path not in self._verified:
            ahead = self._ahead.pop(reader.path, None)
            checksum = file_checksum(reader) if ahead is None else ahead.result()
            if checksum != part.entry.crc:
                raise LedgerError(reader.path, WRONG_CHECKSUM)
            self._verified.add(reader.path)

    def verify_ahead(self, part: LedgerSegment) -> None:
        """Begin to compute the checksum of the part that is read next."""
        reader = part.view.segments[0].reader
        if reader.path not in self._verified and reader.path not in self._ahead:
            self._ahead[reader.path] = self._thread.submit(file_checksum, reader, self._closed)

    def close(self) -> None:
        """Release the ledger. May be called twice."""
        self._closed.set()
        self._thread.shutdown(cancel_futures=True)
        self.parts = ()
        self._claim.release()


def run_name(run_id: int) -> str:
    """The name of a run's directory."""
    return f"generation-{run_id}"


def open_parts(folder: Path, run: Run, superseded: Int64) -> Iterator[LedgerSegment]:
    """The segments of a run, their files open. Raises LedgerError, OSError."""
    directory = folder / run_name(run.id)
    bounds = [run.base_offset, *(entry.base_offset for entry in run.segments[1:])]
    ends = [*bounds[1:], run.end_offset]
    for entry, start, end in zip(run.segments, bounds, ends, strict=False):
        check_files(directory, entry)
        segment = find_segment(directory, entry.base_offset)
        live = LiveSegment(segment, LogConfig(), created_ms=segment.modified_ms)
        _ = live.reader
        view = LogView((live,), start, end, end, end, live.size)
        yield LedgerSegment(view=view, superseded=superseded, entry=entry)


def check_files(directory: Path, entry: SegmentEntry) -> None:
    """Check that a segment's files exist, the log with its size, the indexes with their checksums.

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
    """CRC32C of a whole file, or of a part of it once ``stop`` is set."""
    buffer = np.empty(_BUFFER_BYTES, np.uint8)
    crc, position = 0, 0
    while (stop is None or not stop.is_set()) and (count := reader.read_into(buffer, position)):
        crc = crc32c(buffer[:count].data, crc)
        position += count
    return crc


# The checks of a new ledger before its files are renamed.

KEYS = "keys"
"""The key index of a run."""
_COMMIT_FAILED = "the cursor has not moved: readers have the ledger before it; compact the log again"


def check_staged(
    folder: Path, ledger: Ledger, superseded: Mapping[int, Int64], staged: Mapping[int, Path]
) -> None:
    """Bounds and counts fit, staged files are as the manifest says. Raises CheckFailedError, OSError."""
    broken = broken_rule(ledger)
    for run in () if broken else ledger.runs:
        broken = broken or _broken_superseded(run, superseded.get(run.id, NONE_SUPERSEDED))
    if broken:
        raise CheckFailedError(f"ledger {ledger.id}: {broken}", path=folder, advice=_COMMIT_FAILED)
    for run in ledger.runs:
        if run.id in staged:
            _check_run(staged[run.id], run)


def _broken_superseded(run: Run, offsets: Int64) -> str:
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
    """Compare staged files with their manifest entry. Raises CheckFailedError, OSError."""
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
_LEDGER_FILE = re.compile(r"ledger-(\d+)\.(json|hidden)\Z", re.ASCII)
_RUN = re.compile(r"generation-(\d+)\Z", re.ASCII)
_UNFINISHED = re.compile(r"(run-.+|cursor\.json\.tmp)\Z")
_TRIES = 100


class LedgerStore:
    """The ledgers of a partition directory, in ``folder``, which the first compaction creates."""

    def __init__(self, partition_directory: Path) -> None:
        self.folder = partition_directory / COMPACTED
        self._partition = partition_directory

    # Reading

    def cursor(self) -> Cursor | None:
        """The cursor, None where the log was never compacted. Raises LedgerError, OSError."""
        path = self.folder / CURSOR
        try:
            data = files.read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return decode_cursor(path, data)

    def current(self) -> Ledger | None:
        """The ledger that the cursor names, all of its files there. Raises LedgerError, OSError."""
        while (cursor := self.cursor()) is not None:
            try:
                ledger = self._named_by(cursor)
                for run in ledger.runs:
                    _check_sizes(self.folder / run_name(run.id), run)
                return ledger
            except LedgerError:
                if self.cursor() == cursor:  # otherwise a commit replaced the cursor meanwhile: try again
                    raise
        return None

    def _named_by(self, cursor: Cursor) -> Ledger:
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
        """Run id → the offsets that later runs superseded: int64, ascending.

        Runs of which nothing is superseded are left out. Raises LedgerError, OSError.
        """
        if ledger.superseded_crc is None:
            return {}
        path = self.folder / superseded_name(ledger.id)
        superseded = decode_superseded(path, _read(path), ledger)
        counts = {run.id: run.superseded for run in ledger.runs if run.superseded}
        if {run: len(offsets) for run, offsets in superseded.items()} != counts:
            raise LedgerError(str(path), "the superseded offsets are not as many as the manifest says")
        return superseded

    def open(self) -> HeldLedger | None:
        """Open the current ledger for reading; None without one. ``collect`` keeps its files until it is
        closed.

        Raises LedgerError, OSError.
        """
        for _ in range(_TRIES):
            cursor = self.cursor()
            if cursor is None:
                return None
            try:
                claim = files.Flock(self.folder / manifest_name(cursor.ledger_id))
            except (FileNotFoundError, BlockingIOError):
                if self.cursor() == cursor:
                    self.current()  # raises with the file that is missing
                continue
            with contextlib.ExitStack() as stack:
                stack.callback(claim.release)
                if self.cursor() == cursor:
                    ledger = self._named_by(cursor)
                    held = HeldLedger(self.folder, ledger, self.superseded(ledger), claim)
                    stack.pop_all()
                    return held
        reason = f"the ledger was replaced {_TRIES} times while it was opened"
        raise LedgerError(str(self.folder / CURSOR), reason, advice="try again")

    def held_horizon(self) -> int | None:
        """The first offset of the log that the next compaction or a reader of a ledger still needs.

        None without a ledger. Raises LedgerError, OSError: to replace a damaged ledger, all records of the
        log may be needed.
        """
        ledger = self.current()
        horizons = [] if ledger is None else [ledger.horizon]
        for number in self._ledgers():
            if ledger is not None and number == ledger.id:
                continue
            claim = self._claim_exclusively(number)
            if claim is not None:
                claim.release()
                continue
            try:
                horizons.append(self._load(number).horizon)
            except LedgerError:
                if files.exists(self.folder / manifest_name(number)):
                    raise
        return min(horizons, default=None)

    def _claim_exclusively(self, ledger_id: int) -> files.Flock | None:
        """An exclusive claim on a ledger; None while a reader holds it, or when it no longer exists."""
        try:
            return files.Flock(self.folder / manifest_name(ledger_id), exclusive=True)
        except (BlockingIOError, FileNotFoundError):
            return None

    def _ledgers(self) -> list[int]:
        return sorted({int(name[1]) for name in self._named(_LEDGER_FILE) if name[2] == "json"})

    def _named(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        if not files.is_directory(self.folder):
            return []
        matches = (pattern.match(entry.name) for entry in files.entries(self.folder))
        return [name for name in matches if name is not None]

    # Changing

    def next_ids(self) -> tuple[int, int]:
        """(the next ledger's id, the first of the ids for its runs): no file has them yet."""
        cursor = self.cursor()
        ledgers = [int(name[1]) for name in self._named(_LEDGER_FILE)]
        ledgers += [] if cursor is None else [cursor.ledger_id]
        runs = [int(name[1]) for name in self._named(_RUN)]
        return max(ledgers, default=-1) + 1, max(runs, default=-1) + 1

    def make_folder(self) -> None:
        """Raises OSError, DirectoryRefusedError where something else has our folder's name."""
        if not has_siltstone_folder(self._partition, COMPACTED):
            files.make_directory(self.folder)
            files.sync_directory(self._partition)

    def make_staging(self, name: str) -> Path:
        """A new folder for a compaction to stage in. Raises FileExistsError, and as ``make_folder`` does."""
        self.make_folder()
        path = self.folder / f"run-{name}"
        if files.exists(path):
            raise FileExistsError(errno.EEXIST, "a compaction of this name exists", str(path))
        files.make_directory(path)
        files.sync_directory(self.folder)
        return path

    def commit(self, ledger: Ledger, superseded: Mapping[int, Int64], staged: Mapping[int, Path]) -> Ledger:
        """Make a ledger the current one, durably; returns it with its ``superseded_crc``.

        ``superseded``: run id → superseded offsets, int64, strictly ascending. ``staged``: the new runs' ids
        → their directories, complete and durable. Raises CheckFailedError when a check fails, OSError; the
        cursor is unchanged then.
        """
        bases = {run.id: run.base_offset for run in ledger.runs}
        superseded = {number: offsets for number, offsets in superseded.items() if len(offsets)}
        if unknown := (set(superseded) | set(staged)) - set(bases):
            reason = f"ledger {ledger.id} has no runs {sorted(unknown)}"
            raise CheckFailedError(reason, path=self.folder, advice=_COMMIT_FAILED)
        packed = encode_superseded(ledger.id, bases, superseded)
        ledger = replace(ledger, superseded_crc=crc32c(packed) if superseded else None)
        check_staged(self.folder, ledger, superseded, staged)
        self._refuse_overtaken(ledger)
        # Steps 1 to 3: nothing refers to the new files yet, and ``collect`` removes them after a crash.
        self._rename_runs(staged)
        if superseded:
            files.write_new(self.folder / superseded_name(ledger.id), packed)
        files.write_new(self.folder / manifest_name(ledger.id), encode_manifest(ledger))
        files.sync_directory(self.folder)
        self._check_written(ledger)
        # Step 4: one rename moves readers and horizon to the new ledger.
        cursor = Cursor(horizon=ledger.horizon, ledger_id=ledger.id)
        files.replace(self.folder / CURSOR, encode_cursor(cursor))
        return ledger

    def _refuse_overtaken(self, ledger: Ledger) -> None:
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
            written = self._load(ledger.id)  # its ``superseded_crc`` covers the other file
            self.superseded(written)
            for run in written.runs:
                list(open_parts(self.folder, run, NONE_SUPERSEDED))
            if written != ledger:
                path = self.folder / manifest_name(ledger.id)
                raise LedgerError(str(path), "the manifest differs from the ledger that was written")
        except LedgerError as error:
            raise CheckFailedError(error.reason, path=error.path, advice=_COMMIT_FAILED) from error

    def forget(self) -> None:
        """Remove the cursor, durably; ``collect`` deletes the ledger's files. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            has_siltstone_folder(self._partition, COMPACTED)
            files.unlink(self.folder / CURSOR)
            files.sync_directory(self.folder)

    def collect(self, keep: Collection[str] = ()) -> list[str]:
        """Delete all files that neither the current ledger nor a reader needs; returns their names.

        ``keep``: staging folders of compactions in progress. If a manifest that has to stay is corrupt, all
        runs stay. Raises LedgerError for a corrupt cursor, DirectoryRefusedError, OSError.
        """
        if not has_siltstone_folder(self._partition, COMPACTED):
            return []
        cursor = self.cursor()
        removed = []
        for number in self._ledgers():
            if cursor is not None and number == cursor.ledger_id:
                continue
            claim = self._claim_exclusively(number)
            if claim is not None:
                with claim:
                    removed.append(self._remove(manifest_name(number)))
        ledgers = self._ledgers()
        ledger_files = self._named(_LEDGER_FILE)
        orphans = [name for name in ledger_files if name[2] == "hidden" and int(name[1]) not in ledgers]
        unfinished = self._named(_UNFINISHED)
        runs = self._unnamed_runs(ledgers)
        if runs:
            # A deleted manifest must not come back after a crash without its runs.
            files.sync_directory(self.folder)
        removed += [self._remove(name[0]) for name in (*orphans, *runs, *unfinished) if name[0] not in keep]
        if removed:
            files.sync_directory(self.folder)
        return removed

    def _unnamed_runs(self, ledgers: list[int]) -> list[re.Match[str]]:
        """The directories of runs that no ledger has; none if a manifest is corrupt."""
        try:
            named = {run.id for number in ledgers for run in self._load(number).runs}
        except LedgerError:
            return []
        return [name for name in self._named(_RUN) if int(name[1]) not in named]

    def _remove(self, name: str) -> str:
        path = self.folder / name
        if files.is_directory(path, follow=False):
            files.remove_tree(path)
        else:
            files.unlink(path)
        return name


# What a log does with its ledger when it is opened, truncated or cleaned. A corrupt ledger never stops it.
#
# A ledger that covers offsets beyond the log's end is forgotten, since new records are about to get these
# offsets. It is forgotten before the log is truncated, so that a crash never leaves both; a log that a crash
# has shortened is compared with its ledger when it is opened, before the first append.


def forget_beyond(directory: Path, end_offset: int) -> None:
    """Forget a partition's ledger if the log ends, or is about to end, below its horizon. Raises OSError."""
    store = LedgerStore(directory)
    try:
        cursor = store.cursor()
    except LedgerError as error:
        _logger.warning("%s", error)
        return
    if cursor is not None and cursor.horizon > end_offset:
        store.forget()
        _logger.warning(
            "%s: removed compacted ledger %d, since it covers offsets below %d and the log now ends at %d; "
            "compact the log again",
            directory,
            cursor.ledger_id,
            cursor.horizon,
            end_offset,
        )


def recover_ledgers(directory: Path, end_offset: int) -> None:
    """Recover a partition's ledgers when its log is opened for writing: forget one that covers offsets beyond
    the log's end, delete leftover files. Raises OSError."""
    forget_beyond(directory, end_offset)
    try:
        LedgerStore(directory).collect()
    except LedgerError as error:
        _logger.warning("%s", error)


class CleaningBounds(NamedTuple):
    """What cleaning in place must leave for the next compaction, so that both have the same result:
    tombstones from offset ``tombstones_from`` on stay, nothing from ``clean_below`` on is cleaned.

    A tombstone above the horizon stays until a compaction has applied it to the ledger, which may have its
    key. If the ledger is ordered by time, nothing above its horizon is cleaned: cleaning compares offsets,
    and would remove a record with a later timestamp that has a lower offset.
    """

    tombstones_from: int = LONG_MAX
    clean_below: int = LONG_MAX


def cleaning_bounds(partition: Path) -> CleaningBounds:
    """The bounds that a partition's ledger sets to cleaning in place: if it is corrupt, all tombstones stay.

    Raises OSError.
    """
    store = LedgerStore(partition)
    try:
        ledger = store.current()
    except LedgerError:
        return CleaningBounds(tombstones_from=0)
    if ledger is None:
        return CleaningBounds()
    return CleaningBounds(ledger.horizon, ledger.horizon if ledger.order == BY_TIME else LONG_MAX)
