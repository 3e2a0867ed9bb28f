"""Searches the records of some keys: in the segments of their topic's logs, and in all other files that may
have copies. One read of the files searches all keys.

::

    topic-N/BASE.log                                  LOG        a segment of the log
    topic-N/BASE.log.deleted, .swap, .cleaned         LEFTOVER   of a swap, or of retention
    topic-N/.siltstone/RUN/*.log, *.piece             STAGED     by a cleaning
    topic-N/.compacted/generation-M/*.log             LEDGER     side-by-side compaction
    topic-N/.siltstone-writes/WRITE/*.batches         WRITE      a table's write that was not committed
    topic-N.HASH-delete/, -future/, -stray/           ELSEWHERE  another directory of a topic of this name,
                                                                 or another file in the log's own
    KEEP/[BROKER/]RUN/topic-N/*.log                   KEPT       of ``clean --keep-originals``

Files are read as they are on the disk, batch by batch, since the question is whether the bytes are left: the
search includes records of aborted transactions and those below the log start offset, and uses no index. A
damaged file is searched up to the damage, and counts as one that may have the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.base.records.codecs import DEFAULT_DECOMPRESSION_LIMIT, Scratch
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.decode import decode_record_keys, decode_records
from siltstone.base.records.layout import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeaders,
    Int64,
    have_delete_horizons,
)
from siltstone.base.records.matching import rows_with_key
from siltstone.compaction.work import BatchSlice, batch_slices
from siltstone.log.names import (
    COMPACTED,
    STAGED_WRITES,
    STAGING,
    TopicPartition,
    is_not_served,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from siltstone.log.read_only import ReadableLog
from siltstone.log.segments import windows

LOG, LEFTOVER, STAGED, LEDGER, WRITE = "log", "leftover", "staged", "ledger", "write"
ELSEWHERE, KEPT = "elsewhere", "kept"
_FOLDERS = {STAGING: STAGED, COMPACTED: LEDGER, STAGED_WRITES: WRITE}
_WITH_BATCHES = (".log", ".piece", ".batches")
"""Endings of files that have batches, besides segments' files in a swap."""
_ATTEMPTS = 3
"""How often the files are searched at most, if segments are removed before they are opened."""
_DEPTH_MAX = 4
"""Folders within folders that are searched: Siltstone's own have three."""
_KEPT_DEPTH_MAX = 6
"""Folders down to which those of partitions are searched in KEEP: BROKER, which may be a path, and RUN."""
SearchProgress = Callable[[int, int], None]
"""Called with the bytes that were searched, and how many there are."""


