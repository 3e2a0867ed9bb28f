"""Which Siltstone an executor takes: the installed one if it is the driver's, or else the unpacked zip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import siltstone
import siltstone_daemon
from siltstone.base.errors import EngineError
from siltstone.spark import shipping
from tests.support.errors import raises_error

PACKAGE = Path(siltstone.__file__).parent
VARIABLES = ("PYTHONPATH", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small package in the place of Siltstone's zip, as it arrives in an executor's folder."""
    folder = tmp_path_factory.mktemp("executor")
    with zipfile.ZipFile(folder / "siltstone.zip", "w") as packed:
        packed.writestr("siltstone/__init__.py", "version = 'shipped'\n")
        packed.writestr("siltstone/spark/__init__.py", "")
        packed.writestr("siltstone/spark/daemon.py", "import siltstone\nprint(siltstone.__file__)\n")
        packed.writestr("siltstone/__pycache__/kernel.nbc", b"machine code")
    return folder / "siltstone.zip"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's home; this process is the executor."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def packages(home: Path) -> Path:
    return home / ".cache" / "siltstone" / "packages"


def test_the_zip_is_the_package_with_its_kernels() -> None:
    # Another worker of these tests may compile a kernel meanwhile.
    kernels = {f"siltstone/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.nb[ic]")}
    archive = Path(shipping.package_zip.__wrapped__())
    assert siltstone_daemon.fingerprint_of_archive(archive) == siltstone_daemon.fingerprint_of_folder(PACKAGE)
    names = zipfile.ZipFile(archive).namelist()
    assert "siltstone/spark/shipping.py" in names and "siltstone/spark/log4j2.properties" in names
    assert kernels and kernels <= set(names)


def test_a_package_that_is_in_a_zip_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siltstone, "__file__", "/somewhere/siltstone.zip/siltstone/__init__.py")
    with raises_error(EngineError, about="zip", advice="install"):
        shipping.package_zip.__wrapped__()


def test_the_same_package_is_taken_where_it_is_installed(archive: Path, tmp_path: Path, home: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "site")
    (tmp_path / "site" / "siltstone" / "__pycache__" / "other.nbc").write_bytes(b"its own")
    path = [str(tmp_path / "site")]
    assert siltstone_daemon.chosen_package(archive, path) == (tmp_path / "site" / "siltstone", True)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("change", ["another", "more", "less"])
def test_another_package_that_is_installed_is_not_taken(
    archive: Path, tmp_path: Path, home: Path, change: str
) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "site")
    installed = tmp_path / "site" / "siltstone"
    if change == "less":
        (installed / "spark" / "__init__.py").unlink()
    else:
        (installed / ("__init__.py" if change == "another" else "new.py")).write_text("version = 'older'\n")
    package, is_installed = siltstone_daemon.chosen_package(archive, [str(tmp_path / "site")])
    assert not is_installed and package.parents[1] == packages(home)
    assert (package / "__init__.py").read_text() == "version = 'shipped'\n"
    assert (package / "__pycache__" / "kernel.nbc").read_bytes() == b"machine code"


def test_the_package_is_unpacked_once(archive: Path, home: Path) -> None:
    first, _ = siltstone_daemon.chosen_package(archive, [])
    (first / "__pycache__" / "compiled-here.nbc").write_bytes(b"")
    assert siltstone_daemon.chosen_package(archive, []) == (first, False)
    assert (first / "__pycache__" / "compiled-here.nbc").exists()
    assert [path.name for path in packages(home).iterdir()] == [first.parent.name]
    assert packages(home).stat().st_mode & 0o77 == 0


SPOILED = ["a module changed", "a module more", "torn", "writable by others", "a link", "packages writable"]


@pytest.mark.parametrize("what", SPOILED)
def test_a_folder_that_is_not_what_it_was_is_not_used(
    archive: Path, tmp_path: Path, home: Path, what: str
) -> None:
    executor = tmp_path / "executor"
    executor.mkdir()
    here = Path(shutil.copy(archive, executor))
    package, _ = siltstone_daemon.chosen_package(here, [])
    folder = package.parent
    if what == "writable by others":
        folder.chmod(0o777)
    elif what == "packages writable":
        packages(home).chmod(0o775)
    elif what == "a link":
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
    elif what == "torn":
        (package / "spark" / "daemon.py").write_bytes(b"")
    else:
        (package / ("__init__.py" if "changed" in what else "more.py")).write_text("evil = True\n")
    again, is_installed = siltstone_daemon.chosen_package(here, [])
    assert not is_installed and again.parents[1] == executor
    assert siltstone_daemon.fingerprint_of_folder(again) == siltstone_daemon.fingerprint_of_archive(archive)


@pytest.mark.parametrize("home_is", ["missing", "a file", "read-only"])
def test_without_a_home_the_package_is_unpacked_beside_the_zip(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home_is: str
) -> None:
    here = Path(shutil.copy(archive, tmp_path))
    place = tmp_path / "home"
    if home_is == "a file":
        place.touch()
    elif home_is == "read-only":
        place = Path("/proc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place if home_is != "missing" else "/proc/none"))
    package, _ = siltstone_daemon.chosen_package(here, [])
    assert package.parents[1] == tmp_path and (package / "__init__.py").exists()


def start(folder: Path, home: Path, site: Path | None = None) -> Path:
    """Start the daemon as an executor does; where it found the package."""
    shutil.copy(siltstone_daemon.__file__, folder)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"HOME": str(home), **({"PYTHONPATH": str(site)} if site else {})}
    completed = subprocess.run(
        [sys.executable, "-m", "siltstone_daemon", "pyspark.worker"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return Path(completed.stdout.strip())


def test_the_daemon_runs_on_the_chosen_package(archive: Path, tmp_path: Path, home: Path) -> None:
    assert start(archive.parent, home).parents[2] == packages(home)
    shutil.rmtree(packages(home))
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "site")
    assert start(archive.parent, home, tmp_path / "site").parents[1] == tmp_path / "site"
    assert not any(packages(home).rglob("*"))


def test_a_worker_of_pysparks_daemon_imports_the_chosen_package(
    archive: Path, tmp_path: Path, home: Path
) -> None:
    folder = tmp_path / "executor"
    folder.mkdir()
    shutil.copy(archive, folder)
    shutil.copy(shipping.workers_zip(), folder / "siltstone-workers.zip")
    code = (
        f"import sys; sys.path.insert(1, {str(folder / 'siltstone-workers.zip')!r})\n"
        "import siltstone, siltstone.spark.daemon\n"
        "assert siltstone.version == 'shipped'\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(completed.stdout.strip()).parents[2] == packages(home)
