"""What ``docs/tables.md`` shows of DuckDB and Polars, where they are installed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.tables.arrow import schema, to_batches
from tests.support.cleaning.logs import Rec, batch
from tests.support.tables.tables import log_directory

COLUMNS = ["key", "value", "timestamp"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    records = [Rec(offset=at, key=b"k%d" % (at % 3), value=b"%d" % at, timestamp=at) for at in range(30)]
    return log_directory(tmp_path / "kafka", {"users-0": {0: [batch(records)]}})


def test_duckdb_reads_a_stream_of_batches_and_an_export(root: Path, tmp_path: Path) -> None:
    import duckdb

    log = siltstone.open(root)["users", 0]
    stream = to_batches(log, columns=COLUMNS)
    users = pa.RecordBatchReader.from_batches(schema(COLUMNS), stream)  # noqa: F841  found by its name
    assert duckdb.sql("SELECT count(*), max(epoch_ms(timestamp)) FROM users").fetchall() == [(30, 29)]
    siltstone.export(root, tmp_path / "out", "parquet", "users", view="latest")
    query = f"SELECT \"offset\" FROM '{tmp_path}/out/*.parquet' ORDER BY ALL"
    assert duckdb.sql(query).fetchall() == [(27,), (28,), (29,)]


def test_polars_reads_a_table_and_an_export(root: Path, tmp_path: Path) -> None:
    import polars

    log = siltstone.open(root)["users", 0]
    frame = polars.from_arrow(siltstone.to_arrow(log, view="latest", columns=COLUMNS))
    assert frame["value"].to_list() == [b"27", b"28", b"29"]
    siltstone.export(root, tmp_path / "out", "parquet", "users", keys="k1")
    exported = polars.scan_parquet(f"{tmp_path}/out/*.parquet").collect()
    assert exported["offset"].to_list() == list(range(1, 30, 3))
