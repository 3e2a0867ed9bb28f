"""The guide's code does what the guide says: every block, in order, as somebody who copies it would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden_sets import REPOSITORY

pytestmark = pytest.mark.spark
PATIENCE_S = 280
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(PATIENCE_S + 10)
def test_every_block_runs(tmp_path: Path) -> None:
    blocks = _BLOCK.findall((REPOSITORY / "docs" / "guide.md").read_text())
    assert len(blocks) > 8
    script = tmp_path / "guide.py"
    script.write_text("\n".join([*blocks, "print('the end')"]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.rstrip().endswith("the end")
