"""The data source in a session: found by itself, in SQL and in a catalog, with filters pushed or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo

import siltstone as st
from siltstone.base.errors import UsageError
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.spark.source import BatchReader
from siltstone.tables.arrow import to_arrow
from siltstone.tables.options import ReadOptions
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory
from tests.support.thoroughness import few, share

pytestmark = pytest.mark.spark
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of 300 records each, in three segments; every fifth value is null, some have headers."""

    def segment(first: int) -> list[bytes]:
        records = [
            Rec(
                offset=at,
                key=b"key %d" % (at % 7),
                value=None if at % 5 == 0 else b"value %d" % at,
                timestamp=1_700_000_000_000 + at,
                headers=((b"h", b"%d" % at),) if at % 3 == 0 else (),
            )
            for at in range(first, first + 100)
        ]
        return [batch(records[:60]), batch(records[60:])]

    segments = {first: segment(first) for first in (0, 100, 200)}
    return log_directory(tmp_path_factory.mktemp("source"), {"users-0": segments, "users-1": segments})


@pytest.fixture
def damaged(root: Path, tmp_path: Path) -> Path:
    """The same with a wrong byte in the first batch of a partition."""
    shutil.copytree(root, tmp_path / "damaged")
    log = tmp_path / "damaged" / "users-0" / f"{0:020}.log"
    raw = log.read_bytes()
    log.write_bytes(raw[:100] + b"\xff" + raw[101:])
    return tmp_path / "damaged"


@pytest.fixture
def pushing(session: SparkSession) -> Iterator[None]:
    session.conf.set(PUSHDOWN, "true")
    yield
    session.conf.unset(PUSHDOWN)


