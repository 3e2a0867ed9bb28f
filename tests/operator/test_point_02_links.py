"""2. Blast radius: Siltstone's folders in a log, replaced by links before a command or while it runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import DirectoryRefusedError
from siltstone.base.files import Operation
from siltstone.commands import clean as app
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.report import FAILED
from siltstone.log.directory import LogDirectory
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.overflow import split_overflowed_segment
from siltstone.log.recovery.directories import RecoveryOptions, recover_directories
from siltstone.log.replacement import finish_replacement
from siltstone.log.segments import list_segments
from siltstone.runtime.manager import LogManager
from siltstone.tables.commit import StagedWriter, remove_staged
from tests.support.cleaning.logs import NOW, WHERE, one, run, tree, write_log
from tests.support.log.overflowed import wide_log
from tests.support.operator.staged import in_process, is_root, last_values, listing, stage_several

SOMEBODY = 12345
STAGING = ".siltstone"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody else's, with files and folders that must stay."""
    folder = tmp_path / "victim"
    (folder / "20200101T000000Z-abcdef").mkdir(parents=True)
    (folder / "precious").write_bytes(b"precious")
    (folder / "20200101T000000Z-abcdef" / "journal.json").write_bytes(b"{}")
    return folder


def as_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def as_file(path: Path, victim: Path) -> None:
    path.write_bytes(b"")


def as_anothers(path: Path, victim: Path) -> None:
    if not is_root():
        pytest.skip("only root can give folders away")
    path.mkdir()
    os.chown(path, SOMEBODY, SOMEBODY)


KINDS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "a symbolic link, but must be a directory": ("remove it", as_link),
    "a regular file, but must be a directory": ("remove it", as_file),
    "belongs to user 12345": ("chown", as_anothers),
}


@pytest.mark.parametrize("words", KINDS)
def test_a_log_whose_staging_folder_is_unsafe_is_refused_by_name_and_the_others_cleaned(
    golden: Path, tmp_path: Path, victim: Path, words: str
) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    advice, put = KINDS[words]
    put(directory / "basic-0" / STAGING, victim)
    before, precious = listing(directory / "basic-0"), listing(victim)
    results = {result.topic: result for result in app.clean(request, engine=in_process).results}
    refused = results["basic"]
    assert (refused.status, results["tombstones"].status) == (FAILED, "cleaned")
    for word in ("basic-0", STAGING, words, advice):
        assert word in refused.reason
    assert (listing(directory / "basic-0"), listing(victim)) == (before, precious)


@pytest.mark.parametrize("target_exists", [False, True])
def test_links_below_the_staging_folder_are_removed_and_not_followed(
    golden: Path, tmp_path: Path, victim: Path, target_exists: bool
) -> None:
    directory, request = stage_several(golden, ["basic"], tmp_path)
    staging = directory / "basic-0" / STAGING
    (staging / "20200101T000000Z-abcdee").mkdir(parents=True)
    for link in ("20200101T000000Z-abcdef", "20200101T000000Z-abcdee/journal.json"):
        (staging / link).symlink_to(victim if target_exists else victim / Path(link).name)
    precious = listing(victim)
    (result,) = app.clean(request, engine=in_process).results
    assert result.status == "cleaned" and not staging.exists()
    assert listing(victim) == precious


