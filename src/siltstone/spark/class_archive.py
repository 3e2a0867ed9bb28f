"""The class archive: a file with Spark's classes in the form that Java has in memory, so that Java starts
faster.

Java calls it a dynamic class-data archive (JEP 350). ``python -m siltstone.warmup`` makes one
(``siltstone.spark.session``). A session uses the archive that fits its Java and Spark, or none::

    $XDG_CACHE_HOME/siltstone, or ~/.cache/siltstone
      HOME/                     a hash of the path of a Spark installation
        FINGERPRINT-SIZE.jsa    a hash of Java's version and of each jar's name, size and time

Java maps the file into memory, and crashes if bytes are missing at its end. So the size is part of the name,
and a file of another size is not used. Java itself finds changed bytes by checksums (``VerifySharedSpaces``)
and changed jars by comparison, and then continues without the archive. An archive contains code: an archive
that another user owns, or could have written, is not used. The environment variable
``SILTSTONE_CLASS_ARCHIVE`` names another folder, or is ``off``.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from siltstone.base import files

VARIABLE = "SILTSTONE_CLASS_ARCHIVE"
OFF = "off"
SUFFIX = ".jsa"


def _installed_spark() -> Path:
    """The folder of the package ``pyspark``, which is not imported. Raises ModuleNotFoundError."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    return Path(spec.origin).parent


INSTALLED_SPARK = _installed_spark()
"""The pyspark of this Python; ``spark_home`` is the Spark in use."""
_WRITABLE_BY_OTHERS = 0o022
_REFUSED_CHARACTERS = frozenset(':"\\\n')
"""Characters that a path in Java's options must not have: Java or Spark would split the options there."""
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr"
"""Sends Java's warnings about an archive to standard error: standard output has the command's result."""


def folder() -> Path | None:
    """The folder of this Spark's archives; None if they are switched off, or no folder is possible."""
    configured = os.environ.get(VARIABLE, "")
    if configured == OFF:
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        return None
    root = Path(configured) if configured else Path(cache) / "siltstone"
    home = spark_home()
    archives = root.absolute() / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return None if _REFUSED_CHARACTERS & set(str(archives)) else archives


def spark_home() -> Path:
    """The folder of the Spark that is used."""
    return Path(os.environ.get("SPARK_HOME") or INSTALLED_SPARK)


def fingerprint(java_version: str) -> str:
    """A hash of all that an archive depends on, 32 hex digits. ``java_version``: a text that tells this Java
    from others."""
    jars = spark_home() / "jars"
    parts = [java_version, str(jars)]
    jar_files = files.list_files(jars) if files.is_directory(jars) else {}
    parts += [f"{name} {status.size} {status.modified_ns}" for name, status in sorted(jar_files.items())]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def find(java_version: str) -> Path | None:
    """The archive for this Java and Spark, if it is complete and no other user could have written it; None
    otherwise. Never raises OSError."""
    archives = folder()
    try:
        if archives is None or not files.is_directory(archives) or not _is_trusted(archives):
            return None
        prefix = fingerprint(java_version) + "-"
        names = [
            name for name in files.list_files(archives) if name.startswith(prefix) and name.endswith(SUFFIX)
        ]
        return next((archives / name for name in names if _is_whole(archives / name, prefix)), None)
    except OSError:
        return None


def _is_whole(path: Path, prefix: str) -> bool:
    """Is the archive of the size that its name has, and trusted?"""
    size = path.name.removeprefix(prefix).removesuffix(SUFFIX)
    return _is_trusted(path) and size.isdecimal() and files.stat(path).size == int(size)


def _is_trusted(path: Path) -> bool:
    """Does the file or folder belong to this user or root, and can no other user write to it?"""
    status = files.stat(path)
    return status.owner in (0, os.geteuid()) and not status.mode & _WRITABLE_BY_OTHERS


def java_options(java_version: str) -> str:
    """Java's options to use the archive, beginning with a space; empty without an archive."""
    archive = find(java_version)
    if archive is None:
        return ""
    return f' -Xshare:auto -XX:+VerifySharedSpaces "-XX:SharedArchiveFile={archive}" {_QUIET}'


def dump_options(path: Path) -> str:
    """Java's options to write an archive of the classes that it loaded to ``path`` when it ends."""
    return f' "-XX:ArchiveClassesAtExit={path}" {_QUIET}'


def add(archive: Path, java_version: str) -> Path:
    """Give a new archive in ``folder()`` its name, durably, and remove all others: a Spark has one archive,
    that of the last Java. Raises OSError."""
    size = files.stat(archive).size
    path = archive.with_name(f"{fingerprint(java_version)}-{size}{SUFFIX}")
    files.sync_file(archive)
    files.rename(archive, path)
    for name in files.list_files(archive.parent):
        if name != path.name and name.endswith(SUFFIX):
            files.unlink(archive.parent / name)
    files.sync_directory(archive.parent)
    return path
