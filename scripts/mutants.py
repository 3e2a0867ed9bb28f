"""Measures the tests: changes one place of the source at a time, and runs tests until one of them fails.

    .venv/bin/python scripts/mutants.py --survey                                # ten minutes
    .venv/bin/python scripts/mutants.py --list scripts/mutants_200.jsonl        # an hour
    .venv/bin/python scripts/mutants.py --only src/siltstone/compaction/rewrite.py:120
    .venv/bin/python scripts/mutants.py --count 200 --seed 1 --draw other_200.jsonl

A survey runs the tests once, unchanged: which of them pass, which lines each of them runs, in what time
(needs ``coverage``, of the extra dev). ``--survey tests/log/test_new.py`` adds tests to an earlier survey.

For each mutant a process is forked, which runs the tests that the survey saw in the changed statement: those
of files that import its module, then the others, the quickest first. Nothing is copied: the files stay as
they are, and a test that starts a program of its own sees no change. A change in a function is made in the
memory of a process that has collected all tests. One that matters when a module is imported is made by
importing Siltstone afresh. Of kernels only the changed one and its callers are compiled again. The survey
sees no line of a kernel: its tests are those of the lines that call it, directly or through other kernels.

A mutant that passes all of its tests survives: a test is missing, or the change makes no difference, which a
person has to decide. The results have one line of JSON a mutant. At the end all tests that noticed something
run once more without a change, in the same way; what one of them noticed counts only if it passes.

A list of places has one line of JSON a place (``Place``), which is found by the code around it, wherever that
has moved. A place whose code is no more is named, and others are drawn with the seed, until there are
``--count`` again. ``"equivalent"`` says why a change makes no difference: it is not judged. At the end a
table has the outcome of all places; the exit status is 1 if under 95 % of those that make a difference are
caught.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import contextlib
import functools
import gc
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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

import numba.core.caching
import pytest
from numba.core.dispatcher import Dispatcher

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("base/records", "log", "compaction")
TESTS = [
    f"tests/{name}"
    for name in ("base/records", "log", "compaction", "golden", "property", "crash", "cli/test_dump.py")
]
LOADED_BEFORE = ("hypothesis", "cramjam", "crc32c", "xxhash", "zstandard", "zlib_ng", "msgspec", "psutil")
"""Libraries that a forked process need not import again."""
CHOSEN = "not long and not spark"
LOADED_WARNING = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
MEMORY_MAX = 6 << 30
"""Bytes: a changed size must not take the machine's memory."""
FAILED_HERE = 70
"""Exit status of a forked process after an error of this script."""
CODE_MAX = 160
"""Characters of a place's code, at most, unless the changed expression itself has more."""
CAUGHT_MIN = 0.95

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
class Place:
    """Where a change is, without line numbers.

    ``code``: the statement, or as much around the change as is short, in one line; ``changed``: the same with
    the change. ``function``: its qualified name, empty outside of functions and classes. ``ordinal``: how
    often the same code comes before, in the same function.
    """

    path: str
    function: str
    code: str
    ordinal: int
    changed: str


