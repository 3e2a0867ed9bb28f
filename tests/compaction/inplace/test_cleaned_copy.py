"""What a cleaned copy (``--out``) takes of files that are not part of a log: what earlier swaps left."""

import errno
import shutil
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.commands import review
from siltstone.log.replacement import finish_replacement, swap_leftovers
from tests.support.operator.staged import Staged, listing, no_leftovers, stage


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic", tmp_path / "data")


@pytest.mark.parametrize("is_cleaned", [True, False])
def test_deleted_files_that_wait_for_their_removal_are_not_copied(
    staged: Staged, tmp_path: Path, is_cleaned: bool
) -> None:
    """A broker that is killed before ``file.delete.delay.ms`` leaves them."""
    partition = staged.partition
    active = max(partition.glob("*.log"))
    shutil.copyfile(active, f"{active}.deleted")
    for kind in ("log", "index", "timeindex", "snapshot"):
        (partition / f"{999_999:020d}.{kind}.deleted").write_bytes(b"of a segment that is long gone")
    config = staged.request.config if is_cleaned else ["cleanup.policy=delete"]
    result = staged.clean_one(in_place=False, out=tmp_path / "copy", config=config)
    assert result.status == ("cleaned" if is_cleaned else "skipped")
    no_leftovers(tmp_path / "copy")
    assert (tmp_path / "copy" / partition.name / active.name).read_bytes() == active.read_bytes()
    assert len(list(partition.glob("*.deleted"))) == 5
    checked = review.verify(
        review.VerifyRequest(
            before=staged.directory,
            after=tmp_path / "copy",
            topics=[staged.case.topic],
            config=config,
            now_ms=staged.request.now_ms,
            engine="process",
        )
    )
    assert checked.is_sound, checked.to_json()


def test_files_of_a_swap_that_had_not_begun_are_not_copied(staged: Staged, tmp_path: Path) -> None:
    """A start removes them; the log itself is as before that swap, and copied so."""
    first, *_, active = sorted(staged.partition.glob("*.log"))
    shutil.copyfile(active, f"{first}.cleaned")
    (staged.partition / f"{999_999:020d}.log.deleted").write_bytes(b"gone")
    (staged.partition / f"{999_999:020d}.snapshot").write_bytes(b"was to be renamed next")
    result = staged.clean_one(in_place=False, out=tmp_path / "copy")
    assert result.status == "skipped" and "interrupted swap" in result.reason
    copied = tmp_path / "copy" / staged.partition.name
    finish_replacement(staged.partition)
    assert listing(copied) == listing(staged.partition)
    no_leftovers(tmp_path / "copy")


def test_a_log_with_an_unfinished_swap_is_copied_with_all_of_it(staged: Staged, tmp_path: Path) -> None:
    """A start on the copy must finish the swap as one on the source does, and for that it needs all files."""
    interrupted = False

    def stop_while_renaming(operation: files.Operation) -> None:
        nonlocal interrupted
        interrupted = interrupted or (operation[0] == "rename" and operation[1].endswith(".swap"))
        if interrupted:
            raise OSError(errno.EIO, "Input/output error", operation[1])

    with files.observe(stop_while_renaming):
        staged.clean_one()
    partition = staged.partition
    assert {path.suffix for path in partition.iterdir()} >= {".swap", ".deleted"}
    result = staged.clean_one(in_place=False, out=tmp_path / "copy")
    assert result.status == "skipped" and "interrupted swap" in result.reason
    copied = tmp_path / "copy" / partition.name
    assert listing(copied) == {
        name: facts for name, facts in listing(partition).items() if not name.startswith(".siltstone/")
    }
    assert swap_leftovers(copied) == swap_leftovers(partition)
    assert finish_replacement(copied) == finish_replacement(partition)
    assert listing(copied) == listing(partition)