def _no_progress(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlace:
    """A file with records of the key, or one that could not be searched. ``kind``: see the module's
    docstring.

    ``values``: records with a value, ``tombstones``: those without; the offsets are of the last one of each,
    None without one. ``last_plain_tombstone``: of the last one outside of transactions, which nothing can
    abort. ``horizon_ms``: the latest delete horizon of its tombstones; ``unstamped``: how many
    have none. ``damage``: why the rest of the file could not be searched.
    """

    kind: str
    path: str
    partition: int | None
    values: int = 0
    tombstones: int = 0
    unstamped: int = 0
    last_value: int | None = None
    last_tombstone: int | None = None
    last_plain_tombstone: int | None = None
    horizon_ms: int | None = None
    damage: str | None = None

    @property
    def may_have_value(self) -> bool:
        """Has it a value of the key, or a part that could not be searched?"""
        return bool(self.values) or self.damage is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """The result of a search for one key. ``files`` and ``bytes``: how many were searched."""

    places: Sequence[KeyPlace] = ()
    files: int = 0
    bytes: int = 0

    @property
    def values(self) -> int:
        """Records with a value, in all files."""
        return sum(place.values for place in self.places)

    @property
    def tombstones(self) -> int:
        """Tombstones of the key, in all files."""
        return sum(place.tombstones for place in self.places)

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that have it, ascending."""
        return sorted({place.partition for place in self.places if place.partition is not None})

    @property
    def with_values(self) -> list[KeyPlace]:
        """The files that have a value, or may have one."""
        return [place for place in self.places if place.may_have_value]

    def in_log(self, partition: int) -> list[KeyPlace]:
        """The segments of a partition's log that have the key."""
        return [place for place in self.places if place.kind == LOG and place.partition == partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedTopic:
    """A topic to search: its ``logs``, its deleted, stray and future partitions in the log ``directories``,
    and the folders with ``kept`` originals. ``unreadable``: why a partition that is here cannot be searched;
    ``count``: of its partitions, here and elsewhere, None if that is not known; ``may_have_replicas``: on
    other machines, since another broker than Siltstone made the topic."""

    name: str
    logs: Sequence[ReadableLog]
    directories: Sequence[Path]
    count: int | None = None
    may_have_replicas: bool = False
    unreadable: Mapping[int, str] = field(default_factory=dict)
    kept: Sequence[Path] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file to search. ``size``: so many bytes of it, None for all; ``limit``: the bytes that one of its
    batches may decompress to; ``may_vanish``: it is being removed already."""

    kind: str
    path: Path
    partition: int | None
    size: int | None = None
    limit: int = DEFAULT_DECOMPRESSION_LIMIT
    may_vanish: bool = False


def search_keys(
    topic: SearchedTopic, keys: Sequence[bytes], progress: SearchProgress = _no_progress
) -> list[KeySearch]:
    """Search all files of a topic, and kept originals, for the records of each of some keys.

    If a cleaning or retention has removed a segment before it is opened, the logs are read again, and all
    files are searched again, ``_ATTEMPTS`` times in all. Raises OSError.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _search(topic, keys, progress)
        except FileNotFoundError:
            for log in topic.logs:
                log.refresh()
    return _search(topic, keys, progress)


def _search(topic: SearchedTopic, keys: Sequence[bytes], progress: SearchProgress) -> list[KeySearch]:
    unreadable = [
        KeyPlace(kind=LOG, path=f"{topic.name}-{number}", partition=number, damage=reason)
        for number, reason in topic.unreadable.items()
    ]
    places = [list(unreadable) for _ in keys]
    listed = [(file, _size_of(file)) for file in _files_of(topic)]
    done, total = 0, sum(size for _, size in listed)
    scratch = Scratch()
    for file, size in listed:
        progress(done, total)
        with _vanishing(file):
            for places_of_key, place in zip(places, _search_file(file, keys, scratch), strict=True):
                if place.values or place.tombstones or place.damage:
                    places_of_key.append(place)
        done += size
    progress(done, total)
    return [
        KeySearch(places=tuple(places_of_key), files=len(listed), bytes=total) for places_of_key in places
    ]


@contextlib.contextmanager
def _vanishing(file: _File) -> Iterator[None]:
    """Ignores that a file which is being removed is gone before it is opened."""
    try:
        yield
    except FileNotFoundError:
        if not file.may_vanish:
            raise


def _size_of(file: _File) -> int:
    if file.size is not None:
        return file.size
    with _vanishing(file):
        return files.stat(file.path, follow=False).size
    return 0


def _files_of(topic: SearchedTopic) -> Iterator[_File]:
    for log in topic.logs:
        yield from _files_of_log(log)
    for directory in topic.directories:
        for entry in files.entries(directory):
            if entry.is_directory and _is_other_directory(entry.name, topic.name):
                yield from _files_below(directory / entry.name, ELSEWHERE, None)
    # A folder may be named twice, by the history of cleanings and by the user, and so may one above it.
    kept = (file for folder in topic.kept for file in _kept_files(files.absolute(folder), topic.name))
    yield from {file.path: file for file in kept}.values()


def _files_of_log(log: ReadableLog) -> Iterator[_File]:
    """A partition's files: segments of its view up to their sizes, then everything else."""
    view, number = log.view, log.topic_partition.partition
    segments = set[str]()
    for index, segment in enumerate(view.segments):
        name = segment_file(segment.base_offset, "log")
        segments.add(name)
        size = view.size_of(index)
        path = log.directory / name
        yield _File(kind=LOG, path=path, partition=number, size=size, limit=view.batch_limit)
    for entry in files.entries(log.directory):
        path = log.directory / entry.name
        if entry.is_directory and entry.name in _FOLDERS:
            yield from _files_below(path, _FOLDERS[entry.name], number, view.batch_limit)
        elif entry.is_file and entry.name not in segments and _may_have_batches(entry.name):
            kind = LEFTOVER if parse_segment_file(entry.name) else ELSEWHERE
            yield _File(kind=kind, path=path, partition=number, limit=view.batch_limit, may_vanish=True)


def _files_below(
    folder: Path,
    kind: str,
    partition: int | None,
    limit: int = DEFAULT_DECOMPRESSION_LIMIT,
    depth: int = 0,
) -> Iterator[_File]:
    """The files with batches in a folder and in those within it; no link is followed."""
    with contextlib.suppress(FileNotFoundError):
        for entry in files.entries(folder):
            path = folder / entry.name
            if entry.is_directory and depth < _DEPTH_MAX:
                yield from _files_below(path, kind, partition, limit, depth + 1)
            elif entry.is_file and _may_have_batches(entry.name):
                yield _File(kind=kind, path=path, partition=partition, limit=limit, may_vanish=True)


def _may_have_batches(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed.kind == "log" if parsed is not None else name.endswith(_WITH_BATCHES)


def _is_other_directory(name: str, topic: str) -> bool:
    """Is it a directory of a deleted, stray or future partition of a topic of this name? A long name is cut
    off there (``runtime.topic_names.deleted_directory``)."""
    if not is_not_served(name):
        return False
    stem = name.rpartition(".")[0].rpartition("-")[0]  # TOPIC of TOPIC-N.HASH-delete
    return bool(stem) and (stem == topic or (len(name) >= 255 and topic.startswith(stem)))


def _kept_files(folder: Path, topic: str, depth: int = _KEPT_DEPTH_MAX) -> Iterator[_File]:
    """The kept originals of a topic below KEEP, KEEP/RUN, KEEP/BROKER/RUN (of a fleet) or RUN/topic-N."""
    topic_partition = parse_partition(folder.name)
    if topic_partition is not None and topic_partition.topic == topic:
        yield from _files_below(folder, KEPT, topic_partition.partition)
        return
    for entry in files.entries(folder) if depth else ():
        if entry.is_directory:
            yield from _kept_files(folder / entry.name, topic, depth - 1)


def _search_file(file: _File, keys: Sequence[bytes], scratch: Scratch) -> list[KeyPlace]:
    """A ``KeyPlace`` of this file for each of ``keys``, in their order; without records where the file does
    not have the key."""
    places = [KeyPlace(kind=file.kind, path=str(file.path), partition=file.partition)] * len(keys)
    with files.Reader(file.path) as reader:
        try:
            for window in windows(reader, end=file.size):
                batches = window.batches
                is_control = (batches["magic"] == 2) & (batches["attributes"] & CONTROL_BIT != 0)
                chosen = replace(window, batches=batches[~is_control & (batches["count"] != 0)])
                for part in batch_slices(reader.path, chosen) if len(chosen.batches) else ():
                    _add_records(places, part, keys, file.limit, scratch)
        except CorruptFileError as error:
            return [replace(place, damage=error.reason) for place in places]
    return places


def _add_records(
    places: list[KeyPlace], part: BatchSlice, keys: Sequence[bytes], limit: int, scratch: Scratch
) -> None:
    """Add the records of some batches to the place of each key. Raises CorruptRecordError."""
    data, batches, path, origin = part
    columns = decode_record_keys(data, batches, scratch, limit=limit, path=path, origin=origin)
    # Most batches have none of the keys, so values and headers are decoded only where one occurs.
    present = [number for number, key in enumerate(keys) if len(rows_with_key(columns, key))]
    if present:
        records = decode_records(data, batches, scratch, limit=limit, path=path, origin=origin)
        for number in present:
            rows = rows_with_key(records, keys[number])
            places[number] = _with_records(places[number], records, rows, batches)


def _with_records(place: KeyPlace, columns: RecordColumns, rows: Int64, batches: BatchHeaders) -> KeyPlace:
    """The place with some more records of its key."""
    is_tombstone = columns.value_size[rows] < 0
    tombstones, values = columns.offset[rows[is_tombstone]], columns.offset[rows[~is_tombstone]]
    of_batch = batches[columns.batch[rows[is_tombstone]]]
    plain = tombstones[of_batch["attributes"] & TRANSACTIONAL_BIT == 0]
    stamped = np.asarray(have_delete_horizons(of_batch))
    # The base timestamp of a batch with a delete horizon is the horizon (KIP-534).
    horizons = [int(ms) for ms in of_batch["base_timestamp"][stamped]]
    horizons += [] if place.horizon_ms is None else [place.horizon_ms]
    return replace(
        place,
        values=place.values + len(values),
        tombstones=place.tombstones + len(tombstones),
        unstamped=place.unstamped + int((~stamped).sum()),
        last_value=int(values[-1]) if len(values) else place.last_value,
        last_tombstone=int(tombstones[-1]) if len(tombstones) else place.last_tombstone,
        last_plain_tombstone=int(plain[-1]) if len(plain) else place.last_plain_tombstone,
        horizon_ms=max(horizons, default=None),
    )


def partition_name(topic: str, partition: int | None) -> str:
    """``topic-N`` for display; only the topic if no partition is known."""
    return topic if partition is None else str(TopicPartition(topic, partition))
