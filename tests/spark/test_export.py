"""``st.export`` in tasks of a session: the same files as in one process, and nothing where a task fails."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.base.errors import EngineError, UsageError
from siltstone.spark import export as exporting
from siltstone.spark import read as reading
from siltstone.tables import splits
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory, rows, table_of

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
    made = siltstone.export(root, target, "parquet", spark=session, max_partition_bytes="1k", **options)
    expected = rows(table_of(root, **options))
    assert rows(pq.read_table(target)) == expected and made.records == len(expected)
    assert made.files >= 2
    assert session.read.parquet(str(target)).count() == len(expected)


def test_nothing_is_left_where_a_task_fails(session: SparkSession, root: Path, tmp_path: Path) -> None:
    damaged = root / "t-0" / f"{0:020}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:100] + b"\xff" + data[101:])
    with raises_error(EngineError, about="checksum does not match"):
        siltstone.export(root, tmp_path / "lake", spark=session)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


def test_a_session_of_connect_is_refused(
    session: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "is_connect", lambda _: True)
    with raises_error(UsageError, about="Spark Connect", advice="session of this program's own"):
        siltstone.export(root, tmp_path / "lake", spark=session)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]
