"""Kafka's messages by `kio`'s dataclasses, written and read here: a codec that shares nothing with ours.

kio generates one dataclass for each structure and version from Kafka's message definitions. Only these are
used, as schemas: its reader refuses unknown tags and some values that brokers send, and must not see bytes of
strangers. A message is a dict of kio's field names; ids are 16 bytes, error codes and times plain numbers.
"""

from __future__ import annotations

import dataclasses
import importlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

Message = dict[str, Any]
_NUMBERS = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: ``kind`` is a primitive's name, or "struct" with ``inner``."""

    name: str
    kind: str
    inner: Schema | None = None
    array: bool = False
    nullable: bool = False
    tag: int | None = None
    default: Any = None

    def initial(self) -> Any:
        """What the field is where nothing is said of it."""
        if self.default is not None or self.nullable:
            return self.default
        if self.array:
            return []
        if self.kind in _NUMBERS:
            return 0
        if self.inner is not None:
            return {member.name: member.initial() for member in self.inner.fields}
        return {"string": "", "uuid": bytes(16)}.get(self.kind, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One structure in one version."""

    name: str
    flexible: bool
    fields: tuple[Field, ...]
    header: int = 0
    untagged: tuple[Field, ...] = field(init=False, repr=False)
    tagged: Mapping[int, Field] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "untagged", tuple(member for member in self.fields if member.tag is None))
        tags = {member.tag: member for member in self.fields if member.tag is not None}
        object.__setattr__(self, "tagged", dict(sorted(tags.items())))


@cache
def api_names() -> Mapping[int, str]:
    """By API key: the folder of its schemas in kio."""
    return importlib.import_module("kio.schema.index").api_key_map  # type: ignore[no-any-return]


@cache
def schema(key: int, version: int, side: str) -> Schema:
    """The schema of a request or a response (``side``)."""
    folder = api_names()[key]
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{side}")
    (entity,) = (
        value
        for name, value in vars(module).items()
        if name.endswith(side.capitalize()) and value.__module__ == module.__name__
        if value.__type__.name == side
    )
    return _schema_of(entity)


@cache
def _schema_of(entity: Any) -> Schema:
    header = getattr(entity, "__header_schema__", None)
    return Schema(
        name=entity.__name__,
        flexible=entity.__flexible__,
        fields=tuple(_field_of(member) for member in dataclasses.fields(entity)),
        header=0 if header is None else int(header.__version__),
    )


def _field_of(member: dataclasses.Field[Any]) -> Field:
    kinds = [part for part in _members(member.type) if part is not NoneType]
    nullable = NoneType in _members(member.type)
    array = get_origin(kinds[0]) is tuple
    element = get_args(kinds[0])[0] if array else kinds[0]
    kind = str(member.metadata.get("kafka_type", "struct"))
    struct_of = next((part for part in _members(element) if dataclasses.is_dataclass(part)), None)
    return Field(
        name=member.name,
        kind=kind,
        inner=_schema_of(struct_of) if kind == "struct" else None,
        array=array,
        nullable=nullable and kind != "uuid",
        tag=member.metadata.get("tag"),
        default=_default_of(member, kind),
    )


def _members(kind: Any) -> tuple[Any, ...]:
    return (kind,) if get_origin(kind) is tuple or not get_args(kind) else get_args(kind)


def _default_of(member: dataclasses.Field[Any], kind: str) -> Any:
    value = member.default
    if value is dataclasses.MISSING or value is None:
        return None
    if kind == "struct" or isinstance(value, tuple):
        return None
    if kind.startswith("timedelta"):
        return round(value.total_seconds() * 1000)
    return value if kind in ("string", "float64") else int(value)


def encode(layout: Schema, message: Mapping[str, Any]) -> bytes:
    """The body of a message; fields that this version lacks are left out, missing ones have their default."""
    out = bytearray()
    _write_struct(out, layout, message)
    return bytes(out)


def decode(layout: Schema, data: bytes) -> Message:
    """The message that ``data`` is, to its last byte."""
    message, at = _read_struct(layout, data, 0)
    assert at == len(data), f"{layout.name}: {len(data) - at} bytes behind the body"
    return message


def _write_struct(out: bytearray, layout: Schema, message: Mapping[str, Any]) -> None:
    for member in layout.untagged:
        _write_field(out, member, message.get(member.name, member.initial()), layout.flexible)
    if not layout.flexible:
        assert not layout.tagged
        return
    tags = {
        tag: message[member.name]
        for tag, member in layout.tagged.items()
        if member.name in message and message[member.name] != member.initial()
    }
    out += uvarint(len(tags))
    for tag, value in tags.items():
        body = bytearray()
        _write_field(body, layout.tagged[tag], value, True)
        out += uvarint(tag) + uvarint(len(body)) + body


def _write_field(out: bytearray, member: Field, value: Any, flexible: bool) -> None:
    if member.array:
        _write_length(out, None if value is None else len(value), flexible, "i")
        for element in value or ():
            _write_value(out, member, element, flexible)
    elif member.inner is not None and member.nullable:
        out += b"\xff" if value is None else b"\x01"
        if value is not None:
            _write_value(out, member, value, flexible)
    else:
        _write_value(out, member, value, flexible)


def _write_value(out: bytearray, member: Field, value: Any, flexible: bool) -> None:
    if member.inner is not None:
        _write_struct(out, member.inner, value)
    elif number := _NUMBERS.get(member.kind):
        out += struct.pack(f">{number}", value)
    elif member.kind == "uuid":
        out += value
    else:
        data = value.encode() if isinstance(value, str) else value
        _write_length(
            out, None if data is None else len(data), flexible, "h" if member.kind == "string" else "i"
        )
        out += data or b""


def _write_length(out: bytearray, length: int | None, flexible: bool, number: str) -> None:
    if flexible:
        out += uvarint(0 if length is None else length + 1)
    else:
        out += struct.pack(f">{number}", -1 if length is None else length)


def _read_struct(layout: Schema, data: bytes, at: int) -> tuple[Message, int]:
    message: Message = {}
    for member in layout.untagged:
        message[member.name], at = _read_field(member, data, at, layout.flexible)
    message |= {member.name: member.initial() for member in layout.tagged.values()}
    if not layout.flexible:
        return message, at
    count, at = read_uvarint(data, at)
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if (known := layout.tagged.get(tag)) is not None:
            message[known.name], end = _read_field(known, data, at, True)
            assert end == at + size, f"{layout.name}: tag {tag} is not {size} bytes"
        else:
            message[f"tag {tag}"] = data[at : at + size]
        at += size
    return message, at


def _read_field(member: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if member.array:
        length, at = _read_length(data, at, flexible, "i")
        if length is None:
            return None, at
        values = []
        for _ in range(length):
            value, at = _read_value(member, data, at, flexible)
            values.append(value)
        return values, at
    if member.inner is not None and member.nullable:
        (mark,) = struct.unpack_from(">b", data, at)
        return (None, at + 1) if mark < 0 else _read_value(member, data, at + 1, flexible)
    return _read_value(member, data, at, flexible)


def _read_value(member: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if member.inner is not None:
        return _read_struct(member.inner, data, at)
    if number := _NUMBERS.get(member.kind):
        (value,) = struct.unpack_from(f">{number}", data, at)
        return value, at + struct.calcsize(f">{number}")
    if member.kind == "uuid":
        return data[at : at + 16], at + 16
    length, at = _read_length(data, at, flexible, "h" if member.kind == "string" else "i")
    if length is None:
        return None, at
    assert at + length <= len(data), f"{member.name}: {length} bytes, {len(data) - at} are left"
    raw = data[at : at + length]
    return raw.decode() if member.kind == "string" else raw, at + length


def _read_length(data: bytes, at: int, flexible: bool, number: str) -> tuple[int | None, int]:
    if flexible:
        length, at = read_uvarint(data, at)
        return (length - 1 if length else None), at
    (length,) = struct.unpack_from(f">{number}", data, at)
    return (length if length >= 0 else None), at + struct.calcsize(f">{number}")


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
