"""What came of a log's compactions, kept beside its ledger (Pulsar's ``LongRunningProcessStatus``).

::

    .compacted/status.json    {"version": 1, "status": "SUCCESS", "lastError": "", "beganMs": …, "endedMs": …,
                               "succeeded": 3, "failed": 0, "removed": 4711, "entries": 12, "size": 980,
                               "readBytes": 52428800, "writtenBytes": 980, "seconds": 0.41}
    .compacted/running        claimed by whoever compacts; the claim ends with its process

Pulsar forgets all of it at a restart. Nothing is decided by the status: one that makes no sense is shown as
an error, and the next compaction replaces it. RUNNING without a claim is what a process left that died.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.compaction.ledger.engine import CompactionResult
from siltstone.log.directory import has_own_folder
from siltstone.log.names import COMPACTED

NOT_RUN, RUNNING, SUCCESS, ERROR = "NOT_RUN", "RUNNING", "SUCCESS", "ERROR"
STATUSES = (NOT_RUN, RUNNING, SUCCESS, ERROR)
INTERRUPTED = "interrupted: the process that compacted it ended before it was done; nothing is lost"
STATUS_FILE, CLAIM_FILE = "status.json", "running"
_VERSION = 1
_COUNTS = ("succeeded", "failed", "removed", "entries", "size", "read_bytes", "written_bytes")
_NAMES = {"last_error": "lastError", "began_ms": "beganMs", "ended_ms": "endedMs"} | {
    "read_bytes": "readBytes",
    "written_bytes": "writtenBytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStatus:
    """``status`` and ``last_error`` as Pulsar has them; times by the clock, None: never.

    ``succeeded``, ``failed``: runs. ``removed``: records that all of them left out or hid. Of the last
    success: the ledger's ``entries`` and ``size``, bytes read and written, ``seconds``.
    """

    status: str = NOT_RUN
    last_error: str = ""
    began_ms: int | None = None
    ended_ms: int | None = None
    succeeded: int = 0
    failed: int = 0
    removed: int = 0
    entries: int = 0
    size: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    seconds: float = 0.0

    def begun(self, now_ms: int) -> CompactionStatus:
        """A compaction runs."""
        return replace(self, status=RUNNING, last_error="", began_ms=now_ms, ended_ms=None)

    def done(self, now_ms: int, result: CompactionResult) -> CompactionStatus:
        """It has succeeded. One that found nothing new leaves the figures of the last one that did."""
        after = replace(self, status=SUCCESS, last_error="", ended_ms=now_ms, succeeded=self.succeeded + 1)
        if not result.changed:
            return after
        return replace(
            after,
            removed=self.removed + result.removed.total + result.hidden,
            entries=result.entries,
            size=result.size,
            read_bytes=result.read_bytes,
            written_bytes=result.written_bytes,
            seconds=round(result.seconds, 3),
        )

    def failed_with(self, now_ms: int, reason: str) -> CompactionStatus:
        """It came to nothing."""
        return replace(self, status=ERROR, last_error=reason, ended_ms=now_ms, failed=self.failed + 1)

    def to_json(self) -> dict[str, object]:
        """All of it, by the file's names."""
        return {_NAMES.get(each.name, each.name): getattr(self, each.name) for each in fields(self)}


def status_of(partition: Path, *, running: bool | None = None) -> CompactionStatus:
    """What came of a partition's compactions, or that one runs (None: find out). Raises OSError."""
    found = _read(partition / COMPACTED / STATUS_FILE)
    if found.status == RUNNING and not (is_running(partition) if running is None else running):
        return replace(found, status=ERROR, last_error=INTERRUPTED, failed=found.failed + 1)
    return found


def _read(path: Path) -> CompactionStatus:
    try:
        return _parse(json.loads(files.read_bytes(path)))
    except (FileNotFoundError, NotADirectoryError):
        return CompactionStatus()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return CompactionStatus(status=ERROR, last_error=f"{path}: no status ({error})")


def _parse(found: dict[str, Any]) -> CompactionStatus:
    if found["version"] != _VERSION or found["status"] not in STATUSES:
        raise ValueError(f"version {found['version']}, status {found['status']}")
    began_ms, ended_ms = (
        None if found[name] is None else int(found[name]) for name in ("beganMs", "endedMs")
    )
    counts = {name: int(found[_NAMES.get(name, name)]) for name in _COUNTS}
    return CompactionStatus(
        status=found["status"],
        last_error=str(found["lastError"]),
        began_ms=began_ms,
        ended_ms=ended_ms,
        seconds=float(found["seconds"]),
        **counts,
    )


def write_status(partition: Path, status: CompactionStatus) -> None:
    """Keep it, durably; the partition's directory must be there. Raises OSError."""
    _make_folder(partition)
    text = json.dumps({"version": _VERSION, **status.to_json()}) + "\n"
    files.replace(partition / COMPACTED / STATUS_FILE, text.encode())


def _make_folder(partition: Path) -> None:
    if not has_own_folder(partition, COMPACTED):
        files.make_directory(partition / COMPACTED)
        files.sync_directory(partition)


def claim_run(partition: Path) -> files.Flock | None:
    """The right to compact a partition, until it is released; None while somebody has it. Raises OSError."""
    _make_folder(partition)
    path = partition / COMPACTED / CLAIM_FILE
    with contextlib.suppress(FileExistsError):
        files.write_new(path, b"")
        files.inherit_owner(path)
    try:
        return files.Flock(path, exclusive=True)
    except BlockingIOError:
        return None


def is_running(partition: Path) -> bool:
    """Does a process compact the partition right now? Asks only."""
    try:
        files.Flock(partition / COMPACTED / CLAIM_FILE).release()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def of_topic(parts: list[CompactionStatus]) -> CompactionStatus:
    """The status of a topic out of its partitions': one that runs first, then one that failed.

    Runs are counted together, figures added up.
    """
    if len(parts) == 1:
        return parts[0]
    worst = next(
        (each for status in (RUNNING, ERROR, SUCCESS) for each in parts if each.status == status),
        CompactionStatus(),
    )
    sums = {name: sum(getattr(each, name) for each in parts) for name in _COUNTS}
    return replace(worst, seconds=sum(each.seconds for each in parts), **sums)
