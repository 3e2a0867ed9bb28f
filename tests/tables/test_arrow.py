"""Arrow tables against the twin's records: types, pruning, nulls, headers, sizes, latest records."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.clock import ManualClock
from siltstone.base.errors import CorruptRecordError, LedgerError, OffsetOutOfRangeError, UsageError
from siltstone.compaction import latest as latest_module
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.runtime.embedded import Log
from siltstone.tables.arrow import COLUMNS, bytes_array, schema, to_arrow, to_batches
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.errors import raises_error
from tests.support.golden_sets import case_names, legacy_names, read_records
from tests.support.log.views import FixedLog, entries_of, random_segments, view_of, write_segments
from tests.support.records import twin
from tests.support.thoroughness import examples, few, share

UNCOMMITTED = "read_uncommitted"


def log_of(tmp_path: Path, *batches: bytes) -> FixedLog:
    return FixedLog(view_of(write_segments(tmp_path / "topic-0", {0: batches})))


def rows_with_ms(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times as ms, since Python's datetime does not reach as far."""
    at = table.schema.get_field_index("timestamp")
    if at >= 0:
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    return table.to_pylist()


def rows_of(directory: Path, control: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """The rows that the table must have, by the plain decoder."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "topic",
            "partition": 0,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "headers": [{"key": key.decode(), "value": value} for key, value in record.headers] or None,
        }
        for _, entry in entries_of(directory)
        for record in entry.records
        if record.offset not in control
    ]


def without(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    binary, text, number = types.BinaryType(), types.StringType(), types.IntegerType()
    header = types.StructType().add("key", text).add("value", binary)
    kafka = types.StructType().add("key", binary).add("value", binary).add("topic", text)
    kafka = kafka.add("partition", number).add("offset", types.LongType())
    kafka = kafka.add("timestamp", types.TimestampType()).add("timestampType", number)
    kafka = kafka.add("headers", types.ArrayType(header))
    assert schema(include_headers=True).equals(to_arrow_schema(kafka, timezone="UTC"), check_metadata=True)
    assert schema().names == list(COLUMNS[:-1])


@pytest.mark.random
@pytest.mark.parametrize("batch_bytes", few([(1,), (700,), (3_000,), (1 << 23,)], 2))
def test_golden_logs_have_the_records_of_the_plain_decoder(golden: Path, batch_bytes: int) -> None:
    kinds = set()
    for name in [*legacy_names(golden), *share(case_names(golden), 9)]:
        log = FixedLog(view_of(golden / name / "before"))
        batches = to_batches(log, include_headers=True, isolation=UNCOMMITTED, batch_bytes=batch_bytes)
        table = pa.Table.from_batches(batches, schema(include_headers=True))
        table.validate(full=True)
        kinds |= set(table["timestampType"].to_pylist())
        control = frozenset(control_offsets(golden / name / "records_before.jsonl"))
        assert rows_with_ms(table.drop_columns("timestampType")) == rows_of(
            golden / name / "before", control
        ), name
    assert kinds == {-1, 0, 1}


def control_offsets(listing: Path) -> set[int]:
    offsets, inside = set(), False
    for line in read_records(listing):
        if line["t"] == "batch":
            inside = line.get("isControl", False)
        elif line["t"] == "rec" and inside:
            offsets.add(line["offset"])
    return offsets


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 25), st.sampled_from([1, 300, 1 << 20]), st.data())
def test_ranges_and_the_latest_of_each_key(seed: int, count: int, size: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_segments(Path(folder), random_segments(random.Random(seed), count), 200)
        log = FixedLog(view_of(directory))
        start = data.draw(st.integers(log.view.log_start_offset, log.view.log_end_offset))
        end = data.draw(st.integers(start, log.view.log_end_offset))
        inside = [r for _, entry in entries_of(directory) for r in entry.records if start <= r.offset < end]
        batches = list(to_batches(log, start, end, batch_bytes=size, columns=["offset", "key"]))
        table = pa.Table.from_batches(batches, schema(["offset", "key"]))
        assert table.to_pylist() == [{"offset": r.offset, "key": r.key} for r in inside]
        last = {r.key: r for r in inside if r.key is not None}
        latest = to_arrow(log, start, end, view="latest", columns=["key", "value", "offset"])
        assert latest.to_pylist() == [
            {"key": r.key, "value": r.value, "offset": r.offset}
            for r in sorted(last.values(), key=lambda r: r.offset)
        ]


def keyed(tmp_path: Path) -> FixedLog:
    """a at 0 and 3, b at 1 and deleted at 4, no key at 2, c deleted at 5 and back at 6."""
    values = [(b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"a", b"3"), (b"b", None), (b"c", None), (b"c", b"")]
    records = [Rec(offset=at, key=key, value=value) for at, (key, value) in enumerate(values)]
    return log_of(tmp_path, batch(records[:4]), batch(records[4:]))


@pytest.mark.parametrize("collected", [16, 64, 1 << 20])
def test_tombstones_and_keyless_records_in_the_latest_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collected: int
) -> None:
    monkeypatch.setattr(latest_module.last_offsets_of_keys, "__defaults__", (collected,))
    log = keyed(tmp_path)
    assert to_arrow(log, view="latest")["offset"].to_pylist() == [3, 6]
    assert to_arrow(log, view="latest", tombstones="keep")["offset"].to_pylist() == [3, 4, 6]
    assert to_arrow(log, end=4, view="latest")["offset"].to_pylist() == [1, 3]
    assert to_arrow(log)["value"].to_pylist() == [b"0", b"1", b"2", b"3", None, None, b""]


def test_read_committed_is_the_default(golden: Path) -> None:
    log = FixedLog(view_of(golden / "txn" / "before"))
    every, committed = to_arrow(log, isolation=UNCOMMITTED), to_arrow(log)
    assert 0 < len(committed) < len(every)
    latest = to_arrow(log, view="latest", tombstones="keep")["key"].to_pylist()
    assert set(latest) == {key for key in committed["key"].to_pylist() if key is not None}


def test_a_table_has_the_requested_columns_in_their_order(tmp_path: Path) -> None:
    log = log_of(tmp_path, one(0, "a"))
    assert to_arrow(log, columns=["timestampType", "value"]).schema.names == ["timestampType", "value"]
    assert to_arrow(log, columns=["value"], include_headers=True).schema.names == ["value", "headers"]
    assert to_arrow(log, columns=[]).num_rows in (0, 1)
    for wrong in (["keys"], ["key", "key"]):
        with raises_error(UsageError, about=", ".join(wrong), advice=", ".join(COLUMNS)):
            to_batches(log, columns=wrong)
    for options in ({"view": "all"}, {"tombstones": "no"}):
        with raises_error(UsageError, about=repr(*options.values()), advice="log or latest or compacted"):
            to_batches(log, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="isolation"):
        to_batches(log, isolation="dirty")


def test_headers_with_nulls_and_without_utf8(tmp_path: Path) -> None:
    headers: list[tuple[tuple[bytes, bytes | None], ...]] = [
        (),
        ((b"a", b"1"), (b"", None)),
        ((b"\xff\xfe", b""),),
        (),
    ]
    records = [Rec(offset=at, key=b"k", headers=record_headers) for at, record_headers in enumerate(headers)]
    table = to_arrow(log_of(tmp_path, batch(records)), columns=["headers"])
    table.validate(full=True)
    assert table["headers"].to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "", "value": None}],
        [{"key": "\ufffd\ufffd", "value": b""}],
        None,
    ]


def test_a_compressed_batch_becomes_arrow_batches_of_the_requested_size(tmp_path: Path) -> None:
    records = [Rec(offset=at, key=None, value=bytes(1000)) for at in range(2000)]
    log = log_of(tmp_path, batch(records, codec=twin.ZSTD))
    batches = list(to_batches(log, batch_bytes=100_000))
    assert [at for arrow_batch in batches for at in arrow_batch["offset"].to_pylist()] == list(range(2000))
    assert max(arrow_batch.nbytes for arrow_batch in batches) < 150_000
    assert all(arrow_batch["key"].null_count == len(arrow_batch) for arrow_batch in batches)


def test_times_out_of_arrows_range_are_the_nearest_in_it(tmp_path: Path) -> None:
    times = [-1, 0, (1 << 62), -(1 << 62)]
    records = [Rec(offset=at, key=b"k", timestamp=time) for at, time in enumerate(times)]
    table = to_arrow(log_of(tmp_path, *(batch([record]) for record in records)))
    largest = ((1 << 63) - 1) // 1000 * 1000
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [-1000, 0, largest, -largest]


def test_a_table_is_of_the_log_as_it_was_at_the_call(tmp_path: Path) -> None:
    log = log_of(tmp_path, one(0, "a"), one(1, "b"))
    batches = to_batches(log)
    log.view = log.view._replace(log_start_offset=2)
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == [0, 1]
    with raises_error(OffsetOutOfRangeError):
        to_arrow(log, 0)
    empty = to_arrow(log)
    assert empty.num_rows == 0 and empty.schema == schema()


def test_damage_is_an_error_after_the_batches_before_it(tmp_path: Path) -> None:
    bad = bytearray(one(1, "b"))
    bad[-1] ^= 1
    log = log_of(tmp_path, one(0, "a"), bytes(bad))
    batches = to_batches(log)
    assert next(batches)["offset"].to_pylist() == [0]
    with pytest.raises(CorruptRecordError, match="checksum"):
        next(batches)


def test_without_pyarrow_the_error_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import siltstone.log.reading\n"
        "try:\n    import siltstone.tables.arrow\nexcept ImportError as error:\n    print(error)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'siltstone[arrow]'" in completed.stdout


def test_the_kernels_gather_what_plain_python_gathers() -> None:
    source = np.random.default_rng(5)
    data = source.integers(0, 256, 500).astype(np.uint8)
    start = source.integers(0, 400, 300).astype(np.int32)
    size = source.integers(-1, 100, 300).astype(np.int32)
    want = [None if n < 0 else data[s : s + n].tobytes() for s, n in zip(start, size, strict=True)]
    assert bytes_array(data, start, size).to_pylist() == want
    assert bytes_array(data, start[:0], size[:0]).to_pylist() == []


# The compacted view


def test_the_compacted_view_is_the_ledger_and_then_the_log(tmp_path: Path) -> None:
    with Log(tmp_path / "users-0", upkeep=False) as log:
        for value in (b"1", b"2", b"3"):
            log.append(value, key=b"a")
            log.append(value, key=b"b")
        log.append(None, key=b"b")
        log.flush()
        assert to_arrow(log, view="compacted").equals(to_arrow(log)), "never compacted: the log itself"
        TwoPhaseCompactor(InProcessCompactionEngine(), clock=ManualClock(0)).compact(log.log)
        log.append(b"4", key=b"c")
        assert to_arrow(log, view="compacted", columns=["offset", "value"]).to_pylist() == [
            {"offset": 4, "value": b"3"},
            {"offset": 7, "value": b"4"},
        ]
        assert to_arrow(log, 5, view="compacted")["offset"].to_pylist() == [7]
        assert to_arrow(log, end=7, view="compacted")["offset"].to_pylist() == [4]
        assert to_arrow(log)["offset"].to_pylist() == list(range(8))
        (log.directory / ".compacted" / "ledger-0.json").unlink()
        with raises_error(LedgerError, path=log.directory / ".compacted" / "ledger-0.json"):
            to_arrow(log, view="compacted")
    with raises_error(UsageError, path="topic-0", about="compacted view"):
        to_arrow(log_of(tmp_path), view="compacted")
