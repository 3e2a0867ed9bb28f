"""From two directories to pairs of logs, and the checks of what lies beside the segments."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from siltstone.base import files
from siltstone.base.config import INT_MAX
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    NotALogDirectoryError,
    UnsafeFileError,
    UsageError,
)
from siltstone.log.checkpoints import read_topic_id
from siltstone.log.directory import LogDirectory
from siltstone.log.ledger.keeping import uncovered
from siltstone.log.lookup import batch_headers
from siltstone.log.names import (
    LEADER_EPOCH_CHECKPOINT,
    SEGMENT_KINDS,
    SNAPSHOT,
    STAGING,
    TopicPartition,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.segments import Segment, list_segments
from siltstone.log.transactions import transaction_indexes
from siltstone.verify.findings import REASONS, Findings
from siltstone.verify.pairs import LogPair, Terms
from siltstone.verify.verdict import Checker, LogVerdict, Verdict, conclude

# The two directories of a check: which logs they hold, and what lies beside their segments.
#
# BEFORE is a copy of the log directory, or of one partition, or what ``clean --keep-originals`` kept of a
# run: hard links of the replaced segments and a file that says what was swapped::
#
#     KEEP/RUN/topic-N/undo.json    {"checkpoint": …, "groups": [{"base_offset": …, "originals": […]}, …]}
#
# Of the latter, segments that were not swapped are those of AFTER.

UNDO_FILE = "undo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSide:
    """One log on one side. ``place``: where its snapshots and epochs are; ``checkpoint``: the cleaner's.

    ``unsafe``: why its files cannot be gone by, None where they can.
    """

    place: Path
    segments: tuple[Segment, ...]
    checkpoint: int | None
    log_start: int
    high_watermark: int | None
    unsafe: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The logs of both directories by topic and partition; ``notes`` for people."""

    before: Mapping[TopicPartition, LogSide]
    after: Mapping[TopicPartition, LogSide]
    notes: tuple[str, ...] = field(default=())


def open_sides(before: Path, after: Path, topics: Sequence[str] = ()) -> Sides:
    """Look at both directories, without a lock. Raises UsageError, NotALogDirectoryError, CorruptFileError,
    OSError."""
    for path in (before, after):
        if not files.is_directory(path):
            raise NotALogDirectoryError(f"{path}: no such directory; give a log directory before and after")
    if files.stat(before).place == files.stat(after).place:
        raise UsageError(f"{after}: BEFORE and AFTER are one directory; name a copy from before the cleaning")
    new = _directory_sides(after)
    kept = _kept_logs(before)
    old = _kept_sides(kept, new) if kept else _directory_sides(before)
    if len(old) == 1 and len(new) == 1 and old.keys() != new.keys():
        raise UsageError(f"{before} is {next(iter(old))}, but {after} is {next(iter(new))}")
    notes: tuple[str, ...] = ()
    if kept:
        new = {where: side for where, side in new.items() if where in old}
        notes = (
            f"{before}: originals that a run kept; only the {len(old)} logs that it changed are checked",
        )
    for where, side in () if kept else old.items():
        if where in new and files.stat(side.place).place == files.stat(new[where].place).place:
            raise UsageError(
                f"{side.place} is {where} of BEFORE and of AFTER; name a copy from before the cleaning"
            )
    if topics:
        missing = set(topics) - {where.topic for where in old}
        if missing:
            raise UsageError(f"--topic {min(missing)}: no partition of it in {before}")
        old = {where: side for where, side in old.items() if where.topic in topics}
        new = {where: side for where, side in new.items() if where.topic in topics}
    return Sides(before=old, after=new, notes=notes)


def _directory_sides(path: Path) -> dict[TopicPartition, LogSide]:
    directory = LogDirectory.open(path, lock=False)
    checkpoints = directory.checkpoints()
    found = {}
    for where, place in directory.partitions.items():
        segments, unsafe = _safe_segments(place)
        found[where] = LogSide(
            place=place,
            segments=segments,
            unsafe=unsafe,
            checkpoint=checkpoints.cleaner.get(where),
            log_start=checkpoints.log_start.get(where, 0),
            high_watermark=checkpoints.high_watermark.get(where),
        )
    return found


