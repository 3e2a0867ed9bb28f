"""Two records, two batches: are they the same? Kernels and the checks of headers.

What cleaning keeps of a batch (``KEPT_FIELDS``) must be as it was; its times and its stamp follow from the
records that are left in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from siltstone.records.kernel import kernel
from siltstone.records.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Bytes,
    Directory,
    Int32,
    Int64,
    delete_horizons,
)
from siltstone.verifying.findings import Findings
from siltstone.verifying.streams import Piece

Flags = npt.NDArray[np.bool_]
SAME, OTHER_KEY, OTHER_VALUE, OTHER_HEADERS, OTHER_TIME = range(5)
DIFFERENCES = (
    (OTHER_KEY, "key_changed"),
    (OTHER_VALUE, "value_changed"),
    (OTHER_HEADERS, "headers_changed"),
    (OTHER_TIME, "timestamp_changed"),
)
KEPT_FIELDS = ("last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
_KEPT_BITS = (
    (TIMESTAMP_TYPE_BIT, "timestamp type"),
    (TRANSACTIONAL_BIT, "transactional bit"),
    (CONTROL_BIT, "control bit"),
)


@kernel
def _same_span(one: Bytes, start: int, size: int, other: Bytes, at: int, other_size: int) -> bool:
    if size != other_size:
        return False
    i = 0
    while i < size and one[start + i] == other[at + i]:
        i += 1
    return i >= size


@kernel
def same_batches(
    one: Bytes, position: Int64, size: Int32, other: Bytes, at: Int64, other_size: Int32, out: Flags
) -> None:
    """Which pairs of batches are the same bytes: ``out``, bool, one a pair."""
    for i in range(len(position)):
        out[i] = _same_span(one, position[i], size[i], other, at[i], other_size[i])


@kernel
def compare_records(
    one: Bytes,
    spans: Int64,
    timestamp: Int64,
    other: Bytes,
    other_spans: Int64,
    other_timestamp: Int64,
    out: npt.NDArray[np.int8],
) -> None:
    """What differs first in each pair of records (``SAME`` …). ``spans`` (int64[n, 6]): starts and sizes of
    key, value and headers; a size of -1 is null."""
    for i in range(len(timestamp)):
        out[i] = 0
        for field in range(3):
            start, size = spans[i, 2 * field], spans[i, 2 * field + 1]
            at, other_size = other_spans[i, 2 * field], other_spans[i, 2 * field + 1]
            if not _same_span(one, start, size, other, at, other_size):
                out[i] = field + 1
                break
        if out[i] == 0 and timestamp[i] != other_timestamp[i]:
            out[i] = 4


def spans_of_records(piece: Piece, rows: Int64) -> Int64:
    """The spans that ``compare_records`` takes, of some records of a piece."""
    columns = piece.columns
    end = columns.start[rows].astype(np.int64) + columns.size[rows]
    headers = np.where(columns.header_count[rows] > 0, end - columns.headers_start[rows], 0)
    named = (
        columns.key_start[rows],
        columns.key_size[rows],
        columns.value_start[rows],
        columns.value_size[rows],
        columns.headers_start[rows],
        headers,
    )
    return np.column_stack(named).astype(np.int64)


def horizons_of(batches: Directory) -> tuple[Flags, Int64]:
    """(which batches have a delete horizon, base timestamps: the horizon where there is one)."""
    return delete_horizons(batches), batches["base_timestamp"].copy()


def check_kept_fields(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Rewritten batches ``new`` (rows ``rows`` of ``piece``) against what they were, pair by pair (v2)."""
    for name in KEPT_FIELDS:
        _report(old[name] != new[name], f"{name} is another one", new, piece, rows, findings)
    for bit, name in _KEPT_BITS:
        other = ((old["attributes"] ^ new["attributes"]) & bit) != 0
        _report(other, f"the {name} is another one", new, piece, rows, findings)
    codec = ((old["attributes"] ^ new["attributes"]) & CODEC_MASK) != 0
    _report(codec & (new["count"] > 0), "the codec is another one", new, piece, rows, findings)
    _report(new["magic"] != 2, "the record format went back", new, piece, rows, findings)


def check_converted(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Batches that were made of message sets (v0, v1), pair by pair."""
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        _report(new[name] != -1, f"{name} is not -1", new, piece, rows, findings)
    kept = TIMESTAMP_TYPE_BIT | CODEC_MASK
    other = ((old["attributes"] ^ new["attributes"]) & kept) != 0
    other &= (new["count"] > 0) & (old["magic"] == 1)
    _report(other, "codec or timestamp type is another one", new, piece, rows, findings)


def check_empty(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Emptied batches: a header, and in it nothing of what the records said."""
    bad = (
        (new["size"] != BATCH_OVERHEAD)
        | ((new["attributes"] & (CODEC_MASK | DELETE_HORIZON_BIT)) != 0)
        | (new["base_timestamp"] != -1)
        | ((new["max_timestamp"] != old["max_timestamp"]) & (old["magic"] > 0))
    )
    detail = "not 61 bytes, a codec, a horizon, a base timestamp, or another largest timestamp"
    _report(bad, detail, new, piece, rows, findings, "empty_batch")


def check_times(old: Directory, new: Directory, piece: Piece, rows: Int64, findings: Findings) -> None:
    """Base and largest timestamp of rewritten batches that hold records."""
    columns = piece.columns
    first = np.searchsorted(columns.batch, rows)
    largest = np.full(len(piece.batches), np.iinfo(np.int64).min)
    np.maximum.at(largest, columns.batch, columns.timestamp)
    stamped, base = horizons_of(new)
    appended = (new["attributes"] & TIMESTAMP_TYPE_BIT) != 0
    wrong = ~stamped & (base != columns.timestamp[first])
    wrong |= np.where(
        appended, new["max_timestamp"] != old["max_timestamp"], new["max_timestamp"] != largest[rows]
    )
    detail = "base or largest timestamp is not its records'"
    _report(wrong, detail, new, piece, rows, findings, "batch_times")


def _report(
    bad: Any,
    detail: str,
    new: Directory,
    piece: Piece,
    rows: Int64,
    findings: Findings,
    kind: str = "header_changed",
) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        offset, position = int(new["base_offset"][where[0]]), piece.position(int(rows[where[0]]))
        findings.add(kind, detail, offset=offset, path=piece.path, position=position, times=len(where))
