"""Finds the remote segments of a partition, and gives them the names of local ones.

A storage is read in this order, with one list of the partition's directory and one small read for each
segment:

1. The partition's directory in the storage has the topic's id in its name. The id is that of the local
   ``partition.metadata``; without that file the storage must have only one id for the topic's name. A
   directory with another id is that of a deleted topic.
2. A segment counts if all its files are there, and if their contents agree with their names. If the broker's
   log directories have records of the partition in ``__remote_log_metadata``, these records decide instead: a
   segment whose copy is finished must be there, and no other segment counts. A run reads these records once,
   unless they change.
3. ``copies.choose`` chooses which of these segments make up the log below the local segments.

A chosen segment's files get local names (``00000000000000000000.log``). If only a part of a copy belongs to
the log, its name is the first offset of that part, and it has no indexes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    CorruptRecordError,
    DirectoryRefusedError,
    UnsafeFileError,
    UsageError,
    shown_path,
)
from siltstone.base.files.joined import JoinedFile, JoinedFiles, JoinedPlace, is_joined, place_of_joined
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CONTROL_BIT
from siltstone.base.records.metadata import UndecodableMessageError
from siltstone.log.checkpoints import (
    LeaderEpochs,
    broker_id_of,
    read_checkpoint,
    read_properties,
    read_rows,
    read_topic_id,
)
from siltstone.log.indexes import ENTRY_OF_KIND, Entries, read_entries
from siltstone.log.lookup import batch_headers, position_of_offset
from siltstone.log.metadata_log import METADATA_PARTITION, read_cluster_metadata
from siltstone.log.names import (
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    TopicPartition,
    is_kafka_file,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from siltstone.log.segments import Window, list_segments, windows
from siltstone.log.tiered.copies import ChosenRange, OffsetGap, RemoteCopy, choose
from siltstone.log.tiered.layouts import EPOCHS, INDEXES, LOG, MANIFEST, Layout, parse_remote_file
from siltstone.log.tiered.manifests import LARGEST_MANIFEST, SegmentManifest, parse_manifest
from siltstone.log.tiered.remote_metadata import (
    COPY_FINISHED,
    REMOTE_LOG_METADATA,
    SEGMENT_STATES,
    RemoteState,
    RemoteStates,
    apply_remote_record,
)

_THREADS = 16
"""How many manifests are fetched at one time."""
_EPOCH_COLUMNS = ("epoch", "start offset")
_INCOMPLETE_ADVICE = "copy the storage and the directory again, or read through the broker"
_Listing = dict[str, files.FileStat]
"""The status of files: of a directory's by name, of a segment's by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment of the storage that was copied to the end: ``copy``, and its files by kind under the names
    that a local segment has."""

    copy: RemoteCopy
    files: Mapping[str, JoinedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A remote segment that is not read, and why."""

    name: str
    reason: str


