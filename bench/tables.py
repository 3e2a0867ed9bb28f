"""Logs as Spark tables: ``python -m bench --only tables [--kafka]``.

One log of ``--size-mb`` (8 million records of 124 bytes, one million keys), on a session as users have it, in
a process of its own: the cleaner's session has settings that suit its blobs, not rows. The figures::

    all columns        count(*), sum(length(value)) over every column of Spark's Kafka source
    value              the same with columns=value
    offset, timestamp  count(*), max(offset), max(timestamp) with columns=offset,timestamp
    …, data source     the three by format("siltstone"), where the others are by st.read
    …, ready batches   the three with Arrow batches that are ready, by mapInArrow and by a data source of
                       Python's: Spark's own part of st.read and of format("siltstone")
    export             all columns to Parquet by st.export, in this process and in tasks, and by Spark
    latest             view=latest by both, and groupBy(key).agg(max_by(value, offset)) over the data source
    Kafka source       "all columns" and "value" (selected) by Spark's own source from a real broker, with a
                       task and with one a core; beside st.read and the data source

All queries take turns, the first turn is not counted, and a figure is the median of its turns. ``processor``
is what Java, Python and the broker take of all cores together: on a machine that has other work, too,
it says more than the wall clock. Of Spark's own source the faster of its two ways counts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

import siltstone
from bench.generate import Generated, generate
from bench.kafka_source.querying import KafkaSource, QueryTimes, kafka_source
from bench.measure import WrongResultError
from bench.partition_log import Figure

OFFSET_TIMESTAMP = "offset,timestamp"
KAFKA, TASK_A_CORE = "Spark's Kafka source", ", a task a core"
KAFKA_GOALS = {"all columns": "≥ 2.5", "value": "≥ 4"}
"""How many times as fast as Spark's Kafka source st.read is to be, by query."""
SOURCE = ", data source"
READY = ", ready batches"
EXPORTS = ("export in this process", "export in tasks")
WRITTEN = "read(…).write.parquet"
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""What ``docs/tables.md`` advises for whole reads: Arrow checks nothing at each value."""
GOALS = {"all columns": "≥ 6", "value": "≥ 6", OFFSET_TIMESTAMP: "≥ 15"}


def measure_tables(
    folder: Path, size_mb: int, repetitions: int, kafka_folder: Path | None = None
) -> list[Figure]:
    """All figures; with a folder for a broker and another Spark also those of Spark's own Kafka source.

    Raises WrongResultError.
    """
    generated = generate(folder, size_mb * 1_000_000, "none")
    arguments = (folder, size_mb, repetitions, *(() if kafka_folder is None else (kafka_folder,)))
    command = [sys.executable, "-m", "bench.tables", *map(str, arguments)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if completed.returncode:
        raise WrongResultError(f"bench.tables ended with {completed.returncode}")
    times = {
        name: QueryTimes(**fields) for name, fields in json.loads(completed.stdout.splitlines()[-1]).items()
    }
    figures = []
    for name, goal in GOALS.items():
        for other in (name, name + READY, name + SOURCE, name + SOURCE + READY):
            is_ours = other == name
            figures.append(
                Figure(
                    name=f"table: {other}",
                    value=generated.records / times[other].seconds / 1e6,
                    unit="M records/s",
                    ratio=times[name + SOURCE].seconds / times[name].seconds if is_ours else None,
                    goal=goal if is_ours else "",
                )
            )
            figures.append(_processor(other, times[other]))
    figures += _beside("latest", times["latest"], "max_by of each key", times["max_by"], "≥ 10")
    figures += _beside("latest", times["latest"], "latest" + SOURCE, times["latest" + SOURCE], "≥ 1")
    for name in EXPORTS:
        figures += _beside(name, times[name], WRITTEN, times[WRITTEN], "≥ 5")
    if kafka_folder is not None:
        figures += _beside_kafka(times)
    return figures


def _beside_kafka(times: Mapping[str, QueryTimes]) -> list[Figure]:
    """st.read and the data source, each against the faster way of Spark's own source."""
    figures = []
    for name, goal in KAFKA_GOALS.items():
        theirs = f"{KAFKA}, {name}"
        faster = min(times[theirs], times[theirs + TASK_A_CORE], key=lambda side: side.seconds)
        figures += _beside(f"{name}, whole query", times[name], theirs, faster, goal)
        by_source = times[name + SOURCE]
        ratio = faster.seconds / by_source.seconds
        figures.append(
            Figure(name=f"table: {name}{SOURCE}, whole query", value=by_source.seconds, unit="s", ratio=ratio)
        )
    return figures


def _beside(name: str, ours: QueryTimes, other: str, theirs: QueryTimes, goal: str) -> list[Figure]:
    """Seconds of both; the ratio stands with ours."""
    ratio, words = theirs.seconds / ours.seconds, f"{goal} times faster"
    return [
        Figure(name=f"table: {other}", value=theirs.seconds, unit="s"),
        _processor(other, theirs),
        Figure(name=f"table: {name}", value=ours.seconds, unit="s", ratio=ratio, goal=words),
        _processor(name, ours),
    ]


def _processor(name: str, times: QueryTimes) -> Figure:
    return Figure(name=f"table: {name}, processor", value=times.processor, unit="s")


