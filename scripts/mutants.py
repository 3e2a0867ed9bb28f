"""Measures the tests: changes one place of the source at a time, and runs tests until one of them fails.

    .venv/bin/python scripts/mutants.py --count 200 --seed 1 --out mutants.jsonl
    .venv/bin/python scripts/mutants.py --only src/siltstone/compaction/rewrite.py:120:15
    .venv/bin/python scripts/mutants.py --count 200 --stages 2 --out quick.jsonl
    .venv/bin/python scripts/mutants.py --again quick.jsonl --out survivors.jsonl

Each mutant is made in a copy of the tree. Tests run in stages: those that import the module, those of its
package, then all others. A mutant that passes all of them survives: a test is missing, or the change makes
no difference, which a person has to decide. The output has one line of JSON a mutant. With ``--stages 2``
the last stage, which takes minutes, is left out; ``--again`` runs all stages for the survivors of such a run.

With ``--coverage`` the first stage has the tests that run the changed line, the quickest first, and is the
only one where there are any; for a line of a compiled kernel those that run another line of its module.
To make the two files::

    pytest tests/base tests/log tests/compaction tests/golden … --cov=siltstone --cov-context=test \\
        --durations=0 --durations-min=0.001 > durations.txt      # needs pytest-cov
    .venv/bin/python scripts/mutants.py --count 200 --coverage .coverage --durations durations.txt
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("base/records", "log", "compaction")
STAGES = {
    "base/records": ["tests/base/records", "tests/log", "tests/golden"],
    "log": ["tests/log", "tests/golden", "tests/crash"],
    "compaction": ["tests/compaction", "tests/golden", "tests/property"],
}
_COMPARE = {
    "Lt": "<=",
    "LtE": "<",
    "Gt": ">=",
    "GtE": ">",
    "Eq": "!=",
    "NotEq": "==",
    "In": "not in",
    "NotIn": "in",
}
_COMPARE |= {"Is": "is not", "IsNot": "is"}
_BINARY = {"Add": "-", "Sub": "+", "Mult": "//", "FloorDiv": "*", "BitAnd": "|", "BitOr": "&", "LShift": ">>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the bytes `start` to `end` of a line become `after`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of one file: comparisons, sums, and/or, not, numbers in expressions, True and False."""
    source = path.read_text()
    lines = source.encode().split(b"\n")

    def between(left: ast.expr, right: ast.expr, after: str) -> Iterator[Mutant]:
        if left.end_lineno == right.lineno and left.end_col_offset is not None:
            yield made(right.lineno, left.end_col_offset, right.col_offset, f" {after} ")

    def made(line: int, start: int, end: int, after: str) -> Mutant:
        before = lines[line - 1][start:end].decode()
        # A bracket around an operand belongs to neither node: it stays where it is.
        opening, closing = before.count("("), before.count(")")
        after = ")" * closing + after + "(" * opening
        name = path.relative_to(ROOT).as_posix()
        return Mutant(path=name, line=line, start=start, end=end, before=before, after=after)

    tree = ast.parse(source)
    decorators = {
        id(inner)
        for node in ast.walk(tree)
        for decorator in getattr(node, "decorator_list", [])
        for inner in ast.walk(decorator)
    }
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if annotation is not None
        for inner in ast.walk(annotation)
    }
    for node in ast.walk(tree):
        if id(node) in decorators or id(node) in annotations:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], _COMPARE[type(node.ops[0]).__name__])
        elif isinstance(node, ast.BinOp) and type(node.op).__name__ in _BINARY:
            yield from between(node.left, node.right, _BINARY[type(node.op).__name__])
        elif isinstance(node, ast.BoolOp):
            other = "or" if isinstance(node.op, ast.And) else "and"
            yield from between(node.values[0], node.values[1], other)
        elif (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.Not)
            and node.lineno == node.operand.lineno
        ):
            yield made(node.lineno, node.col_offset, node.operand.col_offset, "")
        elif isinstance(node, ast.Constant) and node.end_col_offset is not None:
            if isinstance(node.value, bool):
                yield made(node.lineno, node.col_offset, node.end_col_offset, str(not node.value))
            elif isinstance(node.value, int):
                yield made(node.lineno, node.col_offset, node.end_col_offset, str(node.value + 1))


def apply(mutant: Mutant, tree: Path) -> None:
    """Write the changed file into a copy of the tree, without compiled kernels of the old one."""
    path = tree / mutant.path
    lines = path.read_bytes().split(b"\n")
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.after.encode() + line[mutant.end :]
    changed = b"\n".join(lines)
    ast.parse(changed)
    path.write_bytes(changed)
    if b"kernel" in changed:
        for compiled in [*tree.rglob("*.nbi"), *tree.rglob("*.nbc")]:
            compiled.unlink()


