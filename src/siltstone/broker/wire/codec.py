"""The codec of messages: reads and writes them in Kafka's format, each version of a message by a list of
steps that is made once from the definitions of its fields (``wire.fields``).

A reader never trusts a length: before it allocates anything, it compares the length with the bytes that are
left. The arrays of one message may have ``ELEMENTS_MAX`` elements in all. Unknown tagged fields are skipped.
Bytes after the last field are ignored, as in Kafka.

::

    fixed fields in a row      one struct.unpack; a uuid is 16 bytes
    string                     size (int16; in flexible versions a varint of size + 1), UTF-8;  null: size -1
    bytes, records             size (int32; in flexible versions a varint of size + 1), bytes;  null: size -1
    array                      count (int32; in flexible versions a varint of count + 1), elements;
                               null: count -1
    structure                  its fields, in flexible versions with tagged fields at the end
    nullable structure         int8: -1 for null, else 1 and the structure
    tagged fields              varint count, then of each field: varint tag, varint size, its value
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from siltstone.base.errors import LogError
from siltstone.base.records.metadata import unsigned_varint
from siltstone.broker.wire.fields import Field, Message, MessagePart

ELEMENTS_MAX = 100_000
"""The most elements that all arrays of one request may have together."""
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Formats of ``struct`` for Kafka's types of fixed size."""
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_VARINT_BYTES_MAX = 5

MessageT = TypeVar("MessageT", bound=Message)


class MalformedRequestError(LogError, code="INVALID_REQUEST", error_code=42):
    """The bytes of a request that are not in Kafka's format: the connection is closed."""


