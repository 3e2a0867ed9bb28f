"""Starts Java for a session on this machine, while Python imports what the session needs.

::

    start ─► Java loads Spark and opens its gateway ─────────┬─► session ─► jobs
             Python imports PySpark, numba, pandas ──────────┘

PySpark starts a shell script, a Java that computes a command, and the Java of that command, one after
another, and waits for them. The command is known here if nothing changes it: no file in Spark's ``conf``, no
variable of Spark or Hadoop, and no setting of the user (``can_start``). Otherwise PySpark starts Java.

Nothing of PySpark is imported here. The command line, which every user can read, has no secret: Java writes
that of its gateway to a file in a folder of this user.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import signal
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from siltstone.base import files, interruption
from siltstone.base.errors import EngineError
from siltstone.base.records import kernel
from siltstone.spark import class_archive, forked_daemon
from siltstone.spark.settings import DEFAULT_MASTER, DRIVER_MEMORY, driver_java_options, is_local

OLDEST_JAVA = 17
_JAVA_ADVICE = "Spark needs Java 17 or 21: install a JRE or set JAVA_HOME, or pass --engine process"
_TERMINATE_SECONDS = 1.5
"""How long a terminated Java may take to remove its temporary folders, before it is killed."""
_POLL_SECONDS = 0.01

# The command of Spark 4.3, as its launcher computes it.

_CORE_JAR, _SCALA = "spark-core_2.13-4.3.0.jar", "2.13"
# Packages that ``--add-opens`` opens.
_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *(f"java.base/java.util{name}" for name in ("", ".concurrent", ".concurrent.atomic")),
    *(f"java.base/{name}" for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs")),
    *(f"java.base/sun.{name}" for name in ("security.action", "util.calendar")),
    "java.security.jgss/sun.security.krb5",
)
_JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
_SUBMIT = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
"""The main class, and its argument: the program that it starts is only the gateway for PySpark."""
_KNOWN_VARIABLES = {
    *("SPARK_HOME", "SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS", "SPARK_USER", "PYSPARK_PYTHON"),
    *("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"),  # PySpark sets them as it starts
}
"""Environment variables that do not change the command, unlike others that begin with a part of
``_CHANGING``."""
_CHANGING = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_")
_CONNECTION_FILE, _DAEMON_SOCKET = "connection", "daemon"
_CONNECTION = struct.Struct(">ii")  # port, bytes of the secret that follows


def java_command() -> str:
    """The ``java`` that Spark would start. Raises EngineError, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else files.find_program("java")
    if command is None or files.find_program(command) is None:
        raise EngineError("Java is missing", advice=_JAVA_ADVICE)
    return command


def java_version() -> str:
    """A text that tells this Java from others: its ``release`` file, or else the output of ``java -version``,
    which takes a start of Java. Raises EngineError for a Java that is too old for Spark 4."""
    command = java_command()
    text = _release(command)
    if text is None:
        process = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
        text = process.stderr + process.stdout
        if process.returncode:
            raise _unusable_error(command, process.stderr or process.stdout)
    version = re.search(r'(?:version |JAVA_VERSION=)"(\d+)', text)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise _unusable_error(command, text)
    return text


def _unusable_error(command: str, text: str) -> EngineError:
    lines = text.strip().splitlines()
    says = lines[0] if lines else "nothing"
    reason = f"this is not a Java that Spark can use; it says: {says}"
    return EngineError(reason, path=command, advice=_JAVA_ADVICE)


def _release(command: str) -> str | None:
    """The ``release`` file of the installation that ``command`` is in; None without one."""
    program = Path(files.find_program(command) or command)
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = files.read_bytes(program.resolve().parents[1] / "release").decode()
        return text if "JAVA_VERSION=" in text else None
    return None


