"""Logs that are only read: times without indexes, open transactions, what has to be recovered first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.base.errors import DirectoryRefusedError
from siltstone.log.names import segment_file
from siltstone.log.read_only import ReadOnlyLogs
from tests.support.cleaning.logs import tree, write_log
from tests.support.cleaning.serving import USERS, serving, write
from tests.support.cleaning.transactional import a_log, data
from tests.support.errors import raises_error
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


def test_a_transaction_that_is_open_from_the_first_offset_on_is_known(tmp_path: Path) -> None:
    write_log(tmp_path, {0: [data(0, 4, "a", "open")]})
    assert ReadOnlyLogs([tmp_path])["topic", 0].open_transactions == {4: 0}


@pytest.mark.parametrize("leftover", ["a swap", "a damaged transaction index"])
def test_a_log_that_recovery_has_to_complete_first_is_refused(tmp_path: Path, leftover: str) -> None:
    partition = a_log(tmp_path)
    if leftover == "a swap":
        log = partition / segment_file(3, "log")
        shutil.copy(log, f"{log}.swap")
    else:
        index = partition / segment_file(7, "txnindex")
        index.write_bytes(index.read_bytes()[:-1])
    before = tree(partition)
    with raises_error(DirectoryRefusedError, path=partition, advice="siltstone recover"):
        ReadOnlyLogs([tmp_path])["topic", 0]
    assert tree(partition) == before
