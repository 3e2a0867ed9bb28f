"""Pythons for Spark's processes: scripts that start this one with another path."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path


def write_python(script: Path, path: str, flags: str = "") -> None:
    """A script that starts Python with these flags. ``path``: PYTHONPATH, in the shell's syntax."""
    python = shlex.quote(sys.executable)
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH={path}\nexec {python} {flags}"$@"\n')
    script.chmod(0o755)


def python_with_byte_code(folder: Path) -> str:
    """A Python that imports PySpark as it is installed; a script in ``folder``.

    Spark's own path begins with an archive of PySpark, which has no byte code: each process that plans a
    query would compile it, for half of its time.
    """
    script = folder / "python"
    write_python(script, f'{shlex.quote(sysconfig.get_path("purelib"))}:"$PYTHONPATH"')
    return str(script)
