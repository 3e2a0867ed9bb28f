"""Rates, buckets, whose quota holds, and for how long a client is throttled: by the test's clock."""

from __future__ import annotations

import itertools
import math
import random
import socket
import tracemalloc

import pytest

from siltstone.broker.quotas import (
    ANONYMOUS,
    CONNECTION,
    FETCH,
    METERS_MAX,
    MUTATION,
    PRODUCE,
    REQUEST,
    QuotaGroup,
    QuotaManager,
    QuotaTable,
    QuotaWindows,
    Rate,
    TokenBucket,
)
from siltstone.broker.request_context import Activity, ConnectionInfo, RequestContext, ResponsePart
from siltstone.broker.server import DELAYED_MAX
from siltstone.runtime.quotas import Quotas
from tests.broker.test_connection import echo, frame
from tests.support.turned_loop import LISTENER, TurnedLoop

DEFAULT = None


def context_of(client_id: str | None, version: int = 7) -> RequestContext:
    connection = ConnectionInfo(number=1, listener=LISTENER, peer="192.0.2.1", activity=Activity())
    return RequestContext(
        api_key=0, version=version, correlation_id=1, client_id=client_id, connection=connection
    )


class Limited:
    """A manager, and the time that it sees."""

    def __init__(self, quotas: Quotas) -> None:
        self.now = 1_000.0
        self.manager = QuotaManager(lambda: self.now)
        self.manager.replace(quotas)


# Rates


def test_a_burst_at_the_start_counts_as_if_the_windows_before_had_been_empty() -> None:
    rate = Rate(QuotaWindows())
    rate.record(20_000, 0)
    assert rate.value(0) == (2_000, 10_000)
    assert rate.throttle_ms(1_000, 0) == 10_000
    assert rate.throttle_ms(2_000, 0) == 0
    # As Kafka, it measures again over the time since the first window only once that is over ten seconds.
    assert rate.value(9_000) == (2_000, 10_000)
    assert rate.value(10_500) == (20_000 * 1000 / 10_500, 10_500)
    assert rate.value(11_000)[0] == 0


def test_windows_begin_with_what_is_recorded_and_go_after_eleven_seconds() -> None:
    rate = Rate(QuotaWindows())
    for second in range(30):
        rate.record(100, 1_000 * second)
    assert rate.value(29_000) == (1_100 * 1000 / 10_000, 10_000)
    rate.record(-100, 29_500)
    assert rate.value(29_500)[0] == 1_000 * 1000 / 10_500


def test_one_window_is_a_window_long() -> None:
    rate = Rate(QuotaWindows(samples=1, window_ms=2_000))
    rate.record(10, 0)
    assert rate.value(0) == (5, 2_000)


def test_a_client_that_waits_for_its_throttle_time_keeps_to_its_quota() -> None:
    """Whatever it sends: over a long time it takes what it may, and not much more."""
    chance, limited, sent, begun = (
        random.Random(7),
        Limited({(("client-id", "a"),): {"producer_byte_rate": 1000}}),
        0,
        1_000.0,
    )
    for _ in range(3_000):
        size = chance.choice((10, 200, 5_000))
        sent += size
        limited.now += chance.choice((0.001, 0.01))
        limited.now += limited.manager.record(PRODUCE, context_of("a"), size) / 1000
    assert 900 < sent / (limited.now - begun) < 1_100


# Buckets


def test_a_bucket_is_full_at_first_and_fills_with_the_quotas_rate() -> None:
    bucket = TokenBucket(QuotaWindows())
    assert bucket.tokens(2, 5_000) == 22
    bucket.record(30, 2, 5_000)
    assert bucket.throttle_ms(2, 5_000) == 4_000
    assert bucket.throttle_ms(2, 8_000) == 1_000
    assert bucket.tokens(2, 10_000) == 2
    assert bucket.tokens(2, 1e9) == 22
    assert bucket.tokens(1, 1e9) == 11  # a smaller quota has a smaller bucket


def test_mutations_are_refused_for_clients_that_know_the_error_only() -> None:
    limited = Limited({(("user", ANONYMOUS),): {"controller_mutation_rate": 1.0}})
    strict = limited.manager.mutations(context_of("a", version=6), strict_from=6)
    assert strict.take(12) and strict.throttle_ms == 0  # eleven were there: the last ones are an advance
    assert not strict.take(1)
    assert strict.throttle_ms == 1_000
    older = limited.manager.mutations(context_of("a", version=5), strict_from=6)
    assert older.take(1) and older.throttle_ms == 2_000
    limited.now += 2.5
    assert limited.manager.mutations(context_of("a", version=6), strict_from=6).take(1)
    free = Limited({}).manager.mutations(context_of("a"), strict_from=0)
    assert free.take(1 << 40) and not free.is_set


