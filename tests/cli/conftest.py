"""Fixtures of the tests of commands: a command line in this process, and a directory with two topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Command, in_this_process


@pytest.fixture
def siltstone(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line; ``stdin`` is what is piped into it."""
    return in_this_process(capsysbinary, monkeypatch)


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