class Covering:
    """The tests that run a line, by a coverage file with a context for each test; the quickest first, up to
    ``SECONDS`` in all."""

    SECONDS = 90.0

    def __init__(self, coverage_file: str, durations: Path | None) -> None:
        from coverage import CoverageData

        self._data = CoverageData(coverage_file)
        self._data.read()
        self._files = {name.rpartition("/src/")[2]: name for name in self._data.measured_files()}
        self._seconds: dict[str, float] = {}
        for line in durations.read_text(errors="replace").splitlines() if durations else ():
            words = line.split(maxsplit=2)
            if len(words) == 3 and words[1] in ("call", "setup") and words[0].endswith("s"):
                self._seconds[words[2]] = self._seconds.get(words[2], 0.0) + float(words[0][:-1])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests' ids, none for a line that no test runs."""
        name = self._files.get(mutant.path.removeprefix("src/"))
        by_line = self._data.contexts_by_lineno(name) if name else {}
        contexts = set(by_line.get(mutant.line, ())) - {""}
        if not contexts:  # a kernel's line: the tests that run any other line of the module
            contexts = {context for others in by_line.values() for context in others} - {""}
        tests = sorted({context.partition("|")[0] for context in contexts}, key=self._time_of)
        chosen, total = [], 0.0
        for test in tests:
            total += self._time_of(test)
            if chosen and total > self.SECONDS:
                break
            chosen.append(test)
        return chosen

    def _time_of(self, test: str) -> float:
        return self._seconds.get(test, 0.001)


def stages_of(mutant: Mutant, covering: Covering | None = None) -> list[list[str]]:
    """Tests in the order in which they are likely to notice the change, quick ones first: those that run the
    line; or those of the room that import the module, the room's with golden data, all."""
    tests = covering.tests_of(mutant) if covering else []
    if tests:
        return [tests]
    package = next(name for name in PACKAGES if f"siltstone/{name}/" in mutant.path)
    module = mutant.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    room = STAGES[package][0]
    near = [
        test.relative_to(ROOT).as_posix()
        for test in sorted((ROOT / room).rglob("test_*.py"), key=lambda path: path.stat().st_size)
        if module in test.read_text()
    ]
    return [near, STAGES[package], ["tests"]]


def judge(
    mutant: Mutant, scratch: Path, timeout_s: float, stages: int, covering: Covering | None = None
) -> dict[str, object]:
    """Run the first ``stages`` in a copy of the tree: which test noticed the change, after what time."""
    tree = Path(tempfile.mkdtemp(prefix="mutant-", dir=scratch))
    began = time.monotonic()
    try:
        for name in ("src", "tests", "docs", "demo", "bench", "scripts"):
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("out"))
        for name in ("pyproject.toml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "Makefile"):
            shutil.copy2(ROOT / name, tree / name)
        apply(mutant, tree)
        noticed = None
        for tests in filter(None, stages_of(mutant, covering)[:stages]):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            command += [
                "--ignore=tests/kafka",
                "--ignore=tests/test_structure.py",
                f"--basetemp={tree}/pytest",
            ]
            environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "CI": "true"}
            with (tree / "out").open("wb") as out:
                try:
                    done = subprocess.run(
                        command,
                        cwd=tree,
                        env=environment,
                        stdout=out,
                        stderr=out,
                        timeout=timeout_s,
                        check=False,
                    )
                    failed = done.returncode != 0
                except subprocess.TimeoutExpired:
                    failed = True
            if failed:
                lines = (tree / "out").read_text(errors="replace").splitlines()
                noticed = next(
                    (line for line in reversed(lines) if line.startswith(("FAILED", "ERROR"))), "timeout"
                )
                break
        seconds = round(time.monotonic() - began, 1)
        return {**asdict(mutant), "noticed": noticed, "seconds": seconds}
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def main() -> None:
    """Choose mutants at random, judge each, and write a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="go on after so many of them")
    parser.add_argument("--only", help="PATH:LINE:COLUMN: only the changes that begin there")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--timeout", type=float, default=1200, help="seconds a stage; longer is noticed")
    parser.add_argument("--stages", type=int, default=3, help="how many stages of tests (3)")
    parser.add_argument("--again", type=Path, help="judge the survivors in this output of an earlier run")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are judged at a time (1)")
    parser.add_argument("--coverage", help="a coverage file with a context for each test")
    parser.add_argument("--durations", type=Path, help="pytest's output with --durations=0 of the same run")
    chosen = parser.parse_args()
    covering = Covering(chosen.coverage, chosen.durations) if chosen.coverage else None
    found = [
        mutant
        for package in PACKAGES
        for path in sorted((ROOT / "src/siltstone" / package).rglob("*.py"))
        for mutant in mutants_of(path)
    ]
    if chosen.again:
        results = [json.loads(line) for line in chosen.again.read_text().splitlines()]
        survivors = {(each["path"], each["line"], each["start"]) for each in results if not each["noticed"]}
        found = [each for each in found if (each.path, each.line, each.start) in survivors]
    elif chosen.only:
        found = [each for each in found if f"{each.path}:{each.line}:{each.start}" == chosen.only]
    else:
        random.Random(chosen.seed).shuffle(found)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, chosen.out.open("a") as out:

        def report(mutant: Mutant) -> None:
            result = judge(mutant, Path(scratch), chosen.timeout, chosen.stages, covering)
            print(json.dumps(result), file=out, flush=True)
            change = f"{mutant.before!r} -> {mutant.after!r}"
            print(f"{mutant.path}:{mutant.line}: {change}: {result['noticed'] or 'SURVIVED'}", flush=True)

        with ThreadPoolExecutor(chosen.workers) as pool:
            list(pool.map(report, found[chosen.skip : chosen.count]))


if __name__ == "__main__":
    main()
