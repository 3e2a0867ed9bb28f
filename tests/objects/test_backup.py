"""Backups: byte for byte back, only what is new is put, whole or not there, and what goes wrong is said."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.errors import (
    BusyError,
    CheckFailedError,
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    SourceChangedError,
    UsageError,
)
from siltstone.base.files import backups as stored
from siltstone.base.files.backups import restore_points
from siltstone.base.files.stored_directories import stored_path
from siltstone.cli.main import run
from siltstone.commands import backup as backups
from siltstone.commands.backup import BackupRequest, BackupResult, backup, restore
from tests.support.thoroughness import few

RECORDS, KEYS = 240, 97
DAY_MS = 86_400_000
NOW_MS = 1_900_000_000_000


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``logs`` is a copy of."""
    path = tmp_path_factory.mktemp("original") / "logs"
    with st.open(path, mode="a") as opened:
        opened.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "9000"})
        for number in range(RECORDS):
            opened.send("users", b"value %d" % number, key=b"%d" % (number % KEYS))
    (path / "a folder without files").mkdir()
    return path


@pytest.fixture
def logs(original: Path, tmp_path: Path) -> Path:
    """A log directory, stopped in order."""
    return shutil.copytree(original, tmp_path / "logs")


@pytest.fixture
def target(bucket: str) -> Path:
    return Path(f"s3://{bucket}/brokers/one")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "CHUNK_BYTES", 4_096)


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != ".lock" and path.suffix != ".deleted":
            found[str(path.relative_to(root))] = (path.read_bytes(), path.stat().st_mtime_ns)
        elif path.is_dir():
            found[f"{path.relative_to(root)}/"] = (b"", 0)
    return found


def keys(store: Any) -> dict[str, str]:
    return {str(row["path"]): str(row["e_tag"]) for chunk in store.list() for row in chunk}


def made(target: Path, clock: ManualClock, *directories: Path, **options: Any) -> BackupResult:
    clock.advance(10_000)
    return backup(BackupRequest(directories=directories, target=target, **options), clock)


