"""A crash at every step of recovery: the next start ends with the same log, and so does the one after.

The directories are those of ``golden/test_recovery`` that make recovery do most, as whole log directories
with checkpoints; a start is ``recover_directories`` with its marker, so that a crash amid it is a crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.files import Operation
from siltstone.log.directory import LogDirectory
from siltstone.log.recovery.directories import RecoveryOptions, recover_directories
from tests.support import golden_sets
from tests.support.cleaning.logs import tree
from tests.support.crash.disk import DROP, KEEP, Crash, Disk, Recording, recorded
from tests.support.thoroughness import SEEDS, boundaries, turn

pytestmark = pytest.mark.random

CONFIG = LogConfig(index_interval_bytes=512, segment_index_bytes=4096)
HOW = RecoveryOptions(
    config_of=lambda destination: CONFIG, now_ms=1_795_227_600_000, mark_clean_shutdown=True
)
STOPPED = """
    u_bitflip_mid_r0 u_index_garbage u_snapshot_garbage u_epoch_deleted u_stray_files u_txn_r0_nosnap
    u_zero_tail c_bitflip_last c_index_garbage c_zero_tail
""".split()
SWAPS = ["us_5_swap_all_deleted", "us_8_two_swaps_cleaned_left"]
BELOW_ITS_START = "below its start"
MARKER = ".kafka_cleanshutdown"


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_sets.unpack_recovery(tmp_path_factory.mktemp("golden-recovery"))


def stage(root: Path, name: str, destination: Path) -> Path:
    set_name = "u_plain" if name == BELOW_ITS_START else name
    case = golden_sets.load_case(root, f"recovery/{set_name}")
    directory = golden_sets.stage_round(case, case.rounds[0], destination)
    if name == BELOW_ITS_START:
        golden_sets.write_checkpoint(directory / "log-start-offset-checkpoint", {(case.topic, 0): 4711})
    return directory


def recover(path: Path) -> list[tuple[str, int | None]]:
    """A start and a stop; each log's status and end offset. The lock is not what is tested."""
    directory = LogDirectory.open(path, lock=False)
    (recovery,) = recover_directories([directory], HOW)
    assert recovery.offline is None
    return [(log.status, log.recovered.log_end_offset if log.recovered else None) for log in recovery.logs]


def outcome(path: Path) -> dict[str, bytes]:
    """What a finished start and stop leave, but for the marker's content, which depends on the way there."""
    return {name: b"" if name == MARKER else data for name, data in tree(path).items()}


class Raising:
    """Lets ``count`` operations happen; then the process is gone."""

    def __init__(self, count: int) -> None:
        self.remaining = count

    def __call__(self, operation: Operation) -> None:
        if self.remaining <= 0:
            raise Crash
        self.remaining -= 1


def crash_after(count: int, act: Callable[[], object]) -> bool:
    """Call ``act``, and stop it after ``count`` operations; whether it was stopped."""
    try:
        with files.observe(Raising(count)):
            act()
    except Crash:
        return True
    return False


def record(root: Path, name: str, path: Path) -> tuple[Recording, dict[str, bytes]]:
    """The operations of an undisturbed start and stop, and what they leave."""
    stage(root, name, path)
    with recorded(path) as recording:
        recover(path)
    ended = outcome(path)
    assert MARKER in ended
    return recording, ended


def roots(golden: Path, stopped: Path, name: str) -> Path:
    return golden if name in SWAPS else stopped


@pytest.mark.parametrize("name", [*STOPPED, *SWAPS, BELOW_ITS_START])
def test_every_operation_may_be_the_last(golden: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    root = roots(golden, stopped, name)
    recording, ended = record(root, name, tmp_path / "undisturbed")
    total = len(recording.steps)
    for count in boundaries(total, 5 if name in SWAPS else 1):  # the swap's own steps: test_swap_crashes
        path = tmp_path / str(count)
        stage(root, name, path)
        assert crash_after(count, lambda path=path: recover(path))
        crash_after(count // 2, lambda path=path: recover(path))
        recover(path)
        assert outcome(path) == ended, (count, recording.steps[count].operation)
        shutil.rmtree(path)


@pytest.mark.parametrize("name", [*STOPPED, *SWAPS, BELOW_ITS_START])
def test_whatever_was_on_disk_by_then(golden: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    recording, ended = record(roots(golden, stopped, name), name, path)
    assert list(other_outcomes(recording, ended, every=3 if name in SWAPS else 1)) == []


def other_outcomes(recording: Recording, ended: dict[str, bytes], *, every: int = 1) -> Iterator[str]:
    """Images of the disk from which the next start and stop leave something else than ``ended``."""
    images: set[int] = set()
    for count in boundaries(len(recording.steps) + 1, every):
        disk = Disk(recording, count)
        for variant in turn(count // every, [KEEP, DROP, *(seed * 1009 + count for seed in SEEDS)]):
            if not disk.build(variant, images):
                continue
            recover(recording.root)
            if outcome(recording.root) != ended:
                yield f"{count} {variant}"


@pytest.mark.parametrize("name", [*STOPPED, *SWAPS, BELOW_ITS_START])
def test_what_is_done_is_durable(golden: Path, stopped: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    recording, ended = record(roots(golden, stopped, name), name, path)
    Disk(recording, len(recording.steps)).build(DROP)
    assert outcome(path) == ended


def test_the_marker_goes_first_and_comes_last(stopped: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    recording, _ = record(stopped, "c_bitflip_last", path)
    operations = [step.operation for step in recording.steps]
    assert operations[0] == ("unlink", str(path / MARKER), "")
    assert operations[1] == ("fsync", str(path), "")
    moved = [i for i, operation in enumerate(operations) if operation[2].endswith("-offset-checkpoint")]
    marked = [i for i, operation in enumerate(operations) if operation[2].endswith(MARKER)]
    assert len(marked) == 1 and moved and max(moved) < marked[0] == len(operations) - 2
    inside = [i for i, operation in enumerate(operations) if "c_bitflip_last-0" in operation[1]]
    assert max(inside) < min(moved)


def _without_new_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files.Writer, "sync", lambda self: None)


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no directory sync": lambda patch: patch.setattr(files, "sync_directory", lambda path: None),
    "no fsync of what was cut": lambda patch: patch.setattr(files.Appender, "sync", lambda self: None),
    "no fsync of new files": _without_new_sync,
}


@pytest.mark.long  # it tests the harness
@pytest.mark.parametrize("broken", BROKEN)
def test_the_harness_finds_what_is_taken_out(
    stopped: Path, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with monkeypatch.context() as patch:
        BROKEN[broken](patch)
        recording, ended = record(stopped, "u_bitflip_mid_r0", path)
    assert any(other_outcomes(recording, ended))
