"""The README's example of topics and records, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_is_what_happens(tmp_path: Path) -> None:
    section = README.read_text(encoding="utf-8").split("\n## Topics and records\n")[1]
    found = re.search(r"```console\n(.*?)```", section, flags=re.DOTALL)
    assert found is not None
    steps = [step.split("\n", 1) for step in re.split(r"^\$ ", found[1], flags=re.MULTILINE)[1:]]
    assert len(steps) == 4
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, expected in steps:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        assert done.stdout == expected, command