def _safe_segments(place: Path) -> tuple[tuple[Segment, ...], str | None]:
    """A partition's segments, or why its files cannot be gone by."""
    try:
        return tuple(list_segments(place)), None
    except UnsafeFileError as error:
        return (), str(error)


def _kept_logs(path: Path) -> dict[TopicPartition, Path]:
    """The partitions of which a run kept originals below ``path``, or that ``path`` itself is one of."""
    folders = [path] if files.exists(path / UNDO_FILE) else []
    if not folders:
        folders = [path / entry.name for entry in files.entries(path) if entry.is_directory]
    found = {}
    for folder in folders:
        where = parse_partition(folder.absolute().name)
        if where is not None and files.exists(folder / UNDO_FILE):
            found[where] = folder
    return found


def _kept_sides(
    kept: Mapping[TopicPartition, Path], after: Mapping[TopicPartition, LogSide]
) -> dict[TopicPartition, LogSide]:
    found = {}
    for where, folder in kept.items():
        if where not in after:
            raise UsageError(f"{folder}: AFTER has no {where}; name the directory that was cleaned in place")
        checkpoint, swapped = _undo(folder)
        rest = [each for each in after[where].segments if each.base_offset not in swapped]
        own, unsafe = _safe_segments(folder)
        originals = sorted([*own, *rest], key=lambda each: each.base_offset)
        found[where] = LogSide(
            place=after[where].place,
            segments=tuple(originals),
            unsafe=unsafe or after[where].unsafe,
            checkpoint=checkpoint,
            log_start=after[where].log_start,
            high_watermark=after[where].high_watermark,
        )
    return found


def _undo(folder: Path) -> tuple[int | None, set[int]]:
    """(the checkpoint before, the base offsets of the new segments). Raises CorruptFileError."""
    path = folder / UNDO_FILE
    try:
        raw = json.loads(files.read_bytes(path))
        groups = [group for group in raw["groups"] if not group.get("expired")]
        checkpoint = raw["checkpoint"]
        return None if checkpoint is None else int(checkpoint), {int(each["base_offset"]) for each in groups}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptFileError(str(path), 0, "not what a run writes down of kept originals") from None


TermsOf = Callable[[TopicPartition], Terms]


@dataclass(slots=True, kw_only=True)
class _Checking:
    """One log on its way: the pair is None where there is nothing to compare."""

    where: TopicPartition
    findings: Findings = field(default_factory=Findings)
    pair: LogPair | None = None
    notes: list[str] = field(default_factory=list)


def verify(
    before: Path, after: Path, checker: Checker, terms_of: TermsOf, topics: Sequence[str] = ()
) -> Verdict:
    """Check every log of ``after`` against ``before``; ``checker`` runs the parts.

    Raises UsageError, NotALogDirectoryError, CorruptFileError (a checkpoint), EngineError, OSError; what is
    wrong with a log is in its verdict.
    """
    sides = open_sides(before, after, topics)
    wheres = sorted({*sides.before, *sides.after})
    logs = [_begin(where, sides, terms_of(where)) for where in wheres]
    done = checker([log.pair for log in logs if log.pair is not None])
    for log in logs:
        if log.pair is not None:
            try:
                conclude(log.pair, *done[log.pair.name], log.findings)
            except CorruptFileError as error:
                log.findings.add("aborted_entry", error.reason, path=error.path, position=error.position)
    return Verdict(logs=[_verdict(log) for log in logs], notes=list(sides.notes))


def _verdict(log: _Checking) -> LogVerdict:
    counts, pair = log.findings.counts, log.pair
    return LogVerdict(
        topic=log.where.topic,
        partition=log.where.partition,
        first_dirty_offset=None if pair is None else pair.first_dirty,
        cleaned_end_offset=None if pair is None else pair.cleaned_end,
        records_before=counts["before"],
        records_after=counts["after"],
        distinct_keys=counts["keys"],
        removed={reason: counts[reason] for reason in REASONS},
        problems=log.findings.problems,
        found=dict(log.findings.found),
        notes=log.notes,
    )


