"""Parked fetches: who wakes them, how often the loop is woken, and that nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from siltstone.broker.purgatory import AwaitedLog, DelayedFetch, FetchPurgatory
from siltstone.broker.turns import FetchTurns
from siltstone.log.fetch import READ_UNCOMMITTED
from siltstone.log.partition import PartitionLog, open_partition
from tests.support.log.batches import sent

LONG_MS = 60_000


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A log with one batch."""
    log = open_partition(tmp_path / "topic-0")
    log.append(sent())
    return log


def at_end(log: PartitionLog, max_bytes: int = 1 << 20) -> AwaitedLog:
    return AwaitedLog(log=log, offset=log.log_end_offset, max_bytes=max_bytes, isolation=READ_UNCOMMITTED)


def run(loop: asyncio.AbstractEventLoop, steps: Callable[[FetchPurgatory], Awaitable[Any]]) -> FetchPurgatory:
    """Run the steps on the loop; afterwards no fetch is parked."""
    purgatory = FetchPurgatory(loop, FetchTurns(loop))

    async def all_steps() -> None:
        async with asyncio.timeout(60):
            await steps(purgatory)

    loop.run_until_complete(all_steps())
    assert purgatory.parked == 0
    return purgatory


def park(
    purgatory: FetchPurgatory, *logs: AwaitedLog, min_bytes: int = 1, max_wait_ms: int = LONG_MS
) -> tuple[asyncio.Future[None], DelayedFetch]:
    """(done when the fetch is resumed, the fetch)"""
    resumed = asyncio.get_running_loop().create_future()
    return resumed, purgatory.park(logs, min_bytes, max_wait_ms, lambda: resumed.set_result(None))


async def parked(purgatory: FetchPurgatory, *logs: AwaitedLog, min_bytes: int = 1) -> asyncio.Future[None]:
    """A fetch that waits now."""
    resumed, _ = park(purgatory, *logs, min_bytes=min_bytes)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not resumed.done()
    return resumed


def test_an_append_in_another_thread_wakes_the_loop(
    loop: asyncio.AbstractEventLoop, log: PartitionLog
) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        task = await parked(purgatory, at_end(log))
        await loop.run_in_executor(None, log.append, sent())
        await task

    run(loop, steps)
    assert log.when_moved is None


def test_many_appends_wake_the_loop_once(
    loop: asyncio.AbstractEventLoop, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = list[object]()
    wake = loop.call_soon_threadsafe

    def append_some() -> None:
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call: wakes.append(wake(call)))
        for _ in range(20):
            log.append(sent())
        monkeypatch.setattr(loop, "call_soon_threadsafe", wake)

    async def steps(purgatory: FetchPurgatory) -> None:
        task = await parked(purgatory, at_end(log), min_bytes=1 << 20)
        # In the loop's thread, which cannot count between two appends; but the hook shall not know that.
        purgatory._loop_thread = 0
        append_some()
        assert len(wakes) == 1
        await asyncio.sleep(0)
        assert not task.done()
        purgatory.close()
        await task

    run(loop, steps)


def test_a_wake_counts_and_reads_nothing(
    loop: asyncio.AbstractEventLoop, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.broker.purgatory.read", None)
    waited = at_end(log)

    async def steps(purgatory: FetchPurgatory) -> None:
        one = log.size
        task = await parked(purgatory, waited, min_bytes=3 * one)
        for number in range(1, 4):
            assert not task.done()
            log.append(sent())
            await asyncio.sleep(0)
            assert waited.available == number * one
        await task

    run(loop, steps)


def test_fetches_of_one_log_are_woken_each_by_itself(
    loop: asyncio.AbstractEventLoop, log: PartitionLog
) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        one = log.size
        few, many = (
            await parked(purgatory, at_end(log)),
            await parked(purgatory, at_end(log), min_bytes=2 * one),
        )
        log.append(sent())
        await few
        assert not many.done()
        assert log.when_moved is not None
        log.append(sent())
        await many

    run(loop, steps)
    assert log.when_moved is None


def test_a_fetch_counts_no_more_of_a_log_than_it_would_read(
    loop: asyncio.AbstractEventLoop, log: PartitionLog, tmp_path: Path
) -> None:
    other = open_partition(tmp_path / "topic-1")

    async def steps(purgatory: FetchPurgatory) -> None:
        task = await parked(purgatory, at_end(log, max_bytes=10), at_end(other, max_bytes=10), min_bytes=20)
        for _ in range(5):
            log.append(sent())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        other.append(sent())
        await task

    run(loop, steps)
    assert other.when_moved is None


def test_records_appended_before_a_fetch_waits_count(
    loop: asyncio.AbstractEventLoop, log: PartitionLog
) -> None:
    waited = at_end(log)
    log.append(sent())

    async def steps(purgatory: FetchPurgatory) -> None:
        await park(purgatory, waited)[0]

    run(loop, steps)


def test_a_parked_fetch_ends_when_its_time_is_over(
    loop: asyncio.AbstractEventLoop, log: PartitionLog
) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        await park(purgatory, at_end(log), max_wait_ms=1)[0]
        await park(purgatory, max_wait_ms=1)[0]

    run(loop, steps)
    assert log.when_moved is None


def test_a_connection_that_is_cut_leaves_nothing(loop: asyncio.AbstractEventLoop, log: PartitionLog) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        stays, goes = park(purgatory, at_end(log)), park(purgatory, at_end(log), max_wait_ms=1)
        purgatory.forget(goes[1])
        purgatory.forget(goes[1])
        assert purgatory.parked == 1
        log.append(sent())
        await stays[0]
        await park(purgatory, max_wait_ms=2)[0]
        assert not goes[0].done()

    run(loop, steps)
    assert log.when_moved is None


def test_a_fetch_of_several_logs_that_move_together_is_resumed_once(
    loop: asyncio.AbstractEventLoop, log: PartitionLog, tmp_path: Path
) -> None:
    other = open_partition(tmp_path / "topic-1")

    async def steps(purgatory: FetchPurgatory) -> None:
        resumed = await parked(purgatory, at_end(log), at_end(other))
        log.append(sent())
        other.append(sent())
        await resumed  # a second call of ``set_result`` would raise
        await asyncio.sleep(0)

    run(loop, steps)
    assert log.when_moved is other.when_moved is None


def test_a_broker_that_stops_lets_no_fetch_wait(loop: asyncio.AbstractEventLoop, log: PartitionLog) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        tasks = [await parked(purgatory, at_end(log)) for _ in range(3)]
        purgatory.close()
        await asyncio.gather(*tasks)
        await park(purgatory, at_end(log))[0]

    run(loop, steps)


def test_an_append_succeeds_after_the_loop_is_closed(
    loop: asyncio.AbstractEventLoop, log: PartitionLog
) -> None:
    purgatory = FetchPurgatory(loop, FetchTurns(loop))
    log.when_moved = purgatory._mark
    loop.close()
    assert log.append(sent()).first_offset == 1


def test_a_log_that_is_closed_or_truncated_wakes(loop: asyncio.AbstractEventLoop, log: PartitionLog) -> None:
    async def steps(purgatory: FetchPurgatory) -> None:
        task = await parked(purgatory, at_end(log), min_bytes=1 << 30)
        log.truncate_to(0)
        await task
        task = await parked(purgatory, at_end(log), min_bytes=1 << 30)
        log.close()
        await task

    run(loop, steps)