@dataclass(slots=True, kw_only=True)
class RemotePart:
    """The remote part of one partition.

    ``folder``: its directory in the storage. ``decided_by``: what says which segments count, in words.
    ``chosen``: the ranges of offsets that are read, ascending, each with its segment. ``left_out``: the other
    segments. ``files``: what is joined to the local directory, by local name.
    """

    topic_partition: TopicPartition
    folder: str
    layout: Layout
    decided_by: str
    chosen: list[tuple[ChosenRange, RemoteSegment]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    files: dict[str, JoinedFile] = field(default_factory=dict)


def find(place: JoinedPlace) -> JoinedFiles:
    """The files that a partition gets from the storage; none for other directories. Raises SiltstoneError,
    OSError."""
    part = remote_part(place)
    _listed.pop(place, None)
    if part is not None:
        _listed[place] = part
    return {} if part is None else part.files


_listed: dict[JoinedPlace, RemotePart] = {}
"""The remote parts as they were listed last."""
_LINES_MAX = 5
"""How many segments that are not read ``remote_lines`` names for a partition; a last line counts the
others."""


def remote_lines(partition: Path) -> Iterator[str]:
    """Lines for display about the remote part of a partition: how many segments are read, and which are not;
    no line if it has no remote part, or was not listed."""
    part = _listed.get(place_of_joined(partition)) if is_joined(partition) else None
    if part is None:
        return
    count = len({segment.copy.segment_id for _, segment in part.chosen})
    segments = "1 remote segment" if count == 1 else f"{count:,} remote segments"
    yield f"{part.topic_partition}: {segments} read from {shown_path(part.folder)}, by {part.decided_by}"
    for left_out in part.left_out[:_LINES_MAX]:
        yield f"{part.topic_partition}: {left_out.name} is not read: {left_out.reason}"
    if len(part.left_out) > _LINES_MAX:
        yield f"{part.topic_partition}: {len(part.left_out) - _LINES_MAX:,} more are not read"


def remote_part(place: JoinedPlace) -> RemotePart | None:
    """The remote part of the partition ``place.inside``; None if it is no partition, or not in the storage.

    Raises DirectoryRefusedError for offsets that neither side has, for a segment that is encrypted and for a
    topic whose id is not clear; CorruptFileError, UnsafeFileError, OSError.
    """
    topic_partition = parse_partition(place.inside)
    local = Path(place.local) / place.inside
    if topic_partition is None or not files.is_directory(local):
        return None
    remote_folder = _folder_of(place.remote, topic_partition, read_topic_id(local))
    if remote_folder is None:
        return None
    layout, topic_id, folder, listing = remote_folder
    broker = _broker_of(place)
    states = broker.states.get((topic_partition, topic_id))
    if not states:
        _refuse_unseen(broker, topic_partition)
    part = RemotePart(
        topic_partition=topic_partition,
        folder=str(folder),
        layout=layout,
        decided_by=f"the topic {REMOTE_LOG_METADATA}" if states else f"the files of {layout.value}",
    )
    segments = _segments(part, listing, topic_id, states)
    local_files = files.list_all(local)
    bases = [
        name.base_offset
        for name in map(parse_segment_file, local_files)
        if name is not None and name.kind == LOG and not name.suffix
    ]
    chosen = choose(
        [segment.copy for segment in segments.values()],
        LeaderEpochs(local).entries,
        log_start=broker.log_starts.get(topic_partition, 0),
        local_start=min(bases, default=None),
    )
    for choice in chosen:
        if isinstance(choice, OffsetGap):
            raise DirectoryRefusedError(
                f"neither the remote storage nor the log directory has the offsets {choice.first} to "
                f"{choice.last} of {topic_partition}, by {part.decided_by}",
                path=folder,
                advice=_INCOMPLETE_ADVICE,
            )
        part.chosen.append((choice, segments[choice.copy.segment_id]))
    _note_unused(part, segments)
    for choice, segment in part.chosen:
        part.files |= {name: file for name, file in _named(choice, segment) if name not in local_files}
    return part


def _note_unused(part: RemotePart, segments: Mapping[str, RemoteSegment]) -> None:
    """Add the segments of which nothing is read to ``part.left_out``."""
    used = {choice.copy.segment_id for choice, _ in part.chosen}
    for segment_id, segment in segments.items():
        if segment_id not in used:
            copy = segment.copy
            name = f"{copy.start_offset:020d}-{segment_id}"
            reason = "its offsets are local, below the log's start, in another copy, or of other leaders"
            part.left_out.append(LeftOut(name=name, reason=reason))


# The storage.


def _folder_of(
    remote: str, topic_partition: TopicPartition, topic_id: str | None
) -> tuple[Layout, str, Path, _Listing] | None:
    """(layout, topic id, directory, its files) of a partition's segments; None if there are none."""
    root = Path(remote)
    if topic_id is None:
        topic_id = _only_topic_id(root, topic_partition)
    if topic_id is None:
        return None
    for layout in Layout:
        folder = root / layout.folder(topic_partition, topic_id)
        if not files.is_object(root) and not _is_directory_without_links(root, folder):
            continue
        try:
            return layout, topic_id, folder, files.list_all(folder)
        except FileNotFoundError:
            continue
    return None


def _is_directory_without_links(root: Path, folder: Path) -> bool:
    """Is ``folder`` a directory on this machine's disks? Raises UnsafeFileError if a part of its path below
    ``root`` is a symbolic link."""
    step = root
    for part in folder.relative_to(root).parts:
        step /= part
        if files.is_link(step):
            raise UnsafeFileError(
                "it is a symbolic link; links in a remote storage are not followed",
                path=step,
                advice="replace the link by the directory that it points to",
            )
    return files.is_directory(folder)


def _only_topic_id(root: Path, topic_partition: TopicPartition) -> str | None:
    """The topic's id by the storage's directories, for a partition without ``partition.metadata``; None if
    there is no directory of the topic. Raises DirectoryRefusedError if there are several ids."""
    folders = [entry.name for entry in files.entries(root) if entry.is_directory]
    ids = sorted({topic_id for layout in Layout for topic_id in layout.topic_ids(topic_partition, folders)})
    if len(ids) > 1:
        raise DirectoryRefusedError(
            f"the storage has several topics {topic_partition.topic}, with the ids {', '.join(ids)}",
            path=root,
            advice="put the partition.metadata of the log back into its directory: it has the id",
        )
    return ids[0] if ids else None


def _segments(
    part: RemotePart, listing: _Listing, topic_id: str, states: Mapping[str, RemoteState] | None
) -> dict[str, RemoteSegment]:
    """The segments that count, by id; adds the others to ``part.left_out``. ``listing``: the files in the
    storage's directory of the partition. ``states``: segment id → state, by the partition's records in
    ``__remote_log_metadata``; None or empty if none is known."""
    by_segment: dict[tuple[int, str], _Listing] = {}
    for name, status in listing.items():
        parsed = parse_remote_file(name)
        if parsed is None:
            continue
        if status.kind != files.FILE:
            raise UnsafeFileError(
                f"it is a {status.kind}, but must be a regular file; the remote segment is not read",
                path=Path(part.folder) / name,
                advice="find out who created it, and remove it",
            )
        by_segment.setdefault((parsed.start_offset, parsed.segment_id), {})[parsed.kind] = status
    complete: list[tuple[int, str, _Listing]] = []  # (base offset, segment id, its files by kind)
    for (start, segment_id), by_kind in sorted(by_segment.items()):
        reason = _reason_to_leave_out(by_kind, part.layout, segment_id, states)
        if reason is None:
            complete.append((start, segment_id, by_kind))
        else:
            part.left_out.append(LeftOut(name=f"{start:020d}-{segment_id}", reason=reason))
    _require_finished(part, {segment_id for _, segment_id, _ in complete}, states)
    read = _read_aiven if part.layout is Layout.AIVEN else _read_local
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="siltstone-remote") as threads:
        calls = [threads.submit(read, part, topic_id, *arguments) for arguments in complete]
        segments = [call.result() for call in calls]
    return {
        segment.copy.segment_id: _as_recorded(segment, states[segment.copy.segment_id]) if states else segment
        for segment in segments
    }


