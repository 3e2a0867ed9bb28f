"""Brings this package to the executors of a cluster: the driver's side of ``siltstone_daemon``.

::

    Siltstone's session    addFile(siltstone_daemon.py), addFile(siltstone.zip): the daemon chooses
    the program's          addFile(siltstone.zip), addPyFile(siltstone-workers.zip): each worker chooses
                             siltstone_daemon.py
                             siltstone/__init__.py    becomes the installed package, or the unpacked one

The choice is between the installed package, if it is the same as the driver's, and ``siltstone.zip``, which
is unpacked into a folder of the machine (``siltstone_daemon``). The package is not imported from the zip
itself: numba could not keep compiled kernels there, and would compile them in each application.

A session that the program has started, or whose user names another Python daemon, has PySpark's own daemon
and workers. Only ``addPyFile`` reaches those.
"""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import siltstone
import siltstone_daemon
from siltstone.base import files
from siltstone.base.errors import EngineError
from siltstone.spark.settings import DAEMON_SETTING

DAEMON = siltstone_daemon.__name__
"""The module that forks Python workers on clusters."""
_KERNELS = (".nbi", ".nbc")
"""Suffixes of numba's files with machine code."""
_WORKERS_ARCHIVE = "siltstone-workers.zip"
_shipped: set[str] = set()
"""The ids of applications whose executors have the package."""


@functools.cache
def _folder() -> Path:
    """The folder of the files that are shipped; it is removed when the process ends."""
    folder = files.temporary_directory("siltstone-package-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def package_zip() -> str:
    """The path of a zip of this package with its compiled kernels. Raises EngineError if the package is in a
    zip itself."""
    package, path = Path(siltstone.__file__).parent, _folder() / siltstone_daemon.ARCHIVE
    if not files.is_directory(package):
        reason = "Siltstone is imported from a zip here, and so cannot be sent to the executors"
        raise EngineError(reason, path=package, advice="install it where the driver runs")
    files.zip_package(package, path, (*siltstone_daemon.SOURCES, *_KERNELS))
    return str(path)


@functools.cache
def workers_zip() -> str:
    """The path of a zip with which a worker imports the installed package, or the one in ``package_zip``."""
    path = _folder() / _WORKERS_ARCHIVE
    daemon_source = files.read_bytes(siltstone_daemon.__file__)
    package = b"import siltstone_daemon\n\nsiltstone_daemon.become_package(globals())\n"
    files.write_zip(path, {"siltstone_daemon.py": daemon_source, "siltstone/__init__.py": package})
    return str(path)


def ship(session: SparkSession) -> None:
    """Bring the package to the executors of a session's application, once. Raises EngineError."""
    context: SparkContext = session.sparkContext
    if context.applicationId in _shipped:
        return
    settings = context.getConf()
    context.addFile(package_zip())
    if settings.get(DAEMON_SETTING) == DAEMON and settings.get("spark.python.use.daemon", "true") == "true":
        context.addFile(siltstone_daemon.__file__)
    else:
        context.addPyFile(workers_zip())
    _shipped.add(context.applicationId)
