"""7. The files stay the broker's: owner, group, mode, extended attributes, times."""

import contextlib
import os
import stat
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.commands import clean as app
from siltstone.log.segments import list_segments
from tests.support.operator.staged import Staged, is_root, stage

OWNER, GROUP = 12345, 23456
FILE_MODE, FOLDER_MODE = 0o640, 0o2750
ATTRIBUTE = "user.siltstone-test"


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    """A log directory of another user, where root may do that; else of this one with odd modes."""
    staged = stage(golden, "basic_zipf_ts", tmp_path / "data", 1)
    for path in [staged.directory, *staged.directory.rglob("*")]:
        if is_root():
            os.chown(path, OWNER, GROUP)
        os.chmod(path, FOLDER_MODE if path.is_dir() else FILE_MODE)
        with contextlib.suppress(OSError):
            os.setxattr(path, ATTRIBUTE, b"broker")
    return staged


def attributes_work(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.getxattr(path, ATTRIBUTE) == b"broker"
    return False


def assert_files_are_the_brokers(directory: Path) -> None:
    """Everything below is the other user's, with the modes and attributes that it had."""
    owner = (OWNER, GROUP) if is_root() else (os.geteuid(), directory.stat().st_gid)
    for path in [directory, *directory.rglob("*")]:
        facts = path.stat()
        assert (facts.st_uid, facts.st_gid) == owner, path
        expected = FOLDER_MODE if path.is_dir() else FILE_MODE
        assert stat.S_IMODE(facts.st_mode) == expected, path


def times_are_the_last_sources(before: dict[int, int], partition: Path) -> None:
    """Each segment's time is that of the last source that went into it."""
    after = list_segments(partition)
    bases = [segment.base_offset for segment in after]
    for segment, following in zip(after, [*bases[1:], 1 << 62], strict=True):
        sources = [base for base in before if segment.base_offset <= base < following]
        assert segment.modified_ns == before[max(sources)], segment.path


def test_files_that_are_swapped_in_keep_owner_mode_and_attributes(staged: Staged) -> None:
    before = {segment.base_offset: segment.modified_ns for segment in list_segments(staged.partition)}
    attributes = attributes_work(staged.partition)
    result = staged.clean_one()
    assert result.status == "cleaned" and result.segments_after < result.segments_before
    assert_files_are_the_brokers(staged.directory)
    times_are_the_last_sources(before, staged.partition)
    if attributes:
        for segment in list_segments(staged.partition):
            for kind in ("log", "index", "timeindex"):
                assert attributes_work(Path(segment.path).with_suffix(f".{kind}")), (segment.path, kind)
        assert attributes_work(staged.directory / "cleaner-offset-checkpoint")


def test_a_new_checkpoint_is_the_directory_owners(staged: Staged) -> None:
    (staged.directory / "cleaner-offset-checkpoint").unlink()
    assert staged.clean_one().status == "cleaned"
    status = (staged.directory / "cleaner-offset-checkpoint").stat()
    assert (status.st_uid, status.st_gid) == (
        staged.directory.stat().st_uid,
        staged.directory.stat().st_gid,
    )


def test_a_copy_keeps_owner_mode_and_attributes(staged: Staged, tmp_path: Path) -> None:
    before = {segment.base_offset: segment.modified_ns for segment in list_segments(staged.partition)}
    new = tmp_path / "new"
    (result,) = staged.clean(in_place=False, out=new).results
    assert result.status == "cleaned"
    (new / "cleaner-offset-checkpoint").chmod(FILE_MODE)
    assert_files_are_the_brokers(new)
    times_are_the_last_sources(before, new / staged.partition.name)


def test_kept_originals_and_undo_keep_owner_and_mode(staged: Staged, tmp_path: Path) -> None:
    report = staged.clean(keep_originals=tmp_path / "keep")
    assert report.kept is not None
    app.undo(report.kept)
    assert_files_are_the_brokers(staged.directory)


def test_a_new_lock_file_belongs_to_the_directorys_owner(staged: Staged) -> None:
    (staged.directory / ".lock").unlink()
    lock = files.Lock(staged.directory / ".lock")
    status = (staged.directory / ".lock").stat()
    lock.release()
    assert status.st_uid == staged.directory.stat().st_uid
