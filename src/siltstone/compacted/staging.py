"""Phase two, and the folding of generations: new segments, written, read back and checked.

::

    rewrite_group   sources of the log + winners            → segments that hold exactly these
    fold_group      sources of generations + hidden offsets → segments that hold all others
    fold_keys       their key indexes, a bucket of them     → a part of the new key index

A task writes only files that carry its attempt's name, made with O_EXCL, in the run's folder, and makes
segments durable itself. The owner of the log renames what it accepts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crc32c import crc32c

from siltstone import files
from siltstone.cleaner.work import Trouble, refuse_disorder, trouble_of
from siltstone.compacted.coalescing import Coalesced, Coalescer
from siltstone.compacted.key_index import KeyIndex, KeysPart
from siltstone.compacted.keys import PARTITIONS, best_of_each_key, offsets_of
from siltstone.compacted.work import (
    CompactionWork,
    Group,
    OldKeys,
    Output,
    Source,
    keep_part,
    opened,
    source_windows,
)
from siltstone.config import INT_MAX
from siltstone.errors import CheckFailedError
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import windows
from siltstone.records.checksum import refuse_bad_checksum
from siltstone.records.codecs import Scratch
from siltstone.records.decode import decode_record_keys
from siltstone.records.layout import Int64
from siltstone.records.pieces import pieces

KINDS = ("log", "index", "timeindex")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """A finished segment: ``stem`` is its path without the kinds; sizes in bytes, checksums CRC32C."""

    base_offset: int
    stem: str
    size: int
    crc: int
    index_crc: int
    time_index_crc: int


@dataclass(slots=True, kw_only=True)
class Rewritten:
    """What became of a group: its segments, the records in them, and the first trouble."""

    group: int
    kept: int = 0
    segments: list[StagedSegment] = field(default_factory=list)
    trouble: Trouble | None = None


@dataclass(slots=True, kw_only=True)
class FoldedKeys:
    """What became of a bucket of folded key indexes."""

    bucket: int
    keys: KeysPart | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldWork:
    """Generations that become one: their segments, what is hidden in each (int64, ascending), their keys."""

    name: str
    sources: tuple[Source, ...]
    groups: tuple[Group, ...]
    hidden: dict[int, Int64]
    keys: tuple[OldKeys, ...]
    hash_key: tuple[int, int]
    output: Output


class _Sink:
    """Segments as they are written: a new one where the one before is full or too wide."""

    def __init__(self, output: Output, attempt: str, report: Rewritten) -> None:
        self._output, self._attempt, self._report = output, attempt, report
        self._writer: files.Writer | None = None
        self._room = contextlib.ExitStack()

    def put(self, found: Coalesced) -> None:
        """Write finished batches, in order."""
        start, place = 0, 0
        while start < len(found.size):
            behind = self._fitting(found, start)
            size = int(found.size[start:behind].sum())
            self._write(found, start, behind, place, size)
            start, place = behind, place + size

    def _fitting(self, found: Coalesced, start: int) -> int:
        """How many batches from ``start`` on go into the segment that is open, or into a new one."""
        if self._writer is not None:
            behind = start + self._room_for(found, start, self._base, self._writer.size)
            if behind > start:
                return behind
            self.close()
        base = int(found.base_offset[start])
        self._open(base)
        return start + max(1, self._room_for(found, start, base, 0))

    def _room_for(self, found: Coalesced, start: int, base: int, used: int) -> int:
        full = np.searchsorted(np.cumsum(found.size[start:]), self._output.segment_bytes - used, side="right")
        wide = np.searchsorted(found.last_offset[start:], base + INT_MAX, side="right")
        return int(min(full, wide))

    def _open(self, base: int) -> None:
        self._base, self._crc = base, 0
        self._stem = str(Path(self._output.staging) / f"{base:020d}.{self._attempt}")
        self._writer = self._room.enter_context(files.Writer(f"{self._stem}.log"))
        self._indexes = IndexBuilder(base, self._output.index_interval, self._output.index_bytes)

    def _write(self, found: Coalesced, start: int, behind: int, place: int, size: int) -> None:
        assert self._writer is not None
        data = found.data[place : place + size]
        self._crc = crc32c(data.data, self._crc)
        self._writer.write(data.data)
        rows = slice(start, behind)
        self._indexes.add(found.last_offset[rows], found.max_timestamp[rows], found.size[rows])

    def close(self) -> None:
        """Finish the segment that is open: its indexes, everything durable."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        indexes = self._indexes.finish()
        made = {"index": indexes.offset_index, "timeindex": indexes.time_index}
        for kind, data in made.items():
            files.write_new(f"{self._stem}.{kind}", data)
        for kind in KINDS:
            files.inherit_owner(f"{self._stem}.{kind}")
        writer.sync()
        self._room.close()
        self._report.segments.append(
            StagedSegment(
                base_offset=self._base,
                stem=self._stem,
                size=writer.size,
                crc=self._crc,
                index_crc=crc32c(made["index"]),
                time_index_crc=crc32c(made["timeindex"]),
            )
        )

    def drop(self) -> None:
        """Remove everything of this attempt."""
        self._room.close()
        stems = [each.stem for each in self._report.segments]
        stems += [] if self._writer is None else [self._stem]
        for stem in stems:
            for kind in KINDS:
                with contextlib.suppress(OSError):
                    files.unlink(f"{stem}.{kind}")
        self._report.segments.clear()


