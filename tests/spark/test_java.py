"""Java that Siltstone starts itself: only where its command is known, and then by that of Spark's scripts."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.errors import EngineError
from siltstone.spark import class_archive, java
from siltstone.spark.settings import DRIVER_MEMORY, driver_java_options
from tests.support.errors import raises_error

OPTIONS = ' "-Dsome.path=/a folder/file" -Dother=1'


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of Spark, and no Java that waits afterwards."""
    for name in [name for name in os.environ if name.startswith(java._CHANGING)]:
        monkeypatch.delenv(name)
    yield
    if (started := java.take()) is not None:
        java.terminate(started.process)
        started.errors.close()


def test_the_command_is_that_of_sparks_scripts(tmp_path: Path) -> None:
    home = class_archive.INSTALLED_SPARK
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": driver_java_options(OPTIONS),
    }
    words = [word for setting in settings.items() for word in ("--conf", "=".join(setting))]
    launcher = ["-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main", java._SUBMIT[0]]
    completed = subprocess.run(
        [java.java_command(), *launcher, *words, "pyspark-shell"],
        capture_output=True,
        check=True,
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
    )
    theirs = completed.stdout.decode().strip("\n\0").split("\0")
    assert Path(theirs[0]).name == "java"
    ours = java._command(OPTIONS)
    assert "-Dsome.path=/a folder/file" in ours
    # Settings are Python's to tell, once there is a session.
    assert [word for word in theirs[1:] if word not in words] == ours[1:]


@pytest.mark.parametrize("master", [None, "local", "local[2]", "local[*]"])
def test_java_is_started_for_masters_on_this_machine(master: str | None) -> None:
    assert java.can_start(master or "local[*]", {})


@pytest.mark.parametrize(
    "master", ["local-cluster[1,1,1024]", "spark://host:7077", "yarn", "sc://host:15002"]
)
def test_spark_starts_java_for_other_masters(master: str) -> None:
    assert not java.can_start(master, {})


def test_spark_starts_java_for_settings_of_the_user() -> None:
    assert not java.can_start("local[*]", {"spark.driver.memory": "4g"})


@pytest.mark.parametrize(
    "name", ["SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR"]
)
def test_spark_starts_java_with_a_variable_that_changes_the_command(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "/somewhere")
    assert not java.can_start("local[*]", {})


def test_spark_starts_java_where_spark_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    assert not java.can_start("local[*]", {})  # another Spark
    (tmp_path / "jars" / java._CORE_JAR).touch()
    assert java.can_start("local[*]", {})
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh.template").touch()
    assert java.can_start("local[*]", {})
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    assert not java.can_start("local[*]", {})


@pytest.mark.long  # every session of the tests starts such a one
def test_java_listens_and_ends_with_this_process() -> None:
    started = java.start("")
    assert java.start("") is started
    assert stat.S_IMODE(started.folder.stat().st_mode) == 0o700
    port, secret = started.connection()
    assert 0 < port < 1 << 16 and len(secret) >= 32
    words = Path(f"/proc/{started.process.pid}/cmdline").read_bytes().split(b"\0")
    assert not any(secret.encode() in word for word in words)
    assert started.process.stdin is not None
    started.process.stdin.close()
    assert started.process.wait(60) == 0


def test_java_that_ends_at_once_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started = java.start(" -Xmx1")
    with pytest.raises(RuntimeError, match="Java ended"):
        started.connection()
    started.errors.seek(0)
    assert b"heap" in started.errors.read()


def test_java_is_ended_where_the_session_needs_another() -> None:
    started = java.start("")
    assert java.prepare("spark://host:7077", {}) is False
    assert java.take() is None and started.process.wait(60) != 0
    started.errors.close()


def installation(folder: Path, release: str | None, says: str) -> Path:
    """A Java that only tells its version, with a ``release`` file or without."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho {shlex.quote(says)} >&2\n")
    command.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(release)
    return folder


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.1"\n', "not asked", "17.0.1"),
        (None, 'openjdk version "21.0.2" 2024-01-16', "21.0.2"),
        ('NAME="an operating system"\n', 'openjdk version "21.0.2" 2024-01-16', "21.0.2"),
    ],
)
def test_the_version_of_java_is_in_its_release_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, says: str, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(installation(tmp_path / "jdk", release, says)))
    assert version in java.java_version()


@pytest.mark.parametrize(
    ("release", "says"),
    [('JAVA_VERSION="11.0.20"\n', ""), (None, 'java version "1.8.0_392"'), (None, "no such thing")],
)
def test_java_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, says: str
) -> None:
    home = installation(tmp_path / "jdk", release, says)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with raises_error(EngineError, path=str(home / "bin" / "java"), advice="Java 17"):
        java.java_version()
