"""Scans in the background: what a request gets, and when the next one begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.errors import BusyError, UsageError
from siltstone.commands import scans
from siltstone.commands.scans import AGAIN_MS, Report, Scans
from tests.support.thread_starts import no_thread_starts


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def kept(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scans]:
    monkeypatch.setattr(scans, "FIRST_SECONDS", 0)
    with Scans(clock) as kept:
        yield kept


class Held:
    """A scan that reports its progress, sets ``told``, and continues when ``go`` is set."""

    def __init__(self) -> None:
        self.go, self.told, self.count = threading.Event(), threading.Event(), 0

    def __call__(self, report: Report) -> int:
        report(3, 7)
        self.told.set()
        assert self.go.wait(20)
        report(4, 7)
        self.count += 1
        return self.count


def test_a_request_is_answered_at_once_with_what_is_known(kept: Scans, clock: ManualClock) -> None:
    held = Held()
    assert kept.of("a", held).is_first and held.told.wait(20)
    scan = kept.of("a", held)
    assert scan.is_first and (scan.done, scan.total) == (3, 7)
    assert scan.to_json() == {
        "at_ms": None,
        "error": None,
        "scanning": {"logs_done": 3, "logs_total": 7},
        "looking": {"logs_done": 3, "logs_total": 7},  # the earlier name
    }
    with pytest.raises(BusyError, match="being scanned: 3 of 7 are done"):
        scan.result()
    clock.advance(300)
    held.go.set()
    kept.wait("a")
    scan = kept.of("a", held)
    assert (scan.result(), scan.at_ms, scan.is_running) == (1, 1_000_000, False)
    # The next scan begins after five seconds and ten times as long as the last one took.
    clock.advance(AGAIN_MS + 3_000 - 1)
    assert not kept.of("a", held).is_running
    clock.advance(1)
    held.go.clear()
    held.told.clear()
    kept.of("a", held)
    assert held.told.wait(20)
    scan = kept.of("a", held)
    assert scan.is_running and scan.result() == 1  # what is known stays until there is more
    held.go.set()
    kept.wait("a")
    assert kept.of("a", held).result() == 2


def test_one_scan_is_made_at_a_time(kept: Scans) -> None:
    first, second = Held(), Held()
    kept.of("a", first)
    kept.of("b", second)
    second.go.set()
    assert first.told.wait(20) and kept.of("b", second).is_running and not second.told.is_set()
    first.go.set()
    kept.wait("b")
    assert kept.of("b", second).found == kept.of("a", first).found == 1


@pytest.mark.parametrize(
    "error", [UsageError("it is damaged"), OSError("it is damaged"), ValueError("it is damaged")]
)
def test_a_scan_that_fails_says_why_and_keeps_what_was_known(
    kept: Scans, clock: ManualClock, error: Exception
) -> None:
    def fail(report: Report) -> int:
        raise error

    kept.of("a", lambda report: 5)
    kept.wait("a")
    clock.advance(AGAIN_MS)
    kept.of("a", fail)
    kept.wait("a")
    scan = kept.of("a", fail)
    assert scan.found == 5 and scan.error is not None and "it is damaged" in scan.error
    kept.of("b", fail)
    kept.wait("b")
    scan = kept.of("b", fail)
    assert not scan.is_first and not scan.is_running
    with pytest.raises(BusyError, match="it is damaged"):
        scan.result()
    clock.advance(-1_000)  # a clock that was set back does not put the next scan off
    assert kept.of("b", lambda report: 6).is_running
    kept.wait("b")
    assert kept.of("b", fail).result() == 6


def test_closing_ends_a_scan_at_its_next_report(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "FIRST_SECONDS", 0)
    kept, held = Scans(clock), Held()
    kept.of("a", held)
    assert held.told.wait(20)
    kept._is_closed = True  # as ``close`` does before it waits
    held.go.set()
    kept.close()
    assert held.count == 0 and kept.of("a", held).found is None


def test_a_request_after_the_end_gets_what_is_known_or_why_nothing_is(clock: ManualClock) -> None:
    with Scans(clock) as ended:
        ended.of("a", lambda report: 1)
        ended.wait("a")
    clock.advance(100 * AGAIN_MS)
    assert ended.of("a", lambda report: 2).result() == 1
    with pytest.raises(BusyError, match="the server is being stopped"):
        ended.of("b", lambda report: 2).result()


def test_a_scan_that_cannot_be_started_says_why_and_the_next_one_begins(
    kept: Scans, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    with no_thread_starts(monkeypatch):
        scan = kept.of("a", lambda report: ran.append(1))
    with pytest.raises(BusyError, match="could not be started: can't start new thread"):
        scan.result()
    assert not scan.is_running
    clock.advance(AGAIN_MS)
    kept.of("a", lambda report: 2)
    kept.wait("a")
    assert kept.of("a", lambda report: 3).result() == 2 and not ran
