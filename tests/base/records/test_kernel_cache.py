"""Kernels compiled by another version of the package: their caches are passed over, and made anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OLD, NEW = "Spans", "Places"
MODULE = """
from typing import NamedTuple
import numpy as np
from siltstone.base.records.kernel import kernel

class {name}(NamedTuple):
    starts: np.ndarray

@kernel
def total(given):
    return given.starts.sum()

print(total({name}(np.arange(5))), sum(total.stats.cache_hits.values()))
"""


def run(folder: Path, name: str) -> str:
    (folder / "kernels.py").write_text(MODULE.format(name=name))
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    asked = [sys.executable, "-c", "import kernels"]
    done = subprocess.run(
        asked, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_class_that_was_renamed_costs_a_compilation_and_nothing_else(tmp_path: Path) -> None:
    assert run(tmp_path, OLD) == "10 0"
    assert run(tmp_path, NEW) == "10 0"
    assert run(tmp_path, NEW) == "10 1"


@pytest.mark.parametrize("left", [0, 40])
def test_an_index_that_was_cut_is_made_anew(tmp_path: Path, left: int) -> None:
    assert run(tmp_path, OLD) == "10 0"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    index.write_bytes(index.read_bytes()[:left])
    assert run(tmp_path, OLD) == "10 0"
    assert run(tmp_path, OLD) == "10 1"
