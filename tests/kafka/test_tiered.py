"""A running Kafka with tiered storage: what it gives a consumer is what Siltstone reads from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import siltstone as st
from tests.support.kafka.tiering import STORAGE, TOPIC, as_lines, tiered_broker, write_and_tier


# tests/golden/test_tiered.py has two leader epochs in every run.
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_remote_and_local_segments_are_the_log(epochs: int, tmp_path: Path) -> None:
    remote = str(tmp_path / "tier" / STORAGE)

    def found(**options: str) -> list[str]:
        with st.open(tmp_path / "logs", **options) as logs:  # type: ignore[call-overload]
            return as_lines(logs[TOPIC, 0].records(isolation="read_committed"))

    with tiered_broker(tmp_path) as broker:
        expected = as_lines(write_and_tier(broker, epochs=epochs))
        assert found(remote=remote) == expected  # a running broker's directory is read, too
    assert found(remote=remote) == expected
    assert len(found()) < len(expected) / 2
