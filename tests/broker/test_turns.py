"""Turns of fetches and other requests: none of them waits for long, on a loop whose time the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from siltstone.broker.turns import SHARE, SLICE_SECONDS, FetchTurns

FETCH_SECONDS = SLICE_SECONDS / 4


class Day:
    """A loop's turns, one after another: ``order`` has F for each fetch that was carried out, O for each
    other request. There is another request in each turn of the loop, which takes ``other_seconds``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.now, self.order, self.other_seconds = loop, 1_000.0, list[str](), 0.0
        loop.time = lambda: self.now  # type: ignore[method-assign]
        self.turns = FetchTurns(loop)

    def fetch(self, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
        def carry_out() -> None:
            self.now += FETCH_SECONDS
            self.order.append("F")
            then()

        return carry_out

    def turn(self, times: int) -> str:
        """Turn the loop so often; what was done, in order."""

        async def turn() -> None:
            for _ in range(times):
                await asyncio.sleep(0)
                self.now += self.other_seconds
                self.order.append("O")

        self.loop.run_until_complete(turn())
        return "".join(self.order)


def longest_wait(order: str) -> int:
    """The most fetches between two of the other requests."""
    return max(map(len, order.split("O")[1:]))


@pytest.fixture
def day() -> Iterator[Day]:
    loop = asyncio.new_event_loop()
    yield Day(loop)
    loop.close()


def test_another_request_waits_for_a_few_fetches_only(day: Day) -> None:
    for _ in range(1_000):
        day.turns.add(day.fetch())
    order = day.turn(300)
    assert order.count("F") == 1_000
    assert longest_wait(order) == 4


def test_a_fetch_that_asks_again_and_again_keeps_no_other_request_waiting(day: Day) -> None:
    def again() -> None:
        if day.order.count("F") < 500:
            day.turns.add(day.fetch(again))

    for _ in range(50):
        day.turns.add(day.fetch(again))
    assert longest_wait(day.turn(400)) == 4


def test_fetches_have_their_share_however_long_others_take(day: Day) -> None:
    day.other_seconds = 100 * SLICE_SECONDS
    for _ in range(10_000):
        day.turns.add(day.fetch())
    day.turn(2)
    slices = day.turn(20).split("O")[3:-1]
    assert len(slices) >= 18
    share = day.other_seconds / SHARE / FETCH_SECONDS
    assert all(share <= len(fetches) <= share + 1 for fetches in slices)


def test_a_long_time_without_fetches_gives_no_long_slice(day: Day) -> None:
    day.turns.add(day.fetch())
    day.turn(3)
    day.now += 1_000
    for _ in range(100):
        day.turns.add(day.fetch())
    day.order.clear()
    assert longest_wait(day.turn(50)) == 4


def test_a_fetch_begins_at_once_unless_there_were_many(day: Day) -> None:
    turns, at_once = day.turns, 0
    while turns.is_free:
        began = day.now
        day.fetch()()
        turns.count(began)
        at_once += 1
    assert 2 <= at_once <= 5
    day.now += SLICE_SECONDS
    assert turns.is_free
    turns.add(day.fetch())
    assert not turns.is_free
    day.turn(2)
    assert turns.is_free


def test_a_fetch_that_fails_does_not_stop_the_others(day: Day) -> None:
    reported = list[str]()
    day.loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

    def fail() -> None:
        raise ValueError("a bug")

    for fetch in (day.fetch(), fail, day.fetch()):
        day.turns.add(fetch)
    assert day.turn(10).count("F") == 2
    assert reported == ["a bug"]
    assert day.turns.is_free
