"""What an open log does when an append fails, and when it rolls earlier than others."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from siltstone.base.config import LogConfig
from siltstone.base.errors import SiltstoneError, StorageError
from siltstone.log.partition import open_partition
from tests.support.log.managed import failing
from tests.support.log.offset_values import append, opened


def test_only_a_full_disk_leaves_a_log_online(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for full in (errno.ENOSPC, errno.EDQUOT):
        with failing(tmp_path, "write", error=full), pytest.raises(StorageError):
            append(log)
        assert log.offline is None and log.log_end_offset == 0
    append(log)
    with failing(tmp_path, "write", error=errno.EIO), pytest.raises(SiltstoneError):
        append(log)
    assert log.offline is not None and log.log_end_offset == 3


def test_a_log_has_a_jitter_without_being_given_random_numbers(tmp_path: Path) -> None:
    log = open_partition(tmp_path / "topic-0", LogConfig(segment_jitter_ms=1))
    assert [segment.jitter_ms for segment in log.view.segments] == [0]
