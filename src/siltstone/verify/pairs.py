"""Pairs each log of BEFORE with the same log of AFTER, checks the files beside the segments of both, and cuts
the pair into spans.

BEFORE is a copy of the log directories, or of one partition, from before the cleaning. Or it is what ``clean
--keep-originals`` kept of a run: hard links to the replaced segments, and a file that lists the swaps::

    KEEP/RUN/topic-N/undo.json    {"checkpoint": …, "groups": [{"base_offset": …, "originals": […]}, …]}

Then the segments that were not swapped are taken from AFTER. A pair is cut into *spans*, which tasks check
independently::

    BEFORE   │ 0   │ 127 │ 300 │ 520 │ 700       segments, by base offset
    AFTER    │ 0         │ 300       │ 700
    spans      [0,300)     [300,700)   [700,…)   one for each segment of AFTER, and one below all of them for
                                                 segments that retention deleted
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from siltstone.base import files
from siltstone.base.config import INT_MAX, LONG_MAX, Config, ConfigSource
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    NotALogDirectoryError,
    UnsafeFileError,
    UsageError,
)
from siltstone.base.records.codecs import DECOMPRESSION_LIMIT_SETTING, DEFAULT_DECOMPRESSION_LIMIT
from siltstone.log import names
from siltstone.log.checkpoints import LeaderEpochs, read_topic_id
from siltstone.log.directory import open_directories, require_one_broker
from siltstone.log.ledger.store import cleaning_bounds
from siltstone.log.lookup import batch_headers
from siltstone.log.names import SNAPSHOT, TopicPartition, parse_partition, parse_segment_file, segment_file
from siltstone.log.producers import ProducerStates, load_producers
from siltstone.log.segments import Segment, list_segments
from siltstone.log.transactions import read_transaction_indexes
from siltstone.verify.findings import FILE_ERRORS, Findings

UNDO_FILE = "undo.json"
Logs = dict[TopicPartition, "LogSide"]
"""The logs of one side: of BEFORE, or of AFTER."""
_COPY_ADVICE = "name a copy from before the cleaning"


class _Group(msgspec.Struct):
    """A swapped segment group in ``undo.json``, or a segment that retention deleted (``expired``);
    ``originals``: base offsets of the segments that were replaced."""

    base_offset: int
    originals: tuple[int, ...] = ()
    expired: bool = False


@decoded_in_threads
class _Undo(msgspec.Struct):
    """``undo.json``; ``checkpoint``: the cleaner checkpoint before the cleaning."""

    checkpoint: int | None
    groups: list[_Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningSettings:
    """The settings of the cleaning that is checked; times in ms, sizes in bytes. A setting that is None is
    not known, and what depends on it is not checked.

    ``cleaned_at_ms``: the time of the cleaning or, if ``cleaned_at_is_exact`` is False, a later time.
    ``index_interval`` and ``index_bytes``: ``index.interval.bytes`` and ``segment.index.bytes``. ``deletes``:
    ``cleanup.policy`` has ``delete``, so retention may have deleted segments. ``beyond_high_watermark``:
    records above the high watermark may be cleaned. ``batch_limit``: how many bytes one batch may decompress
    to.
    """

    cleaned_at_ms: int
    cleaned_at_is_exact: bool = False
    delete_retention_ms: int | None = None
    index_interval: int | None = None
    index_bytes: int = 10 << 20
    producer_expiration_ms: int = 86_400_000
    deletes: bool = False
    beyond_high_watermark: bool = False
    batch_limit: int = DEFAULT_DECOMPRESSION_LIMIT


def cleaning_settings(
    config: Config | None,
    cleaned_at_ms: int,
    *,
    cleaned_at_is_exact: bool,
    beyond_high_watermark: bool = False,
) -> CleaningSettings:
    """The settings of a cleaning. ``config``: the topic's settings, None if they are not known.

    A setting that was not set may have had another default in the cleaner, so it counts as not known.
    """
    settings = CleaningSettings(
        cleaned_at_ms=cleaned_at_ms,
        cleaned_at_is_exact=cleaned_at_is_exact,
        beyond_high_watermark=beyond_high_watermark,
    )
    if config is None:
        return settings

    def is_set(name: str) -> bool:
        return config.setting(name).config_source is not ConfigSource.DEFAULT_CONFIG

    def if_set(name: str) -> int | None:
        return config.integer(name) if is_set(name) else None

    return replace(
        settings,
        delete_retention_ms=if_set("delete.retention.ms"),
        index_interval=if_set("index.interval.bytes"),
        index_bytes=config.integer("segment.index.bytes"),
        producer_expiration_ms=config.integer("producer.id.expiration.ms"),
        deletes="delete" in config.policies and is_set("cleanup.policy"),
        batch_limit=config.integer(DECOMPRESSION_LIMIT_SETTING),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPair:
    """One log before and after its cleaning. Both have at least one segment.

    ``first_dirty_offset``: where the dirty section began. ``cleaned_end_offset``: the cleaner checkpoint
    after the cleaning. ``rewritten_end_offset``: segments of BEFORE below it may have been rewritten, those
    above must be as they were. ``aborted_entries``: the bytes of BEFORE's ``.txnindex`` files. ``producers``:
    (id, last data offset or -1, epoch) of the active producers, by id. ``hash_seeds``: the seeds of
    the two hashes of keys, chosen at random for each pair. ``tombstones_from``: tombstones from this offset
    on are retained at any age, for the log's compacted ledger.
    """

    name: str
    before: tuple[Segment, ...]
    after: tuple[Segment, ...]
    first_dirty_offset: int
    cleaned_end_offset: int
    rewritten_end_offset: int
    aborted_entries: bytes
    producers: tuple[tuple[int, int, int], ...]
    settings: CleaningSettings
    hash_seeds: tuple[int, int]
    tombstones_from: int = LONG_MAX

    @property
    def was_cleaned(self) -> bool:
        """Did the cleaner checkpoint move? Then all below ``cleaned_end_offset`` must be clean."""
        return self.cleaned_end_offset > self.first_dirty_offset

    @property
    def last_offset_to_retain(self) -> int:
        """The last offset of the cleaned range, or of the segments that may have been rewritten if the
        cleaner checkpoint did not move. The batch that ends with it is retained even without records."""
        return (self.cleaned_end_offset if self.was_cleaned else self.rewritten_end_offset) - 1

    @property
    def legacy_horizon_ms(self) -> int:
        """Tombstones of v0 and v1 may be discarded from segments that were not modified after this time (ms).

        0 without a clean segment: none may be discarded. Kafka's ``legacyDeleteHorizonMs``: the last clean
        segment's modification time less ``delete.retention.ms``.
        """
        clean = [segment for segment in self.before if segment.base_offset < self.first_dirty_offset]
        return clean[-1].modified_ms - (self.settings.delete_retention_ms or 0) if clean else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets [start, end) of a log. ``before``: the indexes in ``LogPair.before`` of the segments that have
    some of these offsets; ``after``: the index in ``LogPair.after`` of the segment that has them. In the span
    below AFTER's first segment, which retention deleted, ``after`` is None and ``start`` is -1."""

    number: int
    start: int
    end: int
    before: tuple[int, ...]
    after: int | None


