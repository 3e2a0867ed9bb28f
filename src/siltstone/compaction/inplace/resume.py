"""What a run in waves has to remember, so that an interrupted one is gone on with: pure functions.

::

    {"version": 1, "sha256": HEX, "log": {plan, totals, winners' files, checked groups}}

One journal a log, ``topic-N/.siltstone/RUN/journal.json``. It is written when the winners are gathered, and
again before the groups of a wave are swapped: it tells by what their new logs will be known, so that the
directory itself says which groups are done, whenever the run ended. Anything that does not fit, in the
journal or in the log, means that it is not gone by; ``compaction.inplace.resume`` reads, writes and drops it.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.compaction.engine import WinnersFile, is_sound
from siltstone.compaction.staging import Rewritten
from siltstone.compaction.work import Group, LogWork
from siltstone.log.names import STAGING
from siltstone.log.partition_files import has_own_folder
from siltstone.log.segments import Segment
from siltstone.log.transactions import Carried

VERSION = 2
SETTINGS = (
    "segment.bytes",
    "segment.index.bytes",
    "index.interval.bytes",
    "delete.retention.ms",
    "producer.id.expiration.ms",
)
"""What must not have changed: these say what a group is, what stays of it and how it is written."""
_NUMBERS = (
    "name",
    "first_dirty",
    "end",
    "now_ms",
    "delete_retention_ms",
    "legacy_horizon_ms",
    "message_sets",
    "map_end",
    "tombstones_from",
    "index_interval",
    "index_bytes",
    "drop_keyless",
    "window_size",
    "memory_bytes",
)
_REMOVED = ("superseded", "tombstones", "keyless", "aborted", "markers")
_COUNTS = ("group", "records", "kept", *_REMOVED, "winners", "size", "largest_timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A group that was rewritten and checked: its counts, and by what its new log will be known."""

    rewritten: Rewritten
    inode: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a plan was made on, beside the segments: the cleaner checkpoint, and settings by name."""

    checkpoint: int | None
    settings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One log's run in waves.

    ``rest``: segments above the cleaned range. ``base.records``, ``keyless``, ``dirty_keys``: of the whole
    range. ``winners``: one a group, in order. ``checked``: the first groups; their swaps may have happened or
    not.
    """

    work: LogWork
    rest: tuple[Segment, ...]
    basis: Basis
    dirty_ratio: float
    records: int
    keyless: int
    dirty_keys: int
    winners: tuple[WinnersFile, ...]
    checked: tuple[Checked, ...] = ()

    def with_checked(self, groups: Sequence[Checked]) -> Journal:
        """The journal with a wave's groups."""
        return replace(self, checked=(*self.checked, *groups))


def size_at_most(work: LogWork, rest: int) -> int:
    """Bytes that the journal and its replacement take on disk, at the most; ``rest`` segments are above."""
    return 2 * (2048 + 128 * (len(work.segments) + rest) + 512 * len(work.groups) + 48 * len(work.producers))


def encode(journal: Journal) -> bytes:
    """The journal as JSON; every byte of it counts."""
    work = journal.work
    return _document(
        {
            **{name: getattr(work, name) for name in _NUMBERS},
            "segments": [_row(segment) for segment in work.segments],
            "rest": [_row(segment) for segment in journal.rest],
            "groups": [[each.first, each.last, each.base_offset, each.end_offset] for each in work.groups],
            "producers": [list(each) for each in work.producers],
            **asdict(journal.basis),
            **{name: getattr(journal, name) for name in ("dirty_ratio", "records", "keyless", "dirty_keys")},
            "winners": [
                [each.name, each.count, each.checksum, each.carried.unended, each.carried.observed]
                for each in journal.winners
            ],
            "checked": [
                [*(getattr(each.rewritten, name) for name in _COUNTS), each.inode, each.modified_ns]
                for each in journal.checked
            ],
        }
    )


def _document(log: dict[str, Any]) -> bytes:
    text = json.dumps(log, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"version":{VERSION},"sha256":"{digest}","log":{text}}}'.encode()


def decode(data: bytes, partition: Path, staging: Path) -> Journal:
    """The journal again, of a log in ``partition``. Raises ValueError with what is wrong with it."""
    try:
        raw = json.loads(data)
        version, log = raw["version"], raw["log"]
        sound = _document(log) == data
    except Exception:
        raise ValueError("its journal is damaged") from None
    if version != VERSION:
        raise ValueError("its journal is another version's")
    if not sound:
        raise ValueError("its journal is damaged")
    try:
        return _journal(log, str(partition), str(staging))
    except Exception as error:
        raise ValueError(f"its journal makes no sense ({type(error).__name__})") from None


