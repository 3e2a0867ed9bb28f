"""The examples of ``docs/library.md``, run as they stand there, and what they print.

``tests/test_public_face.py`` checks their types.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pages import DOCS

_BLOCK = re.compile(r"```(python|text)\n(.*?)```", flags=re.DOTALL)
BLOCKS: list[tuple[str, str]] = _BLOCK.findall((DOCS / "library.md").read_text(encoding="utf-8"))
PROGRAM = "".join(text for kind, text in BLOCKS if kind == "python" and not text.startswith("def test_"))
PRINTED = "".join(text for kind, text in BLOCKS if kind == "text")
TEST = next(text for _, text in BLOCKS if text.startswith("def test_"))


def test_the_examples_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(PROGRAM, "program.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == PRINTED


def test_the_example_of_a_test_passes(request: pytest.FixtureRequest) -> None:
    namespace: dict[str, Callable[..., None]] = {}
    exec(compile(TEST, "test_example.py", "exec"), namespace)
    (test,) = (value for name, value in namespace.items() if name.startswith("test_"))
    test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


@pytest.mark.long  # the same in processes of their own
def test_a_program_and_a_test_with_the_examples_end_well(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "test_example.py").write_text(TEST, encoding="utf-8")
    pytest_arguments = ["-m", "pytest", "-q", "-p", "siltstone.testing", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take seconds
    for arguments in (["-W", "error", "program.py"], pytest_arguments):
        command = [sys.executable, *arguments]
        completed = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        assert arguments is pytest_arguments or completed.stdout == PRINTED