# Whose quota holds


def test_the_order_of_quotas_is_kafkas() -> None:
    levels = [
        ((("client-id", "c"), ("user", "u")), QuotaGroup("u", "c")),
        ((("client-id", DEFAULT), ("user", "u")), QuotaGroup("u", "c")),
        ((("user", "u"),), QuotaGroup("u", "")),
        ((("client-id", "c"), ("user", DEFAULT)), QuotaGroup("u", "c")),
        ((("client-id", DEFAULT), ("user", DEFAULT)), QuotaGroup("u", "c")),
        ((("user", DEFAULT),), QuotaGroup("u", "")),
        ((("client-id", "c"),), QuotaGroup("", "c")),
        ((("client-id", DEFAULT),), QuotaGroup("", "c")),
    ]
    for first, last in itertools.combinations(range(len(levels) + 1), 2):
        chosen = levels[first:last]
        quotas = {
            entity: {"producer_byte_rate": float(number + 1)} for number, (entity, _) in enumerate(chosen)
        }
        limit = QuotaTable(quotas).of_client(PRODUCE, "u", "c")
        assert limit is not None and limit == (chosen[0][1], 1.0)
    assert QuotaTable({}).of_client(PRODUCE, "u", "c") is None
    others = {
        (("client-id", "d"), ("user", "u")): {"producer_byte_rate": 1.0},
        (("user", "v"),): {"producer_byte_rate": 1.0},
    }
    assert QuotaTable(others).of_client(PRODUCE, "u", "c") is None


@pytest.mark.parametrize("client_id", [None, ""])
def test_a_client_without_an_id_has_the_default_ids_quota(client_id: str | None) -> None:
    limited = Limited({(("client-id", DEFAULT),): {"producer_byte_rate": 5.0}})
    assert limited.manager.bound_of(PRODUCE, context_of(client_id)) == 5.0
    assert (
        Limited({(("user", ANONYMOUS),): {"producer_byte_rate": 6.0}}).manager.bound_of(
            PRODUCE, context_of(client_id)
        )
        == 6.0
    )


def test_what_a_file_should_not_have_limits_nothing() -> None:
    bad = [0.0, -1.0, math.inf, math.nan]
    quotas: Quotas = {
        (("client-id", f"c{number}"),): {"producer_byte_rate": value} for number, value in enumerate(bad)
    }
    quotas = {
        **quotas,
        (("ip", "192.0.2.1"),): {"producer_byte_rate": 1.0},
        (("user", "u"),): {"connection_creation_rate": 1.0},
        (("user", "u"), ("x", "y")): {"no.such": 1.0},
    }
    table = QuotaTable(quotas)
    assert table.kinds == frozenset()


def test_users_share_a_quota_and_clients_of_the_default_do_not() -> None:
    limited = Limited({(("user", ANONYMOUS),): {"producer_byte_rate": 1_000.0}})
    assert limited.manager.record(PRODUCE, context_of("a"), 10_000) == 0
    assert limited.manager.record(PRODUCE, context_of("b"), 1_000) == 1_000
    limited = Limited({(("client-id", DEFAULT),): {"producer_byte_rate": 1_000.0}})
    assert limited.manager.record(PRODUCE, context_of("a"), 10_000) == 0
    assert limited.manager.record(PRODUCE, context_of("b"), 10_000) == 0


# Throttling


def test_without_quotas_nothing_is_kept() -> None:
    limited = Limited({})
    assert not limited.manager.is_set and not limited.manager.limits_connections
    assert limited.manager.record(PRODUCE, context_of("a"), 1 << 60) == 0
    assert limited.manager.fetched_bytes_max(context_of("a")) is None
    limited.manager.give_back(FETCH, context_of("a"), 1)
    assert limited.manager.rates() == []


def test_times_of_requests_are_throttled_for_a_window_at_most() -> None:
    limited = Limited({(("client-id", "a"),): {"request_percentage": 10.0}})
    assert limited.manager.used(context_of("a"), 0.9) == 0
    assert limited.manager.used(context_of("a"), 0.15) == 500
    assert limited.manager.used(context_of("a"), 60.0) == 1_000