PLACE = tuple(column.name for column in fields(Place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the bytes ``start`` to ``end`` of a module, in this line, become ``after``."""

    place: Place
    line: int
    start: int
    end: int
    after: str

    @property
    def path(self) -> str:
        return self.place.path


class Module:
    """The source of a module, its syntax tree, and what is around each of its nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        source = path.read_text()
        self.tree = ast.parse(source)
        self.source = source.encode()
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in self.source.split(b"\n"))]
        """Where each line begins."""
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def position(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def line(self, position: int) -> int:
        return bisect.bisect_right(self._starts, position)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The bytes of a node; of one without a position of its own (parameters), those of its children."""
        if isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg):
            assert node.end_lineno is not None and node.end_col_offset is not None
            end = self.position(node.end_lineno, node.end_col_offset)
            return self.position(node.lineno, node.col_offset), end
        starts, ends = zip(*map(self.span, ast.iter_child_nodes(node)), strict=True)
        return min(starts), max(ends)

    def code_around(self, node: ast.expr) -> tuple[int, int]:
        """The bytes of the largest code around a node that is short, and in its statement without the body of
        an ``if`` or the like."""
        span, around = self.span(node), self._parents[node]
        while isinstance(around, ast.expr) or not (hasattr(around, "body") or hasattr(around, "cases")):
            start, end = self.span(around)
            if len(one_line(self.source[start:end])) > CODE_MAX:
                break
            span, around = (start, end), self._parents[around]
        return span

    def function_around(self, node: ast.AST) -> str:
        names = []
        around: ast.AST | None = node
        while around is not None:
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append(around.name)
            around = self._parents.get(around)
        return ".".join(reversed(names))


def one_line(code: bytes) -> str:
    return " ".join(code.decode().split())


@dataclass(frozen=True, slots=True)
class Change:
    """The bytes ``start`` to ``end`` of a module become ``after``; ``node`` is the expression around them."""

    node: ast.expr
    start: int
    end: int
    after: str


def changes_of(module: Module) -> Iterator[Change]:
    """Every change of one file: comparisons, sums, and/or, not, numbers in expressions, True and False."""

    def between(node: ast.expr, left: ast.expr, right: ast.expr, after: str) -> Iterator[Change]:
        if left.end_lineno == right.lineno:
            start, end = module.span(left)[1], module.span(right)[0]
            before = module.source[start:end].decode()
            # A bracket around an operand belongs to neither node: it stays where it is.
            yield Change(node, start, end, ")" * before.count(")") + f" {after} " + "(" * before.count("("))

    tree = module.tree
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
            yield from between(node, node.left, node.comparators[0], _COMPARE[type(node.ops[0]).__name__])
        elif isinstance(node, ast.BinOp) and type(node.op).__name__ in _BINARY:
            yield from between(node, node.left, node.right, _BINARY[type(node.op).__name__])
        elif isinstance(node, ast.BoolOp):
            other = "or" if isinstance(node.op, ast.And) else "and"
            yield from between(node, node.values[0], node.values[1], other)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            if node.lineno == node.operand.lineno:
                # A bracket around the operand stays.
                start, end = module.span(node)[0], module.span(node.operand)[0]
                yield Change(node, start, end, "(" * module.source[start:end].count(b"("))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield Change(node, *module.span(node), str(not node.value))
            elif isinstance(node.value, int):
                yield Change(node, *module.span(node), str(node.value + 1))


def mutants_of(path: Path) -> list[Mutant]:
    """A mutant for every change of one file."""
    module = Module(path)
    changes = list(changes_of(module))
    around = [(module.function_around(change.node), *module.code_around(change.node)) for change in changes]
    same: dict[tuple[str, str], set[int]] = {}
    for function, start, end in around:
        same.setdefault((function, one_line(module.source[start:end])), set()).add(start)
    mutants = []
    for change, (function, start, end) in zip(changes, around, strict=True):
        code, after = one_line(module.source[start:end]), change.after.encode()
        place = Place(
            path=module.path,
            function=function,
            code=code,
            ordinal=sorted(same[function, code]).index(start),
            changed=one_line(module.source[start : change.start] + after + module.source[change.end : end]),
        )
        line = module.line(change.start)
        mutants.append(Mutant(place=place, line=line, start=change.start, end=change.end, after=change.after))
    return mutants


def changed_source(mutant: Mutant) -> bytes:
    source = (ROOT / mutant.path).read_bytes()
    return source[: mutant.start] + mutant.after.encode() + source[mutant.end :]


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


def change_in_place(mutant: Mutant) -> None:
    """Give each function of the mutant's module, which is imported, the code that it has with the change.
    Raises LookupError if there is no such function: a mutant that changes nothing would survive."""
    gc.unfreeze()  # ``get_objects`` has no frozen object, and the tests freeze all that they have collected
    path = str(ROOT / mutant.path)
    codes = [compile(changed_source(mutant), path, "exec", dont_inherit=True)]
    changed = {}
    for code in codes:  # grows by the functions in functions and classes
        changed[code.co_qualname, code.co_firstlineno] = code
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    is_changed = False
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType) and function.__code__.co_filename == path:
            old = function.__code__
            function.__code__ = changed[old.co_qualname, old.co_firstlineno]
            is_changed = True
    if not is_changed:
        raise LookupError(path)


def compile_again(kernels: set[str]) -> None:
    """Forget the machine code of these kernels, in memory and on disk."""
    importlib.import_module("siltstone.base.records.kernel").load()
    for kernel in gc.get_objects():
        if isinstance(kernel, Dispatcher) and kernel.py_func.__name__ in kernels:
            kernel._make_finalizer()()
            kernel._reset_overloads()
            kernel._cache = numba.core.caching.NullCache()


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
        run_without_change(lambda scratch: run_pytest(tests, Surveyor(self), f"--basetemp={scratch}/pytest"))

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
        contexts = self._contexts_of(path, lines)
        users = (self._tests_by_fixture.get(context, {context}) for context in contexts)
        return {test for tests in users for test in tests if test in self.seconds}

    def runs_at_import(self, path: str, lines: Sequence[int]) -> bool:
        """Does one of the lines run outside of tests?"""
        return "" in self._contexts_of(path, lines)

    def _contexts_of(self, path: str, lines: Sequence[int] | None) -> set[str]:
        by_line = self._contexts(path)
        chosen = by_line if lines is None else by_line.keys() & set(lines)
        return {context for line in chosen for context in by_line[line]}


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
        """The lines, by file, that use one of the names, or what is made with it."""
        uses: dict[str, set[int]] = {}
        for name in self.made_with(names):
            for path, line in self._uses.get(name, ()):
                uses.setdefault(path, set()).add(line)
        return uses

    def made_with(self, names: Sequence[str]) -> set[str]:
        """The names, and those of kernels and constants that are made with one of them."""
        reached, waiting = set(names), list(names)
        while waiting:
            new = self._defined_with.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        return reached


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.end_lineno or 0


def names_defined(node: ast.stmt) -> list[str]:
    """What a statement of a module defines: constants, a kernel, a function that runs once."""
    if isinstance(node, ast.FunctionDef):
        return [node.name] if is_made_once(node) else []
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [
        name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)
    ]


def is_made_once(node: ast.FunctionDef) -> bool:
    """Is it a kernel, or a function that keeps its result?"""
    return bool(decorators_of(node) & {"kernel", "inline_kernel", "cache", "lru_cache"})


def decorators_of(node: ast.FunctionDef) -> set[str]:
    return {name for decorator in node.decorator_list for name, _ in names_in(decorator)}


def is_in_place(mutant: Mutant, survey: Survey) -> bool:
    """Is it enough to change the code of a function after its module was imported?"""
    functions = [
        node
        for node in ast.walk(ast.parse((ROOT / mutant.path).read_text()))
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    keep_results = any(decorators_of(node) & {"cache", "lru_cache"} for node in functions)
    return bool(functions) and not keep_results and not survey.runs_at_import(mutant.path, [mutant.line])


def kernel_of(mutant: Mutant) -> list[str]:
    """The name of the kernel that the change is in, if it is in one."""
    return [
        name
        for node in ast.parse((ROOT / mutant.path).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.lineno <= mutant.line <= (node.end_lineno or 0)
        for name in names_defined(node)
    ]


def tests_for(mutant: Mutant, survey: Survey, sources: Sources) -> list[str]:
    """The tests that run the changed statement, or use the kernel, constant or class that it belongs to; if
    there is none, those that run its module. Those of files that import the module come first, else the
    quickest."""
    tree = ast.parse((ROOT / mutant.path).read_text())
    top = next(node for node in tree.body if first_line(node) <= mutant.line <= (node.end_lineno or 0))
    tests: set[str] = set()
    if isinstance(top, ast.FunctionDef | ast.ClassDef):
        tests = survey.tests_of(mutant.path, lines_of_statement(tree, mutant.line))
    names = names_defined(top)
    if survey.runs_at_import(mutant.path, [mutant.line]):
        # No test runs the line of a default, of a parameter or of a data class, that it uses.
        tests |= survey.tests_of(mutant.path)
        names += [top.name] if isinstance(top, ast.ClassDef) else []
    for path, lines in sources.uses_of(names).items():
        tests |= survey.tests_of(path, sorted(lines))
    tests = tests or survey.tests_of(mutant.path)
    module = mutant.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    ordered = survey.in_order(tests)
    return sorted(ordered, key=lambda test: module not in source_of(test.partition("::")[0]))


@functools.cache
def source_of(path: str) -> str:
    return (ROOT / path).read_text()


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def lines_of_statement(tree: ast.AST, line: int) -> range:
    """The lines of the statement around a line, without the body of an ``if`` or the like."""
    spans = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) or (isinstance(node, ast.stmt) and not hasattr(node, "body"))
    ]
    return max((span for span in spans if line in span), key=len, default=range(line, line + 1))


class Session:
    """A pytest plugin that has all tests collected, calls a function, and runs in forked processes what that
    function wants."""

    def __init__(self, run: Callable[[Session], int], survey: Survey) -> None:
        self._run, self._survey = run, survey
        self._session: pytest.Session
        self._scratch: Path
        self.status = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self.status = self._run(self)
        return True

    def run(self, tests: Sequence[str], scratch: Path) -> int:
        """Run tests in their order, until one fails: 0 or 1."""
        with (scratch / "output").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
        self._scratch = scratch
        by_id = {item.nodeid: item for item in self._session.items}
        items = [by_id[test] for test in tests if test in by_id]
        for item, next_item in itertools.pairwise([*items, None]):
            self._begin(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if self._session.testsfailed:
                return 1
        return 0

    def _begin(self, item: pytest.Item) -> None:
        """Say which test runs, and limit it: a loop without end may run in a kernel, where only the system
        can stop it. CPU time is the same on a busy machine; a minute is for compiling."""
        (self._scratch / "test").write_text(item.nodeid)
        limit = time.process_time() + 60 + 20 * self._survey.seconds[item.nodeid]
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), resource.RLIM_INFINITY))


def run_pytest(paths: Iterable[str], plugin: object, *options: str) -> int:
    arguments = ["-p", "no:cacheprovider", "-q", "-W", LOADED_WARNING, "-m", CHOSEN, *options, *paths]
    return int(pytest.main(arguments, plugins=[plugin]))


def files_of(tests: Sequence[str]) -> list[str]:
    return sorted({test.partition("::")[0] for test in tests})


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


Run = Callable[[Mutant, Sequence[str], Path], int]
"""Runs tests with a change, in a forked process that has a folder; returns 0 if they pass."""


class Judge:
    """Judges mutants, so many at a time, and writes their results."""

    def __init__(self, survey: Survey, out: TextIO, seconds_max: float, workers: int) -> None:
        self._survey, self._out, self._seconds_max, self._workers = survey, out, seconds_max, workers
        sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        self.sources = Sources(sorted(sources))
        self.noticing: set[str] = set()
        """The tests that noticed something."""
        self.caught: list[Mutant] = []
        self.survived: list[Mutant] = []
        self.failing: str | None = None
        """A test that failed without a change, too."""

    def judge(self, mutants: Sequence[Mutant], run: Run) -> None:
        running: dict[int, tuple[Child, Mutant, int, int]] = {}
        waiting = list(reversed(mutants))
        while waiting or running:
            while waiting and len(running) < self._workers:
                mutant = waiting.pop()
                tests = tests_for(mutant, self._survey, self.sources)
                tried = self._survey.within(tests, self._seconds_max)
                child = Child.start(functools.partial(run, mutant, tried) if tried else lambda _: 0)
                running[child.pid] = child, mutant, len(tests), len(tried)
            pid, status, usage = os.wait4(-1, 0)
            child, mutant, reaching, tried_count = running.pop(pid)
            self._report(
                mutant,
                noticed=child.outcome(status),
                tests=reaching,
                tried=tried_count,
                cpu_s=round(usage.ru_utime + usage.ru_stime, 1),
            )

    def _report(self, mutant: Mutant, *, noticed: str | None, cpu_s: float, **counts: int) -> None:
        result = {**asdict(mutant.place), "line": mutant.line, "noticed": noticed, "cpu_s": cpu_s, **counts}
        print(json.dumps(result), file=self._out, flush=True)
        print(f"{described(mutant)}: {noticed or 'SURVIVED'} ({cpu_s} s)", flush=True)
        self.count(mutant, noticed)

    def count(self, mutant: Mutant, noticed: str | None) -> None:
        """Count a result; ``noticed``: the test that noticed the change."""
        (self.caught if noticed else self.survived).append(mutant)
        self.noticing.add((noticed or "").partition(" (SIG")[0])


def run_imported(mutant: Mutant, tests: Sequence[str], survey: Survey, scratch: Path) -> int:
    """Import everything with the change, and run tests."""
    import_changed(mutant)
    session = Session(lambda session: session.run(tests, scratch), survey)
    return run_pytest(files_of(tests), session, "--capture=no", "--no-header") or session.status


def described(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line}: {mutant.place.code} -> {mutant.place.changed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Which mutants are judged, which places of a list make no difference, with the reason, and which are no
    more."""

    mutants: list[Mutant]
    equivalent: dict[Place, str] = field(default_factory=dict)
    vanished: list[Place] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write a list of the places, in the order of the sources."""
        entries = [{**asdict(place), "equivalent": reason} for place, reason in self.equivalent.items()]
        entries += [asdict(mutant.place) for mutant in self.mutants]
        entries.sort(key=lambda entry: [entry[name] for name in PLACE])
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "mutants", help="where the survey is (mutants)")
    parser.add_argument("--survey", nargs="*", help="run tests, all or some, and note what they run")
    parser.add_argument("--list", type=Path, help="the places of this file, not places drawn with the seed")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--draw", type=Path, help="only write the places to this file, a new list")
    parser.add_argument("--resume", action="store_true", help="judge no place that --out has already")
    parser.add_argument("--only", help="PATH:LINE: only the changes that begin there")
    parser.add_argument("--again", type=Path, help="only the survivors in the results of an earlier run")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results (mutants.jsonl)")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for a mutant, at most (120)")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are judged at a time (1)")
    return parser.parse_args()


def sample_of(chosen: argparse.Namespace) -> Sample:
    every = [
        mutant
        for package in PACKAGES
        for path in sorted((ROOT / "src/siltstone" / package).rglob("*.py"))
        for mutant in mutants_of(path)
    ]
    if chosen.again:
        results = read_places(chosen.again)
        survivors = {place for place, result in results.items() if not result["noticed"]}
        return Sample(mutants=[mutant for mutant in every if mutant.place in survivors])
    if chosen.only:
        return Sample(mutants=[mutant for mutant in every if f"{mutant.path}:{mutant.line}" == chosen.only])
    listed = read_places(chosen.list) if chosen.list else {}
    by_place = {mutant.place: mutant for mutant in every}
    equivalent = {
        place: entry["equivalent"]
        for place, entry in listed.items()
        if "equivalent" in entry and place in by_place
    }
    mutants = [by_place[place] for place in listed if place in by_place and place not in equivalent]
    random.Random(chosen.seed).shuffle(every)
    others = [mutant for mutant in every if mutant.place not in listed]
    mutants += others[: max(chosen.count - len(equivalent) - len(mutants), 0)]
    vanished = [place for place in listed if place not in by_place]
    return Sample(mutants=mutants, equivalent=equivalent, vanished=vanished)


def read_places(path: Path) -> dict[Place, dict[str, Any]]:
    """The lines of a list or of results, by place."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {Place(**{name: entry[name] for name in PLACE}): entry for entry in entries}


def print_outcome(sample: Sample, judge: Judge) -> float:
    """Print what became of a sample; returns the share caught of the mutants that make a difference."""
    for mutant in judge.survived:
        print(f"survived: {described(mutant)}")
    caught, survived = len(judge.caught), len(judge.survived)
    share = caught / max(caught + survived, 1)
    print(f"{caught} caught")
    print(f"{survived} survived")
    print(f"{len(sample.equivalent)} equivalent")
    print(f"{len(sample.vanished)} vanished, and replaced by others")
    print(f"{share:.1%} of the {caught + survived} that make a difference are caught")
    return share


def main() -> int:
    """Take a survey, or judge mutants, write a line for each, and try the tests that noticed them."""
    chosen = parsed_arguments()
    for library in LOADED_BEFORE:
        importlib.import_module(library)
    survey = Survey(chosen.folder)
    if chosen.survey is not None:
        survey.take(chosen.survey or TESTS)
        return 0
    sample = sample_of(chosen)
    for place in sample.vanished:
        print(f"no longer in {place.path}, {place.function or 'outside of functions'}: {place.code}")
    if chosen.draw:
        sample.write(chosen.draw)
        return 0
    results = read_places(chosen.out) if chosen.resume else {}
    waiting = [mutant for mutant in sample.mutants if mutant.place not in results]
    in_place = [mutant for mutant in waiting if is_in_place(mutant, survey)]
    with chosen.out.open("a") as out:
        judge = Judge(survey, out, chosen.seconds, chosen.workers)
        for mutant in sample.mutants:
            if mutant.place in results:
                judge.count(mutant, results[mutant.place]["noticed"])
        judge.judge(
            [mutant for mutant in waiting if mutant not in in_place],
            lambda mutant, tests, scratch: run_imported(mutant, tests, survey, scratch),
        )
        # From here on this process has Siltstone imported.
        session = Session(functools.partial(judge_in_place, judge, in_place, survey), survey)
        run_pytest(files_of(list(survey.seconds)), session, "--capture=no", "--no-header")
    share = print_outcome(sample, judge)
    return int(share < CAUGHT_MIN or judge.failing is not None)


def judge_in_place(judge: Judge, mutants: Sequence[Mutant], survey: Survey, session: Session) -> int:
    """Judge mutants with all tests collected, then try without a change the tests that noticed something."""

    def run(mutant: Mutant, tests: Sequence[str], scratch: Path) -> int:
        change_in_place(mutant)
        compile_again(judge.sources.made_with(kernel_of(mutant)))
        return session.run(tests, scratch)

    judge.judge(mutants, run)
    tests = survey.in_order(judge.noticing)
    judge.failing = run_without_change(functools.partial(session.run, tests))
    print(f"without a change {judge.failing or 'no test'} fails, of the {len(tests)} that noticed something")
    return 0


if __name__ == "__main__":
    sys.exit(main())