def spans_of(pair: LogPair) -> list[Span]:
    """The spans of a log, ascending; each offset is in exactly one."""
    starts: list[tuple[int, int | None]] = [
        (segment.base_offset, row) for row, segment in enumerate(pair.after)
    ]
    if pair.before[0].base_offset < starts[0][0]:
        starts.insert(0, (-1, None))
    ends = [*(start for start, _ in starts[1:]), LONG_MAX]
    before_ends = [*(segment.base_offset for segment in pair.before[1:]), LONG_MAX]
    spans = []
    for number, ((start, after), end) in enumerate(zip(starts, ends, strict=True)):
        overlapping = tuple(
            row
            for row, (segment, segment_end) in enumerate(zip(pair.before, before_ends, strict=False))
            if segment.base_offset < end and segment_end > start
        )
        spans.append(Span(number=number, start=start, end=end, before=overlapping, after=after))
    return spans


# The logs of the two directories.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSide:
    """One log in BEFORE or in AFTER. ``directory`` has its snapshots and leader epochs. ``checkpoint``: its
    cleaner checkpoint. ``unsafe_reason``: why its files are not read (a link, for example), None if they are.
    """

    directory: Path
    segments: tuple[Segment, ...]
    checkpoint: int | None
    log_start_offset: int
    high_watermark: int | None
    unsafe_reason: str | None = None


