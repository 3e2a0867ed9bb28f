"""Snapshots of directories: which records of a log are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.commands.directories import BrokerDirectories
from siltstone.log.fetch import READ_COMMITTED
from tests.support.cleaning.logs import one, write_log
from tests.support.cleaning.transactional import data, marker


@pytest.mark.parametrize("high_watermark", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("is_open", [True, False])
def test_beyond_the_high_watermark_an_open_transaction_is_not_committed(
    tmp_path: Path, high_watermark: int, is_open: bool
) -> None:
    """A broker that runs has written an older high watermark, below the transactions or within one."""
    last = data(4, 8, "d", "open") if is_open else one(4, "d")
    batches = [one(0, "a"), data(1, 7, "b", "committed"), marker(2, 7, commit=True), one(3, "c"), last]
    partition = write_log(tmp_path, {0: [*batches, one(5, "e")]}, high_watermark=high_watermark)
    snapshot = BrokerDirectories(paths=(partition.parent,)).snapshot()
    (where,) = snapshot.partitions
    log = snapshot.log(where, beyond_high_watermark=True)
    committed = [record.offset for record in log.records(isolation=READ_COMMITTED)]
    assert committed == ([0, 1, 3] if is_open else [0, 1, 3, 4, 5])
    assert [record.offset for record in log.records()] == [0, 1, 3, 4, 5]
