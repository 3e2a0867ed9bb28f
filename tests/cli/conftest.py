"""Fixtures of the tests of commands: a command line in this process, and a directory with two topics."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siltstone.cli.main import run
from tests.support.command_line import Command, in_this_process, parse_quickly


@pytest.fixture(autouse=True)
def quick_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tests that call ``run`` themselves, too."""
    parse_quickly(monkeypatch)


@pytest.fixture
def siltstone(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line; ``stdin`` is what is piped into it."""
    return in_this_process(capsysbinary, monkeypatch)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``logs`` is a copy of."""
    path = tmp_path_factory.mktemp("original") / "logs"
    for arguments in (
        ["orders", "--partitions", "2"],
        ["users", "--partitions", "1", "--config", "cleanup.policy=compact"],
    ):
        assert run(["topics", "--dir", str(path), "--create", "--topic", *arguments]) == 0
    return path


@pytest.fixture
def logs(original: Path, tmp_path: Path) -> Path:
    """A directory with the topics ``orders`` (two partitions) and ``users`` (one, compacted), both empty."""
    return shutil.copytree(original, tmp_path / "logs")
