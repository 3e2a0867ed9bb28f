"""What is in a partition directory when recovery begins: swaps under way, strays, segments."""

from __future__ import annotations

from pathlib import Path

from siltstone import files
from siltstone.log.names import (
    CLEANED,
    DELETED,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    SWAP,
    parse_segment_file,
    segment_file,
)
from siltstone.log.recovery.changes import TEMPORARY, Changes
from siltstone.log.recovery.indexes import INDEX_KINDS
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import Segment

_FINISHED = "finished the swap of "
_REMOVED = "removed "


def finish_swap(directory: Path, *, dry_run: bool) -> tuple[dict[str, files.FileStat], list[str], list[str]]:
    """The directory's files once no swap is under way; the segments that one was finished for, what went."""
    names = files.list_files(directory)
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


def list_found(directory: Path, names: dict[str, files.FileStat]) -> list[Segment]:
    """The segments among a directory's files, by base offset."""
    found, folder = [], str(directory)
    for name, facts in names.items():
        parsed = parse_segment_file(name) if name.endswith(".log") else None
        if parsed is None:
            continue
        sizes = [names.get(segment_file(parsed.base_offset, kind)) for kind in INDEX_KINDS]
        offset_index, time_index, transaction_index = (size.size if size else 0 for size in sizes)
        found.append(
            Segment(
                directory=folder,
                base_offset=parsed.base_offset,
                size=facts.size,
                modified_ns=facts.modified_ns,
                inode=facts.inode,
                device=facts.device,
                offset_index_size=offset_index,
                time_index_size=time_index,
                transaction_index_size=transaction_index,
            )
        )
    return sorted(found, key=lambda segment: segment.base_offset)


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
