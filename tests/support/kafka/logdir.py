"""A broker's log directory seen from outside: segments, checkpoints, copies. Uses no product code."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

CLEAN_MARKER = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What `listing` compares: a file's size and modification time."""

    size: int
    mtime_ns: int


def copy_of(log_dir: Path, target: Path) -> Path:
    """A copy of a stopped log directory, file times kept."""
    shutil.copytree(log_dir, target)
    return target


def listing(log_dir: Path) -> dict[str, FileState]:
    """Every file under a directory by relative path, lock files left out (a live broker touches them)."""
    files = (path for path in log_dir.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(log_dir)): _state(path) for path in files}


def closed_segments(log_dir: Path, topic: str, partition: int = 0) -> dict[str, FileState]:
    """The files of every segment but the active one."""
    folder = log_dir / f"{topic}-{partition}"
    active = active_base(log_dir, topic, partition)
    closed = [path for path in folder.iterdir() if path.name[:20].isdigit() and int(path.name[:20]) < active]
    return {path.name: _state(path) for path in closed}


def segment_bases(log_dir: Path, topic: str, partition: int = 0) -> list[int]:
    """Base offsets of the segments, ascending."""
    folder = log_dir / f"{topic}-{partition}"
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def active_base(log_dir: Path, topic: str, partition: int = 0) -> int:
    """Base offset of the active segment: cleaning never goes that far."""
    return segment_bases(log_dir, topic, partition)[-1]


def checkpoint(log_dir: Path, name: str) -> dict[tuple[str, int], int]:
    """One of the `*-offset-checkpoint` files: offset by topic and partition; {} without the file.

    A new one of the broker is empty for a moment.
    """
    path = log_dir / name
    if not path.exists() or path.stat().st_size == 0:
        return {}
    version, count, *entries = path.read_text().splitlines()
    assert (version, int(count)) == ("0", len(entries)), f"{path}: not a whole checkpoint"
    rows = (entry.rsplit(" ", 2) for entry in entries)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def cleaner_checkpoint(log_dir: Path, topic: str, partition: int = 0) -> int | None:
    """First dirty offset as checkpointed, or None."""
    return checkpoint(log_dir, "cleaner-offset-checkpoint").get((topic, partition))


def stray_files(log_dir: Path) -> list[str]:
    """What a cleaning must not leave in partition directories."""
    suffixes = {".cleaned", ".swap", ".deleted", ".tmp"}
    return [str(path) for path in log_dir.rglob("*") if path.suffix in suffixes]


def _state(path: Path) -> FileState:
    stat = path.stat()
    return FileState(size=stat.st_size, mtime_ns=stat.st_mtime_ns)
