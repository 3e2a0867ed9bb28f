"""What the tests of commands on a directory share: calling one in this process, and a directory's bytes."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from siltstone.cli.main import run


@dataclass(frozen=True, slots=True)
class Done:
    """What a command line came to."""

    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """One JSON object a line."""
        return [json.loads(line) for line in self.lines]


Command = Callable[..., Done]


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


def tree(*directories: Path) -> dict[str, tuple[str, int]]:
    """Every file's SHA-256 and time, every directory's time: what must not change when one looks."""
    found = {}
    for directory in directories:
        for path in [directory, *sorted(directory.rglob("*"))]:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
            found[str(path)] = (content, path.stat().st_mtime_ns)
    return found
