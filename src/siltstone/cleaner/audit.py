"""``--report``: who cleaned what, when, with which settings, and every file before and after by SHA-256."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from siltstone import files
from siltstone.cleaner.facts import LogState
from siltstone.cleaner.report import LogResult


def fingerprints(partitions: Sequence[Path]) -> dict[str, dict[str, str]]:
    """SHA-256 of every file of some partition directories: {directory: {name: hex}}."""
    return {
        str(partition): {
            entry.name: files.sha256(partition / entry.name)
            for entry in (files.entries(partition) if files.is_directory(partition) else [])
            if entry.is_file
        }
        for partition in partitions
    }


def concerned(states: Sequence[LogState]) -> list[Path]:
    """The partition directories that a run may change."""
    return [state.path for state in states if state.config is not None and "compact" in state.config.policies]


def _user() -> str:
    """Who we are; the number where no name belongs to it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def audit(
    *,
    run: str,
    version: str,
    started_ms: int,
    options: dict[str, object],
    results: Sequence[LogResult],
    before: dict[str, dict[str, str]],
    after: dict[str, dict[str, str]],
) -> dict[str, object]:
    """The whole report as a plain dictionary. ``version`` is the program's."""
    return {
        "run": run,
        "version": version,
        "user": _user(),
        "host": socket.gethostname(),
        "started_ms": started_ms,
        "options": options,
        "logs": [result.to_json() for result in results],
        "sha256_before": before,
        "sha256_after": after,
    }
