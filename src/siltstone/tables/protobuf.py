"""Protobuf messages, for ``decode``: ``st.Protobuf(descriptors="user.desc", message="shop.User")``.

``descriptors`` is a ``FileDescriptorSet``, which ``protoc --include_imports --descriptor_set_out`` writes: no
code is generated or run. The library stops at 100 levels of nesting, and at lengths beyond a message's end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.tables.decoding import RAISE, Decode

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
except ImportError as error:
    raise ImportError(
        "Protobuf needs protobuf, which is not installed: pip install 'siltstone[decode]'",
        name="google.protobuf",
    ) from error

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),  # neither Spark nor the table formats have unsigned types
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_INDEXES_MAX = 64
"""The most message indexes in Confluent's header, which are the path to a nested message: one a level."""
Convert = Callable[[Any], object]
"""A value of the library as what ``pa.array`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protobuf:
    """Protobuf of the type ``message``. ``descriptors``: a FileDescriptorSet, its bytes or its file.

    ``has_header``: values begin with Confluent's header (a 0, the schema's id in 4 bytes, the message
    indexes), which is skipped. Fields without presence have their default; ``Timestamp`` is a time in
    microseconds, an enum its name. ``on_error``: "raise", or "null" for undecodable values.
    """

    descriptors: bytes | str | os.PathLike[str]
    message: str
    has_header: bool = False
    on_error: str = RAISE

    def __post_init__(self) -> None:
        """Read the file now: a task may be on another machine. Raises OSError."""
        if not isinstance(self.descriptors, bytes):
            object.__setattr__(self, "descriptors", files.read_bytes(self.descriptors, limit=64 << 20))

    def arrow_type(self) -> pa.DataType:
        """The type of the decoded column. Raises UsageError: no such message, or a recursive one."""
        return _struct_of(self._descriptor(), ())

    def compile(self) -> Decode:
        """The function for one value. Raises UsageError."""
        descriptor = self._descriptor()
        parse, convert = message_factory.GetMessageClass(descriptor).FromString, _converter(descriptor)
        if self.has_header:
            return lambda value: convert(parse(_without_header(value)))
        return lambda value: convert(parse(value))

    def _descriptor(self) -> Descriptor:
        advice = "pass what protoc --include_imports --descriptor_set_out=FILE has written"
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file:
                pool.Add(file)
            return pool.FindMessageTypeByName(self.message)
        except KeyError:
            reason = f"the descriptors have no message {self.message!r}"
            raise UsageError(reason, advice="pass its full name, with the package") from None
        except Exception as error:  # the library raises errors of many kinds
            raise UsageError(f"not a FileDescriptorSet: {error}", advice=advice) from None


def _struct_of(descriptor: Descriptor, outer: tuple[str, ...]) -> pa.DataType:
    """The type of a message inside the messages ``outer``, their full names. Raises UsageError if it is one
    of them."""
    if descriptor.full_name in outer:
        reason = f"the Protobuf message {descriptor.full_name} is recursive: it contains itself"
        raise UsageError(reason, advice="leave the column out of decode: it then has the bytes")
    inner = (*outer, descriptor.full_name)
    return pa.struct([(field.name, _type_of(field, inner)) for field in descriptor.fields])


def _type_of(field: FieldDescriptor, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_type_of(key, outer), _type_of(value, outer))
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        is_time = field.message_type.full_name == _TIMESTAMP
        value_type = pa.timestamp("us", "UTC") if is_time else _struct_of(field.message_type, outer)
    else:
        value_type = pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]
    return pa.list_(value_type) if field.is_repeated else value_type


def _is_map(field: FieldDescriptor) -> bool:
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    return bool(is_message and field.message_type.GetOptions().map_entry)


def _converter(descriptor: Descriptor) -> Convert:
    """The function that makes a dict of a message; a field with presence that is not set is None."""
    fields = [(field.name, field.has_presence, _field_converter(field)) for field in descriptor.fields]

    def convert(message: Any) -> object:
        return {
            name: None
            if has_presence and not message.HasField(name)
            else convert_field(getattr(message, name))
            for name, has_presence, convert_field in fields
        }

    return convert


def _field_converter(field: FieldDescriptor) -> Convert:
    if _is_map(field):
        convert_item = _field_converter(field.message_type.fields_by_name["value"])
        return lambda items: [(key, convert_item(items[key])) for key in items]
    convert_one = _value_converter(field)
    return (lambda items: [convert_one(item) for item in items]) if field.is_repeated else convert_one


def _value_converter(field: FieldDescriptor) -> Convert:
    """The function for one value of a field, also of a repeated one."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
        return _converter(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return lambda value: value


def _without_header(value: bytes) -> memoryview:
    """The message after Confluent's header, whose message indexes are zigzag varints after their count."""
    if len(value) < 6 or value[0] != 0:
        raise ValueError("it does not begin with Confluent's header: a 0, the schema's id, message indexes")
    count, position = _varint(value, 5)
    if not 0 <= count >> 1 <= _INDEXES_MAX:
        raise ValueError(f"Confluent's header has {count >> 1} message indexes")
    for _ in range(count >> 1):
        _, position = _varint(value, position)
    return memoryview(value)[position:]


def _varint(value: bytes, position: int) -> tuple[int, int]:
    """(The number at ``position``, the position after it). Raises ValueError."""
    number = 0
    for shift in range(0, 35, 7):
        if position >= len(value):
            break
        byte = value[position]
        number, position = number | (byte & 127) << shift, position + 1
        if byte < 128:
            return number, position
    raise ValueError("Confluent's header is cut off, or has a number of more than 5 bytes")