def open_sides(
    before: Sequence[Path], after: Sequence[Path], topics: Sequence[str] = ()
) -> tuple[Logs, Logs, list[str]]:
    """The logs of all directories of both sides, read without a lock, and notes for the report. Raises
    UsageError, NotALogDirectoryError, DirectoryRefusedError, CorruptFileError, OSError."""
    for path in (*before, *after):
        if not files.is_directory(path):
            raise NotALogDirectoryError("no such directory", path=path)
    before_identities = {files.stat(path).device_and_inode for path in before}
    for path in after:
        if files.stat(path).device_and_inode in before_identities:
            raise UsageError("BEFORE and AFTER are one directory", path=path, advice=_COPY_ADVICE)
    new = _directory_sides(after)
    runs = {path: kept for path in before if (kept := _kept_logs(path))}
    copies = [path for path in before if path not in runs]
    copied = _directory_sides(copies)
    old, notes = dict(copied), list[str]()
    for path, kept in runs.items():
        notes += _without_undone(path, kept, new)
        repeated = ", ".join(sorted(map(str, kept.keys() & old.keys())))
        if repeated:
            advice = "name one state before the cleaning"
            raise UsageError(f"BEFORE has {repeated} twice", path=path, advice=advice)
        old |= _kept_sides(kept, new)
    if len(old) == 1 and len(new) == 1 and old.keys() != new.keys():
        reason = f"is {next(iter(new))}, but BEFORE ({before[0]}) is {next(iter(old))}"
        raise UsageError(reason, path=after[0], advice="name two directories of one partition")
    if runs and not copies:
        new = {partition: side for partition, side in new.items() if partition in old}
        paths = ", ".join(map(str, runs))
        notes.append(
            f"{paths} has the originals of a run: only the logs that it changed ({len(old)}) are checked"
        )
    _refuse_same_directories(copied, new)
    if topics:
        missing = set(topics) - {partition.topic for partition in old}
        if missing:
            reason = f"BEFORE has no partition of the topic {min(missing)}"
            raise UsageError(
                reason, path="--topic", advice=f"pass topics that are in {', '.join(map(str, before))}"
            )
        old = {partition: side for partition, side in old.items() if partition.topic in topics}
        new = {partition: side for partition, side in new.items() if partition.topic in topics}
    _refuse_unmatched(old, new)
    return old, new, notes


def _refuse_unmatched(old: Logs, new: Logs) -> None:
    """Raise UsageError for a log directory of which the other side has no log at all."""
    for logs, other_logs, other_name, other_flag in (
        (new, old, "BEFORE", "--before"),
        (old, new, "AFTER", "--after"),
    ):
        directories: dict[Path, list[TopicPartition]] = {}
        for partition, side in logs.items():
            directories.setdefault(side.directory.parent, []).append(partition)
        for path, partitions in directories.items():
            if not any(partition in other_logs for partition in partitions):
                reason = f"{other_name} has none of the logs of this directory, such as {min(partitions)}"
                advice = f"name all log.dirs of the broker on both sides, with another {other_flag}"
                raise UsageError(reason, path=path, advice=advice)


def _refuse_same_directories(copied: Logs, new: Logs) -> None:
    """Raise UsageError for a log that has the same directory in BEFORE as in AFTER."""
    for partition in copied.keys() & new.keys():
        before, after = copied[partition].directory, new[partition].directory
        if files.stat(before).device_and_inode == files.stat(after).device_and_inode:
            reason = f"{partition} of BEFORE and of AFTER is this directory"
            raise UsageError(reason, path=before, advice=_COPY_ADVICE)


def _directory_sides(paths: Sequence[Path]) -> Logs:
    """The logs of log directories, or of partitions' directories."""
    directories = open_directories(paths, lock=False)
    if len(directories) > 1:
        require_one_broker(directories)
    sides = {}
    for directory in directories:
        checkpoints = directory.checkpoints()
        for partition, path in directory.partitions.items():
            segments, unsafe_reason = _list_safe_segments(path)
            sides[partition] = LogSide(
                directory=path,
                segments=segments,
                unsafe_reason=unsafe_reason,
                checkpoint=checkpoints.cleaner.get(partition),
                log_start_offset=checkpoints.log_start.get(partition, 0),
                high_watermark=checkpoints.high_watermark.get(partition),
            )
    return sides


