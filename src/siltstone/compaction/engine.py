"""How an engine is spoken to, and the one that needs no Spark.

An engine takes logs' work and hands back, log by log or wave by wave, what became of their groups. The
in-process engine calls the pieces one after another; ``siltstone.spark`` spreads the same pieces.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from crc32c import crc32c

from siltstone.base import files
from siltstone.base.errors import CheckFailedError
from siltstone.compaction import broadcast
from siltstone.compaction.extraction import Extracted, Group, LogFailure, failure_of
from siltstone.compaction.keys import MERGE_BYTES, EntryBlob, MergedBucket, merge_bucket
from siltstone.compaction.rewrite import Buffers, Offsets, in_order
from siltstone.compaction.staging import Rewritten, remove_staged, rewrite_group
from siltstone.compaction.work import LogWork, carried_between, check_keyless, extract, retained_by_group
from siltstone.log.transactions import NOTHING, Carried

# A group's retained offsets between two jobs: written by the task that gathered them, verified by whoever
# reads them.
#
# ::
#
#     BASE.ATTEMPT.retained     uint32, little-endian, ascending: offsets less the group's base
#
# There is no header: count and CRC32C are in the task's report. A task writes only a file of its own name,
# made with O_EXCL. Only the run that wrote it reads it, so it need not be durable. A group without retained
# offsets has none.

RETAINED_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFile:
    """One group's file: its name in the run's folder ("" without retained offsets), how many, and their
    CRC32C.

    ``carried``: what the group starts with, of transactions.
    """

    group: int
    name: str = ""
    count: int = 0
    checksum: int = 0
    carried: Carried = NOTHING
    failure: LogFailure | None = None


def write_retained(
    work: LogWork, group: Group, retained: Offsets, attempt: str, carried: Carried = NOTHING
) -> RetainedFile:
    """Write a group's retained offsets, in any order, to this attempt's file. Never raises: the report says
    it."""
    assert work.staging is not None
    if not len(retained):
        return RetainedFile(group=group.index, carried=carried)
    name = f"{group.base_offset:020d}.{attempt}.retained"
    path = Path(work.staging) / name
    try:
        ascending = in_order(retained, group.end_offset - group.base_offset)
        data = ascending.astype("<u4", copy=False).view(np.uint8).data
        with files.Writer(path) as writer:
            writer.write(data)
            files.inherit_owner(path)
        return RetainedFile(
            group=group.index, name=name, count=len(retained), checksum=crc32c(data), carried=carried
        )
    except Exception as error:
        if not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                files.unlink(path)
        return RetainedFile(group=group.index, failure=failure_of(error))


def read_retained(folder: Path, file: RetainedFile) -> Offsets:
    """The retained offsets again, ascending. Raises CheckFailedError when they are not those that were
    written."""
    retained = np.empty(file.count, "<u4")
    if file.count:
        with files.Reader(folder / file.name) as reader:
            got = reader.read_into(retained.view(np.uint8), 0)
            sound = got == reader.stat.size == retained.nbytes
        if not sound or crc32c(retained.view(np.uint8).data) != file.checksum:
            raise CheckFailedError(f"{folder / file.name}: not the retained offsets that were gathered")
    return retained.astype(np.uint32, copy=False)


def rewrite_from(
    work: LogWork, group: Group, file: RetainedFile, attempt: str, buffers: Buffers | None = None
) -> Rewritten:
    """``staging.rewrite_group`` with the retained offsets of a file. Never raises: the report says what is
    wrong."""
    assert work.staging is not None and file.group == group.index
    try:
        retained = read_retained(Path(work.staging), file)
    except Exception as error:
        return Rewritten(group=group.index, failure=failure_of(error))
    return rewrite_group(work, group, retained, attempt, file.carried, buffers)


@dataclass(slots=True, kw_only=True)
class LogDone:
    """What an engine did for one log, or for one wave of its groups.

    ``retained`` (by group) and ``dirty_keys`` are the merge's totals over the whole log; ``groups`` are in
    order; ``seconds`` is what the work itself took, where one task did it all.
    """

    name: str
    found: Extracted
    groups: list[Rewritten] = field(default_factory=list)
    retained: dict[int, int] = field(default_factory=dict)
    dirty_keys: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Gathered:
    """A log's retained offsets, on disk: the merge's totals (no groups yet), and a file for each group."""

    totals: LogDone
    files: list[RetainedFile] = field(default_factory=list)


class Progress(Protocol):
    """Told what goes on: which log, at which stage, and how much of it is done."""

    def __call__(self, log: str, stage: str, done: int, total: int) -> None:
        """``done`` of ``total`` tasks of ``stage``."""
        ...


class Engine(Protocol):
    """What the cleaner asks of whoever spreads the work. ``workers``: groups that go at one time."""

    @property
    def workers(self) -> int:
        """How many groups are rewritten at one time."""
        ...

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        """Each log inside one task. One answer a log, in any order."""
        ...

    def clean_spread(self, work: LogWork) -> LogDone:
        """One log over all workers."""
        ...

    def gather(self, work: LogWork) -> Gathered:
        """One log over all workers, up to its retained offsets, which are put into files of the staging
        folder."""
        ...

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[Rewritten]:
        """Some groups of a log whose retained offsets were gathered, in order; ``retained`` are of all its
        groups."""
        ...


def bucket_count(work: LogWork, at_least: int = 1) -> int:
    """Buckets so that the merge of one stays within ``work.memory_bytes``, whatever the number of keys.

    A log's span of offsets bounds its records, hence its keys.
    """
    return max(at_least, -(-offset_span(work) * MERGE_BYTES // work.memory_bytes))


def offset_span(work: LogWork) -> int:
    """How many offsets the log has: it has no more records."""
    return work.end - work.segments[0].base_offset


def entry_capacity(work: LogWork) -> int:
    """Entries that an extracting task may keep: it takes them once and, while its room grows, half as much
    again; what is on its way has the rest of the memory."""
    return max(1024, work.memory_bytes // (3 * 16))


def fits_one_task(work: LogWork, byte_limit: int) -> bool:
    """Is the log small enough for one task, by its bytes and by the memory for its keys?"""
    return work.size <= byte_limit and bucket_count(work) == 1


def clean_in_one_go(work: LogWork, attempt: str, buffers: Buffers | None = None) -> LogDone:
    """Extract, merge and rewrite a whole log in this process, or look its keys up where that pays. A task
    that does several logs may give them the same ``buffers``."""
    began, buffers = time.perf_counter(), buffers or Buffers()
    done = clean_by_lookup(work, attempt, buffers=buffers) or _extract_and_rewrite(work, attempt, buffers)
    done.seconds = time.perf_counter() - began
    return done


def _extract_and_rewrite(work: LogWork, attempt: str, buffers: Buffers) -> LogDone:
    done = LogDone(name=work.name, found=Extracted())
    extracted = extract(work, work.splits, 1, entry_capacity(work), done.found)
    blobs = [blob.kept() for blob in extracted]
    carried = carried_between(work, done.found)
    done.found.failure = done.found.failure or check_keyless(work, done.found)
    if done.found.failure is None:
        retained = merge_bucket(blobs, 0, 1)
        by_group = dict(retained_by_group(work, retained))
        done.dirty_keys = retained.dirty_keys
        done.retained = {group: len(offsets) for group, offsets in by_group.items()}
        done.groups = rewrite_groups(work, by_group, carried, attempt, buffers)
    return done


def clean_by_lookup(
    work: LogWork,
    attempt: str,
    clean_share: float = broadcast.CLEAN_SHARE,
    buffers: Buffers | None = None,
) -> LogDone | None:
    """A second pass in this process; None where it does not pay, and for a log that has transactions."""
    if not broadcast.pays(work, clean_share):
        return None
    done = LogDone(name=work.name, found=Extracted())
    splits = [split for run in broadcast.dirty_splits(work, 1) for split in run]
    entries = broadcast.dirty_entries(work, splits, done.found)
    if done.found.failure is not None:
        return done
    if done.found.transactional:
        return None
    offset_map = broadcast.OffsetMap.of(entries)
    ready = broadcast.Lookup(work, offset_map, buffers)
    groups = [broadcast.clean_group(work, group, ready, attempt) for group in work.groups]
    return looked_up(work, len(offset_map), groups)


def looked_up(work: LogWork, dirty_keys: int, groups: Iterable[broadcast.GroupDone]) -> LogDone | None:
    """What groups that were looked up make of their log, which has so many dirty keys; None where one of them
    has transactions: what the others have staged goes."""
    done, met = LogDone(name=work.name, found=Extracted(), dirty_keys=dirty_keys), 0
    for each in groups:
        done.found.add(each.found)
        met += each.met
        if each.rewritten is not None:
            done.groups.append(each.rewritten)
            done.retained[each.rewritten.group] = each.rewritten.retained
    found = done.found
    if found.transactional and found.failure is None:
        for group in done.groups:
            remove_staged(group)
        return None
    found.failure = found.failure or check_keyless(work, found) or broadcast.check_met(work, dirty_keys, met)
    done.groups.sort(key=lambda group: group.group)
    return done


def rewrite_groups(
    work: LogWork,
    retained: dict[int, Offsets],
    carried: dict[int, Carried],
    attempt: str,
    buffers: Buffers,
) -> list[Rewritten]:
    """Rewrite all groups in order, up to the first that fails."""
    reports = []
    for group in work.groups:
        mine = retained.get(group.index, np.empty(0, np.uint32))
        over = carried.get(group.index, NOTHING)
        reports.append(rewrite_group(work, group, mine, attempt, over, buffers))
        if reports[-1].failure is not None:
            break
    return reports


class InProcessEngine:
    """Everything here and now, one piece after another; both ways of spreading, without spreading."""

    workers = 1

    def __init__(self, buckets: int = 1, *, clean_share: float = broadcast.CLEAN_SHARE) -> None:
        self._buckets = buckets
        self._clean_share = clean_share

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogDone]:
        """Each log in one go."""
        buffers = Buffers()
        for work in works:
            yield clean_in_one_go(work, "0", buffers)

    def clean_spread(self, work: LogWork) -> LogDone:
        """Segment by segment, bucket by bucket, group by group, as a cluster would."""
        found = clean_by_lookup(work, "0", self._clean_share)
        if found is not None:
            return found
        done, by_group, carried = self._merged(work)
        if done.found.failure is None:
            done.groups = rewrite_groups(work, by_group, carried, "0", Buffers())
        return done

    def gather(self, work: LogWork) -> Gathered:
        """The same, up to the retained offsets."""
        done, by_group, carried = self._merged(work)
        gathered = Gathered(totals=done)
        if done.found.failure is None:
            for group in work.groups:
                mine = by_group.get(group.index, np.empty(0, np.uint32))
                over = carried.get(group.index, NOTHING)
                gathered.files.append(write_retained(work, group, mine, "0", over))
        return gathered

    def rewrite(
        self, work: LogWork, groups: Sequence[Group], retained: Sequence[RetainedFile]
    ) -> list[Rewritten]:
        """Group by group, up to the first that fails."""
        reports: list[Rewritten] = []
        buffers = Buffers()
        for group in groups:
            reports.append(rewrite_from(work, group, retained[group.index], "0", buffers))
            if reports[-1].failure is not None:
                break
        return reports

    def _merged(self, work: LogWork) -> tuple[LogDone, dict[int, Offsets], dict[int, Carried]]:
        buckets, found = bucket_count(work, self._buckets), Extracted()
        blobs: dict[int, list[EntryBlob]] = {}
        for split in work.splits:
            for blob in extract(work, [split], buckets, entry_capacity(work), found):
                blobs.setdefault(blob.bucket, []).append(blob.kept())
        carried = carried_between(work, found)
        merged = [merge_bucket(mine, bucket, buckets) for bucket, mine in blobs.items()]
        found.failure = found.failure or check_keyless(work, found)
        by_group = _gather(work, merged)
        done = LogDone(name=work.name, found=found, dirty_keys=sum(each.dirty_keys for each in merged))
        done.retained = {group: len(offsets) for group, offsets in by_group.items()}
        return done, by_group, carried


def _gather(work: LogWork, merged: list[MergedBucket]) -> dict[int, Offsets]:
    parts: dict[int, list[Offsets]] = {}
    for retained in merged:
        for group, offsets in retained_by_group(work, retained):
            parts.setdefault(group, []).append(offsets)
    return {group: np.concatenate(each) for group, each in parts.items()}
