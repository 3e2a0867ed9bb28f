"""``decode``: typed columns from JSON, Avro and Protobuf, and bytes that are none of them."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import siltstone as st
from siltstone.base.errors import UndecodableValueError, UsageError
from siltstone.log.names import TopicPartition
from siltstone.tables import decoding
from siltstone.tables.decoding import ColumnDecoder, ColumnDecoding, inferred_type
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory


def decoded(decoder: ColumnDecoder, *values: bytes | None) -> list[Any]:
    """The values as a task decodes them, after the way to it."""
    decoder = pickle.loads(pickle.dumps(decoder))
    raw = pa.array([b"sliced off", *values], pa.binary())[1:]
    offsets = np.arange(100, 100 + len(values))
    column = ColumnDecoding("value", decoder).decoded(raw, offsets, TopicPartition("t", 3))
    assert column.type == decoder.arrow_type()
    column.validate(full=True)
    return column.to_pylist()


def refuses(make: Any, *values: bytes, about: str = "") -> None:
    """Each value is an error that names its offset, or null where that is asked for; its neighbours stay.

    ``about``: how the cause begins."""
    form = type(make("raise")).__name__
    for value in values:
        with raises_error(
            UndecodableValueError,
            path="t-3",
            about=f"offset 101: the value cannot be decoded as {form}: {about}",
        ):
            decoded(make(on_error="raise"), None, value)
        assert decoded(make(on_error="null"), value, None) == [None, None]


# JSON.

EVENT = pa.schema(
    {
        "id": pa.int32(),
        "big": pa.int64(),
        "at": pa.timestamp("ms", "UTC"),
        "price": pa.decimal128(9, 2),
        "tags": pa.list_(pa.string()),
        "by": pa.struct({"name": pa.string()}),
        "counts": pa.map_(pa.string(), pa.int16()),
        "raw": pa.binary(),
        "odd-name": pa.bool_(),
    }
)


def test_json_has_the_types_of_its_schema() -> None:
    value = (
        b'{"id":7,"big":9007199254740993,"at":"2026-01-02T03:04:05.678Z","price":"12.50","tags":["a",null],'
        b'"by":{"name":"x","skipped":[1]},"counts":{"a":1,"b":null},"raw":"AAE=","odd-name":true,"more":1}'
    )
    (row, empty, null) = decoded(st.Json(schema=EVENT), value, b"{}", b"null")
    assert row == {
        "id": 7,
        "big": 9007199254740993,
        "at": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "price": Decimal("12.50"),
        "tags": ["a", None],
        "by": {"name": "x"},
        "counts": [("a", 1), ("b", None)],
        "raw": b"\0\1",
        "odd-name": True,
    }
    assert empty == dict.fromkeys(EVENT.names) and null is None
    assert decoded(st.Json(schema=pa.string()), b'"key"', None) == ["key", None]
    assert decoded(st.Json(schema=pa.uint64()), b"%d" % (2**64 - 1)) == [2**64 - 1]


def test_json_that_does_not_fit_is_refused() -> None:
    def make(on_error: str) -> st.Json:
        return st.Json(schema=EVENT, on_error=on_error)

    refuses(make, b"", b"{", b'{"id":7', b'{"id":7}x', b"\xff", b'{"id":"\xff"}', b'"x"', b"[]", b"1")
    refuses(make, b'{"id":1.5}', b'{"id":2147483648}', b'{"id":true}', about="Expected `int")
    refuses(make, b'{"big":1e400}', about="Number out of range")
    refuses(make, b'{"price":"x"}', b'{"price":1234567.891}', b'{"price":"1e999999999"}', b'{"price":"nan"}')
    refuses(make, b'{"counts":{"a":99999}}', b'{"tags":[1]}', b'{"raw":"?"}', b'{"at":"yesterday"}')
    deep = 100_000
    refuses(make, b"[" * deep, b'{"more":' * deep, b'{"more":' + b"[" * deep + b"]" * deep + b"}")
    for number in (2**64, -1, 10**400):
        refuses(lambda on_error: st.Json(schema=pa.uint64(), on_error=on_error), b"%d" % number)


def test_types_that_json_has_no_values_for_are_refused() -> None:
    for bad in (pa.schema({"a": pa.list_(pa.duration("s"))}), pa.map_(pa.int32(), pa.string())):
        with raises_error(UsageError, about="JSON has no values", advice="another type"):
            st.Json(schema=bad).compile()
    with raises_error(UsageError, about="not known yet", advice="st.Json(schema="):
        st.Json().arrow_type()


def test_names_and_types_are_inferred() -> None:
    values = [
        b'{"a":1,"n":null,"e":{}}',
        b"not json",
        b"[" * 10_000,
        b'{"a":1.5,"l":[{"x":true},{"y":"s"}],"n2":null}',
    ]
    assert inferred_type(values) == pa.struct(
        {
            "a": pa.float64(),
            "n": pa.string(),
            "l": pa.list_(pa.struct({"x": pa.bool_(), "y": pa.string()})),
            "n2": pa.string(),
        }
    )
    empty_below = b'{"a":{"b":{"c":{}}},"l":[{}],"m":[[]],"x":[{"y":{},"z":1}]}'
    assert inferred_type([empty_below]) == pa.struct(
        {"m": pa.list_(pa.list_(pa.string())), "x": pa.list_(pa.struct({"z": pa.int64()}))}
    )
    with raises_error(UsageError, about="JSON at $.a[].b is int64", advice="st.Json(schema="):
        inferred_type([b'{"a":[{"b":1},{"b":"x"}]}'])
    for levels in (decoding._MAX_LEVELS + 1, 600):  # msgspec itself refuses only still deeper values
        nested = b'{"a":' * levels + b"1" + b"}" * levels
        assert inferred_type(
            [nested, b'{"b":1}', b'{"a":' + b"[" * levels + b"]" * levels + b"}"]
        ) == pa.struct({"b": pa.int64()})
        assert decoded(st.Json(schema=pa.schema({"b": pa.int64()})), nested) == [{"b": None}]
    for empty in ([], [b"x"], [b"null"]):
        with raises_error(UsageError, about="no JSON to infer", advice="st.Json(schema="):
            inferred_type(empty)
    assert inferred_type([b"1"] * decoding.SAMPLE_VALUES + [b'"x"']) == pa.int64()


def test_few_values_are_objects_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SLICE_ROWS", 3)
    monkeypatch.setattr(decoding, "SLICE_BYTES", 10)
    raw = pa.array([b"x", b"1" * 30, *[b"12345"] * 5, None, None, None, None, b"1"], pa.binary())[1:]
    found = list(decoding._slices(raw))
    assert found == [(0, 1), (1, 3), (3, 5), (5, 8), (8, 11)]
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]


# Avro.

USER: dict[str, Any] = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "also", "type": "Kind"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}
ANNA = {
    "name": "anna",
    "age": 7,
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "kind": "A",
    "also": "B",
    "price": Decimal("1.25"),
    "id": "0b6e2c2e-8a37-4f58-9a39-1b6f5a0f0a11",
    "tags": ["x", "y"],
    "counts": {"k": 1},
    "hash": b"\1\2",
    "time": 5,
}


def avro(schema: Any, value: Any, number: int = 7) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">BI", 0, number) + out.getvalue()


def plain(schema: Any) -> Any:
    """The schema without the logical types that fastavro's writer wants objects of its own for."""
    fields = [
        {
            **field,
            "type": "string"
            if field["name"] == "id"
            else "int"
            if field["name"] == "time"
            else field["type"],
        }
        for field in schema["fields"]
    ]
    return {**schema, "fields": fields}


