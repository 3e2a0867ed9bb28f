"""A Python for Spark's processes that does not compile PySpark again."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path


def python_with_byte_code(folder: Path) -> str:
    """A Python that imports PySpark as it is installed; a script in ``folder``.

    Spark's own path begins with an archive of PySpark, which has no byte code: each process that plans a
    query would compile it, for half of its time.
    """
    script, path = folder / "python", shlex.quote(sysconfig.get_path("purelib"))
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={path}:"$PYTHONPATH"\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)
