"""Many brokers in one run: which directories are brokers, each broker for itself, and the next run."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.base.errors import EngineError, NotALogDirectoryError, SiltstoneError, UsageError
from siltstone.commands import clean as cleaning
from siltstone.commands import fleet as fleets
from siltstone.commands.clean import CleanOutcome, CleanRequest
from siltstone.commands.fleet import BrokerResult, Fleet, FleetOptions, find_brokers, undo_fleet
from siltstone.compaction.engine import InProcessEngine
from siltstone.spark import session
from tests.support.errors import raises_error
from tests.support.operator.fleets import NAMES, Root, by_name, statuses
from tests.support.operator.staged import in_process, listing, logs_in, no_engine, stage


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Root:
    return Root(golden, tmp_path / "root")


# Which directories are brokers.


def make_log_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "meta.properties").touch()
    return path


def test_a_broker_is_a_log_directory_or_what_has_its_log_dirs_in_it(tmp_path: Path) -> None:
    one = make_log_directory(tmp_path / "one")
    disks = [make_log_directory(tmp_path / "two" / name) for name in ("disk0", "disk1")]
    (tmp_path / "two" / "notes").mkdir()
    (tmp_path / "two" / "linked").symlink_to(one)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a file").touch()
    brokers = find_brokers([f"{tmp_path}/*"])
    assert {broker.name: list(broker.directories.values()) for broker in brokers} == {
        "one": [one],
        "two": disks,
    }


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*/", ["rack1", "rack2"]),
        ("*/b*/", ["rack1/b1", "rack1/b2", "rack2/b1"]),
        ("rack1/*", ["b1", "b2"]),
        ("./rack1//b[12]/../b1", ["b1", "b2"]),
        ("rack2/b1", ["b1"]),
        ("rack[2]/b?", ["b1"]),
    ],
)
def test_a_name_is_what_the_wildcards_stand_for(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for path in ("rack1/b1", "rack1/b2", "rack2/b1"):
        make_log_directory(tmp_path / path)
    if ".." in pattern:  # the same directory twice, by another path
        with raises_error(UsageError, about="matched twice", advice="once"):
            find_brokers([f"{tmp_path}/{pattern}"])
    else:
        assert [broker.name for broker in find_brokers([f"{tmp_path}/{pattern}"])] == names


def refused(kind: type[SiltstoneError], about: str, advice: str, *patterns: str, path: Any = None) -> None:
    with raises_error(kind, about=about, advice=advice, path=path):
        find_brokers(patterns)


def test_patterns_that_do_not_name_brokers_are_refused(tmp_path: Path) -> None:
    broker = make_log_directory(tmp_path / "all" / "b1")
    make_log_directory(tmp_path / "all" / "b2" / "disk0")
    refused(UsageError, "nothing*", "quotes", f"{tmp_path}/nothing*/")
    refused(UsageError, "**", "depth", f"{tmp_path}/**/")
    refused(UsageError, "matched twice", "once", f"{tmp_path}/all/*/", f"{tmp_path}/all/b[1]", path=broker)
    refused(UsageError, "b2 and b2/disk0", "once", f"{tmp_path}/all/*/", f"{tmp_path}/all/*/disk?")
    other = make_log_directory(tmp_path / "other" / "b1")
    refused(UsageError, "b1, too", "wildcards", f"{tmp_path}/all/*/", f"{tmp_path}/other/*/", path=other)
    (tmp_path / "all" / "b3").symlink_to(other)
    refused(UsageError, "symbolic link", str(other), f"{tmp_path}/all/*/", path=tmp_path / "all" / "b3")
    (tmp_path / "all" / "b3").unlink()
    (tmp_path / "all" / "backup").mkdir()
    path = str(tmp_path / "all" / "backup")
    refused(NotALogDirectoryError, "no broker", "pattern", f"{tmp_path}/all/*/", path=path)


def test_what_is_wrong_for_every_broker_is_refused_before_one_is_touched(root: Root, tmp_path: Path) -> None:
    before = listing(root.folder)
    for about, advice, changes in (
        ("--topic nowhere", "topics --list", {"topics": ["basic", "nowhere"]}),
        ("not a setting", "key=value", {"config": ["foo"]}),
        ("--config needs --topic", "--topic", {"topics": []}),
        ("neither --in-place", "--dry-run", {"in_place": False}),
        ("--brokers-at-once 0", "number", {"at_once": 0}),
        ("no broker would start", "another path", {"keep_originals": root.folder / "broker2" / "keep"}),
        ("--report", "new path", {"report": root.folder}),
        ("is not a directory", "create it", {"report": tmp_path / "missing" / "audits"}),
        ("--broker-config", "can be read", {"broker_config": tmp_path / "server.properties"}),
    ):
        with raises_error(UsageError, about=about, advice=advice):
            root.fleet(**changes)  # type: ignore[arg-type]
    assert listing(root.folder) == before


def test_a_copy_inside_another_brokers_copy_is_refused(golden: Path, tmp_path: Path) -> None:
    """The copy of ``a`` is NEW/a: that of ``a/b`` would be a foreign folder in it, or be taken for it."""
    for path in ("one/a", "two/a/b"):
        stage(golden, "basic", tmp_path / path)
    options = FleetOptions(fleet=[f"{tmp_path}/one/*", f"{tmp_path}/two/*/*"])
    request = CleanRequest(out=tmp_path)
    with raises_error(
        UsageError, path=tmp_path / "a" / "b", about="of a/b would be inside", advice="{broker}"
    ):
        Fleet(request, options, engine=in_process)
    for accepted in (
        CleanRequest(out=tmp_path / "{broker}" / "copy"),
        CleanRequest(in_place=True, keep_originals=tmp_path / "keep"),
    ):
        assert [broker.name for broker in Fleet(accepted, options, engine=in_process).brokers] == ["a", "a/b"]


# Each broker for itself.


def test_each_broker_is_cleaned_as_by_a_run_of_its_own(golden: Path, root: Root, tmp_path: Path) -> None:
    alone = stage(golden, "basic", tmp_path / "alone")
    (expected,) = alone.clean().results
    results = root.clean()
    assert statuses(results) == dict.fromkeys(NAMES, "cleaned")
    for name, staged in root.staged.items():
        content = {path: facts[:2] for path, facts in logs_in(staged.directory).items()}
        assert content == {path: facts[:2] for path, facts in logs_in(alone.directory).items()}
        totals = results[name].totals
        assert (totals.logs, totals.cleaned, totals.failed) == (1, 1, 0)
        assert (totals.bytes_before, totals.bytes_after) == (expected.bytes_before, expected.bytes_after)
        assert totals.removed == expected.discarded.total()
        assert results[name].engine == "in-process" and results[name].now_ms == staged.request.now_ms


@contextmanager
def locked_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the lock, as a broker does."""
    code = (
        f"import fcntl, sys; f = open({str(path)!r}, 'w'); "
        "fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield
        process.communicate()


def test_a_broker_that_cannot_be_cleaned_does_not_stop_the_others(root: Root) -> None:
    with locked_elsewhere(root.staged["broker1"].directory / ".lock"):
        results = root.clean()
    assert statuses(results) == {"broker1": "failed", "broker2": "cleaned", "broker3": "cleaned"}
    failure = results["broker1"].failure
    assert failure is not None and failure.code == "DIRECTORY_LOCKED" and failure.advice
    (root.staged["broker1"].directory / ".kafka_cleanshutdown").unlink()
    results = root.clean()
    assert statuses(results) == {"broker1": "failed", **dict.fromkeys(NAMES[1:], "nothing_to_do")}
    assert "siltstone recover" in results["broker1"].reason
    assert results["broker2"].reason.startswith("nothing that may be cleaned")


def test_a_damaged_log_is_a_failure_of_its_broker_and_is_named(root: Root) -> None:
    segment = min(root.staged["broker2"].partition.glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content)
    results = root.clean()
    assert statuses(results) == {"broker1": "cleaned", "broker2": "failed", "broker3": "cleaned"}
    (log,) = results["broker2"].failed
    assert (log.status, log.failure and log.failure.path) == ("uncleanable", str(segment))
    assert results["broker2"].failure is None and results["broker2"].totals.failed == 1


def test_a_full_disk_and_a_disk_that_fails_are_failures_of_their_brokers(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_space, directories = files.free_space, fleets.log_directories_of

    def free(path: Path) -> files.FreeSpace:
        return files.FreeSpace(0, 0) if "broker1" in str(path) else free_space(path)

    def listed(path: Path) -> list[Path]:
        if path.name == "broker3":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return directories(path)

    monkeypatch.setattr(files, "free_space", free)
    monkeypatch.setattr(fleets, "log_directories_of", listed)
    results = root.clean()
    assert statuses(results) == {"broker1": "failed", "broker2": "cleaned", "broker3": "failed"}
    assert "bytes more on disk" in results["broker1"].failed[0].reason
    assert results["broker3"].failure is not None and results["broker3"].failure.code == "EIO"


def test_an_unexpected_error_is_a_failure_of_its_broker(
    root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clean = cleaning.clean

    def cleaned(request: CleanRequest, **named: Any) -> CleanOutcome:
        if "broker2" in str(request.directories):
            raise ZeroDivisionError("a bug")
        return clean(request, **named)

    monkeypatch.setattr(cleaning, "clean", cleaned)
    results = root.clean()
    assert statuses(results) == {"broker1": "cleaned", "broker2": "failed", "broker3": "cleaned"}
    assert "a bug" in results["broker2"].reason and "Traceback" in caplog.text


def test_a_broker_without_the_chosen_topics_is_not_touched(golden: Path, tmp_path: Path) -> None:
    """No topics would mean all of them."""
    root = Root(golden, tmp_path / "root", ["broker1"])
    other = stage(golden, "tombstones", tmp_path / "root" / "broker2")
    before = listing(other.directory)
    results = root.clean()
    assert statuses(results) == {"broker1": "cleaned", "broker2": "nothing_to_do"}
    assert results["broker2"].reason == fleets.NO_TOPIC
    assert listing(other.directory) == before


# At one time, and their memory and space.


def test_as_many_brokers_are_cleaned_at_one_time_as_allowed_and_no_more(golden: Path, tmp_path: Path) -> None:
    root = Root(golden, tmp_path / "root", [f"broker{number}" for number in range(6)])
    pairs, running, most, guard = threading.Barrier(2, timeout=60), 0, 0, threading.Lock()

    class Paired(InProcessEngine):
        """Goes on only beside another broker."""

        def clean_whole(self, works: Any) -> Iterator[Any]:
            nonlocal running, most
            with guard:
                running += 1
                most = max(most, running)
            pairs.wait()
            yield from super().clean_whole(works)
            with guard:
                running -= 1

    results = root.clean(engine=lambda request, progress: Paired())
    assert set(statuses(results).values()) == {"cleaned"}
    assert most == 2


def test_brokers_of_one_file_system_share_its_space(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int | None] = []

    def cleaned(request: CleanRequest, **named: Any) -> CleanOutcome:
        limits.append(request.max_extra_bytes)
        return CleanOutcome(run="", results=[])

    monkeypatch.setattr(cleaning, "clean", cleaned)
    monkeypatch.setattr(files, "free_space", lambda path: files.FreeSpace(8000, None))
    for at_once, limit, expected in (
        (2, None, 1000),
        (2, 500, 250),
        (9, 300, 100),
        (1, None, None),
        (1, 7, 7),
    ):
        root.clean(at_once=at_once, max_extra_bytes=limit)
        assert limits == [expected] * 3, (at_once, limit)
        limits.clear()


def test_progress_counts_brokers_and_logs(root: Root) -> None:
    reported: list[tuple[int, int]] = []
    options = FleetOptions(fleet=[root.pattern], brokers_at_once=1)
    fleet = Fleet(
        root.request(), options, engine=in_process, progress=lambda *counts: reported.append(counts)
    )
    fleet.clean()
    assert reported == [(0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]


def test_an_engine_that_does_not_start_stops_the_run(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(root.folder)
    starts = []

    def start(master: str, **settings: object) -> None:
        starts.append(master)
        raise EngineError("Java is missing", advice="install it")

    monkeypatch.setattr(session, "start_session", start)
    fleet = root.fleet(engine=None, at_once=1, no_spark=False, master="local[1]")
    with raises_error(EngineError, about="Java is missing", advice="install it"):
        fleet.clean()
    assert starts == ["local[1]"] and listing(root.folder) == before


# The next run.


class Stopping:
    """Interrupts after so many brokers, as Ctrl-C would."""

    def __init__(self, brokers: int) -> None:
        self.remaining = brokers

    def __call__(self, result: BrokerResult, outcome: CleanOutcome) -> None:
        self.remaining -= 1
        if not self.remaining:
            raise KeyboardInterrupt


def test_a_run_that_was_interrupted_continues_with_the_same_command(root: Root) -> None:
    fleet = root.fleet(at_once=1)
    with pytest.raises(KeyboardInterrupt):
        fleet.clean(Stopping(1))
    assert [result.status for result in fleet.results] == ["cleaned"]
    (cleaned_broker,) = (result.broker for result in fleet.results)
    finished = listing(root.staged[cleaned_broker].directory)
    results = root.clean()
    assert results.pop(cleaned_broker).status == "nothing_to_do"
    assert set(statuses(results).values()) == {"cleaned"}
    assert listing(root.staged[cleaned_broker].directory) == finished


def test_finished_logs_are_skipped_whatever_the_dirty_ratio(root: Root) -> None:
    root.clean(force=True)
    before = listing(root.folder)
    results = root.clean(force=True, engine=no_engine)
    assert set(statuses(results).values()) == {"nothing_to_do"}
    assert listing(root.folder) == before


def test_stop_after_leaves_the_rest_once_something_has_changed(root: Root) -> None:
    root.staged["broker1"].clean()
    results = root.clean(at_once=1, stop_after=0)
    assert statuses(results) == {"broker1": "nothing_to_do", "broker2": "cleaned", "broker3": "skipped"}
    assert "--stop-after" in results["broker3"].reason
    assert root.clean(at_once=1, stop_after=0)["broker3"].status == "cleaned"


# Copies, audits, originals.


def test_copies_are_made_once(root: Root, tmp_path: Path) -> None:
    before, out = listing(root.folder), tmp_path / "new"
    flags: dict[str, Any] = {"in_place": False, "out": out}
    dry = root.clean(dry_run=True, **flags)
    assert set(statuses(dry).values()) == {"cleaned"} and not out.exists()
    root.clean(**flags)
    assert sorted(path.name for path in out.iterdir()) == list(NAMES)
    copies = listing(out)
    shutil.rmtree(out / "broker2")
    results = root.clean(**flags)
    assert statuses(results) == {"broker1": "skipped", "broker2": "cleaned", "broker3": "skipped"}
    assert {path: facts[0] for path, facts in listing(out).items()} == {
        path: facts[0] for path, facts in copies.items()
    }
    assert listing(root.folder) == before


def test_each_broker_has_an_audit_and_originals_which_undo_puts_back(root: Root, tmp_path: Path) -> None:
    before = {name: listing(staged.partition) for name, staged in root.staged.items()}
    fleet = root.fleet(report=tmp_path / "audits", keep_originals=tmp_path / "keep")
    results = by_name(fleet.clean())
    assert sorted(path.name for path in (tmp_path / "audits").iterdir()) == [f"{name}.json" for name in NAMES]
    originals = {name: tmp_path / "keep" / name / fleet.run for name in NAMES}
    assert {name: result.kept for name, result in results.items()} == originals
    with next(iter(root.staged["broker2"].partition.glob("*.log"))).open("ab") as file:
        file.write(b"more")
    changed = listing(root.staged["broker2"].partition)
    pattern = f"{tmp_path}/keep/*/{fleet.run}"
    with raises_error(UsageError, about="--topic nowhere", advice="leave it out"):
        list(undo_fleet([pattern], ["nowhere"]))
    undone = {undo.folder.parent.name: undo for undo in undo_fleet([pattern], ["basic"])}
    assert [undone[name].failure is None for name in NAMES] == [True, False, True]
    for name in ("broker1", "broker3"):
        assert listing(root.staged[name].partition) == before[name]
    assert listing(root.staged["broker2"].partition) == changed


def test_the_undo_of_a_run_that_cannot_be_read_has_failed(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, entries = root.fleet(keep_originals=tmp_path / "keep"), files.entries
    fleet.clean()
    unreadable = tmp_path / "keep" / "broker2" / fleet.run

    def refused(directory: Path) -> list[files.Entry]:
        if directory == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(directory))
        return entries(directory)

    monkeypatch.setattr(files, "entries", refused)
    for topics in ([], ["basic"]):
        undone = list(undo_fleet([f"{tmp_path}/keep/*/{fleet.run}"], topics, dry_run=True))
        assert [undo.failure is None for undo in undone] == [True, False, True]
        assert [len(undo.restored) for undo in undone] == [1, 0, 1]


def test_a_name_can_stand_anywhere_in_the_path_of_the_originals(root: Root, tmp_path: Path) -> None:
    fleet = root.fleet(keep_originals=tmp_path / "{broker}-kept" / "here")
    results = by_name(fleet.clean())
    for name in NAMES:
        assert results[name].kept == tmp_path / f"{name}-kept" / "here" / fleet.run