def test_avro_with_the_schema_of_its_id(tmp_path: Path) -> None:
    (tmp_path / "user.avsc").write_text(json.dumps(USER))
    older = {"type": "record", "name": "User", "namespace": "shop", "fields": USER["fields"][2:]}
    newest = {**USER, "fields": [{"name": "name", "type": "string", "default": "?"}, *USER["fields"][1:]]}
    decoder = st.Avro(schemas={7: tmp_path / "user.avsc", 3: older, 9: newest})
    (tmp_path / "user.avsc").unlink()
    row, old = decoded(decoder, avro(plain(USER), ANNA), avro(plain(older), ANNA, 3))
    assert row == {**ANNA, "counts": [("k", 1)]}
    assert old == {**row, "name": "?", "age": None}
    assert decoded(st.Avro(schemas={1: "string"}), avro("string", "key", 1)) == ["key"]


def test_avro_that_is_damaged_or_hostile_is_refused() -> None:
    def make(on_error: str) -> st.Avro:
        return st.Avro(schemas={7: USER}, on_error=on_error)

    whole = avro(plain(USER), ANNA)
    refuses(make, *(whole[:size] for size in range(0, len(whole), 7)))
    refuses(make, whole + b"\0", about="1 bytes follow")
    refuses(make, whole[:1] + b"\0\0\0\x08" + whole[5:], about="no schema was passed for its schema id 8")
    refuses(make, b"\1" + whole[1:], about="it does not begin with Confluent's header")
    huge = b"\0\0\0\0\7" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # a length of 2^63 - 1

    def strings(on_error: str) -> st.Avro:
        return st.Avro(schemas={7: {"type": "array", "items": "string"}}, on_error=on_error)

    refuses(strings, huge, huge + b"\2a", b"\0\0\0\0\7" + b"\xff" * 60, b"\0\0\0\0\7\2\1a")
    refuses(lambda on_error: st.Avro(schemas={7: "bytes"}, on_error=on_error), huge, b"\0\0\0\0\7\1a")


