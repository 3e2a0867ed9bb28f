"""The guide's code does what the guide says: every block, in order, as somebody who copies it would.

``make test-long`` runs the blocks in this process, on the session of the tests, and so the command that one
of them starts; then it runs them as a script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.spark.internals import running_session
from tests.support.command_line import in_this_process
from tests.support.golden_sets import REPOSITORY

# The guide's calls have tests of their own; its blocks take half a minute of a processor.
pytestmark = [pytest.mark.spark, pytest.mark.long]
PATIENCE_S = 280
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FOLDERS = re.compile(r'"(disk|cleaned|backfill)"')
"""The folders that the guide names by relative paths, which Java resolves in the directory it started in."""
_STOP = "spark.stop()\n"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def blocks() -> list[str]:
    """The guide's blocks of Python."""
    texts = _BLOCK.findall((REPOSITORY / "docs" / "guide.md").read_text())
    assert len(texts) > 8
    return [str(block) for block in texts]


def test_every_block_runs_on_a_session_that_the_program_has(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """But for the last statement, which stops the session."""
    siltstone, commands = in_this_process(capsysbinary, monkeypatch), []

    def run(words: list[str], *, check: bool) -> None:
        assert words[0] == "siltstone" and check
        completed = siltstone(*words[1:])
        assert completed.status == 0, completed.err
        commands.append(words[1])

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    *_, last = code = blocks()
    assert last.endswith(_STOP) and sum(_STOP in block for block in code) == 1
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(code):
        absolute = _FOLDERS.sub(lambda match: repr(str(tmp_path / match[1])), block.removesuffix(_STOP))
        exec(compile(absolute, f"block {number} of docs/guide.md", "exec"), names)
    assert running_session() is session and commands == ["clean"]


@pytest.mark.timeout(PATIENCE_S + 10)
def test_every_block_runs_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "guide.py"
    script.write_text("\n".join([*blocks(), "print('the end')"]))
    completed = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    assert completed.stdout.rstrip().endswith("the end")
