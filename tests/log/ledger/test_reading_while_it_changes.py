"""Readers, compactions and retention at the same time: no error, and no read is behind what was there before.

Values of a key count up. Whoever has read the whole view has, for each key, at least the value that was
appended before the read began; a key that was deleted for good before that is not there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import OffsetOutOfRangeError
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import NewRecord, append
from tests.support.log import managed, plainly
from tests.support.log.managed import NOW
from tests.support.thoroughness import THOROUGH

WHERE = TopicPartition("topic", 0)
KEYS = 12
ROUNDS = 25 if THOROUGH else 10


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    config = {"log.retention.ms": "1", "log.segment.bytes": "2000"}
    with managed.opened(tmp_path / "logs", clock=ManualClock(NOW), config=config) as opened:
        yield opened


def a_round(log: PartitionLog, number: int, floor: dict[bytes, int]) -> None:
    """Each key gets the round's number; the key of this round is deleted, once and for all."""
    deleted_key = b"gone %d" % number
    records = [NewRecord(key=b"k%d" % key, value=b"%d" % number) for key in range(KEYS)]
    append(
        log, [NewRecord(key=deleted_key, value=b"1"), *records, NewRecord(key=deleted_key)], now_ms=NOW - 10
    )
    floor.update({b"k%d" % key: number for key in range(KEYS)})
    floor[deleted_key] = -1


def check_read(log: PartitionLog, floor: dict[bytes, int]) -> None:
    """Tables are kept as consumers do: deletes are applied."""
    minimum, values, last = dict(floor), {}, -1
    with CompactedReader(log, buffer_bytes=200) as reader:
        for record in reader.records():
            assert record.offset > last
            last = record.offset
            values[record.key] = record.value
    for key, value in minimum.items():
        if value < 0:
            assert values.get(key) is None, key
        else:
            assert int(values[key] or -1) >= value, key


@pytest.mark.random
def test_threads_read_while_ledgers_are_swapped_and_collected(manager: LogManager) -> None:
    log = manager.get_or_create(WHERE)
    floor: dict[bytes, int] = {}
    a_round(log, 0, floor)
    plainly.compact(log, name="first")
    over = threading.Event()
    reads = 0

    def reading() -> None:
        nonlocal reads
        while not over.is_set():
            with contextlib.suppress(
                OffsetOutOfRangeError
            ):  # behind the horizon nothing holds retention back
                check_read(log, floor)
                reads += 1

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(reading) for _ in range(3)]
        try:
            for number in range(1, ROUNDS):
                a_round(log, number, floor)
                plainly.compact(log, name=str(number), merge_runs=number % 3 == 0)
                log.roll()
                manager.upkeep.delete_old_segments()
        finally:
            over.set()
        for reader in readers:
            reader.result()
    assert reads >= 3
    assert log.log_start_offset > 0
    store = LedgerStore(log.directory)
    store.delete_unused()
    assert len(list(store.folder.glob("ledger-*.json"))) == 1


def test_a_ledger_that_goes_beyond_the_log_as_it_was_before_is_read(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grows, and is compacted, while a reader opens the ledger."""
    log, floor = manager.get_or_create(WHERE), dict[bytes, int]()
    a_round(log, 0, floor)
    open_ledger = LedgerStore.open

    def open_later(store: LedgerStore) -> object:
        if len(floor) < KEYS + 2:
            a_round(log, 1, floor)
            plainly.compact(log)
        return open_ledger(store)

    monkeypatch.setattr(LedgerStore, "open", open_later)
    check_read(log, {})
    check_read(log, floor)


READ = """
import sys
from siltstone.log.read_only import ReadOnlyLogs
with ReadOnlyLogs([sys.argv[1]]) as logs:
    reader = logs["topic", 0].reader(read_compacted=True, buffer_bytes=1)
    print(reader.poll().columns.offset[0], flush=True)
    sys.stdin.readline()
    print([record.offset for record in reader.records()][-1], flush=True)
    sys.stdin.readline()
"""


def test_another_process_holds_a_ledger_until_it_has_read_it(manager: LogManager, tmp_path: Path) -> None:
    log = manager.get_or_create(WHERE)
    floor: dict[bytes, int] = {}
    a_round(log, 0, floor)
    plainly.compact(log)
    log.flush()
    reader = subprocess.Popen(
        [sys.executable, "-c", READ, str(tmp_path / "logs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdin is not None and reader.stdout is not None
        assert int(reader.stdout.readline()) == 1
        a_round(log, 1, floor)
        plainly.compact(log, name="second", merge_runs=True)
        store = LedgerStore(log.directory)
        assert store.first_needed_offset() == 14
        assert (store.folder / "ledger-0.json").exists()
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert int(reader.stdout.readline()) == 12
        assert store.first_needed_offset() == 28
        assert "ledger-0.json" in store.delete_unused()
    finally:
        reader.kill()
        reader.wait()
        for pipe in (reader.stdin, reader.stdout):
            if pipe is not None:
                pipe.close()