def test_avro_schemas_that_have_no_column_or_no_bounds_are_refused(tmp_path: Path) -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    nothing = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    for schema, about in (
        (node, "recursive: N"),
        (["int", "string"], "union of several"),
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "array", "items": nothing}, "take no bytes"),
        ({"type": "fixed", "name": "F", "size": 0}, "no bytes"),
        ({"type": "nonsense"}, "not an Avro schema"),
        (deep, "levels deep"),
    ):
        with raises_error(UsageError, about=about, advice=""):
            st.Avro(schemas={7: schema}).arrow_type()
    (tmp_path / "bad.avsc").write_text("{")
    with raises_error(UsageError, path=tmp_path / "bad.avsc", about="not JSON", advice=".avsc"):
        st.Avro(schemas={7: tmp_path / "bad.avsc"})
    with raises_error(UsageError, about="no schemas", advice="user.avsc"):
        st.Avro(schemas={})


# Protobuf.


def field(name: str, number: int, kind: str, label: str = "OPTIONAL", of: str = "") -> Any:
    made = descriptor_pb2.FieldDescriptorProto(name=name, number=number, type_name=of or None)
    made.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
    made.label = getattr(descriptor_pb2.FieldDescriptorProto, f"LABEL_{label}")
    return made


@pytest.fixture(scope="module")
def descriptors() -> bytes:
    """shop.User, with a nested message, a map, an enum and a time; shop.Node, which contains itself."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    user = file.message_type.add(name="User")
    user.field.extend(
        [
            field("name", 1, "STRING"),
            field("age", 2, "UINT32"),
            field("total", 3, "UINT64"),
            field("at", 4, "MESSAGE", of=".google.protobuf.Timestamp"),
            field("kind", 5, "ENUM", of=".shop.Kind"),
            field("inner", 6, "MESSAGE", of=".shop.User.Inner"),
            field("all", 7, "MESSAGE", "REPEATED", of=".shop.User.Inner"),
            field("counts", 8, "MESSAGE", "REPEATED", of=".shop.User.CountsEntry"),
            field("raw", 9, "BYTES"),
            field("flags", 10, "BOOL", "REPEATED"),
        ]
    )
    user.nested_type.add(name="Inner").field.append(field("x", 1, "DOUBLE"))
    entry = user.nested_type.add(name="CountsEntry")
    entry.field.extend([field("key", 1, "STRING"), field("value", 2, "INT32")])
    entry.options.map_entry = True
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="GOOD", number=1)
    file.message_type.add(name="Node").field.append(field("next", 1, "MESSAGE", of=".shop.Node"))
    time = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time)
    return descriptor_pb2.FileDescriptorSet(file=[time, file]).SerializeToString()


def message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_protobuf_messages_are_structs(descriptors: bytes, tmp_path: Path) -> None:
    user = message_class(descriptors, "shop.User")(name="anna", age=2**32 - 1, total=2**64 - 1, kind=1)
    user.at.seconds, user.at.nanos = 1_767_312_000, 5_000
    user.counts["k"] = 3
    user.all.add(x=1.5)
    user.flags.extend([True, False])
    (tmp_path / "user.desc").write_bytes(descriptors)
    decoder = st.Protobuf(descriptors=tmp_path / "user.desc", message="shop.User")
    unknown = b"\x28\x63"  # kind = 99
    row, empty, other = decoded(decoder, user.SerializeToString(), b"", unknown)
    assert row == {
        "name": "anna",
        "age": 2**32 - 1,
        "total": Decimal(2**64 - 1),
        "at": datetime(2026, 1, 2, 0, 0, 0, 5, UTC),
        "kind": "GOOD",
        "inner": None,
        "all": [{"x": 1.5}],
        "counts": [("k", 3)],
        "raw": b"",
        "flags": [True, False],
    }
    assert empty["name"] == "" and empty["at"] is None and empty["kind"] == "NONE"
    assert other["kind"] == "99"
    framed = st.Protobuf(descriptors=descriptors, message="shop.User", has_header=True)
    for header in (b"\0\0\0\0\1\0", b"\0\0\0\0\1\2\0", b"\0\0\0\0\1\4\2\x80\1"):
        assert decoded(framed, header + user.SerializeToString()) == [row]


def test_protobuf_that_is_damaged_or_hostile_is_refused(descriptors: bytes) -> None:
    def make(on_error: str) -> st.Protobuf:
        return st.Protobuf(descriptors=descriptors, message="shop.User", on_error=on_error)

    def framed(on_error: str) -> st.Protobuf:
        return st.Protobuf(descriptors=descriptors, message="shop.User", has_header=True, on_error=on_error)

    huge = b"\x0a\xff\xff\xff\xff\x07"  # a name of 2 GiB
    late = b"\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x00"  # a time of 2^63 - 1 seconds
    refuses(make, b"\x0a", b"\x0a\x05ab", huge, b"\xff" * 30, b"\x0a\x01\xff", late)
    deep = b""
    for _ in range(300):
        deep = b"\x0b" + deep + b"\x0c"  # groups of an unknown field
    refuses(make, deep)
    refuses(
        framed, b"", b"\0\0\0\0\1", b"\1\0\0\0\1\0", b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff", b"\0\0\0\0\1\4"
    )
    refuses(framed, b"\0\0\0\0\1\xff\xff\3", about="Confluent's header has")


def test_protobuf_types_that_have_no_column_are_refused(descriptors: bytes) -> None:
    for message, given, about in (
        ("shop.Node", descriptors, "recursive"),
        ("shop.Nobody", descriptors, "no message 'shop.Nobody'"),
        ("shop.User", b"\xff\xff", "not a FileDescriptorSet"),
        ("shop.User", b"", "no message"),
    ):
        with raises_error(UsageError, about=about, advice=""):
            st.Protobuf(descriptors=given, message=message).arrow_type()


# In tables.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "kafka").mkdir()
    records = [
        Rec(offset=at, key=b'"k%d"' % (at % 2), value=None if at == 2 else b'{"n":%d}' % at)
        for at in range(6)
    ]
    return log_directory(tmp_path / "kafka", {"t-0": {0: [batch(records)]}})


def test_exports_have_typed_columns(root: Path, tmp_path: Path) -> None:
    decode = {"value": st.Json(), "key": st.Json(schema=pa.string())}
    st.export(root, tmp_path / "all", topic="t", decode=decode)
    st.export(root, tmp_path / "latest", topic="t", decode=decode, view="latest", columns=["value", "key"])
    table = pq.read_table(tmp_path / "all")
    assert table["value"].to_pylist() == [None if at == 2 else {"n": at} for at in range(6)]
    assert table["key"].to_pylist() == [f"k{at % 2}" for at in range(6)]
    assert pq.read_table(tmp_path / "latest").to_pylist() == [
        {"value": {"n": 4}, "key": "k0"},
        {"value": {"n": 5}, "key": "k1"},
    ]
    (path,) = (tmp_path / "all").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    by_path = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert by_path["value.n"].statistics.max == 5  # so that readers skip row groups by it


def test_nothing_is_left_where_a_value_cannot_be_decoded(root: Path, tmp_path: Path) -> None:
    bad = st.Json(schema=pa.schema({"n": pa.string()}))
    with raises_error(
        UndecodableValueError, path="t-0", about="offset 0: the value", advice="on_error='null'"
    ):
        st.export(root, tmp_path / "out", topic="t", decode=bad, columns=["value"])
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"decode": {"headers": st.Json()}}, "no column 'headers'"),
        ({"decode": "json"}, "no decoder"),
        ({"decode": st.Json(on_error="skip")}, "on_error='skip'"),
        ({"decode": st.Json(), "table": "batches"}, "not all rows are records"),
        ({"decode": st.Json(), "bad_batches": "quarantine"}, "not all rows are records"),
    ],
    ids=str,
)
def test_decode_that_cannot_be_is_refused(
    root: Path, tmp_path: Path, arguments: dict[str, Any], about: str
) -> None:
    with raises_error(UsageError, about=about, advice=""):
        st.export(root, tmp_path / "out", topic="t", **arguments)


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [
        ("deltalake", "siltstone.tables.lakes.delta", "siltstone[delta]"),
        ("pyiceberg", "siltstone.tables.lakes.iceberg", "siltstone[iceberg]"),
        ("fastavro", "siltstone.tables.avro", "siltstone[decode]"),
        ("google.protobuf", "siltstone.tables.protobuf", "siltstone[decode]"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((library, module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=extra.replace("[", r"\[")) as raised:
        __import__(module)
    assert raised.value.name == library


def test_the_package_and_tables_load_none_of_these_libraries() -> None:
    program = (
        "import sys, siltstone as st; st.Json, st.export; import siltstone.tables.lakes.export; "
        "names = ('deltalake', 'pyiceberg', 'fastavro', 'google.protobuf'); "
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
