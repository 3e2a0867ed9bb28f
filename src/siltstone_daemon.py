"""Spark's Python daemon on the executors of a cluster: finds Siltstone there, or unpacks it, and starts its
daemon.

::

    python -m siltstone_daemon
      └► the driver's package is installed   python -m siltstone.spark.daemon
      └► otherwise                           PYTHONPATH=FOLDER python -m siltstone.spark.daemon

    $XDG_CACHE_HOME/siltstone/packages/FINGERPRINT, or below ~/.cache: FOLDER, for all executors of a machine
      siltstone/…/*.py            equal to the driver's: the fingerprint is a hash of them
      siltstone/…/__pycache__     machine code of the kernels: the driver's, and what processors here needed

Spark puts this file into each executor's folder, beside ``siltstone.zip`` (``siltstone.spark.shipping``). So
it imports only Python's own library. Beside no zip, it is the installed module, of the installed package. In
``siltstone-workers.zip`` it makes the same choice for the workers of PySpark's own daemon.

Two packages are the same if their modules have the same bytes: a version number says too little. Machine code
names the processor that it is for, so the driver's does no harm elsewhere. A folder that another user could
have written, or with other modules than the zip, is not used. Then, and without a home directory, the zip is
unpacked into the executor's own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import secrets
import shutil
import stat
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

ARCHIVE = "siltstone.zip"
PACKAGE = "siltstone"
DAEMON = "siltstone.spark.daemon"
SOURCES = (".py", ".properties")
_FINGERPRINT_DIGITS = 32
_WRITABLE_BY_OTHERS = 0o022


def fingerprint(sources: Mapping[str, bytes]) -> str:
    """A hash of a package's modules by their path, ``siltstone/base/…``: 32 hex digits."""
    digest = hashlib.sha256()
    for name, data in sorted(sources.items()):
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:_FINGERPRINT_DIGITS]


def fingerprint_of_folder(package: Path) -> str:
    """The fingerprint of the package in a folder. Raises OSError."""
    modules = [path for path in package.rglob("*") if path.suffix in SOURCES]
    return fingerprint({f"{PACKAGE}/{path.relative_to(package)}": path.read_bytes() for path in modules})


def fingerprint_of_archive(path: Path) -> str:
    """The fingerprint of the package in a zip. Raises OSError, zipfile.BadZipFile."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(SOURCES)]
        return fingerprint({name: archive.read(name) for name in names})


def installed_package(path: Sequence[str] | None = None) -> Path | None:
    """The folder of the package that Python finds on ``path``, by default its own; None without one."""
    spec = PathFinder.find_spec(PACKAGE, path)
    folders = None if spec is None else spec.submodule_search_locations
    return Path(folders[0]) if folders else None


def chosen_package(archive: Path, path: Sequence[str] | None = None) -> tuple[Path, bool]:
    """(The folder of the package, is it installed): the one that is installed on ``path``, if it is that of
    the archive, or else the unpacked one. Raises OSError, zipfile.BadZipFile."""
    wanted, installed = fingerprint_of_archive(archive), installed_package(path)
    with contextlib.suppress(OSError):
        if installed is not None and fingerprint_of_folder(installed) == wanted:
            return installed, True
    return unpacked(archive, folder_of_packages()) / PACKAGE, False


def become_package(module: dict[str, Any]) -> None:
    """Make the package of ``siltstone-workers.zip``, whose names these are, the chosen one."""
    workers_archive = Path(module["__file__"]).parents[1]
    path = [entry for entry in sys.path if Path(entry) != workers_archive]
    package, _ = chosen_package(workers_archive.with_name(ARCHIVE), path)
    source = package / "__init__.py"
    module["__path__"][:] = [str(package)]
    module["__file__"] = str(source)
    exec(compile(source.read_bytes(), source, "exec"), module)


def folder_of_packages() -> Path | None:
    """The folder of this user's packages, made if it is missing; None if there is none that only this user
    can write."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / PACKAGE / "packages"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder if _is_own(folder) else None
    except (OSError, RuntimeError):
        return None


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    is_own = status.st_uid in (0, os.geteuid()) and not status.st_mode & _WRITABLE_BY_OTHERS
    return stat.S_ISDIR(status.st_mode) and is_own


def unpacked(archive: Path, packages: Path | None) -> Path:
    """The folder with the unpacked package: one of ``packages``, by its fingerprint, or else a new one beside
    the archive. Raises OSError, zipfile.BadZipFile."""
    wanted = fingerprint_of_archive(archive)
    for folder in () if packages is None else (packages / wanted,):
        with contextlib.suppress(OSError):
            _unpack(archive, folder)
        with contextlib.suppress(OSError):
            if _is_own(folder) and fingerprint_of_folder(folder / PACKAGE) == wanted:
                return folder
    beside = archive.parent / f"{PACKAGE}-{secrets.token_hex(8)}"
    _unpack(archive, beside)
    return beside


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack into ``folder``, in one step, unless it exists. Raises OSError."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{secrets.token_hex(8)}")
    unfinished.mkdir(mode=0o700)
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main() -> None:
    """Start the daemon with the arguments that Spark gives, on the driver's package."""
    archive = Path(__file__).absolute().with_name(ARCHIVE)
    if not archive.exists():
        importlib.import_module(DAEMON).main()
        return
    environment = dict(os.environ)
    # The executor's folder comes first on the path, and has nothing of the package.
    package, is_installed = chosen_package(archive)
    if not is_installed:
        paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # A new process: whatever this one has imported is gone, and the path holds for all that it starts.
    os.execve(sys.executable, [sys.executable, "-m", DAEMON, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
