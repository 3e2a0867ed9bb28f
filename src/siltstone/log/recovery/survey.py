"""What is in a partition directory when recovery begins: swaps under way, segments too wide, strays."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from siltstone import files
from siltstone.config import LogConfig
from siltstone.errors import CorruptRecordError
from siltstone.log.indexes import LARGEST_RELATIVE_OFFSET
from siltstone.log.names import (
    CLEANED,
    DELETED,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    parse_segment_file,
)
from siltstone.log.overflow import could_overflow, overflowed, split_overflowed
from siltstone.log.partition_files import partition_files
from siltstone.log.recovery.changes import Changes
from siltstone.log.recovery.indexes import quick_trouble
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment, segments_among

_FINISHED = "finished the swap of "
_REMOVED = "removed "


def finish_swap(
    directory: Path, *, owned: bool, dry_run: bool
) -> tuple[dict[str, files.FileStat], list[str], list[str]]:
    """The directory's files once no swap is under way; the segments that one was finished for, what went.

    ``owned`` as ``partition_files`` has it. Raises UnsafeFileError, CorruptRecordError, OSError.
    """
    names = partition_files(directory, owned=owned)
    left = [name for name in names if name.endswith((CLEANED, SWAP, DELETED)) and parse_segment_file(name)]
    if not left:
        return names, [], []
    if dry_run:
        swaps = [name.removesuffix(SWAP) for name in left if name.endswith(f".log{SWAP}")]
        return names, sorted(swaps), sorted(name for name in left if not name.endswith(SWAP))
    done = finish_replacement(directory)
    finished = [line.removeprefix(_FINISHED) for line in done if line.startswith(_FINISHED)]
    removed = [line.removeprefix(_REMOVED) for line in done if line.startswith(_REMOVED)]
    return files.list_files(directory), finished, removed


def split_too_wide(
    directory: Path,
    names: dict[str, files.FileStat],
    config: LogConfig,
    *,
    everywhere: bool,
    dry_run: bool,
) -> tuple[dict[str, files.FileStat], dict[int, list[int]]]:
    """Split closed segments whose offsets no index can tell; the files then, and {base: bases it became}.

    Brokers before 1.1 left such. With ``everywhere`` they are looked for by their headers, else only where an
    index makes no sense. One that is damaged is left to the scan. A dry run names no new bases.
    """
    done: dict[int, list[int]] = {}
    for segment, following in itertools.pairwise(segments_among(directory, names)):
        limit = segment.base_offset + LARGEST_RELATIVE_OFFSET + 1
        if not could_overflow(segment, following) or not (everywhere or quick_trouble(segment, limit, names)):
            continue
        with contextlib.suppress(CorruptRecordError):
            if overflowed([segment, following]):
                interval, size = config.index_interval_bytes, config.segment_index_bytes
                done[segment.base_offset] = (
                    []
                    if dry_run
                    else split_overflowed(directory, segment, interval=interval, index_bytes=size)
                )
    return (files.list_files(directory) if done and not dry_run else names), done


def remove_strays(changes: Changes, segments: list[Segment]) -> set[int]:
    """Take away indexes without a log and files that were being written; the offsets of snapshots."""
    bases = {segment.base_offset for segment in segments}
    snapshots = set()
    for name in list(changes.names):
        if name.endswith(TEMPORARY):
            written = name.removesuffix(TEMPORARY)
            if parse_segment_file(written) or written in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA):
                changes.remove(name)
            continue
        if name.endswith(".log"):
            continue
        parsed = parse_segment_file(name)
        if parsed is None or parsed.suffix:
            continue
        if parsed.kind == SNAPSHOT:
            snapshots.add(parsed.base_offset)
        elif parsed.base_offset not in bases:
            changes.remove(name)
    return snapshots
