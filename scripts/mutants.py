"""Measures the tests: changes one place of the source at a time, and runs tests until one of them fails.

    .venv/bin/python scripts/mutants.py --survey                                # ten minutes
    .venv/bin/python scripts/mutants.py --count 200 --seed 22
    .venv/bin/python scripts/mutants.py --only src/siltstone/compaction/rewrite.py:120:15

A survey runs the tests once, unchanged: which of them pass, which lines each of them runs, in what time
(needs ``pip install coverage``). ``--survey tests/log/test_new.py`` adds tests to an earlier survey.

For each mutant a process is forked that has loaded numba and pytest, but nothing of Siltstone. It imports
Siltstone with the one place changed, and runs the tests that the survey saw in the changed statement, the
quickest first. Nothing is copied: the files stay as they are, and a test that starts a program of its own
sees no change. The survey sees no line of a compiled kernel; the tests of those are the tests of the lines
that call it, directly or through other kernels. Only the changed kernel and its callers are compiled again.

A mutant that passes all of its tests survives: a test is missing, or the change makes no difference, which a
person has to decide. The results have one line of JSON a mutant. At the end all tests that noticed something
run once more without a change, in the same way; what one of them noticed counts only if it passes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import importlib.machinery
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba.core.caching
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("base/records", "log", "compaction")
TESTS = [f"tests/{name}" for name in ("base/records", "log", "compaction", "golden", "property", "crash")]
LOADED_BEFORE = ("hypothesis", "cramjam", "crc32c", "xxhash", "zstandard", "zlib_ng", "msgspec", "psutil")
"""Libraries that a forked process need not import again."""
MEMORY_MAX = 6 << 30
"""Bytes: a changed size must not take the machine's memory."""
FAILED_HERE = 70
"""Exit status of a forked process after an error of this script."""

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


def changed_source(mutant: Mutant) -> bytes:
    lines = (ROOT / mutant.path).read_bytes().split(b"\n")
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.after.encode() + line[mutant.end :]
    return b"\n".join(lines)


