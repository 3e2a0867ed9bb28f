"""The class archive: which one is used, and that one that is damaged, or in the way, never stops Java."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from siltstone import warmup
from siltstone.spark import class_archive
from siltstone.spark.java import java_command, java_version

JAVA = 'openjdk version "17.0.15" 2025-04-15'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for archives, made, of a Spark installation with two jars."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("core.jar", "sql.jar"):
        (jars / name).write_bytes(name.encode())
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "cache"))
    folder = class_archive.folder()
    assert folder is not None and folder.parent == tmp_path / "cache"
    folder.mkdir(parents=True, mode=0o755)
    return folder


def added_archive(place: Path, java: str = JAVA, data: bytes = b"classes") -> Path:
    archive = place / "made"
    archive.write_bytes(data)
    archive.chmod(0o444)
    return class_archive.add(archive, java)


def test_an_archive_is_found_by_the_java_and_the_spark_that_it_was_made_with(
    place: Path, tmp_path: Path
) -> None:
    assert class_archive.find(JAVA) is None
    path = added_archive(place)
    assert class_archive.find(JAVA) == path
    assert f'"-XX:SharedArchiveFile={path}"' in class_archive.java_options(JAVA)
    assert class_archive.find(JAVA.replace("15", "16")) is None
    jar = tmp_path / "spark" / "jars" / "core.jar"
    before = jar.stat().st_mtime_ns
    os.utime(jar, ns=(before, before + 1))
    assert class_archive.find(JAVA) is None and class_archive.java_options(JAVA) == ""
    os.utime(jar, ns=(before, before))
    assert class_archive.find(JAVA) == path


def test_another_installation_has_another_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added_archive(place)
    monkeypatch.delenv("SPARK_HOME")
    assert class_archive.folder() != place and class_archive.find(JAVA) is None


@pytest.mark.parametrize("size", [0, 3, 8])
def test_an_archive_of_another_size_is_not_used(place: Path, size: int) -> None:
    """Java would die of one that was cut off."""
    path = added_archive(place)
    path.chmod(0o644)
    os.truncate(path, size)
    assert class_archive.find(JAVA) is None


def test_what_others_could_have_written_is_not_used(place: Path) -> None:
    path = added_archive(place)
    path.chmod(0o464)
    assert class_archive.find(JAVA) is None
    path.chmod(0o444)
    place.chmod(0o777)
    assert class_archive.find(JAVA) is None
    place.chmod(0o755)
    assert class_archive.find(JAVA) == path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_another_user_owns_is_not_used(place: Path) -> None:
    path = added_archive(place)
    os.chown(path, 65534, 65534)
    assert class_archive.find(JAVA) is None


def test_a_new_archive_takes_the_place_of_those_before(place: Path) -> None:
    added_archive(place)
    path = added_archive(place, "another Java", b"other classes")
    assert list(place.iterdir()) == [path] and class_archive.find("another Java") == path


def test_no_archive_is_used_where_archives_are_switched_off_or_have_no_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    added_archive(place)
    monkeypatch.setenv(class_archive.VARIABLE, "off")
    assert class_archive.folder() is None and class_archive.java_options(JAVA) == ""
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / 'with "quotes"'))
    assert class_archive.folder() is None
    monkeypatch.setenv(class_archive.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert class_archive.folder() == tmp_path / "mine" / "siltstone" / place.name


def java(options: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [java_command(), "-XX:+UseParallelGC", *shlex.split(options), *more, "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_java_continues_without_an_archive_that_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a real Java, in a folder with a space in its name; nothing of it comes to standard output."""
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "a cache"))
    version, place = java_version(), class_archive.folder()
    assert place is not None
    place.mkdir(parents=True)
    assert java(class_archive.dump_options(place / "made")).returncode == 0
    path = class_archive.add(place / "made", version)
    used = ("-Xlog:class+load",)
    assert "(top)" in java(class_archive.java_options(version), *used).stdout
    whole = bytearray(path.read_bytes())
    path.chmod(0o644)
    for start, end in ((len(whole) // 2, len(whole) // 2 + 4096), (0, len(whole))):
        whole[start:end] = bytes(byte ^ 0x55 for byte in whole[start:end])
        path.write_bytes(whole)
        completed = java(class_archive.java_options(version))
        assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
        assert "(top)" not in java(class_archive.java_options(version), *used).stdout
    path.unlink()
    assert class_archive.java_options(version) == ""


def test_warming_up_says_why_there_is_no_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "file"))
    warmup._start_spark(tmp_path)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "without a class archive" in message and "Not a directory" in message
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    warmup._start_spark(tmp_path)
    assert "Java is missing" in capsys.readouterr().err


def test_warming_up_with_archives_switched_off_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(class_archive.VARIABLE, "off")
    warmup._start_spark(tmp_path)
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())
