"""Jars from Maven, fetched once: `.cache/NAME/VERSION/libs` in the repository, which git ignores.

Kafka's version and artifacts stand in `pom.xml` beside this file, those of Pulsar's client in its own.
Without Java or mvn the tests fail with a line that says what to install; they are not skipped.

`programs-HASH` beside Kafka's jars has the compiled Java programs of this folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
CACHE = HERE.parents[2] / ".cache"
LOG_CONFIG = HERE / "log4j2.properties"
DOWNLOAD_TIMEOUT_S = 600
PROGRAMS = ("Tools.java", "Brokers.java", "Clients.java", "ManyPartitions.java")
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
NO_VERIFIER = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""Java does not verify the classes that it loads, which takes a fifth of the time where it lives shortly."""


class KafkaSetupError(RuntimeError):
    """The machine lacks what a real broker needs; the message says what to install."""


def version_in(pom: Path, name: str) -> str:
    """The property `NAME.version` of a `pom.xml`."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    version = ElementTree.parse(pom).findtext(f"{space}properties/{space}{name}.version")
    assert version, f"{pom}: no {name}.version"
    return version


def kafka_version() -> str:
    """The version that `pom.xml` names."""
    return version_in(POM, "kafka")


def java() -> str:
    """The `java` to run: JAVA_HOME's, else the PATH's."""
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which(f"{home}/bin/java") if home else None
    executable = executable or shutil.which("java")
    if executable is None:
        raise KafkaSetupError("tests/kafka: java not found; install a Java 17 runtime (or set JAVA_HOME)")
    return executable


def kafka_libs() -> Path:
    """The folder of Kafka's jars."""
    return libs_of(POM, "kafka")


def pulsar_libs() -> Path:
    """The folder of the jars of Pulsar's administration client."""
    return libs_of(HERE.with_name("pulsar") / "pom.xml", "pulsar")


def tiered_storage_libs() -> Path:
    """The folder of the jars of Kafka's own `LocalTieredStorage`."""
    return libs_of(HERE / "tiered" / "pom.xml", "tiered-storage")


def libs_of(pom: Path, name: str) -> Path:
    """The folder of the jars that a `pom.xml` names, fetched on first use, by one process, and renamed into
    place when complete."""
    libs = CACHE / name / version_in(pom, name) / "libs"
    if not libs.is_dir():
        _ignore_cache()
        with (CACHE / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not libs.is_dir():
                _fetch(pom, libs)
    return libs


def programs() -> Path:
    """The folder of `PROGRAMS`, compiled on first use, by one process, and renamed into place."""
    libs, sources = kafka_libs(), [HERE / name for name in PROGRAMS]
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = libs.with_name(f"programs-{key}")
    if not classes.is_dir():
        with (CACHE / "programs.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not classes.is_dir():
                _compile(sources, classes)
    return classes


def compile_command(sources: Sequence[Path], class_path: str, target: Path) -> list[str]:
    """The command line that compiles Java's sources into a folder."""
    javac = shutil.which("javac", path=f"{Path(java()).resolve().parent}{os.pathsep}{os.environ['PATH']}")
    if javac is None:
        raise KafkaSetupError("tests: javac not found; install a JDK (openjdk-17-jdk-headless)")
    flags = [f"-J{flag}" for flag in JVM_FLAGS]
    return [javac, *flags, "-cp", class_path, "-d", str(target), *map(str, sources)]


def _compile(sources: Sequence[Path], classes: Path) -> None:
    partial = classes.with_name(f"programs.partial.{os.getpid()}")
    command = compile_command(sources, f"{kafka_libs()}/*", partial)
    completed = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
    )
    assert completed.returncode == 0, completed.stderr
    partial.rename(classes)


def java_command(
    main: str,
    *args: str,
    heap: str = "256m",
    log_level: str = "WARN",
    flags: Sequence[str] = JVM_FLAGS,
    libs: Path | None = None,
) -> list[str]:
    """The command line that runs one of Kafka's main classes, or a source file, logging to standard error.

    ``libs``: the folder of other jars than Kafka's.
    """
    logging = (f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}", f"-Dkafka.tests.log.level={log_level}")
    classes = f"{libs}/*" if libs else f"{kafka_libs()}/*:{programs()}"
    return [java(), f"-Xmx{heap}", *flags, *logging, "-cp", classes, main, *args]


def run_download(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run what fetches packages. Maven's short Java has flags with which it takes half of the processor's
    time."""
    options = f"{os.environ.get('MAVEN_OPTS', '')} {JVM_FLAGS[0]} {JVM_FLAGS[1]}"
    environment = {**os.environ, "MAVEN_OPTS": options.strip()}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
        env=environment,
    )


def _ignore_cache() -> None:
    CACHE.mkdir(exist_ok=True)
    ignore = CACHE / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def _fetch(pom: Path, libs: Path) -> None:
    java()
    mvn = shutil.which("mvn")
    what = f"{libs.parent.parent.name} {libs.parent.name}"
    if mvn is None:
        raise KafkaSetupError(f"tests/kafka: mvn not found; install Maven (it fetches {what} once)")
    partial = libs.with_name(f"libs.partial.{os.getpid()}")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    completed = run_download([mvn, "-q", "-B", "-f", str(pom), *goal])
    if completed.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise KafkaSetupError(f"tests/kafka: mvn could not fetch {what}:\n{completed.stdout[-2000:]}")
    partial.rename(libs)
