"""The console examples of a page: commands with what they print, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import Command


def steps(text: str) -> list[tuple[str, str]]:
    """Each command of the text's first example, and what is printed below it."""
    match = re.search(r"```console\n(.*?)```", text, flags=re.DOTALL)
    assert match is not None
    parts = re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]
    return [(command, expected) for command, expected in (part.split("\n", 1) for part in parts)]


def printed_here(command: str, run: Command) -> str:
    """What a command prints in the current folder, run in this process; it has to end well.

    A shell runs what is before ``siltstone``, which makes its input.
    """
    before, _, arguments = command.rpartition("siltstone ")
    stdin = subprocess.check_output(["sh", "-c", before.rstrip("| ")]) if before else b""
    completed = run(*shlex.split(arguments), stdin=stdin)
    assert completed.status == 0, completed.err
    return completed.out.decode() + completed.err


def printed(command: str, folder: Path) -> str:
    """What a shell prints for a command in a folder; it has to end well."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    completed = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return completed.stdout
