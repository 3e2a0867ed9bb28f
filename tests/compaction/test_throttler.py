"""A task reads and writes no faster than its share of the limit."""

from __future__ import annotations

import math
import sys

import pytest

from siltstone.compaction import work
from siltstone.compaction.work import UNLIMITED, Throttler, share_of_io


class Time:
    """Stands still but for sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds <= 1.0, "an interrupt would wait"
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(work, "time", clock)
    return clock


def test_a_task_waits_until_its_bytes_are_due(time: Time) -> None:
    throttler = Throttler(1000)
    throttler.maybe_throttle(500)
    assert time.now == pytest.approx(100.5)
    time.now += 2
    throttler.maybe_throttle(1000)
    assert time.now == pytest.approx(102.5), "what was not used may be caught up with"
    throttler.maybe_throttle(4000)
    assert time.now == pytest.approx(105.5)


def test_without_a_limit_no_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "time", None)
    Throttler(UNLIMITED).maybe_throttle(1 << 40)


def test_tasks_share_what_is_limited() -> None:
    assert share_of_io(1000.0, 4) == 250.0 and share_of_io(1000.0, 0) == 1000.0
    assert share_of_io(sys.float_info.max, 4) == math.inf