def test_a_quota_that_changes_counts_what_was_taken_before() -> None:
    limited = Limited({(("client-id", "a"),): {"producer_byte_rate": 1e6}})
    assert limited.manager.record(PRODUCE, context_of("a"), 20_000) == 0
    limited.manager.replace({(("client-id", "a"),): {"producer_byte_rate": 1_000.0}})
    assert limited.manager.record(PRODUCE, context_of("a"), 0) == 10_000
    limited.manager.replace({})
    assert limited.manager.record(PRODUCE, context_of("a"), 1e9) == 0


def test_the_time_fits_into_an_answer() -> None:
    limited = Limited({(("client-id", "a"),): {"producer_byte_rate": 1.0}})
    assert limited.manager.record(PRODUCE, context_of("a"), 1e18) == (1 << 31) - 1


def test_the_longest_time_counts_and_is_set_on_the_connection() -> None:
    limited, context = Limited({}), context_of("a")
    assert limited.manager.throttle(context, {PRODUCE: 5, REQUEST: 7}) == 7
    assert context.connection.activity.throttle_ms == 7
    totals = limited.manager.totals
    assert (totals[REQUEST].times, totals[REQUEST].milliseconds, totals[PRODUCE].times) == (1, 7, 0)
    other = context_of("b")
    assert limited.manager.throttle(other, {PRODUCE: 0}) == 0 and other.connection.activity.throttle_ms == 0


def test_clients_with_ever_new_names_take_no_more_memory() -> None:
    limited = Limited({(("client-id", DEFAULT),): {"producer_byte_rate": 1.0}})
    for number in range(METERS_MAX + 100):
        limited.manager.record(PRODUCE, context_of(f"c{number}"), 1)
        limited.manager.record(PRODUCE, context_of("kept"), 1)
    rates = limited.manager.rates()
    assert len(rates) == METERS_MAX
    assert rates[-1][1] == QuotaGroup("", "kept")


def test_a_client_with_ever_new_long_names_takes_no_more_memory() -> None:
    limited = Limited({(("client-id", DEFAULT),): {"producer_byte_rate": 1.0}})
    tracemalloc.start()
    try:
        for number in range(2_000):
            limited.manager.record(PRODUCE, context_of(f"{number:032000}"), 1)
        assert tracemalloc.get_traced_memory()[0] < 5 << 20
    finally:
        tracemalloc.stop()
    assert len(limited.manager.rates()) == 2_000


@pytest.mark.parametrize("user", [(), (("user", DEFAULT),)])
def test_clients_with_long_names_are_told_apart(user: tuple[tuple[str, None], ...]) -> None:
    named = "n" * 1_000
    limited = Limited(
        {
            (*user, ("client-id", DEFAULT)): {"producer_byte_rate": 1.0, "controller_mutation_rate": 1.0},
            (*user, ("client-id", named)): {"producer_byte_rate": 1e6, "controller_mutation_rate": 2.0},
        }
    )
    one, other = context_of("o" * 1_000), context_of("o" * 1_001)
    assert limited.manager.record(PRODUCE, one, 1_000) > 0
    assert limited.manager.record(PRODUCE, one, 0) > 0
    assert limited.manager.record(PRODUCE, other, 0) == 0
    assert limited.manager.record(PRODUCE, context_of(named), 1_000) == 0
    limited.manager.mutations(context_of(named), strict_from=0).take(2)
    group = QuotaGroup(ANONYMOUS if user else "", named)
    assert limited.manager.rates()[-1] == (MUTATION, group, 20.0)


def test_rates_and_tokens_are_told() -> None:
    limited = Limited({(("user", ANONYMOUS),): {"producer_byte_rate": 5.0, "controller_mutation_rate": 2.0}})
    limited.manager.record(PRODUCE, context_of("a"), 100)
    limited.manager.mutations(context_of("a"), strict_from=0).take(20)
    assert limited.manager.rates() == [
        (PRODUCE, QuotaGroup(ANONYMOUS, ""), 10.0),
        (MUTATION, QuotaGroup(ANONYMOUS, ""), 2.0),
    ]


# Connections


