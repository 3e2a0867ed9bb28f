"""``st.read``: the rows of ``format("siltstone")``, by tasks that Spark's own data source has no part in."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import siltstone
from siltstone.base.clock import ManualClock
from siltstone.base.errors import EngineError, UnknownTopicError, UsageError
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.spark import read as reading
from siltstone.spark.rows import rows_of
from siltstone.tables import latest, splits
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan_stages, schema_of
from tests.support.cleaning.logs import NOW, Rec, batch, one
from tests.support.errors import raises_error
from tests.support.log.views import random_segments, write_segments
from tests.support.tables.tables import log_directory, rows, table_of
from tests.support.thoroughness import examples, few

pytestmark = pytest.mark.spark


def segment(first: int) -> list[bytes]:
    each = [
        Rec(
            offset=at,
            key=None if at % 11 == 0 else b"key %d" % (at % 7),
            value=None if at % 5 == 0 else b"value %d" % at,
            timestamp=1_700_000_000_000 + at,
            headers=((b"h", b"%d" % at),) if at % 3 == 0 else (),
        )
        for at in range(first, first + 60)
    ]
    return [batch(each[:30]), batch(each[30:])]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two topics of 180 and 120 records, in segments of 60; the ledger of the first has 120 of them."""
    segments = {first: segment(first) for first in (0, 60, 120)}
    log_directory(tmp_path, {"users-0": segments, "orders-0": {0: segment(0), 60: segment(60)}})
    with ReadOnlyLogs([tmp_path], clock=ManualClock(NOW)) as logs:
        compactor = TwoPhaseCompactor(InProcessCompactionEngine(1), clock=ManualClock(NOW))
        compactor.compact(logs["users", 0], order="offset", retain_null_key=False)
    return tmp_path


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks find the last records of all logs, in several buckets, and splits are small."""
    monkeypatch.setattr(reading, "IN_PROCESS_BYTES", 0)
    monkeypatch.setattr(latest, "_BUCKET_BYTES", 1000)
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"include_headers": True, "min_partitions": 7},
    {"columns": ["timestamp", "offset"], "max_records_per_partition": 25},
    {"include_batch_metadata": True, "isolation": "read_uncommitted"},
    {"view": "latest"},
    {"view": "latest", "tombstones": "keep", "max_partition_bytes": "1k", "include_headers": True},
    {"view": "latest", "as_of_offset": 70, "fail_on_data_loss": False},
    {"as_of_timestamp": 1_700_000_000_040},
    {"view": "compacted", "subscribe": "users"},
    {"starting_offsets": {"users": {"0": 50}}, "subscribe": "users"},
    {"bad_batches": "quarantine"},
    {"table": "batches"},
    {"table": "checkpoints"},
]


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("options", few([(options,) for options in OPTIONS], 1, 5, 8, 11), ids=str)
def test_the_rows_are_those_of_the_data_source(
    session: SparkSession, root: Path, options: dict[str, Any]
) -> None:
    ours = siltstone.read(session, root, **options)
    texts = {reading_name(name): reading_text(value) for name, value in options.items()}
    theirs = session.read.format("siltstone").options(**texts).load(str(root))
    assert ours.schema == theirs.schema
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


def reading_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def reading_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).replace("'", '"')


def test_small_logs_need_no_shuffle_for_their_last_records(session: SparkSession, root: Path) -> None:
    found = siltstone.read(session, root, "users", view="latest")
    assert "Exchange" not in found._jdf.queryExecution().toString()
    assert rows(found.toArrow()) == rows(table_of(root, subscribe="users", view="latest"))


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_times_do_not_depend_on_the_sessions_zone(session: SparkSession, root: Path, zone: str) -> None:
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = siltstone.read(session, root, "users", columns=["timestamp"], offsets=(5, 6))
        (row,) = frame.selectExpr("unix_millis(timestamp) AS ms").collect()
    finally:
        session.conf.set("spark.sql.session.timeZone", before)
    assert row.ms == 1_700_000_000_005


def test_arguments_choose_records(session: SparkSession, root: Path) -> None:
    frame = siltstone.read(
        session, root, offsets=(20, 90), timestamps=(None, 1_700_000_000_080), keys=["key 1", b"key 2"]
    )
    expected = [at for at in range(20, 80) if at % 7 in (1, 2) and at % 11]
    assert sorted(row.offset for row in frame.where("topic = 'users'").collect()) == expected
    assert siltstone.read(session, root, partitions=[0], keys="none").count() == 0
    assert siltstone.read(session, root, "orders", offsets=(200, None)).collect() == []


def test_what_is_wrong_is_raised_at_the_call(session: SparkSession, root: Path) -> None:
    with raises_error(UnknownTopicError, path="nobody", advice="topics"):
        siltstone.read(session, root, "nobody")
    with raises_error(UsageError, about="startingOfsets", advice="startingOffsets"):
        siltstone.read(session, root, starting_ofsets="earliest")
    with raises_error(UsageError, about="not a start and an end", advice="offsets=(start, end)"):
        siltstone.read(session, root, offsets=7)  # type: ignore[arg-type]


def test_a_dataframe_is_the_log_as_it_was_at_the_call(session: SparkSession, root: Path) -> None:
    frame = siltstone.read(session, root, "users", columns=["offset"])
    path = root / "users-0" / f"{120:020}.log"
    path.write_bytes(path.read_bytes() + one(180, "new"))
    assert frame.count() == 180
    assert siltstone.read(session, root, "users", columns=["offset"]).count() == 181


def replaced(path: Path) -> None:
    """Another file of the same name, with other times, as a cleaning leaves it."""
    data = path.read_bytes()
    path.rename(path.with_suffix(".deleted"))
    path.write_bytes(data)


@pytest.mark.usefixtures("distributed")
def test_a_log_that_changed_since_the_call_is_refused_where_a_view_was_planned(
    session: SparkSession, root: Path
) -> None:
    plain = siltstone.read(session, root, "users")
    views = [
        siltstone.read(session, root, "users", view="latest"),
        siltstone.read(session, root, "users", as_of=100),
    ]
    replaced(root / "users-0" / f"{60:020}.log")
    assert plain.count() == 180
    for view in views:
        with pytest.raises(PySparkException, match="run the query again"):
            view.count()
    for path in (root / "users-0").glob(f"{0:020}.*"):
        path.unlink()
    with pytest.raises(PySparkException, match="were planned, but the log has"):
        plain.count()


@pytest.mark.parametrize(
    "message",
    [
        "No module named 'siltstone'",
        "Can't get attribute '_probe_task' on <module 'siltstone.spark.read' from",
    ],
)
def test_a_session_whose_python_has_no_siltstone_is_refused(
    session: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def missing(batches: Any) -> Iterator[pa.RecordBatch]:
        raise ImportError(message)

    monkeypatch.setattr(reading, "_PROBED", set())
    monkeypatch.setattr(reading, "_probe_task", missing)
    with raises_error(EngineError, about="no Siltstone", advice="PYSPARK_PYTHON"):
        siltstone.read(session, root)


# The tasks of view=latest without Spark, on random logs.


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32),
    st.integers(1, 25),
    st.integers(1, 5),
    st.sampled_from([200, 1 << 20]),
)
def test_tasks_find_what_one_process_finds(seed: int, count: int, tasks: int, bucket_bytes: int) -> None:
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest, "_BUCKET_BYTES", bucket_bytes)
        patch.setattr(splits, "OPEN_COST_BYTES", 1)
        root = Path(folder)
        for name in ("t-0", "t-1", "u-0")[: source.randint(1, 3)]:
            write_segments(root / name, random_segments(source, count), 200)
        (root / ".kafka_cleanshutdown").touch()
        options = {"view": "latest", "maxPartitionBytes": "300", "tombstones": "keep"}
        parsed = ReadOptions.of({"path": str(root), **options})
        found = pa.Table.from_batches(in_tasks(parsed, tasks, source), schema_of(parsed))
        assert rows(found) == rows(table_of(root, **options))


def in_tasks(options: ReadOptions, tasks: int, source: random.Random) -> list[pa.RecordBatch]:
    """The batches of all tasks; each stage gets its rows in an order of its own."""
    planned = plan_stages(options, parallelism=tasks)
    key_plan = planned.key_plan
    assert key_plan is not None
    lists = np.array_split(np.arange(len(key_plan.file_splits)), tasks)
    numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(tasks)]
    entries = list(reading.extract_task(key_plan, [part.tolist() for part in lists], options, numbers))
    retained = [
        row
        for task in by_target(entries, tasks, source)
        for row in reading.merge_task(key_plan, planned.splits, task)
    ]
    return [
        found
        for task in by_target(retained, len(planned.splits), source)
        for found in reading.read_task(
            functools.partial(reading.retained_splits, planned.splits, key_plan.logs), options, task
        )
    ]


def by_target(batches: list[pa.RecordBatch], tasks: int, source: random.Random) -> list[list[pa.RecordBatch]]:
    mixed = [row.batch() for row in rows_of(source.sample(batches, len(batches)))]
    return [
        [one_row for one_row in mixed if one_row.column("target")[0].as_py() % tasks == number]
        for number in range(tasks)
    ]


def test_the_plan_names_the_path_and_the_options(
    session: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    siltstone.read(session, root, "users", view="latest").explain()
    assert f"siltstone {root} users view=latest" in capsys.readouterr().out
