"""Our messages beside kio's, which another project generates from Kafka's definitions, with its own codec.

For each API and version: a message of ours is written, read and written again by kio, and read by us. Bytes
and values must be the same.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from siltstone.broker.wire import codec
from siltstone.broker.wire.api import Api
from siltstone.broker.wire.apis import API_VERSIONS, APIS
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.headers import read_header, response_header

CASES = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
_INT_BITS = {"int8": 8, "int16": 16, "uint16": 17, "int32": 32, "int64": 64}
_ERROR_CODES = (0, 3, 42, 87)


def random_value(known: Any, version: int, chance: random.Random) -> Any:
    if known.is_nullable(version) and chance.random() < 0.3:
        return None
    if known.field.is_array:
        element = known._replace(field=known.field._replace(is_array=False, nullable=None))
        counts = (0, 1, 130) if known.of is None else (0, 1, 2)
        return tuple(random_value(element, version, chance) for _ in range(chance.choice(counts)))
    if known.of is not None:
        return random_message(known.of, version, chance)
    kind = known.field.kind
    if kind in _INT_BITS:
        if known.name == "error_code":
            return chance.choice(_ERROR_CODES)
        is_time = known.name.endswith("_ms")  # kio makes durations of some of these, which are not negative
        bits = min(_INT_BITS[kind] - 1, 31 if is_time else 64)
        return (
            chance.choice((0, 1, 7, (1 << bits) - 1))
            if is_time
            else chance.choice((-1, 0, 5, (1 << bits) - 1))
        )
    size = chance.choice((0, 1, 20, 127, 128, 300))
    if kind == "string":
        return "".join(chance.choices("abcé√𝄞", k=size))
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "float64":
        return 0.25
    if kind == "uuid":
        return chance.choice((bytes(range(1, 17)), bytes(range(2, 18))))
    return chance.randbytes(size)


def random_message(message: type[Message], version: int, chance: random.Random) -> Message:
    values = {
        known.name: random_value(known, version, chance)
        for known in codec._fields(message)
        if known.is_in(version)
    }
    return message(**values)


def joined(message: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in codec.write(message, version))  # type: ignore[arg-type]


def comparable(value: Any) -> Any:
    """A message with its records as bytes."""
    if isinstance(value, Message):
        fields = {name: comparable(getattr(value, name)) for name in value.__struct_fields__}
        return type(value).__name__, fields
    if isinstance(value, tuple):
        return tuple(comparable(item) for item in value)
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("kind", ["request", "response"])
@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_message_has_the_same_bytes_and_values_in_both_codecs(api: Api, version: int, kind: str) -> None:
    ours = getattr(api, kind)
    module = load_payload_module(api.key, version, EntityType[kind])
    theirs = getattr(module, f"{api.name}{kind.capitalize()}")
    chance = random.Random(f"{api.name} {version} {kind}")
    for _ in range(4):
        message = random_message(ours, version, chance)
        data = joined(message, version)
        read, _ = entity_reader(theirs)(data, 0)
        buffer = io.BytesIO()
        entity_writer(theirs)(buffer, read)
        assert buffer.getvalue() == data
        assert comparable(codec.read(ours, version, memoryview(data))) == comparable(message)


def test_headers_have_tags_in_flexible_versions() -> None:
    for api, version in CASES:
        is_flexible = version >= api.first_flexible
        start = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + (7).to_bytes(4, "big")
        tags = b"\x01\x05\x02ab" if is_flexible else b""
        header = read_header(memoryview(start + b"\x00\x03cat" + tags + b"body"))
        assert header == (api.key, version, 7, "cat", 13 + len(tags))
        nameless = read_header(memoryview(start + b"\xff\xff" + tags[:0] + (b"\0" if is_flexible else b"")))
        assert nameless.client_id is None
        has_tags = is_flexible and api.key != API_VERSIONS
        assert response_header(api.key, version, 7) == b"\0\0\0\x07" + (b"\0" if has_tags else b"")
