"""Machine code on disk is used only for the kernel that it was compiled from, whichever file has changed."""

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


TABLE = """
from enum import IntEnum
from siltstone.base.records.kernel import inline_kernel, kernel

LAST = {last}

class Reason(IntEnum):
    WRONG = {reason}

@kernel
def added(number):
    return number + {added}

@inline_kernel
def doubled(number):
    return number * {factor}
"""
KERNEL = """
from siltstone.base.records.kernel import kernel
from table import LAST, Reason, added, doubled

@kernel
def result(number):
    return doubled(added(number)) * 100 + LAST * 10 + Reason.WRONG
"""
USER = f"{KERNEL}\nprint(result(1), sum(result.stats.cache_hits.values()))\n"
FINGERPRINTS = """
import importlib, pkgutil
import siltstone
from siltstone.base.records.compiling import fingerprint
from siltstone.base.records.kernel import load

load()
for module in pkgutil.walk_packages(siltstone.__path__, "siltstone."):
    if not module.name.startswith(("siltstone.spark", "siltstone.tables", "siltstone.__main__")):
        for name, value in sorted(vars(importlib.import_module(module.name)).items()):
            if hasattr(value, "nopython_signatures"):
                print(module.name, name, fingerprint(value.__wrapped__))
"""


def python(folder: Path, code: str, **variables: str) -> str:
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        # Python compares a file's byte code by size and second, and these files change within one.
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    command = [sys.executable, "-c", code]
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


USUAL = {"last": 3, "reason": 1, "added": 1, "factor": 2}


def write(folder: Path) -> None:
    """The two files before any change."""
    (folder / "user.py").write_text(USER)
    (folder / "table.py").write_text(TABLE.format(**USUAL))


def run(folder: Path, name: str) -> str:
    (folder / "kernels.py").write_text(MODULE.format(name=name))
    return python(folder, "import kernels")


CHANGES: list[tuple[dict[str, int], int]] = [
    ({"last": 4}, 441),
    ({"reason": 2}, 432),
    ({"added": 2}, 631),
    ({"factor": 3}, 631),
]
"""A constant, an enum, a called kernel, an inlined kernel; what comes out then."""
IN_ONE_PROCESS = """
import pathlib, sys
import user
from siltstone.base.records.compiling import fingerprint
for text in {texts!r}:
    pathlib.Path("table.py").write_text(text)
    del sys.modules["table"]
    space = {{}}
    exec(compile({kernel!r}, user.__file__, "exec"), space)
    print(fingerprint(space["result"].__wrapped__))
del sys.modules["user"]
import user
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changed")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def printed_lines(folder: Path) -> list[str]:
    """The lines of a process that sees every change, and compiles the first and the last of the files."""
    texts = [TABLE.format(**USUAL | changed) for changed in ({}, *(changed for changed, _ in CHANGES))]
    return python(folder, IN_ONE_PROCESS.format(texts=texts, kernel=KERNEL)).splitlines()


def test_whatever_changes_in_another_file_is_compiled_in(printed_lines: list[str]) -> None:
    """A codec that is added to ``codec_table`` must not be refused by machine code of ``check``."""
    before, *fingerprints, after = printed_lines
    assert (before, after) == ("431 0", f"{CHANGES[-1][1]} 0")
    assert len(set(fingerprints)) == 1 + len(CHANGES)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, and the machine code of both on disk."""
    folder = tmp_path_factory.mktemp("compiled")
    write(folder)
    assert [python(folder, "import user") for _ in "12"] == ["431 0", "431 1"]
    return folder


@pytest.mark.long  # each change in a process of its own
@pytest.mark.parametrize(("changed", "result"), CHANGES)
def test_what_changes_in_another_file_is_compiled_in(
    compiled: Path, changed: dict[str, int], result: int
) -> None:
    (compiled / "table.py").write_text(TABLE.format(**USUAL | changed))
    assert python(compiled, "import user") == f"{result} 0"


@pytest.mark.long
def test_a_kernel_has_one_fingerprint_in_all_processes(tmp_path: Path) -> None:
    first, second = (python(tmp_path, FINGERPRINTS, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second
    assert len(first.splitlines()) > 80


def test_what_was_compiled_anew_is_used_next_time(folder: Path, printed_lines: list[str]) -> None:
    """The last change: numba keeps the machine code of one version of a file."""
    _, result = CHANGES[-1]
    assert printed_lines[-1] == f"{result} 0"
    assert python(folder, "import user") == f"{result} 1"


@pytest.mark.long
def test_a_class_that_was_renamed_costs_a_compilation_and_nothing_else(tmp_path: Path) -> None:
    assert run(tmp_path, OLD) == "10 0"
    assert run(tmp_path, NEW) == "10 0"
    assert run(tmp_path, NEW) == "10 1"


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 40])
def test_an_index_that_was_cut_is_made_anew(tmp_path: Path, size: int) -> None:
    assert run(tmp_path, OLD) == "10 0"
    (index,) = (tmp_path / "cache").rglob("*.nbi")
    index.write_bytes(index.read_bytes()[:size])
    assert run(tmp_path, OLD) == "10 0"
    assert run(tmp_path, OLD) == "10 1"
