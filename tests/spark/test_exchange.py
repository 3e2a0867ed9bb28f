"""Stages whose tasks run side by side and hand rows to each other through files.

First the workers as threads of this process, then on Spark.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.spark import exchange, jobs
from siltstone.spark.exchange import Stage, _FileExchange, exchange_task
from siltstone.spark.jobs import (
    EXCHANGE_STAGE_BYTES,
    Job,
    SparkJobRunner,
    can_exchange_files,
    run_in_exchange_stage,
    run_with_shuffles,
)
from siltstone.spark.rows import ALL, FAILED, Row, rows_of
from tests.support.spark.jobs_on_spark import HOLD

pytestmark = pytest.mark.spark
TARGETS = 7


def deal_task(each: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every first task sends ``each`` rows to every target, and one to everybody."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for target in range(TARGETS):
                for place in range(each):
                    yield Row(target=target, kind="dealt", count=number, blob=bytes([place]) * 1000).batch()
            yield Row(target=ALL, kind="told", count=number).batch()


def test_rows_for_oneself_are_copies(tmp_path: Path) -> None:
    """A row may be a part of what its stage writes over."""
    data = np.zeros(100, np.uint8)
    post = _FileExchange(tmp_path, 0, 1, 1 << 20)
    post.send(0, Row(target=0, kind="mine", blob=data.data).batch(), 1)
    data[:] = 7
    (batch,) = post.received(1, 0)
    assert [bytes(row.blob) for row in rows_of([batch])] == [bytes(100)]


def test_rows_that_a_task_holds_count_as_memory_until_the_next_task_begins(tmp_path: Path) -> None:
    """They were free as soon as the task asked for the first one, so a worker could hold twice as much."""
    row = Row(target=0, kind="mine", blob=bytes(1000)).batch()
    post = _FileExchange(tmp_path, 0, 1, row.nbytes)

    def goes_into_a_file(stage: int) -> bool:
        post.send(stage, row, 1)
        post.finish_stage(stage)
        return (tmp_path / f"{stage}.0.0").exists()

    assert not goes_into_a_file(0)
    (held,) = post.received(1, 0)
    assert goes_into_a_file(1)
    assert len(list(post.received(2, 0))) == held.num_rows
    assert not goes_into_a_file(2)


FORGED = [b"\xff" * 40, b"\xff\xff\xff\xff\x10\0\0\0" + b"\1" * 16, b"\xff\xff\xff\xff\0\0\0\0", b""]


@pytest.mark.parametrize(
    "data",
    [b"short", bytes(exchange._ROW_HEADER.size - 1), b"\xff" * 16]
    + [exchange._ROW_HEADER.pack(len(row), crc32c(row), 0) + row for row in FORGED],
)
def test_forged_rows_are_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "0.0.1").write_bytes(data)
    with pytest.raises(ValueError, match="not those that were sent"):
        list(exchange._rows_in(tmp_path / "0.0.1"))


def pass_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows go on to the target after theirs."""
    for batch in batches:
        for row in rows_of([batch]):
            if row.kind == "dealt":
                yield Row(target=row.target + 1, kind="passed", count=row.count, blob=row.blob).batch()
            else:
                yield batch


def count_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a last task got."""
    seen = Counter((row.kind, row.target, row.count, bytes(row.blob)[:1]) for row in rows_of(batches))
    for (kind, target, count, first), times in seen.items():
        yield Row(target=target, kind=f"{kind} {first.hex()} {times}", count=count).batch()


def raise_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Only the second worker's task fails."""
    for batch in batches:
        for row in rows_of([batch]):
            if row.kind == "dealt" and row.target % 2:
                raise RuntimeError("on purpose")
    yield from ()


def stages(each: int = 3, tasks: tuple[int, int, int] = (2, 2, 2)) -> list[Stage]:
    """Deal, pass on, count."""
    return [
        Stage(function=deal_task, arguments=(each,), tasks=tasks[0]),
        Stage(function=pass_task, arguments=(), tasks=tasks[1]),
        Stage(function=count_task, arguments=(), tasks=tasks[2]),
    ]


