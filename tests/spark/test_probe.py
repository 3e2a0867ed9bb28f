"""Executors that do not share our files or our user are refused before anything is cleaned."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.spark import session as probe
from tests.support.errors import raises_error

pytestmark = pytest.mark.spark


def test_workers_of_this_machine_see_what_we_see(session: SparkSession, tmp_path: Path) -> None:
    probe.refuse_unshared_executors(session, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_user_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver says that it is somebody else than its workers are."""
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with raises_error(EngineError, path=tmp_path, about="do not share", advice="--out") as caught:
        probe.refuse_unshared_executors(session, tmp_path)
    assert f'"user": {mine}' in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_for_the_workers_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nonce lies where the driver looks, but not where the workers do."""
    written = files.write_new
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def write_elsewhere(path: Path, data: bytes) -> None:
        written(elsewhere / Path(path).name, data)

    stat, unlink = files.stat, files.unlink
    monkeypatch.setattr(files, "write_new", write_elsewhere)
    monkeypatch.setattr(files, "stat", lambda path: stat(elsewhere / Path(path).name))
    monkeypatch.setattr(files, "unlink", lambda path: unlink(elsewhere / Path(path).name))
    with raises_error(EngineError, path=tmp_path, about="No such file"):
        probe.refuse_unshared_executors(session, tmp_path)
    assert list(elsewhere.iterdir()) == []


def test_another_file_of_the_same_name_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = files.write_new
    monkeypatch.setattr(files, "write_new", lambda path, data: written(path, b"another's"))
    with raises_error(EngineError, path=tmp_path, about="do not share"):
        probe.refuse_unshared_executors(session, tmp_path)
    assert list(tmp_path.iterdir()) == []
