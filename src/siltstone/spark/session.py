"""Starts and stops Spark sessions.

::

    the program has a session       a second session of the same application, with ``settings.REQUIRED``
    spark-submit started Java       a session with the master and the settings of spark-submit
    otherwise                       Java and a session on the master of the caller, by default ``local[*]``

``settings`` has what Siltstone sets on which master. On a cluster, ``shipping`` brings this package to the
executors. Before Java is started, its version is checked.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from siltstone.base import files, interruption
from siltstone.base.errors import EngineError
from siltstone.spark import class_archive, forked_daemon, internals, java, shipping
from siltstone.spark.internals import java_process
from siltstone.spark.settings import (
    DEFAULT_MASTER,
    PYTHON_SETTING,
    REQUIRED,
    cluster_settings,
    is_local,
    is_this_machine,
    local_settings,
    refuse_changed_required,
    with_retries,
)
from siltstone.spark.tasks import is_alive


def start_session(
    master: str | None = None,
    *,
    spill_folder: str | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: str | None = None,
) -> SparkSession:
    """A session on ``master``. If the program has a session already, or spark-submit has started Java, it is
    one of that application, on its master.

    ``settings``: Spark's, over those of Siltstone and of the cluster. ``java_options``: on this machine, in
    place of those that make Java use the class archive. Raises EngineError, with Spark's message if Spark
    does not start; also for settings that Siltstone cannot work with, or that come too late.
    """
    chosen = dict(settings or {})
    refuse_changed_required(chosen)
    existing = internals.running_session()
    if existing is not None and is_alive(existing):
        return _second_session(existing, chosen)
    if existing is not None:
        stop_session(existing)
    start = _Start(master=master, spill_folder=spill_folder, chosen=chosen)
    is_prepared = internals.gateway() is None and java.prepare(master, chosen, java_options)
    if not is_prepared and not internals.was_submitted():
        version = java.java_version()
        if is_this_machine(start.master or DEFAULT_MASTER):
            start.java_options = class_archive.java_options(version) if java_options is None else java_options
    session = _started_session(start)
    if not internals.was_submitted():
        session.sparkContext.setLogLevel("ERROR")
    # PySpark's server for accumulators would print a traceback when an interrupt ends Java.
    internals.silence_accumulators(session, lambda: interruption.current().was_signalled)
    if not is_local(session.sparkContext.master):
        shipping.ship(session)
    return session


def _started_session(start: _Start) -> SparkSession:
    """Start the session, with the Java that waits for it if there is one. What Spark prints meanwhile is only
    shown as the error of a start that fails."""
    started = java.take()
    with files.temporary_file() if started is None else started.errors as errors:
        try:
            with (
                files.redirect_standard_error(errors.fileno()),
                _keep_sigint_handler(),
                _java_in_own_process_group(started),
            ):
                interruption.current().check()
                if started is not None:
                    internals.connect(*started.connection(), started.process)
                builder = start.builder()
                if is_local(start.master) and not internals.was_submitted():
                    return internals.LateSession(builder)
                session: SparkSession = builder.getOrCreate()
                return session
        except Exception as error:
            if interruption.is_interrupt(error):
                raise KeyboardInterrupt from error
            if isinstance(error, EngineError):
                raise
            errors.seek(0)
            lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines()]
            messages = [line for line in lines if not line.startswith(("at ", "... "))]
            last = next((line for line in reversed(messages) if "rror" in line or "xception" in line), "")
            if not internals.was_submitted():
                internals.forget_java()  # its process was killed
            reason = f"Spark did not start on {start.master or DEFAULT_MASTER}: {last or error}".splitlines()[
                0
            ]
            raise EngineError(
                reason, advice="check the address (--master), or pass --engine process"
            ) from None


@dataclass(slots=True, kw_only=True)
class _Start:
    """The choices for a session that is about to start. ``master``: None for the master of spark-submit, or
    ``local[*]`` without it; ``chosen``: the user's settings, which replace all others."""

    master: str | None
    spill_folder: str | None
    chosen: Mapping[str, str]
    java_options: str = ""

    def builder(self) -> SparkSession.Builder:
        """The builder of the session. It starts Java for a cluster, whose settings it must know."""
        builder: SparkSession.Builder = SparkSession.builder
        if internals.was_submitted():
            present = internals.start_java(builder)
            submitted = present.get("spark.master", DEFAULT_MASTER)
            if self.master not in (None, submitted):
                reason = f"spark-submit has started Spark on {submitted}, and --master is {self.master}"
                raise EngineError(reason, advice="leave out --master here, and pass it to spark-submit")
            self.master = submitted
        else:
            self.master = self.master or DEFAULT_MASTER
            builder = builder.master(with_retries(self.master))
            if is_this_machine(self.master):
                return self._on_this_machine(builder.appName("siltstone"))
            for name, value in self.chosen.items():
                builder = builder.config(name, value)
            present = internals.start_java(builder)
        return self._with_settings(builder, {**present, **self.chosen})

    def _on_this_machine(self, builder: SparkSession.Builder) -> SparkSession.Builder:
        """The builder with all settings of Siltstone; Java is not started yet."""
        master = self.master or DEFAULT_MASTER
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if not is_local(master):
            os.environ.setdefault("SPARK_HOME", str(class_archive.INSTALLED_SPARK))
        for name, value in {**self._local_settings(master), **self.chosen}.items():
            builder = builder.config(name, value)
        _name_python(self.chosen)
        return _with_secret(builder, master)

    def _with_settings(
        self, builder: SparkSession.Builder, present: Mapping[str, str]
    ) -> SparkSession.Builder:
        """The builder with the user's settings, and those of Siltstone that are not ``present``."""
        assert self.master is not None
        if is_local(self.master):
            own_settings = {
                name: value
                for name, value in self._local_settings(self.master).items()
                if name not in present
            }
        else:
            own_settings = cluster_settings(self.spill_folder, shipping.DAEMON, present)
        for name, value in {**own_settings, **REQUIRED, **self.chosen}.items():
            builder = builder.config(name, value)
        _name_python(present)
        return builder

    def _local_settings(self, master: str) -> dict[str, str]:
        """Siltstone's settings on this machine."""
        module = forked_daemon.__name__ if is_local(master) else shipping.DAEMON
        return local_settings(master, self.spill_folder, self.java_options, module)


