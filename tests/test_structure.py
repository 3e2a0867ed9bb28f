"""The structure rules of the code base, as tests over src/siltstone.

Each rule reads one parsed module and yields its offences; the rules are themselves tested on small snippets,
so that a rule which can no longer fail is noticed.
"""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "siltstone"

FUNCTION_LINES_MAX = 50
PARAMETERS_MAX = 10
# Splitting the record decoder into leaf kernels made it 1.7 times slower: the tuples between them cost.
KERNEL_LINES_MAX = 80

VAGUE_NAMES = {"util", "utils", "helper", "helpers", "misc", "common"}

# Calls that reach the file system, by their full name. Pure questions about names (os.path.join) are free.
FILE_CALLS = {
    "open",
    "io.open",
    "io.FileIO",
    "numpy.fromfile",
    "numpy.memmap",
    "numpy.load",
    "numpy.save",
} | {
    f"os.{name}"
    for name in (
        "access chmod chown close copy_file_range fchmod fchown fdatasync fstat fstatvfs fsync ftruncate "
        "getxattr lchown link listdir listxattr lockf lseek lstat makedirs mkdir mkfifo open pread preadv "
        "pwrite pwritev read readlink remove removedirs rename renames replace rmdir scandir sendfile "
        "setxattr stat statvfs symlink sync truncate unlink utime walk write writev"
    ).split()
}
FILE_CALLS |= {
    f"os.path.{name}"
    for name in (
        "exists getatime getctime getmtime getsize isdir isfile islink ismount lexists realpath samefile"
    ).split()
}
FILE_MODULES = {"fcntl", "glob", "mmap", "shutil", "tempfile"}

# Methods of pathlib.Path that reach the file system and that nothing else in the package is called.
PATH_METHODS = set(
    "chmod exists hardlink_to is_dir is_file is_symlink iterdir lstat mkdir read_bytes read_text readlink "
    "rglob rmdir samefile stat symlink_to touch unlink write_bytes write_text".split()
)
# Those that other types have too: they count where the receiver is a Path by its construction or its name.
PATH_METHODS_OF_OTHERS = {"glob", "open", "rename", "replace"}
PATH_NAMES = ("path", "dir", "directory", "folder")

WALL_CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}
STOPWATCHES = {
    f"time.{name}{unit}" for name in ("monotonic", "perf_counter", "process_time") for unit in ("", "_ns")
}
STOPWATCH_PACKAGES = {"cli", "web", "broker", "commands", "spark", "runtime", "compaction"}

CODE_FROM_DATA_MODULES = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CODE_FROM_DATA_CALLS = {"eval", "exec", "compile", "__import__"}

LATE_IMPORT_PACKAGES = {"cli", "commands", "warmup", "testing"}
NUMBA_OVERLOADS = {"overload", "overload_method", "overload_attribute", "intrinsic"}

# What a user can mend says how.
ERRORS_WITH_ADVICE = {
    "UsageError",
    "DirectoryRefusedError",
    "NotALogDirectoryError",
    "DirectoryLockedError",
    "UnsafeFileError",
    "EngineError",
    "InvalidConfigError",
    "UnknownTopicError",
}
# Where the reason is among the arguments, if it is not the first.
REASON_POSITIONS = {"CorruptFileError": 2, "CorruptRecordError": 2, "LedgerError": 1}