def _journal(log: dict[str, Any], partition: str, staging: str) -> Journal:
    names = [name for name, *_ in log["winners"] if name]
    if any(Path(name).name != name for name in names) or len(names) != len(set(names)):
        raise ValueError("names")
    groups = tuple(
        Group(index=index, first=first, last=last, base_offset=base, end_offset=end)
        for index, (first, last, base, end) in enumerate(log["groups"])
    )
    work = LogWork(
        **{name: log[name] for name in _NUMBERS},
        segments=tuple(_segment(partition, row) for row in log["segments"]),
        groups=groups,
        producers=tuple((producer, last, epoch) for producer, last, epoch in log["producers"]),
        staging=staging,
        hash_key=(0, 0),
    )
    return Journal(
        work=work,
        rest=tuple(_segment(partition, row) for row in log["rest"]),
        basis=Basis(checkpoint=log["checkpoint"], settings=log["settings"]),
        dirty_ratio=log["dirty_ratio"],
        records=log["records"],
        keyless=log["keyless"],
        dirty_keys=log["dirty_keys"],
        winners=tuple(
            WinnersFile(
                group=group.index,
                name=name,
                count=count,
                checksum=checksum,
                carried=Carried(unended=tuple(unended), observed=tuple(observed)),
            )
            for group, (name, count, checksum, unended, observed) in zip(groups, log["winners"], strict=True)
        ),
        checked=tuple(_checked(row) for row in log["checked"]),
    )


def _checked(row: list[int]) -> Checked:
    *counts, inode, modified_ns = row
    named: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True))
    return Checked(rewritten=Rewritten(**named), inode=inode, modified_ns=modified_ns)


def _row(segment: Segment) -> list[int]:
    return [
        *_identity(segment),
        segment.offset_index_size,
        segment.time_index_size,
        segment.transaction_index_size,
    ]


def _segment(partition: str, row: list[int]) -> Segment:
    base, size, inode, modified_ns, *indexes = row
    offset_index, time_index, transaction_index = indexes
    return Segment(
        directory=partition,
        base_offset=base,
        size=size,
        inode=inode,
        modified_ns=modified_ns,
        offset_index_size=offset_index,
        time_index_size=time_index,
        transaction_index_size=transaction_index,
    )


def _identity(segment: Segment) -> tuple[int, int, int, int]:
    return segment.base_offset, segment.size, segment.inode, segment.modified_ns


def why_not(journal: Journal, fresh: LogWork, basis: Basis) -> str | None:
    """Why a run that would do ``fresh``, planned on ``basis``, must not go on with this one; None: it may."""
    work = journal.work
    for name, value in journal.basis.settings.items():
        if basis.settings.get(name) != value:
            return f"{name} was {value} and is {basis.settings.get(name)}"
    if work.name != fresh.name:
        return f"it was of {work.name}"
    if work.drop_keyless != fresh.drop_keyless:
        return f"--drop-keyless was {work.drop_keyless} and is {fresh.drop_keyless}"
    if (journal.basis.checkpoint, work.first_dirty) != (basis.checkpoint, fresh.first_dirty):
        return f"the log is dirty from offset {fresh.first_dirty} on, it was from {work.first_dirty} on"
    if fresh.end < work.end:
        return f"only what is below offset {fresh.end} may be cleaned now, not up to {work.end}"
    if fresh.tombstones_from < work.tombstones_from:
        return "the log has another compacted ledger"
    if fresh.now_ms < work.now_ms:
        return "its clock is ahead of this run's"
    if 0 < work.delete_retention_ms < fresh.now_ms - work.now_ms:
        return "it began longer ago than delete.retention.ms"
    return None


def groups_done(journal: Journal, segments: Sequence[Segment]) -> int | None:
    """How many groups, from the first on, are swapped in; None when the log is not what the run left.

    ``segments`` are the log's as they are: of each group either all that it was to be made of, or the new
    one; and all those above.
    """
    work, done, first = journal.work, 0, 0
    bases = [segment.base_offset for segment in segments]
    for group in work.groups:
        last = bisect.bisect_left(bases, group.end_offset, first)
        mine, first = [_identity(each) for each in segments[first:last]], last
        if mine == [_identity(each) for each in work.segments[group.first : group.last]]:
            continue
        if done != group.index or len(mine) != 1 or mine[0] != _new_identity(journal, group):
            return None
        done += 1
    above = [_identity(each) for each in segments[first:]]
    return done if above == [_identity(each) for each in journal.rest] else None


def _new_identity(journal: Journal, group: Group) -> tuple[int, int, int, int] | None:
    if group.index >= len(journal.checked):
        return None
    checked = journal.checked[group.index]
    return group.base_offset, checked.rewritten.size, checked.inode, checked.modified_ns