def _reason_to_leave_out(
    by_kind: _Listing, layout: Layout, segment_id: str, states: Mapping[str, RemoteState] | None
) -> str | None:
    """Why a segment with these files is not read; None if it is. See step 2 of the module's docstring."""
    if states:
        state = states.get(segment_id)
        if state is None:
            return f"{REMOTE_LOG_METADATA} does not have it"
        return None if state.state == COPY_FINISHED else f"its state is {SEGMENT_STATES[state.state]}"
    missing = sorted(layout.required - by_kind.keys())
    if missing:
        return f"it has no .{', no .'.join(missing)}: it was not copied to the end, or is being deleted"
    return None


def _require_finished(
    part: RemotePart, segment_ids: set[str], states: Mapping[str, RemoteState] | None
) -> None:
    """Raise DirectoryRefusedError if the storage lacks a segment whose copy is finished according to
    ``states``. ``segment_ids``: those that the storage has."""
    for segment_id, state in (states or {}).items():
        if state.state == COPY_FINISHED and segment_id not in segment_ids:
            raise DirectoryRefusedError(
                f"the segment {state.start_offset:020d}-{segment_id} is missing, which was copied by "
                f"{part.decided_by}",
                path=part.folder,
                advice=_INCOMPLETE_ADVICE,
            )


