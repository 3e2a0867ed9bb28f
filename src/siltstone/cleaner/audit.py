"""``--report``: who cleaned what, when, with which settings, and every file before and after by SHA-256.

The report goes as far as it can: what cannot be read is named with the error, and costs neither the run nor
the rest of the report.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from siltstone import files
from siltstone.cleaner.facts import LogState
from siltstone.cleaner.report import LogResult

Fingerprint = str | dict[str, str]
"""A file's SHA-256 in hex, or ``{"error": why it could not be read}``."""
Fingerprints = dict[str, dict[str, Fingerprint]]
"""By partition directory and name; the name ``.`` has the error of a directory that cannot be listed."""


def fingerprints(partitions: Sequence[Path]) -> Fingerprints:
    """SHA-256 of every file of some partition directories, or the error that kept it from being read."""
    return {str(partition): _fingerprints_in(partition) for partition in partitions}


def _fingerprints_in(partition: Path) -> dict[str, Fingerprint]:
    try:
        names = [entry.name for entry in files.entries(partition) if entry.is_file]
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {".": _unread(error)}
    return {name: _fingerprint(partition / name) for name in names}


def _fingerprint(path: Path) -> Fingerprint:
    try:
        return files.sha256(path)
    except OSError as error:
        return _unread(error)


def _unread(error: OSError) -> dict[str, str]:
    return {"error": error.strerror or str(error)}


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
    before: Fingerprints,
    after: Fingerprints,
    error: str | None = None,
) -> dict[str, object]:
    """The whole report as a plain dictionary. ``version`` is the program's; ``error``: why the run as a whole
    broke off, in which case nothing is known of its results."""
    return {
        "run": run,
        "version": version,
        "user": _user(),
        "host": socket.gethostname(),
        "started_ms": started_ms,
        "options": options,
        "error": error,
        "logs": [result.to_json() for result in results],
        "sha256_before": before,
        "sha256_after": after,
    }
