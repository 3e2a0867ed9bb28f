"""8. Interrupted: nothing is lost, groups that were swapped stay swapped, and the next run starts again."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.base import files
from siltstone.commands import clean as app
from siltstone.compaction.inplace import cleaner as cleaner_module
from siltstone.compaction.report import read_cleanings
from tests.support.golden_sets import REPOSITORY
from tests.support.operator.staged import (
    SMALL_WAVES,
    Staged,
    in_process,
    last_values,
    listing,
    log_bytes,
    no_leftovers,
    stage,
    stage_several,
)
from tests.support.thoroughness import THOROUGH, few

SET = "basic_zipf_ts"

KILLED_HALF_WAY = """
import os, signal, sys
from pathlib import Path
from siltstone.base import files
from tests.support.operator.staged import stage

left = int(sys.argv[3])

def watch(operation):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

staged = stage(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[4]))
with files.observe(watch):
    staged.clean(max_extra_bytes=int(sys.argv[5]))
"""


class Crash(BaseException):
    """The process is gone, as far as this process can show it."""


def whole_run(golden: Path, folder: Path, **changes: Any) -> tuple[list[files.Operation], bytes, int | None]:
    """An uninterrupted run: its operations, the log's bytes and the checkpoint after it."""
    staged = stage(golden, SET, folder)
    recorded: list[files.Operation] = []
    with files.observe(recorded.append):
        assert staged.clean_one(**changes).status == "cleaned"
    return recorded, log_bytes(staged.partition), staged.checkpoint()


STEP = 5 if THOROUGH else 41


def at_operation(number: int, do: Callable[[], None]) -> Callable[[files.Operation], None]:
    """An observer that does something before one operation."""
    remaining = number

    def watch(operation: files.Operation) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == -1:
            do()

    return watch


@pytest.mark.random
@pytest.mark.parametrize(
    ("signal_number", "step"),
    [(signal.SIGINT, 9 if THOROUGH else 73), (signal.SIGTERM, 31 if THOROUGH else 67)],
)
def test_after_a_signal_at_any_moment_the_next_run_ends_with_the_same_log(
    golden: Path, tmp_path: Path, signal_number: signal.Signals, step: int
) -> None:
    """Ctrl-C, or SIGTERM as the command takes it: the log is whole, the next run ends as one run would."""
    recorded, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        for at in range(0, len(recorded), step):
            staged = stage(golden, SET, tmp_path / f"stopped-{at}")
            values = last_values(staged.partition)
            watch = at_operation(at, lambda: signal.raise_signal(signal_number))
            with files.observe(watch), pytest.raises(KeyboardInterrupt):
                staged.clean(max_extra_bytes=SMALL_WAVES)
            assert last_values(staged.partition) == values
            no_leftovers(staged.directory, ".siltstone")
            if staged.checkpoint() is None:
                assert staged.clean_one(max_extra_bytes=SMALL_WAVES).status == "cleaned"
            assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint)
            no_leftovers(staged.directory)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.random
def test_after_a_crash_at_any_moment_the_next_run_ends_with_the_same_log(
    golden: Path, tmp_path: Path
) -> None:
    """Nothing is tidied up behind an operation that never happened: the next run does that, says so, and ends
    as one run would."""
    recorded, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)

    swept = 0
    for at in range(0, len(recorded), STEP):
        staged = stage(golden, SET, tmp_path / f"died-{at}")
        values = last_values(staged.partition)

        class Dead:
            """From one operation on every operation crashes, as in a process that has died."""

            remaining = at

            def __call__(self, operation: files.Operation) -> None:
                self.remaining -= 1
                if self.remaining < 0:
                    raise Crash

        with files.observe(Dead()), pytest.raises(Crash):
            staged.clean(max_extra_bytes=SMALL_WAVES)
        if staged.checkpoint() is None:
            result = staged.clean_one(max_extra_bytes=SMALL_WAVES)
            assert result.status == "cleaned", (at, result.reason)
            swept += any("removed staged files of an earlier run" in note for note in result.notes)
        else:
            staged.clean()
        no_leftovers(staged.directory)
        assert last_values(staged.partition) == values
        assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint), at
    assert swept > len(recorded) // STEP * 0.7


@pytest.mark.parametrize("share", few([(0.3,), (0.6,), (0.95,)], 1))
def test_after_kill_9_the_next_run_ends_with_the_same_log(golden: Path, tmp_path: Path, share: float) -> None:
    recorded, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)
    folder = tmp_path / "killed"
    arguments = [str(golden), SET, str(int(len(recorded) * share)), str(folder), str(SMALL_WAVES)]
    completed = subprocess.run(
        [sys.executable, "-c", KILLED_HALF_WAY, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert completed.returncode == -signal.SIGKILL, completed.stderr
    request = stage(golden, SET, tmp_path / "another")
    staged = Staged(
        case=request.case,
        directory=folder,
        request=request.asking(directories=[folder], max_extra_bytes=None),
    )
    result = staged.clean_one()
    assert result.status == "cleaned"
    no_leftovers(folder)
    assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint)


def test_groups_that_were_swapped_stay_swapped(golden: Path, tmp_path: Path) -> None:
    """What was swapped before the stop is not written anew from its originals: they are gone."""
    recorded, _, _ = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)
    promoted = [
        i for i, (verb, source, _) in enumerate(recorded) if verb == "rename" and source.endswith("log.swap")
    ]
    staged = stage(golden, SET, tmp_path / "stopped")
    size = sum(path.stat().st_size for path in staged.partition.glob("*.log"))
    with (
        files.observe(at_operation(promoted[3] + 1, lambda: signal.raise_signal(signal.SIGINT))),
        pytest.raises(KeyboardInterrupt),
    ):
        staged.clean(max_extra_bytes=SMALL_WAVES)
    size_after = sum(path.stat().st_size for path in staged.partition.glob("*.log"))
    assert size_after < size * 0.75