def going_on(journal: Journal, segments: Sequence[Segment], fresh: LogWork, done: int) -> Journal:
    """The journal as a run goes on with it that found ``done`` groups swapped in.

    Segments that are there are as they were found now; how much is read and kept at a time is today's. The
    transactions that a group to come has to know of are still in the indexes of it and of those behind it.
    """
    there = {_identity(segment): segment for segment in segments}
    work = replace(
        journal.work,
        segments=tuple(there.get(_identity(segment), segment) for segment in journal.work.segments),
        aborted=fresh.aborted,
        window_size=fresh.window_size,
        memory_bytes=fresh.memory_bytes,
        batch_limit=fresh.batch_limit,
        io_bytes_per_second=fresh.io_bytes_per_second,
    )
    return replace(journal, work=work, checked=journal.checked[:done])


# The journal's file and its run's folder: written, found again, swept. Pure is ``compaction.inplace.resume``.
#
# ::
#
#     topic-N/.siltstone/RUN/journal.json     kept between runs
#                            *.winners        those that the journal names are kept
#                            *                everything else is an attempt's, and goes
#
# A journal that is of no use is never an error: it is dropped, and the run begins anew.

JOURNAL = "journal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An interrupted run that may be gone on with: its folder, named after it, and its journal."""

    folder: Path
    journal: Journal

    @property
    def run(self) -> str:
        """The run's name."""
        return self.folder.name

    def damaged_winners(self, done: int) -> str | None:
        """The first damaged file of winners, of those that are needed when ``done`` groups are done."""
        for file in self.journal.winners[done:]:
            if not is_sound(self.folder, file):
                return file.name
        return None


def remember(folder: Path, journal: Journal) -> None:
    """Put the journal into the run's folder, durably, and first of all what it names. Raises OSError."""
    if not files.exists(folder / JOURNAL):
        for each in (folder.parent.parent, folder.parent, folder):
            files.sync_directory(each)
    files.replace(folder / JOURNAL, encode(journal))


def checked_group(group: Rewritten) -> Checked:
    """A staged group as the journal remembers it. Raises OSError."""
    found = files.stat(group.staged["log"])
    return Checked(rewritten=group, inode=found.inode, modified_ns=found.modified_ns)


def find_unfinished(partition: Path) -> tuple[Unfinished | None, list[str]]:
    """The newest run with a journal that makes sense; and why others are not gone on with, a line each."""
    refused: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        for entry in reversed(files.entries(partition / STAGING)):
            folder = partition / STAGING / entry.name
            if not entry.is_directory or not files.exists(folder / JOURNAL):
                continue
            try:
                journal = decode(files.read_bytes(folder / JOURNAL), partition, folder)
                return Unfinished(folder=folder, journal=journal), refused
            except OSError as error:
                refused.append(not_gone_on_with(entry.name, f"its journal cannot be read ({error.strerror})"))
            except ValueError as error:
                refused.append(not_gone_on_with(entry.name, str(error)))
    return None, refused


def not_gone_on_with(run: str, reason: str) -> str:
    """A note for the log's result."""
    return f"did not go on with run {run}: {reason}"


def sweep(partition: Path, *, keep: bool = True) -> list[str]:
    """Remove what earlier runs staged, but for the journal that may be gone on with and its winners.

    Without ``keep`` they go too. Returns what was done, a line each. Raises DirectoryRefusedError where the
    folder is none of ours, OSError.
    """
    if not has_own_folder(partition):
        return []
    unfinished, notes = find_unfinished(partition)
    if unfinished is not None and not keep:
        notes = [not_gone_on_with(unfinished.run, "with --keep-originals a log is cleaned anew")]
    if unfinished is None or not keep:
        drop(partition)
        return [*notes, f"removed staged files of an earlier run ({STAGING})"]
    wanted = {JOURNAL, *(file.name for file in unfinished.journal.winners)}
    for entry in files.entries(partition / STAGING):
        if entry.name != unfinished.run:
            _remove(partition / STAGING / entry.name, entry)
    for entry in files.entries(unfinished.folder):
        if entry.name not in wanted:
            _remove(unfinished.folder / entry.name, entry)
    return notes


def _remove(path: Path, entry: files.Entry) -> None:
    if entry.is_directory:
        files.remove_tree(path)
    else:
        files.unlink(path)


def drop(partition: Path) -> None:
    """Remove everything that is staged, durably, journal and all. Raises DirectoryRefusedError where the
    folder is none of ours, OSError."""
    if has_own_folder(partition):
        files.remove_tree(partition / STAGING)
        files.sync_directory(partition)
