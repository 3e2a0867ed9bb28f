"""What is due when: pure, and by a thread."""

from __future__ import annotations

import threading

import pytest

from siltstone.base.clock import ManualClock
from siltstone.runtime.upkeep import Scheduler, Ticker


def test_periodic_and_single_tasks_run_when_they_are_due() -> None:
    scheduler, ran = Scheduler(), []
    scheduler.schedule("five", lambda: ran.append("five"), due_ms=10, period=lambda: 5)
    scheduler.schedule("once", lambda: ran.append("once"), due_ms=12)
    assert scheduler.next_ms == 10
    assert scheduler.tick(9) == []
    assert scheduler.tick(10) == ["five"]
    assert scheduler.tick(10) == []
    assert scheduler.tick(15) == ["once", "five"]
    assert scheduler.next_ms == 20 and ran == ["five", "once", "five"]


def test_missed_runs_of_a_task_run_once() -> None:
    scheduler = Scheduler()
    scheduler.schedule("ten", lambda: None, due_ms=0, period=lambda: 10)
    assert scheduler.tick(95) == ["ten"]
    assert scheduler.next_ms == 100
    scheduler.hasten("ten", 97)
    assert scheduler.tick(97) == ["ten"] and scheduler.next_ms == 107
    scheduler.hasten("ten", 200)
    assert scheduler.next_ms == 107


def test_periodic_tasks_do_not_wait_until_a_clock_that_was_set_back_has_caught_up() -> None:
    scheduler = Scheduler()
    scheduler.schedule("ten", lambda: None, due_ms=1000, period=lambda: 10)
    scheduler.schedule("early", lambda: None, due_ms=1000, period=lambda: 2000)
    assert scheduler.tick(1000) == ["ten", "early"]
    scheduler.schedule("once", lambda: None, due_ms=1005)
    assert scheduler.tick(500) == [] and scheduler.next_ms == 510
    assert scheduler.tick(510) == ["ten"] and scheduler.next_ms == 520
    assert scheduler.tick(1005) == ["ten", "once"], "what is to be kept for a time is kept that long"
    assert scheduler.tick(2500) == ["ten", "early"]


def test_a_period_may_change_and_a_task_may_add_tasks() -> None:
    scheduler, period = Scheduler(), [10]

    def add() -> None:
        scheduler.schedule("added", list, due_ms=0)

    scheduler.schedule("some", add, due_ms=0, period=lambda: period[0])
    period[0] = 3
    assert scheduler.tick(0) == ["some"]
    assert scheduler.tick(2) == ["added"]
    assert scheduler.tick(3) == ["some"]


def test_a_task_that_fails_does_not_stop_the_others() -> None:
    scheduler, ran = Scheduler(), []

    def fail() -> None:
        raise ValueError("no")

    scheduler.schedule("bad", fail, due_ms=0, period=lambda: 10)
    scheduler.schedule("good", lambda: ran.append(1), due_ms=1)
    with pytest.raises(ValueError, match="no"):
        scheduler.tick(5)
    assert ran == [1] and scheduler.next_ms == 10


def test_a_thread_ticks_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, clock = Scheduler(), ManualClock(0)
    ran, failed = threading.Event(), threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("told of, and gone on")

    ticker = Ticker(lambda: scheduler.tick(clock.now_ms()), scheduler, clock)
    scheduler.schedule("bad", fail, due_ms=0)
    assert failed.wait(60)
    scheduler.schedule("good", ran.set, due_ms=0)
    assert ran.wait(60)
    ticker.stop()
    ran.clear()
    scheduler.schedule("late", ran.set, due_ms=0)
    assert not ran.is_set()
    assert "A periodic task failed" in caplog.text
