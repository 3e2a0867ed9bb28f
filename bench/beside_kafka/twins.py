"""Twin copies of a pristine directory, and the page cache before a run.

Closed segments are hard links unless real copies are asked for: both cleaners only read, rename and unlink
them, so the twins read the very same pages of the page cache. Everything else (indexes, active segments,
checkpoints, metadata) is copied, but for what the broker's own cleaning left as ``.deleted``: a broker
removes that as it starts, before anything is timed. ``unchanged`` makes sure that nobody wrote into a linked
file.

A file system looks hard before it uses an inode again that was freed a minute ago (ext4's
``recently_deleted``), 0.7 ms for a new file after a twin of many partitions was removed. Neither cleaner is
to pay for that: such twins are put aside until all is measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.support.kafka.logdir import listing

_READ_BYTES = 4 << 20


@contextlib.contextmanager
def twin_of(pristine: Path, *, real: bool, aside: Path | None = None) -> Iterator[Path]:
    """A twin beside it, gone afterwards, into the folder ``aside`` if told; ``real``: no hard links.

    Raises RuntimeError, see ``unchanged``.
    """
    twin = pristine.with_name("twin")
    shutil.rmtree(twin, ignore_errors=True)
    before = listing(pristine)
    for source in sorted(pristine.rglob("*")):
        target = twin / source.relative_to(pristine)
        if source.suffix == ".deleted":
            continue
        if source.is_dir():
            target.mkdir(parents=True)
        elif not real and source.suffix == ".log" and _is_closed(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    try:
        yield twin
    finally:
        if aside is None:
            shutil.rmtree(twin)
        else:
            aside.mkdir(exist_ok=True)
            twin.rename(aside / str(len(list(aside.iterdir()))))
        shutil.rmtree(twin.with_name("twin.broker"), ignore_errors=True)
    if listing(pristine) != before:
        raise RuntimeError(f"{pristine}: a linked segment was written to; produce it anew")


def settle(directory: Path, *, cold: bool) -> None:
    """What is dirty goes to the disk; then every file is read once, or, when ``cold``, none is cached."""
    os.sync()
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if cold:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while os.read(descriptor, _READ_BYTES):
                    pass
        finally:
            os.close(descriptor)


def copy_closed(directory: Path, topic: str, target: Path) -> None:
    """What the disk takes to copy a topic's closed segments, one after another, each with fsync."""
    target.mkdir()
    for number, path in enumerate(sorted(directory.glob(f"{topic}-*/*.log"))):
        if _is_closed(path):
            with path.open("rb") as source, (target / str(number)).open("wb") as file:
                shutil.copyfileobj(source, file, _READ_BYTES)
                file.flush()
                os.fsync(file.fileno())


def _is_closed(log: Path) -> bool:
    return log.name != max(path.name for path in log.parent.glob("*.log"))
