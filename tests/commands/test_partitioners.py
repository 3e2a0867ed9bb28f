"""One rule for a key's partition, whichever way records come in: a program, the command line, a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import UsageError
from siltstone.base.records.hashing import partition_for_key
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.records import TopicProducer
from siltstone.log.names import TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.runtime.producing import NewRecord
from siltstone.tables.writing import WriteOptions, commit_plan, plan_write, stage_task
from tests.support.errors import raises_error
from tests.support.log.managed import NOW, opened

CLOCK = ManualClock(NOW)


def by_program(directory: Path, topic: str, key: bytes | None, partition: int | None = None) -> None:
    with opened(directory) as logs:
        logs.send(topic, b"v", key=key, partition=partition)


def by_command(directory: Path, topic: str, key: bytes | None, partition: int | None = None) -> None:
    with TopicProducer(BrokerDirectories(paths=(directory,)), topic, partition=partition) as producing:
        producing.append([NewRecord(value=b"v", key=key)])


def by_table(directory: Path, topic: str, key: bytes | None, partition: int | None = None) -> None:
    row = {"key": pa.array([key], pa.binary()), "value": [b"v"]}
    rows = pa.RecordBatch.from_pydict(row | ({} if partition is None else {"partition": [partition]}))
    plan = plan_write(WriteOptions.of({"path": str(directory), "topic": topic}), rows.schema.names)
    commit_plan(plan, [stage_task(plan, [rows], task=0, clock=CLOCK)], clock=CLOCK)


Send = Callable[..., None]
every_way = pytest.mark.parametrize("send", [by_program, by_command, by_table])


def keys_of(directory: Path, topic: str, partition: int) -> list[bytes | None]:
    with ReadOnlyLogs([directory]) as logs:
        return [record.key for record in logs[topic, partition] if record.value == b"v"]


@every_way
def test_the_brokers_metadata_knows_how_many_partitions_there_are(
    stopped_broker: tuple[Path, Path], send: Send
) -> None:
    directory, _ = stopped_broker  # has one of the two partitions
    with ReadOnlyLogs([directory]) as logs:
        (own_partition,) = logs.partitions_of("ledger")
    own = next(key for key in map(b"%d".__mod__, range(99)) if partition_for_key(key, 2) == own_partition)
    others = next(key for key in map(b"%d".__mod__, range(99)) if partition_for_key(key, 2) != own_partition)
    send(directory, "ledger", own)
    with raises_error(
        UsageError, about=f"partition {1 - own_partition} of the 2", advice="all of its log directories"
    ):
        send(directory, "ledger", others)
    send(directory, "ledger", others, own_partition)
    assert keys_of(directory, "ledger", own_partition)[-2:] == [own, others]


@every_way
def test_without_metadata_a_gap_tells_that_partitions_are_missing(tmp_path: Path, send: Send) -> None:
    with opened(tmp_path / "logs") as logs:
        logs.get_or_create(TopicPartition("part", 1))
    with raises_error(UsageError, about="only the partitions 1", advice="--partition"):
        send(tmp_path / "logs", "part", b"a")
    send(tmp_path / "logs", "part", b"a", 1)
    send(tmp_path / "logs", "part", None)
    assert keys_of(tmp_path / "logs", "part", 1) == [b"a", None]


@every_way
def test_a_key_goes_where_kafkas_clients_look_for_it(tmp_path: Path, send: Send) -> None:
    with opened(tmp_path / "logs") as logs:
        logs.topics.create("users", partitions=3)
    for key in (b"a", b"ab", b"abc"):
        send(tmp_path / "logs", "users", key)
        assert key in keys_of(tmp_path / "logs", "users", partition_for_key(key, 3))


def test_the_path_of_a_partition_names_the_partition(tmp_path: Path) -> None:
    with opened(tmp_path / "logs") as logs:
        logs.topics.create("users", partitions=3)
    for key in (b"a", b"ab", b"abc"):
        by_table(tmp_path / "logs" / "users-1", "users", key)
    assert keys_of(tmp_path / "logs", "users", 1) == [b"a", b"ab", b"abc"]
