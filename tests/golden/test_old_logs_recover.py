"""Logs of message sets v0 and v1 go through recovery like any other: nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.records.decode import decode_records
from siltstone.log.partition import open_partition
from siltstone.log.reading import LogReader
from siltstone.log.recovery.partition import recover_partition
from siltstone.log.segments import list_segments, windows
from tests.support.golden_sets import Case, legacy_names, load_case


def staged(case: Case, target: Path) -> Path:
    shutil.copytree(case.rounds[0].before, target)
    return target


def offsets_of(directory: Path) -> list[int]:
    offsets: list[int] = []
    for segment in list_segments(directory):
        with files.Reader(segment.path) as reader:
            for window in windows(reader):
                offsets += decode_records(window.data, window.batches).offset.tolist()
    return offsets


@pytest.fixture(scope="module")
def cases(golden: Path) -> list[Case]:
    return [load_case(golden, name) for name in legacy_names(golden)]


def test_there_are_legacy_sets(cases: list[Case]) -> None:
    assert len(cases) > 5


def test_an_unclean_start_keeps_every_byte(cases: list[Case], tmp_path: Path) -> None:
    for case in cases:
        directory = staged(case, tmp_path / f"{case.path.name}-0")
        before = {path.name: path.read_bytes() for path in directory.glob("*.log")}
        recovered = recover_partition(
            directory,
            had_clean_shutdown=False,
            recovery_point=0,
            log_start_offset=0,
            config=LogConfig(),
            now_ms=1,
        )
        assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == before, case.name
        assert recovered.log_end_offset == offsets_of(directory)[-1] + 1
        assert not recovered.truncated_bytes


def test_a_torn_tail_goes_and_the_rest_is_read(cases: list[Case], tmp_path: Path) -> None:
    for case in cases:
        directory = staged(case, tmp_path / f"{case.path.name}-0")
        last = max(
            (path for path in directory.glob("*.log") if path.stat().st_size), key=lambda path: path.name
        )
        with last.open("r+b") as file:
            file.truncate(last.stat().st_size - 3)
        for path in directory.glob("*index"):
            path.unlink()
        log = open_partition(directory, LogConfig(), ManualClock(1))
        read = [offset for polled in LogReader(log, "earliest") for offset in polled.columns.offset.tolist()]
        assert read == offsets_of(directory), case.name
        assert log.log_end_offset == read[-1] + 1
        assert log.read(read[len(read) // 2]).size > 0
        log.close()
