"""A virtual environment with the connector's Spark, and the connector's jars beside it; made once, then kept.

::

    FOLDER/venv/            pyspark of the version in connector.xml
    FOLDER/jars/            the four artifacts of connector.xml, without what they drag in: Spark has the rest

Needs pip, mvn and what they fetch from.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

POM = Path(__file__).with_name("connector.xml")
_SPACE = "{http://maven.apache.org/POM/4.0.0}"
FETCH_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The interpreter that has the connector's Spark, and the jars that Spark is to load."""

    python: Path
    jars: tuple[Path, ...]
    spark_version: str


def make_environment(folder: Path) -> Environment:
    """Fetch what is not there yet. Raises subprocess.CalledProcessError, FileNotFoundError without mvn."""
    spark_version = ElementTree.parse(POM).findtext(f"{_SPACE}properties/{_SPACE}spark.version")
    assert spark_version, f"{POM.name}: no spark.version"
    venv, jars = folder / f"venv-{spark_version}", folder / f"jars-{spark_version}"
    if not venv.is_dir():
        _make_venv(venv, spark_version)
    if not jars.is_dir():
        _fetch_jars(jars)
    return Environment(
        python=venv / "bin" / "python", jars=tuple(sorted(jars.glob("*.jar"))), spark_version=spark_version
    )


def _make_venv(venv: Path, version: str) -> None:
    """A virtual environment knows its own path, so it is made where it stays, and removed when that fails."""
    try:
        _run([sys.executable, "-m", "venv", str(venv)])
        _run([str(venv / "bin" / "pip"), "install", "--quiet", f"pyspark=={version}", "psutil"])
    except BaseException:
        shutil.rmtree(venv, ignore_errors=True)
        raise


def _fetch_jars(jars: Path) -> None:
    partial = jars.with_name(f"{jars.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={partial}"]
    _run(["mvn", "-q", "-B", "-f", str(POM), *goal])
    partial.rename(jars)


def _run(command: list[str]) -> None:
    # What is fetched is told on standard error: standard output may be one JSON document.
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=FETCH_TIMEOUT_S)
