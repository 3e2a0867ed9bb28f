"""A command line run in this process, and what it must not have changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


def tree(*directories: Path) -> dict[str, tuple[str, int]]:
    """Every file's SHA-256 and time, every directory's time, which a reader must not change."""
    state = {}
    for directory in directories:
        for path in [directory, *sorted(directory.rglob("*"))]:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
            state[str(path)] = (content, path.stat().st_mtime_ns)
    return state
