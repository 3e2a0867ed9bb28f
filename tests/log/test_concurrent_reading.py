"""Readers and writers at once, with real threads: appends, rolls, deletes, cleanings and truncations.

A record's value is its offset, so a wrong record is seen at once. Offsets that divide by five are never
cleaned away: a reader that was not thrown out by a delete must meet every one of them.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.base.errors import CorruptRecordError, OffsetOutOfRangeError
from siltstone.log.reading import LogReader
from tests.support.log.offset_values import append, clean_two, fill, opened
from tests.support.log.views import FixedLog

TOTAL = 900


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def check(offsets: list[int], values: list[bytes | None]) -> None:
    assert [b"%d" % offset for offset in offsets] == values
    assert all(a < b for a, b in itertools.pairwise(offsets))


def read_on(reader: LogReader, total: int, into: list[int]) -> None:
    """Poll until the reader has come to ``total``."""
    while reader.offset < total:
        polled = reader.poll()
        if polled is not None:
            offsets = polled.columns.offset.tolist()
            check(offsets, [polled.columns.value(row) for row in range(len(polled))])
            into += offsets


def together(*actions: Callable[[], None]) -> None:
    """All at once, each in a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []

    def run(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert errors or not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("buffer", [1, 700, 1 << 20])
def test_readers_continue_over_appends_rolls_and_swaps(tmp_path: Path, buffer: int) -> None:
    log = opened(tmp_path)
    early, late, first = LogReader(log, buffer_bytes=buffer), LogReader(log, buffer_bytes=buffer), list[int]()
    second: list[int] = []

    def clean() -> None:
        at = 0
        while log.log_end_offset < TOTAL or at + 3 < len(log.view.segments):
            if at + 3 < len(log.view.segments):
                clean_two(log, at)
                at += 1

    together(
        lambda: fill(log, TOTAL),
        clean,
        lambda: read_on(early, TOTAL, first),
        lambda: read_on(late, TOTAL, second),
    )
    for offsets in (
        first,
        second,
        [at for polled in LogReader(log) for at in polled.columns.offset.tolist()],
    ):
        check(offsets, [b"%d" % at for at in offsets])
        assert set(range(0, TOTAL, 5)) <= set(offsets)
    assert early.resets == 0
    log.close()


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_readers_continue_over_deletes(tmp_path: Path, reset: str) -> None:
    log = opened(tmp_path)
    reader, offsets, refused = LogReader(log, reset=reset, buffer_bytes=700), list[int](), list[int]()

    def delete() -> None:
        while log.log_end_offset < TOTAL:
            for path in log.delete_oldest_segments(max(len(log.view.segments) - 3, 0)):
                path.unlink()

    def read() -> None:
        while reader.offset < TOTAL:
            try:
                read_on(reader, TOTAL, offsets)
            except OffsetOutOfRangeError:
                refused.append(reader.offset)
                reader.seek("earliest")

    together(lambda: fill(log, TOTAL), delete, read)
    check(offsets, [b"%d" % at for at in offsets])
    assert offsets[-1] == TOTAL - 1
    jumps = sum(b - a > 1 for a, b in itertools.pairwise([-1, *offsets]))
    assert jumps <= (len(refused) if reset == "none" else reader.resets)
    assert bool(refused) <= (reset == "none")
    log.close()


def test_a_reader_continues_over_truncations(tmp_path: Path) -> None:
    """Records above the cut are read as before it or as written anew, never mixed; the end is reached."""
    log = opened(tmp_path)
    reader, offsets = LogReader(log, reset="latest", buffer_bytes=700), list[int]()

    def write() -> None:
        for upto in range(100, TOTAL + 1, 100):
            fill(log, upto)
            log.truncate_to(upto - 30)
            while log.log_end_offset < upto:
                append(log, 1)

    def read() -> None:
        while reader.offset < TOTAL:
            try:
                read_on(reader, min(reader.offset + 50, TOTAL), offsets)
            except CorruptRecordError:
                continue  # the file is shorter before the view is

    together(write, read)
    assert offsets and offsets[-1] >= TOTAL - 1
    log.close()


def test_a_view_is_read_after_everything_in_it_was_deleted(tmp_path: Path) -> None:
    """Segments that were read before and segments that were not: retiring opens what is not open yet."""
    log = opened(tmp_path)
    fill(log, 600)
    old = FixedLog(log.view)
    iterator = iter(LogReader(old, buffer_bytes=1))
    first = next(iterator)
    clean_two(log, 0)
    clean_two(log, 2)
    for path in log.delete_oldest_segments(len(log.view.segments)):
        path.unlink()
    for path in log.directory.glob("*.deleted"):
        path.unlink()
    assert log.log_start_offset == log.log_end_offset == 600
    rest = [at for polled in iterator for at in polled.columns.offset.tolist()]
    offsets = first.columns.offset.tolist() + rest
    assert offsets == list(range(600))
    again = LogReader(old, 123)
    assert [at for polled in again for at in polled.columns.offset.tolist()] == list(range(123, 600))
    log.close()
