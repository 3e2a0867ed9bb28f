"""The door to the file system: durable writes, attributes, the lock, file systems, what is observed."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.files import Operation
from tests.support.descriptors import descriptors_of


class Stopped(Exception):
    pass


def operations_of(act) -> list[Operation]:
    operations: list[Operation] = []
    with files.observe(operations.append):
        act()
    return operations


def xattr_works(path: Path) -> bool:
    try:
        os.setxattr(path, "user.siltstone.test", b"x")
        os.removexattr(path, "user.siltstone.test")
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            return False
        raise
    return True


def test_a_new_file_is_new_and_private_until_it_gets_its_attributes(tmp_path: Path) -> None:
    path = tmp_path / "new"
    files.write_new(path, b"data")
    assert path.read_bytes() == b"data" and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.write_new(path, b"other")
    assert path.read_bytes() == b"data"


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"data")
    tracemalloc.start()
    try:
        assert files.read_bytes(path) == b"data"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_has_no_size_and_is_read_to_its_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(bytes(10_000))
    assert files.read_input(f"/dev/fd/{reading}") == bytes(10_000)
    os.close(reading)


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with files.Writer(tmp_path / "new") as writer:
        writer.write(np.arange(10, dtype=np.uint8))
        writer.write(b"")
        assert writer.size == 10
    assert (tmp_path / "new").read_bytes() == bytes(range(10))


def test_attributes_are_copied_but_not_times(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"s")
    target.write_bytes(b"t")
    os.chmod(source, 0o640)
    os.utime(source, ns=(5, 5))
    if os.geteuid() == 0:
        os.chown(source, 12345, 23456)
    before = target.stat().st_mtime_ns
    files.copy_attributes(source, target)
    status = files.stat(target)
    assert (status.mode, status.owner, status.group) == (0o640, source.stat().st_uid, source.stat().st_gid)
    assert status.modified_ns == before
    assert target.read_bytes() == b"t"


def test_extended_attributes_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.touch()
    target.touch()
    if not xattr_works(source):
        pytest.skip("no extended attributes on this file system")
    os.setxattr(source, "user.siltstone.mark", b"kept")
    files.copy_attributes(source, target)
    assert os.getxattr(target, "user.siltstone.mark") == b"kept"


def test_a_file_system_without_extended_attributes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()

    def unsupported(path):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "listxattr", unsupported)
    files.copy_attributes(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["security.ima", "user.mark"])
def test_only_a_label_of_the_system_may_be_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    labels = {name: b"x", "user.last": b"kept"}
    copied: dict[str, bytes] = {}

    def set_label(path: int, label: str, value: bytes) -> None:
        if label == name:
            raise PermissionError(errno.EPERM, "only the system may set it")
        copied[label] = value

    monkeypatch.setattr(os, "listxattr", lambda path: list(labels))
    monkeypatch.setattr(os, "getxattr", lambda path, label: labels[label])
    monkeypatch.setattr(os, "setxattr", set_label)
    if name == "user.mark":
        with pytest.raises(PermissionError):
            files.copy_attributes(tmp_path / "a", tmp_path / "b")
    else:
        files.copy_attributes(tmp_path / "a", tmp_path / "b")
        assert copied == {"user.last": b"kept"}


def test_replacing_keeps_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    os.chmod(path, 0o664)
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    before = files.stat(path)
    (tmp_path / "checkpoint.tmp").write_bytes(b"left by a crash")
    files.replace(path, b"new")
    after = files.stat(path)
    assert path.read_bytes() == b"new"
    assert (after.owner, after.group, after.mode) == (before.owner, before.group, before.mode)
    assert [entry.name for entry in files.entries(tmp_path)] == ["checkpoint"]


def test_a_new_checkpoint_belongs_to_the_directorys_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(tmp_path, 12345, 23456)
    files.replace(tmp_path / "checkpoint", b"new")
    files.make_directory(tmp_path / "a" / "b", parents=True)
    for name in ("checkpoint", "a", "a/b"):
        status = files.stat(tmp_path / name)
        assert (status.owner, status.group) == (12345, 23456)


def test_replacing_is_write_sync_rename_sync(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert operations_of(lambda: files.replace(path, b"new")) == [
        ("unlink", f"{path}.tmp", ""),
        ("create", f"{path}.tmp", ""),
        ("write", f"{path}.tmp", ""),
        ("fsync", f"{path}.tmp", ""),
        ("rename", f"{path}.tmp", path),
        ("fsync", str(tmp_path), ""),
    ]


def test_replacing_leaves_the_old_or_the_new_file_at_each_step(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for stop in range(12):
        path.write_bytes(b"old")
        remaining = [stop]

        def observer(operation: Operation, remaining: list[int] = remaining) -> None:
            remaining[0] -= 1
            if remaining[0] < 0:
                raise Stopped

        try:
            with files.observe(observer):
                files.replace(path, b"new")
        except Stopped:
            pass
        assert path.read_bytes() in (b"old", b"new")


def test_the_observer_is_called_before_every_change(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    folder = tmp_path / "folder"
    source.write_bytes(b"s")
    folder.mkdir()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))

    def stop(operation: Operation) -> None:
        raise Stopped

    acts = [
        lambda: files.write_new(target, b"x"),
        lambda: files.rename(source, target),
        lambda: files.unlink(source),
        lambda: files.link(source, target),
        lambda: files.make_directory(target),
        lambda: files.remove_directory(folder),
        lambda: files.remove_tree(tmp_path),
        lambda: files.copy(source, target),
        lambda: files.set_modified(source, 5),
        lambda: files.copy_attributes(source, folder),
        lambda: files.replace(source, b"new"),
        lambda: files.Lock(tmp_path / "lock"),
    ]
    stamp = source.stat().st_mtime_ns
    for act in acts:
        with pytest.raises(Stopped), files.observe(stop):
            act()
        assert sorted(tmp_path.rglob("*")) == before
        assert source.read_bytes() == b"s" and source.stat().st_mtime_ns == stamp


def test_the_previous_observer_is_restored(tmp_path: Path) -> None:
    outer: list[Operation] = []
    with files.observe(outer.append):
        operations_of(lambda: files.write_new(tmp_path / "a", b""))
        files.write_new(tmp_path / "b", b"")
    files.write_new(tmp_path / "c", b"")
    assert {Path(operation[1]).name for operation in outer} == {"b"}


def test_two_threads_may_make_one_directory(tmp_path: Path) -> None:
    path = tmp_path / "run" / "users-0"

    def other_thread(operation: Operation) -> None:
        if operation[0] == "mkdir":
            os.mkdir(operation[1])

    with files.observe(other_thread):
        files.make_directory(path, parents=True)
    assert path.is_dir()

    def link(operation: Operation) -> None:
        os.symlink(tmp_path, operation[1])

    with files.observe(link), pytest.raises(NotADirectoryError):
        files.make_directory(tmp_path / "other")


def test_copying_keeps_bytes_mode_and_time(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    data = bytes(range(256)) * 20_000
    source.write_bytes(data)
    os.chmod(source, 0o604)
    os.utime(source, ns=(123_456_789, 123_456_789))
    files.copy(source, target)
    assert target.read_bytes() == data
    assert (files.stat(target).mode, files.stat(target).modified_ns) == (0o604, 123_456_789)
    assert files.sha256(source) == files.sha256(target)
    with pytest.raises(FileExistsError):
        files.copy(source, target)


def test_a_file_system_on_which_the_kernel_copies_nothing_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    with files.Reader(tmp_path / "a") as reader, files.Writer(tmp_path / "b") as writer:
        assert writer.copy(reader, 2, 5) == 5
        assert writer.copy(reader, 8, 5) == 2
    assert (tmp_path / "b").read_bytes() == b"2345689"


def test_removing_a_tree_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    tree = tmp_path / "tree"
    (tree / "deep" / "deeper").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    (tree / "link").symlink_to(outside)
    (tree / "broken").symlink_to(tmp_path / "nothing")
    files.remove_tree(tree)
    assert not tree.exists() and (outside / "precious").exists()


def test_a_rename_of_one_hard_link_onto_another_leaves_the_new_name(tmp_path: Path) -> None:
    """``rename(2)`` does nothing then: a segment stayed beside its own ``.deleted``."""
    (tmp_path / "old").write_bytes(b"data")
    os.link(tmp_path / "old", tmp_path / "new")
    operations: list[Operation] = []
    with files.observe(operations.append):
        files.rename(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new").read_bytes() == b"data"
    assert [verb for verb, *_ in operations] == ["unlink"]


def test_a_tree_that_still_grows_is_removed(tmp_path: Path) -> None:
    tree, remaining = tmp_path / "tree", [3]
    tree.mkdir()
    (tree / "first").touch()

    def another(operation: Operation) -> None:
        verb, path, _ = operation
        if verb == "rmdir" and remaining[0]:
            remaining[0] -= 1
            (Path(path) / f"late-{remaining[0]}").touch()
        if verb == "unlink" and remaining[0] == 1:
            Path(path).unlink()

    with files.observe(another):
        files.remove_tree(tree)
    assert not tree.exists() and remaining == [0]


def test_a_tree_that_never_stops_growing_is_an_error(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    def another(operation: Operation) -> None:
        if operation[0] == "rmdir":
            (tree / "late").touch()

    with files.observe(another), pytest.raises(OSError, match="keeps creating files in it"):
        files.remove_tree(tree)


def test_entries_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "b")
    kinds = [(e.name, e.is_file, e.is_directory, e.is_link) for e in files.entries(tmp_path)]
    assert kinds == [("a", False, True, False), ("b", True, False, False), ("c", False, False, True)]
    assert not files.exists(tmp_path / "d")
    (tmp_path / "d").symlink_to(tmp_path / "nothing")
    assert files.exists(tmp_path / "d")


def test_a_reader_outlives_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with files.Reader(path) as reader:
        path.unlink()
        buffer = np.zeros(6, np.uint8)
        assert reader.read_into(buffer, 7) == 3
        assert buffer.tobytes() == b"789\0\0\0"
        assert reader.read_into(buffer, 10) == 0
        assert reader.stat.size == 10


def test_a_closed_reader_of_a_joined_file_holds_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "remote"
    path.write_bytes(b"0123456789")
    status = files.stat(path)
    reader = files.Reader(files.JoinedFile(path=str(path), origin=status, stat=status))
    assert reader.read(3, 2) == b"34" and descriptors_of(path) == 1
    reader.close()
    reader.close()
    assert descriptors_of(path) == 0


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 root rw
30 22 0:40 / /srv rw - nfs4 server:/export rw
31 30 0:41 / /srv/local\\040disk rw shared:9 master:2 - xfs disk rw
32 22 0:42 / /srv2 rw - 9p share rw
33 22 0:43 / /home rw - ext4 hidden rw
34 22 0:44 / /home rw - cifs over rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/data", "ext4"),
        ("/", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/kafka", "nfs4"),
        ("/srv/local disk/kafka", "xfs"),
        ("/srv2/x", "9p"),
        ("/srv3", "ext4"),
        ("/home/me", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "read_bytes", lambda name: MOUNTS.encode())
    monkeypatch.setattr(os.path, "realpath", lambda name: name)
    assert files.file_system(path) == kind


def test_network_file_systems_are_known() -> None:
    assert {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
    } <= files.NETWORK_FILE_SYSTEMS
    assert not {"ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"} & files.NETWORK_FILE_SYSTEMS


def test_where_mounts_cannot_be_read_the_file_system_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(files, "read_bytes", missing)
    assert files.file_system("/") == ""


def _soon(work: Callable[[], object], fifo: Path) -> BaseException | None:
    """What a call in a thread ends with; a call that waits for a writer is released, and fails the test."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            ended.append(None)
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    if not ended:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        pytest.fail("it waits for somebody to write")
    return ended[0]


