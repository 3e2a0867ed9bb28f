"""Every type that the package decodes is prepared for msgspec before two threads decode it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import siltstone
from siltstone.base.decoded_types import PREPARED

PACKAGE = Path(siltstone.__file__).parent
CALLS = ("msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert", "report_of", ".receive", ".call")
"""Functions with a type among their arguments: msgspec's, of ``spark.rows``, of ``broker.calls``."""
RACE = """
import dataclasses, sys, threading
import msgspec
from siltstone.base.decoded_types import decoded_in_threads

sys.setswitchinterval(1e-6)
fields = [(f"field_{number}", "int | None") for number in range(30)]
for number in range(60):
    inner = [dataclasses.make_dataclass(f"Inner{number}{side}", fields) for side in "ab"]
    outer = dataclasses.make_dataclass(f"Outer{number}", [("a", inner[0]), ("b", inner[1])])
    decoded = decoded_in_threads(outer) if sys.argv[1:] == ["prepared"] else outer
    data = {side: {name: 1 for name, _ in fields} for side in "ab"}
    meeting = threading.Barrier(3)

    def decode(decoded=decoded, data=data, meeting=meeting):
        meeting.wait()
        msgspec.convert(data, decoded)

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def decoded_types(path: Path) -> Iterator[type]:
    """The classes of the package that a module gives to a function that decodes."""
    module = None
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        if not ast.unparse(node.func).endswith(CALLS):
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "type")]
        for argument in (inner for expression in arguments for inner in ast.walk(expression)):
            if isinstance(argument, ast.Name):
                dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                module = module or importlib.import_module(dotted.removesuffix(".__init__"))
                value = getattr(module, argument.id, None)
                if isinstance(value, type) and value.__module__.startswith("siltstone"):
                    yield value


def is_decoded(kind: type) -> bool:
    """Is ``kind`` a class of which msgspec inspects the fields?"""
    return hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__")


def test_every_type_that_is_decoded_is_prepared() -> None:
    decoded = {
        kind
        for path in sorted(PACKAGE.rglob("*.py"))
        if "msgspec" in (text := path.read_text(encoding="utf-8")) or "report_of" in text or ".call(" in text
        for kind in decoded_types(path)
        if is_decoded(kind)
    }
    assert len(decoded) > 20
    assert decoded - PREPARED == set()


def test_threads_decode_a_prepared_type_for_the_first_time() -> None:
    """With a type that is not prepared most runs of the script end by SIGSEGV."""
    completed = subprocess.run(
        [sys.executable, "-c", RACE, "prepared"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
