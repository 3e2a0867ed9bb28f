"""Spark's Kafka source, asked from outside: ``python query.py BOOTSTRAP TOPIC JARS BROKER_PID``.

It runs in the connector's own environment: it imports pyspark, psutil and nothing of this project. Each line
on standard input is a JSON object: ``partitions`` to read with (0: as Spark has it, one a topic partition),
and ``columns`` to select (none: all). Each line on standard output is one, too: ``count``, ``seconds``, and
``processor``, Spark's and the broker's.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import psutil
from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, jars: str, broker: str) -> None:
    """Answer until standard input ends."""
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
    }
    spark = SparkSession.builder.master("local[*]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"spark": spark.version}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_ask(spark, bootstrap, topic, int(broker), **json.loads(line))), flush=True)
    spark.stop()


def _ask(
    spark: Any, bootstrap: str, topic: str, broker: int, partitions: int, columns: list[str]
) -> dict[str, float]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic)
    if partitions:
        reader = reader.option("minPartitions", partitions)
    used, began = _used(broker), time.perf_counter()
    frame = reader.load().select(*columns or "*")
    (row,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
    seconds = time.perf_counter() - began
    return {"count": row[0], "seconds": seconds, "processor": _used(broker) - used}


def _used(broker: int) -> float:
    """Processor seconds so far of this process's children and of the broker."""
    total = 0.0
    for process in [*psutil.Process().children(recursive=True), psutil.Process(broker)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
