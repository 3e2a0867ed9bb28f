"""3. The lock of each log directory is held from the first read to the end."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import DirectoryLockedError, DirectoryRefusedError
from siltstone.commands import clean as app
from tests.support.descriptors import descriptors_of
from tests.support.operator.staged import Staged, in_process, listing, no_engine, stage

HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
ASKER = """
import fcntl, os, sys
for line in sys.stdin:
    lock = os.open(line.strip(), os.O_RDWR)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free", flush=True)
    except OSError:
        print("held", flush=True)
    os.close(lock)
"""


class Asker:
    """Another process that says whether it could lock a file; threads ask one after another."""

    def __init__(self) -> None:
        self.asking = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, lock: Path) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.asking:
            self.process.stdin.write(f"{lock}\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip()


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "grouping", tmp_path / "data")


@pytest.fixture
def asker() -> Iterator[Asker]:
    asker = Asker()
    yield asker
    asker.process.communicate(timeout=20)


@pytest.fixture
def live_broker(staged: Staged) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the directory's lock as Java's FileChannel.lock does."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(staged.directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.communicate(timeout=20)


@pytest.mark.parametrize("way", ["in place", "out", "dry run", "partition"])
def test_a_directory_that_a_live_process_holds_is_refused(
    staged: Staged, live_broker: subprocess.Popen[str], tmp_path: Path, way: str
) -> None:
    before = listing(staged.directory)
    request = {
        "in place": staged.request,
        "out": staged.asking(in_place=False, out=tmp_path / "new"),
        "dry run": staged.asking(in_place=False, dry_run=True),
        "partition": staged.asking(directories=[staged.partition]),
    }[way]
    with pytest.raises(DirectoryLockedError, match=r"\.lock"):
        app.clean(request, engine=no_engine)
    assert listing(staged.directory) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("way", ["in place", "partition", "out", "two partitions"])
def test_the_lock_is_held_throughout_on_one_descriptor(
    staged: Staged, asker: Asker, tmp_path: Path, golden: Path, way: str
) -> None:
    lock = staged.directory / ".lock"
    states: list[tuple[str, int]] = []
    request = staged.asking(report=tmp_path / "report.json", keep_originals=tmp_path / "keep")
    if way == "out":
        request = staged.asking(report=tmp_path / "report.json", in_place=False, out=tmp_path / "new")
    if way == "partition":
        request = staged.asking(directories=[staged.partition])
    if way == "two partitions":
        other = stage(golden, "basic", tmp_path / "other")
        other.partition.rename(staged.directory / "basic-0")
        both = [staged.partition, staged.directory / "basic-0"]
        request = staged.asking(directories=both, topics=(), high_watermark="end")
    with files.observe(lambda operation: states.append((asker(lock), descriptors_of(lock)))):
        outcome = app.clean(request, engine=in_process)
    assert outcome.results[0].status == "cleaned" or outcome.results[1].status == "cleaned"
    assert len(states) > 50
    assert set(states) == {("held", 1)}
    assert asker(lock) == "free"
    assert descriptors_of(lock) == 0


def test_the_lock_is_released_after_an_error(staged: Staged, asker: Asker) -> None:
    (staged.directory / ".kafka_cleanshutdown").unlink()
    with pytest.raises(DirectoryRefusedError):
        staged.clean()
    assert asker(staged.directory / ".lock") == "free"


def test_several_log_directories_are_locked_together(golden: Path, tmp_path: Path) -> None:
    first, second = (stage(golden, name, tmp_path / name) for name in ("basic", "tombstones"))
    before = listing(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(second.directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(DirectoryLockedError, match="tombstones"):
            app.clean(first.asking(directories=[first.directory, second.directory]), engine=no_engine)
        process.communicate(timeout=20)
    assert listing(tmp_path) == before


def test_the_lock_is_a_posix_record_lock(tmp_path: Path) -> None:
    """Java takes fcntl's kind of lock: a flock of another process is no hindrance, an lockf is."""
    path = tmp_path / ".lock"
    path.touch()
    other = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        lock = files.Lock(path)
        locks = Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""
        held = [line for line in locks.splitlines() if f":{path.stat().st_ino} " in line]
        assert not held or any("POSIX" in line and "WRITE" in line for line in held)
        lock.release()
    finally:
        os.close(other)


def test_a_directory_without_a_lock_file_gets_one_and_loses_it_again(staged: Staged) -> None:
    (staged.directory / ".lock").unlink()
    assert staged.clean_one().status == "cleaned"
    assert not (staged.directory / ".lock").exists()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_in_place(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(files, "file_system", lambda path: kind)
    before = listing(staged.directory)
    with pytest.raises(DirectoryRefusedError, match=kind) as caught:
        app.clean(staged.request, engine=no_engine)
    assert "--out" in str(caught.value)
    assert listing(staged.directory) == before
    assert staged.clean_one(in_place=False, out=tmp_path / "new").status == "cleaned"
