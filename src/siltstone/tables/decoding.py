"""Decodes keys and values into typed columns: the argument ``decode`` of ``st.read`` and ``st.export``.

::

    decode={"value": st.Json(schema=…), "key": st.Avro(…)}
        │ arrow_type(): the column's type, on the driver          compile(): bytes ─► Python value, in a task
        ▼
    binary column ─ slices of at most SLICE_ROWS, SLICE_BYTES ─► Python values ─► Arrow column of the type

A format is a frozen, picklable description; its module imports the library that it needs (``Json`` here,
``tables.avro``, ``tables.protobuf``). Values may be hostile: the memory that a decoder takes is in proportion
to the bytes of a value, and an error names the record. Null stays null.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from siltstone.base.errors import UndecodableValueError, UsageError
from siltstone.base.records.layout import Int64
from siltstone.log.names import TopicPartition

COLUMNS = ("key", "value")
"""The columns that can be decoded."""
RAISE, NULL = ON_ERROR = ("raise", "null")
SLICE_ROWS, SLICE_BYTES = 1024, 1 << 20
"""The most values, and the most of their bytes, that are Python objects at the same time; a larger value is
a slice by itself."""
SAMPLE_VALUES = 1000
"""How many of the first values the names and types of JSON without a schema are inferred from."""
_MAX_LEVELS = 64
"""Values with more levels of nesting do not count for the inferred type."""
_UNDECODABLE_ADVICE = "decode it with on_error='null' to read such values as null, or pass another schema"

Decode = Callable[[bytes], object]
"""One value's bytes as what ``pa.array`` takes for the column's type; bad bytes raise an exception of any
kind."""


class ColumnDecoder(Protocol):
    """How the values of one column are decoded: ``Json``, ``Avro``, ``Protobuf``."""

    @property
    def on_error(self) -> str:
        """The treatment of an undecodable value: an error ("raise"), or null ("null")."""
        ...

    def arrow_type(self) -> pa.DataType:
        """The type of the decoded column. Raises UsageError for a schema that has no such type."""
        ...

    def compile(self) -> Decode:
        """The function for one value. Raises as ``arrow_type``."""
        ...


Decoders = Mapping[str, ColumnDecoder]


def checked_decoders(decode: Any) -> dict[str, ColumnDecoder]:
    """The argument ``decode``: one decoder for ``value``, or decoders by column. Raises UsageError."""
    decoders = dict(decode) if isinstance(decode, Mapping) else {"value": decode}
    for column, decoder in decoders.items():
        advice = "pass decode={'value': st.Json(schema=…)}, st.Avro or st.Protobuf; for 'key', too"
        if column not in COLUMNS:
            raise UsageError(f"decode: there is no column {column!r} to decode", advice=advice)
        if not hasattr(decoder, "compile") or not hasattr(decoder, "arrow_type"):
            raise UsageError(f"decode: {decoder!r} is no decoder", advice=advice)
        if decoder.on_error not in ON_ERROR:
            raise UsageError(
                f"on_error={decoder.on_error!r} is not known", advice=f"pass {' or '.join(ON_ERROR)}"
            )
    return decoders


def decoded_schema(schema: pa.Schema, decoders: Decoders) -> pa.Schema:
    """A table's schema with the types of the decoded columns. Raises UsageError."""
    for at, name in enumerate(schema.names):
        if name in decoders:
            schema = schema.set(at, pa.field(name, decoders[name].arrow_type()))
    return schema


