"""Records without those that a ledger hides: columns closed up in place, in one pass."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from siltstone.errors import LedgerError
from siltstone.log.reading import Polled
from siltstone.records.columns import RecordColumns, select
from siltstone.records.kernel import kernel
from siltstone.records.layout import Int64

Int32 = npt.NDArray[np.int32]
_COLUMNS = tuple(field.name for field in fields(RecordColumns) if field.name != "data")


@kernel
def _close_up(
    hidden: Int64,
    batch: Int32,
    offset: Int64,
    timestamp: Int64,
    start: Int32,
    size: Int32,
    key_start: Int32,
    key_size: Int32,
    value_start: Int32,
    value_size: Int32,
    headers_start: Int32,
    header_count: Int32,
) -> int:
    """Move the rows together that are not hidden; how many stay, -1 where a hidden one is not there."""
    kept, at = 0, 0
    for row in range(len(offset)):
        if at < len(hidden) and hidden[at] == offset[row]:
            at += 1
            continue
        batch[kept] = batch[row]
        offset[kept] = offset[row]
        timestamp[kept] = timestamp[row]
        start[kept] = start[row]
        size[kept] = size[row]
        key_start[kept] = key_start[row]
        key_size[kept] = key_size[row]
        value_start[kept] = value_start[row]
        value_size[kept] = value_size[row]
        headers_start[kept] = headers_start[row]
        header_count[kept] = header_count[row]
        kept += 1
    return kept if at == len(hidden) else -1


def without(polled: Polled, hidden: Int64, path: str) -> Polled:
    """What was just read, its arrays used again, less the offsets in ``hidden`` (int64, ascending).

    Raises LedgerError, with ``path``, when one between the first and the last offset is not there.
    """
    columns = polled.columns
    first, behind = np.searchsorted(hidden, [columns.offset[0], columns.offset[-1] + 1]).tolist()
    if first == behind:
        return polled
    kept = _close_up(hidden[first:behind], *(getattr(columns, name) for name in _COLUMNS))
    if kept < 0:
        raise LedgerError(path, "an offset is hidden that is not in it")
    return replace(polled, columns=select(columns, slice(0, kept)))