def _list_safe_segments(directory: Path) -> tuple[tuple[Segment, ...], str | None]:
    """(a partition's segments, None), or ((), the reason) if one of its files is unsafe to read."""
    try:
        return tuple(list_segments(directory)), None
    except UnsafeFileError as error:
        return (), str(error)


def _kept_logs(path: Path) -> dict[TopicPartition, Path]:
    """Partition → folder with the originals that a run kept: below ``path``, or ``path`` itself."""
    folders = [path]
    if not files.exists(path / UNDO_FILE):
        folders = [path / entry.name for entry in files.entries(path) if entry.is_directory]
    with_undo = [folder for folder in folders if files.exists(folder / UNDO_FILE)]
    parsed = ((parse_partition(files.absolute(folder).name), folder) for folder in with_undo)
    return {partition: folder for partition, folder in parsed if partition}


def _without_undone(run: Path, kept: dict[TopicPartition, Path], after: Logs) -> list[str]:
    """Remove the logs from ``kept`` whose originals are in AFTER again; returns a note on them. Raises
    UsageError if these are all logs of the run, CorruptFileError."""
    undone = [
        partition
        for partition, folder in kept.items()
        if partition in after and _is_undone(folder, after[partition].directory)
    ]
    if undone and len(undone) == len(kept):
        reason = "the run was undone: AFTER has its originals, so there is no cleaning to check"
        raise UsageError(reason, path=run, advice="name another run, or a copy from before the cleaning")
    for partition in undone:
        del kept[partition]
    return [f"{run}: undone, and so not checked: {', '.join(map(str, undone))}"] if undone else []


def _is_undone(folder: Path, partition: Path) -> bool:
    """Are the kept originals the same files (inodes) as those of their names in the partition's directory?
    ``undo`` links them there again."""
    logs = [segment_file(base, "log") for group in _read_undo(folder).groups for base in group.originals]
    kept = [name for name in logs if files.exists(folder / name)]
    return bool(kept) and all(
        files.exists(partition / name)
        and files.stat(partition / name).device_and_inode == files.stat(folder / name).device_and_inode
        for name in kept
    )


def _read_undo(folder: Path) -> _Undo:
    """The ``undo.json`` in a folder of kept originals. Raises CorruptFileError, OSError."""
    path = folder / UNDO_FILE
    try:
        return msgspec.json.decode(files.read_bytes(path), type=_Undo)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        reason, advice = "is not a list of kept originals", "name a copy of the log directory"
        raise CorruptFileError(str(path), 0, reason, advice=advice) from None


def _kept_sides(kept: Mapping[TopicPartition, Path], after: Logs) -> Logs:
    """The logs of BEFORE: kept originals, and the segments of ``after`` that no swap replaced."""
    sides = {}
    for partition, folder in kept.items():
        if partition not in after:
            advice = "name the directory that was cleaned in place"
            raise UsageError(f"AFTER has no {partition}", path=folder, advice=advice)
        undo = _read_undo(folder)
        swapped = {group.base_offset for group in undo.groups if not group.expired}
        unswapped = [segment for segment in after[partition].segments if segment.base_offset not in swapped]
        originals, unsafe_reason = _list_safe_segments(folder)
        sides[partition] = replace(
            after[partition],
            segments=tuple(sorted([*originals, *unswapped], key=lambda segment: segment.base_offset)),
            unsafe_reason=unsafe_reason or after[partition].unsafe_reason,
            checkpoint=undo.checkpoint,
        )
    return sides


def pair_of(
    partition: TopicPartition,
    before: LogSide | None,
    after: LogSide | None,
    settings: CleaningSettings,
    findings: Findings,
) -> LogPair | None:
    """The pair of one log, None if there is nothing to compare. Problems of its checkpoint, of the bounds of
    its segments and of its other files go to ``findings``; so do files of AFTER that cannot be read. Raises
    CorruptFileError and OSError for files of BEFORE."""
    if before is None or after is None:
        findings.add("log_unknown" if before is None else "log_missing", str(partition))
        return None
    if unsafe_reason := before.unsafe_reason or after.unsafe_reason:
        findings.add("unsafe_file", unsafe_reason)
        return None
    _check_other_files(before, after, findings)
    if not before.segments or not after.segments:
        if before.segments:
            findings.add("segment_missing", "AFTER has no segment at all")
        elif after.segments:
            findings.add("segment_name", "BEFORE has no segment at all")
        return None
    return _pair(partition, before, after, settings, findings)