class _Budget:
    """Counts the array elements of a message against ``ELEMENTS_MAX``; ``left``: how many it may still
    have."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX

    def take(self, count: int, position: int) -> None:
        """Raises MalformedRequestError when the message has too many."""
        self.left -= count
        if self.left < 0:
            raise MalformedRequestError(f"more than {ELEMENTS_MAX} array elements", position=position)


ReadStep = Callable[[memoryview, int, _Budget, list[Any]], int]
"""Reads values at a position, adds them to the list, and returns the position after them."""
ReadValue = Callable[[memoryview, int, _Budget], tuple[Any, int]]
"""Reads one value at a position: (value, the position after it)."""


class _Output:
    """What has been written: the finished ``parts``, and ``data``, the bytes after the last of them."""

    __slots__ = ("data", "parts")

    def __init__(self) -> None:
        self.parts: list[MessagePart] = []
        self.data = bytearray()

    def add(self, part: MessagePart) -> None:
        """Add a part after what is written, without a copy."""
        self.parts.append(self.data)
        self.parts.append(part)
        self.data = bytearray()


WriteStep = Callable[[Any, _Output], None]
"""Writes a value, or some fields of a message, at the end of the output."""


class _NamedField(NamedTuple):
    """A field of a message with its Python name, its definition and its default. ``of``: the class of its
    structure, or of the structures in its array; None for other types."""

    name: str
    field: Field
    of: type[Message] | None
    default: Any

    def is_nullable(self, version: int) -> bool:
        return self.field.nullable is not None and version >= self.field.nullable

    def is_in(self, version: int) -> bool:
        return self.field.first <= version <= self.field.last

    def is_tagged(self, version: int) -> bool:
        return self.field.tag is not None and version >= self.field.tagged

    def is_fixed(self, version: int) -> bool:
        return self.field.kind in _FIXED and not self.field.is_array and not self.is_tagged(version)


def read(message: type[MessageT], version: int, data: memoryview, position: int = 0) -> MessageT:
    """Read a message at ``position`` of a frame. Fields of type ``records`` are views of ``data``, not
    copies. Raises MalformedRequestError."""
    try:
        value, _ = _reader(message, version, message.FIRST_FLEXIBLE)(data, position, _Budget())
    except (struct.error, IndexError) as error:
        raise MalformedRequestError("the request ends within a field", position=len(data)) from error
    return value  # type: ignore[no-any-return]


def write(message: Message, version: int) -> list[MessagePart]:
    """The bytes of a message, in parts, of which the first is always a bytearray. ``records`` in a file are a
    part of their own, a range of that file."""
    output = _Output()
    _writer(type(message), version, message.FIRST_FLEXIBLE)(message, output)
    output.parts.append(output.data)
    return output.parts


@functools.cache
def _fields(message: type[Message]) -> tuple[_NamedField, ...]:
    """The fields of a message in the order of its definition."""
    defaults = message()
    hints = get_type_hints(message, include_extras=True)
    fields = []
    for name in message.__struct_fields__:
        declared, field = get_args(hints[name])[:2]
        structures = [hint for hint in _all_types(declared) if issubclass(hint, Message)]
        fields.append(
            _NamedField(name, field, structures[0] if structures else None, getattr(defaults, name))
        )
    return tuple(fields)


def _all_types(hint: Any) -> Iterator[type]:
    """The types in a hint, such as ``tuple[PartitionData, ...] | None``."""
    if isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from _all_types(part)


# Varints


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of 32 bits: (its value, the position after it). Raises MalformedRequestError."""
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = data[position + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value & 0xFFFFFFFF, position + number + 1
    raise MalformedRequestError("a varint has more than five bytes", position=position)


_SHORT_VARINTS = tuple(bytes([value]) for value in range(0x80))


def varint(value: int) -> bytes:
    """An unsigned varint."""
    return _SHORT_VARINTS[value] if value < 0x80 else unsigned_varint(value)


def skip_tags(data: memoryview, position: int) -> int:
    """The position after tagged fields. Raises MalformedRequestError."""
    try:
        return _read_tags({}, data, position, _Budget(), {})
    except IndexError as error:
        raise MalformedRequestError("the request ends within its tags", position=len(data)) from error


def _read_tags(
    known: dict[int, tuple[int, ReadValue]],
    data: memoryview,
    position: int,
    budget: _Budget,
    values: dict[int, Any],
) -> int:
    """Read tagged fields into ``values`` (by the index of the field in the message), and skip unknown ones.
    ``known``: by tag, the index of the field and the function that reads its value."""
    count, position = read_varint(data, position)
    budget.take(count, position)
    for _ in range(count):
        tag, position = read_varint(data, position)
        size, position = read_varint(data, position)
        end = _end(data, position, size)
        if tag in known:
            index, read_value = known[tag]
            values[index], _ = read_value(data[:end], position, budget)
        position = end
    return position


def _end(data: memoryview, position: int, size: int) -> int:
    """The end of ``size`` bytes from ``position`` on. Raises MalformedRequestError if the data is shorter."""
    end = position + size
    if end > len(data):
        raise MalformedRequestError(
            f"a field of {size} bytes, {len(data) - position} are left", position=position
        )
    return end


# Reading


@functools.cache
def _reader(message: type[Message], version: int, first_flexible: int) -> ReadValue:
    """The function that reads a message in a version. ``first_flexible``: the first flexible version of the
    request or response that the message is, or is in."""
    fields, is_flexible = _fields(message), version >= first_flexible
    defaults = [named.default for named in fields]
    # The indexes of the untagged fields, in the order in which the steps add their values.
    plain = [
        index for index, named in enumerate(fields) if named.is_in(version) and not named.is_tagged(version)
    ]
    tags = {
        named.field.tag: (index, _value_reader(named, version, first_flexible))
        for index, named in enumerate(fields)
        if named.is_in(version) and named.is_tagged(version)
    }
    steps = tuple(_read_steps([fields[index] for index in plain], version, first_flexible))
    has_all = plain == list(range(len(fields)))  # else the other fields have their defaults

    def read_message(data: memoryview, position: int, budget: _Budget) -> tuple[Any, int]:
        values: list[Any] = []
        for step in steps:
            position = step(data, position, budget, values)
        if not has_all:
            all_values = defaults.copy()
            for index, value in zip(plain, values, strict=True):
                all_values[index] = value
            values = all_values
        if is_flexible:
            if data[position] == 0:  # no tagged field, as nearly always
                return message(*values), position + 1
            tagged: dict[int, Any] = {}
            position = _read_tags(tags, data, position, budget, tagged)  # type: ignore[arg-type]
            for index, value in tagged.items():
                values[index] = value
        return message(*values), position

    return read_message


def _read_steps(fields: Sequence[_NamedField], version: int, first_flexible: int) -> Iterator[ReadStep]:
    """The steps that read fields: one step for all fixed fields in a row, one for any other field."""
    for is_fixed, group in groupby(fields, lambda named: named.is_fixed(version)):
        if is_fixed:
            yield _fixed_step(struct.Struct(">" + "".join(_FIXED[named.field.kind] for named in group)))
        else:
            for named in group:
                yield _value_step(_value_reader(named, version, first_flexible))


def _fixed_step(form: struct.Struct) -> ReadStep:
    """The step that reads fixed fields in a row. ``form``: of all of them."""
    unpack_from, size = form.unpack_from, form.size

    def read_fixed(data: memoryview, position: int, budget: _Budget, values: list[Any]) -> int:
        values += unpack_from(data, position)
        return position + size

    return read_fixed


def _value_step(read_value: ReadValue) -> ReadStep:
    """The step that reads one field."""

    def read_one(data: memoryview, position: int, budget: _Budget, values: list[Any]) -> int:
        value, position = read_value(data, position, budget)
        values.append(value)
        return position

    return read_one


def _value_reader(named: _NamedField, version: int, first_flexible: int) -> ReadValue:
    """The function that reads one value of a field."""
    kind, may_be_null = named.field.kind, named.is_nullable(version)
    if named.field.is_array:
        return _array_reader(named, version, first_flexible)
    if named.of is not None:
        inner = _reader(named.of, version, first_flexible)
        return _nullable_reader(inner) if may_be_null else inner
    if kind in _FIXED:
        form = struct.Struct(">" + _FIXED[kind])
        return lambda data, position, _: (form.unpack_from(data, position)[0], position + form.size)
    return _sized_reader(kind, version >= first_flexible, may_be_null)


def _nullable_reader(inner: ReadValue) -> ReadValue:
    """The function that reads a structure that may be null: a negative int8 before it means null."""

    def read_nullable(data: memoryview, position: int, budget: _Budget) -> tuple[Any, int]:
        return (None, position + 1) if data[position] > 0x7F else inner(data, position + 1, budget)

    return read_nullable


def _size_reader(form: struct.Struct | None) -> Callable[[memoryview, int], tuple[int, int]]:
    """The function that reads a size or a count, -1 for null. ``form``: of the number; None for the varint of
    flexible versions."""
    if form is None:

        def read_compact(data: memoryview, position: int) -> tuple[int, int]:
            byte = data[position]
            if byte < 0x80:
                return byte - 1, position + 1
            value, position = read_varint(data, position)
            return value - 1, position

        return read_compact
    unpack_from, width = form.unpack_from, form.size
    return lambda data, position: (unpack_from(data, position)[0], position + width)


def _sized_reader(kind: str, is_flexible: bool, may_be_null: bool) -> ReadValue:
    """The function that reads a string, bytes or records."""
    read_size = _size_reader(None if is_flexible else _INT16 if kind == "string" else _INT32)

    def read_sized(data: memoryview, position: int, _: _Budget) -> tuple[Any, int]:
        size, start = read_size(data, position)
        if size < 0:
            if may_be_null:
                return None, start
            raise MalformedRequestError("a field is null, but must not be", position=position)
        end = start + size
        if end > len(data):
            raise MalformedRequestError(
                f"a field of {size} bytes, {len(data) - start} are left", position=start
            )
        value: Any = data[start:end]
        if kind == "string":
            return str(value, "utf-8", "replace"), end
        return (value if kind == "records" else bytes(value)), end

    return read_sized


def _array_reader(named: _NamedField, version: int, first_flexible: int) -> ReadValue:
    """The function that reads an array; elements of fixed size are read at once."""
    read_count = _size_reader(None if version >= first_flexible else _INT32)
    may_be_null, kind = named.is_nullable(version), named.field.kind
    code = _FIXED.get(kind)
    width = struct.calcsize(">" + code) if code else 0
    read_element = None if code else _value_reader(_element(named), version, first_flexible)

    def read_array(data: memoryview, position: int, budget: _Budget) -> tuple[Any, int]:
        count, position = read_count(data, position)
        if count < 0:
            if may_be_null:
                return None, position
            raise MalformedRequestError("an array is null, but must not be", position=position)
        budget.take(count, position)
        if read_element is None:  # the elements have a fixed size
            end = _end(data, position, count * width)
            if kind == "uuid":  # its format, 16s, takes no count
                return tuple(bytes(data[at : at + 16]) for at in range(position, end, 16)), end
            return struct.unpack_from(f">{count}{code}", data, position), end
        _end(data, position, count)  # an element takes at least one byte
        elements = []
        for _ in range(count):
            element, position = read_element(data, position, budget)
            elements.append(element)
        return tuple(elements), position

    return read_array


def _element(named: _NamedField) -> _NamedField:
    """The definition of one element of an array: without what concerns the array, such as versions and a tag.
    No element of Kafka's arrays may be null."""
    return named._replace(field=Field(named.field.kind, 0))


# Writing


@functools.cache
def _writer(message: type[Message], version: int, first_flexible: int) -> WriteStep:
    """The function that writes a message in a version."""
    fields = [named for named in _fields(message) if named.is_in(version)]
    plain = [named for named in fields if not named.is_tagged(version)]
    tagged = sorted(
        (named.field.tag, named, _value_writer(named, version, first_flexible))
        for named in fields
        if named.is_tagged(version) and named.field.tag is not None
    )
    steps = tuple(_write_steps(plain, version, first_flexible))
    is_flexible = version >= first_flexible

    def write_message(value: Any, output: _Output) -> None:
        for step in steps:
            step(value, output)
        if is_flexible:
            _write_tags(tagged, value, output)

    return write_message


def _write_tags(tagged: Sequence[tuple[int, _NamedField, WriteStep]], value: Any, output: _Output) -> None:
    """Write the tagged fields that do not have their default, in the order of their tags. (No tagged field
    has records, so the bytes of each are all in ``data`` of its output.)"""
    present = []
    for tag, named, write_value in tagged:
        field_value = getattr(value, named.name)
        if field_value is not named.default and field_value != named.default:
            part = _Output()
            write_value(field_value, part)
            present.append((tag, part.data))
    output.data += varint(len(present))
    for tag, data in present:
        output.data += varint(tag) + varint(len(data)) + data


def _write_steps(fields: Sequence[_NamedField], version: int, first_flexible: int) -> Iterator[WriteStep]:
    """The steps that write fields: one step for all fixed fields in a row, one for any other field."""
    for is_fixed, group in groupby(fields, lambda named: named.is_fixed(version)):
        members = list(group)
        if is_fixed:
            yield _fixed_write(members)
        else:
            for named in members:
                yield _field_write(
                    operator.attrgetter(named.name), _value_writer(named, version, first_flexible)
                )


def _fixed_write(fields: Sequence[_NamedField]) -> WriteStep:
    """The step that writes fixed fields in a row."""
    pack = struct.Struct(">" + "".join(_FIXED[named.field.kind] for named in fields)).pack
    get = operator.attrgetter(*(named.name for named in fields))
    if len(fields) == 1:

        def write_one(value: Any, output: _Output) -> None:
            output.data += pack(get(value))

        return write_one

    def write_fixed(value: Any, output: _Output) -> None:
        output.data += pack(*get(value))

    return write_fixed


def _field_write(get: Callable[[Any], Any], write_value: WriteStep) -> WriteStep:
    """The step that writes the field of a message that ``get`` returns."""

    def write_field(value: Any, output: _Output) -> None:
        write_value(get(value), output)

    return write_field


def _value_writer(named: _NamedField, version: int, first_flexible: int) -> WriteStep:
    """The function that writes one value of a field."""
    kind = named.field.kind
    if named.field.is_array:
        return _array_writer(named, version, first_flexible)
    if named.of is not None:
        inner = _writer(named.of, version, first_flexible)
        return _nullable_writer(inner) if named.is_nullable(version) else inner
    if kind in _FIXED:
        pack = struct.Struct(">" + _FIXED[kind]).pack

        def write_number(value: Any, output: _Output) -> None:
            output.data += pack(value)

        return write_number
    return _sized_writer(kind, version >= first_flexible)


def _nullable_writer(inner: WriteStep) -> WriteStep:
    """The function that writes a structure that may be null; see ``_nullable_reader``."""

    def write_nullable(value: Any, output: _Output) -> None:
        output.data += b"\xff" if value is None else b"\x01"
        if value is not None:
            inner(value, output)

    return write_nullable


def _size_writer(form: struct.Struct | None) -> Callable[[int], bytes]:
    """The function that encodes a size or a count; see ``_size_reader``."""
    return form.pack if form is not None else lambda size: varint(size + 1)


def _sized_writer(kind: str, is_flexible: bool) -> WriteStep:
    """The function that writes a string, bytes or records; records that are a file become a part."""
    size_of = _size_writer(None if is_flexible else _INT16 if kind == "string" else _INT32)

    def write_sized(value: Any, output: _Output) -> None:
        if value is None:
            output.data += size_of(-1)
            return
        if kind == "string":
            value = value.encode()
        output.data += size_of(len(value))
        if isinstance(value, bytes):
            output.data += value
        else:
            output.add(value)

    return write_sized


def _array_writer(named: _NamedField, version: int, first_flexible: int) -> WriteStep:
    """The function that writes an array."""
    count_of = _size_writer(None if version >= first_flexible else _INT32)
    write_element = _value_writer(_element(named), version, first_flexible)

    def write_array(value: Any, output: _Output) -> None:
        if value is None:
            output.data += count_of(-1)
            return
        output.data += count_of(len(value))
        for element in value:
            write_element(element, output)

    return write_array
