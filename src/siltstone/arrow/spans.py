"""From Arrow's buffers to spans: the other way round of ``buffers``, for who writes records.

An Arrow array of byte strings is spans already: offsets into one run of bytes. Nothing is copied but where
nulls are marked; headers, which Arrow has as lists of pairs, are encoded as records hold them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from siltstone.errors import UsageError
from siltstone.records.build import Spans, copy_bytes
from siltstone.records.kernel import kernel
from siltstone.records.layout import Bytes, Int32, Int64
from siltstone.records.varint import write_varint

_WIDE = (pa.large_binary(), pa.large_string())
_NARROW = (pa.binary(), pa.string())
_VARINT_ROOM = 10
_LARGEST = (1 << 31) - 1


def spans_of(array: pa.Array) -> Spans:
    """A binary or string array's values where they lie; another array that can be cast to binary is copied.

    Raises UsageError for what is neither text nor bytes, or a value over 2 GiB.
    """
    if array.type not in (*_NARROW, *_WIDE):
        try:
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UsageError(f"{array.type} is neither text nor bytes: cast it to string or binary") from None
    _, raw, data = array.buffers()
    if not len(array):
        return Spans.of([])
    edges = np.frombuffer(raw, np.int64 if array.type in _WIDE else np.int32, len(array) + 1 + array.offset)
    edges = edges[array.offset :].astype(np.int64)
    sizes = np.diff(edges)
    if int(sizes.max()) > _LARGEST:
        raise UsageError("a value over 2 GiB fits no record")
    if array.null_count:
        sizes[np.asarray(array.is_null())] = -1
    room = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Spans(data=room, start=np.asarray(edges[:-1], np.int64), size=sizes.astype(np.int32))


def header_spans_of(array: pa.Array) -> Spans:
    """Each record's headers (a list of structs ``key``, ``value``) as a record holds them, size 0 for none.

    Raises UsageError for lists of something else, or a header without a key.
    """
    kind = array.type
    pair = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if pair is None or not pa.types.is_struct(pair) or {field.name for field in pair} != {"key", "value"}:
        raise UsageError(f"headers are {kind}: give array<struct<key string, value binary>>")
    edges = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(edges)
    if array.null_count:
        counts[np.asarray(array.is_null())] = 0
    pairs = array.values
    children = dict(zip((field.name for field in pair), pairs.flatten(), strict=True))
    keys, values = spans_of(children["key"]), spans_of(children["value"])
    room = np.maximum(keys.size, 0).sum(dtype=np.int64) + np.maximum(values.size, 0).sum(dtype=np.int64)
    out = np.empty(int(room) + _VARINT_ROOM * (2 * len(pairs) + len(array)) + 1, np.uint8)
    start, size = np.zeros(len(array), np.int64), np.zeros(len(array), np.int32)
    columns = (keys.data, keys.start, keys.size, values.data, values.start, values.size)
    if not _encode_headers(edges[:-1], counts, *columns, out, start, size):
        raise UsageError("a header without a key: give each a name")
    return Spans(data=out, start=start, size=size)


@kernel
def _encode_headers(
    first: Int64,
    count: Int64,
    key_data: Bytes,
    key_start: Int64,
    key_size: Int32,
    value_data: Bytes,
    value_start: Int64,
    value_size: Int32,
    out: Bytes,
    start: Int64,
    size: Int32,
) -> bool:
    """Fill ``out`` and the spans in it; False where a header has no key."""
    position = 0
    for row in range(len(first)):
        start[row] = position
        if count[row] == 0:
            continue
        position = write_varint(out, position, count[row])
        for each in range(first[row], first[row] + count[row]):
            if key_size[each] < 0:
                return False
            position = write_varint(out, position, key_size[each])
            position = copy_bytes(key_data, key_start[each], key_size[each], out, position)
            position = write_varint(out, position, value_size[each])
            position = copy_bytes(value_data, value_start[each], value_size[each], out, position)
        size[row] = position - start[row]
    return True
