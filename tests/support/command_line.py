"""A command line run in this process, and what it must not have changed."""

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
    """A command's exit status, standard output and standard error."""

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


def in_this_process(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs command lines in this process; ``stdin`` is what is piped into one."""
    # No command has loaded pydantic when its arguments are parsed. Here the tests of the web have, and
    # cyclopts would build one of its types for each argument.
    monkeypatch.setattr("cyclopts.argument._argument.parse_version", lambda _: (1,))

    def call(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        status = run([str(each) for each in arguments])
        shown = capsysbinary.readouterr()
        return Done(status, shown.out, shown.err.decode())

    return call


def tree(*directories: Path) -> dict[str, tuple[str, int]]:
    """Every file's SHA-256 and time, every directory's time, which a reader must not change."""
    state = {}
    for directory in directories:
        for path in [directory, *sorted(directory.rglob("*"))]:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
            state[str(path)] = (content, path.stat().st_mtime_ns)
    return state
