"""What a run says of each log: the JSON of ``siltstone clean`` and what the table is drawn from."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from siltstone.base import files
from siltstone.base.config import Setting
from siltstone.compaction.discards import REASONS, Discarded
from siltstone.log.names import TopicPartition

CLEANED = "cleaned"
NOTHING_TO_DO = "nothing_to_do"
NOT_ELIGIBLE = "not_eligible"
SKIPPED = "skipped"
UNCLEANABLE = "uncleanable"
FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class LogResult:
    """One log's outcome. Bytes are of all its ``.log`` files, records of the whole log.

    Offsets and records are None where the log was not looked into. ``status`` is cleaned, nothing_to_do,
    not_eligible, skipped, uncleanable or failed; ``reason`` is empty only for cleaned.
    """

    topic: str
    partition: int
    directory: str
    status: str = SKIPPED
    reason: str = ""
    first_dirty_offset: int | None = None
    cleaned_end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int | None = None
    records_after: int | None = None
    removed: Discarded = field(default_factory=Discarded)
    segments_before: int = 0
    segments_after: int = 0
    groups: int = 0
    distinct_dirty_keys: int | None = None
    kafka_passes: int | None = None
    dirty_ratio: float | None = None
    checkpoint_reset: int | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_partly_cleaned(self) -> bool:
        """Was the log given up, or stopped, when some of its groups were swapped in?"""
        changed = self.removed.total() > 0 or self.segments_after != self.segments_before
        return changed and self.status != CLEANED

    def stop(self, status: str, reason: str) -> LogResult:
        """The same log with this outcome."""
        self.status, self.reason = status, reason
        return self

    def to_json(self) -> dict[str, object]:
        """A plain dictionary for ``json``, settings as {key: {value, source}}."""
        found = asdict(self)
        found["seconds"] = round(self.seconds, 3)
        found["settings"] = {
            name: {"value": list(s.value) if isinstance(s.value, tuple) else s.value, "source": s.source}
            for name, s in self.settings.items()
        }
        return found


def failures(results: list[LogResult]) -> list[LogResult]:
    """Those that make the command's exit status 1."""
    return [result for result in results if result.status in (FAILED, UNCLEANABLE)]


# What cleanings did, kept on disk: ``siltstone-cleanings.jsonl`` in the root of a log directory.
#
# Kafka's cleaner forgets its statistics with the process. Here each result is one JSON object a line, the
# newest last, in the directory that holds the partition, where a broker passes files over::
#
#     {"began_ms": 1800000000000, "topic": "users", "partition": 0, "status": "cleaned", "reason": "",
#      "bytes_before": 5242880, "bytes_after": 1048576, "recopy_percent": 20.0, "seconds": 0.41,
#      "removed": {"superseded": 4096, "tombstones": 0, …}, …}
#
# The file is bounded: over ``MOST_BYTES`` its older half goes. Nothing is done by it but to show what was, so
# it is not synced; a crash may tear its last line, which is passed over then, and whoever cannot write it
# goes on without.

CLEANINGS_FILE = "siltstone-cleanings.jsonl"
MOST_BYTES = 1 << 20
_NOT_KEPT = ("directory", "settings")
_logger = logging.getLogger("siltstone.cleaner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """One log's cleaning: when it began (ms), and its result.

    Bytes and records of the result are those of the segments that were there; of a log that was open, records
    are those of the cleaned ones only. ``settings`` and notes of a result that was read back are empty.
    """

    began_ms: int
    result: LogResult

    @property
    def recopy_percent(self) -> float:
        """Bytes after over bytes before, in percent; 100 for an empty log."""
        before = self.result.bytes_before
        return 100 * self.result.bytes_after / before if before else 100.0

    def to_json(self) -> dict[str, object]:
        """The object of a line."""
        found = asdict(self.result)
        for name in _NOT_KEPT:
            del found[name]
        found["seconds"] = round(self.result.seconds, 3)
        return {"began_ms": self.began_ms, **found, "recopy_percent": round(self.recopy_percent, 2)}


def read_cleanings(directory: Path) -> list[Cleaning]:
    """What a log directory's file holds, oldest first; empty without one. Raises OSError.

    Lines that make no sense are passed over.
    """
    return [each for each in (_parse(line, directory) for line in _lines(directory)) if each is not None]


def _lines(directory: Path) -> list[bytes]:
    """The whole lines, without their ends; all that is read is bounded."""
    try:
        size = files.stat(directory / CLEANINGS_FILE).size
        with files.Reader(directory / CLEANINGS_FILE) as reader:
            raw = reader.read(max(size - 2 * MOST_BYTES, 0), 2 * MOST_BYTES)
    except FileNotFoundError:
        return []
    return raw.split(b"\n")[:-1]


def _parse(line: bytes, directory: Path) -> Cleaning | None:
    try:
        found: dict[str, Any] = json.loads(line)
        removed = {name: int(found["removed"].get(name, 0)) for name in REASONS}
        known = {
            each.name: found[each.name]
            for each in fields(LogResult)
            if each.name in found and each.name not in (*_NOT_KEPT, "removed", "topic", "partition")
        }
        where = TopicPartition(str(found["topic"]), int(found["partition"]))
        result = LogResult(
            topic=where.topic,
            partition=where.partition,
            directory=str(directory / str(where)),
            removed=Discarded(**removed),
            **known,
        )
        result.bytes_before, result.bytes_after = int(result.bytes_before), int(result.bytes_after)
        result.seconds, result.status = float(result.seconds), str(result.status)
        return Cleaning(began_ms=int(found["began_ms"]), result=result)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


class History:
    """Writes cleanings down, each in the directory of its partition. Safe for several threads.

    A failure that is the one that its log had before is not written again: an engine that cannot be started
    would fill the file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[TopicPartition, str] = {}

    def keep(self, directory: Path, cleanings: Iterable[Cleaning]) -> None:
        """Append them; a disk that does not take them is warned of. Raises nothing."""
        with self._lock:
            new = [each for each in cleanings if self._is_news(each)]
            if not new:
                return
            try:
                append_cleanings(directory, new)
            except OSError as error:
                _logger.warning("%s: not written: %s", directory / CLEANINGS_FILE, error.strerror or error)

    def _is_news(self, cleaning: Cleaning) -> bool:
        where = cleaning.result.where
        if cleaning.result.status == CLEANED:
            self._failures.pop(where, None)
            return True
        before, self._failures[where] = self._failures.get(where), cleaning.result.reason
        return before != cleaning.result.reason


def append_cleanings(directory: Path, cleanings: Sequence[Cleaning]) -> None:
    """Add lines to a log directory's file; its older half goes when it is too large. Raises OSError."""
    path = directory / CLEANINGS_FILE
    added = b"".join(json.dumps(each.to_json()).encode() + b"\n" for each in cleanings)
    appender = files.Appender(path)
    with contextlib.closing(appender):
        if appender.size + len(added) <= MOST_BYTES:
            appender.write((b"\n" if _ends_amid_a_line(path, appender.size) else b"") + added)
            return
    _replace(path, [*_lines(directory), *added.splitlines()])


def _ends_amid_a_line(path: Path, size: int) -> bool:
    if not size:
        return False
    with files.Reader(path) as reader:
        return reader.read(size - 1, 1) != b"\n"


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    """The newest lines that are half of what there may be."""
    kept: list[bytes] = []
    room = MOST_BYTES // 2
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line + b"\n")
    files.replace(path, b"".join(reversed(kept)))