def load(session: SparkSession, root: Path, **options: str) -> DataFrame:
    return session.read.format("siltstone").options(**options).load(str(root))


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_every_row_is_the_plain_readers(session: SparkSession, root: Path) -> None:
    frame = load(session, root, includeHeaders="true", minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    with ReadOnlyLogs([root]) as logs:
        expected = [
            row
            for topic_partition in logs
            for row in to_arrow(logs[topic_partition], include_headers=True).to_pylist()
        ]
    order = ("partition", "offset")
    rows = sorted(frame.toArrow().to_pylist(), key=lambda row: tuple(row[name] for name in order))
    assert rows == expected


def test_the_columns_are_those_of_sparks_kafka_source(session: SparkSession, root: Path) -> None:
    assert load(session, root, includeHeaders="true").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert load(session, root, columns="offset,timestamp").columns == ["offset", "timestamp"]


def test_counting_asks_for_no_column(session: SparkSession, root: Path) -> None:
    assert load(session, root).count() == 600
    assert load(session, root, columns="offset", startingOffsets='{"users":{"0":250,"1":-2}}').count() == 350


def test_in_sql_by_a_view_and_by_a_table_with_a_location(session: SparkSession, root: Path) -> None:
    session.sql(f"CREATE TEMPORARY VIEW users USING siltstone OPTIONS (path '{root}', view 'latest')")
    try:
        (row,) = session.sql("SELECT count(*) AS keys, max(offset) AS last FROM users").collect()
        assert (row.keys, row.last) == (12, 299)
    finally:
        session.sql("DROP VIEW users")
    session.sql(f"CREATE TABLE users_log USING siltstone LOCATION '{root}'")
    try:
        (row,) = session.sql("SELECT count(*) AS rows FROM users_log WHERE partition = 1").collect()
        assert row.rows == 300
        (row,) = session.sql("SELECT count(*) AS keys FROM users_log WITH (view 'latest')").collect()
        assert row.keys == 12
    finally:
        session.sql("DROP TABLE users_log")


def test_a_catalogs_table_keeps_the_options_it_was_made_with(session: SparkSession, root: Path) -> None:
    options = "view 'latest', columns 'partition,offset'"
    session.sql(f"CREATE TABLE last_users USING siltstone OPTIONS ({options}) LOCATION '{root}'")
    try:
        assert session.table("last_users").columns == ["partition", "offset"]
        assert places(session.table("last_users")) == places(load(session, root, view="latest"))
        (row,) = session.sql("SELECT count(*) AS rows FROM last_users WITH (view 'log')").collect()
        assert row.rows == 600
        with pytest.raises(AnalysisException, match="the option 'columns'"):
            session.sql("SELECT * FROM last_users WITH (columns 'key')").collect()
    finally:
        session.sql("DROP TABLE last_users")


def test_filters_are_right_where_spark_keeps_them(session: SparkSession, root: Path) -> None:
    """Nothing of ours sees them."""
    late = load(session, root).where("timestamp >= timestamp_millis(1700000000297L) and partition < 1")
    assert places(late) == [(0, 297), (0, 298), (0, 299)]


@pytest.mark.usefixtures("pushing")
def test_filters_are_right_where_they_are_pushed(session: SparkSession, root: Path) -> None:
    _filtered(session, root)


@pytest.mark.long
def test_all_filters_are_right_where_spark_keeps_them(session: SparkSession, root: Path) -> None:
    _filtered(session, root)


def _filtered(session: SparkSession, root: Path) -> None:
    frame = load(session, root)
    assert places(frame.where("partition = 1 and offset between 98 and 101")) == [
        (1, at) for at in range(98, 102)
    ]
    assert places(frame.where("offset in (5, 250) and topic = 'users'")) == [
        (0, 5),
        (0, 250),
        (1, 5),
        (1, 250),
    ]
    late = frame.where("timestamp >= timestamp_millis(1700000000297L) and partition < 1")
    assert places(late) == [(0, 297), (0, 298), (0, 299)]
    assert places(frame.where("topic = 'others' or offset > 400")) == []
    assert places(load(session, root, view="latest").where("offset < 298 and partition = 0"))[-1] == (0, 297)


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_read_less(session: SparkSession, root: Path) -> None:
    frame = load(session, root, minPartitions="6").where("partition = 1 and offset >= 200")
    assert frame.rdd.getNumPartitions() < load(session, root, minPartitions="6").rdd.getNumPartitions() + 1
    damaged = root / "users-0" / f"{0:020}.log"
    raw = damaged.read_bytes()
    damaged.write_bytes(raw[:100] + b"\xff" + raw[101:])
    try:
        assert frame.count() == 100
        with pytest.raises(PySparkException, match="checksum does not match"):
            load(session, root).count()
    finally:
        damaged.write_bytes(raw)


@pytest.mark.parametrize("column", ["topic", "partition", "offset"])
def test_a_filter_on_the_partition_of_a_commit_reads_the_log_of_all_commits(
    tmp_path: Path, column: str
) -> None:
    """``where topic = 'users'`` found no commits: the filter was applied to the log that has them, too."""
    root = log_directory(tmp_path, {"__consumer_offsets-0": {0: [one(at, "key") for at in range(3)]}})
    reader = BatchReader(ReadOptions.of({"path": str(root), "table": "consumerOffsets"}))
    reader.pushFilters([EqualTo((column,), "users" if column == "topic" else 5)])
    (split,) = reader.partitions()
    assert [(part.start, part.end) for part in split.value.file_splits] == [(0, 3)]


@pytest.mark.parametrize(
    ("options", "match"),
    few(  # the first two are refused where an unknown option is, which the next test has
        [
            ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
            ({"columns": "keys"}, "there are key, value"),
            ({"subscribe": "nobody"}, "nobody: no such topic"),
        ],
        2,
    ),
)
def test_what_is_wrong_is_said_in_our_words(
    session: SparkSession, root: Path, options: dict[str, str], match: str
) -> None:
    with pytest.raises(AnalysisException, match=match):
        load(session, root, **options).collect()


def test_a_schema_of_the_programs_own_is_refused_in_our_words(session: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException, match="the option 'columns'"):
        session.read.format("siltstone").schema("key string").load(str(root)).collect()


def message_of(query: Callable[[], object]) -> list[str]:
    """The lines of the error that a query ends with."""
    with pytest.raises(PySparkException) as raised:
        query()
    return str(raised.value).splitlines()


def test_an_error_is_our_line_without_a_traceback(
    session: SparkSession, root: Path, tmp_path: Path, damaged: Path
) -> None:
    # In a task: the first line is Spark's own for every Python worker, the next one is ours.
    frame = session.read.format("siltstone").load(str(damaged))
    frame.createOrReplaceTempView("damaged")
    file = damaged / "users-0" / f"{0:020}.log"
    error = f"siltstone.base.errors.CorruptRecordError: {file}: byte 0: checksum does not match"
    queries = (
        frame.collect,
        frame.toArrow,
        lambda: frame.write.parquet(str(tmp_path / "copy")),
        session.sql("SELECT count(*) FROM damaged").collect,
    )
    for query in share(queries, 3):
        assert message_of(query) == [
            "An exception was thrown from the Python worker:",
            error,
            "code: CORRUPT_RECORD",
        ]
    # While Spark plans a query: ours follows what Spark was about to do, in the first line.
    lines = message_of(lambda: load(session, root, startingOffsets='{"users":{"0":5000,"1":-2}}').collect())
    words = "siltstone.base.errors.OffsetOutOfRangeError: users-0: offset 5000 is outside 0 to 300"
    assert lines[0].startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to ") and words in lines[0]
    assert lines[1] == "code: OFFSET_OUT_OF_RANGE" and not any("Traceback" in line for line in lines)
    lines = message_of(lambda: load(session, root, vew="latest"))
    assert lines[0].endswith("siltstone.base.errors.UsageError: unknown option 'vew'; did you mean 'view'?")
    lines = message_of(lambda: frame.select("value").write.format("siltstone").mode("append").save(str(root)))
    assert "UsageError: the topic is missing; set the option topic" in lines[0], lines


def test_read_takes_all_directories_of_a_broker_and_lists_of_topics(
    session: SparkSession, stopped_broker: tuple[Path, Path]
) -> None:
    frame = st.read(session, stopped_broker, ["users", "ledger"], columns=["topic", "partition"])
    partitions = {(row.topic, row.partition) for row in frame.distinct().collect()}
    assert partitions == {("users", 0), ("ledger", 0), ("ledger", 1)}
    with raises_error(UsageError, about="no log directory", advice="log.dirs"):
        st.read(session, [])


def test_read_takes_pythons_values(session: SparkSession, root: Path) -> None:
    frame = st.read(session, root, "users", view="latest", as_of=149, columns=["key", "partition", "offset"])
    assert frame.columns == ["key", "partition", "offset"]
    expected = [(partition, at) for partition in (0, 1) for at in range(143, 150) if at % 5]
    assert places(frame) == expected
    late = st.read(session, root, starting_offsets={"users": {"0": 299, "1": 300}}, include_headers=True)
    assert [row.headers for row in late.collect()] == [None]
