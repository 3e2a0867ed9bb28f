"""``df.write`` and ``df.writeStream`` with ``format("siltstone")``, and a stream over what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StructField, StructType

from siltstone.runtime.manager import LogManager
from siltstone.spark.source import BatchWriter, StagedMessage, StreamWriter
from siltstone.tables.commit import WRITES_FILE
from siltstone.tables.writing import WriteOptions, stage_task
from tests.support.tables.writes import left_over, numbered, records, values
from tests.support.thoroughness import THOROUGH, few

pytestmark = pytest.mark.spark


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    with LogManager.open([tmp_path / "logs"]) as manager:
        manager.topics.create("users", 3)
    return tmp_path / "logs"


def rows(session: SparkSession, count: int, tasks: int = 3, first: int = 0) -> DataFrame:
    numbers = session.range(first, first + count, numPartitions=tasks)
    return numbers.select(
        sf.concat(sf.lit("k"), sf.col("id")).alias("key"),
        sf.concat(sf.lit("v"), sf.col("id")).cast("binary").alias("value"),
        sf.array(sf.struct(sf.lit("h").alias("key"), sf.lit(b"x").alias("value"))).alias("headers"),
        sf.timestamp_millis(sf.col("id") + 1_700_000_000_000).alias("timestamp"),
    )


def append(frame: DataFrame, logs: Path, **options: str) -> None:
    frame.write.format("siltstone").mode("append").options(path=str(logs), **options).save()


def all_values(logs: Path) -> list[str]:
    found = [value for partition in range(3) for value in values(logs, "users", partition)]
    return sorted((value or b"").decode() for value in found)


def expected(count: int) -> list[str]:
    return sorted(f"v{number}" for number in range(count))


def test_a_table_is_appended_and_read_back(session: SparkSession, logs: Path) -> None:
    append(rows(session, 1000), logs, topic="users", compression="lz4", batchSize="4k")
    assert all_values(logs) == expected(1000)
    assert left_over(logs) == []
    first = records(logs, "users")[0]
    assert first.headers == ((b"h", b"x"),)
    assert first.timestamp == 1_700_000_000_000 + int((first.value or b"")[1:])
    back = session.read.format("siltstone").option("path", str(logs)).option("subscribe", "users").load()
    assert back.count() == 1000
    before = len(records(logs, "users"))
    append(back.where("partition = 0"), logs, topic="users", partitions="3")
    assert [len(records(logs, "users", n)) for n in (0,)] == [2 * before]


def test_a_job_that_runs_twice_with_its_id_writes_once(session: SparkSession, logs: Path) -> None:
    for _ in range(2):
        append(rows(session, 50), logs, topic="users", writeId="backfill-1")
    assert all_values(logs) == expected(50)


def test_tasks_that_die_and_run_again_leave_no_duplicates(
    session: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """The first attempt of each task stages all of its rows, and dies then."""
    tried = tmp_path / "tried"
    tried.mkdir()

    def die_once(batches):  # type: ignore[no-untyped-def]
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        marker = tried / str(context.partitionId())
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the task dies once")

    frame = rows(session, 60)
    append(frame.mapInArrow(die_once, frame.schema), logs, topic="users")
    assert len(list(tried.iterdir())) == 3
    assert all_values(logs) == expected(60)
    assert left_over(logs) == []


@pytest.mark.parametrize(
    ("left_out", "options", "message"),
    few(  # all three are refused by one call, as tests/tables/test_writing.py has it
        [
            ("value", {"topic": "users"}, "the column value is missing"),
            ("nothing", {"topic": "user"}, "no topic 'user'"),
            ("nothing", {"topic": "users", "compresion": "zstd"}, "did you mean 'compression'"),
        ],
        0,
    ),
)
def test_a_write_is_refused_with_our_words(
    session: SparkSession, logs: Path, left_out: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        append(rows(session, 1).drop(left_out), logs, **options)


def test_only_appending_is_possible_and_only_to_a_log_that_nobody_else_writes(
    session: SparkSession, logs: Path
) -> None:
    with pytest.raises(Exception, match=r'mode\("append"\)'):
        writer = rows(session, 1).write.format("siltstone").mode("overwrite")
        writer.options(path=str(logs), topic="users").save()
    with LogManager.open([logs]), pytest.raises(Exception, match=r"live process holds \.lock"):
        append(rows(session, 1), logs, topic="users")


def send(logs: Path, numbers: range) -> None:
    """Write in this process, which takes a tenth of the time of Spark's own."""
    with LogManager.open([logs]) as manager:
        for number in numbers:
            key, value = b"k%d" % number, b"v%d" % number
            manager.send("users", value, key=key, headers=((b"h", b"x"),))