@pytest.mark.parametrize(
    "opening",
    [
        files.Reader,
        files.read_bytes,
        files.sha256,
        files.map_file,
        files.Flock,
        lambda path: files.read_slice(path, 0, 1),
        lambda path: files.copy(path, path.with_name("copy")),
    ],
)
def test_a_file_that_is_not_regular_is_refused_without_waiting(
    tmp_path: Path, opening: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    error = _soon(lambda: opening(tmp_path / "fifo"), tmp_path / "fifo")
    assert isinstance(error, OSError) and "FIFO" in str(error) and str(tmp_path / "fifo") in str(error)
    with pytest.raises(OSError, match="character device"):
        opening(Path("/dev/null"))
    with pytest.raises(IsADirectoryError):
        opening(tmp_path)
    assert not (tmp_path / "copy").exists()


def test_asking_whether_a_fifo_is_locked_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert _soon(lambda: files.is_locked(tmp_path / "fifo"), tmp_path / "fifo") is None


def test_an_input_file_may_be_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    thread = threading.Thread(target=(tmp_path / "fifo").write_bytes, args=(b"key=value",))
    thread.start()
    assert files.read_input(tmp_path / "fifo") == b"key=value"
    thread.join()


def test_space_and_tree_size(tmp_path: Path) -> None:
    space = files.free_space(tmp_path)
    assert space.free_bytes > 0 and (space.free_inodes is None or space.free_inodes >= 0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "y").write_bytes(b"4567")
    (tmp_path / "z").symlink_to(tmp_path / "y")
    assert files.tree_size(tmp_path) == 7
    folder = tmp_path
    for _ in range(600):  # deeper than Python's calls
        folder /= "d"
        folder.mkdir()
    (folder / "file").write_bytes(b"x" * 5)
    assert files.tree_size(tmp_path) == 12


def test_a_lock_is_released_once(tmp_path: Path) -> None:
    lock = files.Lock(tmp_path / ".lock")
    assert lock.created and (tmp_path / ".lock").exists()
    lock.release()
    lock.release()
    assert not (tmp_path / ".lock").exists()


def test_a_release_leaves_the_lock_file_of_another_process(tmp_path: Path) -> None:
    lock = files.Lock(tmp_path / ".lock")
    (tmp_path / "the broker's").touch()
    (tmp_path / "the broker's").rename(tmp_path / ".lock")  # the other one was removed by hand
    lock.release()
    assert (tmp_path / ".lock").exists()


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_reserved_space_is_in_no_size_and_is_given_back(tmp_path: Path) -> None:
    path, data = tmp_path / "log", b"x" * (1 << 20)
    appender = files.Appender(path, reserve_up_to=16 << 20)
    for written in range(1, 6):
        appender.write(data)
        assert appender.size == path.stat().st_size == written << 20
    appender.sync()
    modified = path.stat().st_mtime_ns
    appender.release()
    assert path.stat().st_mtime_ns == modified
    assert path.read_bytes() == data * 5 and blocks(path) <= 5 << 20 | 1 << 16
    appender.write(data)
    appender.close()
    assert path.read_bytes() == data * 6 and blocks(path) <= 6 << 20 | 1 << 16


def test_nothing_is_reserved_beyond_the_limit_or_for_small_files(tmp_path: Path) -> None:
    small, full = (files.Appender(tmp_path / name, reserve_up_to=2 << 20) for name in ("small", "full"))
    small.write(b"x" * 1000)
    full.write(b"x" * (3 << 19))
    full.write(b"x" * (1 << 18))
    full.sync()
    assert blocks(tmp_path / "small") <= 4096
    assert (tmp_path / "full").stat().st_size == 7 << 18 and blocks(tmp_path / "full") <= 2 << 20 | 1 << 16
    for appender in (small, full):
        appender.close()


def test_a_file_system_that_cannot_reserve_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.base.files._fallocate", None)
    appender = files.Appender(tmp_path / "log", reserve_up_to=1 << 30)
    for _ in range(3):
        appender.write(b"x" * (1 << 20))
    appender.close()
    assert (tmp_path / "log").stat().st_size == 3 << 20


def test_a_large_file_goes_to_disk_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    real = files.start_writeback

    def starting(descriptor: int, position: int, size: int) -> None:
        begun.append((position, position + size))
        real(descriptor, position, size)

    monkeypatch.setattr(files, "start_writeback", starting)
    part = os.urandom(3 << 20)
    with files.Writer(tmp_path / "large") as writer:
        for _ in range(7):
            writer.write(part)
        writer.sync()
    assert begun == [(0, 9 << 20), (9 << 20, 18 << 20)]
    assert (tmp_path / "large").read_bytes() == 7 * part
    begun.clear()
    with files.Writer(tmp_path / "small") as writer:
        writer.write(part)
    assert begun == []


def test_a_system_without_writeback_calls_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_sync_file_range", None)
    with files.Writer(tmp_path / "large") as writer:
        writer.write(bytes(9 << 20))
    assert (tmp_path / "large").stat().st_size == 9 << 20


def test_writeback_of_several_files_begins_before_the_first_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in "cab"]
    for path in paths:
        path.write_bytes(b"data")
    calls: list[str] = []

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    monkeypatch.setattr(files, "start_writeback", lambda d, at, size: calls.append(f"begun {name_of(d)}"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(f"synced {name_of(descriptor)}"))
    operations = operations_of(lambda: files.sync_files(paths))
    assert calls == [f"{what} {path.name}" for what in ("begun", "synced") for path in paths]
    assert operations == [("fsync", str(path), "") for path in paths]


def test_a_failed_sync_of_several_is_raised_and_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"data")
    with pytest.raises(FileNotFoundError):
        files.sync_files([tmp_path / "there", tmp_path / "not"])

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        files.sync_files([tmp_path / "there"])
    assert descriptors_of(tmp_path / "there") == 0


