"""The examples of ``docs/library.md``, run as they stand there, and what they print.

``tests/test_public_face.py`` checks their types.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.pages import DOCS

_BLOCK = re.compile(r"```(python|text)\n(.*?)```", flags=re.DOTALL)
BLOCKS: list[tuple[str, str]] = _BLOCK.findall((DOCS / "library.md").read_text(encoding="utf-8"))
PROGRAM = "".join(text for kind, text in BLOCKS if kind == "python" and not text.startswith("def test_"))


def run_program(folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS program.py`` with the page's program."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, *python, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    done = run_program(tmp_path, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text for kind, text in BLOCKS if kind == "text")


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    test = next(text for _, text in BLOCKS if text.startswith("def test_"))
    (tmp_path / "test_example.py").write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "siltstone.testing", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take seconds
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
