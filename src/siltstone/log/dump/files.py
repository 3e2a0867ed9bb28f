"""Any file of a log directory as rows: the dispatch by file name (Kafka's ``DumpLogSegments``).

::

    BASE.log[.cleaned|.swap|.deleted], *.checkpoint          batches and records (inspect_log)
    BASE.index, .timeindex, .txnindex, with such suffixes    entries (inspect_indexes)
    BASE.snapshot                                            producers
    *-offset-checkpoint, leader-epoch-checkpoint             offsets, epochs
    partition.metadata, meta.properties                      properties

Reading only, and nothing is trusted: what makes no sense becomes a ``Finding``, behind everything that
comes before it. ``inspect_text`` turns rows into lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.log.dump.batches import log_rows, sequence_after
from siltstone.log.dump.rows import DumpOptions, Output, Row
from siltstone.log.indexes import (
    Entries,
    Finding,
    NamedIndex,
    against_log,
    entries_before_base,
    entries_until_damage,
    finding_of,
)
from siltstone.log.names import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SEGMENT_KINDS,
)
from siltstone.log.producers import ProducerEntry, read_snapshot

MOST_FINDINGS = 100
"""Of one check; a line says how many more there are."""


def index_rows(index: NamedIndex, options: DumpOptions) -> Output:
    """Rows of the entries unless only a check was asked for, and what is wrong. Raises OSError."""
    data = files.read_bytes(index.path)
    entries, damage = entries_until_damage(data, index)
    if not (options.verify_index_only or options.index_sanity_check):
        yield from _rows(index, entries)
    damage += list(entries_before_base(index, entries))
    yield from damage
    if options.index_sanity_check:
        if not damage:
            yield {"type": "sanity", "file": index.path, "passed": True}
        return
    if index.kind != "txnindex":
        yield from _capped(_against_log(index, entries, options), index.path)


def _rows(index: NamedIndex, entries: Entries) -> Iterator[Row]:
    for entry in entries.tolist():
        if index.kind == "index":
            yield {"type": "offsetIndex", "offset": index.base_offset + entry[0], "position": entry[1]}
        elif index.kind == "timeindex":
            yield {"type": "timeIndex", "timestamp": entry[0], "offset": index.base_offset + entry[1]}
        else:
            names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
            yield {"type": "abortedTxn", **dict(zip(names, entry, strict=True))}


def _against_log(index: NamedIndex, entries: Entries, options: DumpOptions) -> Iterator[Finding]:
    log = index.log_path()
    if log is not None:
        yield from against_log(index, entries, log)
    elif options.verify_index_only:
        reason = f"its log {Path(index.path).stem}.log is missing: nothing to verify it with"
        yield Finding(path=index.path, position=0, reason=reason)


def _capped(findings: Iterator[Finding], path: str) -> Iterator[Finding]:
    more = 0
    for number, finding in enumerate(findings):
        if number < MOST_FINDINGS:
            yield finding
        else:
            more += 1
    if more:
        yield Finding(path=path, position=0, reason=f"{more} more entries do not match the log")


KNOWN_FILES = (
    ".log, .index, .timeindex, .txnindex, .snapshot, the offset checkpoints, leader-epoch-checkpoint, "
    "partition.metadata and meta.properties"
)
_OFFSET_CHECKPOINTS = (CLEANER_CHECKPOINT, RECOVERY_CHECKPOINT, LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT)
_NAME = re.compile(r"^(.+)\.(log|index|timeindex|txnindex|snapshot|checkpoint)(\.cleaned|\.swap|\.deleted)?$")
_BASE_OFFSET = re.compile(r"^([0-9]{1,20})(-[0-9]{10})?$")
_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """A file to dump: its kind, the base offset in its name (None without one), its swap suffix or ""."""

    path: str
    kind: str
    base_offset: int | None = None
    suffix: str = ""


def identify(path: str) -> DumpFile:
    """What a file is, by its name. Raises UsageError for a directory and for names of nothing known."""
    name = os.path.basename(path)
    if files.is_directory(path):
        raise UsageError(f"{path}: is a directory; name the files in it")
    if name in _OFFSET_CHECKPOINTS or name == LEADER_EPOCH_CHECKPOINT:
        return DumpFile(path=path, kind="epochs" if name == LEADER_EPOCH_CHECKPOINT else "offsets")
    if name in (PARTITION_METADATA, META_PROPERTIES):
        return DumpFile(path=path, kind="properties")
    found = _NAME.match(name)
    if found is None:
        raise UsageError(f"{path}: unknown kind of file; known are {KNOWN_FILES}")
    number = _BASE_OFFSET.match(found[1])
    if number is None and found[2] in SEGMENT_KINDS[1:]:
        raise UsageError(f"{path}: an index's name starts with its segment's base offset")
    kind = "log" if found[2] == "checkpoint" else found[2]
    base_offset = None if number is None else int(number[1])
    if base_offset is not None and base_offset >= 1 << 63:
        raise UsageError(f"{path}: {base_offset} is no offset")
    return DumpFile(path=path, kind=kind, base_offset=base_offset, suffix=found[3] or "")


def dump_file(file: DumpFile, options: DumpOptions) -> Output:
    """The file's rows, the first of them its own, and the findings where they come up. Raises OSError."""
    start: Row = {"type": "file", "file": file.path, "kind": file.kind}
    yield start | ({"startOffset": file.base_offset} if file.kind == "log" else {})
    if file.kind == "log":
        yield from log_rows(file.path, options)
    elif file.kind in SEGMENT_KINDS:
        assert file.base_offset is not None, "identify has refused it"
        index = NamedIndex(path=file.path, kind=file.kind, base_offset=file.base_offset, suffix=file.suffix)
        yield from index_rows(index, options)
    else:
        try:
            yield from _SMALL_FILES[file.kind](file.path)
        except CorruptFileError as error:
            yield finding_of(error)


