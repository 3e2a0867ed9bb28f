"""Fetch sessions: who gets one, who loses it, and how much they may take."""

from __future__ import annotations

import pytest

from siltstone.broker import sessions as room
from siltstone.broker.errors import RequestRefusedError
from siltstone.broker.sessions import IDLE_SECONDS, FetchSessionCache, partitions_of
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

OLD = IDLE_SECONDS + 1


def fetch_request(
    *numbers: int, session: int = 0, epoch: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    """A request for partitions of one topic."""
    rows = tuple(FetchPartition(partition=number, fetch_offset=number) for number in numbers)
    forgotten = (ForgottenTopic(topic="t", partitions=forget),) if forget else ()
    topics = (FetchTopic(topic="t", partitions=rows),)
    return FetchRequest(
        session_id=session, session_epoch=epoch, topics=topics, forgotten_topics_data=forgotten
    )


def begun(sessions: FetchSessionCache, size: int = 1, *, slots: int = 2, now: float = 0.0) -> int:
    partitions = partitions_of(fetch_request(*range(size)), by_id=False)
    return sessions.begin(partitions, by_id=False, slots=slots, now=now)


def code_of(sessions: FetchSessionCache, request: FetchRequest, *, by_id: bool = False) -> int:
    with pytest.raises(RequestRefusedError) as refused:
        sessions.resume(request, by_id=by_id, now=0.0)
    return refused.value.code


def test_a_session_is_begun_while_there_are_slots() -> None:
    sessions = FetchSessionCache()
    first, second = begun(sessions), begun(sessions)
    assert 0 < first != second > 0
    assert begun(sessions) == 0
    assert begun(sessions, slots=3) > 0
    assert (len(sessions), sessions.partitions) == (3, 3)
    assert begun(FetchSessionCache(), slots=0) == 0


def test_a_session_that_is_idle_for_long_makes_room() -> None:
    sessions = FetchSessionCache()
    first, second = begun(sessions), begun(sessions, now=1.0)
    assert begun(sessions, now=IDLE_SECONDS) == 0
    assert sessions.resume(fetch_request(session=first, epoch=1), by_id=False, now=2.0) is not None
    assert begun(sessions, now=OLD + 0.5) > 0  # the second was used last at 1
    assert code_of(sessions, fetch_request(session=second, epoch=1)) == 70
    assert sessions.resume(fetch_request(session=first, epoch=2), by_id=False, now=OLD) is not None


def test_a_smaller_old_session_makes_room_for_a_larger_one() -> None:
    sessions = FetchSessionCache()
    large, small = begun(sessions, 3), begun(sessions, 2)
    assert begun(sessions, 9, now=100.0) == 0  # none is old yet
    for number in (large, small):
        assert sessions.resume(fetch_request(session=number, epoch=1), by_id=False, now=OLD) is not None
    assert begun(sessions, 2, now=OLD) == 0
    assert begun(sessions, 3, now=OLD) > 0
    assert code_of(sessions, fetch_request(session=small, epoch=2)) == 70
    assert sessions.partitions == 6


def test_all_partitions_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PARTITIONS_MAX", 5)
    sessions = FetchSessionCache()
    assert begun(sessions, 6, slots=9) == 0
    first = begun(sessions, 3, slots=9)
    assert begun(sessions, 3, slots=9) == 0
    second = begun(sessions, 2, slots=9)
    # One that grows beyond is lost, and its client begins anew; one that shrinks or stays is not.
    assert sessions.resume(fetch_request(0, session=first, epoch=1), by_id=False, now=0.0) is not None
    assert code_of(sessions, fetch_request(7, session=second, epoch=1)) == 70
    assert (len(sessions), sessions.partitions) == (1, 3)
    assert begun(sessions, 5, slots=9, now=OLD) > 0  # what was idle for long makes room
    assert (len(sessions), sessions.partitions) == (1, 5)


def test_a_session_is_resumed_with_its_next_epoch_only() -> None:
    sessions = FetchSessionCache()
    number = begun(sessions)
    for wrong in (-7, 2, 1 << 30):
        assert code_of(sessions, fetch_request(session=number, epoch=wrong)) == 71
    for stranger in (-1, 0, number ^ 1):
        assert code_of(sessions, fetch_request(session=stranger, epoch=1)) == 70
    session = sessions.resume(fetch_request(session=number, epoch=1), by_id=False, now=0.0)
    assert session is not None
    assert (session.epoch, session.is_after(1), session.is_after(0)) == (2, True, False)
    assert code_of(sessions, fetch_request(session=number, epoch=1)) == 71
    session.epoch = (1 << 31) - 1
    assert (
        sessions.resume(fetch_request(session=number, epoch=(1 << 31) - 1), by_id=False, now=0.0) is session
    )
    assert session.epoch == 1
    assert code_of(sessions, fetch_request(session=number, epoch=1), by_id=True) == 106
    assert session.epoch == 1


def test_partitions_of_a_session_come_change_and_go() -> None:
    sessions = FetchSessionCache()
    number = begun(sessions, 3)
    request = fetch_request(1, 5, session=number, epoch=1, forget=(0, 9, 5))
    session = sessions.resume(request, by_id=False, now=0.0)
    assert session is not None
    assert [key[1] for key in session.partitions] == [1, 2]
    session.move_to_end(session.partitions["t", 1])
    assert [key[1] for key in session.partitions] == [2, 1]
    lost = session.partitions["t", 2]
    sessions.resume(fetch_request(session=number, epoch=2, forget=(2,)), by_id=False, now=0.0)
    session.move_to_end(lost)  # it was forgotten while its records were read
    assert (list(session.partitions), sessions.partitions) == ([("t", 1)], 1)
    assert sessions.resume(fetch_request(session=number, epoch=3, forget=(1,)), by_id=False, now=0.0) is None
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_only_its_own_number_ends_a_session() -> None:
    sessions = FetchSessionCache()
    number = begun(sessions, 3)
    for stranger in (0, -1, number ^ 1):
        sessions.end(stranger)
    assert sessions.partitions == 3
    sessions.end(number)
    sessions.end(number)
    assert (len(sessions), sessions.partitions) == (0, 0)