def give_to_somebody(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("at", range(1, 48, 5))
@pytest.mark.parametrize("which", [STAGING, "run", "partition"])
def test_root_is_not_led_out_of_a_tree_whose_owner_swaps_folders_for_links(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, at: int, which: str
) -> None:
    """At each step of a cleaning the owner of the log puts a link in the place of a folder that is used."""
    if not is_root():
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    data = tmp_path / "data"
    partition = write_log(data, {0: [one(n, f"k{n % 3}") for n in range(9)], 9: [one(9, "z")]})
    if is_root():
        give_to_somebody(data)
    for name in tree(partition):
        shutil.copy(partition / name, victim / name)
    precious, steps_left = listing(victim), [at]
    place = {STAGING: partition / STAGING, "run": partition / STAGING / "run", "partition": partition}[which]

    def swap(operation: Operation) -> None:
        steps_left[0] -= 1
        if steps_left[0] < 0 and place.is_dir() and not place.is_symlink():
            (victim / "run").mkdir(exist_ok=True)
            place.rename(tmp_path / "aside")
            place.symlink_to(victim)
            if is_root():
                os.lchown(place, SOMEBODY, SOMEBODY)

    before = last_values(partition)
    with files.observe(swap):
        result = run(data, engine=InProcessEngine)
    assert {name: facts for name, facts in listing(victim).items() if not name.startswith("run/")} == precious
    assert not any((victim / "run").iterdir()) if (victim / "run").exists() else True
    swapped = place.is_symlink() or (tmp_path / "aside").exists()
    assert result.status == "cleaned" or (swapped and result.status == FAILED), result.reason
    if which == "partition" and swapped:
        partition = tmp_path / "aside"
    if which == STAGING and place.is_symlink():
        place.unlink()  # with it there the log is refused
    finish_replacement(partition)
    assert last_values(partition) == before


def test_a_checkpoint_is_not_written_through_a_planted_temporary_file(tmp_path: Path, victim: Path) -> None:
    write_log(tmp_path / "data", {0: [one(0, "a"), one(1, "a")], 2: [one(2, "z")]})
    (tmp_path / "data" / "cleaner-offset-checkpoint.tmp").symlink_to(victim / "precious")
    (tmp_path / "data" / "cleaner-offset-checkpoint").symlink_to(victim / "empty")
    (victim / "empty").write_bytes(b"")
    precious = listing(victim)
    assert run(tmp_path / "data").status == "cleaned"
    assert not (tmp_path / "data" / "cleaner-offset-checkpoint").is_symlink()
    assert "topic 0 2" in (tmp_path / "data" / "cleaner-offset-checkpoint").read_text()
    assert listing(victim) == precious


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, victim: Path) -> None:
    write_log(tmp_path / "data", {0: [one(0, "a")]})
    (tmp_path / "data" / ".lock").symlink_to(victim / "lock")
    with pytest.raises(OSError, match=r"not a regular file"):
        LogDirectory.open(tmp_path / "data")
    assert not (victim / "lock").exists() and (tmp_path / "data" / ".lock").is_symlink()


def test_a_segment_is_not_split_into_a_link(tmp_path: Path, victim: Path) -> None:
    partition = wide_log(tmp_path / "data")
    (partition / STAGING).symlink_to(victim)
    (victim / "split").mkdir()
    (victim / "split" / "precious").write_bytes(b"more")
    before, precious = listing(partition), listing(victim)
    with pytest.raises(DirectoryRefusedError, match="topic-0"):
        split_overflowed_segment(
            partition, list_segments(partition)[0], index_interval=4096, index_bytes=1 << 20
        )
    options = RecoveryOptions(
        config_of=lambda topic_partition: LogConfig(), now_ms=NOW, threads=1, check=True
    )
    with LogDirectory.open(tmp_path / "data") as directory:
        (recovery,) = recover_directories([directory], options, None)[0].logs
    assert (recovery.status, STAGING in recovery.reason) == ("refused", True)
    assert (listing(partition), listing(victim)) == (before, precious)


def test_a_ledger_is_not_written_or_collected_through_a_link(tmp_path: Path, victim: Path) -> None:
    partition = write_log(tmp_path / "data", {0: [one(0, "a")]})
    (partition / ".compacted").symlink_to(victim)
    for name in ("generation-7", "run-old"):
        (victim / name).mkdir()
    (victim / "cursor.json").write_bytes(b"{}")
    precious, store = listing(victim), LedgerStore(partition)
    for act in (store.delete_unused, store.delete_cursor, lambda: store.make_staging("new")):
        with pytest.raises(DirectoryRefusedError, match=r"topic-0.*\.compacted.*symbolic link"):
            act()
    with LogManager.open([tmp_path / "data"], clock=ManualClock(NOW)) as manager:
        assert ".compacted" in manager.refused[WHERE]
    assert listing(victim) == precious
    assert (victim / "generation-7").is_dir() and (victim / "run-old").is_dir()


def test_a_tables_write_is_not_staged_through_a_link(tmp_path: Path, victim: Path) -> None:
    folder = tmp_path / ".siltstone-writes"
    folder.symlink_to(victim)
    precious = listing(victim)
    with StagedWriter(folder / "run" / "0-0") as writer, pytest.raises(DirectoryRefusedError):
        writer.append(0, 0, memoryview(b"batch"), 1)  # type: ignore[arg-type]
    with pytest.raises(DirectoryRefusedError):
        remove_staged(folder / "20200101T000000Z-abcdef")
    assert listing(victim) == precious