def on_threads(
    folder: Path,
    given: list[Stage],
    workers: int,
    memory_bytes: int,
    before: Callable[[int], None] | None = None,
) -> list[Row]:
    """Each worker in a thread."""
    found: list[Row] = []

    def work(number: int) -> None:
        if before is not None:
            before(number)
        batch = pa.RecordBatch.from_pydict({"id": [number]})
        for result in exchange_task(given, workers, str(folder), memory_bytes, [batch]):
            found.extend(rows_of([result]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def told(found: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row.kind, row.target, row.count) for row in found)


def expected(each: int, tasks: tuple[int, int, int]) -> list[tuple[str, int, int]]:
    """Every target's rows once; what was told to all goes to each second task, from there to each third."""
    senders = range(tasks[0])
    dealt = [
        (f"passed {place:02x} 1", target + 1, sender)
        for sender in senders
        for target in range(TARGETS)
        for place in range(each)
    ]
    return sorted(dealt + [(f"told  {tasks[1]}", ALL, sender) for sender in senders for _ in range(tasks[2])])


@pytest.mark.parametrize("memory_bytes", [0, 5_000, 1 << 20])
@pytest.mark.parametrize(
    ("workers", "tasks"), [(1, (2, 3, 2)), (2, (2, 2, 2)), (2, (5, 1, 4)), (3, (1, 7, 2))]
)
def test_every_row_comes_to_its_task_once(
    tmp_path: Path, workers: int, tasks: tuple[int, int, int], memory_bytes: int
) -> None:
    found = on_threads(tmp_path, stages(3, tasks), workers, memory_bytes)
    assert told(found) == expected(3, tasks)


def test_what_stays_with_its_worker_does_not_go_through_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: set[str] = set()
    monkeypatch.setattr(files, "unlink", lambda path: moved.add(Path(path).name))
    on_threads(tmp_path, stages(), 2, 1 << 20)
    assert moved == {"0.0.1", "0.1.0", "1.0.1", "1.1.0"}


def test_rows_that_came_leave_no_file(tmp_path: Path) -> None:
    on_threads(tmp_path, stages(), 2, 0)
    deadline = time.monotonic() + 60
    while [path for path in tmp_path.iterdir() if path.name.count(".") == 2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_task_that_goes_again_gives_up_and_so_do_the_others(tmp_path: Path) -> None:
    (tmp_path / "begun.1").touch()
    found = on_threads(tmp_path, stages(), 2, 0)
    assert [row.kind for row in found] == [FAILED, FAILED]
    assert any("worker 1 was started a second time" in row.report for row in found)
    assert any("another worker aborted" in row.report for row in found)


def test_what_a_stage_raises_is_a_row_and_no_task_waits(tmp_path: Path) -> None:
    failing = [stages()[0], Stage(function=raise_task, arguments=(), tasks=2), stages()[2]]
    found = on_threads(tmp_path, failing, 2, 0)
    assert sum("RuntimeError: on purpose" in row.report for row in found) == 1
    assert [row.kind for row in found] == [FAILED, FAILED]


def test_a_folder_that_is_gone_ends_the_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()

    def lose(number: int) -> None:
        if number == 1:
            while not (folder / "0.0").exists():
                pass
            folder.rename(tmp_path / "away")

    found = on_threads(folder, stages(), 2, 0, lose)
    assert [row.kind for row in found] == [FAILED, FAILED]


def test_a_worker_that_never_begins_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executor was lost, or another job has its core."""
    monkeypatch.setattr(exchange, "SILENCE_S", 0.05)
    (batch,) = exchange_task(stages(), 2, str(tmp_path), 0, [pa.RecordBatch.from_pydict({"id": [0]})])
    (row,) = rows_of([batch])
    assert row.kind == FAILED and "worker 1 was not heard of" in row.report
    assert (tmp_path / "failed").exists(), "a worker that begins later does not wait for this one"


def test_a_slow_worker_that_reports_what_it_reads_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_BYTES_READ_INTERVAL_S", 0.02)
    monkeypatch.setattr(exchange, "SILENCE_S", 0.5)

    def until_long_heard(number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        while number == 1 and time.monotonic() < began + 4 * exchange.SILENCE_S:
            time.sleep(0.01)
        yield from deal_task(1, batches)

    def deal_late_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from until_long_heard(batch.column("id")[0].as_py(), [batch])

    given = [Stage(function=deal_late_task, arguments=(), tasks=2), *stages(1)[1:]]
    assert told(on_threads(tmp_path, given, 2, 0)) == expected(1, (2, 2, 2))


def test_damaged_rows_are_refused(tmp_path: Path) -> None:
    def spoil(number: int) -> None:
        if number == 1:
            while not (tmp_path / "0.0").exists():
                pass
            path = tmp_path / "0.0.1"
            data = bytearray(path.read_bytes())
            data[-100] ^= 1
            path.write_bytes(data)

    found = on_threads(tmp_path, stages(), 2, 0, spoil)
    assert any("not those that were sent" in row.report for row in found)
    assert [row.kind for row in found] == [FAILED, FAILED]


def job(given: list[Stage], staging: Path | None = None) -> Job:
    return Job(stages=given, title="log", staging=None if staging is None else str(staging), size=1)


@pytest.mark.parametrize("tasks", [(2, 2, 2), (5, 3, 4), (1, 2, 1)])
def test_on_spark_both_ways_bring_the_same_rows(session: SparkSession, tasks: tuple[int, int, int]) -> None:
    given = [Stage(function=deal_alone_task, arguments=(3,), tasks=tasks[0]), *stages(3, tasks)[1:]]
    together = run_in_exchange_stage(session, job(given), None)
    assert together is not None
    assert told(together) == told(run_with_shuffles(session, job(given), None))
    assert len(together) == tasks[0] * TARGETS * 3


def deal_alone_task(each: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Without what is told to all, which Spark's shuffle cannot do."""
    yield from (batch for batch in deal_task(each, batches) if batch.column("target")[0].as_py() != ALL)


def fail_once_task(marker: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stages a file, and fails the first time."""
    for batch in batches:
        if not Path(marker).exists():
            Path(marker).touch()
            (Path(marker).parent / "staging" / "left").touch()
            raise RuntimeError("on purpose")
        yield batch


def test_a_job_that_fails_together_goes_apart_and_what_it_staged_is_gone(
    session: SparkSession, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    while session.sparkContext.statusTracker().getActiveJobsIds():
        pass  # a job of the test before, whose end Spark has not noted yet: beside it nothing is exchanged
    failing = Stage(function=fail_once_task, arguments=(str(tmp_path / "marker"),), tasks=2)
    given = [Stage(function=deal_alone_task, arguments=(3,), tasks=2), failing, stages()[2]]
    found = SparkJobRunner(session)._run(given, "log", str(staging), 1)
    assert sum("dealt" in row.kind for row in found) == 2 * TARGETS * 3
    assert (tmp_path / "marker").exists() and list(staging.iterdir()) == []


def read_task(path: str, seconds: float, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads a file, then lasts; sends no rows."""
    for _ in batches:
        with files.Reader(path) as reader:
            reader.read_into(np.empty(reader.stat.size, np.uint8), 0)
        time.sleep(seconds)
    yield from ()


@pytest.mark.parametrize("exchange_stage_bytes", [1 << 30, 0])
def test_progress_counts_the_bytes_that_the_workers_read(
    session: SparkSession, tmp_path: Path, exchange_stage_bytes: int
) -> None:
    reported: list[tuple[Any, ...]] = []
    (tmp_path / "log").write_bytes(bytes(1000))
    reading = Stage(function=read_task, arguments=(str(tmp_path / "log"), 1.5), tasks=1)
    runner = SparkJobRunner(
        session, progress=lambda *report: reported.append(report), exchange_stage_bytes=exchange_stage_bytes
    )
    runner._run([reading, stages()[2]], "users-0", None, 800)
    assert {report[0] for report in reported} == {"users-0"} and {report[3] for report in reported} == {800}
    assert all(0 <= report[2] <= 800 for report in reported) and reported[0][:3] == ("users-0", "reading", 0)
    if exchange_stage_bytes:
        assert ("users-0", "rewriting", 200, 800) in reported  # 800 bytes are read, 200 are read again


def test_when_logs_go_together(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_exchange_files(session, 100)
    assert not can_exchange_files(session, EXCHANGE_STAGE_BYTES + 1)
    other = threading.Thread(target=lambda: session.range(0, 1, 1, 1).mapInArrow(HOLD, "id long").collect())
    other.start()
    while not session.sparkContext.statusTracker().getActiveJobsIds():
        pass
    assert not can_exchange_files(session, 100), "a worker is needed elsewhere"
    other.join()
    monkeypatch.setattr(jobs, "tasks_stay_on_this_machine", lambda session: False)
    assert not can_exchange_files(session, 100)


def claim_task(
    pieces: int, claim: Callable[[int], bool], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Every piece that nobody has claimed, from a place of one's own on."""
    numbers = [row.target for row in rows_of(batches) if row.kind == "dealt"]
    for place in range(pieces):
        piece = (place + min(numbers)) % pieces
        if claim(piece):
            yield Row(target=0, kind="claimed", count=piece).batch()
            time.sleep(0.002 * min(numbers))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_pieces_are_shared_out_once(tmp_path: Path, workers: int) -> None:
    given = [stages()[0], Stage(function=claim_task, arguments=(40,), tasks=workers, needs_claim=True)]
    found = on_threads(tmp_path, given, workers, 0)
    assert sorted(row.count for row in found) == list(range(40))
    assert {row.kind for row in found} == {"claimed"}
