"""A segment of which nothing goes is not written again: it gets a second name, and its indexes anew."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.compaction.inplace.destination import CleanedCopy, InPlace
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.report import CLEANED, FAILED
from siltstone.log.directory import LogDirectory
from siltstone.log.names import segment_file
from tests.support.cleaning import logs
from tests.support.cleaning.logs import one

WHOLE, CHANGED, ACTIVE = 0, 10, 20
"""The base offsets of three segments: of the second the first half stays."""


def write(path: Path) -> Path:
    return logs.write_log(
        path,
        {
            WHOLE: [one(offset, f"stays {offset}") for offset in range(10)],
            CHANGED: [one(offset, f"key {offset}") for offset in range(10, 20)],
            ACTIVE: [one(20, "other")],
        },
    )


def add_an_update(partition: Path) -> None:
    """The active segment is closed by a newer one, and has the key of the second one's sixth record."""
    logs.write_segment(partition, ACTIVE, one(20, "key 15"))
    logs.write_segment(partition, 21, one(21, "active"))


def inode(partition: Path, base: int) -> int:
    return os.stat(partition / segment_file(base, "log")).st_ino


def clean(path: Path, destination: CleanedCopy | None = None) -> None:
    assert logs.run(path, config={"segment.bytes": 800}, destination=destination).status == CLEANED
    if destination is not None:
        destination.commit_run()


def writes_of(operations: list[files.Operation], base: int) -> list[str]:
    verbs = [verb for verb, path, _ in operations if f"{base:020}." in path and path.endswith(".log")]
    return [verb for verb in verbs if verb in ("create", "write", "link")]


def test_an_unchanged_segment_is_linked_and_batches_before_a_change_are_copied(tmp_path: Path) -> None:
    partition = write(tmp_path)
    add_an_update(partition)
    before = logs.tree(partition)
    inodes = {base: inode(partition, base) for base in (WHOLE, CHANGED)}
    operations: list[files.Operation] = []
    with files.observe(operations.append):
        clean(tmp_path)
    assert writes_of(operations, WHOLE) == ["link"]
    assert set(writes_of(operations, CHANGED)) == {"create", "write"}
    assert inode(partition, WHOLE) == inodes[WHOLE] and inode(partition, CHANGED) != inodes[CHANGED]
    after = logs.tree(partition)
    for kind in ("log", "index", "timeindex"):
        assert after[segment_file(WHOLE, kind)] == before[segment_file(WHOLE, kind)]
    retained = logs.records_in((partition / segment_file(CHANGED, "log")).read_bytes())
    assert [record.offset for record in retained] == [10, 11, 12, 13, 14, 16, 17, 18, 19]
    assert os.stat(partition / segment_file(WHOLE, "log")).st_nlink == 1


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_without_hard_links_an_unchanged_segment_is_copied(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write(tmp_path)
    before, old = logs.tree(partition), inode(partition, WHOLE)

    def refused(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(source))

    monkeypatch.setattr(files, "link", refused)
    clean(tmp_path)
    assert inode(partition, WHOLE) != old
    assert logs.tree(partition) == before


def test_a_linked_segment_is_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch of it was verified when it was read."""

    def bytes_read(path: Path) -> int:
        partition, before = write(path), files.bytes_read()
        clean(path)
        assert sorted(logs.logs_of(partition)) == [WHOLE, CHANGED, ACTIVE]
        return files.bytes_read() - before

    def refused(source: object, target: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source))

    linked = bytes_read(tmp_path / "linked")
    monkeypatch.setattr(files, "link", refused)
    sizes = {base: len(log) for base, log in logs.logs_of(tmp_path / "linked" / str(logs.WHERE)).items()}
    assert bytes_read(tmp_path / "copied") == linked + sizes[WHOLE] + sizes[CHANGED]


def test_another_file_under_the_segments_name_is_not_swapped_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write(tmp_path)
    before = logs.tree(partition)
    monkeypatch.setattr(files, "link", shutil.copy)
    result = logs.run(tmp_path, config={"segment.bytes": 800})
    assert result.status == FAILED and "changed since it was listed" in result.reason
    assert logs.tree(partition) == before


def test_a_wrong_index_of_an_unchanged_segment_is_rebuilt(tmp_path: Path) -> None:
    partition = write(tmp_path)
    before = logs.tree(partition)
    (partition / segment_file(WHOLE, "timeindex")).write_bytes(b"")
    clean(tmp_path)
    assert logs.tree(partition) == before


def test_kept_originals_share_no_file_with_the_log(tmp_path: Path) -> None:
    """A broker that cuts the log would cut them, too."""
    partition = write(tmp_path / "log")
    add_an_update(partition)
    before = logs.tree(partition)
    destination = InPlace("run", Originals(tmp_path / "keep" / "run"))
    result = logs.run(tmp_path / "log", config={"segment.bytes": 800}, destination=destination)
    assert result.status == CLEANED
    originals = tmp_path / "keep" / "run" / partition.name
    for base in (WHOLE, CHANGED):
        assert inode(originals, base) != inode(partition, base)
        name = segment_file(base, "log")
        assert (originals / name).read_bytes() == before[name]


def test_a_copy_shares_no_file_with_its_log(tmp_path: Path) -> None:
    partition = write(tmp_path / "log")
    with LogDirectory.open(tmp_path / "log") as source:
        destination = CleanedCopy("run", source, tmp_path / "copy")
    clean(tmp_path / "log", destination)
    copied = tmp_path / "copy" / partition.name
    for base in (WHOLE, CHANGED):
        assert inode(copied, base) != inode(partition, base)
    assert logs.logs_of(copied) == logs.logs_of(partition)
