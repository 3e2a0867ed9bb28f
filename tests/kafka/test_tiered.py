"""A running Kafka with tiered storage: what it gives a consumer is what Siltstone reads from its files."""

from __future__ import annotations

from pathlib import Path

import siltstone as st
from tests.support.kafka.tiering import STORAGE, TOPIC, as_lines, tiered_broker, write_and_tier


def test_remote_and_local_segments_are_the_log(tmp_path: Path) -> None:
    broker = tiered_broker(tmp_path).start()
    expected = as_lines(write_and_tier(broker))
    remote = str(tmp_path / "tier" / STORAGE)

    def lines(**options: str) -> list[str]:
        with st.open(tmp_path / "logs", **options) as logs:  # type: ignore[call-overload]
            return as_lines(logs[TOPIC, 0].records(isolation="read_committed"))

    assert lines(remote=remote) == expected
    assert len(lines()) < len(expected) / 2
    with broker:  # a running broker's directory is read, too
        assert lines(remote=remote) == expected
