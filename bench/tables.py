"""Logs as Spark tables: ``python -m bench --only tables``.

One log of ``--size-mb`` (8 million records of 124 bytes, one million keys), on a session as users have it, in
a process of its own: the cleaner's session has settings that suit its blobs, not rows. The figures::

    all columns        count(*), sum(length(value)) over every column of Spark's Kafka source
    value              the same with columns=value
    offset, timestamp  count(*), max(offset), max(timestamp) with columns=offset,timestamp
    latest             view=latest, and groupBy(key).agg(max_by(value, offset)) over the same source

Medians of warm runs; the first one is not counted. ``processor`` is what Java and Python take of all cores
together: on a machine that does something else meanwhile it says more than the wall clock. ``measure_tables``
takes a function that reads the same records with Spark's own source from a broker, where one is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.generate import Generated, generate
from bench.measure import WrongResultError
from bench.partition_log import Figure

OFFSET_TIMESTAMP = "offset,timestamp"
GOALS = {"all columns": "≥ 6", "value": "≥ 6", OFFSET_TIMESTAMP: "≥ 15"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Medians: seconds of the wall clock, and of all processors."""

    seconds: float
    processor: float


def measure_tables(
    folder: Path,
    size_mb: int,
    repetitions: int,
    kafka_seconds: Callable[[Generated], float] | None = None,
) -> list[Figure]:
    """All figures. ``kafka_seconds``: what Spark's own source takes for "all columns" of as many records.

    Raises WrongResultError.
    """
    made = generate(folder, size_mb * 1_000_000, "none")
    command = [sys.executable, "-m", "bench.tables", str(folder), str(size_mb), str(repetitions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise WrongResultError(f"bench.tables ended with {done.returncode}")
    took = {name: Took(**each) for name, each in json.loads(done.stdout.splitlines()[-1]).items()}
    figures = []
    for name, goal in GOALS.items():
        rate = made.records / took[name].seconds / 1e6
        figures.append(Figure(name=f"table: {name}", value=rate, unit="M records/s", goal=goal))
        figures.append(_processor(name, took[name]))
    grouped, latest = took["max_by"], took["latest"]
    figures.append(Figure(name="table: max_by of each key", value=grouped.seconds, unit="s"))
    figures.append(
        Figure(
            name="table: latest",
            value=latest.seconds,
            unit="s",
            ratio=grouped.seconds / latest.seconds,
            goal="≥ 8 times max_by",
        )
    )
    figures += [_processor("max_by", grouped), _processor("latest", latest)]
    if kafka_seconds is not None:
        seconds = kafka_seconds(made)
        ratio = seconds / took["all columns"].seconds
        figures.append(
            Figure(
                name="table: Spark's Kafka source",
                value=seconds,
                unit="s",
                ratio=ratio,
                goal="≥ 4 times ours",
            )
        )
    return figures


def _processor(name: str, took: Took) -> Figure:
    return Figure(name=f"table: {name}, processor", value=took.processor, unit="s")


def main(folder: str, size_mb: str, repetitions: str) -> None:
    """The measured process: prints one JSON document, name → seconds and processor."""
    made = generate(Path(folder), int(size_mb) * 1_000_000, "none")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
    }
    spark = SparkSession.builder.master("local[*]").config(map=quiet).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = {
        name: _timed(lambda name=name: _query(spark, Path(folder) / "log", name), made, int(repetitions))
        for name in (*GOALS, "latest", "max_by")
    }
    print(json.dumps(found))
    spark.stop()


def _query(spark: Any, log: Path, name: str) -> int:
    """Run one query; how many records or keys it counted."""
    options = {"all columns": {}, "max_by": {}, "latest": {"view": "latest"}}.get(name, {"columns": name})
    frame = spark.read.format("siltstone").options(**options).load(str(log))
    if name == "max_by":
        frame = _latest_by_hand(frame)
    what = ("max(offset)", "max(timestamp)") if name == OFFSET_TIMESTAMP else ("sum(length(value))",)
    (row,) = frame.selectExpr("count(*)", *what).collect()
    return int(row[0])


def _latest_by_hand(frame: Any) -> Any:
    from pyspark.sql import functions

    latest = functions.max_by("value", "offset").alias("value")
    return frame.groupBy("key").agg(latest)


def _timed(action: Callable[[], int], made: Generated, repetitions: int) -> dict[str, float]:
    seconds, processor = [], []
    for _ in range(repetitions + 1):
        used, began = _used(), time.perf_counter()
        count = action()
        seconds.append(time.perf_counter() - began)
        processor.append(_used() - used)
        if count not in (made.records, made.distinct_keys, _keys_with_the_tail(count, made)):
            raise WrongResultError(f"{count} rows of {made.records} records, {made.distinct_keys} keys")
    return {
        "seconds": statistics.median(seconds[1:] or seconds),
        "processor": statistics.median(processor[1:] or processor),
    }


def _keys_with_the_tail(count: int, made: Generated) -> int:
    """The active segment may have keys that the closed ones have not: at most one a record of it."""
    tail = made.records - made.cleaned_records
    return count if made.distinct_keys <= count <= made.distinct_keys + tail else -1


def _used() -> float:
    """Processor seconds of this process's children, Java and its Python workers."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
