"""Planned on one machine, read on another: clients of a network file system number devices on their own."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import SourceChangedError
from siltstone.commands import clean as app
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.log import replacement
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import TaskSplit
from siltstone.tables.table import plan, read_split
from tests.support.cleaning import logs
from tests.support.cleaning.logs import NOW, one
from tests.support.errors import raises_error
from tests.support.operator.staged import in_process

SEGMENTS = {0: [one(0, "a"), one(1, "b")], 2: [one(2, "a"), one(3, "c")], 4: [one(4, "b")]}
LAST = [2, 3, 4]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    partition = logs.write_log(tmp_path / "data", SEGMENTS)
    (partition.parent / ".kafka_cleanshutdown").touch()
    return partition.parent


@pytest.fixture
def other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stat of a file returns another device number."""
    numbers = itertools.count()
    device = property(lambda stat: next(numbers), lambda stat, number: None)
    monkeypatch.setattr(files.FileStat, "device", device)


def read(splits: list[TaskSplit], options: ReadOptions) -> list[int]:
    """The offsets of some splits, which travel as Spark ships them."""
    shipped = pickle.loads(pickle.dumps(splits))
    batches = [arrow_batch for split in shipped for arrow_batch in read_split(split, options)]
    return sorted(pa.Table.from_batches(batches)["offset"].to_pylist())


@pytest.mark.parametrize(
    ("texts", "offsets"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"view": "latest"}, LAST),
        ({"asOfOffset": '{"topic":{"0":3}}', "view": "latest"}, [1, 2, 3]),
        ({"asOfOffset": '{"topic":{"0":2}}'}, [0, 1, 2]),
        ({"badBatches": "quarantine"}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_view_is_read_whatever_device_numbers_a_machine_has(
    root: Path, other_machines: None, texts: dict[str, str], offsets: list[int]
) -> None:
    options = ReadOptions.of({"path": str(root), **texts})
    assert read(plan(options), options) == offsets


def test_a_ledger_is_made_and_read_whatever_device_numbers_a_machine_has(
    root: Path, other_machines: None
) -> None:
    with ReadOnlyLogs([root]) as logs:
        compactor = TwoPhaseCompactor(InProcessCompactionEngine(), clock=ManualClock(NOW))
        compactor.compact(logs["topic", 0])
    options = ReadOptions.of({"path": str(root), "view": "compacted"})
    assert read(plan(options), options) == LAST


def test_a_segment_that_a_task_has_verified_is_not_read_again(
    root: Path, other_machines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[Path] = []
    check = replacement._verify_log
    monkeypatch.setattr(replacement, "_verify_log", lambda path: (again.append(path), check(path))[1])
    request = app.CleanRequest(
        directories=[root], in_place=True, topics=["topic"], config=["cleanup.policy=compact"], force=True
    )
    (result,) = app.clean(request, engine=in_process).results
    assert result.status == "cleaned" and not again


@pytest.mark.parametrize("change", ["touched", "cut", "another file", "longer"])
def test_a_changed_closed_segment_fails_a_view(root: Path, change: str) -> None:
    options = ReadOptions.of({"path": str(root), "view": "latest"})
    splits = plan(options)
    path = root / "topic-0" / f"{2:020d}.log"
    data, before = path.read_bytes(), path.stat()
    if change == "touched":
        os.utime(path, ns=(5, 5))
    elif change == "another file":
        path.rename(path.with_suffix(".other"))
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        path.write_bytes(data[:-1] if change == "cut" else data + data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with raises_error(SourceChangedError, path=root / "topic-0", advice="run the query again"):
        read(splits, options)


def test_the_active_segment_may_grow(root: Path) -> None:
    options = ReadOptions.of({"path": str(root), "view": "latest"})
    splits = plan(options)
    path = root / "topic-0" / f"{4:020d}.log"
    path.write_bytes(path.read_bytes() + one(5, "c"))
    assert read(splits, options) == LAST
    os.utime(path, ns=(5, 5))
    path.write_bytes(SEGMENTS[4][0])
    with pytest.raises(SourceChangedError):
        read(splits, options)


def test_a_closed_file_is_identified_by_its_size_and_an_active_one_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    closed, active = (files.FileIdentity.of(files.stat(path), may_grow=grows) for grows in (False, True))
    assert closed.matches(files.stat(path)) and active.matches(files.stat(path))
    path.write_bytes(b"four and more")
    assert not closed.matches(files.stat(path)) and active.matches(files.stat(path))
    path.write_bytes(b"4")
    assert not active.matches(files.stat(path))
