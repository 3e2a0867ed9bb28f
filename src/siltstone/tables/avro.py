"""Avro values with Confluent's header, for ``decode``: ``st.Avro(schemas={7: "user.avsc"})``.

::

    0  1          5
    | 0 | schema id | Avro, without a file's header         the id is big-endian; there is no registry here

fastavro reads a value by the schema of its id, and resolves it to the reader's schema. An array whose items
take no bytes is refused: a few bytes could announce billions of items. All other items take bytes of the
value, so the size of the value bounds their number.
"""

from __future__ import annotations

import functools
import io
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.tables.decoding import RAISE, Decode

try:
    import fastavro
except ImportError as error:
    raise ImportError(
        "Avro needs fastavro, which is not installed: pip install 'siltstone[decode]'", name="fastavro"
    ) from error

_HEADER = struct.Struct(">BI")
_DEPTH_MAX = 64
"""Schemas that are nested more deeply are refused."""
AvroSchema = dict[str, Any] | list[Any] | str
_TIMES = {
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
}
_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Avro:
    """Avro with Confluent's header. ``schemas``: by schema id, each a parsed schema or the path of an .avsc.

    The column has the type of ``reader_schema``, by default the schema with the highest id; values of other
    schemas are resolved to it by Avro's rules. ``on_error``: "raise", or "null" for undecodable values.
    """

    schemas: Mapping[int, AvroSchema | os.PathLike[str]]
    reader_schema: AvroSchema | os.PathLike[str] | None = None
    on_error: str = RAISE

    def __post_init__(self) -> None:
        """Read the files now: a task may be on another machine. Raises UsageError, OSError."""
        if not self.schemas:
            raise UsageError("Avro has no schemas", advice="pass st.Avro(schemas={7: 'user.avsc'})")
        object.__setattr__(
            self, "schemas", {number: _loaded(schema) for number, schema in self.schemas.items()}
        )
        if self.reader_schema is None:
            object.__setattr__(self, "reader_schema", self.schemas[max(self.schemas)])
        else:
            object.__setattr__(self, "reader_schema", _loaded(self.reader_schema))

    def arrow_type(self) -> pa.DataType:
        """The type of the decoded column. Raises UsageError for recursive schemas and unions of several
        types."""
        return _Types(self.reader_schema).column_type()

    def compile(self) -> Decode:
        """The function for one value. Raises UsageError."""
        writers = {}
        for number, schema in self.schemas.items():
            _Types(schema).column_type()  # refuses what cannot be read within bounds
            writers[number] = _parsed(schema)
        return functools.partial(_decode, writers, _parsed(self.reader_schema))


def _decode(writers: Mapping[int, Any], reader: Any, value: bytes) -> object:
    """One value, read by the schema of its id in ``writers`` and resolved to the schema ``reader``. Raises
    ValueError, and what fastavro raises."""
    if len(value) < _HEADER.size or value[0] != 0:
        raise ValueError("it does not begin with Confluent's header: a 0 and the schema's id in 4 bytes")
    _, number = _HEADER.unpack_from(value)
    if number not in writers:
        raise ValueError(f"no schema was passed for its schema id {number}")
    data = io.BytesIO(value)
    data.seek(_HEADER.size)
    decoded = fastavro.schemaless_reader(data, writers[number], reader)
    if data.tell() != len(value):
        raise ValueError(f"{len(value) - data.tell()} bytes follow its end")
    return decoded


def _loaded(schema: Any) -> AvroSchema:
    """A schema: from its file if it is a path. The name of a primitive type, such as "string", is a
    schema."""
    if isinstance(schema, dict | list) or schema in _SIMPLE:
        return schema  # type: ignore[no-any-return]
    text = files.read_bytes(schema, limit=16 << 20)
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}", path=schema, advice="pass an Avro schema (.avsc)") from None


def _parsed(schema: Any) -> Any:
    try:
        return fastavro.parse_schema(_without_python_types(schema))
    except Exception as error:  # fastavro raises errors of many kinds
        advice = "pass a schema by Avro's specification"
        raise UsageError(f"not an Avro schema: {error}", advice=advice) from None


