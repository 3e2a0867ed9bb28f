"""What ``import siltstone as st`` offers: names, help, completion and types."""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.errors import SiltstoneError
from tests.commands.test_library_page import PROGRAM as PAGES_PROGRAM

PROGRAM = Path(__file__).parent / "support" / "typed_program.py"
PYRIGHT = Path(sys.executable).parent / "basedpyright"
SOURCE = Path(st.__file__).parent.parent


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert dir(st) == sorted([*st.__all__, "__version__"])
    assert {"Log", "open", "clean", "verify", "errors", "NewRecord", "CleanRequest"} <= set(st.__all__)


@pytest.mark.parametrize("name", st.__all__)
def test_every_public_name_is_there_with_a_docstring(name: str) -> None:
    value = getattr(st, name)
    assert (inspect.getdoc(value) or "").strip(), name


def test_every_public_method_has_a_docstring() -> None:
    for name in st.__all__:
        value = getattr(st, name)
        if inspect.isclass(value) and value.__module__.startswith("siltstone"):
            for method, member in vars(value).items():
                if not method.startswith("_") and (callable(member) or isinstance(member, property)):
                    assert inspect.getdoc(getattr(value, method)), f"{name}.{method}"


def test_help_shows_signatures_and_docstrings(capsys: pytest.CaptureFixture[str]) -> None:
    help(st)
    help(st.open)
    shown = capsys.readouterr().out
    assert "st.open(" in shown and "read-only, without a lock" in shown


def test_errors_are_reachable_from_the_package() -> None:
    assert (
        issubclass(st.errors.DirectoryLockedError, st.SiltstoneError) and st.SiltstoneError is SiltstoneError
    )
    for error in st.errors.SiltstoneError.__subclasses__():
        assert getattr(st.errors, error.__name__, error) is error


def test_verify_is_the_function_whatever_is_imported() -> None:
    script = (
        "import siltstone.verify.findings, siltstone as st; assert st.verify.__name__ == 'verify', st.verify"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_package_says_that_it_has_types() -> None:
    assert (SOURCE / "siltstone" / "py.typed").exists()


def checked(*command: str | Path, cwd: Path) -> str:
    """What a type checker prints about the program, as a user's, outside of this repository."""
    program = cwd / "program.py"
    shutil.copy(PROGRAM, program)
    environment = {**os.environ, "MYPYPATH": "", "PYTHONPATH": str(SOURCE)}
    completed = subprocess.run(
        [*command, program], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    return completed.stdout + completed.stderr


def expected() -> list[str]:
    """The types that the program's comments expect of ``reveal_type``, in order."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    return [line.partition("# reveals: ")[2] for line in lines if "# reveals: " in line]


STRICT_BUT_FOR_THE_PAGE = """
[mypy]
strict = true
[mypy-page]
disallow_untyped_defs = false
disallow_untyped_calls = false
[mypy-siltstone.testing]
implicit_reexport = true
"""


@pytest.mark.long  # make lint runs mypy on the package, and pyright reads the same programs in every run
def test_mypy_sees_real_types(tmp_path: Path) -> None:
    """And none of the program of ``docs/library.md`` is wrong."""
    page = tmp_path / "page.py"
    page.write_text(PAGES_PROGRAM, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(STRICT_BUT_FOR_THE_PAGE, encoding="utf-8")
    command = (sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", page)
    printed = checked(*command, cwd=tmp_path)
    errors = [line for line in printed.splitlines() if ": error:" in line]
    assert len(errors) == 1 and "no_such_name" in errors[0], printed
    revealed = [line.split('"')[1] for line in printed.splitlines() if "Revealed type is" in line]
    assert [text.replace("builtins.", "") for text in revealed] == expected()


@pytest.mark.skipif(not PYRIGHT.exists(), reason="basedpyright is not installed")
def test_pyright_sees_real_types(tmp_path: Path) -> None:
    printed = checked(PYRIGHT, "--pythonpath", sys.executable, cwd=tmp_path)
    errors = [line for line in printed.splitlines() if " error: " in line]
    assert len(errors) == 1 and "no_such_name" in errors[0], printed
    revealed = [line.partition(" is ")[2] for line in printed.splitlines() if "information: Type of " in line]
    assert len(revealed) == len(expected()) and not {'"Unknown"', '"Any"'} & set(revealed), printed


def test_a_function_that_uses_the_package_can_be_sent_to_spark() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    namespace: dict[str, object] = {"st": st, "__name__": "__main__"}
    exec("def version(): return st.__version__, st.verify", namespace)
    assert pickle.loads(cloudpickle.dumps(namespace["version"]))() == (st.__version__, st.verify)
