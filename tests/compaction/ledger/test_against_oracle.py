"""Random lives of logs, compacted beside their originals round by round: what the dict says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siltstone.compaction.ledger.work import CompactionSettings
from tests.support.cleaning.lives import Life, Living, lives
from tests.support.ledger.driving import How, compact_and_check, opened
from tests.support.ledger.oracle import Model
from tests.support.thoroughness import examples

WAYS = st.builds(
    How,
    spread=st.booleans(),
    buckets=st.sampled_from([1, 1, 2, 3, 8]),
    settings=st.builds(
        CompactionSettings,
        segment_bytes=st.sampled_from([300, 2000, 1 << 30]),
        index_interval=st.sampled_from([0, 4096]),
        window_size=st.sampled_from([512, 4 << 20]),
        memory_bytes=st.sampled_from([1 << 12, 256 << 20]),
        max_runs=st.integers(1, 4),
    ),
)


def live(life: Life, model: Model, options: How) -> None:
    """Each round is written, compacted and read."""
    with tempfile.TemporaryDirectory() as folder:
        living = Living(Path(folder) / "log", life)
        for round_ in life.rounds:
            living.write(round_)
            compact_and_check(opened(living.root), model, options)


@pytest.mark.random
@pytest.mark.parametrize("retain_null_key", [False, True])
@pytest.mark.parametrize("by_time", [False, True])
def test_random_lives_are_compacted_as_the_dict_says(by_time: bool, retain_null_key: bool) -> None:
    @settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
    @given(lives(), WAYS)
    def run(life: Life, options: How) -> None:
        live(life, Model(by_time=by_time, retain_null_key=retain_null_key), options)

    run()
