"""`siltstone undo`."""

import json
from pathlib import Path

import pytest

from siltstone.cli.main import run
from tests.support.operator.staged import Staged, listing, stage


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic", tmp_path / "data")


def kept(staged: Staged, tmp_path: Path) -> Path:
    folder = staged.clean(keep_originals=tmp_path / "keep").kept
    assert folder is not None
    return folder


def test_the_document_names_the_restored_segments(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = sorted(path.name for path in staged.partition.glob("*.log"))
    before = listing(staged.partition)
    folder = kept(staged, tmp_path)
    assert run(["undo", str(folder), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert json.loads(shown.out) == {"logs": [{"directory": str(staged.partition), "restored": logs[:-1]}]}
    assert listing(staged.partition) == before


def test_a_second_undo_has_nothing_to_do(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kept(staged, tmp_path)
    assert run(["undo", str(folder)]) == 0
    assert capsys.readouterr().out == f"{staged.partition}: 3 segments restored\n"
    assert run(["undo", str(folder)]) == 0
    assert capsys.readouterr().out == f"{staged.partition}: nothing to undo\n"


def test_refused_after_an_append(staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kept(staged, tmp_path)
    with max(staged.partition.glob("*.log")).open("ab") as file:
        file.write(b"more")
    before = listing(staged.directory)
    assert run(["undo", str(folder), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "appended to" in shown.err and "nothing was changed" in shown.err
    assert listing(staged.directory) == before


def test_refused_while_the_directory_is_unclean(
    staged: Staged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = kept(staged, tmp_path)
    (staged.directory / ".kafka_cleanshutdown").unlink()
    assert run(["undo", str(folder)]) == 1
    assert ".kafka_cleanshutdown" in capsys.readouterr().err


def test_a_path_that_is_no_run_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["undo", str(tmp_path / "nowhere")]) == 2
    assert "KEEP/RUN" in capsys.readouterr().err