def follow(session: SparkSession, logs: Path, **options: str) -> DataFrame:
    options = {"startingOffsets": "earliest", "includeHeaders": "true", **options}
    reader = session.readStream.format("siltstone").options(path=str(logs), subscribe="users", **options)
    return reader.load()


def run_out(frame: DataFrame, target: Path, checkpoint: Path, **options: str) -> list[int]:
    """Write all that is there to another log; how many rows each micro-batch had."""
    writer = frame.select("key", "value", "headers", "timestamp").writeStream.format("siltstone")
    writer = writer.option("checkpointLocation", str(checkpoint)).options(path=str(target), **options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("spoiled", ["list of writes", "folder"])
def test_an_abort_removes_what_it_can_and_raises_nothing(
    logs: Path, caplog: pytest.LogCaptureFixture, is_stream: bool, spoiled: str
) -> None:
    """Spark reported the error of the abort in place of the one that the job had failed with."""
    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    options = {"path": str(logs), "topic": "users"}
    tasks = [BatchWriter(WriteOptions.of(options), schema, False) for _ in range(2)]
    stream = StreamWriter(WriteOptions.of(options), schema, False)
    staged = [stage_task(writer._plan, [numbered(0, 5)], task=n) for n, writer in enumerate(tasks)]
    if spoiled == "folder":
        # The first folder cannot be removed: its parent's name belongs to something else by now.
        parent = Path(tasks[0]._plan.staging_folder).parent
        parent.rename(logs / "elsewhere")
        parent.symlink_to(logs / "elsewhere")
    else:
        (logs / WRITES_FILE).write_text("[")
    messages: list[Any] = [StagedMessage(staged=each) for each in staged]
    if is_stream:
        stream.abort(messages, 3)
    else:
        tasks[0].abort(messages)
    assert str(logs) in caplog.text and "staged files" in caplog.text
    assert len(list(logs.rglob("*.batches"))) == 2


def test_a_stream_copies_a_growing_log_once_by_offset(
    session: SparkSession, logs: Path, tmp_path: Path
) -> None:
    copy, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    to = {"topic": "users", "partitions": "3"}
    send(logs, range(100))
    batches = run_out(follow(session, logs, maxOffsetsPerTrigger="60"), copy, checkpoint, **to)
    assert sum(batches) == 100
    assert max(batches) <= 62
    send(logs, range(100, 150))
    if THOROUGH:  # on their own; else with the micro-batch before them again
        batches = [sum(run_out(follow(session, logs), copy, checkpoint, **to))]
        assert batches == [50] and all_values(copy) == expected(150)
    # The last micro-batch again, as after a crash between its commit and Spark's own note of it.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    again = sum(run_out(follow(session, logs), copy, checkpoint, **to))
    assert again == batches[-1] + (0 if THOROUGH else 50)
    assert all_values(copy) == expected(150)
    for partition in range(3):
        assert values(copy, "users", partition) == values(logs, "users", partition)
    assert left_over(copy) == []


@pytest.mark.long  # tests/tables/test_following.py has its rules; a micro-batch starts two processes
def test_a_stream_says_what_it_lost(session: SparkSession, logs: Path, tmp_path: Path) -> None:
    append(rows(session, 90), logs, topic="users")
    copy, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    to = {"topic": "users", "partitions": "3"}
    run_out(follow(session, logs), copy, checkpoint, **to)
    append(rows(session, 90), logs, topic="users")
    with LogManager.open([logs]) as manager:
        for partition in range(3):
            log = manager["users", partition]
            manager.delete_records(log.topic_partition, log.log_end_offset - 1)
    with pytest.raises(Exception, match="deleted before they were read"):
        run_out(follow(session, logs), copy, checkpoint, **to)
    assert sum(run_out(follow(session, logs, failOnDataLoss="false"), copy, checkpoint, **to)) == 3
