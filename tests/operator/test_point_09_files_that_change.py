"""9. Files that cannot be read or written, and files that change under a run: the log is left as it is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.errors import SiltstoneError
from siltstone.base.files import Operation
from siltstone.commands import clean as app
from siltstone.compaction.report import FAILED
from tests.support.operator.staged import in_process, is_root, last_values, listing, stage_several
from tests.support.thoroughness import share

BAD = "tombstones"
SETS = ["basic", BAD]
CHANGES: dict[str, Callable[[Path], object]] = {
    "vanishes": lambda path: path.unlink(),
    "grows": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 100),
    "shrinks": lambda path: os.truncate(path, path.stat().st_size // 2),
    "is emptied": lambda path: os.truncate(path, 0),
    "is another file": lambda path: path.write_bytes(_after_unlink(path)),
}


def _after_unlink(path: Path) -> bytes:
    data = path.read_bytes()
    path.unlink()
    return data


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def modes_mean_something() -> Iterator[None]:
    """Within the block root may do what a file's mode allows its owner, and not more: this thread, and those
    that it starts, are without the capabilities CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    if not is_root():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(0x20080522, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), ctypes.byref(sets)) != 0:
        pytest.skip("no capabilities here")
    before = sets[0].effective
    sets[0].effective = before & ~0b110
    assert libc.capset(ctypes.byref(header), ctypes.byref(sets)) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(header), ctypes.byref(sets)) == 0


def test_an_unreadable_file_fails_its_log(golden: Path, tmp_path: Path) -> None:
    """chmod 000 of each file, one after another: where it is needed its log is failed and as it was, or the
    run is refused; nothing is lost where it is not."""
    directory, request = stage_several(golden, SETS, tmp_path)
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    assert len(names) > 15
    before, ways = listing(directory), set()
    values = {log: last_values(directory / f"{log}-0") for log in SETS}
    for name in share(names, 2):
        path = directory / name
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            with modes_mean_something():
                ways.add(refused_or_cleaned(request, name))
        finally:
            path.chmod(mode)
        now = listing(directory)
        for log in SETS:
            assert last_values(directory / f"{log}-0") == values[log], name
            if name.startswith(f"{log}-0/") and name.endswith(".log"):
                files_of_log = {
                    file_name: facts for file_name, facts in before.items() if file_name.startswith(log)
                }
                is_active = name == max(file_name for file_name in files_of_log if file_name.endswith(".log"))
                assert (
                    is_active
                    or {file_name: now[file_name] for file_name in now if file_name.startswith(log)}
                    == files_of_log
                ), name
        shutil.rmtree(directory)
        for file_name, (data, file_mode, modified_ns) in before.items():
            (directory / file_name).parent.mkdir(parents=True, exist_ok=True)
            (directory / file_name).write_bytes(data)
            (directory / file_name).chmod(file_mode)
            os.utime(directory / file_name, ns=(modified_ns, modified_ns))
    assert {"run refused", "log failed"} <= ways


def refused_or_cleaned(request: app.CleanRequest, name: str) -> str:
    try:
        results = {result.topic: result for result in app.clean(request, engine=in_process).results}
    except (SiltstoneError, OSError) as error:
        assert Path(name).name in str(error), name
        return "run refused"
    bad, _, rest = name.partition("/")
    for topic, result in results.items():
        assert result.status == "cleaned" or Path(name).name in result.reason, (name, result)
        assert result.status == "cleaned" or not rest or bad == f"{topic}-0", (name, result)
    return "log failed" if any(result.status == FAILED for result in results.values()) else "not needed"


@pytest.mark.parametrize("what", ["partition", "directory"])
def test_a_directory_without_write_permission_is_refused_or_fails(
    golden: Path, tmp_path: Path, what: str
) -> None:
    directory, request = stage_several(golden, SETS, tmp_path)
    place = directory / f"{BAD}-0" if what == "partition" else directory
    place.chmod(0o555)
    before, values = listing(directory), {log: last_values(directory / f"{log}-0") for log in SETS}
    with modes_mean_something():
        try:
            results = {result.topic: result for result in app.clean(request, engine=in_process).results}
        except OSError as error:
            results = {}
            assert what == "directory" and "Permission denied" in str(error)
    place.chmod(0o755)
    if what == "partition":
        assert [results[topic].status for topic in SETS] == ["cleaned", FAILED]
        assert "Permission denied" in results[BAD].reason
        after = {name: facts for name, facts in listing(directory).items() if name.startswith(BAD)}
        assert after == {name: facts for name, facts in before.items() if name.startswith(BAD)}
    else:  # the swaps need no more than the partitions, the checkpoint does
        assert {result.status for result in results.values()} <= {FAILED}
        assert not (directory / "cleaner-offset-checkpoint").exists()
    assert {log: last_values(directory / f"{log}-0") for log in SETS} == values


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_a_segment_that_changes_while_it_is_cleaned_is_not_swapped(
    golden: Path, tmp_path: Path, change: str, at: int
) -> None:
    """The log is failed and named, its other files are as they were, the other log is cleaned."""
    directory, request = stage_several(golden, SETS, tmp_path)
    partition = directory / f"{BAD}-0"
    victim = sorted(partition.glob("*.log"))[1]
    before = listing(partition)
    remaining = [at]

    def watch(operation: Operation) -> None:
        if f"{BAD}-0/.siltstone" in operation[1]:
            remaining[0] -= 1
            if remaining[0] == -1:
                CHANGES[change](victim)

    with files.observe(watch):
        results = {result.topic: result for result in app.clean(request, engine=in_process).results}
    assert remaining[0] < 0 and results["basic"].status == "cleaned"
    after = listing(partition)
    after.pop(victim.name, None)
    if results[BAD].status == FAILED:
        before.pop(victim.name)
        assert after == before and victim.name in results[BAD].reason
    else:  # it had been read, and what was read is what was swapped in: no change of others is lost
        assert change != "grows" and results[BAD].status == "cleaned", results[BAD]


def test_an_active_segment_may_grow(golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, SETS, tmp_path)
    active = max((directory / f"{BAD}-0").glob("*.log"))
    values = last_values(directory / "basic-0")
    grown: list[bytes] = []

    def watch(operation: Operation) -> None:
        if f"{BAD}-0/.siltstone" in operation[1] and not grown:
            grown.append(active.read_bytes() + b"more")
            active.write_bytes(grown[0])

    with files.observe(watch):
        app.clean(request, engine=in_process)
    assert active.read_bytes() == grown[0]
    assert last_values(directory / "basic-0") == values