def test_what_is_restored_is_byte_for_byte_what_was_backed_up(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    before = contents(logs)
    result = made(target, clock, logs)
    assert result.new_bytes <= result.bytes
    assert contents(logs) == before
    done = restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == before
    assert not done.needs_recovery
    with st.open(tmp_path / "restored") as opened:
        assert sum(1 for _ in opened["users"]) == RECORDS


def test_the_next_backup_puts_only_what_is_new(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    first = made(target, clock, logs)
    again = made(target, clock, logs)
    assert (again.new_chunks, again.read_bytes) == (0, 0)
    before = contents(logs)
    with st.open(logs, mode="a") as opened:
        for number in range(40):
            opened.send("users", b"later %d" % number, key=b"x")
    grown = made(target, clock, logs)
    assert 0 < grown.new_bytes < first.new_bytes / 2
    with st.open(logs, mode="a") as opened:
        opened.clean("users")
    cleaned = made(target, clock, logs)
    after = contents(logs)
    ids = [point.backup_id for point in restore_points(target)]
    assert ids == [result.backup_id for result in (first, again, grown, cleaned)]
    restore(target, tmp_path / "first", at=ids[1])
    assert contents(tmp_path / "first") == before
    restore(target, tmp_path / "last")
    assert contents(tmp_path / "last") == after


def test_a_file_of_the_same_size_and_time_that_was_just_written_is_read_again(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    path = logs / "users-0" / "leader-epoch-checkpoint"
    files.set_modified(path, (NOW_MS + 9_000) * 1_000_000)
    made(target, clock, logs)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    files.set_modified(path, (NOW_MS + 9_000) * 1_000_000)
    made(target, clock, logs)
    restore(target, tmp_path / "restored")
    assert (tmp_path / "restored" / "users-0" / path.name).read_bytes() == data


def test_a_file_that_changes_while_a_long_live_backup_runs_is_read_again(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    path = logs / "users-0" / "leader-epoch-checkpoint"
    files.set_modified(path, clock.now_ms() * 1_000_000)
    request = BackupRequest(directories=[logs], target=target, is_live=True)
    backup(request, clock, lambda *_: clock.advance(3_600_000))
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    files.set_modified(path, NOW_MS * 1_000_000)
    backup(request, clock)
    restore(target, tmp_path / "restored")
    assert (tmp_path / "restored" / "users-0" / path.name).read_bytes() == data


@pytest.mark.parametrize("is_live", [False, True])
def test_of_a_live_backup_of_an_earlier_version_all_files_are_read_again(
    logs: Path, target: Path, store: Any, clock: ManualClock, is_live: bool
) -> None:
    key = f"brokers/one/backups/{made(target, clock, logs, is_live=is_live).backup_id}.json"
    point = json.loads(bytes(store.get(key).bytes()))
    del point["started_ms"]
    store.put(key, json.dumps(point).encode())
    again = made(target, clock, logs, is_live=is_live)
    assert (again.read_bytes, again.new_chunks) == (again.bytes if is_live else 0, 0)


def test_several_directories_become_folders(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "logs"
    with st.open(other, mode="a") as opened:
        opened.topics.create("events", 1, {})
    made(target, clock, logs, other)
    done = restore(target, tmp_path / "restored")
    assert [Path(path).name for path in done.directories] == ["0-logs", "1-logs"]
    assert contents(tmp_path / "restored" / "1-logs") == contents(other)


def test_an_interrupted_backup_is_no_restore_point_and_is_taken_over(
    logs: Path, target: Path, store: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put, count = stored.put_new, 0

    def failing(path: Path, data: bytes) -> bool:
        nonlocal count
        count += 1
        if count > 5:
            raise KeyboardInterrupt
        return put(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(stored, "put_new", failing)
        patched.setattr(stored, "delete_objects", lambda paths: None)  # the process has died
        with pytest.raises(KeyboardInterrupt):
            made(target, clock, logs)
    assert restore_points(target) == []
    with pytest.raises(BusyError, match="--take-over"):
        made(target, clock, logs)
    made(target, clock, logs, takes_over=True)
    assert not any(key.endswith("writer.json") for key in keys(store))
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(logs)


def test_a_backup_whose_lock_was_taken_over_writes_nothing_and_leaves_the_lock(
    logs: Path, target: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may have pruned chunks that this one counts on."""
    put, other = stored.put_new, contextlib.ExitStack()
    with other:

        def putting(path: Path, data: bytes) -> bool:
            if "chunks" in path.parts and not held:
                held.append(other.enter_context(stored.locked_for_writing(target, NOW_MS, takes_over=True)))
            return put(path, data)

        held: list[stored.WriterLock] = []
        with monkeypatch.context() as patched:
            patched.setattr(stored, "put_new", putting)
            with pytest.raises(BusyError, match="taken over"):
                made(target, clock, logs)
        assert restore_points(target) == []
        assert held[0].is_held()
        with pytest.raises(BusyError, match="another backup writes there"):
            made(target, clock, logs)
    made(target, clock, logs)
    assert len(restore_points(target)) == 1


def test_a_copy_of_a_restore_point_under_another_name_is_refused(
    logs: Path, target: Path, clock: ManualClock, store: Any
) -> None:
    """Pruning would delete the restore point that it is a copy of."""
    (point,) = (made(target, clock, logs), *restore_points(target))[1:]
    path = stored.point_path(target, point.backup_id)
    copy = stored.point_path(target, "20200101T000000Z")
    assert stored.put_new(copy, files.read_bytes(path))
    with pytest.raises(CorruptFileError, match="under another name"):
        made(target, clock, logs, keep=1)
    files.delete_objects([copy])
    made(target, clock, logs, keep=1)
    assert len(restore_points(target)) == 1


def test_backups_of_one_second_are_in_order(logs: Path, target: Path) -> None:
    for _ in range(11):
        backup(BackupRequest(directories=(logs,), target=target), ManualClock(NOW_MS))
    names = [point.backup_id for point in restore_points(target)]
    assert [name.partition("-")[2] for name in names] == ["", *map(str, range(2, 12))]
    assert stored.newest_id(target) == names[-1]


def test_the_last_backup_is_the_newest_when_the_clock_goes_back(
    logs: Path, target: Path, clock: ManualClock
) -> None:
    made(target, clock, logs)
    clock.advance(-DAY_MS)
    last = made(target, clock, logs).backup_id
    assert stored.newest_id(target) == restore_points(target)[-1].backup_id == last
    assert [made(target, clock, logs, keep=1).backup_id] == [restore_points(target)[0].backup_id]


def test_the_last_backup_of_a_second_is_the_newest_when_others_were_pruned(logs: Path, target: Path) -> None:
    request = BackupRequest(directories=(logs,), target=target, keep=2)
    for _ in range(4):
        last = backup(request, ManualClock(NOW_MS)).backup_id
    assert stored.newest_id(target) == restore_points(target)[-1].backup_id == last


def test_two_backups_do_not_write_at_one_time(
    logs: Path, target: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, errors = stored.put_own, list[BusyError]()

    def putting(path: Path, data: bytes) -> bool:
        if path.name != "writer.json":
            with monkeypatch.context() as inner:
                inner.setattr(stored, "put_own", put)
                with pytest.raises(BusyError) as caught:
                    made(target, clock, logs, is_live=True)
                errors.append(caught.value)
        return put(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(stored, "put_own", putting)
        made(target, clock, logs)
    assert len(errors) == 1
    assert len(restore_points(target)) == 1


def test_old_backups_go_with_what_only_they_have(
    logs: Path, target: Path, store: Any, clock: ManualClock, tmp_path: Path
) -> None:
    made(target, clock, logs)
    with st.open(logs, mode="a") as opened:
        opened.clean("users")
    made(target, clock, logs)
    everything = keys(store)
    clock.time_ms = 10 * DAY_MS + max(
        int(row["last_modified"].timestamp() * 1000) for chunk in store.list() for row in chunk
    )
    last = made(target, clock, logs, keep=1)
    assert len(last.pruned) == 2
    left = keys(store)
    assert len(left) < len(everything) - 2
    (point,) = restore_points(target)
    assert {key.rpartition("/")[2] for key in left if "/chunks/" in key} == point.chunks
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(logs)


def test_chunks_of_today_stay(logs: Path, target: Path, store: Any, clock: ManualClock) -> None:
    store.put("brokers/one/chunks/ab/" + "ab" * 32, b"of a backup that was interrupted")
    clock.time_ms = max(
        int(row["last_modified"].timestamp() * 1000) for chunk in store.list() for row in chunk
    )
    made(target, clock, logs, keep=1)
    assert any(key.endswith("ab" * 32) for key in keys(store))


def test_a_dry_run_puts_nothing(logs: Path, target: Path, store: Any, clock: ManualClock) -> None:
    result = made(target, clock, logs, dry_run=True)
    assert result.new_bytes > 0
    assert keys(store) == {}


# A broker that goes on


def test_a_live_directory_is_backed_up_and_recovers(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    with st.open(logs, mode="a") as opened:
        opened.send("users", b"live", key=b"live")
        with pytest.raises(DirectoryLockedError):
            made(target, clock, logs)
        made(target, clock, logs, is_live=True)
        opened.send("users", b"too late", key=b"late")
    done = restore(target, tmp_path / "restored")
    assert done.needs_recovery
    with st.open(tmp_path / "restored", mode="a") as opened:
        values = [record.value for record in opened["users"]]
    assert b"live" in values
    assert b"too late" not in values


def test_a_partition_that_a_cleaning_changes_meanwhile_is_copied_again(
    logs: Path, target: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put, cleanings = stored.put_new, 0
    with st.open(logs, mode="a") as opened:

        def putting(path: Path, data: bytes) -> bool:
            nonlocal cleanings
            if cleanings < 2 and "chunks" in path.parts:
                cleanings += 1
                opened.send("users", b"again", key=b"%d" % cleanings)
                opened.clean("users")
            return put(path, data)

        monkeypatch.setattr(stored, "put_new", putting)
        monkeypatch.setattr(stored, "THREADS", 1)
        made(target, clock, logs, is_live=True)
    assert cleanings == 2
    restore(target, tmp_path / "restored")
    with st.open(tmp_path / "restored", mode="a") as opened:
        assert len({record.key for record in opened["users"]}) == KEYS


def test_a_partition_that_never_rests_is_an_error(
    logs: Path, target: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "_is_unchanged", lambda before, after: False)
    with pytest.raises(SourceChangedError, match="changed 5 times"):
        made(target, clock, logs, is_live=True)
    assert restore_points(target) == []
    monkeypatch.undo()


# What a store may have


HOSTILE = [
    lambda point: point["directories"][0]["files"][0].update(name="../../outside"),
    lambda point: point["directories"][0]["files"][0].update(name="/etc/outside"),
    lambda point: point["directories"][0]["folders"].append(".."),
    lambda point: point["directories"][0]["files"][0].update(chunks=["../x"]),
    lambda point: point["directories"][0]["files"][0].pop("size"),
    lambda point: point.update(version=2),
    lambda point: point["directories"][0].update(path=5),
    lambda point: point["directories"][0]["files"][0].update(name="users-0/a\0b"),
    lambda point: point["directories"][0]["folders"].append("/".join("a" * 2000)),
    lambda point: point["directories"][0].update(path="/data/a\0b"),
    lambda point: point["directories"][0]["files"][0].update(modified_ns=10**30),
    lambda point: point.update(time_ms=10**17),
    lambda point: point["directories"][0]["files"][0].update(modified_ns=10**400),
    lambda point: point.update(time_ms=10**400),
    lambda point: point["directories"][0]["folders"].append("a" + "/" * 2000 + "b"),
    lambda point: point.update(chunk_bytes=10**30) or point["directories"][0]["files"][0].update(size=10**30),
]


@pytest.mark.parametrize("change", few([(change,) for change in HOSTILE], 0, 3, 4, *range(7, 16)))
def test_a_hostile_restore_point_is_refused(
    change: Callable[[Any], object], logs: Path, target: Path, store: Any, clock: ManualClock, tmp_path: Path
) -> None:
    name = made(target, clock, logs).backup_id
    key = f"brokers/one/backups/{name}.json"
    point = json.loads(bytes(store.get(key).bytes()))
    change(point)
    store.put(key, json.dumps(point).encode())
    with pytest.raises(CorruptFileError):
        restore(target, tmp_path / "restored")
    with pytest.raises(CorruptFileError):
        files.entries(stored_path(target, name))
    assert run(["restore", str(target), "--list"]) == 1
    assert not (tmp_path / "restored").exists()
    assert not (tmp_path / "outside").exists()


def test_a_damaged_restore_point_does_not_keep_an_earlier_one_from_being_restored(
    logs: Path, target: Path, store: Any, clock: ManualClock, tmp_path: Path
) -> None:
    earlier, later = (made(target, clock, logs).backup_id for _ in range(2))
    assert restore(target, tmp_path / "new", at="20990101T000000Z", dry_run=True).backup_id == later
    store.put(f"brokers/one/backups/{later}.json", b"{")
    with pytest.raises(CorruptFileError, match="use an earlier one"):
        restore(target, tmp_path / "restored")
    restore(target, tmp_path / "restored", at=earlier)
    assert contents(tmp_path / "restored") == contents(logs)


@pytest.mark.parametrize("name", few([("..",), (".",), ("/",), ("",), ("../x/..",)], 0, 4))
def test_a_directory_of_a_hostile_name_is_restored_within_the_target(
    name: str, logs: Path, target: Path, store: Any, clock: ManualClock, tmp_path: Path
) -> None:
    key = f"brokers/one/backups/{made(target, clock, logs, logs).backup_id}.json"
    point = json.loads(bytes(store.get(key).bytes()))
    point["directories"] = [{**point["directories"][0], "path": path} for path in (name, "logs")]
    store.put(key, json.dumps(point).encode())
    done = restore(target, tmp_path / "restored")
    assert {Path(path).resolve().parent for path in done.directories} == {(tmp_path / "restored").resolve()}


@pytest.mark.parametrize("damage", ["missing", "flipped", "longer"])
def test_a_damaged_chunk_is_found_and_nothing_appears(
    damage: str, logs: Path, target: Path, store: Any, clock: ManualClock, tmp_path: Path
) -> None:
    made(target, clock, logs)
    key = next(key for key in keys(store) if "/chunks/" in key)
    data = bytearray(store.get(key).bytes())
    if damage == "missing":
        store.delete(key)
    else:
        data[0] ^= 1
        store.put(key, bytes(data) * (2 if damage == "longer" else 1))
    with pytest.raises(CheckFailedError, match="missing" if damage == "missing" else "damaged"):
        restore(target, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    with pytest.raises(DirectoryRefusedError, match="interrupted restore"):
        restore(target, tmp_path / "restored")


def test_a_copied_chunk_of_another_size_does_not_stay(bucket: str) -> None:
    old, new = Path(f"s3://{bucket}/old"), Path(f"s3://{bucket}/new")
    data = b"the bytes of a chunk"
    name = stored.ChunkWriter(old).put(data)
    damaged = stored.chunk_path(old, name)
    files.delete_objects([damaged])
    files.put_new(damaged, data[:-1])
    with pytest.raises(OSError, match="has 19 of 20 bytes"):
        stored.ChunkWriter(new).copy(old, [name], len(data))
    assert stored.ChunkWriter(new).put(data) == name
    assert files.read_bytes(stored.chunk_path(new, name)) == data


def test_links_and_special_files_are_passed_over(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (logs / "users-0" / "00000000000000009999.log").symlink_to(tmp_path / "secret")
    result = made(target, clock, logs)
    assert len(result.passed_over) == 1
    restore(target, tmp_path / "restored")
    assert not (tmp_path / "restored" / "users-0" / "00000000000000009999.log").exists()


@pytest.mark.parametrize("is_live", [False, True])
def test_names_that_no_restore_point_may_have_are_passed_over(
    is_live: bool, logs: Path, target: Path, clock: ManualClock, tmp_path: Path
) -> None:
    """A name that is not UTF-8 ended every backup, and one of too many folders every later restore."""
    (logs / "users-0" / os.fsdecode(b"\xff")).write_text("not UTF-8")
    (logs / os.fsdecode(b"\xfe")).mkdir()
    deepest = logs / "others" / "/".join("a" * 300)
    deepest.mkdir(parents=True)
    (deepest / "file").write_text("too deep")
    result = made(target, clock, logs, is_live=is_live)
    assert len(result.passed_over) == 3
    assert restore(target, tmp_path / "restored").files == result.files
    assert (tmp_path / "restored" / "others" / "/".join("a" * 255)).is_dir()
    (point,) = restore_points(target)
    directory = msgspec.structs.replace(point.directories[0], folders=("/".join("a" * 300),))
    with (
        stored.locked_for_writing(target, NOW_MS) as writer,
        pytest.raises(DirectoryRefusedError, match="cannot have this name"),
    ):
        writer.put_point(msgspec.structs.replace(point, backup_id="later", directories=(directory,)))


def test_a_partition_alone_is_refused_since_all_that_is_beside_it_would_be_put(
    logs: Path, target: Path, clock: ManualClock, store: Any, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text("secret")
    partition = Path(shutil.copytree(logs / "users-0", tmp_path / "home" / "users-0"))
    for options in ({}, {"is_live": True}):
        with pytest.raises(DirectoryRefusedError, match="one partition") as caught:
            made(target, clock, partition, **options)
        assert caught.value.path == str(partition)
    assert keys(store) == {}
    assert restore_points(target) == []


def test_wrong_places_and_times(logs: Path, target: Path, clock: ManualClock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no backup"):
        restore(target, tmp_path / "restored")
    with pytest.raises(UsageError, match="address"):
        made(tmp_path / "elsewhere", clock, logs)
    with pytest.raises(UsageError, match="--keep"):
        made(target, clock, logs, keep=0)
    first = made(target, clock, logs)
    with pytest.raises(UsageError, match="neither a backup nor a time"):
        restore(target, tmp_path / "restored", at="yesterday")
    with pytest.raises(UsageError, match="all backups are newer"):
        restore(target, tmp_path / "restored", at="1999-01-01")
    with pytest.raises(DirectoryRefusedError):
        restore(target, logs)
    with pytest.raises(UsageError, match="disk"):
        restore(target, target)
    assert (
        restore(target, tmp_path / "new", at="2100-01-01T00:00:00Z", dry_run=True).backup_id
        == first.backup_id
    )
    assert not (tmp_path / "new").exists()


def test_the_current_directory_is_a_place_to_restore_to_and_a_mount_point_is_none(
    logs: Path, target: Path, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(target, clock, logs)
    (tmp_path / "empty").mkdir()
    stat = files.stat

    def mounted(path: Path, **options: Any) -> files.FileStat:
        status = stat(path, **options)
        return msgspec.structs.replace(status, device=-1) if path == tmp_path / "empty" else status

    with monkeypatch.context() as patched:
        patched.setattr(files, "stat", mounted)
        with pytest.raises(DirectoryRefusedError, match="mount point"):
            restore(target, tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    restore(target, Path())
    assert contents(tmp_path / "empty") == contents(logs)


def test_the_commands(
    logs: Path, target: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{bucket}/brokers/one"
    assert run(["backup", str(logs), url]) == 0
    assert "put" in capsys.readouterr().out
    assert run(["backup", "--dir", str(logs), url, "--json", "--keep", "3"]) == 0
    made_now = json.loads(capsys.readouterr().out)
    assert made_now["new_chunks"] == 0
    assert run(["restore", url, "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["backups"]
    assert [row["partitions"] for row in listed] == [2, 2]
    assert run(["restore", url, "--list"]) == 0
    assert made_now["backup_id"] in capsys.readouterr().out
    assert run(["restore", url, str(tmp_path / "restored"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needs_recovery"] is False
    assert contents(tmp_path / "restored") == contents(logs)
    assert run(["restore", url]) == 2
    assert run(["backup", url]) == 2
    assert run(["backup", str(logs), str(tmp_path / "disk")]) == 2