def main(folder: str, size_mb: str, repetitions: str, kafka_folder: str = "") -> None:
    """The measured process: prints one JSON document, name → seconds and processor."""
    generated = generate(Path(folder), int(size_mb) * 1_000_000, "none")
    log = Path(folder) / "log"
    with contextlib.ExitStack() as open_things:
        queries = _queries(open_things, log, generated)
        if kafka_folder:
            kafka = open_things.enter_context(kafka_source(Path(kafka_folder), log, generated))
            queries |= _kafka_queries(kafka)
        turns = [{name: query() for name, query in queries.items()} for _ in range(int(repetitions) + 1)]
    print(json.dumps({name: asdict(_median([turn[name] for turn in turns[1:]])) for name in queries}))


def _kafka_queries(kafka: KafkaSource) -> dict[str, Callable[[], QueryTimes]]:
    queries: dict[str, Callable[[], QueryTimes]] = {}
    for name in KAFKA_GOALS:
        columns = list(filter(None, _columns(name).get("columns", "").split(",")))
        for suffix, partitions in (("", 0), (TASK_A_CORE, os.cpu_count() or 1)):
            queries[f"{KAFKA}, {name}{suffix}"] = functools.partial(kafka.run, partitions, columns)
    return queries


def _queries(
    open_things: contextlib.ExitStack, log: Path, generated: Generated
) -> dict[str, Callable[[], QueryTimes]]:
    """Our queries by name, on a session that ends with ``open_things``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = Path(__file__).resolve().parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "src")])  # workers import bench, too
    from pyspark.sql import SparkSession

    from bench.ready_batches import ReadyBatches

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }
    spark = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()
    open_things.callback(spark.stop)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadyBatches)
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    names = (*GOALS, "latest", *(name + SOURCE for name in (*GOALS, "latest")), "max_by")
    actions: dict[str, Callable[[], int]] = {
        name: functools.partial(_query, spark, log, name) for name in names
    }
    ready = [name + READY for name in (*GOALS, *(name + SOURCE for name in GOALS))]
    actions |= {name: functools.partial(_ready, spark, generated.records, name) for name in ready}
    actions |= {name: functools.partial(_written, spark, log, name) for name in (*EXPORTS, WRITTEN)}
    return {name: functools.partial(_timed, action, java, generated) for name, action in actions.items()}


def _query(spark: Any, log: Path, name: str) -> int:
    """Run one query; how many records or keys it counted."""
    what = name.removesuffix(SOURCE)
    options = {"max_by": {}, "latest": {"view": "latest"}}.get(what, _columns(what))
    if name == what != "max_by":
        frame = siltstone.read(spark, log, **options)
    else:
        frame = spark.read.format("siltstone").options(**options).load(str(log))
    if name == "max_by":
        frame = _latest_by_hand(frame)
    return _counted(frame, what)


def _ready(spark: Any, rows: int, name: str) -> int:
    """The same query where nothing has to be read."""
    from bench.ready_batches import ready_by_map

    name = name.removesuffix(READY)
    what = name.removesuffix(SOURCE)
    if name == what:
        return _counted(ready_by_map(spark, rows, _columns(what).get("columns")), what)
    options = {"rows": rows, "tasks": spark.sparkContext.defaultParallelism} | _columns(what)
    return _counted(spark.read.format("ready").options(**options).load(), what)


def _written(spark: Any, log: Path, name: str) -> int:
    """Write all columns to Parquet; how many records were written."""
    target = log.parent / "exported"
    if name == WRITTEN:
        siltstone.read(spark, log).write.mode("overwrite").parquet(str(target))
        return sum(pq.read_metadata(path).num_rows for path in target.glob("*.parquet"))
    session = spark if name == EXPORTS[1] else None
    shutil.rmtree(target, ignore_errors=True)
    return siltstone.export(log, target, spark=session).records


def _columns(name: str) -> dict[str, str]:
    return {} if name == "all columns" else {"columns": name}


def _counted(frame: Any, name: str) -> int:
    what = ("max(offset)", "max(timestamp)") if name == OFFSET_TIMESTAMP else ("sum(length(value))",)
    (row,) = frame.selectExpr("count(*)", *what).collect()
    return int(row[0])


def _latest_by_hand(frame: Any) -> Any:
    from pyspark.sql import functions

    latest = functions.max_by("value", "offset").alias("value")
    return frame.groupBy("key").agg(latest)


def _timed(action: Callable[[], int], java: psutil.Process, generated: Generated) -> QueryTimes:
    used, began = _used(java), time.perf_counter()
    count = action()
    times = QueryTimes(seconds=time.perf_counter() - began, processor=_used(java) - used)
    if count not in (generated.records, generated.distinct_keys, _keys_with_the_tail(count, generated)):
        raise WrongResultError(f"{count} rows of {generated.records} records, {generated.distinct_keys} keys")
    return times


def _median(turns: list[QueryTimes]) -> QueryTimes:
    return QueryTimes(
        seconds=statistics.median(turn.seconds for turn in turns),
        processor=statistics.median(turn.processor for turn in turns),
    )


def _keys_with_the_tail(count: int, generated: Generated) -> int:
    """The active segment may have keys that the closed ones have not: at most one a record of it."""
    tail = generated.records - generated.cleaned_records
    return count if generated.distinct_keys <= count <= generated.distinct_keys + tail else -1


def _used(java: psutil.Process) -> float:
    """Processor seconds so far of this process, which plans, and of Java and its Python workers."""
    total = 0.0
    for process in [psutil.Process(), java, *java.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
