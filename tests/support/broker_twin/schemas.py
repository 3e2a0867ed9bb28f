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
            return {each.name: each.initial() for each in self.inner.fields}
        return {"string": "", "uuid": bytes(16)}.get(self.kind, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One structure in one version."""

    name: str
    flexible: bool
    fields: tuple[Field, ...]
    header: int = 0
    plain: tuple[Field, ...] = field(init=False, repr=False)
    tagged: Mapping[int, Field] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", tuple(each for each in self.fields if each.tag is None))
        tags = {each.tag: each for each in self.fields if each.tag is not None}
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
        each
        for name, each in vars(module).items()
        if name.endswith(side.capitalize()) and each.__module__ == module.__name__
        if each.__type__.name == side
    )
    return _schema_of(entity)


@cache
def _schema_of(entity: Any) -> Schema:
    header = getattr(entity, "__header_schema__", None)
    return Schema(
        name=entity.__name__,
        flexible=entity.__flexible__,
        fields=tuple(_field_of(each) for each in dataclasses.fields(entity)),
        header=0 if header is None else int(header.__version__),
    )


def _field_of(each: dataclasses.Field[Any]) -> Field:
    kinds = [part for part in _members(each.type) if part is not NoneType]
    nullable = NoneType in _members(each.type)
    array = get_origin(kinds[0]) is tuple
    element = get_args(kinds[0])[0] if array else kinds[0]
    kind = str(each.metadata.get("kafka_type", "struct"))
    struct_of = next((part for part in _members(element) if dataclasses.is_dataclass(part)), None)
    return Field(
        name=each.name,
        kind=kind,
        inner=_schema_of(struct_of) if kind == "struct" else None,
        array=array,
        nullable=nullable and kind != "uuid",
        tag=each.metadata.get("tag"),
        default=_default_of(each, kind),
    )


def _members(kind: Any) -> tuple[Any, ...]:
    return (kind,) if get_origin(kind) is tuple or not get_args(kind) else get_args(kind)


def _default_of(each: dataclasses.Field[Any], kind: str) -> Any:
    value = each.default
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
    for each in layout.plain:
        _write_field(out, each, message.get(each.name, each.initial()), layout.flexible)
    if not layout.flexible:
        assert not layout.tagged
        return
    tags = {
        tag: message[each.name]
        for tag, each in layout.tagged.items()
        if each.name in message and message[each.name] != each.initial()
    }
    out += uvarint(len(tags))
    for tag, value in tags.items():
        body = bytearray()
        _write_field(body, layout.tagged[tag], value, True)
        out += uvarint(tag) + uvarint(len(body)) + body


def _write_field(out: bytearray, each: Field, value: Any, flexible: bool) -> None:
    if each.array:
        _write_length(out, None if value is None else len(value), flexible, "i")
        for element in value or ():
            _write_value(out, each, element, flexible)
    elif each.inner is not None and each.nullable:
        out += b"\xff" if value is None else b"\x01"
        if value is not None:
            _write_value(out, each, value, flexible)
    else:
        _write_value(out, each, value, flexible)


def _write_value(out: bytearray, each: Field, value: Any, flexible: bool) -> None:
    if each.inner is not None:
        _write_struct(out, each.inner, value)
    elif number := _NUMBERS.get(each.kind):
        out += struct.pack(f">{number}", value)
    elif each.kind == "uuid":
        out += value
    else:
        data = value.encode() if isinstance(value, str) else value
        _write_length(
            out, None if data is None else len(data), flexible, "h" if each.kind == "string" else "i"
        )
        out += data or b""


def _write_length(out: bytearray, length: int | None, flexible: bool, number: str) -> None:
    if flexible:
        out += uvarint(0 if length is None else length + 1)
    else:
        out += struct.pack(f">{number}", -1 if length is None else length)


def _read_struct(layout: Schema, data: bytes, at: int) -> tuple[Message, int]:
    message: Message = {}
    for each in layout.plain:
        message[each.name], at = _read_field(each, data, at, layout.flexible)
    message |= {each.name: each.initial() for each in layout.tagged.values()}
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


def _read_field(each: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if each.array:
        length, at = _read_length(data, at, flexible, "i")
        if length is None:
            return None, at
        values = []
        for _ in range(length):
            value, at = _read_value(each, data, at, flexible)
            values.append(value)
        return values, at
    if each.inner is not None and each.nullable:
        (mark,) = struct.unpack_from(">b", data, at)
        return (None, at + 1) if mark < 0 else _read_value(each, data, at + 1, flexible)
    return _read_value(each, data, at, flexible)


def _read_value(each: Field, data: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    if each.inner is not None:
        return _read_struct(each.inner, data, at)
    if number := _NUMBERS.get(each.kind):
        (value,) = struct.unpack_from(f">{number}", data, at)
        return value, at + struct.calcsize(f">{number}")
    if each.kind == "uuid":
        return data[at : at + 16], at + 16
    length, at = _read_length(data, at, flexible, "h" if each.kind == "string" else "i")
    if length is None:
        return None, at
    assert at + length <= len(data), f"{each.name}: {length} bytes, {len(data) - at} are left"
    raw = data[at : at + length]
    return raw.decode() if each.kind == "string" else raw, at + length


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