def _as_recorded(segment: RemoteSegment, state: RemoteState) -> RemoteSegment:
    """The segment with its end offset, epochs and time as ``__remote_log_metadata`` has them. Raises
    CorruptFileError if its files contradict that."""
    copy = segment.copy
    if copy.start_offset != state.start_offset or copy.end_offset > state.end_offset:
        path = segment.files[LOG].path
        reason = (
            f"it has the offsets {copy.start_offset} to {copy.end_offset}, but {REMOTE_LOG_METADATA} says "
        )
        raise CorruptFileError(path, 0, f"{reason}{state.start_offset} to {state.end_offset}")
    epochs = state.epochs or copy.epochs
    return replace(
        segment, copy=replace(copy, end_offset=state.end_offset, epochs=epochs, event_ms=state.event_ms)
    )


def _file(part: RemotePart, start: int, segment_id: str, kind: str, status: files.FileStat) -> JoinedFile:
    name = f"{start:020d}-{segment_id}.{kind}"
    return JoinedFile(path=str(Path(part.folder) / name), origin=status, stat=status)


def _require_files(by_kind: _Listing, part: RemotePart, start: int, segment_id: str) -> None:
    """Raise DirectoryRefusedError if a segment lacks a file, although ``__remote_log_metadata`` says that it
    was copied. (``_reason_to_leave_out`` has checked the files where the topic has no records.)"""
    for kind in sorted(part.layout.required - by_kind.keys()):
        raise DirectoryRefusedError(
            f"the segment {start:020d}-{segment_id} has no .{kind}, but was copied by {part.decided_by}",
            path=part.folder,
            advice=_INCOMPLETE_ADVICE,
        )


def _of_size(stat: files.FileStat, size: int) -> files.FileStat:
    """The attributes of a part of a file: ``size`` bytes."""
    return msgspec.structs.replace(stat, size=size)


def _read_aiven(
    part: RemotePart, topic_id: str, start: int, segment_id: str, by_kind: _Listing
) -> RemoteSegment:
    """A segment of Aiven's plugin, by its manifest. Raises CorruptFileError, DirectoryRefusedError,
    OSError."""
    _require_files(by_kind, part, start, segment_id)
    log, indexes = (_file(part, start, segment_id, kind, by_kind[kind]) for kind in (LOG, INDEXES))
    path = _file(part, start, segment_id, MANIFEST, by_kind[MANIFEST]).path
    manifest = _manifest(path, by_kind[MANIFEST], log.stat.size, indexes.stat.size)
    stated = manifest.topic, manifest.partition, manifest.topic_id, manifest.segment_id, manifest.start_offset
    topic = part.topic_partition
    if stated != (topic.topic, topic.partition, topic_id, segment_id, start):
        other = f"{stated[0]}-{stated[1]} ({stated[2]}), segment {stated[4]:020d}-{stated[3]}"
        raise CorruptFileError(path, 0, f"the manifest is that of another segment: {other}"[:300])
    joined = {LOG: replace(log, stat=_of_size(log.stat, manifest.log_size), chunks=manifest.chunks)}
    for kind, (position, size) in manifest.indexes.items():
        # A local segment has its epochs in the partition's file, and no empty transaction index.
        if kind != EPOCHS and (size or kind != "txnindex"):
            joined[kind] = replace(indexes, stat=_of_size(indexes.stat, size), position=position)
    copy = RemoteCopy(
        segment_id=segment_id,
        start_offset=start,
        end_offset=manifest.end_offset,
        epochs=manifest.epochs,
        event_ms=manifest.event_ms,
    )
    return RemoteSegment(copy=copy, files=joined)


