"""Symbolic links, planted or swapped in: nothing that changes something is led elsewhere by one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.files import Operation, opening

SOMEBODY = 12345


@pytest.fixture(params=["openat2", "name by name"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open a directory: by Linux' call, and where there is none."""
    if request.param == "name by name":
        monkeypatch.setattr(opening, "_libc", None)
    return str(request.param)


def foreign_link(link: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that another user made; where only root could make one, we are another user."""
    link.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(link, SOMEBODY, SOMEBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


def facts(path: Path) -> tuple[bytes, int, int, int, int]:
    status = path.stat()
    return path.read_bytes(), status.st_mode, status.st_uid, status.st_mtime_ns, status.st_nlink


ACTS: dict[str, Callable[[Path, Path], object]] = {
    "write_new": lambda link, _: files.write_new(link, b"x"),
    "Appender": lambda link, _: files.Appender(link),
    "Lock": lambda link, _: files.Lock(link),
    "copy to": lambda link, other: files.copy(other, link),
    "copy of": lambda link, other: files.copy(link, other.with_name("copy")),
    "copy_attributes": lambda link, other: files.copy_attributes(other, link),
    "copy_attributes of": files.copy_attributes,
    "inherit_owner": lambda link, _: files.inherit_owner(link),
    "make_directory": lambda link, _: files.make_directory(link, parents=True),
    "remove_tree": lambda link, _: files.remove_tree(link),
    "remove_directory": lambda link, _: files.remove_directory(link),
    "link to": lambda link, other: files.link(other, link),
    "sync_files": lambda link, _: files.sync_files([link]),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("broken", [False, True])
def test_an_operation_that_would_write_through_a_link_is_refused(
    tmp_path: Path, act: str, broken: bool
) -> None:
    precious, link, other = (tmp_path / name for name in ("precious", "link", "other"))
    other.write_bytes(b"other")
    os.chmod(other, 0o611)
    if not broken:
        precious.write_bytes(b"precious")
    link.symlink_to(precious)
    before = None if broken else facts(precious)
    with pytest.raises(OSError, match="link"):
        ACTS[act](link, other)
    assert link.is_symlink() and precious.exists() != broken
    assert broken or facts(precious) == before
    assert facts(other)[0] == b"other"


def test_an_operation_on_a_name_changes_the_link_itself(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_bytes(b"precious")
    before = facts(precious)
    link.symlink_to(precious)
    files.set_modified(link, 5)
    assert link.lstat().st_mtime_ns == 5
    files.rename(link, tmp_path / "renamed")
    assert (tmp_path / "renamed").is_symlink()
    files.link(tmp_path / "renamed", tmp_path / "second")
    assert (tmp_path / "second").is_symlink()
    files.unlink(tmp_path / "renamed")
    assert facts(precious) == before


def test_a_tree_that_is_a_link_is_not_removed(tmp_path: Path, way: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    (tmp_path / "tree").symlink_to(outside)
    with pytest.raises(NotADirectoryError, match="tree"):
        files.remove_tree(tmp_path / "tree")
    assert (outside / "precious").read_bytes() == b"precious" and (tmp_path / "tree").is_symlink()


def test_a_file_is_replaced_without_writing_through_a_planted_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    os.chmod(precious, 0o600)
    before = facts(precious)
    for name in ("checkpoint", "checkpoint.tmp"):
        (tmp_path / name).symlink_to(precious)
    files.replace(tmp_path / "checkpoint", b"new")
    assert (tmp_path / "checkpoint").read_bytes() == b"new"
    assert not (tmp_path / "checkpoint").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "precious"]
    assert facts(precious) == before


@pytest.mark.parametrize("stop", range(8))
def test_a_tree_whose_directories_become_links_is_removed_without_following_them(
    tmp_path: Path, stop: int
) -> None:
    """Between the look at a folder and its removal its owner may put a link in its place."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    for root in (tree, outside):
        (root / "deep").mkdir(parents=True)
        for name in ("a", "b", "deep/c"):
            (root / name).write_bytes(b"bytes")
    remaining = [stop]

    def swap(operation: Operation) -> None:
        remaining[0] -= 1
        if remaining[0] == -1:
            at = Path(operation[1]) if operation[0] == "rmdir" else Path(operation[1]).parent
            at.rename(tmp_path / "aside")
            at.symlink_to(outside / "deep" if at.name == "deep" else outside)

    try:
        with files.observe(swap):
            files.remove_tree(tree)
    except NotADirectoryError:
        pass
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == [
        "a",
        "b",
        "deep",
        "deep/c",
    ]


def test_another_users_link_in_the_path_is_not_followed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    foreign_link(tmp_path / "link", outside, monkeypatch)
    acts: list[Callable[[], object]] = [
        lambda: files.write_new(tmp_path / "link" / "new", b"x"),
        lambda: files.unlink(tmp_path / "link" / "precious"),
        lambda: files.rename(tmp_path / "link" / "precious", tmp_path / "moved"),
        lambda: files.make_directory(tmp_path / "link" / "folder"),
        lambda: files.remove_tree(tmp_path / "link" / "folder"),
        lambda: files.set_modified(tmp_path / "link" / "precious", 5),
        lambda: files.inherit_owner(tmp_path / "link" / "precious"),
        lambda: files.replace(tmp_path / "link" / "precious", b"x"),
        lambda: files.Lock(tmp_path / "link" / ".lock"),
    ]
    before = facts(outside / "precious")
    for act in acts:
        with pytest.raises(OSError, match="symbolic link owned by user") as caught:
            act()
        assert caught.value.errno == errno.ELOOP and "real path" in str(caught.value)
    assert facts(outside / "precious") == before
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_this_users_links_in_the_path_are_followed(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real" / "deep"
    real.mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("./real/../absolute//")
    (tmp_path / "round").symlink_to("round")
    files.write_new(tmp_path / "absolute" / "deep" / "a", b"a")
    files.write_new(tmp_path / "relative" / "deep" / ".." / "b", b"b")
    monkeypatch.chdir(tmp_path)
    files.write_new("relative/deep/c", b"c")
    files.write_new("d", b"d")
    files.make_directory("relative/new/newer", parents=True)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["d", "real/b", "real/deep/a", "real/deep/c"]
    assert (tmp_path / "real" / "new" / "newer").is_dir()
    with pytest.raises(OSError, match="symbolic links"):
        files.write_new(tmp_path / "round" / "x", b"")
    for strange in ("d/x", "nowhere/x"):
        with pytest.raises(OSError, match=strange.partition("/")[0]):
            files.write_new(tmp_path / strange, b"")
    with pytest.raises(ValueError, match="null"):
        files.write_new(f"{tmp_path}/a\0b/c", b"")


def test_a_file_with_a_second_name_is_not_given_away(tmp_path: Path) -> None:
    """A hard link that was put in the place of a new file may be anybody's file."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_bytes(b"precious")
    folder.mkdir()
    os.chown(folder, SOMEBODY, SOMEBODY)
    os.link(precious, folder / "new")
    (folder / "old").touch()
    os.chown(folder / "old", SOMEBODY, SOMEBODY)
    before = facts(precious)
    for act in (
        lambda: files.inherit_owner(folder / "new"),
        lambda: files.copy_attributes(folder / "old", folder / "new"),
    ):
        with pytest.raises(OSError) as refused:
            act()
        assert refused.value.errno == errno.EMLINK
    assert facts(precious) == before


def test_a_tree_with_too_many_levels_is_not_removed(tmp_path: Path) -> None:
    deep = tmp_path / "tree"
    for _ in range(50):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match="more levels"):
        files.remove_tree(tmp_path / "tree")
    assert deep.is_dir()


def test_a_folder_must_be_a_directory_of_this_user_or_its_parents_owner(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    why = {
        name: files.unsafe_directory_reason(tmp_path / name) for name in ("folder", "file", "link", "broken")
    }
    assert why == {
        "folder": None,
        "file": "is not a directory",
        "link": "is a symbolic link",
        "broken": "is a symbolic link",
    }
    assert files.unsafe_directory_reason(tmp_path / "nothing") is None
    assert [files.is_directory(tmp_path / "link", follow=follow) for follow in (True, False)] == [True, False]
    if os.geteuid() == 0:
        os.chown(tmp_path / "folder", SOMEBODY, -1)
        assert "belongs to user 12345" in (files.unsafe_directory_reason(tmp_path / "folder") or "")
        os.chown(tmp_path, SOMEBODY, -1)
        assert files.unsafe_directory_reason(tmp_path / "folder") is None
