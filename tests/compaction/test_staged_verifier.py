"""A staged segment is read back while it is written: all of it, by steps of any size, whatever is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.compaction import staging
from siltstone.compaction.engine import InProcessEngine, warm_up_work
from siltstone.compaction.rewrite import sort_offsets
from siltstone.compaction.staging import GroupReport, StagedVerifier
from siltstone.log.names import segment_file
from tests.support.cleaning import logs
from tests.support.failures import assert_failed

SMALL_WINDOW = 400


@pytest.fixture(params=["plain", "all codecs"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log of ten batches, of which some records of each stay."""
    files.write_new(tmp_path / segment_file(0, "log"), b"".join(_batches(request.param != "plain")))
    return tmp_path


def _batches(packed: bool) -> Iterator[bytes]:
    for number in range(10):
        offsets = range(number * 10, number * 10 + 10)
        yield logs.batch(
            [logs.Rec(offset=offset, key=b"key %d" % (offset if offset % 3 else 0)) for offset in offsets],
            codec=number % 5 if packed else 0,
        )


def staged(log: Path, name: str) -> GroupReport:
    """The small log's only group, cleaned in windows of a batch or two."""
    (report,) = InProcessEngine().clean_whole([warm_up_work(log, name, window_size=SMALL_WINDOW)])
    assert report.extracted.failure is None
    return report.groups[0]


def bytes_of(report: GroupReport) -> bytes:
    assert report.failure is None
    return Path(report.staged["log"]).read_bytes()


@pytest.mark.parametrize("step", [1, 300, 1000])
def test_every_byte_is_read_once_and_in_order(log: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    expected, spans = bytes_of(staged(log, "at-the-end")), list[tuple[int, int]]()
    follow = StagedVerifier.verify_up_to

    def noted(self: StagedVerifier, size: int) -> int:
        spans.append((self.size, size))
        return follow(self, size)

    monkeypatch.setattr(staging, "_READ_BACK_BYTES", step)
    monkeypatch.setattr(StagedVerifier, "verify_up_to", noted)
    assert bytes_of(staged(log, "on-the-way")) == expected
    assert len(spans) >= 2
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(expected)
    assert all(end - start >= step for start, end in spans[:-1])


def test_a_byte_that_changes_before_it_is_read_back_is_noticed(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, follow = bytes_of(staged(log, "sound")), StagedVerifier.verify_up_to
    monkeypatch.setattr(staging, "_READ_BACK_BYTES", 1)
    start = 0
    for header, batch in logs.headers_of(data):
        position = start + 23 + header.base_offset % (len(batch) - 23)  # what its checksum covers
        start += len(batch)
        name = f"spoilt-{position}"

        def spoil(self: StagedVerifier, size: int, position: int = position, name: str = name) -> int:
            (path,) = (log / name).glob("*.log")
            if self.size <= position < size:
                data = bytearray(path.read_bytes())
                data[position] ^= 0x10
                with path.open("r+b") as file:
                    file.write(data)
            return follow(self, size)

        monkeypatch.setattr(StagedVerifier, "verify_up_to", spoil)
        report = staged(log, name)
        assert report.failure is not None, position
        assert not list((log / name).iterdir())


def test_a_group_is_known_by_the_file_that_was_read_back(log: Path) -> None:
    report = staged(log, "known")
    facts = Path(report.staged["log"]).stat()
    assert tuple(report.identity) == (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    assert staged(log, "other").identity != report.identity


def test_what_was_read_back_and_written_lets_go_of_its_memory(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped_to: list[int] = []
    let_go = files.Writer.drop_cached

    def noted(self: files.Writer, position: int) -> None:
        dropped_to.append(position)
        let_go(self, position)

    monkeypatch.setattr(staging, "_READ_BACK_BYTES", 500)

    def the_rest(self: files.Writer) -> None:
        assert self.size == Path(self.path).stat().st_size
        dropped_to.append(self.size)

    monkeypatch.setattr(files.Writer, "drop_cached", noted)
    monkeypatch.setattr(files.Writer, "drop_cached_rest", the_rest)
    size = len(bytes_of(staged(log, "staged")))
    assert dropped_to == sorted(dropped_to)
    assert 0 < dropped_to[0] <= dropped_to[-2] <= dropped_to[-1] == size


def test_a_write_that_the_disk_refused_fails_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = logs.write_log(
        tmp_path / "log", {0: [logs.one(0, "a"), logs.one(1, "a")], 2: [logs.one(2, "b")]}
    )
    before = logs.tree(tmp_path / "log")

    def refuse(self: files.Writer, position: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(staging, "_READ_BACK_BYTES", 1)
    monkeypatch.setattr(files.Writer, "drop_cached", refuse)
    result = logs.run(tmp_path / "log")
    assert_failed(result, "EIO")
    shutil.rmtree(partition / ".siltstone", ignore_errors=True)
    assert logs.tree(tmp_path / "log") == before


@given(st.lists(st.integers(0, 300)), st.integers(1, 6000))
def test_winners_in_order_are_sorted_whatever_they_are(offsets: list[int], span: int) -> None:
    """Those that are beyond the span, or twice, stay for who checks them."""
    ordered = sort_offsets(np.array(offsets, np.uint32), span)
    assert ordered.dtype == np.uint32
    assert ordered.tolist() == sorted(offsets)


def test_many_winners_are_in_order() -> None:
    offsets = np.random.default_rng(3).permutation(5000)[:2000].astype(np.uint32)
    assert sort_offsets(offsets, 5000).tolist() == sorted(offsets.tolist())