class ColumnDecoding:
    """A decoder in a task, compiled once for many batches of the column ``name``."""

    def __init__(self, name: str, decoder: ColumnDecoder) -> None:
        self._name, self._on_error, self._format = name, decoder.on_error, type(decoder).__name__
        self._type, self._decode = decoder.arrow_type(), decoder.compile()

    def decoded(self, raw: pa.Array, offsets: Int64, topic_partition: TopicPartition) -> pa.Array:
        """The binary array ``raw`` as an array of the decoder's type; ``offsets``: of its records.

        Raises UndecodableValueError, which names the record."""
        parts = []
        for start, end in _slices(raw):
            values: list[object] = [None] * (end - start)
            for at, value in enumerate(raw[start:end].to_pylist()):
                if value is not None:
                    try:
                        values[at] = self._decode(value)
                    except MemoryError:  # not the value's fault, so it must not become a null
                        raise
                    except Exception as error:
                        self._raise_unless_null(error, int(offsets[start + at]), topic_partition)
            parts.append(self._to_arrow(values, offsets[start:end], topic_partition))
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self._type)

    def _to_arrow(self, values: list[object], offsets: Int64, topic_partition: TopicPartition) -> pa.Array:
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass  # a value is out of the range of its type: each is tried alone
        arrays = []
        for at, value in enumerate(values):
            try:
                arrays.append(pa.array([value], self._type))
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                self._raise_unless_null(error, int(offsets[at]), topic_partition)
                arrays.append(pa.nulls(1, self._type))
        return pa.concat_arrays(arrays)

    def _raise_unless_null(self, error: Exception, offset: int, topic_partition: TopicPartition) -> None:
        """Raises UndecodableValueError, unless undecodable values are read as null."""
        if self._on_error == NULL:
            return
        cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UndecodableValueError(
            f"offset {offset}: the {self._name} cannot be decoded as {self._format}: {cause}",
            path=str(topic_partition),
            advice=_UNDECODABLE_ADVICE,
        ) from None


def compiled(decoders: Decoders, names: Sequence[str]) -> dict[str, ColumnDecoding]:
    """The decoders of these columns, ready to decode. Raises UsageError."""
    return {name: ColumnDecoding(name, decoder) for name, decoder in decoders.items() if name in names}


def _slices(raw: pa.Array) -> Iterator[tuple[int, int]]:
    """(first row, row after the last) of slices within ``SLICE_ROWS`` and ``SLICE_BYTES``."""
    ends = np.frombuffer(raw.buffers()[1], np.int32)[raw.offset : raw.offset + len(raw) + 1]
    start = 0
    while start < len(raw):
        within = int(np.searchsorted(ends, int(ends[start]) + SLICE_BYTES, side="right")) - 1
        end = min(max(within, start + 1), start + SLICE_ROWS, len(raw))
        yield start, end
        start = end


# JSON, by msgspec: a decoder that is made for the type refuses what does not fit, skips other fields without
# an object for them, and stops at Python's recursion limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Json:
    """JSON in UTF-8, as a column of the type ``schema``: a ``pa.Schema`` for objects, or a ``pa.DataType``.

    A field that is missing or null is null; fields that the schema does not have are skipped. Times are ISO
    8601, binary is base64, decimals are numbers or text. Without ``schema`` the names and types are those of
    the first 1,000 values, except of values with more than 64 levels of nesting. An export into an existing
    Delta or Iceberg table takes that table's. ``on_error``: "raise", or "null" for undecodable values.
    """

    schema: pa.Schema | pa.DataType | None = None
    on_error: str = RAISE

    def arrow_type(self) -> pa.DataType:
        """The type of the decoded column. Raises UsageError without a schema."""
        if self.schema is None:
            reason = "the types of JSON are not known yet"
            raise UsageError(reason, advice="pass st.Json(schema=pa.schema(…))")
        return pa.struct(list(self.schema)) if isinstance(self.schema, pa.Schema) else self.schema

    def compile(self) -> Decode:
        """The function for one value. Raises UsageError for a type that JSON has no value for."""
        return msgspec.json.Decoder(_json_type(self.arrow_type()) | None).decode


