"""From spans to Arrow's buffers, without a Python object a record.

Arrow keeps byte strings as one run of bytes, int32 offsets into it, one more than strings, and a bit a string
that is 0 where it is null::

    spans  (start, size) …   ──►   validity  1 0 1     offsets  0 3 3 5     data  k e y v 2

What goes in comes from one window of at most 2 GiB, so that int32 offsets always reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from siltstone.records.build import copy_bytes
from siltstone.records.columns import RecordColumns
from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes, Int32
from siltstone.records.varint import read_varint

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


@kernel
def gather(data: Bytes, start: Int32, size: Int32, offsets: Int32, out: Bytes) -> None:
    """Copy each span to its place ``offsets[row]`` in ``out``; nulls (size -1) take no room."""
    for row in range(len(start)):
        copy_bytes(data, start[row], size[row], out, offsets[row])


@kernel
def _running_sums(size: Int32, offsets: Int32) -> tuple[int, int]:
    """Fill ``offsets`` with running sums, a 0 in front; (the sum of all, how many are null)."""
    total = nulls = 0
    offsets[0] = 0
    for row in range(len(size)):
        here = size[row]
        nulls += here < 0
        total += max(here, 0)
        offsets[row + 1] = total
    return total, nulls


@kernel
def header_spans(
    data: Bytes,
    headers_start: Int32,
    header_count: Int32,
    key_start: Int32,
    key_size: Int32,
    value_start: Int32,
    value_size: Int32,
) -> None:
    """The spans of all headers of all records, one after another; the decoder has checked them."""
    header = 0
    for row in range(len(headers_start)):
        position = int(headers_start[row])
        for _ in range(header_count[row]):
            size, position = read_varint(data, position, len(data))
            key_start[header] = position
            key_size[header] = size
            size, position = read_varint(data, position + size, len(data))
            value_start[header] = position
            value_size[header] = size
            position += max(size, 0)
            header += 1


def _validity(is_null: Any) -> tuple[pa.Buffer | None, int]:
    """(the bits, how many nulls); no bits where there are none."""
    nulls = int(np.count_nonzero(is_null))
    return (pa.py_buffer(np.packbits(~is_null, bitorder="little")), nulls) if nulls else (None, 0)


def bytes_array(data: Bytes, start: Int32, size: Int32, kind: pa.DataType | None = None) -> pa.Array:
    """Spans as an Arrow array of ``kind``, binary unless told; a size of -1 is null."""
    offsets = np.empty(len(size) + 1, np.int32)
    total, nulls = _running_sums(size, offsets)
    assert total < 1 << 31, "Arrow's offsets are int32"
    out = np.empty(total, np.uint8)
    gather(data, start, size, offsets, out)
    validity = _validity(size < 0)[0] if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind or pa.binary(), len(size), buffers, nulls)


def headers_array(columns: RecordColumns) -> pa.Array:
    """Each record's headers as a list of (key, value); null for a record without any, as Spark has it."""
    offsets = np.empty(len(columns) + 1, np.int32)
    total, _ = _running_sums(columns.header_count, offsets)
    spans = np.empty((4, total), np.int32)
    header_spans(columns.data, columns.headers_start, columns.header_count, *spans)
    keys = _text_array(columns.data, spans[0], spans[1])
    values = bytes_array(columns.data, spans[2], spans[3])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    validity, nulls = _validity(columns.header_count == 0)
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS, len(columns), buffers, nulls, children=[pairs])


def _text_array(data: Bytes, start: Int32, size: Int32) -> pa.Array:
    """Spans as text; bytes that are no UTF-8 become U+FFFD, as Kafka's clients read them."""
    found = bytes_array(data, start, size, pa.string())
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raw = found.view(pa.binary()).to_pylist()
        return pa.array([text.decode("utf-8", "replace") for text in raw], pa.string())
    return found
