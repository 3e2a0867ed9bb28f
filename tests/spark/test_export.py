"""``st.export`` in tasks of a session: the same files as in one process, and nothing where a task fails."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import siltstone
from siltstone.base.errors import EngineError, UsageError
from siltstone.spark import export as exporting
from siltstone.spark import read as reading
from siltstone.tables import splits
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory, rows, table_of
from tests.support.thoroughness import few

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    segments = {
        first: [
            batch(
                [Rec(offset=at, key=b"k%d" % (at % 7), value=b"v%d" % at) for at in range(first, first + 50)]
            )
        ]
        for first in (0, 50, 100)
    }
    return log_directory(tmp_path / "kafka", {"t-0": segments, "t-1": segments})


@pytest.mark.parametrize("options", [{}, {"view": "latest"}], ids=str)
def test_tasks_write_what_the_table_has(
    session: SparkSession,
    root: Path,
    tmp_path: Path,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)
    monkeypatch.setattr(reading, "IN_PROCESS_BYTES", 0)
    target = tmp_path / "lake"
    exported = siltstone.export(root, target, "parquet", spark=session, max_partition_bytes="1k", **options)
    expected = rows(table_of(root, **options))
    assert rows(pq.read_table(target)) == expected and exported.records == len(expected)
    assert exported.files >= 2
    assert session.read.parquet(str(target)).count() == len(expected)


def test_nothing_is_left_where_a_task_fails(session: SparkSession, root: Path, tmp_path: Path) -> None:
    damaged = root / "t-0" / f"{0:020}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:100] + b"\xff" + data[101:])
    with raises_error(EngineError, about="checksum does not match"):
        siltstone.export(root, tmp_path / "lake", spark=session)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


@pytest.mark.parametrize(("form", "view"), few([("delta", "latest"), ("iceberg", "log")], 1))
def test_tasks_bring_tables_up_to_date(
    session: SparkSession,
    root: Path,
    tmp_path: Path,
    form: str,
    view: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)
    monkeypatch.setattr(reading, "IN_PROCESS_BYTES", 0)
    target, arguments = tmp_path / "lake", {"view": view, "spark": session, "max_partition_bytes": "1k"}
    first = siltstone.export(root, target, form, "t", partitions=0, **arguments)
    exported = siltstone.export(root, target, form, "t", decode=None, **arguments)
    expected = table_of(root, view=view)
    assert first.records + exported.records == len(expected) and exported.files >= 1
    if form == "delta":
        table = DeltaTable(str(target)).to_pyarrow_table()
    else:
        table = StaticTable.from_metadata(str(target)).scan().to_arrow()
    assert rows(table.select(expected.schema.names).cast(expected.schema)) == rows(expected)
    assert siltstone.export(root, target, form, "t", **arguments).version == exported.version
    # A task that fails leaves the version and the files as they are.
    before = sorted(path.name for path in (target / "data").iterdir())
    for path in (root / "t-1").glob("*.log"):
        path.write_bytes(path.read_bytes()[:100] + b"\xff" + path.read_bytes()[101:])
    with raises_error(EngineError, about="checksum does not match"):
        siltstone.export(root, target, form, "t", mode="overwrite", **arguments)
    assert sorted(path.name for path in (target / "data").iterdir()) == before


def test_values_are_decoded_in_tasks(session: SparkSession, root: Path) -> None:
    segment = batch([Rec(offset=at, key=b"%d" % at, value=b'{"n":%d,"l":["x"]}' % at) for at in range(9)])
    log_directory(root, {"j-0": {0: [segment, batch([Rec(offset=9, key=b"9", value=b"{")])]}})
    frame = siltstone.read(
        session, root, "j", decode={"value": siltstone.Json(), "key": siltstone.Json()}, offsets=(0, 9)
    )
    assert frame.schema["value"].dataType.simpleString() == "struct<n:bigint,l:array<string>>"
    assert [row["key"] for row in frame.where("value.n > 6").select("key").collect()] == [7, 8]
    bad = siltstone.read(session, root, "j", decode=siltstone.Json())
    with pytest.raises(PySparkException, match="j-0: offset 9: the value cannot be decoded as Json"):
        bad.collect()
    null = siltstone.read(session, root, "j", decode=siltstone.Json(on_error="null"), columns=["value"])
    assert null.where("value IS NULL").count() == 1


def test_a_session_of_connect_is_refused(
    session: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "is_connect", lambda _: True)
    with raises_error(UsageError, about="Spark Connect", advice="session of this program's own"):
        siltstone.export(root, tmp_path / "lake", spark=session)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]