def throttled_echo(times: list[int]):  # type: ignore[no-untyped-def]
    def answer(request: bytearray, info: ConnectionInfo) -> list[ResponsePart]:
        info.activity.throttle_ms = times.pop(0) if times else 0
        return echo(request, info)

    return answer


def test_a_throttled_client_is_answered_at_once_and_read_again_when_its_time_is_over() -> None:
    with TurnedLoop(throttled_echo([30_000])) as turned:
        now = turned.stop_time()
        peer = turned.connect()
        first, second = frame(b"first"), frame(b"second")
        peer.send(first)
        assert peer.receive() == first
        (connection,) = turned.sockets.connections
        assert connection.state == "throttled"
        peer.send(second)
        now.pass_time(29.9)
        assert peer.receive() == b""
        now.pass_time(0.2)
        assert peer.receive() == second
        assert connection.state == "idle"


def test_requests_that_came_together_wait_too() -> None:
    with TurnedLoop(throttled_echo([1_000, 0, 500])) as turned:
        now = turned.stop_time()
        peer = turned.connect()
        frames = [frame(b"%d" % number) for number in range(4)]
        peer.send(b"".join(frames))
        assert peer.receive() == frames[0]
        now.pass_time(1.1)
        assert peer.receive() == b"".join(frames[1:3])
        now.pass_time(0.6)
        assert peer.receive() == frames[3]
        assert turned.sockets.budget.used == 0


def test_a_client_that_is_throttled_for_longer_than_it_may_be_silent_is_closed() -> None:
    with TurnedLoop(throttled_echo([3_600_000]), idle_seconds=600) as turned:
        now = turned.stop_time()
        peer = turned.connect()
        peer.send(frame(b"x"))
        assert peer.receive()
        now.pass_time(601)
        turned.sweep(0)
        assert peer.is_closed
        assert not turned.sockets.connections
        now.pass_time(3_600)  # the timer that would read again is gone


def test_a_server_that_stops_does_not_wait_for_throttled_clients() -> None:
    with TurnedLoop(throttled_echo([3_600_000])) as turned:
        turned.stop_time()
        peer = turned.connect()
        peer.send(frame(b"x"))
        assert peer.receive()
        turned.loop.run_until_complete(turned.sockets.finish())
        assert peer.is_closed


def test_an_address_that_connects_too_often_is_closed_after_a_while() -> None:
    with TurnedLoop(echo, quotas={(("ip", "192.0.2.1"),): {"connection_creation_rate": 1.0}}) as turned:
        now = turned.stop_time()
        served = [turned.connect("192.0.2.1") for _ in range(10)]
        late = turned.connect("192.0.2.1")
        other = turned.connect("192.0.2.9")
        assert not any(peer.is_closed for peer in (*served, late, other))
        assert len(turned.sockets.connections) == 11
        late.send(frame(b"x"))
        now.pass_time(0.5)
        assert late.receive() == b"" and not late.is_closed
        now.pass_time(0.6)
        assert late.is_closed
        assert turned.sockets.delayed == {}
        # Those that were closed do not count.
        now.pass_time(20)
        again = turned.connect("192.0.2.1")
        again.send(frame(b"y"))
        assert again.receive() == frame(b"y")
        totals = turned.quotas.totals[CONNECTION]
        assert (totals.times, totals.milliseconds) == (1, 1_000)


def test_sockets_that_are_closed_later_are_not_without_end() -> None:
    with TurnedLoop(echo, quotas={(("ip", DEFAULT),): {"connection_creation_rate": 1.0}}) as turned:
        turned.stop_time()
        for _ in range(10):
            turned.connect()
        pairs = []
        for _ in range(DELAYED_MAX + 3):
            ours, theirs = socket.socketpair()
            pairs.append(ours)
            turned.sockets.welcome(theirs, "192.0.2.1", LISTENER)
        assert len(turned.sockets.delayed) == DELAYED_MAX
        turned.loop.run_until_complete(turned.sockets.finish())
        assert turned.sockets.delayed == {}
        for end in pairs:
            end.close()


def test_addresses_are_told_apart_whatever_their_spelling() -> None:
    limited = Limited(
        {
            (("ip", "2001:DB8:0::1"),): {"connection_creation_rate": 1.0},
            (("ip", "a host"),): {"connection_creation_rate": 1.0},
        }
    )
    assert [limited.manager.connected("2001:db8::1") for _ in range(11)] == [0] * 10 + [1_000]
    assert limited.manager.connected("192.0.2.1") == 0