def _producer_rows(path: str) -> Iterator[Row]:
    return (producer_row(producer) for producer in read_snapshot(files.read_bytes(path), path))


def producer_row(producer: ProducerEntry) -> Row:
    """A producer's row; without a last batch where it has no data left."""
    open_offset = producer.open_transaction_offset
    row: Row = {
        "type": "producer",
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "currentTxnFirstOffset": None if open_offset < 0 else open_offset,
        "lastTimestamp": producer.timestamp_ms,
    }
    if producer.last_offset < 0:
        return row
    return row | {
        "firstSequence": sequence_after(producer.last_sequence, _SEQUENCES - producer.offset_delta),
        "lastSequence": producer.last_sequence,
        "lastOffset": producer.last_offset,
        "offsetDelta": producer.offset_delta,
        "timestamp": producer.timestamp_ms,
    }


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """(byte position, text) of each line. Raises CorruptFileError where it is not text."""
    position = 0
    for line in files.read_bytes(path).splitlines(keepends=True):
        try:
            yield position, line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise CorruptFileError(path, position + error.start, "not text") from None
        position += len(line)


def _table(path: str, columns: int) -> Iterator[list[str]]:
    """The rows of a checkpoint: version ``0``, the number of rows, then ``columns`` fields a row."""
    announced, seen, position = -1, 0, 0
    for number, (position, line) in enumerate(_lines(path)):
        if number == 0 and line != "0":
            raise CorruptFileError(path, position, f"checkpoint version {line[:40]!r}; only 0 is known")
        if number == 1:
            if re.fullmatch(r"[0-9]{1,9}", line) is None:
                raise CorruptFileError(path, position, f"no number of entries: {line[:40]!r}")
            announced = int(line)
        elif number > 1 and line:
            fields = line.split()
            if len(fields) != columns or not all(
                re.fullmatch(r"-?[0-9]{1,19}", each) for each in fields[-2:]
            ):
                raise CorruptFileError(path, position, f"no checkpoint entry: {line[:80]!r}")
            seen += 1
            yield fields
    if announced not in (-1, seen):
        raise CorruptFileError(path, position, f"{announced} entries are announced, {seen} are there")


def _offset_rows(path: str) -> Iterator[Row]:
    for topic, partition, offset in _table(path, 3):
        yield {"type": "checkpoint", "topic": topic, "partition": int(partition), "offset": int(offset)}


def _epoch_rows(path: str) -> Iterator[Row]:
    for epoch, offset in _table(path, 2):
        yield {"type": "leaderEpoch", "epoch": int(epoch), "startOffset": int(offset)}


def _property_rows(path: str) -> Iterator[Row]:
    """``name=value`` or ``name: value`` lines; comments are passed over."""
    for position, line in _lines(path):
        if not line or line[0] in "#!":
            continue
        found = re.match(r"([^=:]+)[=:](.*)", line)
        if found is None:
            raise CorruptFileError(path, position, f"no property: {line[:80]!r}")
        yield {"type": "property", "name": found[1].strip(), "value": found[2].strip()}


_SMALL_FILES = {
    "snapshot": _producer_rows,
    "offsets": _offset_rows,
    "epochs": _epoch_rows,
    "properties": _property_rows,
}

__all__ = ["DumpFile", "DumpOptions", "Finding", "dump_file", "identify", "producer_row"]