def _begin(where: TopicPartition, sides: Sides, terms: Terms) -> _Checking:
    log = _Checking(where=where)
    before, after = sides.before.get(where), sides.after.get(where)
    if before is None or after is None:
        kind = "log_unknown" if before is None else "log_missing"
        log.findings.add(kind, str(where))
        return log
    unsafe = before.unsafe or after.unsafe
    if unsafe is not None:
        log.findings.add("unsafe_file", unsafe)
        return log
    try:
        _check_beside(before, after, terms, log.findings)
        log.pair = _pair(where, before, after, terms, log)
    except CorruptFileError as error:
        log.findings.add("before_damaged", error.reason, path=error.path, position=error.position)
    return log


def _pair(
    where: TopicPartition, before: LogSide, after: LogSide, terms: Terms, log: _Checking
) -> LogPair | None:
    if not before.segments or not after.segments:
        if before.segments:
            log.findings.add("segment_missing", "AFTER has no segment at all")
        elif after.segments:
            log.findings.add("segment_name", "BEFORE has no segment at all")
        return None
    producers = load_producers(before.place, before.segments)
    start = max(before.log_start, before.segments[0].base_offset)
    first_dirty = _first_dirty(before, start, producers.end_offset)
    cleaned_end = _cleaned_end(before, after, first_dirty, log)
    bases = [segment.base_offset for segment in before.segments]
    below = [base for base in bases if base <= cleaned_end]
    above = [base for base in bases if base >= cleaned_end]
    rewritten_end = (
        (above or [producers.end_offset])[0] if cleaned_end > first_dirty else (below or bases)[-1]
    )
    alive = producers.active(terms.now_ms, terms.producer_expiration_ms)
    pair = LogPair(
        name=str(where),
        before=before.segments,
        after=after.segments,
        first_dirty=first_dirty,
        cleaned_end=cleaned_end,
        rewritten_end=rewritten_end,
        aborted=transaction_indexes(before.segments),
        producers=tuple((each.producer_id, each.last_offset, each.producer_epoch) for each in alive),
        terms=terms,
        hash_key=(secrets.randbits(64), secrets.randbits(64)),
        tombstones_from=uncovered(before.place).tombstones_from,
    )
    _check_range(pair, before, after, producers, log.findings)
    _check_segments(pair, after, producers.end_offset, log.findings)
    return pair


def _first_dirty(before: LogSide, start: int, end: int) -> int:
    """Where the dirty part began: the checkpoint, or the log start where that is none or outside."""
    checkpoint = before.checkpoint
    return start if checkpoint is None or not start <= checkpoint <= end else checkpoint


def _cleaned_end(before: LogSide, after: LogSide, first_dirty: int, log: _Checking) -> int:
    if after.checkpoint is not None:
        return after.checkpoint
    if before.checkpoint is not None:
        log.findings.add("checkpoint", "AFTER has none, but BEFORE had one")
    elif len(after.segments) > 1:
        log.notes.append("AFTER has no cleaner checkpoint: taken for never cleaned")
    return first_dirty


def _check_range(
    pair: LogPair, before: LogSide, after: LogSide, producers: ProducerStates, findings: Findings
) -> None:
    """The checkpoint: not back, and nowhere where nothing may be cleaned yet; and the log's end."""
    end = pair.cleaned_end
    if before.checkpoint is not None and end < before.checkpoint and end != pair.first_dirty:
        findings.add("checkpoint", f"went back from {before.checkpoint} to {end}")
    bounds = {"the active segment": before.segments[-1].base_offset}
    open_transaction = producers.first_open_transaction()
    if open_transaction is not None:
        bounds["an open transaction"] = open_transaction
    if before.high_watermark is not None and not pair.terms.beyond_high_watermark:
        bounds["the high watermark"] = before.high_watermark
    for name, bound in bounds.items():
        if pair.was_cleaned and end > bound:
            findings.add("checkpoint", f"{end} is beyond {name}, {bound}")
    try:
        was, now = _log_end(before.segments[-1]), _log_end(after.segments[-1])
    except CorruptRecordError:
        return  # the active segment is damaged: its span says so
    if was != now:
        findings.add("end_moved", f"from {was} to {now}", offset=now)


def _log_end(active: Segment) -> int:
    """The offset behind the last batch, by the batches alone: a snapshot may say more than is there."""
    end = active.base_offset
    with files.Reader(active.path) as reader:
        for batches in batch_headers(reader, end=active.size):
            end = int(batches["last_offset"][-1]) + 1
    return end


