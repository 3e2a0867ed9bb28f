"""8. Stop and go on; keep the originals and put them back; write down what was done."""

import getpass
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import siltstone
from siltstone import app, files
from siltstone.cleaner import cleaner as cleaner_module
from siltstone.errors import DirectoryRefusedError, UsageError
from tests.golden_sets import REPOSITORY
from tests.operator.staged import (
    Listing,
    Staged,
    in_process,
    last_values,
    listing,
    log_bytes,
    no_engine,
    no_leftovers,
    stage,
)

SET = "basic_zipf_ts"
SMALL_WAVES = 15_000 + 16 * 482  # and what a shuffle may spill: 16 bytes an offset

KILLED_HALF_WAY = """
import os, signal, sys
from pathlib import Path
from siltstone import files
from tests.operator.staged import stage

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
    seen: list[files.Operation] = []
    with files.observe(seen.append):
        assert staged.clean_one(**changes).status == "cleaned"
    return seen, log_bytes(staged.partition), staged.checkpoint()


def at_operation(number: int, do: Callable[[], None]) -> Callable[[files.Operation], None]:
    """An observer that does something before one operation."""
    left = number

    def watch(operation: files.Operation) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            do()

    return watch


@pytest.mark.parametrize(("signal_number", "step"), [(signal.SIGINT, 9), (signal.SIGTERM, 31)])
def test_a_signal_at_any_moment(
    golden: Path, tmp_path: Path, signal_number: signal.Signals, step: int
) -> None:
    """Ctrl-C, or SIGTERM as the command takes it: the log is whole, the next run ends as one run would."""
    seen, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        for at in range(0, len(seen), step):
            staged = stage(golden, SET, tmp_path / f"stopped-{at}")
            values = last_values(staged.partition)
            watch = at_operation(at, lambda: signal.raise_signal(signal_number))
            with files.observe(watch), pytest.raises(KeyboardInterrupt):
                staged.clean(max_extra_bytes=SMALL_WAVES)
            assert last_values(staged.partition) == values
            no_leftovers(staged.directory)
            if staged.checkpoint() is None:
                assert staged.clean_one(max_extra_bytes=SMALL_WAVES).status == "cleaned"
            assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_that_died_at_any_moment_is_gone_on_with(golden: Path, tmp_path: Path) -> None:
    """Nothing is tidied up behind an operation that never happened: the next run does that."""
    seen, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)

    def crash() -> None:
        raise Crash

    for at in range(0, len(seen), 5):
        staged = stage(golden, SET, tmp_path / f"died-{at}")
        values = last_values(staged.partition)

        class Dead:
            """Once it happened, nothing happens any more."""

            left = at

            def __call__(self, operation: files.Operation) -> None:
                self.left -= 1
                if self.left < 0:
                    raise Crash

        with files.observe(Dead()), pytest.raises(Crash):
            staged.clean(max_extra_bytes=SMALL_WAVES)
        if staged.checkpoint() is None:
            result = staged.clean_one(max_extra_bytes=SMALL_WAVES)
            assert result.status == "cleaned", (at, result.reason)
        else:
            staged.clean()
        no_leftovers(staged.directory)
        assert last_values(staged.partition) == values
        assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint), at


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_kill_9_and_go_on(golden: Path, tmp_path: Path, share: float) -> None:
    seen, cleaned, checkpoint = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)
    folder = tmp_path / "killed"
    arguments = [str(golden), SET, str(int(len(seen) * share)), str(folder), str(SMALL_WAVES)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_HALF_WAY, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
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


def test_at_most_one_waves_work_is_lost(golden: Path, tmp_path: Path) -> None:
    """What was swapped before the stop is not written anew from its originals: they are gone."""
    seen, _, _ = whole_run(golden, tmp_path / "whole", max_extra_bytes=SMALL_WAVES)
    promoted = [
        i for i, (verb, source, _) in enumerate(seen) if verb == "rename" and source.endswith("log.swap")
    ]
    staged = stage(golden, SET, tmp_path / "stopped")
    size = sum(path.stat().st_size for path in staged.partition.glob("*.log"))
    with (
        files.observe(at_operation(promoted[3] + 1, lambda: signal.raise_signal(signal.SIGINT))),
        pytest.raises(KeyboardInterrupt),
    ):
        staged.clean(max_extra_bytes=SMALL_WAVES)
    left = sum(path.stat().st_size for path in staged.partition.glob("*.log"))
    assert left < size * 0.75


def test_stop_after_nothing_starts_nothing(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, SET, tmp_path / "data")
    before = listing(staged.directory)
    (result,) = app.clean(staged.asking(stop_after_minutes=0.0), engine=no_engine).results
    assert result.status == "skipped" and "--stop-after" in result.reason
    assert listing(staged.directory) == before


def test_stop_after_between_two_waves(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        result = staged.clean_one(max_extra_bytes=SMALL_WAVES, stop_after_minutes=1.0)
    assert result.status == "skipped" and "waves of groups done; run again to go on" in result.reason
    assert result.bytes_after < result.bytes_before
    assert staged.checkpoint() is None
    no_leftovers(staged.directory)
    assert staged.clean_one(max_extra_bytes=SMALL_WAVES).status == "cleaned"
    assert (log_bytes(staged.partition), staged.checkpoint()) == (cleaned, checkpoint)


def without_checkpoint(found: Listing) -> Listing:
    return {name: facts for name, facts in found.items() if name != "cleaner-offset-checkpoint"}


@pytest.mark.parametrize(("name", "number"), [("basic", 0), (SET, 1), ("grouping", 2), ("idempotent", 0)])
def test_undo_puts_everything_back(golden: Path, tmp_path: Path, name: str, number: int) -> None:
    staged = stage(golden, name, tmp_path / "data", number)
    before, checkpoint = listing(staged.directory), staged.checkpoint()
    report = staged.clean(keep_originals=tmp_path / "keep")
    assert report.results[0].status == "cleaned"
    assert report.kept == tmp_path / "keep" / report.run
    assert without_checkpoint(listing(staged.directory)) != without_checkpoint(before)
    restored = app.undo(report.kept)
    assert restored[str(staged.partition)]
    assert without_checkpoint(listing(staged.directory)) == without_checkpoint(before)
    assert staged.checkpoint() == checkpoint
    assert app.undo(report.kept) == {str(staged.partition): []}
    assert staged.clean_one().status == "cleaned"


@pytest.mark.parametrize("broken_off", ["undo", "clean"])
def test_undo_after_a_crash_at_any_moment(golden: Path, tmp_path: Path, broken_off: str) -> None:
    whole = stage(golden, "basic", tmp_path / "whole")
    seen: list[files.Operation] = []
    if broken_off == "clean":
        with files.observe(seen.append):
            whole.clean(keep_originals=tmp_path / "keep-whole")
    else:
        kept = whole.clean(keep_originals=tmp_path / "keep-whole").kept
        assert kept is not None
        with files.observe(seen.append):
            app.undo(kept)
    for at in range(0, len(seen), 5 if broken_off == "clean" else 3):
        staged = stage(golden, "basic", tmp_path / f"{at}")
        before, keep = listing(staged.directory), tmp_path / f"keep-{at}"

        class Dead:
            left = at

            def __call__(self, operation: files.Operation) -> None:
                self.left -= 1
                if self.left < 0:
                    raise Crash

        if broken_off == "clean":
            with files.observe(Dead()), pytest.raises(Crash):
                staged.clean(keep_originals=keep)
        else:
            staged.clean(keep_originals=keep)
            (run,) = keep.iterdir()
            with files.observe(Dead()), pytest.raises(Crash):
                app.undo(run)
        runs = [run for run in keep.glob("*") if list(run.glob("*/undo.json"))]
        for run in runs:
            app.undo(run)
        staged.clean_one(force=True) if not runs else None
        if runs:
            after = {
                n: v
                for n, v in without_checkpoint(listing(staged.directory)).items()
                if ".siltstone" not in n
            }
            after.pop("cleaner-offset-checkpoint.tmp", None)
            assert after == without_checkpoint(before), at
            assert staged.checkpoint() is None


@pytest.mark.parametrize("change", ["append", "cleaned segment", "rolled", "gone"])
def test_undo_is_refused_once_the_log_changed(golden: Path, tmp_path: Path, change: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    kept = staged.clean(keep_originals=tmp_path / "keep").kept
    assert kept is not None
    logs = sorted(staged.partition.glob("*.log"))
    if change == "append":
        with logs[-1].open("ab") as file:
            file.write(b"\0" * 70)
    elif change == "cleaned segment":
        with logs[0].open("ab") as file:
            file.write(b"\0" * 70)
    elif change == "rolled":
        (staged.partition / f"{10_000:020d}.log").touch()
    else:
        logs[-1].unlink()
    before = listing(staged.directory)
    with pytest.raises(DirectoryRefusedError, match="nothing was changed"):
        app.undo(kept)
    assert listing(staged.directory) == before


def test_undo_of_what_is_no_run_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run kept its originals here"):
        app.undo(tmp_path)
    with pytest.raises(UsageError, match="no run kept its originals here"):
        app.undo(tmp_path / "nowhere")


def test_a_damaged_undo_file_is_refused(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    kept = staged.clean(keep_originals=tmp_path / "keep").kept
    assert kept is not None
    path = kept / staged.partition.name / "undo.json"
    for text in ("{", "[]", "{}", '{"groups": [{}]}', "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(DirectoryRefusedError, match=r"undo\.json"):
            app.undo(kept)


def sha256(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("way", ["in place", "out"])
def test_the_report_says_who_what_when_and_every_file(golden: Path, tmp_path: Path, way: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    where: dict[str, Any] = {} if way == "in place" else {"in_place": False, "out": tmp_path / "new"}
    after_folder = staged.partition if way == "in place" else tmp_path / "new" / staged.partition.name
    before, began = sha256(staged.partition), time.time() * 1000
    done = app.clean(staged.asking(report=tmp_path / "report.json", **where), engine=in_process)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"] == done.run
    assert report["version"] == siltstone.__version__
    assert report["user"] == getpass.getuser()
    assert report["host"]
    assert began - 1 <= report["started_ms"] <= time.time() * 1000
    assert str(staged.directory) in report["options"]["directories"]
    assert report["options"]["in_place"] == str(way == "in place")
    (log,) = report["logs"]
    assert (log["topic"], log["partition"], log["status"], log["reason"]) == ("basic", 0, "cleaned", "")
    assert log["settings"]["cleanup.policy"] == {"value": ["compact"], "source": "--config"}
    assert report["sha256_before"] == {str(staged.partition): before}
    assert report["sha256_after"] == {str(after_folder): sha256(after_folder)}
    assert sha256(after_folder) != before


def test_the_report_gives_the_reason_of_what_was_not_cleaned(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "keyless", tmp_path / "data")
    staged.clean(report=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert "without a key" in report["logs"][0]["reason"]
    assert report["sha256_before"] == report["sha256_after"]


def test_a_report_is_never_written_over_nor_late_found_impossible(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    (tmp_path / "report.json").write_text("{}")
    for path in (tmp_path / "report.json", tmp_path / "nowhere" / "report.json"):
        with pytest.raises(UsageError, match="--report"):
            app.clean(staged.asking(report=path), engine=no_engine)
    assert listing(staged.directory) == before
