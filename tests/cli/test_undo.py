"""`siltstone undo`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.errors import DirectoryRefusedError, UsageError
from siltstone.cli.main import run
from siltstone.commands.clean import clean, undo
from tests.support.command_line import Command, tree
from tests.support.errors import raises_error
from tests.support.operator.staged import Staged, in_process, listing, stage, stage_several


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic", tmp_path / "data")


def kept_originals(staged: Staged, tmp_path: Path) -> Path:
    folder = staged.clean(keep_originals=tmp_path / "keep").kept
    assert folder is not None
    return folder


def test_the_document_names_the_restored_segments(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = sorted(path.name for path in staged.partition.glob("*.log"))
    before = listing(staged.partition)
    folder = kept_originals(staged, tmp_path)
    assert run(["undo", str(folder), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert json.loads(shown.out) == {
        "dry_run": False,
        "logs": [{"directory": str(staged.partition), "restored": logs[:-1]}],
    }
    assert listing(staged.partition) == before


def test_a_second_undo_has_nothing_to_do(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kept_originals(staged, tmp_path)
    assert run(["undo", str(folder)]) == 0
    assert capsys.readouterr().out == f"{staged.partition}: 3 segments restored\n"
    assert run(["undo", str(folder)]) == 0
    assert capsys.readouterr().out == f"{staged.partition}: nothing to undo\n"


def test_undo_is_refused_after_an_append(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kept_originals(staged, tmp_path)
    with max(staged.partition.glob("*.log")).open("ab") as file:
        file.write(b"more")
    before = listing(staged.directory)
    assert run(["undo", str(folder), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "appended to" in shown.err and "nothing was changed" in shown.err
    assert listing(staged.directory) == before


def test_undo_is_refused_while_the_directory_is_unclean(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kept_originals(staged, tmp_path)
    (staged.directory / ".kafka_cleanshutdown").unlink()
    assert run(["undo", str(folder)]) == 1
    assert ".kafka_cleanshutdown" in capsys.readouterr().err


def test_a_path_that_is_no_run_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["undo", str(tmp_path / "nowhere")]) == 2
    assert "KEEP/RUN" in capsys.readouterr().err


def cleaned_twice(golden: Path, tmp_path: Path, *, keep: bool) -> tuple[Staged, Path, Path | None]:
    """Cleaned twice, tombstones only the second time: the run's folder, and that of the second run."""
    staged = stage(golden, "tombstones", tmp_path / "data")
    folder = kept_originals(staged, tmp_path)
    (staged.directory / "siltstone-cleanings.jsonl").touch()  # as where Siltstone serves the directory
    late = staged.request.now_ms + 10**10
    second = staged.clean(now_ms=late, force=True, keep_originals=tmp_path / "keep" if keep else None)
    assert [result.status for result in second.results] == ["cleaned"]
    return staged, folder, second.kept


def test_the_later_run_in_the_way_is_named_and_the_newest_can_be_undone_first(
    golden: Path, tmp_path: Path
) -> None:
    _, folder, second = cleaned_twice(golden, tmp_path, keep=True)
    assert second is not None
    with raises_error(DirectoryRefusedError, about="later run", advice=f"siltstone undo {second}"):
        undo(folder)
    assert [len(names) for names in undo(second).values()] > [0]
    assert [len(names) for names in undo(folder).values()] > [0]


def test_a_log_that_was_appended_to_names_no_run_as_a_later_one(staged: Staged, tmp_path: Path) -> None:
    """Also not the run itself, which is of the same log."""
    folder = kept_originals(staged, tmp_path)
    active = max(staged.partition.glob("*.log"))
    active.write_bytes(active.read_bytes() * 2)
    with raises_error(DirectoryRefusedError, about="appended to", advice="cannot be undone") as raised:
        undo(folder)
    assert "run is" not in str(raised.value) and "a later run" not in str(raised.value)


def test_a_later_run_that_kept_nothing_is_known_from_the_history(golden: Path, tmp_path: Path) -> None:
    _, folder, _ = cleaned_twice(golden, tmp_path, keep=False)
    with raises_error(DirectoryRefusedError, about="cleaned again at 2", advice="cannot be undone"):
        undo(folder)


def test_a_dry_run_shows_what_would_be_restored_and_changes_nothing(
    siltstone: Command, staged: Staged, tmp_path: Path
) -> None:
    folder = kept_originals(staged, tmp_path)
    (staged.directory / ".lock").unlink(missing_ok=True)
    before = tree(staged.directory, folder)
    shown = siltstone("undo", folder, "--dry-run")
    assert (shown.status, shown.lines) == (0, [f"{staged.partition}: 3 segments would be restored"])
    planned = siltstone("undo", folder, "--dry-run", "--json").document
    assert tree(staged.directory, folder) == before
    undone = siltstone("undo", folder, "--json").document
    assert planned == {**undone, "dry_run": True} and len(undone["logs"][0]["restored"]) == 3


def test_a_dry_run_is_refused_where_the_undo_would_be_or_would_have_to_finish_a_swap(
    staged: Staged, tmp_path: Path
) -> None:
    folder = kept_originals(staged, tmp_path)
    swap = staged.partition / f"{0:020}.log.swap"
    swap.write_bytes((staged.partition / f"{0:020}.log").read_bytes())
    before = listing(staged.directory)
    with raises_error(DirectoryRefusedError, path=staged.partition, advice="without --dry-run"):
        undo(folder, dry_run=True)
    assert listing(staged.directory) == before
    swap.unlink()
    (staged.directory / ".kafka_cleanshutdown").unlink()
    with raises_error(DirectoryRefusedError, advice="siltstone recover"):
        undo(folder, dry_run=True)


def test_one_topic_of_a_run_can_be_undone(golden: Path, tmp_path: Path, siltstone: Command) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    before = listing(directory / "basic-0")
    report = clean(
        replace(request, in_place=True, dry_run=False, keep_originals=tmp_path / "keep"), engine=in_process
    )
    other = listing(directory / "tombstones-0")
    folder = report.kept
    assert folder is not None
    with raises_error(UsageError, about="users", advice="basic or tombstones"):
        undo(folder, ["users", "basic"])
    assert [Path(path).name for path in undo(folder, ["basic"])] == ["basic-0"]
    assert (listing(directory / "basic-0"), listing(directory / "tombstones-0")) == (before, other)
    rest = siltstone("undo", folder).lines
    assert [line.split(": ")[1].split()[0] for line in rest] == ["nothing", "3"]


def test_the_folder_above_the_runs_lists_them(golden: Path, tmp_path: Path) -> None:
    _, folder, second = cleaned_twice(golden, tmp_path, keep=True)
    assert second is not None and folder.parent == second.parent
    newest_first = ", ".join(sorted(map(str, (folder, second)), reverse=True))
    with raises_error(UsageError, path=folder.parent, about="no run kept", advice=newest_first):
        undo(folder.parent)
    one_log = next(path for path in folder.iterdir() if path.is_dir())
    with raises_error(UsageError, path=one_log, advice=f"pass the run's folder, {folder}"):
        undo(one_log)
