"""The ledgers of one partition on the disk: which one counts, a new one in its place, old ones gone.

::

    commit    generations renamed into place ─► hidden, manifest ─► read back ─► cursor
    collect   what the cursor does not name and nobody reads: manifest, then the generations of no other
    forget    the cursor first, the rest at the next ``collect``

Each arrow is a sync. A crash leaves the cursor as it was or as it should be; whatever else is there then is
nobody's, and goes at the next ``collect``. Whoever changes ledgers is the only one who does: it has the
directory's lock, and one run at a time. Readers need neither.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CheckFailedError, LedgerError
from siltstone.base.records.layout import Int64
from siltstone.log.directory import has_own_folder
from siltstone.log.fetch import LogView
from siltstone.log.ledger.manifest import (
    Cursor,
    Generation,
    Ledger,
    SegmentEntry,
    decode_cursor,
    decode_hidden,
    decode_manifest,
    encode_cursor,
    encode_hidden,
    encode_manifest,
    hidden_name,
    manifest_name,
    what_is_wrong,
)
from siltstone.log.names import COMPACTED, segment_file
from siltstone.log.segment import LiveSegment
from siltstone.log.segments import find_segment

# The current ledger of a log, held for reading: nothing of it is deleted until it is let go.
#
# What is opened is what the manifest says: a file that is missing, or has another size or, for indexes,
# another checksum, is a ``LedgerError`` before anything is read. A segment's own bytes are summed up before
# anything of it is read, by a thread while the segment before it is.

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
        self, folder: Path, ledger: Ledger, hidden: dict[int, Int64], claim: files.Flock | None
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
        if crc32c(_read(path)) != crc:
            raise LedgerError(str(path), "damaged: the checksum does not match")


def size_of(path: Path) -> int:
    """A file's size in bytes. Raises LedgerError when it is missing, OSError."""
    try:
        return files.stat(path).size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(str(path), "missing") from None


def _read(path: Path) -> bytes:
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


# What a run offers as the next ledger, checked before anything of it is moved.

KEYS = "keys"
"""The key index of a generation."""


def refuse_foreign(ledger: Ledger, hidden: Mapping[int, Int64], staged: Mapping[int, Path]) -> None:
    """Hidden offsets and directories are of the ledger's generations. Raises CheckFailedError."""
    strange = (set(hidden) | set(staged)) - {each.id for each in ledger.generations}
    if strange:
        raise CheckFailedError(f"ledger {ledger.id} has no generations {sorted(strange)}")


def refuse_unsound(
    folder: Path, ledger: Ledger, hidden: Mapping[int, Int64], staged: Mapping[int, Path]
) -> None:
    """Bounds and counts fit, staged files are what the manifest says. Raises CheckFailedError, OSError."""
    wrong = what_is_wrong(ledger)
    for each in () if wrong else ledger.generations:
        why = _wrong_hidden(each, hidden)
        wrong = wrong or (f"generation {each.id}: {why}" if why else "")
    if wrong:
        raise CheckFailedError(f"{folder}: ledger {ledger.id}: {wrong}; the cursor has not moved")
    for each in ledger.generations:
        if each.id in staged:
            _refuse_others(staged[each.id], each)


def _wrong_hidden(generation: Generation, hidden: Mapping[int, Int64]) -> str:
    offsets = hidden.get(generation.id, np.empty(0, np.int64))
    if len(offsets) != generation.hidden:
        return f"{len(offsets)} offsets are hidden, {generation.hidden} were counted"
    if len(offsets) and (
        (np.diff(offsets) <= 0).any()
        or offsets[0] < generation.base_offset
        or offsets[-1] >= generation.end_offset
    ):
        return "hidden offsets do not ascend within its bounds"
    return ""


