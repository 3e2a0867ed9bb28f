"""Starts and stops Spark sessions.

The default master is ``local[*]``. On other masters, executors are processes of their own, possibly on other
machines: they get this package as a zip, and a probe shows whether they see the same files. Before a start,
Java's version is checked. Spark logs errors only and, on this machine, listens on loopback only.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import siltstone
from siltstone.base import files, interruption
from siltstone.base.errors import EngineError
from siltstone.spark import class_archive, daemon, internals
from siltstone.spark.internals import java_process

OLDEST_JAVA = 17
_JAVA_ADVICE = "Spark needs Java 17 or 21: install a JRE or set JAVA_HOME, or pass --engine process"
TASK_ATTEMPTS = 3
_TERMINATE_SECONDS = 1.5
"""How long a terminated Java may take to remove its temporary folders, before it is killed."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"
"""Java only moves rows from task to task. Its optimising compiler (C2) takes far more time from the tasks
than it saves. Every blob would be a humongous object for its default garbage collector (G1)."""


def java_command() -> str:
    """The ``java`` that Spark would start. Raises EngineError, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else files.find_program("java")
    if command is None or files.find_program(command) is None:
        raise EngineError("Java is missing", advice=_JAVA_ADVICE)
    return command


def java_version() -> str:
    """The output of ``java -version``. Raises EngineError for a Java that is too old for Spark 4."""
    process = subprocess.run([java_command(), "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', process.stderr + process.stdout)
    if process.returncode or version is None or int(version[1]) < OLDEST_JAVA:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise EngineError(
            f"this is not a Java that Spark can use; it says: {lines[0] if lines else 'nothing'}",
            path=java_command(),
            advice=_JAVA_ADVICE,
        )
    return process.stderr + process.stdout


def is_local(master: str) -> bool:
    """Do tasks run on this machine, with its file systems?"""
    return master.startswith("local[") or master == "local"


def start_session(
    master: str,
    *,
    spill_folder: str | None = None,
    settings: dict[str, str] | None = None,
    java_options: str | None = None,
) -> SparkSession:
    """A session on ``master``. Raises EngineError with Spark's message if Spark does not start.

    ``java_options``: in place of those that make Java use the class archive. ``settings``: Spark's, over
    those of Siltstone.
    """
    version = java_version()
    options = class_archive.java_options(version) if java_options is None else java_options
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not is_local(master):
        os.environ.setdefault("SPARK_HOME", str(class_archive.SPARK_HOME))
    builder = SparkSession.builder.master(_with_retries(master)).appName("siltstone")
    for name, value in {**_settings(master, spill_folder, options), **(settings or {})}.items():
        builder = builder.config(name, value)
    with files.temporary_file() as errors:
        try:
            with (
                files.redirect_standard_error(errors.fileno()),
                _keep_sigint_handler(),
                _java_in_own_process_group(),
            ):
                interruption.current().check()
                session = _with_secret(builder, master).getOrCreate()
        except Exception as error:
            if interruption.is_interrupt(error):
                raise KeyboardInterrupt from error
            errors.seek(0)
            lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
            last = next((line for line in reversed(lines) if "rror" in line or "xception" in line), "")
            reason = f"Spark did not start on {master}: {last or error}".splitlines()[0]
            raise EngineError(
                reason, advice="check the address (--master), or pass --engine process"
            ) from None
    session.sparkContext.setLogLevel("ERROR")
    # PySpark's server for accumulators would print a traceback when an interrupt ends Java.
    internals.silence_accumulators(session, lambda: interruption.current().was_signalled)
    if not is_local(master):
        session.sparkContext.addPyFile(package_zip())
    return session


def _with_secret(builder: SparkSession.Builder, master: str) -> SparkSession.Builder:
    """The builder, with a secret for ``local-cluster``, for which Spark makes none as it does for ``local``.

    Every user can read the command line of a process. So Java is started first, and then gets the secret over
    its socket.
    """
    if not master.startswith("local-cluster"):
        return builder
    internals.start_java(builder)
    return builder.config("spark.authenticate.secret", secrets.token_hex(32))


def stop_session(session: SparkSession) -> None:
    """Stop a session, even if its Java process is gone. The next session can then start a Java process.

    PySpark keeps its connection to a dead Java process, and every later session would use it.
    """
    gateway, process = internals.gateway(), internals.java_process()
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        session.stop()
    if process is None or (process.poll() is None and _java_answers(gateway)):
        return
    _terminate_java(process)  # A process that was just killed may not have ended yet.
    internals.forget_java()


def _java_answers(gateway: Any) -> bool:
    """Does the Java process behind a gateway answer?"""
    try:
        gateway.jvm.java.lang.System.currentTimeMillis()
        return True
    except Exception:
        return False


@contextlib.contextmanager
def _keep_sigint_handler() -> Iterator[None]:
    """Put the program's SIGINT handler back: PySpark replaces it by one that interrupts critical sections."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (None, signal.default_int_handler, signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _java_in_own_process_group() -> Iterator[None]:
    """Within, Java and the scripts that start it run in a process group of their own.

    The group is killed if the start fails, since it would wait for ever, and terminated when an interrupt
    ends the command."""
    started: list[subprocess.Popen[bytes]] = []

    def remember(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        interruption.current().on_signal(lambda: _terminate_java(process))

    try:
        with internals.starting_java(remember):
            yield
    except BaseException:
        for process in started:
            _signal_group(process, signal.SIGKILL)
        raise


def _terminate_java(process: subprocess.Popen[bytes]) -> None:
    """Terminate Java, and the Python workers with it; kill it after ``_TERMINATE_SECONDS``."""
    if process.poll() is not None:
        return
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE_SECONDS)
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to all processes of the group that ``process`` leads, or led before it ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _with_retries(master: str) -> str:
    """A local master with retries of tasks, in case a worker is killed; by default Spark has none there."""
    local = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]" if local else master


