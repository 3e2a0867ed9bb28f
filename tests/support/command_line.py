"""A command line run in this process, and what it must not have changed."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import cyclopts
import pytest
from cyclopts.argument import ArgumentCollection

from siltstone.cli.main import run
from siltstone.commands import engines


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


_assemble = cyclopts.App.assemble_argument_collection
_assembled: dict[tuple[object, ...], ArgumentCollection] = {}


def _arguments_of(app: cyclopts.App, **options: Any) -> ArgumentCollection:
    """What cyclopts has read of a command's signature, which is most of a command's time here: once, and then
    copies of it, without values."""
    if not isinstance(app.default_command, FunctionType):
        return _assemble(app, **options)
    key = (app.default_command, *sorted(options.items()))
    if key not in _assembled:
        _assembled[key] = _assemble(app, **options)
    copies = {id(argument): copy.copy(argument) for argument in _assembled[key]}
    for argument in copies.values():
        argument.tokens = []
        argument.children = ArgumentCollection(copies[id(child)] for child in argument.children)
    return ArgumentCollection(copies.values())


def parse_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the signature of each command once for all command lines of this process."""
    # No command has loaded pydantic when its arguments are parsed. Here the tests of the web have, and
    # cyclopts would build one of its types for each argument.
    monkeypatch.setattr("cyclopts.argument._argument.parse_version", lambda _: (1,))
    monkeypatch.setattr(cyclopts.App, "assemble_argument_collection", _arguments_of)


def in_this_process(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs command lines in this process; ``stdin`` is what is piped into one. A Spark session that other
    tests in this process may have is not used: a command that a user starts has none."""
    parse_quickly(monkeypatch)

    def call(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(engines, "has_session", lambda: False)
            status = run([str(argument) for argument in arguments])
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
