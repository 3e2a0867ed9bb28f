"""What planning reads of a log: whose files it takes, and which times it goes by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import UnsafeFileError
from siltstone.compaction.inplace.planning import LogState, facts_of_view
from siltstone.log.directory import LogDirectory
from siltstone.log.names import segment_file
from tests.support.cleaning import logs
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.errors import raises_error
from tests.support.ledger.driving import opened
from tests.support.operator.staged import is_root


@pytest.mark.skipif(not is_root(), reason="needs root")
def test_no_file_of_another_user_is_taken_for_a_segment(tmp_path: Path) -> None:
    partition = logs.write_log(tmp_path, {0: [one(0, "a")], 1: [one(1, "b")]})
    with LogDirectory.open(tmp_path) as directory:
        state = LogState(topic_partition=logs.WHERE, path=partition, directory=directory, config=None)
        assert [segment.base_offset for segment in state.segments()] == [0, 1]
        foreign = partition / segment_file(0, "log")
        os.chown(foreign, 12345, -1)
        with raises_error(UnsafeFileError, path=foreign, about="user 12345"):
            state.segments()


@pytest.mark.parametrize(("timestamp", "first"), [(1, 1), (0, None), (-1, None)])
def test_the_maximum_lag_goes_by_first_timestamps_over_0(
    tmp_path: Path, timestamp: int, first: int | None
) -> None:
    """As in Kafka: a first batch at 0 does not say that its segment is from 1970."""
    logs.write_log(tmp_path, {0: [batch([Rec(offset=0, key=b"a", timestamp=timestamp)])], 1: [one(1, "b")]})
    log = opened(tmp_path)
    facts = facts_of_view(log.directory, log.view, LogConfig(max_compaction_lag_ms=1), None, LONG_MAX)
    assert facts.segments[0].first_timestamp == first
