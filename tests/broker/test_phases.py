"""Phases of requests: what each is of a request that waits, is parked, is throttled, and is sent slowly."""

from __future__ import annotations

import time

from siltstone.broker.counts import BOUNDS_MS, ApiCounts, PhaseCounts
from siltstone.broker.request_context import Activity, ConnectionInfo, ResponsePart
from tests.broker.test_connection import echo, frame
from tests.support.turned_loop import TurnedLoop


def answered(counts: ApiCounts, seconds: float, **of_activity: float) -> Activity:
    activity = Activity(begun_at=100.0, **of_activity)  # type: ignore[arg-type]
    counts.answered(10, 20, seconds)
    counts.note_phases(activity, seconds, 100.0 + seconds)
    return activity


def at_most(buckets: list[int], bound_ms: float) -> int:
    return sum(buckets[: BOUNDS_MS.index(bound_ms) + 1])


def test_the_phases_of_a_plain_request_are_its_time_alone() -> None:
    counts = ApiCounts()
    answered(counts, 0.004)
    phases = counts.phases()
    assert all(sum(buckets) == 1 for buckets, _ in phases.values())
    assert phases["localtimems"] == (counts.buckets, 0.004)
    for name in ("requestqueuetimems", "remotetimems", "throttletimems", "responsesendtimems"):
        assert phases[name] == ([1] + [0] * len(BOUNDS_MS), 0.0)


def test_a_wait_for_records_is_remote_and_the_rest_is_local() -> None:
    counts = ApiCounts()
    answered(counts, 0.502, parked_seconds=0.5)
    answered(counts, 0.002)
    answered(counts, 0.00002, parked_seconds=0.00001)  # records came at once
    phases = counts.phases()
    local, remote = phases["localtimems"], phases["remotetimems"]
    assert (at_most(local[0], 2.5), sum(local[0])) == (3, 3)
    assert (at_most(remote[0], 0.05), at_most(remote[0], 500), sum(remote[0])) == (2, 3, 3)
    assert abs(local[1] - 0.00401) < 1e-9 and abs(remote[1] - 0.50001) < 1e-9


def test_waits_and_throttling_have_their_bounds() -> None:
    counts = ApiCounts()
    answered(counts, 0.001, received_at=99.9)
    answered(counts, 0.001, throttle_ms=5_000)
    phases = counts.phases()
    assert at_most(phases["requestqueuetimems"][0], 50) == 1
    assert at_most(phases["requestqueuetimems"][0], 250) == 2
    assert at_most(phases["throttletimems"][0], 2_500) == 1
    assert at_most(phases["throttletimems"][0], 5_000) == 2
    assert phases["throttletimems"][1] == 5.0


def test_the_time_of_sending_ends_when_the_peer_has_taken_all() -> None:
    sent = PhaseCounts()

    def answer(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
        assert info.activity.received_at > 0
        info.activity.answered_at, info.activity.sent_phase = time.perf_counter() - 1, sent
        info.activity.unsent += 1
        return [*echo(request, info), bytes(8 << 20)]

    with TurnedLoop(answer, request_bytes_max=1 << 20) as turned:
        peer = turned.connect()
        peer.send(frame(b"x"))
        assert sent.seconds == 0.0
        assert len(peer.receive()) > 8 << 20
        assert 1 <= sent.seconds < 60 and sum(sent.buckets) == 1
