"""The installed PySpark against ``spark.internals``: its version, and what Siltstone uses of its insides."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import socketserver
from pathlib import Path
from typing import Any

import pytest
from pyspark import accumulators
from pyspark.sql.datasource import DataSourceReader

import siltstone
from siltstone.spark import daemon, internals
from siltstone.spark.source import _PushFilters

ADVICE = (
    "see that tests/spark passes with it, then add the version to siltstone.spark.internals.CHECKED_VERSIONS"
)


def holder_of(name: str) -> Any:
    """``module:Class.function``, or a module."""
    module, _, path = name.partition(":")
    holder: Any = importlib.import_module(module)
    for part in path.split(".") if path else ():
        holder = getattr(holder, part)
    return holder


@pytest.mark.parametrize("package", internals.CHECKED_VERSIONS)
def test_the_installed_version_is_one_that_was_checked(package: str) -> None:
    version = importlib.metadata.version(package)
    assert version in internals.CHECKED_VERSIONS[package], f"{package} {version} was not checked: {ADVICE}"


@pytest.mark.parametrize("holder", internals.PRIVATE_USES)
def test_the_source_around_each_private_use_is_as_it_was(holder: str) -> None:
    source = inspect.getsource(holder_of(holder))
    for text, purpose in internals.PRIVATE_USES[holder].items():
        assert text in source, f"{holder} changed; Siltstone uses it for: {purpose}"


def test_the_parameters_of_functions_are_as_they_were() -> None:
    for name, parameters in {
        "pyspark.core.context:SparkContext._ensure_initialized": ["instance", "gateway", "conf"],
        "pyspark.java_gateway:launch_gateway": ["conf", "popen_kwargs"],
        "pyspark.daemon:manager": [],
        "pyspark.worker:main": ["infile", "outfile"],
        "pyspark.sql.datasource:DataSourceReader.pushFilters": ["self", "filters"],
        "pyspark.sql.pandas.types:from_arrow_schema": ["arrow_schema", "prefer_timestamp_ntz"],
    }.items():
        assert list(inspect.signature(holder_of(name)).parameters) == parameters, name


def test_accumulators_errors_are_told_by_a_method_of_socketserver() -> None:
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        assert issubclass(server, socketserver.BaseServer) and "handle_error" not in vars(server)


def test_what_the_daemon_and_the_reader_stand_in_for_exists() -> None:
    assert importlib.util.find_spec(daemon.WORKER) is not None
    assert _PushFilters.__func__ is DataSourceReader.pushFilters


def test_nothing_else_uses_an_internal() -> None:
    """Names with an underscore in front, of Spark's: in ``internals`` only."""
    texts = [
        *internals.PRIVATE_USES,
        *(source for private_use in internals.PRIVATE_USES.values() for source in private_use),
    ]
    private = set(re.findall(r"\b_[a-z]\w+", " ".join(texts)))
    private -= {"_initialize_context", "_do_init"}
    assert {"_gateway", "_jvm", "_jsc", "_ensure_initialized", "_instantiatedSession"} <= private
    folder = Path(siltstone.__file__).parent / "spark"
    for path in folder.rglob("*.py"):
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and not (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            ):
                assert node.attr not in private, f"{path.name}:{node.lineno}: {node.attr}"