def import_changed(mutant: Mutant) -> None:
    """From now on this process imports the mutant's module with the change. Must come before Siltstone's
    first import."""
    code = compile(changed_source(mutant), ROOT / mutant.path, "exec", dont_inherit=True)
    get_code = importlib.machinery.SourceFileLoader.get_code

    def get_code_or_changed(self: Any, fullname: str) -> types.CodeType | None:
        return code if Path(self.path) == ROOT / mutant.path else get_code(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code_or_changed  # type: ignore[method-assign]
    # The machine code of a changed kernel must not replace that of the file.
    numba.core.caching.Cache.save_overload = lambda *arguments: None


class Survey:
    """What each test runs: a folder with a coverage file and ``tests.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._times = folder / "tests.json"
        tests = json.loads(self._times.read_text()) if self._times.exists() else {}
        self.seconds: dict[str, float] = tests.get("seconds", {})
        """CPU seconds of each test that passed."""
        self.shared: dict[str, list[str]] = tests.get("shared", {})
        """The fixtures of each test that it shares with others."""

    def save(self) -> None:
        self._times.write_text(json.dumps({"seconds": self.seconds, "shared": self.shared}))

    def take(self, tests: Sequence[str]) -> None:
        """Run tests, and add what they run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        run_without_change(lambda scratch: run_pytest(tests, Surveyor(self), scratch))

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """Those of the survey, the quickest first."""
        known = [test for test in tests if test in self.seconds]
        return sorted(known, key=lambda test: (self.seconds[test], test))

    def within(self, tests: Sequence[str], seconds_max: float) -> list[str]:
        """As many of the first as take so many seconds."""
        ends = itertools.accumulate(self.seconds[test] for test in tests)
        return [test for test, end in zip(tests, ends, strict=True) if end <= seconds_max]

    @functools.cached_property
    def _data(self) -> Any:
        from coverage import CoverageData

        data = CoverageData(str(self.folder / "coverage"))
        data.read()
        return data

    @functools.cached_property
    def _tests_by_fixture(self) -> dict[str, set[str]]:
        users: dict[str, set[str]] = {}
        for test, fixtures in self.shared.items():
            for fixture in fixtures:
                users.setdefault(fixture, set()).add(test)
        return users

    @functools.cache  # noqa: B019 (there is one survey)
    def _contexts(self, path: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(str(ROOT / path))

    def tests_of(self, path: str, lines: Sequence[int] | None = None) -> set[str]:
        """The tests that run one of the lines, or any line of the file."""
        by_line = self._contexts(path)
        contexts = {
            context for line in by_line if lines is None or line in lines for context in by_line[line]
        }
        users = (self._tests_by_fixture.get(context, {context}) for context in contexts)
        return {test for tests in users for test in tests if test in self.seconds}


class Surveyor:
    """A pytest plugin that fills a survey."""

    def __init__(self, survey: Survey) -> None:
        from coverage import Coverage

        os.environ["COVERAGE_CORE"] = "ctrace"
        source = [str(ROOT / "src/siltstone"), str(ROOT / "tests")]
        self._coverage = Coverage(str(survey.folder / "coverage"), config_file=False, source=source)
        self._coverage.load()
        self._survey = survey
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = cpu_seconds()
        self._coverage.switch_context(item.nodeid)
        self._survey.seconds[item.nodeid] = 0.0
        result = yield
        self._coverage.switch_context("")
        if item.nodeid in self._survey.seconds:
            self._survey.seconds[item.nodeid] = cpu_seconds() - began
            self._survey.shared[item.nodeid] = [
                fixture_name(definitions[-1])
                for definitions in item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
                if definitions[-1].scope != "function"
            ]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """What a shared fixture runs, all its tests run."""
        if fixturedef.scope == "function":
            return (yield)
        self._coverage.switch_context(fixture_name(fixturedef))
        try:
            return (yield)
        finally:
            self._coverage.switch_context(request._pyfuncitem.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # skipped, or failed without a change
            self._survey.seconds.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._survey.save()


def fixture_name(definition: Any) -> str:
    return f"{definition.baseid}::{definition.argname} (fixture)"


def cpu_seconds() -> float:
    return time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


class Sources:
    """Where the source uses a name: kernels leave no trace in a survey."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._uses: dict[str, set[tuple[str, int]]] = {}
        self._defined_with: dict[str, set[str]] = {}
        for path in paths:
            self._add(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))

    def _add(self, path: str, tree: ast.Module) -> None:
        for name, line in names_in(tree):
            self._uses.setdefault(name, set()).add((path, line))
        for node in tree.body:
            for used, _ in names_in(node):
                self._defined_with.setdefault(used, set()).update(names_defined(node))

    def uses_of(self, names: Sequence[str]) -> dict[str, set[int]]:
        """The lines, by file, that use one of the names, or a kernel or a constant that is made with it."""
        reached, waiting = set(names), list(names)
        while waiting:
            new = self._defined_with.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        uses: dict[str, set[int]] = {}
        for name in reached:
            for path, line in self._uses.get(name, ()):
                uses.setdefault(path, set()).add(line)
        return uses


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.end_lineno or 0


def names_defined(node: ast.stmt) -> list[str]:
    """The kernel, or the constants, that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef) and is_kernel(node):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [
        name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)
    ]


def is_kernel(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id.endswith("kernel") for each in node.decorator_list)


def tests_for(mutant: Mutant, survey: Survey, sources: Sources) -> list[str]:
    """The tests that run the changed statement; if the survey cannot see it run, those that use the kernel or
    constant that it belongs to, or else its module. The quickest first."""
    tree = ast.parse((ROOT / mutant.path).read_text())
    top = next(node for node in tree.body if first_line(node) <= mutant.line <= (node.end_lineno or 0))
    tests = survey.tests_of(mutant.path, lines_of_statement(tree, mutant.line))
    if not tests:
        for path, lines in sources.uses_of(names_defined(top)).items():
            tests |= survey.tests_of(path, sorted(lines))
    tests = tests or survey.tests_of(mutant.path)
    return survey.in_order(tests)


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def lines_of_statement(tree: ast.AST, line: int) -> range:
    """The lines of the statement around a line, without the body of an ``if`` or the like."""
    spans = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) or (isinstance(node, ast.stmt) and not hasattr(node, "body"))
    ]
    return max((span for span in spans if line in span), key=len, default=range(line, line + 1))


class Runner:
    """A pytest plugin that runs chosen tests in their order, and says which one runs."""

    def __init__(self, tests: Sequence[str], survey: Survey, scratch: Path) -> None:
        self._tests, self._survey, self._progress = tests, survey, scratch / "test"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[test] for test in self._tests if test in by_id]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._progress.write_text(item.nodeid)
        # A loop without end may run in a kernel, where only the system can stop it. CPU time is the same
        # on a busy machine; a minute is for compiling.
        limit = time.process_time() + 60 + 20 * self._survey.seconds[item.nodeid]
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), resource.RLIM_INFINITY))