def _json_type(arrow_type: pa.DataType) -> Any:
    """The Python type, for msgspec, of JSON's values that ``pa.array`` takes for an Arrow type."""
    types = pa.types
    if types.is_struct(arrow_type):
        fields = {field.name: _json_type(field.type) | None for field in arrow_type}
        return TypedDict("JsonObject", fields, total=False)  # type: ignore[operator]  # names of any kind
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return list[_json_type(arrow_type.value_type) | None]  # type: ignore[misc]
    if types.is_map(arrow_type) and types.is_string(arrow_type.key_type):
        return dict[str, _json_type(arrow_type.item_type) | None]  # type: ignore[misc]
    if types.is_integer(arrow_type):
        bits = arrow_type.bit_width
        signed = types.is_signed_integer(arrow_type)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        # msgspec's bounds are 64-bit themselves; Arrow checks what is beyond them.
        return Annotated[int, msgspec.Meta(ge=low, le=high)] if bits < 64 else int
    simple = {
        types.is_boolean: bool,
        types.is_floating: float,
        types.is_string: str,
        types.is_large_string: str,
        types.is_binary: bytes,
        types.is_timestamp: datetime.datetime,
        types.is_date: datetime.date,
        types.is_decimal: decimal.Decimal,
        types.is_null: type(None),
    }
    for is_type, python_type in simple.items():
        if is_type(arrow_type):
            return python_type
    raise UsageError(f"JSON has no values of the type {arrow_type}", advice="use another type in the schema")


# Names and types from the first values.


def inferred_type(values: Iterable[bytes]) -> pa.DataType:
    """The type that fits the first ``SAMPLE_VALUES`` JSON values: whole numbers int64, with fractions double,
    text string, objects structs of all names. Raises UsageError if they have none in common.

    Values that are no JSON are left out: reading refuses them by their offset. So are those with more than
    ``_MAX_LEVELS`` levels of nesting.
    """
    merged: pa.DataType | None = None
    for raw in itertools.islice(values, SAMPLE_VALUES):
        try:
            value_type = _type_of(msgspec.json.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            continue
        merged = _common_type(merged, value_type, "$")
    if merged is None or pa.types.is_null(merged):
        reason = f"the first {SAMPLE_VALUES} values have no JSON to infer a schema from"
        raise UsageError(reason, advice="pass st.Json(schema=pa.schema(…))")
    return _without_nulls(merged)


def _type_of(value: object, path: str = "$", level: int = 0) -> pa.DataType:
    """The type of a value of JSON. Raises RecursionError above ``_MAX_LEVELS``, and UsageError for an array
    whose items have no type in common."""
    if level > _MAX_LEVELS:
        raise RecursionError
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case list():
            item = pa.null()
            for element in value:
                item = _common_type(item, _type_of(element, f"{path}[]", level + 1), f"{path}[]")
            return pa.list_(item)
        case dict():
            fields = [
                (name, _type_of(element, f"{path}.{name}", level + 1)) for name, element in value.items()
            ]
            return pa.struct(fields)
    raise AssertionError(type(value))


def _common_type(one: pa.DataType | None, other: pa.DataType, path: str) -> pa.DataType:
    """The type that fits values of both types. ``path``: where in the JSON they are, for the error. Raises
    UsageError if no type fits both."""
    if one is None or pa.types.is_null(one) or one == other:
        return other
    if pa.types.is_null(other):
        return one
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_common_type(one.value_type, other.value_type, f"{path}[]"))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common_type(fields.get(field.name), field.type, f"{path}.{field.name}")
        return pa.struct(list(fields.items()))
    reason = f"JSON at {path} is {one} in one of the first values, and {other} in another"
    raise UsageError(reason, advice="pass st.Json(schema=pa.schema(…)) with the type that it should have")


def _without_nulls(inferred: pa.DataType) -> pa.DataType:
    """The type with strings in place of null types, as Spark infers values that were always null. Fields
    whose objects never had a field are left out, with the fields that then have none."""
    if pa.types.is_list(inferred):
        return pa.list_(_without_nulls(inferred.value_type))
    if pa.types.is_struct(inferred):
        fields = [(field.name, _without_nulls(field.type)) for field in inferred]
        return pa.struct([(name, of_field) for name, of_field in fields if not _is_empty(of_field)])
    return pa.string() if pa.types.is_null(inferred) else inferred


def _is_empty(inferred: pa.DataType) -> bool:
    """Is it the type of objects without fields, or of lists of them? No file format has a column of this
    type."""
    if pa.types.is_list(inferred):
        return _is_empty(inferred.value_type)
    return bool(pa.types.is_struct(inferred) and not inferred.num_fields)
