"""``files.is_locked``: seen from this process and from another, and nothing is touched by asking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from siltstone.base import files


def test_a_lock_of_this_process_is_seen_and_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not files.is_locked(path) and not path.exists()
    path.touch()
    lock = files.Lock(path)
    assert files.is_locked(path)
    assert locked_from_outside(path), "asking has not dropped it"
    lock.release()
    assert not files.is_locked(path)


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    program = (
        "import sys\nfrom siltstone.base import files\n"
        f"lock = files.Lock({str(path)!r})\nprint(1, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program + "sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "1\n"
        assert files.is_locked(path)
        holder.communicate("")
    assert not files.is_locked(path)


def locked_from_outside(path: Path) -> bool:
    program = f"from siltstone.base import files\nprint(files.is_locked({str(path)!r}))"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return completed.stdout == "True\n"