def _check_segments(pair: LogPair, after: LogSide, end: int, findings: Findings) -> None:
    """Segments begin where segments began (or at the log's end), and none is gone but by retention."""
    bases = {end, *(segment.base_offset for segment in pair.before)}
    for segment in pair.after:
        base = segment.base_offset
        if base not in bases and not _was_split(pair.before, base):
            findings.add("segment_name", f"{base} was no segment's base", offset=base, path=segment.path)
    first = pair.after[0].base_offset
    needless = [
        segment
        for segment, following in itertools.pairwise(pair.before)
        if segment.base_offset < first and following.base_offset > after.log_start
    ]
    if needless and not pair.terms.deletes:
        findings.add(
            "segment_missing",
            "say --config cleanup.policy=compact,delete if retention was to take it",
            offset=needless[0].base_offset,
            times=len(needless),
        )
    kept = {segment.base_offset for segment in pair.after}
    for segment in pair.before:
        if segment.base_offset >= max(pair.rewritten_end, first) and segment.base_offset not in kept:
            findings.add("segment_missing", "it was not to be cleaned", offset=segment.base_offset)


def _was_split(segments: Sequence[Segment], base: int) -> bool:
    """May ``base`` be in the middle of a segment whose offsets are too far apart for an index?"""
    holding = [segment for segment in segments if segment.base_offset <= base]
    return bool(holding) and base - holding[-1].base_offset > INT_MAX


def _check_beside(before: LogSide, after: LogSide, terms: Terms, findings: Findings) -> None:
    """Files of the partition that are no segments' own."""
    if before.place != after.place:
        old, new = read_topic_id(before.place), read_topic_id(after.place)
        if old is not None and old != new:
            findings.add("topic_id", f"was {old}, is {new}", path=str(after.place))
        _check_snapshot(before.place, after.place, findings)
        _check_epochs(before, after, findings)
    logs = {segment.base_offset for segment in after.segments}
    for entry in files.entries(after.place):
        name = parse_segment_file(entry.name)
        path = str(after.place / entry.name)
        if entry.is_directory and entry.name == STAGING:
            findings.add("leftover", "a run's files", path=path)
        elif name is not None and name.suffix:
            findings.add("leftover", "a swap's file", path=path)
        elif name is not None and name.kind in SEGMENT_KINDS[1:] and name.base_offset not in logs:
            findings.add("leftover", "an index without its segment", path=path)


def _snapshots(place: Path) -> list[int]:
    named = (parse_segment_file(entry.name) for entry in files.entries(place))
    return sorted(each.base_offset for each in named if each and each.kind == SNAPSHOT and not each.suffix)


def _check_snapshot(before: Path, after: Path, findings: Findings) -> None:
    """The newest one is where a start goes on from."""
    known = _snapshots(before)
    if not known:
        return
    name = segment_file(known[-1], SNAPSHOT)
    if not files.exists(after / name):
        findings.add("snapshot", "is missing", path=str(after / name))
    elif files.read_bytes(after / name) != files.read_bytes(before / name):
        findings.add("snapshot", "is another one", path=str(after / name))


def _check_epochs(before: LogSide, after: LogSide, findings: Findings) -> None:
    """The epochs that held still hold, unless the log's start moved; a broker's start adds one."""
    old, new = (each.place / LEADER_EPOCH_CHECKPOINT for each in (before, after))
    if not files.exists(old):
        return
    if not files.exists(new):
        findings.add("leader_epochs", "the file is missing", path=str(new))
        return
    known, found = _epochs(old), _epochs(new)
    moved = before.log_start != after.log_start or not before.segments or not after.segments
    moved = moved or before.segments[0].base_offset != after.segments[0].base_offset
    for offset, epoch in () if moved else known.items():
        if max((found[start] for start in found if start <= offset), default=-1) < epoch:
            findings.add(
                "leader_epochs", f"{epoch} does not hold there any more", offset=offset, path=str(new)
            )


def _epochs(path: Path) -> dict[int, int]:
    """Epochs by the offset at which they begin; one that had no record gives way to the next."""
    try:
        rows = [line.split() for line in files.read_bytes(path).splitlines()[2:]]
        return {int(offset): int(epoch) for epoch, offset in rows}
    except ValueError:
        raise CorruptFileError(str(path), 0, "no leader epochs") from None