@functools.lru_cache(maxsize=4096)
def _manifest(path: str, status: files.FileStat, stored_size: int, indexes_size: int) -> SegmentManifest:
    """The manifest at ``path``, read once as long as its status is the same. Raises CorruptFileError,
    DirectoryRefusedError, OSError."""
    if status.size > LARGEST_MANIFEST:
        reason = f"the manifest has {status.size} bytes; at most {LARGEST_MANIFEST} are read"
        raise CorruptFileError(path, 0, reason)
    with files.Reader(JoinedFile(path=path, origin=status, stat=status)) as reader:
        data = reader.read(0, status.size)
    return parse_manifest(data, path, stored_size=stored_size, indexes_size=indexes_size)


def _read_local(
    part: RemotePart, topic_id: str, start: int, segment_id: str, by_kind: _Listing
) -> RemoteSegment:
    """A segment of ``LocalTieredStorage``: its last offset is that of its last batch. Raises
    CorruptFileError, CorruptRecordError, DirectoryRefusedError, OSError."""
    _require_files(by_kind, part, start, segment_id)
    del topic_id  # the directory has it in its name, and no file of the segment could contradict it
    joined = {kind: _file(part, start, segment_id, kind, status) for kind, status in by_kind.items()}
    epochs = _read_epochs(joined.pop(EPOCHS))
    segment = RemoteSegment(  # ``end_offset`` is set below
        copy=RemoteCopy(segment_id=segment_id, start_offset=start, end_offset=start, epochs=epochs),
        files={kind: file for kind, file in joined.items() if kind not in (INDEXES, MANIFEST)},
    )
    last = _last_offset(segment)
    own = tuple(entry for entry in epochs if entry[1] <= last)
    return replace(segment, copy=replace(segment.copy, end_offset=last, epochs=own))


def _read_epochs(file: JoinedFile) -> tuple[tuple[int, int], ...]:
    """(leader epoch, its start offset), ascending. Raises CorruptFileError, OSError."""
    rows = read_rows(file.path, _EPOCH_COLUMNS)
    pairs = [(int(epoch), int(offset)) for epoch, offset in rows]
    steps = itertools.pairwise(pairs)
    if any(after[0] <= before[0] or after[1] < before[1] for before, after in steps):
        raise CorruptFileError(file.path, 0, "the leader epochs and their offsets do not ascend")
    return tuple(pairs)


def _last_offset(segment: RemoteSegment) -> int:
    """The last offset of a segment's last batch. Raises CorruptRecordError, CorruptFileError, OSError."""
    base = segment.copy.start_offset
    with files.Reader(segment.files[LOG]) as reader:
        last = base
        for batches in batch_headers(reader, start=_index_position(segment, None)):
            last = int(batches["last_offset"][-1])
    if last < base:
        raise CorruptRecordError(reader.path, 0, f"its offsets end at {last}, below that of its name")
    return last


def _index_entries(segment: RemoteSegment, kind: str) -> Entries:
    """The entries of a segment's index; none without the file. Raises CorruptFileError, OSError."""
    file = segment.files.get(kind)
    if file is None or not file.stat.size:
        return np.empty(0, ENTRY_OF_KIND[kind])
    with files.Reader(file) as reader:
        return read_entries(reader.read(0, file.stat.size), kind, reader.path)