def _pair(
    partition: TopicPartition, before: LogSide, after: LogSide, settings: CleaningSettings, findings: Findings
) -> LogPair:
    producers = load_producers(before.directory, before.segments)
    # The dirty section began at the checkpoint, or at the log start offset if the checkpoint is missing or
    # outside the log.
    bases = [segment.base_offset for segment in before.segments]
    first_dirty_offset = max(before.log_start_offset, bases[0])
    if before.checkpoint is not None and first_dirty_offset <= before.checkpoint <= producers.end_offset:
        first_dirty_offset = before.checkpoint
    cleaned_end_offset = first_dirty_offset if after.checkpoint is None else after.checkpoint
    if after.checkpoint is None and before.checkpoint is not None:
        findings.add("checkpoint", "AFTER has none, but BEFORE had one")
    elif after.checkpoint is None and len(after.segments) > 1:
        findings.notes.append("AFTER has no cleaner checkpoint: taken for never cleaned")
    # If the checkpoint moved, all segments below it may have been rewritten. If it did not, a cleaning may
    # still have rewritten the clean section, for its tombstones.
    below = [base for base in bases if base <= cleaned_end_offset]
    above = [base for base in bases if base >= cleaned_end_offset]
    rewritten_end_offset = (
        (above or [producers.end_offset])[0]
        if cleaned_end_offset > first_dirty_offset
        else (below or bases)[-1]
    )
    active_producers = producers.active(settings.cleaned_at_ms, settings.producer_expiration_ms)
    pair = LogPair(
        name=str(partition),
        before=before.segments,
        after=after.segments,
        first_dirty_offset=first_dirty_offset,
        cleaned_end_offset=cleaned_end_offset,
        rewritten_end_offset=rewritten_end_offset,
        aborted_entries=read_transaction_indexes(before.segments),
        producers=tuple(
            (entry.producer_id, entry.last_offset, entry.producer_epoch) for entry in active_producers
        ),
        settings=settings,
        hash_seeds=(secrets.randbits(64), secrets.randbits(64)),
        tombstones_from=cleaning_bounds(before.directory).tombstones_from,
    )
    _check_range(pair, before, producers, findings)
    _check_segments(pair, after.log_start_offset, producers.end_offset, findings)
    return pair


def _check_range(pair: LogPair, before: LogSide, producers: ProducerStates, findings: Findings) -> None:
    """The checkpoint must not move backwards, nor beyond what may be cleaned; the log's end must not move."""
    end = pair.cleaned_end_offset
    # If ``end`` is ``first_dirty_offset``, AFTER has no checkpoint (``_pair`` reports that), or BEFORE's was
    # outside the log.
    if before.checkpoint is not None and end < before.checkpoint and end != pair.first_dirty_offset:
        findings.add("checkpoint", f"moved backwards from {before.checkpoint} to {end}")
    for name, bound in (
        ("the active segment", before.segments[-1].base_offset),
        ("an open transaction", producers.first_open_transaction()),
        ("the high watermark", None if pair.settings.beyond_high_watermark else before.high_watermark),
    ):
        if pair.was_cleaned and bound is not None and end > bound:
            findings.add("checkpoint", f"{end} is beyond {name}, {bound}")
    try:
        old_end, new_end = _log_end_offset(pair.before[-1]), _log_end_offset(pair.after[-1])
    except (CorruptRecordError, OSError):
        return  # the active segment is damaged or unreadable: the check of its span reports that
    if old_end != new_end:
        findings.add("end_moved", f"from {old_end} to {new_end}", offset=new_end)


def _log_end_offset(active: Segment) -> int:
    """The offset after the last batch, from the batch headers: a snapshot may be ahead of them."""
    end = active.base_offset
    with files.Reader(active.path) as reader:
        for batches in batch_headers(reader, end=active.size):
            end = int(batches["last_offset"][-1]) + 1
    return end