def _refuse_others(directory: Path, generation: Generation) -> None:
    """Are the staged files what the manifest says? Raises CheckFailedError, OSError."""
    try:
        for entry in generation.segments:
            check_files(directory, entry)
            log = directory / segment_file(entry.base_offset, "log")
            with files.Reader(log) as reader:
                if sum_of(reader) != entry.crc:
                    raise LedgerError(str(log), "is not what was written")
        if generation.keys_size:
            keys = directory / KEYS
            with files.Reader(keys) as reader:
                if (reader.stat.size, sum_of(reader)) != (generation.keys_size, generation.keys_crc):
                    raise LedgerError(str(keys), "is not what was written")
    except (LedgerError, FileNotFoundError) as error:
        raise CheckFailedError(f"generation {generation.id}: {error}; the cursor has not moved") from error


__all__ = ["CURSOR", "KEYS", "LedgerStore", "segment_entry"]

CURSOR = "cursor.json"
_LEDGER_FILE = re.compile(r"ledger-(\d+)\.(json|hidden)\Z", re.ASCII)
_GENERATION = re.compile(r"generation-(\d+)\Z", re.ASCII)
_RUN = re.compile(r"run-.+\Z")
_TEMPORARY = re.compile(r"cursor\.json\.tmp\Z")
_TRIES = 100


