"""Kernels need no numba until one is called; then numba's functions are in the place of all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRST_CALLS_IN_THREADS = """
import sys, threading
import numpy as np
import siltstone.broker.separate, siltstone.commands.clean, siltstone.compaction.engine
from siltstone.base.records import checksum, hashing, scan
from siltstone.base.records.kernel import Kernel, load

def kernels():
    return sum(
        isinstance(value, Kernel)
        for name, module in sys.modules.items() if name.startswith("siltstone.")
        for value in vars(module).values()
    )

kept, before = hashing.murmur2, kernels()
print("numba" in sys.modules, "llvmlite" in sys.modules, before > 90)
key, start, results = np.frombuffer(b"key", np.uint8), threading.Barrier(8), []

def call():
    start.wait()
    results.append(int(hashing.murmur2(key, 0, np.int32(3))))

threads = [threading.Thread(target=call) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(results), len(set(results)), "numba" in sys.modules, kernels())
print(kept is hashing.murmur2, isinstance(kept, Kernel), kept(key, 0, np.int32(3)) == results[0])
load()
print(type(checksum.crc32c_of).__name__)
"""
KERNELS_OF_A_PROGRAM = """
from siltstone.base.records.kernel import Kernel, chosen_kernel, inline_kernel, kernel

@inline_kernel
def doubled(number):
    return 2 * number

@kernel
def plus_one(number):
    return doubled(number) + 1

either = chosen_kernel(lambda: plus_one)

@kernel
def result(number):
    return either(number) + doubled(number)

held = {"result": result}
print(plus_one.__name__, type(held["result"]).__name__, held["result"](3), held["result"](4))
print(isinstance(result, Kernel), isinstance(either, Kernel), result.py_func.__name__, either(1))

@kernel
def later(number):
    return plus_one(number)

print(isinstance(later, Kernel), later(1))
"""
NOT_REPLACED = """
from siltstone.base.records import kernel

@kernel.inline_kernel
def doubled(number):
    return 2 * number

@kernel.kernel
def plus_one(number):
    return doubled(number) + 1

@kernel.kernel
def result(number):
    return plus_one(number) + doubled(number)

assert callable(kernel._namespaces)
kernel._namespaces = lambda: []
print(result(3), type(plus_one).__name__, type(doubled).__name__)
"""


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        pytest.param(
            FIRST_CALLS_IN_THREADS,
            ["False False True", "8 1 True 0", "False True True", "CPUDispatcher"],
            id="first calls in threads",
        ),
        pytest.param(
            KERNELS_OF_A_PROGRAM,
            ["plus_one Kernel 13 17", "False False result 3", "False 3"],
            id="kernels of a program",
        ),
        pytest.param(
            NOT_REPLACED,
            ["13 Kernel Kernel"],
            id="kernels whose names were bound while others loaded",
            marks=pytest.mark.long,
        ),
    ],
)
def test_kernels_are_loaded_by_the_first_call(tmp_path: Path, program: str, lines: list[str]) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    completed = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.stdout.splitlines() == lines, completed.stderr
