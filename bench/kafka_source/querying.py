"""Queries with Spark's own Kafka source: a broker that serves a log, and a process that reads from it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.generate import WHERE, Generated
from bench.kafka_source.environment import make_environment
from bench.kafka_source.serving import serving
from bench.measure import WrongResultError

QUERY = Path(__file__).with_name("query.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTimes:
    """Seconds of a query: by the wall clock, and of all processors, the broker included."""

    seconds: float
    processor: float


class KafkaSource:
    """A running query process, which runs one query after another."""

    def __init__(self, process: subprocess.Popen[str], records: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._requests: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self._records = records
        self.spark_version = str(self._answer()["spark"])

    def run(self, partitions: int = 0, columns: Sequence[str] = ()) -> QueryTimes:
        """Count the records and sum up their values' lengths.

        ``partitions``: the source's ``minPartitions``, 0 for none; ``columns``: what is selected, all by
        default. Raises WrongResultError where not all records were counted.
        """
        self._requests.write(json.dumps({"partitions": partitions, "columns": list(columns)}) + "\n")
        self._requests.flush()
        answer = self._answer()
        if answer["count"] != self._records:
            raise WrongResultError(
                f"Spark's Kafka source counted {answer['count']} of {self._records} records"
            )
        return QueryTimes(seconds=float(answer["seconds"]), processor=float(answer["processor"]))

    def _answer(self) -> dict[str, float]:
        line = self._answers.readline()
        if not line:
            raise WrongResultError("the process with Spark's Kafka source ended; its errors are above")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextlib.contextmanager
def kafka_source(folder: Path, log: Path, generated: Generated) -> Iterator[KafkaSource]:
    """Everything that is needed, below ``folder``; broker and process end with the context.

    Raises WrongResultError, and what ``make_environment`` raises.
    """
    environment = make_environment(folder)
    with serving(folder, log, generated) as broker:
        jars = ",".join(str(jar) for jar in environment.jars)
        command = [str(environment.python), str(QUERY), broker.bootstrap, WHERE.topic, jars, str(broker.pid)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield KafkaSource(process, generated.records)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
