"""Logs that are only read: what a view has where indexes are not used."""

from __future__ import annotations

from pathlib import Path

from siltstone.log.read_only import ReadOnlyLogs
from tests.support.cleaning.serving import USERS, serving, write
from tests.support.log.managed import NOW


def test_times_of_a_segment_whose_time_index_is_not_used_come_from_its_batches(tmp_path: Path) -> None:
    """A copy has other modification times, and retention would go by them."""
    with serving(tmp_path) as (manager, _):
        for number in range(30):
            write(manager[USERS], 1, timestamp=NOW + 100 * number)
        manager.flush()
        looked = ReadOnlyLogs([tmp_path])[USERS]
        assert any(not segment.time_index.last() for segment in looked.view.segments)
        assert [segment.largest_timestamp_and_offset() for segment in looked.view.segments] == [
            segment.largest_timestamp_and_offset() for segment in manager[USERS].view.segments
        ]