def rewrite_group(work: CompactionWork, group: Group, winners: Int64, attempt: str) -> Rewritten:
    """Write the group's ``winners`` (offsets, int64, in any order) into new segments.

    Never raises for what is wrong with the log, the disk or the counts: the report says so, and the files of
    this attempt are gone then.
    """
    coalescer = Coalescer(np.sort(winners), batch_limit=work.output.batch_limit)
    return _written(work.name, work.sources, group, coalescer, work.output, attempt, len(winners))


def fold_group(work: FoldWork, group: Group, attempt: str) -> Rewritten:
    """Write what is not hidden of a group of generations' segments into new ones. Never raises, as above."""
    mine = {source.generation for source in work.sources[group.first : group.last]}
    parts = [offsets for each, offsets in sorted(work.hidden.items()) if each in mine]
    hidden = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    low, high = np.searchsorted(hidden, [group.base_offset, group.end_offset])
    coalescer = Coalescer(hidden[low:high], keep_listed=False, batch_limit=work.output.batch_limit)
    return _written(work.name, work.sources, group, coalescer, work.output, attempt, None)


def _written(
    name: str,
    sources: tuple[Source, ...],
    group: Group,
    coalescer: Coalescer,
    output: Output,
    attempt: str,
    expected: int | None,
) -> Rewritten:
    report = Rewritten(group=group.index)
    sink = _Sink(output, f"{group.index}.{attempt}", report)
    try:
        for source in sources[group.first : group.last]:
            for found in _coalesced(source, coalescer, output):
                sink.put(found)
        sink.put(coalescer.finish())
        sink.close()
        report.kept = coalescer.kept
        if expected is not None and report.kept != expected:
            raise CheckFailedError(f"{name}: {expected} winners, but {report.kept} records were written")
        _read_back(report, group, np.concatenate([np.empty(0, np.int64), *coalescer.offsets]), output)
    except Exception as error:
        report.trouble = trouble_of(error)
        sink.drop()
    return report


def _coalesced(source: Source, coalescer: Coalescer, output: Output) -> Iterator[Coalesced]:
    """What a source adds; only batches that have something that stays are looked at."""
    following = source.base_offset
    with opened(source) as reader:
        for window in source_windows(reader, source, output.window_size, verify=False):
            following = refuse_disorder(source.path, window, following, source.end_offset)
            chosen = coalescer.chosen(window.batches)
            refuse_bad_checksum(window.data, chosen, path=source.path, origin=window.origin)
            for part in pieces(window.data, chosen):
                found = coalescer.take(window.data, chosen[part], path=source.path, origin=window.origin)
                if found is not None and len(found.size):
                    yield found


def _read_back(report: Rewritten, group: Group, offsets: Int64, output: Output) -> None:
    """Scan the new segments from disk: checksums, order, exactly these offsets, the indexes built again.

    Raises CheckFailedError, CorruptFileError, OSError.
    """
    following, seen, scratch = group.base_offset, 0, Scratch()
    for segment in report.segments:
        path = f"{segment.stem}.log"
        again = IndexBuilder(segment.base_offset, output.index_interval, output.index_bytes)
        with files.Reader(path) as reader:
            if reader.stat.size != segment.size:
                raise CheckFailedError(f"{path}: {reader.stat.size} bytes, but {segment.size} were written")
            for window in windows(reader, window_size=output.window_size):
                following = refuse_disorder(path, window, following, group.end_offset)
                again.add_directory(window.batches)
                for part in pieces(window.data, window.batches):
                    columns = decode_record_keys(
                        window.data,
                        window.batches[part],
                        scratch,
                        limit=output.batch_limit,
                        path=path,
                        origin=window.origin,
                    )
                    mine = offsets[seen : seen + len(columns)]
                    if not np.array_equal(mine, columns.offset):
                        raise CheckFailedError(f"{path}: holds other records than were written")
                    seen += len(columns)
        built = again.finish()
        for kind, data in (("index", built.offset_index), ("timeindex", built.time_index)):
            if files.read_bytes(f"{segment.stem}.{kind}") != data:
                raise CheckFailedError(f"{segment.stem}.{kind}: is not the index of what was written")
    if seen != len(offsets):
        raise CheckFailedError(f"{seen} records on disk, but {len(offsets)} were written")


def fold_keys(work: FoldWork, bucket: int, buckets: int, attempt: str) -> FoldedKeys:
    """One bucket of the generations' key indexes as a part of a new one; hidden entries go. Never raises."""
    report = FoldedKeys(bucket=bucket)
    each = PARTITIONS // buckets
    first = bucket * each
    parts = []
    try:
        for keys in work.keys:
            hidden = work.hidden.get(keys.generation, np.empty(0, np.int64))
            with KeyIndex(keys.path, work.hash_key) as index:
                words = index.words
                for _, entries, _ in index.ranges(first, first + each):
                    offsets = offsets_of(entries)
                    where = np.searchsorted(hidden, offsets).clip(max=max(len(hidden) - 1, 0))
                    parts.append(entries[hidden[where] != offsets] if len(hidden) else entries)
        entries = np.concatenate([np.empty((0, words), np.uint64), *parts])
        best, bounds = best_of_each_key(entries, first, each)
        report.keys = keep_part(work.output, best, bounds, np.ones(len(best), np.bool_), first, attempt)
    except Exception as error:
        report.trouble = trouble_of(error)
    return report
