"""What an open log does when an append fails, and when it rolls earlier than others."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.config import LogConfig
from siltstone.base.errors import SiltstoneError, StorageError
from siltstone.base.records.scan import scan_batches
from siltstone.log.indexes import read_entries
from siltstone.log.names import segment_file
from siltstone.log.partition import open_partition
from tests.support.cleaning.logs import Rec, batch
from tests.support.log.batches import array
from tests.support.log.managed import failing
from tests.support.log.offset_values import NOW, append, opened


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
    assert repr(log) == f"<PartitionLog topic-0 in {tmp_path}: offsets 0 to 3, offline: {log.offline}>"


def test_without_an_epoch_of_a_leader_batches_are_of_epoch_0(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log)
    append(log)
    data = np.frombuffer(log.view.segments[0].path().read_bytes(), np.uint8)
    assert scan_batches(data).batches["leader_epoch"].tolist() == [0, 0]


def test_offsets_that_are_large_in_themselves_begin_no_segment(tmp_path: Path) -> None:
    """An index has offsets relative to the segment's base offset."""
    log = opened(tmp_path)
    log.truncate_fully_and_start_at(1 << 40)
    append(log)
    append(log)
    assert [segment.base_offset for segment in log.view.segments] == [1 << 40]


def test_a_truncation_removes_the_index_entries_of_what_goes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(45):
        log.append(array(batch([Rec(offset=0, key=b"k", timestamp=NOW + number)])))
    base = log.view.segments[1].base_offset
    log.flush()
    log.truncate_to(base + 7)
    log.flush()
    for kind in ("index", "timeindex"):
        path = log.directory / segment_file(base, kind)
        entries = read_entries(path.read_bytes(), kind, str(path))
        assert entries["relative_offset"].max() < 7 and (entries["relative_offset"] > 0).any(), kind


def test_a_log_has_a_jitter_without_being_given_random_numbers(tmp_path: Path) -> None:
    log = open_partition(tmp_path / "topic-0", LogConfig(segment_jitter_ms=1))
    assert [segment.jitter_ms for segment in log.view.segments] == [0]