def _name_python(settings: Mapping[str, str]) -> None:
    """Tell PySpark which Python the workers have. It reads the environment variable; the setting for it is
    read by spark-submit only."""
    os.environ.setdefault("PYSPARK_PYTHON", settings.get(PYTHON_SETTING, sys.executable))


def _second_session(existing: SparkSession, chosen: Mapping[str, str]) -> SparkSession:
    """A second session of the program's application: the program's own keeps its settings. Raises EngineError
    for a setting that an application has from its start on."""
    session = existing.newSession()
    for name, value in {**chosen, **REQUIRED}.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
        elif session.sparkContext.getConf().get(name) != value:
            # Without the value, which may be a secret: ``spark.hadoop.fs.s3a.secret.key``.
            reason = f"{name}: the program has a Spark session already, which was started without this value"
            raise EngineError(reason, path="--spark-conf", advice="set it where the session is made")
    if not is_local(session.sparkContext.master):
        shipping.ship(session)
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
    java.terminate(process)  # A process that was just killed may not have ended yet.
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
    """Put the program's SIGINT handler back: PySpark installs one that interrupts critical
    sections."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (None, signal.default_int_handler, signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _java_in_own_process_group(java_process: java.Java | None) -> Iterator[None]:
    """Within the block, Java and the scripts that start it run in a process group of their own. A
    ``java_process`` that was started already has one.

    The group is killed if the start fails, since it would wait for ever, and terminated when an interrupt
    ends the command."""
    started = [] if java_process is None else [java_process.process]

    def remember(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        interruption.current().on_signal(lambda: java.terminate(process))

    try:
        with internals.starting_java(remember):
            yield
    except BaseException:
        for process in started:
            java.signal_group(process, signal.SIGKILL)
        raise


# Sessions for ``explain`` and ``verify``, which need only DataFrames: on a master, or on a Spark Connect
# server.

CONNECT_PREFIX = "sc://"


def session_on(
    master: str | None, spill_folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session as ``start_session``, or on the Connect server ``sc://host:port``, which must see the same
    files and have Siltstone installed. Raises EngineError."""
    if master is None or not master.startswith(CONNECT_PREFIX):
        spill = None if spill_folder is None else str(spill_folder)
        return start_session(master, spill_folder=spill, settings=settings)
    refuse_changed_required(settings or {})
    try:
        builder: SparkSession.Builder = SparkSession.builder.remote(master)
        for name, value in (settings or {}).items():
            builder = builder.config(name, value)
        session: SparkSession = builder.getOrCreate()
        session.range(1).count()
    except (PySparkException, ImportError, OSError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"the Spark Connect server does not answer: {first}",
            path=master,
            advice="check that it runs and has Siltstone installed, or pass --engine process",
        ) from None
    return session


# The class archive: Spark cleans a small log, and Java then writes the classes that it has loaded for that.

_DUMP_SECONDS_MAX = 600
"""How long Java may take to write the archive."""
_ARCHIVE_MASTER = "local[2]"
_UNFINISHED_SUFFIX = ".making"
"""The suffix of an archive that Java still writes."""


def make_class_archive(clean_something: Callable[[SparkSession], None]) -> Path | None:
    """Make the class archive of this Java and Spark if it is missing; None if archives are switched off.

    ``clean_something`` cleans a small log with the session. The process must not have started Spark before:
    its Java ends here. Raises EngineError if Java writes no archive, OSError if the folder cannot be written.
    """
    version, archives = java.java_version(), class_archive.folder()
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
