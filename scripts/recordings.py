"""Records what commands print, for docs/recordings.md.

    .venv/bin/python scripts/recordings.py > docs/recordings.md

The commands run on the directories of a real Kafka 4.3 broker (those of `make demo`), at a fixed clock, with
100 columns. Only what differs from run to run is replaced: seconds, names of runs. A test compares the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOW = "--now-ms=1795230724700"
INTRODUCTION = """# What commands print

Each block is the output of a command on the two directories of a real Kafka 4.3 broker, which `make demo`
cleans, too. `scripts/recordings.py` makes this page, and a test holds it to what the commands print. Seconds
and the names of runs are replaced by `N` and `RUN`.
"""
RECORDINGS = (
    ("What a cleaning would do", ("clean", "data0", "data1", "--dry-run", NOW)),
    ("One log explained", ("explain", "data0", "--topic", "users", NOW)),
    ("Without a topic nothing is cleaned in place", ("clean", "data0", "data1", "--in-place", NOW)),
    (
        "A cleaning in place",
        ("clean", "data0", "data1", "--in-place", "--topic", "users", "--keep-originals", "kept", NOW),
    ),
    ("A directory above log directories", ("explain", ".")),
    ("A wrong flag", ("clean", "data0", "--in-plaice")),
)
"""A heading, and the command's arguments, in this order: a later command sees what an earlier one changed."""


def output_of(arguments: tuple[str, ...], folder: Path) -> str:
    """What a command prints in ``folder``, errors after the rest, and its exit status if it is not 0."""
    completed = subprocess.run(
        [sys.executable, "-m", "siltstone", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    lines = [line.rstrip() for line in (completed.stdout + completed.stderr).splitlines()]
    lines += [f"(exit status {completed.returncode})"] if completed.returncode else []
    text = "\n".join(lines).replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{6}", "RUN", text)
    return re.sub(r"\d+\.\d s$", "N s", text, flags=re.MULTILINE)


def page() -> str:
    """The page."""
    sys.path.insert(0, str(ROOT))
    from demo.archive import unpack

    parts = [INTRODUCTION]
    with tempfile.TemporaryDirectory(prefix="siltstone-recordings-") as name:
        folder = Path(name).resolve()
        unpack(ROOT / "demo" / "data" / "broker.tar.xz", folder)
        for heading, arguments in RECORDINGS:
            shown = shlex.join(argument for argument in ("siltstone", *arguments) if argument != NOW)
            parts.append(f"## {heading}\n\n```console\n$ {shown}\n{output_of(arguments, folder)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
