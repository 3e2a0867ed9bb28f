"""Several logs are taken over at one time: all of them; an interrupt leaves out what is not begun."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction.inplace.cleaner import swap_pool
from siltstone.log.checkpoints import read_checkpoint, write_checkpoint
from siltstone.log.directory import LogDirectory
from siltstone.log.names import CLEANER_CHECKPOINT, TopicPartition

WHERE = [TopicPartition("topic", number) for number in range(40)]


class Guard:
    """Counts its entries; ``inside`` says whether one is open."""

    def __init__(self) -> None:
        self.entries, self.inside = 0, False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self.entries, self.inside = self.entries + 1, True
        yield
        self.inside = False


def test_with_one_thread_a_swap_is_in_the_callers_thread() -> None:
    threads: list[int] = []
    guard = Guard()
    with swap_pool(1, guard) as submit:
        submit(lambda: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]
    assert guard.entries == 0


def test_several_swaps_run_at_a_time_and_all_are_finished_at_the_end() -> None:
    together, finished = threading.Barrier(3), []

    def call(number: int) -> None:
        together.wait(20)
        finished.append(number)

    guard = Guard()
    with swap_pool(3, guard) as submit:
        for number in range(9):
            submit(functools.partial(call, number))
    assert sorted(finished) == list(range(9)) and guard.entries == 1


@pytest.mark.parametrize("in_body", [False, True])
def test_an_error_is_raised_when_the_other_swaps_are_done(in_body: bool) -> None:
    finished: list[int] = []

    def call(number: int) -> None:
        if number == 2:
            raise ValueError("a call's")
        finished.append(number)

    raises = pytest.raises(ValueError, match="the body's" if in_body else "a call's")
    with raises, swap_pool(2, contextlib.nullcontext) as submit:
        for number in range(8):
            submit(functools.partial(call, number))
        if in_body:
            raise ValueError("the body's")
    assert sorted(finished) == [0, 1, 3, 4, 5, 6, 7]


def test_an_interrupt_waits_for_what_is_begun_and_leaves_out_the_rest() -> None:
    begun, may_end, finished = threading.Event(), threading.Event(), []
    guard = Guard()

    def call(number: int) -> None:
        begun.set()
        assert may_end.wait(20)
        finished.append((number, guard.inside))

    with pytest.raises(KeyboardInterrupt), swap_pool(2, guard) as submit:
        for number in range(8):
            submit(functools.partial(call, number))
        assert begun.wait(20)
        threading.Timer(0.2, may_end.set).start()
        raise KeyboardInterrupt
    assert 1 <= len(finished) <= 2 and all(inside for _, inside in finished)


def in_threads(directory: LogDirectory, errors: list[OSError]) -> None:
    """Each partition's offset is its number and 100, all at one time."""
    together = threading.Barrier(len(WHERE))

    def write(topic_partition: TopicPartition) -> None:
        together.wait(20)
        try:
            directory.write_cleaner_checkpoint(topic_partition, 100 + topic_partition.partition)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(topic_partition,)) for topic_partition in WHERE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


def test_checkpoints_of_several_threads_are_written_together(tmp_path: Path) -> None:
    other = TopicPartition("other", 0)
    write_checkpoint(tmp_path / CLEANER_CHECKPOINT, {other: 7, WHERE[0]: 1})
    operations: list[files.Operation] = []
    errors: list[OSError] = []
    with files.observe(operations.append):
        in_threads(LogDirectory(tmp_path), errors)
    checkpoint = read_checkpoint(tmp_path / CLEANER_CHECKPOINT)
    assert checkpoint == {other: 7} | {
        topic_partition: 100 + topic_partition.partition for topic_partition in WHERE
    }
    assert errors == []
    assert sum(verb == "rename" for verb, *_ in operations) < len(WHERE)


def test_a_checkpoint_that_could_not_be_written_fails_its_own_log_only(tmp_path: Path) -> None:
    failing = [OSError(28, "No space left on device")] * 2

    def full(operation: files.Operation) -> None:
        if operation[0] == "rename" and failing:
            raise failing.pop()

    errors: list[OSError] = []
    with files.observe(full):
        in_threads(LogDirectory(tmp_path), errors)
    assert len(errors) == 2
    assert len(read_checkpoint(tmp_path / CLEANER_CHECKPOINT)) == len(WHERE) - 2