def test_a_run_without_time_still_changes_something(golden: Path, tmp_path: Path) -> None:
    """The first log, or one group of it that changes; what comes after waits for the next run."""
    _, request = stage_several(golden, ["basic", "tombstones", SET], tmp_path)
    request_without_time = replace(request, stop_after=0.0, max_extra_bytes=75_000)
    cleaned = []
    for _ in range(20):
        results = app.clean(request_without_time, engine=in_process).results
        assert {result.status for result in results} <= {"cleaned", "skipped", "nothing_to_do"}
        assert all("--stop-after" in result.reason for result in results if result.status == "skipped")
        changed = [result for result in results if result.discarded.total()]
        cleaned += [str(result.topic_partition) for result in results if result.status == "cleaned"]
        if {result.status for result in results} == {"nothing_to_do"}:
            break
        assert changed
    assert len(cleaned) == len(set(cleaned)) == 3


def test_stop_after_may_stop_between_two_waves(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cleaned, checkpoint = whole_run(golden, tmp_path / "whole")
    staged = stage(golden, SET, tmp_path / "data")
    swaps: list[str] = []

    def watch(operation: files.Operation) -> None:
        if operation[1].endswith("log.swap"):
            swaps.append(operation[1])

    stopwatch = SimpleNamespace(
        monotonic=lambda: 3600.0 if len(swaps) >= 2 else 0.0, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(cleaner_module, "time", stopwatch)
    with files.observe(watch):
        result = staged.clean_one(max_extra_bytes=SMALL_WAVES, stop_after=1.0)
    assert (
        result.status == "skipped"
        and "stopped by --stop-after with 2 of 6 groups done; run again to go on" in result.reason
    )
    assert result.bytes_after < result.bytes_before
    assert staged.checkpoint() is None
    no_leftovers(staged.directory, ".siltstone")
    before = listing(staged.directory)
    assert staged.clean_one(dry_run=True).status == "cleaned"
    assert listing(staged.directory) == before
    result = staged.clean_one(max_extra_bytes=SMALL_WAVES)
    assert result.status == "cleaned" and result.discarded.total() > 0
    assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint)
    no_leftovers(staged.directory)


def test_what_was_done_before_the_stop_is_in_the_report_and_the_history(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, SET, tmp_path / "data")
    (staged.directory / "siltstone-cleanings.jsonl").touch()
    first = staged.clean_one(max_extra_bytes=SMALL_WAVES, stop_after=0.0, report=tmp_path / "report.json")
    rest = staged.clean_one(max_extra_bytes=SMALL_WAVES)
    assert (first.status, rest.status) == ("skipped", "cleaned")
    (log,) = json.loads((tmp_path / "report.json").read_text())["logs"]
    assert "with 1 of 6 groups done" in log["reason"] and log["bytes_after"] < log["bytes_before"]
    assert log["removed"]["superseded"] == first.discarded.superseded > 0
    recorded = [cleaning.result for cleaning in read_cleanings(staged.directory)]
    assert [(result.status, result.discarded) for result in recorded] == [
        ("skipped", first.discarded),
        ("cleaned", rest.discarded),
    ]
    whole = stage(golden, SET, tmp_path / "whole").clean_one()
    assert first.discarded.superseded + rest.discarded.superseded == whole.discarded.superseded


def test_what_was_done_before_ctrl_c_is_in_the_history(golden: Path, tmp_path: Path) -> None:
    recorded, _, _ = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)
    promoted = [
        i for i, (verb, source, _) in enumerate(recorded) if verb == "rename" and source.endswith("log.swap")
    ]
    staged = stage(golden, SET, tmp_path / "data")
    (staged.directory / "siltstone-cleanings.jsonl").touch()
    before = len(log_bytes(staged.partition))
    with (
        files.observe(at_operation(promoted[3] + 1, lambda: signal.raise_signal(signal.SIGINT))),
        pytest.raises(KeyboardInterrupt),
    ):
        staged.clean(max_extra_bytes=SMALL_WAVES)
    (result,) = [cleaning.result for cleaning in read_cleanings(staged.directory)]
    assert result.status == "skipped" and result.reason.startswith("interrupted; what was swapped in stays")
    assert result.discarded.superseded > 0
    assert (result.bytes_before, result.bytes_after >= len(log_bytes(staged.partition))) == (before, True)
