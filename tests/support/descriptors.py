"""Which files this process has open."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path


def descriptors_of(path: Path) -> int:
    """How many descriptors of this process have the file open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), path.stat())
        except OSError:
            continue
    return count


def deleted_but_open(below: Path) -> list[str]:
    """The files below a path that are deleted and still open, so that they take space."""
    gc.collect()
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.endswith(" (deleted)") and target.startswith(str(below)):
                targets.append(target)
    return targets
