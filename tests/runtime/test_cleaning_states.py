"""Who may touch a log's closed segments: Kafka's states, alone and with real threads."""

from __future__ import annotations

import random
import threading

import pytest

from siltstone.base.errors import CleaningAbortedError
from siltstone.log.names import TopicPartition
from siltstone.runtime.cleaning_states import IN_PROGRESS, NONE, CleaningStates, Phase, State, paused
from tests.support.cleaning.serving import in_background

WHERE = TopicPartition("topic", 0)
SOON = 5


def until(states: CleaningStates, expected: State) -> None:
    with states._condition:
        assert states._condition.wait_for(lambda: states.state(WHERE) == expected, SOON), states.state(WHERE)


def test_pauses_count_up_and_down() -> None:
    states = CleaningStates()
    observed = [states.state(WHERE)]
    for call in (states.abort_and_pause, states.abort_and_pause, states.resume, states.resume):
        call(WHERE)
        observed.append(states.state(WHERE))
    assert observed == [NONE, paused(1), paused(2), paused(1), NONE]


def test_a_claim_counts_until_it_is_done_also_after_an_abort() -> None:
    states = CleaningStates()
    assert states.wait_until_unclaimed(WHERE)
    claim = states.begin(WHERE)
    assert claim is not None
    states.abort(WHERE)
    assert states.state(WHERE) == NONE and not states.wait_until_unclaimed(WHERE, 0)
    thread = in_background(lambda: states.wait_until_unclaimed(WHERE))
    claim.done()
    thread.join(SOON)
    assert not thread.is_alive() and states.wait_until_unclaimed(WHERE, 0)


def test_an_abort_waits_until_the_cleaners_change_has_ended() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None and states.state(WHERE) == IN_PROGRESS
    with claim.uninterrupted():
        thread = in_background(lambda: states.abort_and_pause(WHERE))
        until(states, State(Phase.ABORTED, 1))
        assert thread.is_alive()
        with pytest.raises(CleaningAbortedError):
            claim.check()
    thread.join(SOON)
    assert not thread.is_alive()
    assert states.state(WHERE) == paused(1)
    claim.done()
    assert states.state(WHERE) == paused(1)


def test_an_abort_outside_of_a_change_takes_effect_at_once() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    states.abort_and_pause(WHERE)
    assert states.state(WHERE) == paused(1)
    with pytest.raises(CleaningAbortedError), claim.uninterrupted():
        raise AssertionError("the log is not this cleaner's")
    states.resume(WHERE)
    assert states.state(WHERE) == NONE


def test_an_aborted_claim_keeps_other_cleaners_away_until_it_is_done() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    states.abort(WHERE)
    assert states.state(WHERE) == NONE
    assert states.begin(WHERE) is None
    claim.done()
    other = states.begin(WHERE)
    assert other is not None
    claim.done()
    other.check()


def test_two_threads_that_abort_have_two_pauses() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    with claim.uninterrupted():
        threads = [in_background(lambda: states.abort_and_pause(WHERE)) for _ in range(2)]
        until(states, State(Phase.ABORTED, 2))
    for thread in threads:
        thread.join(SOON)
    assert states.state(WHERE) == paused(2)


def test_a_failed_disk_aborts_without_waiting_even_amid_a_change() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    with claim.uninterrupted():
        states.abort(WHERE)
        assert states.state(WHERE) == State(Phase.ABORTED, 0)
    assert states.state(WHERE) == NONE
    with pytest.raises(CleaningAbortedError):
        claim.check()


def test_a_cleaning_that_is_done_leaves_nothing() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    assert states.begin(WHERE) is None
    with claim.uninterrupted():
        claim.check()
    claim.done()
    claim.done()
    assert states.state(WHERE) == NONE


def test_retention_never_has_a_log_that_a_cleaner_has() -> None:
    states = CleaningStates()
    assert states.try_pause(WHERE)
    assert states.begin(WHERE) is None
    assert states.try_pause(WHERE)
    states.resume(WHERE)
    states.resume(WHERE)
    claim = states.begin(WHERE)
    assert claim is not None
    assert not states.try_pause(WHERE)
    assert states.state(WHERE) == IN_PROGRESS
    with claim.uninterrupted():
        states.abort(WHERE)
        assert not states.try_pause(WHERE)


def test_a_log_is_paused_while_its_policy_lacks_compact() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    states.set_is_compacted(WHERE, False)
    states.set_is_compacted(WHERE, False)
    assert claim.has_ended and states.state(WHERE) == paused(1)
    assert states.try_pause(WHERE)
    states.resume(WHERE)
    states.set_is_compacted(WHERE, True)
    states.set_is_compacted(WHERE, True)
    assert states.state(WHERE) == NONE


def test_a_policy_that_comes_back_while_the_first_change_waits_leaves_no_pause() -> None:
    states = CleaningStates()
    claim = states.begin(WHERE)
    assert claim is not None
    with claim.uninterrupted():
        thread = in_background(lambda: states.set_is_compacted(WHERE, False))
        until(states, State(Phase.ABORTED, 1))
        states.set_is_compacted(WHERE, True)
    thread.join(SOON)
    assert not thread.is_alive()
    assert states.state(WHERE) == NONE


def test_a_log_that_is_not_paused_cannot_be_resumed() -> None:
    with pytest.raises(AssertionError, match="cannot be resumed: it is in state None"):
        CleaningStates().resume(WHERE)


@pytest.mark.parametrize("seed", range(5))
def test_many_threads_never_have_one_log_at_once(seed: int) -> None:
    states, inside, errors = CleaningStates(), [0], list[str]()

    def have_it() -> None:
        inside[0] += 1
        if inside[0] != 1:
            errors.append(f"{inside[0]} at once")
        inside[0] -= 1

    def clean() -> None:
        for _ in range(300):
            claim = states.begin(WHERE)
            if claim is None:
                continue
            try:
                for _ in range(3):
                    with claim.uninterrupted():
                        have_it()
            except CleaningAbortedError:
                pass
            claim.done()

    shorten = threading.Lock()

    def truncate() -> None:
        rng = random.Random(seed)
        for _ in range(300):
            if rng.random() < 0.5:
                with states.aborted_and_paused(WHERE), shorten:
                    have_it()
            elif states.try_pause(WHERE):
                with shorten:
                    have_it()
                states.resume(WHERE)

    threads = [in_background(call) for call in (clean, clean, truncate, truncate)]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert states.state(WHERE) == NONE
