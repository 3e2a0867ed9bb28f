"""The kernels of a rewrite: which records stay, and writing the batches that do.

What becomes of a batch's records is its *fate*: each goes by its key, all stay (a marker), or all go, counted
as ``ABORTED`` or ``MARKERS``. What is done with the batch is its *action*.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from siltstone.records.build import copy_bytes, write_header
from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes, Directory, Int32, Int64
from siltstone.records.varint import read_varint, read_varlong, varint_size, write_varint

Flags = npt.NDArray[np.bool_]
Fates = npt.NDArray[np.int8]
DROPPED, COPIED, REBUILT, EMPTIED = range(4)
"""Actions."""
SUPERSEDED, TOMBSTONES, KEYLESS, ABORTED, MARKERS = range(5)
"""Why a record went: rows of ``gone``."""
BY_KEY, MARKER_STAYS = 0, 1
"""Fates, beside ``ABORTED`` and ``MARKERS``."""


@kernel
def judge(
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
    key_size: Int32,
    value_size: Int32,
    expired: Flags,
    fate: Fates,
    winners: npt.NDArray[np.uint32],
    base: int,
    map_end: int,
    cursor: int,
    keep: Flags,
    kept: Int64,
    tombstones: Int64,
    first_time: Int64,
    last_time: Int64,
    gone: Int64,
) -> int:
    """Which records stay: fills ``keep`` a record, the four arrays after it a batch, and ``gone``.

    ``winners`` are offsets less ``base``, ascending; records from ``map_end`` on all stay; ``cursor`` says
    how many were met before. Returns the new cursor, or -1 when a winner was passed that is no record (the
    log is not what was extracted).
    """
    for i in range(len(offset)):
        here = batch[i]
        keep[i] = False
        if fate[here] > 1:
            gone[fate[here]] += 1
            continue
        if fate[here] == 0 and offset[i] < map_end:
            if key_size[i] < 0:
                gone[2] += 1
                continue
            relative = offset[i] - base
            if cursor < len(winners) and winners[cursor] < relative:
                return -1
            if cursor == len(winners) or winners[cursor] != relative:
                gone[0] += 1
                continue
            cursor += 1
            if value_size[i] < 0:
                if expired[here]:
                    gone[1] += 1
                    continue
                tombstones[here] += 1
        elif fate[here] == 0 and value_size[i] < 0:
            tombstones[here] += 1
        keep[i] = True
        if kept[here] == 0:
            first_time[here] = timestamp[i]
            last_time[here] = timestamp[i]
        kept[here] += 1
        last_time[here] = max(last_time[here], timestamp[i])
    return cursor


@kernel
def _recode(data: Bytes, start: int, delta: int, out: Bytes, position: int) -> int:
    """Copy the record at ``data[start]`` with another timestamp delta; returns the end in ``out``.

    The record was decoded before, so its varints are known to be whole.
    """
    body, source = read_varint(data, start, len(data))
    end = source + body
    _, rest = read_varlong(data, source + 1, end)
    size = end - rest
    position = write_varint(out, position, 1 + varint_size(delta) + size)
    out[position] = 0
    position = write_varint(out, position + 1, delta)
    return copy_bytes(data, rest, size, out, position)


@kernel
def emit(
    window: Bytes,
    batches: Directory,
    action: Int64,
    attributes: Int64,
    base_time: Int64,
    max_time: Int64,
    kept: Int64,
    data: Bytes,
    first: Int64,
    record_start: Int32,
    record_size: Int32,
    timestamp: Int64,
    keep: Flags,
    out: Bytes,
    starts: Int64,
    sizes: Int64,
) -> int:
    """Write the batches that stay into ``out``, rebuilt ones uncompressed and without checksums.

    ``starts`` and ``sizes`` are filled a batch (size 0: dropped). Returns the end.
    """
    position = 0
    for b in range(len(batches)):
        starts[b] = position
        sizes[b] = 0
        if action[b] == 0:
            continue
        if action[b] == 1:
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            end = position + 61
            moved = base_time[b] != batches[b].base_timestamp
            for r in range(first[b], first[b] + batches[b].count):
                if not keep[r]:
                    continue
                if moved:
                    end = _recode(data, record_start[r], timestamp[r] - base_time[b], out, end)
                else:
                    end = copy_bytes(data, record_start[r], record_size[r], out, end)
            write_header(
                out, position, end - position, batches[b], attributes[b], base_time[b], max_time[b], kept[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position