def _check_segments(pair: LogPair, log_start_offset: int, end: int, findings: Findings) -> None:
    """Each segment of AFTER must begin where one of BEFORE began, or at the log's end. Only retention may
    delete segments."""
    bases = {segment.base_offset for segment in pair.before}
    for segment in pair.after:
        base = segment.base_offset
        # A cleaning splits a segment whose offsets are too far apart for an index: that begins a new one.
        below = [old.base_offset for old in pair.before if old.base_offset <= base]
        if base not in bases and base != end and not (below and base - below[-1] > INT_MAX):
            findings.add("segment_name", f"{base} was no segment's base", offset=base, path=segment.path)
    first = pair.after[0].base_offset
    unexpired = [
        segment.base_offset
        for segment, next_segment in itertools.pairwise(pair.before)
        if segment.base_offset < first and next_segment.base_offset > log_start_offset
    ]
    if unexpired and not pair.settings.deletes:
        detail = "pass --config cleanup.policy=compact,delete if retention may have deleted it"
        findings.add("segment_missing", detail, offset=unexpired[0], times=len(unexpired))
    for base in sorted(bases - {segment.base_offset for segment in pair.after}):
        if base >= max(pair.rewritten_end_offset, first):
            findings.add("segment_missing", "it was not to be cleaned", offset=base)


def _check_other_files(before: LogSide, after: LogSide, findings: Findings) -> None:
    """Check the files of the partition that belong to no segment."""
    if before.directory != after.directory:
        old = read_topic_id(before.directory)
        with findings.reporting_as("topic_id", str(after.directory)):
            new = read_topic_id(after.directory)
            if old is not None and old != new:
                findings.add("topic_id", f"was {old}, is {new}", path=str(after.directory))
        _check_snapshot(before.directory, after.directory, findings)
        _check_epochs(before, after, findings)
    logs = {segment.base_offset for segment in after.segments}
    for entry in files.entries(after.directory):
        name = parse_segment_file(entry.name)
        path = str(after.directory / entry.name)
        if entry.is_directory and entry.name == names.STAGING:
            findings.add("leftover", "a run's files", path=path)
        elif name is not None and name.suffix:
            findings.add("leftover", "a swap's file", path=path)
        elif name is not None and name.kind in names.INDEX_KINDS and name.base_offset not in logs:
            findings.add("leftover", "an index without its segment", path=path)


def _check_snapshot(before: Path, after: Path, findings: Findings) -> None:
    """The newest snapshot must be the same: a broker restores the producers from it at startup."""
    parsed = (parse_segment_file(entry.name) for entry in files.entries(before))
    offsets = [name.base_offset for name in parsed if name and name.kind == SNAPSHOT and not name.suffix]
    if not offsets:
        return
    name = segment_file(max(offsets), SNAPSHOT)
    snapshot, path = files.read_bytes(before / name), str(after / name)
    with findings.reporting_as("snapshot", path):
        if not files.exists(after / name):
            findings.add("snapshot", "is missing", path=path)
        elif files.read_bytes(after / name) != snapshot:
            findings.add("snapshot", "changed", path=path)


def _check_epochs(before: LogSide, after: LogSide, findings: Findings) -> None:
    """The leader epoch of each offset must be as it was, unless the log's start moved. There may be new
    epochs, since each startup of a broker adds one."""
    epochs = LeaderEpochs(before.directory).entries
    path = str(after.directory / names.LEADER_EPOCH_CHECKPOINT)
    try:
        new_epochs = LeaderEpochs(after.directory).entries
    except FILE_ERRORS as error:
        findings.add_error("leader_epochs", error, path)
        return
    if epochs and not new_epochs:
        findings.add("leader_epochs", "the file is missing or empty", path=path)
        return
    has_moved = before.log_start_offset != after.log_start_offset or not before.segments or not after.segments
    has_moved = has_moved or before.segments[0].base_offset != after.segments[0].base_offset
    # A higher epoch is right, too: a new one replaces an old one that starts at the same offset.
    for epoch, offset in () if has_moved else epochs:
        if max((new for new, start in new_epochs if start <= offset), default=-1) < epoch:
            findings.add("leader_epochs", f"{epoch} does not hold there any more", offset=offset, path=path)
