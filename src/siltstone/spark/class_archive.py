"""The class archive: Spark's classes as Java has them in memory, in a file, so that Java starts faster.

Java calls it a dynamic class-data archive (JEP 350). ``python -m siltstone.warmup`` makes it
(``siltstone.spark.session``); a session uses the one that fits, and does without where there is none::

    $XDG_CACHE_HOME/siltstone, or ~/.cache/siltstone
      HOME/               a Spark installation, by its path
        KEY-SIZE.jsa      KEY: what Java says of its version, Spark's version, each jar's name, size and time

Java maps the file, and crashes where bytes are missing at its end: so the size is part of the name, and a
file of another size is not used. Java itself detects changed bytes by checksums (``VerifySharedSpaces``) and
other jars by comparison; it continues without the archive then. An archive contains code: one that another
user owns, or could have written, is not used. ``SILTSTONE_CLASS_ARCHIVE`` names another folder, or is
``off``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyspark

from siltstone.base import files

VARIABLE = "SILTSTONE_CLASS_ARCHIVE"
OFF = "off"
SUFFIX = ".jsa"
SPARK_HOME = Path(pyspark.__file__).parent
_WRITABLE_BY_OTHERS = 0o022
_REFUSED = frozenset(':"\\\n')
"""Characters of a path that have a meaning in Java's options, or where Spark splits them."""
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr"
"""Java's warnings about an archive would go to standard output, which has the command's result."""


def folder() -> Path | None:
    """Where archives of this Spark are; None where they are switched off, or there is no home for them."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen == OFF:
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        return None
    root = Path(chosen) if chosen else Path(cache) / "siltstone"
    home = _spark_home()
    archives = root.absolute() / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return None if _REFUSED & set(str(archives)) else archives


def _spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or SPARK_HOME)


def key(java_version: str) -> str:
    """What an archive was made with, in 32 hex digits. ``java_version``: all that ``java -version`` says."""
    jars = _spark_home() / "jars"
    parts = [java_version, pyspark.__version__, str(jars)]
    files_of_jars = files.list_files(jars) if files.is_directory(jars) else {}
    parts += [f"{name} {facts.size} {facts.modified_ns}" for name, facts in sorted(files_of_jars.items())]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def find(java_version: str) -> Path | None:
    """The archive that fits, whole and our own; None without one. Never raises OSError."""
    archives = folder()
    try:
        if archives is None or not files.is_directory(archives) or not _is_ours(archives):
            return None
        prefix = key(java_version) + "-"
        names = [
            name for name in files.list_files(archives) if name.startswith(prefix) and name.endswith(SUFFIX)
        ]
        return next((archives / name for name in names if _is_whole(archives / name, prefix)), None)
    except OSError:
        return None


def _is_whole(path: Path, prefix: str) -> bool:
    size = path.name.removeprefix(prefix).removesuffix(SUFFIX)
    return _is_ours(path) and size.isdecimal() and files.stat(path).size == int(size)


def _is_ours(path: Path) -> bool:
    facts = files.stat(path)
    return facts.owner in (0, os.geteuid()) and not facts.mode & _WRITABLE_BY_OTHERS


def java_options(java_version: str) -> str:
    """Options for a Java that is to use the archive, empty without one; with a space in front."""
    archive = find(java_version)
    if archive is None:
        return ""
    return f' -Xshare:auto -XX:+VerifySharedSpaces "-XX:SharedArchiveFile={archive}" {_QUIET}'


def dump_options(path: Path) -> str:
    """Options for a Java that is to leave an archive of what it loaded at ``path`` when it ends."""
    return f' "-XX:ArchiveClassesAtExit={path}" {_QUIET}'


def keep(made: Path, java_version: str) -> Path:
    """Give a new archive in ``folder()`` its name, durably; those of before go. Raises OSError."""
    size = files.stat(made).size
    path = made.with_name(f"{key(java_version)}-{size}{SUFFIX}")
    files.sync_file(made)
    files.rename(made, path)
    for name in files.list_files(made.parent):
        if name != path.name and name.endswith(SUFFIX):
            files.unlink(made.parent / name)
    files.sync_directory(made.parent)
    return path