def run_pytest(tests: Sequence[str], plugin: object, scratch: Path, *options: str) -> int:
    arguments = [f"--basetemp={scratch}/pytest", "-p", "no:cacheprovider", "-q", *options, *tests]
    return int(pytest.main(arguments, plugins=[plugin]))


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process that runs tests, in a process group of its own."""

    pid: int
    scratch: Path

    @classmethod
    def start(cls, run: Callable[[Path], int]) -> Child:
        scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
        pid = os.fork()
        if pid:
            return cls(pid, scratch)
        status = FAILED_HERE
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
            status = run(scratch)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)

    def outcome(self, status: int) -> str | None:
        """What ended it, by its wait status: None if all tests passed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what its tests left running
        code = os.waitstatus_to_exitcode(status)
        test = self.scratch / "test"
        name = test.read_text() if test.exists() else ""
        shutil.rmtree(self.scratch, ignore_errors=True)
        if code == 0:
            return None
        if code < 0:
            return f"{name} ({signal.Signals(-code).name})"
        if code in (FAILED_HERE, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit("take the survey again: its tests cannot be run")
        return name or "import"


def run_without_change(run: Callable[[Path], int]) -> str | None:
    child = Child.start(run)
    return child.outcome(os.waitpid(child.pid, 0)[1])


def judge(
    mutants: Sequence[Mutant], survey: Survey, seconds_max: float, workers: int
) -> Iterator[dict[str, Any]]:
    """Run the tests of each mutant, ``workers`` mutants at a time; yields a result for each."""
    sources = Sources(sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]))
    running: dict[int, tuple[Child, Mutant, int, int]] = {}
    waiting = list(reversed(mutants))
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            tests = tests_for(mutant, survey, sources)
            chosen = survey.within(tests, seconds_max)
            child = Child.start(functools.partial(run_changed, mutant, chosen, survey))
            running[child.pid] = child, mutant, len(tests), len(chosen)
        pid, status, usage = os.wait4(-1, 0)
        child, mutant, reaching, tried = running.pop(pid)
        yield {
            **asdict(mutant),
            "noticed": child.outcome(status),
            "tests": reaching,
            "tried": tried,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        }


def run_changed(mutant: Mutant, tests: Sequence[str], survey: Survey, scratch: Path) -> int:
    import_changed(mutant)
    return run_chosen(tests, survey, scratch)


def run_chosen(tests: Sequence[str], survey: Survey, scratch: Path) -> int:
    if not tests:
        return 0
    with (scratch / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    files = sorted({test.partition("::")[0] for test in tests})
    return run_pytest(files, Runner(tests, survey, scratch), scratch, "-x")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "mutants", help="where the survey is (mutants)")
    parser.add_argument("--survey", nargs="*", help="run tests, all or some, and note what they run")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="go on after so many of them")
    parser.add_argument("--only", help="PATH:LINE:COLUMN: only the changes that begin there")
    parser.add_argument("--again", type=Path, help="only the survivors in the results of an earlier run")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results (mutants.jsonl)")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for a mutant, at most (120)")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are judged at a time (1)")
    return parser.parse_args()


def chosen_mutants(chosen: argparse.Namespace) -> list[Mutant]:
    every = [
        mutant
        for package in PACKAGES
        for path in sorted((ROOT / "src/siltstone" / package).rglob("*.py"))
        for mutant in mutants_of(path)
    ]
    if chosen.again:
        results = [json.loads(line) for line in chosen.again.read_text().splitlines()]
        survivors = {
            (result["path"], result["line"], result["start"]) for result in results if not result["noticed"]
        }
        return [mutant for mutant in every if (mutant.path, mutant.line, mutant.start) in survivors]
    if chosen.only:
        return [mutant for mutant in every if f"{mutant.path}:{mutant.line}:{mutant.start}" == chosen.only]
    random.Random(chosen.seed).shuffle(every)
    return every[chosen.skip : chosen.count]


def main() -> None:
    """Take a survey, or judge mutants, write a line for each, and try the tests that noticed them."""
    chosen = parsed_arguments()
    for library in LOADED_BEFORE:
        importlib.import_module(library)
    survey = Survey(chosen.folder)
    if chosen.survey is not None:
        survey.take(chosen.survey or TESTS)
        return
    noticing = set()
    with chosen.out.open("a") as out:
        for result in judge(chosen_mutants(chosen), survey, chosen.seconds, chosen.workers):
            print(json.dumps(result), file=out, flush=True)
            place = f"{result['path']}:{result['line']}: {result['before']!r} -> {result['after']!r}"
            print(f"{place}: {result['noticed'] or 'SURVIVED'} ({result['cpu_s']} s)", flush=True)
            noticing.add((result["noticed"] or "").partition(" (SIG")[0])
    tests = survey.in_order(noticing)
    failing = run_without_change(functools.partial(run_chosen, tests, survey))
    print(f"without a change {failing or 'no test'} fails, of the {len(tests)} that noticed something")


if __name__ == "__main__":
    main()
