"""A table that was written into a stopped broker's directory is served by it, in every codec, once.

The broker makes the topics and writes some records; jobs append to them while it is stopped, one is
interrupted before its first append; the broker starts, serves and goes on; the next job finishes that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.base.clock import SystemClock
from siltstone.base.codec_table import CODEC_NAMES
from siltstone.base.errors import DirectoryLockedError
from siltstone.tables.commit import StagedOutput, Write, load_writes, store_write
from siltstone.tables.writing import WriteOptions, WritePlan, commit_plan, plan_write, stage_task
from tests.support.kafka.broker import HostedBroker
from tests.support.kafka.records import Record, Sent, workload
from tests.support.kafka.scenario import start_ms
from tests.support.tables.writes import TYPES

pytestmark = pytest.mark.kafka

TOPIC, COMPACT = "tables", "compacted-tables"
STARTED_MS = start_ms()
NAMES = ("key", "value", "headers", "timestamp", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the broker served: before, after the jobs, and after it had gone on and another job had run."""

    codecs: dict[str, list[Sent]]
    first: list[Record]
    written: list[Record]
    by_java: list[Record]
    compact: list[Record]
    last: list[Record]
    interrupted: list[Sent]
    refused: bool


def batch_of(records: list[Sent], partition: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
            "timestamp": record.timestamp_ms * 1000,
            "partition": partition,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(name, TYPES[name]) for name in NAMES]))


def planned(log_dir: Path, topic: str = TOPIC, **options: str) -> WritePlan:
    return plan_write(WriteOptions.of({"path": str(log_dir), "topic": topic, **options}), NAMES)


def staged(plan: WritePlan, records: list[Sent]) -> list[StagedOutput]:
    """Two tasks."""
    half = len(records) // 2
    return [
        stage_task(plan, [batch_of(part)], task=n) for n, part in enumerate((records[:half], records[half:]))
    ]


def write(log_dir: Path, records: list[Sent], topic: str = TOPIC, **options: str) -> None:
    plan = planned(log_dir, topic, **options)
    commit_plan(plan, staged(plan, records))


def some(name: str, count: int = 200) -> list[Sent]:
    return workload(seed=len(name), prefix=name, count=count, keys=40, start_ms=STARTED_MS)


def is_refused(log_dir: Path) -> bool:
    try:
        planned(log_dir)
    except DirectoryLockedError:
        return True
    return False


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    with HostedBroker(tmp_path_factory.mktemp("tables") / "logs") as broker:
        log_dir = Path(broker.log_dirs[0])
        broker.create_topic(TOPIC, 2)
        broker.create_topic(COMPACT, 1, {"cleanup.policy": "compact", "compression.type": "zstd"})
        broker.produce(TOPIC, some("before"))
        first = broker.consume_all(TOPIC)
        refused = is_refused(log_dir)
        broker.stop()
        codecs = {codec: some(codec) for codec in CODEC_NAMES}
        for codec, records in codecs.items():
            for _ in range(2):
                write(log_dir, records, compression=codec, batchSize="4k", writeId=codec)
        write(log_dir, some("compact"), COMPACT)
        interrupted = some("interrupted")
        plan = planned(log_dir)
        files = staged(plan, interrupted)
        end = len(first) + 200 * len(codecs)
        entry = Write(
            write_id="interrupted",
            at_ms=SystemClock().now_ms(),
            ranges={f"{TOPIC}-0": (end, end + len(interrupted))},
            staged=tuple(files),
        )
        store_write(log_dir, load_writes(log_dir), entry)
        broker.start()
        written, compact = broker.consume_all(TOPIC), broker.consume_all(COMPACT)
        by_java = [record for _, record in broker.consume_all_java([TOPIC], len(written))]
        broker.produce(TOPIC, some("after", 50))
        broker.stop()
        write(log_dir, some("last", 20))
        broker.start()
        last = broker.consume_all(TOPIC)
        return Served(
            codecs=codecs,
            first=first,
            written=written,
            by_java=by_java,
            compact=compact,
            last=last,
            interrupted=interrupted,
            refused=refused,
        )


def as_sent(records: list[Record]) -> list[Sent]:
    return [Sent(record.key, record.value, record.headers, record.timestamp_ms) for record in records]


def test_the_broker_serves_what_was_written_in_every_codec_once(served: Served) -> None:
    assert served.written[: len(served.first)] == served.first
    expected = [record for codec in CODEC_NAMES for record in served.codecs[codec]]
    assert as_sent(served.written[len(served.first) :]) == expected
    assert [record.offset for record in served.written] == list(range(len(served.written)))


def test_kafkas_own_consumer_reads_the_same(served: Served) -> None:
    assert [record.value for record in served.by_java] == [record.value for record in served.written]


def test_a_compacted_topics_own_codec_is_kept_to(served: Served) -> None:
    assert as_sent(served.compact) == some("compact")


def test_a_live_broker_is_not_written_under(served: Served) -> None:
    assert served.refused


def test_an_interrupted_write_is_finished_behind_what_the_broker_took_meanwhile(served: Served) -> None:
    assert served.last[: len(served.written)] == served.written
    assert as_sent(served.last[len(served.written) :]) == [
        *some("after", 50),
        *served.interrupted,
        *some("last", 20),
    ]