def _index_position(segment: RemoteSegment, offset: int | None) -> int:
    """The position in the segment's log that the last entry of its offset index at or below ``offset`` has
    (None: the last entry of all); 0 without such an entry, or if the position is outside of the log."""
    entries = _index_entries(segment, "index")
    relative = np.asarray(entries["relative_offset"], np.int64)
    count = len(entries) if offset is None else int((relative <= offset - segment.copy.start_offset).sum())
    position = int(entries["position"][count - 1]) if count else 0
    return position if 0 <= position < segment.files[LOG].stat.size else 0


# The names of local files.


def _named(choice: ChosenRange, segment: RemoteSegment) -> Iterator[tuple[str, JoinedFile]]:
    """The files of a chosen range under local names."""
    copy = segment.copy
    if (choice.first, choice.last) == (copy.start_offset, copy.end_offset):
        for kind, file in segment.files.items():
            # A producer snapshot has the state after the segment, and the name of the next one's offset.
            yield segment_file(copy.end_offset + 1 if kind == "snapshot" else copy.start_offset, kind), file
        return
    start = _boundary(segment, choice.first)
    end = _boundary(segment, choice.last + 1)
    log = segment.files[LOG]
    yield (
        segment_file(choice.first, LOG),
        replace(log, stat=_of_size(log.stat, end - start), position=log.position + start),
    )
    index = _aborted_within(segment, choice)
    if index is not None:
        yield segment_file(choice.first, "txnindex"), index


def _aborted_within(segment: RemoteSegment, choice: ChosenRange) -> JoinedFile | None:
    """The transaction index of a chosen range: the entries of the copy whose markers are in the range; None
    without any. An entry belongs to the segment that has its marker, and one of another segment is refused as
    damage. Raises CorruptFileError, OSError."""
    entries = _index_entries(segment, "txnindex")
    last = entries["last_offset"].astype(np.int64)
    rows = np.flatnonzero((choice.first <= last) & (last <= choice.last))  # neighbours: in order of markers
    if not len(rows):
        return None
    file = segment.files["txnindex"]
    start, end = int(rows[0]) * entries.itemsize, (int(rows[-1]) + 1) * entries.itemsize
    return replace(file, stat=_of_size(file.stat, end - start), position=file.position + start)


def _boundary(segment: RemoteSegment, offset: int) -> int:
    """The position of the batch that begins at ``offset``. Raises CorruptRecordError if one begins before it
    and ends after it."""
    log = segment.files[LOG]
    if offset <= segment.copy.start_offset:
        return 0
    if offset > segment.copy.end_offset:
        return log.stat.size
    with files.Reader(log) as reader:
        batch = position_of_offset(reader, offset, start=_index_position(segment, offset - 1))
    if batch is None:
        return log.stat.size
    if batch.base_offset < offset and batch.base_offset != batch.last_offset:
        reason = (
            f"a batch has the offsets {batch.base_offset} to {batch.last_offset}, and another copy of the "
        )
        raise CorruptRecordError(reader.path, batch.position, f"{reason}log is read from {offset} on")
    return batch.position


# What a broker's log directories say, read once a run.