@dataclass(slots=True, kw_only=True)
class Java:
    """A Java process that was started here. ``folder``: a folder of this user, with Java's connection file
    and, before a job, the daemon's socket; ``errors``: a file with what Java prints."""

    process: subprocess.Popen[bytes]
    folder: Path
    errors: IO[bytes]

    @property
    def daemon_socket(self) -> str:
        """The path of the socket of the daemon of Python workers, which is forked before the session needs it
        (``forked_daemon``)."""
        return str(self.folder / _DAEMON_SOCKET)

    def connection(self) -> tuple[int, str]:
        """(Port, secret) of its gateway; waits until Java listens. Raises RuntimeError if Java ends first."""
        path = self.folder / _CONNECTION_FILE
        while not files.exists(path):
            interruption.current().check()
            if self.process.poll() is not None:
                raise RuntimeError("Java ended")
            time.sleep(_POLL_SECONDS)
        data = files.read_bytes(path)
        port, size = _CONNECTION.unpack_from(data)
        return port, data[_CONNECTION.size :][:size].decode()


_waiting: list[Java] = []
"""The Java that waits for its session: none or one."""


def prepare(master: str | None, settings: Mapping[str, str], java_options: str | None = None) -> bool:
    """Begin to start a session with these settings of the user, if its Java's command is known: start Java
    and, if this is a command's process, fork the daemon of its Python workers (``forked_daemon``). Returns
    whether a Java waits. ``java_options``: in place of those that make Java use the class archive. Raises
    EngineError, OSError."""
    if can_start(master or DEFAULT_MASTER, settings):
        forked_daemon.fork(start(java_options).daemon_socket)
        kernel.load()  # while Java starts
    elif (other := take()) is not None:  # one that was started for another session
        terminate(other.process)
    return bool(_waiting)


def can_start(master: str | None, settings: Mapping[str, str]) -> bool:
    """Is Java's command known for a session on ``master`` with these settings of the user?"""
    changing = {name for name in os.environ if name.startswith(_CHANGING)} - _KNOWN_VARIABLES
    if settings or changing or not is_local(master):
        return False
    home = class_archive.spark_home()
    if not files.exists(home / "jars" / _CORE_JAR):
        return False
    with contextlib.suppress(FileNotFoundError):
        # As Spark is shipped: with templates, and no file that changes a setting.
        return all(name.endswith(".template") for name in files.list_files(home / "conf"))
    return True


def start(java_options: str | None = None) -> Java:
    """Start Java as ``prepare`` does, unless one waits for its session already."""
    if _waiting:
        return _waiting[0]
    version = java_version()
    further = class_archive.java_options(version) if java_options is None else java_options
    temporary, errors = files.temporary_directory("siltstone-java-"), files.temporary_file()
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    process = subprocess.Popen(
        _command(further),
        stdin=subprocess.PIPE,  # Java ends when this process does
        stdout=errors,
        stderr=errors,
        env=_environment(folder),
        process_group=0,
    )
    interruption.current().on_signal(lambda: terminate(process))
    _waiting.append(Java(process=process, folder=folder, errors=errors))
    return _waiting[0]


def take() -> Java | None:
    """Remove and return the Java that waits for its session; None if there is none."""
    return _waiting.pop() if _waiting else None


def _command(further: str) -> list[str]:
    """The command of Java, as Spark's scripts compute it; ``further``: more options of Java, as text."""
    home = class_archive.spark_home()
    jars = sorted(files.list_files(home / "jars"))
    logging = next(name for name in jars if name.startswith("slf4j-api-"))
    # The class path is that of Spark's scripts, since a class archive serves only the one it was made with.
    path = os.pathsep.join(str(home / name) for name in ("conf", f"jars/{logging}", "jars/*"))
    options = shlex.split(driver_java_options(further))
    return [java_command(), "-cp", path, f"-Xmx{DRIVER_MEMORY}", *options, *_JAVA_OPTIONS, *_SUBMIT]


def _environment(folder: Path) -> dict[str, str]:
    """Java's environment: this process's, the variables that Spark's scripts and PySpark set, and the
    daemon's."""
    settings = {
        "SPARK_HOME": str(class_archive.spark_home()),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "SPARK_SCALA_VERSION": _SCALA,
        "SPARK_ENV_LOADED": "1",
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / _CONNECTION_FILE),
        forked_daemon.VARIABLE: str(folder / _DAEMON_SOCKET),
    }
    return {**os.environ, **settings}


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate Java, and the Python workers with it; kill it after ``_TERMINATE_SECONDS``."""
    if process.poll() is not None:
        return
    signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE_SECONDS)
    signal_group(process, signal.SIGKILL)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to all processes of the group that ``process`` leads, or led before it ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