def _settings(master: str, spill_folder: str | None, java_options: str) -> dict[str, str]:
    quiet = (Path(__file__).parent / "log4j2.properties").as_uri()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet} {_JAVA_OPTIONS}{java_options}",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.broadcast.compress": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.speculation": "false",
        "spark.authenticate": "true",
    }
    if is_local(master) or master.startswith("local-cluster"):
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if is_local(master):
        settings[internals.DAEMON_SETTING] = daemon.__name__
    if "NUMBA_CACHE_DIR" in os.environ:
        settings["spark.executorEnv.NUMBA_CACHE_DIR"] = os.environ["NUMBA_CACHE_DIR"]
    if spill_folder is not None:
        settings["spark.local.dir"] = spill_folder
    return settings


def package_zip() -> str:
    """The path of a zip of this package, for executors; it is removed when the process ends."""
    folder = files.temporary_directory("siltstone-package-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "siltstone.zip"
    files.zip_package(Path(siltstone.__file__).parent, path)
    return str(path)


# Sessions for ``explain`` and ``verify``, which need only DataFrames: on a master, or on a Spark Connect
# server.
#
# A session of Connect has no ``SparkContext``, so the number of tasks at one time is read from its settings.

CONNECT_PREFIX = "sc://"
_DEFAULT_WORKERS = 8
"""The number of tasks at one time that is assumed if no setting has it."""


def session_on(master: str, spill_folder: Path | None = None) -> SparkSession:
    """A session on ``master``, or on the Connect server ``sc://host:port``, which must see the same files and
    have Siltstone installed. Raises EngineError."""
    if not master.startswith(CONNECT_PREFIX):
        return start_session(master, spill_folder=None if spill_folder is None else str(spill_folder))
    try:
        session: SparkSession = SparkSession.builder.remote(master).getOrCreate()
        session.range(1).count()
    except (PySparkException, ImportError, OSError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"the Spark Connect server does not answer: {first}",
            path=master,
            advice="check that it runs and has Siltstone installed, or pass --engine process",
        ) from None
    return session


def workers_of(session: SparkSession) -> int:
    """About how many tasks run at one time, by the session's settings."""
    master = session.conf.get("spark.master", None) or ""
    local = re.fullmatch(r"local(?:-cluster)?(?:\[(\*|\d+)(?:,.*)?\])?", master)
    if local is not None:
        count = local[1] or "1"
        return max(os.cpu_count() or 1, 1) if count == "*" else int(count)
    parallelism = session.conf.get("spark.default.parallelism", None)
    return int(parallelism) if parallelism else _DEFAULT_WORKERS


# The probe before a cleaning on a cluster: do executors share the file system and the user?
#
# The driver writes a nonce (a random number) into the folder where tasks will write. Each task must read it
# from the same inode, as the same user. Otherwise the driver could not rename the files that tasks stage.

_PROBE_TASKS = 8


def _probe_task(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: what it sees of the driver's file, as JSON."""
    for _ in batches:
        try:
            status = files.stat(path)
            answer = {"nonce": files.read_bytes(path).hex(), "inode": status.inode, "user": os.geteuid()}
        except OSError as error:
            answer = {"error": error.strerror}
        yield pa.RecordBatch.from_pydict({"seen": [json.dumps(answer)]})


def refuse_unshared_executors(session: SparkSession, folder: Path) -> None:
    """Raises EngineError if an executor does not share the file system and the user."""
    path = folder / f".siltstone-probe-{secrets.token_hex(8)}"
    nonce = secrets.token_bytes(16)
    files.write_new(path, nonce)
    try:
        expected = {"nonce": nonce.hex(), "inode": files.stat(path).inode, "user": os.geteuid()}
        frame = session.range(0, _PROBE_TASKS, 1, _PROBE_TASKS).mapInArrow(
            functools.partial(_probe_task, str(path)), "seen string"
        )
        differing = [row.seen for row in frame.collect() if json.loads(row.seen) != expected]
    finally:
        files.unlink(path)
    if differing:
        raise EngineError(
            f"the executors do not share this folder with this machine and user ({differing[0]})",
            path=folder,
            advice="clean with --master local[*], or with --out on storage that all executors share",
        )


# The class archive: Spark cleans a small log, and Java then writes the classes that it has loaded for that.

_DUMP_SECONDS_MAX = 600
_ARCHIVE_MASTER = "local[2]"
_UNFINISHED_SUFFIX = ".making"


def make_class_archive(clean_something: Callable[[SparkSession], None]) -> Path | None:
    """Make the class archive of this Java and Spark if it is missing; None if archives are switched off.

    ``clean_something`` cleans a small log with the session. The process must not have started Spark before:
    its Java ends here. Raises EngineError if Java writes no archive, OSError if the folder cannot be written.
    """
    version, archives = java_version(), class_archive.folder()
    if archives is None:
        return None
    archive = class_archive.find(version)
    if archive is not None:
        return archive
    files.make_directory(archives, parents=True)
    for name in files.list_files(archives):
        if name.endswith(_UNFINISHED_SUFFIX):  # left by a process that was killed
            files.unlink(archives / name)
    unfinished = archives / (secrets.token_hex(8) + _UNFINISHED_SUFFIX)
    try:
        session = start_session(_ARCHIVE_MASTER, java_options=class_archive.dump_options(unfinished))
        try:
            clean_something(session)
        finally:
            _end_java(session)
        if not files.exists(unfinished):
            raise EngineError("Java wrote no class archive", path=unfinished)
        return class_archive.add(unfinished, version)
    finally:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(unfinished)


def _end_java(session: SparkSession) -> None:
    """Stop the session and wait until its Java has ended, which writes the archive at its end."""
    process = java_process()
    session.stop()
    if process is None or process.stdin is None:
        raise EngineError("this process did not start Spark's Java process", advice="start no Spark before")
    process.stdin.close()
    try:
        process.wait(_DUMP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        reason = f"Java did not write its class archive within {_DUMP_SECONDS_MAX} s"
        raise EngineError(reason, advice="run python -m siltstone.warmup again") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        stop_session(session)
