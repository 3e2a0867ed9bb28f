"""Which runs go together: what a run costs follows the new data."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from siltstone.compaction.ledger.compactor import ranges_to_merge
from siltstone.compaction.ledger.work import MAX_RUNS
from siltstone.log.ledger.manifest import Run


def run(*, size: int, records: int, superseded: int) -> Run:
    """What counts of a run."""
    return Run(
        id=0,
        base_offset=0,
        end_offset=1,
        records=records,
        size=size,
        segments=(),
        keys_size=0,
        keys_crc=0,
        superseded=superseded,
    )


def weights(*sizes: int) -> list[Run]:
    """Runs of which nothing is superseded."""
    return [run(size=size, records=size, superseded=0) for size in sizes]


def test_a_small_run_is_not_merged_with_a_large_one() -> None:
    assert ranges_to_merge(weights(100, 10)) == []
    assert ranges_to_merge(weights(100)) == [] == ranges_to_merge([])


def test_runs_of_similar_size_are_merged() -> None:
    assert ranges_to_merge(weights(100, 10, 5)) == [(1, 3)]
    assert ranges_to_merge(weights(100, 10, 4)) == []
    assert ranges_to_merge(weights(20, 10, 5)) == [(0, 3)]


def test_no_more_than_max_runs_remain() -> None:
    sizes = [10**exponent for exponent in range(10, 0, -1)]
    assert ranges_to_merge(weights(*sizes)) == [(MAX_RUNS - 1, 10)]


def test_runs_that_are_mostly_superseded_are_rewritten() -> None:
    old = run(size=1000, records=100, superseded=51)
    assert ranges_to_merge([old, *weights(1)]) == [(0, 1)]
    assert ranges_to_merge([run(size=1000, records=100, superseded=50), *weights(1)]) == []
    assert ranges_to_merge([old, *weights(100, 1)]) == [(0, 1)]
    assert ranges_to_merge([*weights(10_000), old, old, *weights(100, 1)]) == [(1, 3)]


def test_a_newest_run_that_is_mostly_superseded_is_rewritten() -> None:
    assert ranges_to_merge([*weights(1000), run(size=10, records=10, superseded=9)]) == [(1, 2)]
    assert ranges_to_merge([run(size=10, records=10, superseded=9)]) == [(0, 1)]


WEIGHTS = st.lists(
    st.builds(
        lambda size, records, share: run(size=size, records=records, superseded=records * share // 100),
        st.integers(0, 10**6),
        st.integers(0, 1000),
        st.integers(0, 100),
    ),
    max_size=14,
)


@given(WEIGHTS, st.integers(1, 8))
def test_merged_ranges_are_disjoint_and_leave_few_runs(runs: list[Run], maximum: int) -> None:
    ranges = ranges_to_merge(runs, maximum)
    assert all(first < last for first, last in ranges)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(ranges))
    remaining = len(runs) - sum(last - first - 1 for first, last in ranges)
    assert remaining <= max(maximum, 0) or not runs
    for number, run_ in enumerate(runs):
        assert not run_.is_mostly_superseded or any(first <= number < last for first, last in ranges)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=300))
def test_a_record_is_written_a_few_times_in_its_life(sizes: list[int]) -> None:
    """Whatever sizes are added, all that is ever written stays within a logarithm of what was added."""
    ledger: list[int] = []
    written = 0
    for size in sizes:
        ledger.append(size)
        written += size
        for first, last in reversed(ranges_to_merge(weights(*ledger), 64)):
            written += sum(ledger[first:last])
            ledger[first:last] = [sum(ledger[first:last])]
    assert written <= sum(sizes) * (3 + 4 * sum(sizes).bit_length())
