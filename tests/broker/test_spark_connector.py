"""Spark's own Kafka connector (4.0.0), unmodified, against our broker: batch and streaming, both ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench.kafka_source.environment import make_environment
from siltstone.base.clock import SystemClock
from siltstone.broker.embedded import EmbeddedBroker
from tests.support import spark_connector

ENVIRONMENT = Path(__file__).parents[2] / "bench" / "out" / "kafka-source"


@pytest.mark.long
@pytest.mark.timeout(900)  # the first run of a checkout makes Spark's environment
def test_spark_reads_writes_and_streams(tmp_path: Path) -> None:
    spark = make_environment(ENVIRONMENT)
    with EmbeddedBroker(clock=SystemClock()) as broker:
        broker.topics.create("sparkin", 3)
        broker.topics.create("sparkout", 2)
        jars = ",".join(map(str, spark.jars))
        command = [
            str(spark.python),
            "-P",  # the script's folder has modules with names of the standard library's
            spark_connector.__file__,
            broker.address,
            jars,
            str(tmp_path / "checkpoint"),
        ]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert completed.returncode == 0, completed.stderr[-3_000:]
        rows = spark_connector.ROWS
        expected = {"read": rows, "value": ["v77"], "by_time": rows, "streamed": rows}
        assert json.loads(completed.stdout.splitlines()[-1]) == expected
        assert sum(1 for _ in broker["sparkout"]) == rows
