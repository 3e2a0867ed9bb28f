"""The kernels of a rewrite: which records stay, and writing the batches that do.

What becomes of a batch's records is its *fate*: each goes by its key, all stay (a marker), or all go: beaten
by others with their keys, or counted as ``ABORTED`` or ``MARKERS``. What is done with the batch is its
*action*.
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
Offsets = npt.NDArray[np.uint32]
DROPPED, COPIED, REBUILT, EMPTIED = range(4)
"""Actions."""
SUPERSEDED, TOMBSTONES, KEYLESS, ABORTED, MARKERS = range(5)
"""Why a record went: places in ``Tally.gone``."""
BY_KEY, MARKER_STAYS, BEATEN = 0, 1, 2
"""Fates, beside ``ABORTED`` and ``MARKERS``."""


@kernel
def judge(
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
    value_size: Int32,
    won: Flags,
    expired: Flags,
    fate: Fates,
    map_end: int,
    keep: Flags,
    kept: Int64,
    tombstones: Int64,
    first_time: Int64,
    last_time: Int64,
) -> int:
    """Which of the records that ``won`` stay: fills ``keep`` a record, the last four a batch.

    Tombstones of ``expired`` batches go; from ``map_end`` on none does, nor a marker. Returns how many
    went so.
    """
    gone = 0
    for i in range(len(offset)):
        here = batch[i]
        keep[i] = won[i]
        if not won[i]:
            continue
        if fate[here] == 0 and value_size[i] < 0:
            if expired[here] and offset[i] < map_end:
                keep[i] = False
                gone += 1
                continue
            tombstones[here] += 1
        if kept[here] == 0:
            first_time[here] = timestamp[i]
            last_time[here] = timestamp[i]
        kept[here] += 1
        last_time[here] = max(last_time[here], timestamp[i])
    return gone


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
    record_batch: Int32,
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
    r = 0
    for b in range(len(batches)):
        first = r
        while r < len(record_batch) and record_batch[r] == b:
            r += 1
        starts[b] = position
        sizes[b] = 0
        if action[b] == 0:
            continue
        if action[b] == 1:
            position = copy_bytes(window, batches[b].position, batches[b].size, out, position)
        else:
            end = position + 61
            moved = base_time[b] != batches[b].base_timestamp
            for i in range(first, r):
                if not keep[i]:
                    continue
                if moved:
                    end = _recode(data, record_start[i], timestamp[i] - base_time[b], out, end)
                else:
                    end = copy_bytes(data, record_start[i], record_size[i], out, end)
            write_header(
                out, position, end - position, batches[b], attributes[b], base_time[b], max_time[b], kept[b]
            )
            position = end
        sizes[b] = position - starts[b]
    return position


@kernel
def meet_winners(
    offset: Int64,
    batch: Int32,
    control: Flags,
    base_offset: int,
    map_end: int,
    winners: Offsets,
    last: int,
    met: int,
) -> tuple[int, int, int]:
    """Go through records that were written: (largest offset, winners passed, what is wrong).

    ``offset`` must ascend from above ``last``, else 1; each is among the ``winners`` (ascending, less
    ``base_offset``) from number ``met`` on, else 2, but for control batches and from ``map_end`` on.
    """
    for i in range(len(offset)):
        if offset[i] <= last:
            return last, met, 1
        last = offset[i]
        if control[batch[i]] or last >= map_end:
            continue
        relative = last - base_offset
        while met < len(winners) and winners[np.uint64(met)] < relative:
            met += 1
        if met == len(winners) or winners[np.uint64(met)] != relative:
            return last, met, 2
    return last, met, 0
