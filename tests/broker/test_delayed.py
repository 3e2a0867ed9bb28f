"""Answers that come later: to whom they are delivered, and what a cancelled one leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from siltstone.broker.delayed import DelayedResponse, awaited


class Refused(Exception):
    """An error of a handler."""


def delivered(delayed: DelayedResponse) -> list[Any]:
    """What is delivered, from now on."""
    outcomes = list[Any]()
    delayed.deliver_to(outcomes.append)
    return outcomes


def test_what_is_made_of_a_response_is_delivered_at_once() -> None:
    delayed = DelayedResponse()
    outcomes = delivered(delayed)
    delayed.encode = lambda outcome: [f"encoded {outcome}"]
    delayed.complete("response")
    assert outcomes == [["encoded response"]]


def test_an_error_is_encoded_and_what_encode_raises_is_delivered() -> None:
    error, delayed = Refused(), DelayedResponse()
    outcomes = delivered(delayed)
    delayed.complete(error)
    assert outcomes == [error]
    other = DelayedResponse()
    outcomes = delivered(other)
    other.encode = lambda outcome: ["the response of an error"]
    other.complete(error)
    assert outcomes == [["the response of an error"]]


def test_an_answer_that_is_complete_before_its_delivery_is_delivered() -> None:
    delayed = DelayedResponse()
    delayed.complete("response")
    assert delivered(delayed) == ["response"]


def test_a_cancelled_answer_is_not_delivered() -> None:
    cancelled = list[str]()
    delayed = DelayedResponse(on_cancel=lambda: cancelled.append("cancelled"))
    outcomes = delivered(delayed)
    delayed.cancel()
    delayed.complete("too late")
    assert (outcomes, cancelled) == ([], ["cancelled"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_coroutine_that_ends_delivers(fails: bool) -> None:
    async def answer() -> str:
        await asyncio.sleep(0)
        if fails:
            raise Refused
        return "answer"

    async def steps() -> list[Any]:
        outcomes = delivered(awaited(answer(), asyncio.get_running_loop()))
        for _ in range(4):
            await asyncio.sleep(0)
        return outcomes

    (outcome,) = asyncio.run(steps())
    assert isinstance(outcome, Refused) if fails else outcome == "answer"


def test_a_coroutine_whose_answer_is_cancelled_is_cancelled() -> None:
    ended = list[str]()

    async def answer() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def steps() -> list[Any]:
        delayed = awaited(answer(), asyncio.get_running_loop())
        outcomes = delivered(delayed)
        delayed.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        return outcomes

    assert (asyncio.run(steps()), ended) == ([], ["cancelled"])


def test_a_coroutine_that_is_cancelled_by_others_ends_the_connection() -> None:
    async def steps() -> list[Any]:
        task = asyncio.ensure_future(asyncio.sleep(60))
        outcomes = delivered(awaited(task, asyncio.get_running_loop()))
        task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        return outcomes

    assert [type(outcome) for outcome in asyncio.run(steps())] == [asyncio.CancelledError]


def test_an_answer_is_awaited_or_cancelled_with_the_coroutine_that_waits() -> None:
    async def steps() -> None:
        async def wait(delayed: DelayedResponse) -> Any:
            return await delayed

        first, second, third = DelayedResponse(), DelayedResponse(), DelayedResponse()
        tasks = [asyncio.ensure_future(wait(delayed)) for delayed in (first, second, third)]
        await asyncio.sleep(0)
        first.complete("response")
        second.complete(Refused())
        tasks[2].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[0] == "response"
        assert [type(outcome) for outcome in outcomes[1:]] == [Refused, asyncio.CancelledError]
        assert third.is_cancelled
        third.complete("too late")

    asyncio.run(steps())
