"""One step writer: the order, what is raised where, and bytes that nobody writes over too early."""

import threading
import time
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction import staging
from siltstone.compaction.engine import InProcessEngine, warm_up_batches, warm_up_work
from siltstone.compaction.staging import BackgroundWriter
from siltstone.log.names import segment_file


def fail() -> int:
    raise ValueError("the disk is full")


def test_each_call_ends_before_the_next_begins() -> None:
    finished: list[int] = []

    def finish(number: int) -> int:
        time.sleep(0.01 * (number % 2))
        finished.append(number)
        return number

    with BackgroundWriter() as writer:
        before = set(threading.enumerate())
        assert writer.wait() == 0
        assert [writer.start(lambda number=number: finish(number)) for number in range(1, 9)] == [
            0,
            *range(1, 8),
        ]
        assert len(set(threading.enumerate()) - before) == 1
        assert writer.wait() == 8
        assert writer.wait() == 0
    assert finished == list(range(1, 9))
    assert set(threading.enumerate()) <= before


def test_what_a_call_raised_is_raised_once_at_the_next_start_or_wait() -> None:
    with BackgroundWriter() as writer:
        writer.start(fail)
        with pytest.raises(ValueError, match="disk is full"):
            writer.start(lambda: 5)
        assert writer.wait() == 0  # and that one was never begun
        writer.start(fail)
        with pytest.raises(ValueError, match="disk is full"):
            writer.wait()


def test_an_error_in_the_block_waits_for_the_call_and_wins() -> None:
    ended = threading.Event()

    def late() -> int:
        time.sleep(0.05)
        ended.set()
        return fail()

    with pytest.raises(KeyError), BackgroundWriter() as writer:
        writer.start(late)
        raise KeyError
    assert ended.is_set()


def staged(directory: Path, name: str) -> bytes:
    """The log that a cleaning in windows of a batch or two stages."""
    work = warm_up_work(directory, name, window_size=400)
    (report,) = InProcessEngine().clean_whole([work])
    assert report.extracted.failure is None
    assert report.groups[0].failure is None
    return Path(report.groups[0].staged["log"]).read_bytes()


def test_a_slow_writer_gets_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_new(tmp_path / segment_file(0, "log"), b"".join(warm_up_batches()))
    expected, write, threads = staged(tmp_path, "quick"), staging._SegmentWriter.write, set[str]()

    def slow(*arguments: object) -> int:
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        return write(*arguments)

    monkeypatch.setattr(staging._SegmentWriter, "write", slow)
    assert staged(tmp_path, "slow") == expected
    assert any(name.startswith("background-writer") for name in threads)


def test_a_writer_that_fails_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_new(tmp_path / segment_file(0, "log"), b"".join(warm_up_batches()))
    monkeypatch.setattr(staging._SegmentWriter, "write", lambda *arguments: fail())
    work = warm_up_work(tmp_path, "failing", window_size=400)
    (report,) = InProcessEngine().clean_whole([work])
    assert report.groups[0].failure is not None
    assert "disk is full" in report.groups[0].failure.reason
    assert files.list_files(tmp_path / "failing") == {}