class LedgerStore:
    """The ledgers of a partition directory; ``folder`` is where they lie, and need not be there."""

    def __init__(self, partition_directory: Path) -> None:
        self.folder = partition_directory / COMPACTED
        self._partition = partition_directory

    # What there is

    def cursor(self) -> Cursor | None:
        """Up to where the log is compacted; None: it never was. Raises LedgerError, OSError."""
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
                return self._named_by(cursor)
            except LedgerError:
                if self.cursor() == cursor:  # else a new one took its place while it was looked at
                    raise
        return None

    def _named_by(self, cursor: Cursor) -> Ledger:
        ledger = self._load(cursor.ledger_id)
        if ledger.horizon != cursor.horizon:
            raise LedgerError(
                str(self.folder / CURSOR),
                f"says that ledger {ledger.id} covers offsets below {cursor.horizon}, "
                f"which covers those below {ledger.horizon}",
            )
        for each in ledger.generations:
            for path, size in self._files_of(each):
                if (found := size_of(path)) != size:
                    raise LedgerError(str(path), f"has {found} bytes and should have {size}")
        return ledger

    def _load(self, ledger_id: int) -> Ledger:
        path = self.folder / manifest_name(ledger_id)
        return decode_manifest(path, _read(path))

    def _files_of(self, generation: Generation) -> Iterator[tuple[Path, int]]:
        directory = self.folder / generation_name(generation.id)
        for segment in generation.segments:
            yield directory / segment_file(segment.base_offset, "log"), segment.size
        if generation.keys_size:
            yield directory / KEYS, generation.keys_size

    def hidden(self, ledger: Ledger) -> dict[int, Int64]:
        """Generation id → the offsets that later generations superseded: int64, ascending.

        Generations of which nothing is hidden are left out. Raises LedgerError, OSError.
        """
        if ledger.hidden_crc is None:
            return {}
        path = self.folder / hidden_name(ledger.id)
        found = decode_hidden(path, _read(path), ledger)
        counts = {each.id: each.hidden for each in ledger.generations if each.hidden}
        if {each: len(offsets) for each, offsets in found.items()} != counts:
            raise LedgerError(str(path), "does not hide what the manifest says")
        return found

    def open(self) -> HeldLedger | None:
        """The current ledger, held for reading until it is closed; None: there is none.

        Raises LedgerError, OSError.
        """
        for _ in range(_TRIES):
            cursor = self.cursor()
            if cursor is None:
                return None
            try:
                claim = files.Flock(self.folder / manifest_name(cursor.ledger_id))
            except (FileNotFoundError, BlockingIOError):
                claim = None
            if claim is not None and self.cursor() == cursor:
                return self._held(cursor, claim)
            if claim is not None:
                claim.release()
            elif self.cursor() == cursor:
                self.current()  # says what is missing
        raise LedgerError(str(self.folder / CURSOR), "a ledger was there each time and gone the next")

    def _held(self, cursor: Cursor, claim: files.Flock) -> HeldLedger:
        try:
            ledger = self._named_by(cursor)
            return HeldLedger(self.folder, ledger, self.hidden(ledger), claim)
        except BaseException:
            claim.release()
            raise

    def held_horizon(self) -> int | None:
        """The offset from which on originals are needed: by the next compaction, or by somebody who reads.

        None when there is no ledger. Raises LedgerError, OSError: what is damaged may have to be made anew,
        and all originals are needed for that.
        """
        if not files.exists(self.folder):
            return None
        ledger = self.current()
        horizons = [] if ledger is None else [ledger.horizon]
        for number in self._ledgers():
            if (ledger is None or number != ledger.id) and self._is_held(number):
                horizons += self._horizon_of(number)
        return min(horizons, default=None)

    def _horizon_of(self, ledger_id: int) -> list[int]:
        try:
            return [self._load(ledger_id).horizon]
        except LedgerError:
            if files.exists(self.folder / manifest_name(ledger_id)):
                raise
            return []  # it was let go and collected meanwhile

    def _is_held(self, ledger_id: int) -> bool:
        try:
            files.Flock(self.folder / manifest_name(ledger_id), exclusive=True).release()
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def _ledgers(self) -> list[int]:
        return sorted({int(name[1]) for name in self._named(_LEDGER_FILE) if name[2] == "json"})

    def _named(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        if not files.is_directory(self.folder):
            return []
        found = (pattern.match(entry.name) for entry in files.entries(self.folder))
        return [name for name in found if name is not None]

    # What changes it

    def next_ids(self) -> tuple[int, int]:
        """(the next ledger's id, the first of the ids for its generations): no file has them yet."""
        cursor = self.cursor()
        ledgers = [int(name[1]) for name in self._named(_LEDGER_FILE)]
        ledgers += [] if cursor is None else [cursor.ledger_id]
        generations = [int(name[1]) for name in self._named(_GENERATION)]
        return max(ledgers, default=-1) + 1, max(generations, default=-1) + 1

    def make_run(self, name: str) -> Path:
        """A new folder for a run to stage in. Raises FileExistsError, OSError, DirectoryRefusedError where
        something else has our folder's name."""
        if not has_own_folder(self._partition, COMPACTED):
            files.make_directory(self.folder)
            files.sync_directory(self._partition)
        path = self.folder / f"run-{name}"
        if files.exists(path):
            raise FileExistsError(17, "a run of this name is there", str(path))
        files.make_directory(path)
        files.sync_directory(self.folder)
        return path

    def commit(self, ledger: Ledger, hidden: Mapping[int, Int64], staged: Mapping[int, Path]) -> Ledger:
        """Make a ledger the current one, durably; the ledger as it is from now on.

        ``hidden``: generation id → offsets that are left out, int64, strictly ascending. ``staged``: the new
        generations' ids → their directories, complete and durable. ``hidden_crc`` is filled in here.
        Raises CheckFailedError when something does not hold, OSError: the cursor is as it was then.
        """
        bases = {each.id: each.base_offset for each in ledger.generations}
        shown = {number: offsets for number, offsets in hidden.items() if len(offsets)}
        refuse_foreign(ledger, shown, staged)
        packed = encode_hidden(ledger.id, bases, shown)
        ledger = replace(ledger, hidden_crc=crc32c(packed) if shown else None)
        refuse_unsound(self.folder, ledger, shown, staged)
        self._refuse_overtaken(ledger)
        self._move_in(staged)
        if shown:
            files.write_new(self.folder / hidden_name(ledger.id), packed)
        files.write_new(self.folder / manifest_name(ledger.id), encode_manifest(ledger))
        files.sync_directory(self.folder)
        self._check_written(ledger, shown)
        cursor = Cursor(horizon=ledger.horizon, ledger_id=ledger.id)
        files.replace(self.folder / CURSOR, encode_cursor(cursor))
        return ledger

    def _refuse_overtaken(self, ledger: Ledger) -> None:
        cursor = self.cursor()
        if cursor is not None and (ledger.id <= cursor.ledger_id or ledger.horizon < cursor.horizon):
            raise CheckFailedError(
                f"{self.folder}: ledger {ledger.id} up to {ledger.horizon} comes after ledger "
                f"{cursor.ledger_id} up to {cursor.horizon}: somebody else has compacted; run again"
            )

    def _move_in(self, staged: Mapping[int, Path]) -> None:
        for number, path in sorted(staged.items()):
            files.rename(path, self.folder / generation_name(number))
        for parent in {path.parent for path in staged.values()}:
            files.sync_directory(parent)
        files.sync_directory(self.folder)

    def _check_written(self, ledger: Ledger, hidden: Mapping[int, Int64]) -> None:
        """The cursor moves only to what can be read back. Raises CheckFailedError."""
        try:
            read = self._load(ledger.id)
            with HeldLedger(self.folder, read, self.hidden(read), None) as held:
                same = read == ledger and held.hidden.keys() == hidden.keys()
                same = same and all(np.array_equal(held.hidden[each], hidden[each]) for each in hidden)
        except LedgerError as error:
            raise CheckFailedError(f"{error.path}: {error.reason}; the cursor has not moved") from error
        if not same:
            raise CheckFailedError(
                f"{self.folder}: ledger {ledger.id} does not read back as it was written; "
                "the cursor has not moved"
            )

    def forget(self) -> None:
        """The log has no ledger any more, durably; its files go at the next ``collect``. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            has_own_folder(self._partition, COMPACTED)
            files.unlink(self.folder / CURSOR)
            files.sync_directory(self.folder)

    def forget_behind(self, end_offset: int) -> Cursor | None:
        """``forget`` a ledger that covers offsets at or above ``end_offset``; the cursor that went, or None.

        Raises LedgerError for a damaged cursor, OSError.
        """
        cursor = self.cursor()
        if cursor is None or cursor.horizon <= end_offset:
            return None
        self.forget()
        return cursor

    def collect(self, keep: Collection[str] = ()) -> list[str]:
        """Delete what neither the cursor names nor anybody reads; the names of what went.

        ``keep``: folders of runs that go on. When a ledger that has to stay does not say what its generations
        are, they all stay. Raises LedgerError for a damaged cursor, DirectoryRefusedError, OSError.
        """
        if not has_own_folder(self._partition, COMPACTED):
            return []
        cursor = self.cursor()
        gone = []
        for number in self._ledgers():
            if cursor is None or number != cursor.ledger_id:
                gone += self._collect_ledger(number)
        left = self._ledgers()
        for found in self._named(_LEDGER_FILE):
            if found[2] == "hidden" and int(found[1]) not in left:
                gone += self._remove(found[0])
        gone += self._collect_generations(left)
        for found in (*self._named(_RUN), *self._named(_TEMPORARY)):
            if found[0] not in keep:
                gone += self._remove(found[0])
        if gone:
            files.sync_directory(self.folder)
        return gone

    def _collect_ledger(self, number: int) -> list[str]:
        """A manifest that nobody holds, and what it hides."""
        try:
            claim = files.Flock(self.folder / manifest_name(number), exclusive=True)
        except (BlockingIOError, FileNotFoundError):
            return []
        with claim:
            return self._remove(manifest_name(number))

    def _collect_generations(self, ledgers: list[int]) -> list[str]:
        named: set[int] = set()
        for number in ledgers:
            try:
                named.update(each.id for each in self._load(number).generations)
            except LedgerError:
                return []
        going = [each[0] for each in self._named(_GENERATION) if int(each[1]) not in named]
        if going:
            files.sync_directory(self.folder)  # no manifest may come back to generations that are gone
        return [name for each in going for name in self._remove(each)]

    def _remove(self, name: str) -> list[str]:
        path = self.folder / name
        if files.is_directory(path, follow=False):
            files.remove_tree(path)
        else:
            files.unlink(path)
        return [name]
