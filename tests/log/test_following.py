"""Streams that follow logs, and consumers with durable positions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.errors import (
    CorruptFileError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.build import NewBatchHeader
from siltstone.log.checkpoints import write_checkpoint
from siltstone.log.names import CLEANER_CHECKPOINT, POSITIONS, TopicPartition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import Record
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, append
from tests.support.errors import raises_error
from tests.support.log.managed import opened

USERS = TopicPartition("users", 0)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    with opened(tmp_path / "logs") as logs:
        logs.topics.create("users", partitions=2)
        yield logs


def send(logs: LogManager, *values: bytes, partition: int = 0) -> None:
    logs.send_many("users", [NewRecord(value=value) for value in values], partition=partition)


def values(records: Iterator[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_a_stream_ends_after_its_timeout_and_continues_where_it_was(logs: LogManager) -> None:
    send(logs, b"1", b"2")
    stream = logs["users"].follow(timeout=0)
    assert values(stream) == [b"1", b"2"] and values(stream) == []
    send(logs, b"3")
    send(logs, b"4", partition=1)
    assert sorted(filter(None, values(stream))) == [b"3", b"4"]
    assert stream.positions == {USERS: 3, TopicPartition("users", 1): 1}
    again = logs["users"].follow("latest", timeout=0, positions={USERS: 2})
    assert values(again) == [b"3"]


def test_a_stream_waits_for_what_another_thread_appends(logs: LogManager) -> None:
    stream = logs["users", 0].follow(timeout=30)
    later = threading.Timer(0.05, send, (logs, b"late"))
    later.start()
    assert next(stream).value == b"late"
    later.join()


def test_breaking_off_loses_no_record(logs: LogManager) -> None:
    send(logs, *(b"%d" % number for number in range(5)))
    stream = logs["users", 0].follow(timeout=0)
    assert next(stream).value == b"0" and stream.positions[USERS] == 1
    for record in stream:
        if record.value == b"2":
            break
    assert stream.positions[USERS] == 3 and values(stream) == [b"3", b"4"]
    stream.seek(("users", 0), 1)
    assert next(stream).value == b"1"
    stream.seek(USERS, "latest")
    assert values(stream) == []
    with pytest.raises(UnknownTopicError):
        stream.seek(("users", 9), 0)


def test_async_for_follows_beside_other_tasks(logs: LogManager) -> None:
    async def read() -> list[bytes | None]:
        values = list[bytes | None]()
        async for record in logs["users"].follow(timeout=60):
            values.append(record.value)
            if len(values) == 2:
                break
        return values

    async def main() -> list[bytes | None]:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.02)
        send(logs, b"1")
        send(logs, b"2", partition=1)
        return await reading

    assert asyncio.run(main()) == [b"1", b"2"]


def test_a_cancelled_task_loses_no_record(logs: LogManager) -> None:
    stream = logs["users", 0].follow()

    async def main() -> Record:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        send(logs, b"1")
        return await asyncio.wait_for(anext(stream), 30)

    assert asyncio.run(main()).value == b"1"


def test_new_partitions_are_read_from_their_beginning(logs: LogManager) -> None:
    stream = logs["users"].follow("latest", timeout=0)
    assert values(stream) == []
    logs.topics.add_partitions("users", 3)
    send(logs, b"new", partition=2)
    assert values(stream) == [b"new"]


def test_read_only_logs_are_followed_while_another_manager_appends(tmp_path: Path, logs: LogManager) -> None:
    send(logs, b"1")
    with st.open(tmp_path / "logs") as reading:
        stream = reading["users"].follow(timeout=0)
        assert values(stream) == [b"1"]
        send(logs, b"2")
        assert values(stream) == [b"2"]
        logs["users", 0].roll()
        send(logs, b"3")
        assert values(stream) == [b"3"] and values(iter(reading["users", 0])) == [b"1", b"2", b"3"]


def test_new_partitions_of_another_process_are_read_too(tmp_path: Path, logs: LogManager) -> None:
    with st.open(tmp_path / "logs") as reading:
        consumer = reading.consumer("b", "users", positions=tmp_path / "b.json", timeout=0)
        stream = reading["users"].follow("latest", timeout=0)
        assert values(stream) == [] and values(consumer) == []
        logs.topics.add_partitions("users", 3)
        send(logs, b"new", partition=2)
        assert values(stream) == [b"new"] == values(consumer)


def test_deleted_records_are_an_error_unless_reset_says_where_to_go_on(logs: LogManager) -> None:
    send(logs, b"1", b"2", b"3")
    logs.delete_records(USERS, 2)
    with pytest.raises(OffsetOutOfRangeError):
        next(logs["users", 0].follow(0))
    assert values(logs["users", 0].follow(0, timeout=0, reset="earliest")) == [b"3"]


# Consumers


def test_a_consumer_continues_after_its_last_commit(tmp_path: Path, logs: LogManager) -> None:
    send(logs, b"1", b"2", b"3")
    consumer = logs.consumer("billing", "users", timeout=0)
    assert next(consumer).value == b"1"
    consumer.commit()
    assert next(consumer).value == b"2"
    assert consumer.committed[USERS] == 1
    logs.close()
    with opened(tmp_path / "logs") as again:
        assert values(again.consumer("billing", "users", timeout=0)) == [b"2", b"3"]
        assert values(again.consumer("audit", "users", timeout=0)) == [b"1", b"2", b"3"]
        again.consumer("billing", "users").forget()
        assert next(again.consumer("billing", "users")).value == b"1"
    with raises_error(StorageError, advice="again"):
        consumer.commit()


def test_a_position_goes_with_its_topic(logs: LogManager) -> None:
    send(logs, b"1", b"2")
    consumer = logs.consumer("billing", "users", timeout=0)
    assert len(list(consumer)) == 2
    consumer.commit()
    logs.topics.delete("users")
    logs.topics.create("users")
    send(logs, b"new")
    assert values(logs.consumer("billing", "users", timeout=0)) == [b"new"]


def test_where_a_consumer_without_a_position_begins(logs: LogManager) -> None:
    send(logs, b"1")
    assert values(logs.consumer("b", "users", timeout=0, reset="latest")) == []
    with raises_error(OffsetOutOfRangeError, path="users-0", about="b", advice="earliest"):
        logs.consumer("b", "users", reset="none")
    with raises_error(UsageError, about="first"):
        logs.consumer("b", "users", reset="first")
    with pytest.raises(UnknownTopicError):
        logs.consumer("b", "users", "missing")


def test_a_position_past_the_end_of_a_truncated_log_is_reset(logs: LogManager) -> None:
    send(logs, b"1")
    send(logs, b"2")
    consumer = logs.consumer("billing", "users", timeout=0)
    assert len(list(consumer)) == 2
    consumer.commit()
    logs.truncate_to(USERS, 1)
    assert values(logs.consumer("billing", "users", timeout=0)) == [b"1"]


def test_a_damaged_file_of_positions_is_refused(logs: LogManager) -> None:
    path = logs["users", 0].directory / POSITIONS
    path.write_bytes(b"{")
    with raises_error(CorruptFileError, path=path, advice="reset"):
        logs.consumer("billing", "users")


def test_a_consumer_of_read_only_logs_has_a_file_of_its_own(tmp_path: Path, logs: LogManager) -> None:
    send(logs, b"1", b"2")
    with st.open(tmp_path / "logs") as reading:
        consumer = reading.consumer("billing", "users", positions=tmp_path / "billing.json", timeout=0)
        assert next(consumer).value == b"1"
        consumer.commit()
        again = reading.consumer("billing", "users", positions=tmp_path / "billing.json", timeout=0)
        assert values(again) == [b"2"]
        with raises_error(UsageError, advice="outside"):
            reading.consumer("billing", "users", positions=tmp_path / "logs" / "billing.json")


def test_a_single_log_has_consumers_too(tmp_path: Path) -> None:
    for expected in ([b"1", b"2"], [b"2"]):
        with st.Log(tmp_path / "events-0", upkeep=False) as log:
            if not log.log_end_offset:
                log.append_many([NewRecord(value=b"1"), NewRecord(value=b"2")])
            consumer = log.consumer("billing", timeout=0)
            assert next(consumer).value == expected[0]
            consumer.commit()
            assert values(consumer) == expected[1:]


def test_a_refresh_brings_everything_of_a_read_only_log_up_to_date(tmp_path: Path, logs: LogManager) -> None:
    send(logs, b"1")
    logs.flush()
    reading = ReadOnlyLogs([tmp_path / "logs"])["users", 0]
    shape = NewBatchHeader(producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    append(logs["users", 0], [NewRecord(value=b"2")], shape=shape)
    write_checkpoint(tmp_path / "logs" / CLEANER_CHECKPOINT, {USERS: 1})
    assert (reading.open_transactions, reading.first_dirty_offset) == ({}, 0)
    reading.refresh()
    assert (reading.open_transactions, reading.first_dirty_offset) == ({8: 1}, 1)
    write_checkpoint(tmp_path / "logs" / CLEANER_CHECKPOINT, {USERS: 2})
    reading.refresh()
    assert reading.first_dirty_offset == 2