def test_written_bytes_are_dropped_from_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[tuple[int, int]] = []
    real = files.drop_cached

    def letting_go(descriptor: int, position: int, size: int) -> None:
        dropped.append((position, position + size))
        real(descriptor, position, size)

    monkeypatch.setattr(files, "drop_cached", letting_go)
    part = os.urandom(4 << 20)
    with files.Writer(tmp_path / "large") as writer:
        for number in range(1, 16):
            writer.write(part)
            writer.drop_cached(writer.size - (number % 3 << 20))
        writer.drop_cached(0)
        writer.sync()
        assert (60 - 24 - 8) << 20 <= dropped[-1][1] <= (60 - 24) << 20
        writer.drop_cached_rest()
    starts, ends = zip(*dropped, strict=True)
    assert starts == (0, *ends[:-1])
    assert ends[-1] == 60 << 20
    with files.Writer(tmp_path / "small") as writer:
        writer.write(part)
        writer.drop_cached(len(part))
        writer.drop_cached_rest()
    assert len(dropped) == len(ends)
    assert (tmp_path / "large").read_bytes() == 15 * part


@pytest.mark.parametrize(
    ("number", "is_reported"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.ENOSYS, False)]
)
def test_a_failed_write_is_raised_when_its_pages_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_reported: bool
) -> None:
    def fails(*arguments: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(files, "_sync_file_range", fails)
    with files.Writer(tmp_path / "large") as writer:
        for _ in range(12):
            writer.write(bytes(4 << 20))
        if not is_reported:
            writer.drop_cached(writer.size)
            return
        with pytest.raises(OSError) as caught:
            writer.drop_cached(writer.size)
        assert caught.value.errno == number


def test_a_temporary_file_gets_no_early_writeback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "start_writeback", None)
    with files.Writer(tmp_path / "short-lived", will_be_synced=False) as writer:
        writer.write(bytes(20 << 20))


def test_a_mapped_file_outlives_its_name(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    for name, expected in (("some", data), ("none", b"")):
        (tmp_path / name).write_bytes(expected)
        mapped = files.map_file(tmp_path / name)
        (tmp_path / name).unlink()
        assert mapped.tobytes() == expected
        assert not mapped.flags.writeable or not len(mapped)
    with pytest.raises(FileNotFoundError):
        files.map_file(tmp_path / "none")


def test_a_mark_holds_after_a_rename_and_not_after_a_write(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"bytes")
    os.utime(path, ns=(1, 1))
    known = files.stat(path).identity
    path.rename(tmp_path / "other")
    assert files.stat(tmp_path / "other").identity == known
    (tmp_path / "other").write_bytes(b"BYTES")
    assert files.stat(tmp_path / "other").identity != known
