"""``Flock``: many readers of a file or one that removes it; never a claim on a file that was removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from siltstone.base.files import Flock
from tests.support.descriptors import descriptors_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    return file


def test_many_readers_exclude_a_removal(path: Path) -> None:
    with Flock(path), Flock(path), pytest.raises(BlockingIOError):
        Flock(path, exclusive=True)
    Flock(path, exclusive=True).release()


def test_a_removal_excludes_readers(path: Path) -> None:
    with Flock(path, exclusive=True):
        for exclusive in (False, True):
            with pytest.raises(BlockingIOError):
                Flock(path, exclusive=exclusive)
    Flock(path).release()


def test_a_claim_ends_with_its_object_and_can_be_released_twice(path: Path) -> None:
    claim = Flock(path)
    claim.release()
    claim.release()
    held = Flock(path)
    assert held.path == str(path)
    del held
    Flock(path, exclusive=True).release()


def test_closing_the_file_elsewhere_releases_no_claim(path: Path) -> None:
    """A POSIX record lock would be released."""
    with Flock(path):
        path.read_bytes()
        with pytest.raises(BlockingIOError):
            Flock(path, exclusive=True)


def test_a_file_that_was_removed_cannot_be_claimed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a file that was opened before its removal."""
    opening = os.open

    def open_then_replace(name: object, flags: int, *more: int) -> int:
        descriptor = opening(name, flags, *more)  # type: ignore[arg-type]
        path.unlink()
        path.write_bytes(b"another")
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_then_replace)
        with pytest.raises(FileNotFoundError):
            Flock(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Flock(path)


def test_nothing_stays_open_after_a_refusal(path: Path) -> None:
    with Flock(path, exclusive=True), pytest.raises(BlockingIOError):
        Flock(path)
    assert descriptors_of(path) == 0