Offence = tuple[int, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file: `parts` is its path below the package without `.py`, `tree` its syntax tree,
    `nodes` all that `ast.walk` finds in it, `imports` (line, module) of every import, however deep, and
    `references` every name and dotted name, called or only handed on, with what it refers to. Many rules look
    through them."""

    parts: tuple[str, ...]
    source: str
    tree: ast.Module
    nodes: list[ast.AST]
    imports: list[tuple[int, str]]
    origins: dict[str, str]
    references: list[tuple[ast.expr, str]]

    @property
    def package(self) -> str:
        """The module or package right below siltstone that the file is in."""
        return self.parts[0]

    def full_name(self, node: ast.expr) -> str | None:
        """What a dotted expression refers to, imports resolved: `np.load` is `numpy.load`."""
        return full_name(node, self.origins)


Rule = Callable[[Module], Iterator[Offence]]


def parse(relative_path: str, source: str) -> Module:
    """A module from its path below the package and its text."""
    tree = ast.parse(source)
    parts = Path(relative_path).with_suffix("").parts
    nodes = list(ast.walk(tree))
    origins = import_origins(nodes)
    return Module(
        parts=parts,
        source=source,
        tree=tree,
        nodes=nodes,
        imports=list(imported_modules(nodes)),
        origins=origins,
        references=[
            (node, name)
            for node in nodes
            if isinstance(node, ast.Name | ast.Attribute) and (name := full_name(node, origins)) is not None
        ],
    )


def full_name(node: ast.expr, origins: dict[str, str]) -> str | None:
    """What a dotted expression refers to; None if it is not one."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = full_name(node.value, origins)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def import_origins(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Local name → full name, for every import in the file."""
    origins: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                origins[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"
    return origins


def imported_modules(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in the file, however deep."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def functions_are_short(module: Module) -> Iterator[Offence]:
    """From `def` to the last line, docstring included, decorators not."""
    for node in module.nodes:
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            kernel = any(ast.unparse(decorator) == "kernel" for decorator in node.decorator_list)
            maximum = KERNEL_LINES_MAX if kernel else FUNCTION_LINES_MAX
            if lines > maximum:
                yield node.lineno, f"function {node.name} has {lines} lines, over {maximum}"


def functions_take_few_parameters(module: Module) -> Iterator[Offence]:
    """What needs more than so many takes a record of them; kernels a NamedTuple of arrays."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            if count > PARAMETERS_MAX:
                yield node.lineno, f"function {node.name} has {count} parameters, over {PARAMETERS_MAX}"


def modules_have_docstrings(module: Module) -> Iterator[Offence]:
    """Packages' __init__ files too."""
    if not ast.get_docstring(module.tree):
        yield 1, "module has no docstring"


def public_functions_have_docstrings(module: Module) -> Iterator[Offence]:
    """Functions at module level without a leading underscore."""
    for node in module.tree.body:
        if isinstance(node, Function) and not node.name.startswith("_") and not ast.get_docstring(node):
            yield node.lineno, f"public function {node.name} has no docstring"


def names_say_something(module: Module) -> Iterator[Offence]:
    """No module or package named after nothing in particular."""
    for part in module.parts:
        if part.strip("_0123456789") in VAGUE_NAMES:
            yield 1, f"module name {part!r} says nothing"


def files_go_through_one_door(module: Module) -> Iterator[Offence]:
    """Only base/files touches the file system."""
    if module.parts[:2] == ("base", "files"):
        return
    for line, name in module.imports:
        if name.partition(".")[0] in FILE_MODULES:
            yield line, f"file access outside base/files: import {name}"
    for node, name in module.references:
        if name in FILE_CALLS:
            yield node.lineno, f"file access outside base/files: {name}"
    for call in (node for node in module.nodes if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and is_path_access(module, call.func):
            yield call.lineno, f"file access outside base/files: .{call.func.attr}()"


def is_path_access(module: Module, method: ast.Attribute) -> bool:
    """Whether a method call reads or changes the file system through a Path."""
    receiver = (module.full_name(method.value) or "").rpartition(".")[2]
    if receiver.endswith(("files", "LogDirectory")):
        return False
    if method.attr in PATH_METHODS or method.attr == "tofile":
        return True
    if method.attr not in PATH_METHODS_OF_OTHERS:
        return False
    constructor = module.full_name(method.value.func) if isinstance(method.value, ast.Call) else None
    return constructor in ("pathlib.Path", "pathlib.PosixPath") or receiver.lower().endswith(PATH_NAMES)


def time_comes_from_the_clock(module: Module) -> Iterator[Offence]:
    """The wall clock only in base/clock.py; stopwatches only where durations are reported."""
    if module.parts == ("base", "clock"):
        return
    for node, name in module.references:
        if name in WALL_CLOCKS:
            yield node.lineno, f"wall clock outside base/clock.py: {name}"
        elif name in STOPWATCHES and module.package not in STOPWATCH_PACKAGES:
            yield node.lineno, f"stopwatch in {module.package}: {name}"


def spark_is_imported_in_one_package(module: Module) -> Iterator[Offence]:
    """pyspark and py4j are imported in siltstone/spark only."""
    for line, name in module.imports:
        if name.partition(".")[0] in ("pyspark", "py4j") and module.package != "spark":
            yield line, f"import {name} outside siltstone.spark"


def data_is_never_code(module: Module) -> Iterator[Offence]:
    """Nothing that turns bytes into code or arbitrary objects."""
    for line, name in module.imports:
        if name.partition(".")[0] in CODE_FROM_DATA_MODULES:
            yield line, f"code from data: import {name}"
    for node, name in module.references:
        if name in CODE_FROM_DATA_CALLS or name.removeprefix("builtins.") in CODE_FROM_DATA_CALLS:
            yield node.lineno, f"code from data: {name}"


def imports_are_at_the_top(module: Module) -> Iterator[Offence]:
    """Imports inside functions only in cli, commands, testing, warmup (start-up time) and overloads."""
    if module.package in LATE_IMPORT_PACKAGES:
        return
    late: dict[int, None] = {}
    for function in module.nodes:
        if isinstance(function, Function) and not is_numba_overload(function):
            late |= dict.fromkeys(import_lines(function))
    for line in late:
        yield line, "import inside a function"


def import_lines(function: Function) -> Iterator[int]:
    """The lines of the import statements inside a function."""
    return (node.lineno for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom))


def is_numba_overload(function: Function) -> bool:
    """Whether a function is an implementation that numba looks up, by its decorator."""
    calls = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    return any(
        (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) in NUMBA_OVERLOADS
        for node in calls
    )


@functools.cache
def error_kinds() -> dict[str, bool]:
    """The classes of base/errors.py: whether each, or a class that it inherits from, has an advice."""
    kinds: dict[str, bool] = {}
    for node in ast.parse((PACKAGE / "base" / "errors.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            own = any(keyword.arg == "advice" for keyword in node.keywords)
            kinds[node.name] = own or any(kinds.get(ast.unparse(base), False) for base in node.bases)
    return kinds


def errors_have_path_and_advice_apart(module: Module) -> Iterator[Offence]:
    """A reason does not begin with a path, and what a user can mend has an advice."""
    for call in (node for node in module.nodes if isinstance(node, ast.Call)):
        kind = (module.full_name(call.func) or "").rpartition(".")[2]
        if kind not in error_kinds():
            continue
        position = REASON_POSITIONS.get(kind, 0)
        reason = next((keyword.value for keyword in call.keywords if keyword.arg == "reason"), None)
        has_path = any(keyword.arg == "path" for keyword in call.keywords)
        if not has_path and begins_with_path(call.args[position] if position < len(call.args) else reason):
            yield call.lineno, f"{kind}: the reason begins with a path; pass it as path="
        has_advice = any(keyword.arg in ("advice", None) for keyword in call.keywords)
        if kind in ERRORS_WITH_ADVICE and not has_advice and not error_kinds()[kind]:
            yield call.lineno, f"{kind} has no advice"


def begins_with_path(reason: ast.expr | None) -> bool:
    """Whether a text is an f-string that begins as `{path}: `."""
    if not isinstance(reason, ast.JoinedStr) or len(reason.values) < 2:
        return False
    first, second = reason.values[:2]
    return (
        isinstance(first, ast.FormattedValue)
        and not ast.unparse(first.value).isupper()
        and isinstance(second, ast.Constant)
        and str(second.value).startswith(": ")
    )


RULES: tuple[Rule, ...] = (
    errors_have_path_and_advice_apart,
    functions_take_few_parameters,
    functions_are_short,
    modules_have_docstrings,
    public_functions_have_docstrings,
    names_say_something,
    files_go_through_one_door,
    time_comes_from_the_clock,
    spark_is_imported_in_one_package,
    data_is_never_code,
    imports_are_at_the_top,
)


@functools.cache
def package_modules() -> list[Module]:
    """Every source file of the package, parsed."""
    return [
        parse(str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    modules = package_modules()
    assert modules, f"no source found in {PACKAGE}"
    offences = [
        f"src/siltstone/{'/'.join(module.parts)}.py:{line}: {text}"
        for module in modules
        for line, text in rule(module)
    ]
    assert not offences, "\n" + "\n".join(offences)


def test_no_public_class_name_stands_for_two_things() -> None:
    places: dict[str, list[str]] = {}
    for module in package_modules():
        if module.parts[:3] == ("broker", "wire", "messages"):
            continue  # Kafka's own names, each within its message
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append("/".join(module.parts))
    assert len(places) > 200
    assert {
        name: topic_partition for name, topic_partition in places.items() if len(topic_partition) > 1
    } == {}


LONG_FUNCTION = '"""Doc."""\ndef _f():\n' + "    x = 1\n" * FUNCTION_LINES_MAX

MANY_PARAMETERS = ", ".join(f"p{number}" for number in range(11))

BAD_SNIPPETS: list[tuple[Rule, str, str]] = [
    (errors_have_path_and_advice_apart, "base/a.py", "raise UsageError('no such flag')"),
    (errors_have_path_and_advice_apart, "verify/a.py", "raise errors.EngineError(f'{path}: {why}')"),
    (errors_have_path_and_advice_apart, "base/a.py", "raise UsageError(f'{path}: is wrong', advice='do')"),
    (errors_have_path_and_advice_apart, "base/a.py", "raise CheckFailedError(reason=f'{path}: is wrong')"),
    (errors_have_path_and_advice_apart, "base/a.py", "raise CorruptFileError(path, 0, f'{path}: is wrong')"),
    (errors_have_path_and_advice_apart, "base/a.py", "raise LedgerError(path, f'{name}: is gone')"),
    (functions_take_few_parameters, "log/a.py", f'"""Doc."""\ndef _f({MANY_PARAMETERS}):\n    return 1\n'),
    (functions_take_few_parameters, "log/a.py", f'"""Doc."""\ndef _f(*, {MANY_PARAMETERS}):\n    return 1\n'),
    (functions_are_short, "log/a.py", LONG_FUNCTION),
    (functions_are_short, "log/a.py", LONG_FUNCTION.replace("def", "async def")),
    (modules_have_docstrings, "log/__init__.py", ""),
    (modules_have_docstrings, "log/a.py", "x = 1\n"),
    (public_functions_have_docstrings, "log/a.py", "def f() -> None:\n    pass\n"),
    (names_say_something, "log/utils.py", ""),
    (names_say_something, "helpers/log.py", ""),
    (names_say_something, "log/_common2.py", ""),
    (files_go_through_one_door, "log/a.py", "open('x')"),
    (files_go_through_one_door, "log/files.py", "open('x')"),
    (files_go_through_one_door, "log/a.py", "import os\nos.open('x', 0)"),
    (files_go_through_one_door, "log/a.py", "import os as system\nsystem.rename('x', 'y')"),
    (files_go_through_one_door, "log/a.py", "from os import unlink as drop\ndrop('x')"),
    (files_go_through_one_door, "log/a.py", "import os\nremove = os.remove"),
    (files_go_through_one_door, "log/a.py", "import os\nos.path.exists('x')"),
    (files_go_through_one_door, "log/a.py", "import shutil"),
    (files_go_through_one_door, "log/a.py", "from tempfile import mkdtemp"),
    (files_go_through_one_door, "log/a.py", "import numpy as np\nnp.fromfile('x')"),
    (files_go_through_one_door, "log/a.py", "array.tofile('x')"),
    (files_go_through_one_door, "log/a.py", "segment.write_bytes(b'')"),
    (files_go_through_one_door, "log/a.py", "checkpoint.read_text()"),
    (files_go_through_one_door, "log/a.py", "from pathlib import Path\nPath('x').open()"),
    (files_go_through_one_door, "log/a.py", "self.log_path.rename(target)"),
    (time_comes_from_the_clock, "log/a.py", "import time\ntime.time()"),
    (time_comes_from_the_clock, "cli/a.py", "from time import time as now\nnow()"),
    (time_comes_from_the_clock, "log/clock.py", "import time\ntime.time_ns()"),
    (time_comes_from_the_clock, "log/a.py", "import datetime\ndatetime.datetime.now()"),
    (time_comes_from_the_clock, "log/a.py", "from datetime import datetime\nclock = datetime.now"),
    (time_comes_from_the_clock, "log/a.py", "import time\ntime.perf_counter()"),
    (time_comes_from_the_clock, "records/a.py", "from time import monotonic_ns\nmonotonic_ns()"),
    (spark_is_imported_in_one_package, "compaction/a.py", "import pyspark"),
    (
        spark_is_imported_in_one_package,
        "commands/clean.py",
        "def f():\n    from pyspark.sql import SparkSession",
    ),
    (data_is_never_code, "log/a.py", "import pickle"),
    (data_is_never_code, "log/a.py", "from marshal import loads"),
    (data_is_never_code, "log/a.py", "eval('1')"),
    (data_is_never_code, "log/a.py", "import builtins\nbuiltins.exec('1')"),
    (imports_are_at_the_top, "log/a.py", "def f():\n    import json"),
    (imports_are_at_the_top, "log/a.py", "class C:\n    def f(self):\n        from json import loads"),
]

GOOD_SNIPPETS = {
    "log/a.py": '"""Doc."""\nimport os\nname = os.path.join("a", "b".replace("a", "b"))\npid = os.getpid()\n',
    "log/b.py": '"""Doc."""\nfrom siltstone import files\nfiles.unlink("x")\nself._files.exists("x")\n',
    "log/d.py": '"""Doc."""\nlog.open()\nname.replace("a", "b")\n',
    "log/c.py": '"""Doc."""\ndef _f():\n    pass\n\ndef g():\n    """Doc."""\n    re.compile("x")\n',
    "base/files/a.py": '"""Doc."""\nimport os\nos.rename("x", "y")\nopen("x")\n',
    "base/clock.py": '"""Doc."""\nimport time\ntime.time_ns()\n',
    "base/b.py": (
        '"""Doc."""\nraise UsageError(f"{name} is wrong", path=path, advice="do")\nraise error\n'
        'raise NotALogDirectoryError("no such directory", path=path)\n'
        'raise CorruptFileError(f"{name}: x", 0, f"{number} is too large")\n'
    ),
    "compaction/a.py": '"""Doc."""\nimport time\ntime.perf_counter()\n',
    "spark/a.py": '"""Doc."""\nfrom pyspark.sql import SparkSession\n',
    "commands/a.py": '"""Doc."""\ndef f():\n    """Doc."""\n    from siltstone.spark import clean\n',
    "records/a.py": '"""Doc."""\n@overload(crc)\ndef _crc(data):\n    import llvmlite\n',
}


@pytest.mark.parametrize(("rule", "path", "source"), BAD_SNIPPETS)
def test_the_rule_finds_the_offence(rule: Rule, path: str, source: str) -> None:
    assert list(rule(parse(path, source)))


@pytest.mark.parametrize("path", GOOD_SNIPPETS)
def test_no_rule_finds_an_offence_in_good_code(path: str) -> None:
    module = parse(path, GOOD_SNIPPETS[path])
    assert [offence for rule in RULES for offence in rule(module)] == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _, _ in BAD_SNIPPETS} == set(RULES)


def test_a_function_at_the_limit_passes() -> None:
    assert not list(functions_are_short(parse("a.py", LONG_FUNCTION.removesuffix("    x = 1\n"))))
