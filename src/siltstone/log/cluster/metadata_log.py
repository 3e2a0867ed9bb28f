"""Reading ``__cluster_metadata-0``: the newest snapshot, then the log behind it (Kafka's ``KafkaRaftLog``).

::

    00000000000000000155-0000000001.checkpoint   all there was below offset 155, in epoch 1: a header (control
                                                 batch, type 3), the records, a footer (type 4) (KIP-630)
    00000000000000000000.log                     the log, a segment file like any other

A snapshot without its header or footer, or with damage, is not complete: the one before it is taken, as long
as the log reaches back to it. The log has no gaps, since nothing is compacted in it. Control batches (a
leader's change, voters) say nothing about topics.

A broker keeps this log's high watermark only in memory. Where ``replication-offset-checkpoint`` has an entry
all the same, it bounds what is read. Else all of the log counts, so also a last change that the other
controllers may not have confirmed when the broker stopped; with a single controller there is no such change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from siltstone import files
from siltstone.errors import CorruptFileError, CorruptRecordError
from siltstone.log.cluster.image import ClusterImage, Replay
from siltstone.log.segments import Segment, Window, list_segments, windows
from siltstone.records.decode import decode_records
from siltstone.records.layout import CODEC_MASK, CONTROL_BIT
from siltstone.records.metadata import DamagedMetadataError, MetadataRecord, decode_metadata

SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4
_SNAPSHOT = re.compile(r"^(\d{20})-(\d{10})\.checkpoint\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A batch's records that concern topics or settings, each with its offset and its position in the file.

    ``control``: the types of the control records where it is a control batch, else None.
    """

    base_offset: int
    last_offset: int
    records: list[tuple[int, int, MetadataRecord]]
    control: list[int] | None = None


def read_cluster_metadata(
    partition: Path, *, high_watermark: int | None = None, torn_tail: bool = False
) -> ClusterImage:
    """What the metadata log in ``partition`` says, up to ``high_watermark`` where that is given.

    ``torn_tail``: the log was not stopped cleanly; it ends before the first batch that is not whole, as the
    next start would have it. Raises CorruptFileError with path and position, OSError.
    """
    segments = list_segments(partition)
    found = snapshots(partition)
    trouble: CorruptFileError | None = None
    for offset, path in [*reversed(found), (0, None)]:
        replay = Replay()
        try:
            if path is not None:
                _apply_snapshot(replay, path)
        except CorruptFileError as error:
            trouble = trouble or error
            continue
        if offset == 0 and path is None and not segments and not found:
            raise CorruptFileError(str(partition), 0, "holds neither a segment nor a snapshot")
        if segments and segments[0].base_offset > offset:
            raise trouble or CorruptFileError(
                segments[0].path, 0, f"the log begins at {segments[0].base_offset}; no snapshot reaches that"
            )
        if not segments and trouble is not None:
            raise trouble
        return replay.image(_apply_log(replay, segments, offset, high_watermark, torn_tail))
    raise AssertionError("the empty beginning is always complete")


def snapshots(partition: Path) -> list[tuple[int, Path]]:
    """Snapshots by the offset that they reach, the newest last; unfinished and deleted ones are none."""
    named = ((_SNAPSHOT.match(entry.name), entry) for entry in files.entries(partition) if entry.is_file)
    found = sorted((int(name[1]), int(name[2]), entry.name) for name, entry in named if name)
    return [(offset, partition / name) for offset, _, name in found]


def _apply_snapshot(replay: Replay, path: Path) -> None:
    kinds: list[list[int] | None] = []
    for batch in _batches(str(path)):
        kinds.append(batch.control)
        _apply(replay, str(path), batch.records)
    first, last = (kinds[0] or [-1], kinds[-1] or [-1]) if kinds else ([-1], [-1])
    if first[:1] != [SNAPSHOT_HEADER] or last[-1:] != [SNAPSHOT_FOOTER]:
        raise CorruptFileError(str(path), 0, "the snapshot is not complete: no header, or no footer")


def _apply_log(
    replay: Replay, segments: list[Segment], start: int, high_watermark: int | None, torn_tail: bool
) -> int:
    """Apply the records from ``start`` on; the offset behind the last one."""
    expected = segments[0].base_offset if segments else start
    end = start
    for segment in segments:
        try:
            for batch in _batches(segment.path):
                if batch.base_offset != expected:
                    reason = (
                        f"offset {batch.base_offset} follows {expected - 1}: a part of the log is missing"
                    )
                    raise CorruptFileError(segment.path, 0, reason)
                expected = batch.last_offset + 1
                if high_watermark is not None and batch.last_offset >= high_watermark:
                    return end
                _apply(replay, segment.path, [each for each in batch.records if each[0] >= start])
                end = max(end, expected)
        except CorruptRecordError:
            if torn_tail and segment is segments[-1]:
                break
            raise
    return end


def _apply(replay: Replay, path: str, records: list[tuple[int, int, MetadataRecord]]) -> None:
    for _, position, record in records:
        try:
            replay.apply(record)
        except ValueError as error:
            raise CorruptFileError(path, position, str(error)) from None


def _batches(path: str) -> Iterator[Decoded]:
    """The batches of a segment or a snapshot. Raises CorruptRecordError for bytes that are no batches,
    CorruptFileError for a record that makes no sense."""
    with ExitStack() as stack:
        reader = stack.enter_context(files.Reader(path))
        for window in windows(reader):
            yield from _decoded(path, window)


def _decoded(path: str, window: Window) -> Iterator[Decoded]:
    for row in range(len(window.batches)):
        batch = window.batches[row : row + 1]
        header = batch[0]
        columns = decode_records(window.data, batch, path=path, origin=window.origin)
        here, last = window.origin + int(header["position"]), int(header["last_offset"])
        base = int(header["base_offset"])
        if header["attributes"] & CONTROL_BIT:
            kinds = [_control_type(columns.key(record), path, here) for record in range(len(columns))]
            yield Decoded(base_offset=base, last_offset=last, records=[], control=kinds)
            continue
        plain = not header["attributes"] & CODEC_MASK
        records = []
        for record in range(len(columns)):
            position = window.origin + int(columns.value_start[record]) if plain else here
            found = _decode(columns.value(record), path, position, exact=plain)
            if found is not None:
                records.append((int(columns.offset[record]), position, found))
        yield Decoded(base_offset=base, last_offset=last, records=records)


def _decode(value: bytes | None, path: str, position: int, *, exact: bool) -> MetadataRecord | None:
    try:
        return decode_metadata(value or b"")
    except DamagedMetadataError as error:
        raise CorruptFileError(path, position + (error.position if exact else 0), str(error)) from None


def _control_type(key: bytes | None, path: str, position: int) -> int:
    if key is None or len(key) < 4:
        raise CorruptFileError(path, position, "a control record's key is too short")
    return int.from_bytes(key[2:4], "big", signed=True)