def _without_python_types(schema: Any) -> Any:
    """The schema without the logical types whose values fastavro would return as Python objects that Arrow
    does not accept (such as ``uuid``): their values stay what they are stored as."""
    if isinstance(schema, list):
        return [_without_python_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    nested = ("type", "items", "values", "fields")
    kept = {name: _without_python_types(part) if name in nested else part for name, part in schema.items()}
    if kept.get("logicalType") not in (*_TIMES, "decimal", None):
        del kept["logicalType"]
    return kept


class _Types:
    """The Arrow types of a schema and of the named types in it. A ``namespace`` is that of the definition
    around, "" for none."""

    def __init__(self, schema: Any) -> None:
        _parsed(schema)
        # ``_named``: by full name, the Arrow type of each named type that is converted already.
        self._schema, self._named = schema, {}  # type: ignore[var-annotated]
        self._unfinished: list[str] = []  # the records whose fields are being converted
        self._depth = 0

    def column_type(self) -> pa.DataType:
        """The type of the whole schema. Raises UsageError."""
        return self._of(self._schema, "")

    def _of(self, schema: Any, namespace: str) -> pa.DataType:
        """The type of a schema or of a part of it, at most ``_DEPTH_MAX`` levels deep. Raises UsageError."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._refused(f"is nested more than {_DEPTH_MAX} levels deep")
        try:
            return self._of_any(schema, namespace)
        finally:
            self._depth -= 1

    def _of_any(self, schema: Any, namespace: str) -> pa.DataType:
        if isinstance(schema, list):
            return self._of_union(schema, namespace)
        if isinstance(schema, str):
            return self._of_name(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._of(kind, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_definition(schema, namespace)
        if kind == "array":
            item = self._of(schema["items"], namespace)
            if not _takes_bytes(item):
                raise self._refused("has an array whose items take no bytes")
            return pa.list_(item)
        if kind == "map":
            return pa.map_(pa.string(), self._of(schema["values"], namespace))
        logical = schema.get("logicalType")
        if logical in _TIMES:
            return _TIMES[logical]
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        return self._of_name(kind, namespace)

    def _of_union(self, branches: list[Any], namespace: str) -> pa.DataType:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise self._refused("has a union of several types, for which there is no column")
        return self._of(others[0], namespace)

    def _of_name(self, name: str, namespace: str) -> pa.DataType:
        """A primitive type, or a type that the schema has defined before."""
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full in self._unfinished:
            raise self._refused(f"is recursive: {full} contains itself")
        return self._named.get(full) or self._named[name]  # or a type without a namespace

    def _of_definition(self, schema: Any, namespace: str) -> pa.DataType:
        """The type of a record, enum or fixed, which later parts of the schema may use by its name."""
        name = schema["name"]
        space = name.rpartition(".")[0] or schema.get("namespace", namespace)
        full = name if "." in name or not space else f"{space}.{name}"
        if schema["type"] == "enum":
            arrow_type = pa.string()
        elif schema["type"] == "fixed":
            if schema["size"] < 1:
                raise self._refused("has a fixed type of no bytes")
            is_decimal = schema.get("logicalType") == "decimal"
            arrow_type = (
                pa.decimal128(schema["precision"], schema.get("scale", 0))
                if is_decimal
                else pa.binary(schema["size"])
            )
        else:
            self._unfinished.append(full)
            arrow_type = pa.struct(
                [(field["name"], self._of(field["type"], space)) for field in schema["fields"]]
            )
            self._unfinished.pop()
        self._named[full] = arrow_type
        return arrow_type

    @staticmethod
    def _refused(reason: str) -> UsageError:
        return UsageError(
            f"the Avro schema {reason}", advice="leave the column out of decode: it then has the bytes"
        )


def _takes_bytes(item: pa.DataType) -> bool:
    """Does a value of this type have at least one byte? A union has: the number of its branch."""
    if pa.types.is_struct(item):
        return any(_takes_bytes(field.type) for field in item)
    return not pa.types.is_null(item)
