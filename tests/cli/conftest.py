"""Fixtures of the tests of commands: a command line in this process, and a directory with two topics."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from siltstone.cli.main import run
from tests.support.command_line import Command, Done


@pytest.fixture
def siltstone(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line; ``stdin`` is what is piped into it."""

    def call(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        status = run([str(each) for each in arguments])
        shown = capsysbinary.readouterr()
        return Done(status, shown.out, shown.err.decode())

    return call


@pytest.fixture
def logs(siltstone: Command, tmp_path: Path) -> Path:
    """A directory with the topics ``orders`` (two partitions) and ``users`` (one, compacted), both empty."""
    path = tmp_path / "logs"
    for arguments in (
        ("orders", "--partitions", 2),
        ("users", "--partitions", 1, "--config", "cleanup.policy=compact"),
    ):
        assert siltstone("topics", "--dir", path, "--create", "--topic", *arguments).status == 0
    return path