class _Broker:
    """What the log directories of a broker say of remote segments. The first is the one whose logs are read.

    ``states``: those by the records of ``__remote_log_metadata`` in all of them. ``log_starts``: the first
    directory's checkpoint of log start offsets.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        """Raises CorruptRecordError, CorruptFileError, OSError."""
        self.directory = directories[0]
        self.states: RemoteStates = {}
        self._cluster_metadata: list[Path] = []  # partition directories of ``__cluster_metadata``
        self._remote_metadata: list[Path] = []  # those of ``__remote_log_metadata``
        for directory in directories:
            for entry in files.entries(directory) if files.is_directory(directory) else ():
                topic_partition = parse_partition(entry.name) if entry.is_directory else None
                if topic_partition == METADATA_PARTITION:
                    self._cluster_metadata.append(directory / entry.name)
                elif topic_partition is not None and topic_partition.topic == REMOTE_LOG_METADATA:
                    self._remote_metadata.append(directory / entry.name)
        self._seen = self._identity()
        for path in self._remote_metadata:
            identities = tuple((segment.inode, segment.size) for segment in list_segments(path))
            self.states |= _states_of(str(path), identities)
        try:
            self.log_starts = read_checkpoint(self.directory / LOG_START_CHECKPOINT)
        except FileNotFoundError:
            self.log_starts = {}

    @property
    def is_current(self) -> bool:
        """Are the files as they were when this object was made? Always yes for objects of a store, whose
        changes a run does not see until ``ask_again``."""
        return self._identity() == self._seen

    def _identity(self) -> object:
        """A value that differs once one of the files that were read has changed."""
        if files.is_object(self.directory):
            return None
        try:
            folders = {path.parent: files.stat(path.parent).modified_ns for path in self._remote_metadata}
            segments = [
                (segment.inode, segment.size)
                for path in self._remote_metadata
                for segment in list_segments(path)
            ]
            own = files.stat(self.directory).modified_ns
        except FileNotFoundError:
            return object()  # equal to no other value: something was removed while this was read
        with contextlib.suppress(FileNotFoundError):
            return own, folders, segments, files.stat(self.directory / LOG_START_CHECKPOINT).identity
        return own, folders, segments, None

    @functools.cached_property
    def unseen(self) -> list[str]:
        """The partitions of ``__remote_log_metadata`` that the broker has according to its metadata log, but
        not in these directories; empty without a metadata log, or if it cannot be read. Raises OSError."""
        numbers: set[int] = set()
        for path in self._cluster_metadata:
            with contextlib.suppress(CorruptRecordError, CorruptFileError, FileNotFoundError, ValueError):
                properties = read_properties(path.parent / META_PROPERTIES)
                node_id = int(broker_id_of(properties) or "")  # a ValueError without an id
                image = read_cluster_metadata(path, may_have_torn_tail=True)
                partitions = image.replicas.get(image.topics.get(REMOTE_LOG_METADATA, ""), {})
                numbers |= {
                    number for number, replicas in partitions.items() if node_id in (replicas.replicas or ())
                }
        seen = {path.name for path in self._remote_metadata}
        return [name for number in sorted(numbers) if (name := f"{REMOTE_LOG_METADATA}-{number}") not in seen]


_brokers: dict[JoinedPlace, _Broker] = {}
"""The brokers that were read last, at most ``_BROKERS_MAX``, by the place of the log directory."""
_BROKERS_MAX = 32
_reading = threading.Lock()
"""Held while a broker is read, so that threads do not read the same broker several times."""


def _broker_of(place: JoinedPlace) -> _Broker:
    """The broker of a joined path. Raises what ``_Broker`` raises."""
    place = place._replace(inside="")  # the same for all partitions
    with _reading:
        broker = _brokers.get(place)
        if broker is None or not broker.is_current:
            broker = _Broker([Path(path) for path in (place.local, *place.beside)])
            while len(_brokers) >= _BROKERS_MAX:
                del _brokers[next(iter(_brokers))]
            _brokers[place] = broker
    return broker


def ask_again(path: Path) -> None:
    """Let the next access to a joined path read the log directories again, if they are objects: unlike for
    files, ``_Broker.is_current`` does not see their changes."""
    if is_joined(path) and files.is_object((place := place_of_joined(path)).local):
        _brokers.pop(place._replace(inside=""), None)


def _refuse_unseen(broker: _Broker, topic_partition: TopicPartition) -> None:
    """Raise DirectoryRefusedError if another log directory of the broker may say which segments count."""
    if broker.unseen:
        names = ", ".join(broker.unseen[:5])
        raise DirectoryRefusedError(
            f"which remote segments of {topic_partition} count may be recorded in {names}, which the broker "
            "has in another log directory",
            path=broker.directory,
            advice="name all log.dirs of the broker together",
        )


@functools.lru_cache(maxsize=64)
def _states_of(path: str, identities: tuple[tuple[int, int], ...]) -> RemoteStates:
    """The states by the records of one partition of ``__remote_log_metadata``. ``identities``: the (inode,
    size) of its segments. The last segment is read up to its first damaged batch, since a broker may be
    writing it. Raises CorruptRecordError, CorruptFileError, OSError."""
    del identities  # a part of the cache's key: after a change the topic is read again
    states: RemoteStates = {}
    segments = list_segments(Path(path))
    for segment in segments:
        with files.Reader(segment.path) as reader:
            try:
                for window in windows(reader):
                    _apply_window(states, window, reader.path)
            except CorruptRecordError:
                if segment is not segments[-1]:
                    raise
    return states


def _apply_window(states: RemoteStates, window: Window, path: str) -> None:
    """Apply the records of a window of ``__remote_log_metadata``. Raises CorruptRecordError,
    CorruptFileError."""
    batches = window.batches[window.batches["attributes"] & CONTROL_BIT == 0]
    if not len(batches):
        return
    columns = decode_records(window.data, batches, path=path, origin=window.origin)
    for row in range(len(columns)):
        try:
            apply_remote_record(states, columns.value(row) or b"")
        except UndecodableMessageError as error:
            position = window.origin + int(batches["position"][columns.batch[row]])
            raise CorruptFileError(path, position, f"a record of a remote segment: {error}") from None


# Joining a storage to the paths that a user names.


def with_remotes(paths: Sequence[Path], remote: str | None) -> list[Path]:
    """The paths of log directories, of partitions' directories or of files in them, with a remote storage
    joined to each. A path also names the other log directories of the same broker (``JoinedPlace.beside``),
    because ``__remote_log_metadata`` may be in one of them.

    ``remote``: the storage's root, a URL or a directory of this machine; None: none is joined. Raises
    UsageError if there is nothing at ``remote``, CorruptFileError, OSError.
    """
    if remote is None:
        return list(map(files.as_named, paths))
    root = files.resolved(files.absolute(Path(remote)))
    if is_joined(remote) or not files.is_directory(root):
        raise UsageError(
            "there is no directory of remote segments",
            path=remote,
            advice="pass the directory that has the topics of the tiered storage, such as s3://BUCKET/PREFIX",
        )
    split = list(map(_base_and_names, paths))
    bases = dict.fromkeys(base for base, _ in split)
    brokers = {base: _broker_id(base) for base in bases} if len(bases) > 1 else {}
    run, joined = secrets.token_hex(4), dict[Path, Path]()
    for base in bases:
        # The other directories of the same broker. None: the broker of a directory is unknown.
        others = [other for other in bases if other != base and brokers[other] is not None]
        beside = [other for other in others if brokers[other] == brokers[base]]
        joined[base] = files.join(base, os.fspath(root), run=run, beside=beside)
    return [joined[base].joinpath(*names) for base, names in split]


def _base_and_names(path: Path) -> tuple[Path, Sequence[str]]:
    """(the log directory that ``path`` is in, the names that lead from there to ``path``)."""
    local = files.newest_stored(path) if files.is_object(path) else files.resolved(files.absolute(path))
    levels = 0  # 2: a file of a partition, 1: a partition, 0: the log directory itself
    if parse_partition(local.parent.name) is not None and is_kafka_file(local.name):
        levels = 2
    elif parse_partition(local.name) is not None and list_segments(local):
        levels = 1
    return local.parents[levels - 1] if levels else local, local.parts[len(local.parts) - levels :]


def _broker_id(directory: Path) -> tuple[str, str] | None:
    """(the cluster's id, the broker's), None if they are not known. Raises CorruptFileError, OSError."""
    try:
        properties = read_properties(directory / META_PROPERTIES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    cluster, node = properties.get("cluster.id"), broker_id_of(properties)
    return None if cluster is None or node is None else (cluster, node)
