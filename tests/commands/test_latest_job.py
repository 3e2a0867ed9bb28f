"""The progress of the job that finds last records."""

from __future__ import annotations

from typing import Any, cast

from siltstone.commands.latest_job import _Budget


class RecordedProgress:
    """A job's progress that records the bytes that are reported to it."""

    def __init__(self) -> None:
        self.bytes: list[tuple[int, int]] = []

    def check(self) -> None:
        """It is not cancelled."""

    def __call__(self, name: str, step: str, done: int, total: int) -> None:
        self.bytes.append((done, total))


def test_the_progress_is_up_to_the_end_of_the_reading_that_runs() -> None:
    progress = RecordedProgress()
    budget = _Budget(cast(Any, progress), "users-0", 100)
    for spent in (0, 60, 100, 101, 200):
        budget.spent = spent
        assert not budget.is_over
    assert progress.bytes == [(0, 100), (60, 100), (100, 100), (101, 200), (200, 200)]
