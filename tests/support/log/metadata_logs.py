"""Metadata logs made by hand: segments and snapshots out of records' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.cleaning.logs import Rec, batch, write_segment
from tests.support.records import frames

LEADER_CHANGE, HEADER, FOOTER = 2, 3, 4


def control(offset: int, kind: int) -> bytes:
    """A control batch as the quorum writes it: no producer, no transaction."""
    return batch([Rec(offset=offset, key=bytes([0, 0, 0, kind]), value=b"\x00\x00")], control=True)


def records(offset: int, values: Sequence[bytes | None], codec: int = 0) -> bytes:
    """One batch of records."""
    return batch(
        [Rec(offset=offset + i, key=None, value=value) for i, value in enumerate(values)], codec=codec
    )


def write_metadata_log(partition: Path, values: Sequence[bytes], *, base: int = 0) -> Path:
    """A segment of one batch a record; its file."""
    partition.mkdir(parents=True, exist_ok=True)
    data = b"".join(records(base + number, [value]) for number, value in enumerate(values))
    write_segment(partition, base, data)
    return partition / f"{base:020d}.log"


def write_snapshot(partition: Path, end: int, values: Sequence[bytes], *, footer: bool = True) -> Path:
    """A snapshot of all that is below ``end``; its file."""
    partition.mkdir(parents=True, exist_ok=True)
    path = partition / f"{end:020d}-0000000001.checkpoint"
    data = control(0, HEADER) + records(1, values)
    path.write_bytes(data + (control(1 + len(values), FOOTER) if footer else b""))
    return path


def write_cluster_metadata(directory: Path, values: Sequence[bytes]) -> Path:
    """A log directory's ``__cluster_metadata-0``."""
    return write_metadata_log(directory / "__cluster_metadata-0", [frames.NO_OP, *values]).parent
