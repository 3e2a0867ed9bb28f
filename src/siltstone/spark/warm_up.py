"""Making the class archive: Spark cleans something small, and its Java leaves what it loaded for that."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.compaction.engine import Engine
from siltstone.spark import class_archive
from siltstone.spark.clean import SparkEngine
from siltstone.spark.internals import java_process
from siltstone.spark.session import java_version, start_session, stop_session

_DUMP_SECONDS_MAX = 600
_MASTER = "local[2]"
_MAKING = ".making"


def make_class_archive(use: Callable[[Engine], None]) -> Path | None:
    """The class archive of this Java and this Spark, made unless it is there; None where it is switched off.

    ``use`` cleans something small. Only for a process that has not started Spark: its Java ends.
    Raises EngineError when no archive comes of it, OSError when there is no place for one.
    """
    version, place = java_version(), class_archive.folder()
    if place is None:
        return None
    found = class_archive.find(version)
    if found is not None:
        return found
    files.make_directory(place, parents=True)
    for name in files.list_files(place):
        if name.endswith(_MAKING):  # of one that was killed
            files.unlink(place / name)
    making = place / (secrets.token_hex(8) + _MAKING)
    try:
        session = start_session(_MASTER, java_options=class_archive.dump_options(making))
        try:
            use(SparkEngine(session))
        finally:
            _end_java(session)
        if not files.exists(making):
            raise EngineError("Java left no class archive")
        return class_archive.keep(making, version)
    finally:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(making)


def _end_java(session: SparkSession) -> None:
    """Stop the session and wait for its Java, which writes the archive as it ends."""
    process = java_process()
    session.stop()
    if process is None or process.stdin is None:
        raise EngineError("Spark's Java was not started by this process")
    process.stdin.close()
    try:
        process.wait(_DUMP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise EngineError(f"Java did not write its class archive within {_DUMP_SECONDS_MAX} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        stop_session(session)
