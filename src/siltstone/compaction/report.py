"""The results of cleanings: the reasons for discards, what may go wrong, a result for each log, and the
history on disk."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from siltstone.base import files
from siltstone.base.config import Setting
from siltstone.base.errors import CorruptFileError, SiltstoneError
from siltstone.log.names import TopicPartition


class Summable:
    """Base of dataclasses whose parts add up: the report on a log is the sum of its tasks' reports.

    Numbers and lists are added, dictionaries by key, and what is summable by its fields. Of anything else
    (a name, a flag, a failure) the first that is not empty stays. So a new figure is a field, no more.
    """

    __slots__ = ()

    def add(self, other: Self) -> None:
        """Add another part."""
        whole: Any = self
        for name in (each.name for each in fields(whole)):
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, Summable):
                mine.add(more)
            elif isinstance(mine, dict):
                for key, value in more.items():
                    mine[key] = mine[key] + value if key in mine else value
            elif isinstance(mine, int | float | list) and not isinstance(mine, bool):
                setattr(self, name, mine + more)
            else:
                setattr(self, name, mine or more)


# The reasons for discarding a record.
#
# The kernels' numbers, the counts in reports, the JSON, the tables of ``clean`` and ``explain``, the history
# and the log lines all follow this table. A new reason is a number and a field here, before ``expired``;
# ``rewrite`` counts it, and ``explain`` gives it to the records that it applies to (``_count_records``).
# ``verify`` has rules of its own on purpose: ``verify/findings``, ``verify/comparing``.

SUPERSEDED, TOMBSTONES, ABORTED, KEYLESS, MARKERS, EXPIRED = range(6)
"""Indexes into the kernels' counts, in the order of the fields of ``Discarded``."""
CLEANING_REASON_COUNT = EXPIRED
"""Reasons below this one are a cleaning's; the others are retention's, which removes whole segments."""


@dataclass(slots=True, kw_only=True)
class Discarded(Summable):
    """How many records were discarded, by reason; a superseded tombstone counts as superseded."""

    superseded: int = 0
    """A later record has the same key."""
    tombstones: int = 0
    """The key was deleted, and the delete horizon has passed."""
    aborted: int = 0
    """The record's transaction was aborted."""
    keyless: int = 0
    """The record has no key. (Kafka's cleaner always discards it, ours if
    ``RetentionRules.drop_keyless`` allows it.)"""
    markers: int = 0
    """A marker whose transaction has no records left, and whose delete horizon has passed."""
    expired: int = 0
    """Retention removed the segment, by time, size or the log start offset."""

    @classmethod
    def of(cls, counts: Iterable[int]) -> Discarded:
        """From counts in order of the reasons, as ``rewrite`` has them."""
        return cls(**dict(zip(REASONS, map(int, counts), strict=False)))

    @property
    def counts(self) -> dict[str, int]:
        """Counts by reason, in order."""
        return asdict(self)

    def total(self) -> int:
        """The sum over all reasons."""
        return sum(self.counts.values())


REASONS: tuple[str, ...] = tuple(field.name for field in fields(Discarded))
CLEANING_REASONS = REASONS[:CLEANING_REASON_COUNT]


@dataclass(slots=True, kw_only=True)
class RecordCounts(Summable):
    """What ``rewrite`` counts: the figures of a group, and in the sum those of a log.

    A new figure is a field here, and the line of ``Rewriter`` that counts it; its name is its key in the
    JSON. ``records_read`` = ``records_retained`` + those that a cleaning discarded; expired records were not
    read.
    """

    records_read: int = 0
    records_retained: int = 0
    discarded: Discarded = field(default_factory=Discarded)


CLEANED = "cleaned"
NOTHING_TO_DO = "nothing_to_do"
NOT_ELIGIBLE = "not_eligible"
SKIPPED = "skipped"
UNCLEANABLE = "uncleanable"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """The parts of an error by themselves, for scripts, as in ``SiltstoneError``; None where it has none."""

    code: str
    path: str | None = None
    position: int | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """Why a log is not compacted: ``status`` and ``reason`` as in ``LogResult``, and the details of the
    error. ``error`` is None where there was none: a rule excludes the log, or the run was stopped."""

    status: str
    reason: str
    details: ErrorDetails | None = None


def failure_of(error: Exception) -> LogFailure:
    """The failure that an error means: a damaged log is uncleanable, any other error has the status failed.

    The code is the error's; an OSError has the name of its ``errno`` (``ENOSPC``), anything else Kafka's
    ``UNKNOWN_SERVER_ERROR``.
    """
    if isinstance(error, SiltstoneError):
        status = UNCLEANABLE if isinstance(error, CorruptFileError) else FAILED
        details = ErrorDetails(code=error.code, path=error.path, position=error.position, advice=error.advice)
        return LogFailure(status=status, reason=str(error), details=details)
    if isinstance(error, OSError):
        path = str(error.filename) if error.filename else None
        details = ErrorDetails(code=errno.errorcode.get(error.errno or 0, "OS_ERROR"), path=path)
        reason = str(error.strerror or error)
        return LogFailure(status=FAILED, reason=f"{path}: {reason}" if path else reason, details=details)
    details = ErrorDetails(code="UNKNOWN_SERVER_ERROR")
    return LogFailure(status=FAILED, reason=f"{type(error).__name__}: {error}", details=details)


def first_failure(reports: Iterable[Any]) -> LogFailure | None:
    """The first failure among reports; each has a ``failure`` or None."""
    return next((report.failure for report in reports if report.failure is not None), None)


@dataclass(slots=True, kw_only=True)
class LogResult:
    """The result of one log. Bytes are of all its ``.log`` files, records of the whole log; ``counts`` are of
    the groups that were swapped in, with the records that retention removed.

    Offsets and records are None if the log was not read. ``status`` is cleaned, nothing_to_do,
    not_eligible, skipped, uncleanable or failed; ``reason`` is empty only for cleaned. ``failure``: the
    details of the error behind it, None without one.
    """

    topic: str
    partition: int
    directory: str
    status: str = SKIPPED
    reason: str = ""
    failure: ErrorDetails | None = None
    first_dirty_offset: int | None = None
    cleaned_end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int | None = None
    records_after: int | None = None
    counts: RecordCounts = field(default_factory=RecordCounts)
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
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def discarded(self) -> Discarded:
        """The records that the cleaning and retention discarded."""
        return self.counts.discarded

    @property
    def is_partly_cleaned(self) -> bool:
        """Were some groups swapped in before the log failed or the run stopped?"""
        changed = self.discarded.total() > 0 or self.segments_after != self.segments_before
        return changed and self.status != CLEANED

    def set_status(self, status: str, reason: str) -> LogResult:
        """Set status and reason, without an error behind them; returns the result."""
        return self.set_failure(LogFailure(status=status, reason=reason))

    def set_failure(self, failure: LogFailure) -> LogResult:
        """Set status, reason and the error's details; returns the result."""
        self.status, self.reason, self.failure = failure.status, failure.reason, failure.details
        return self

    def to_json(self) -> dict[str, object]:
        """The JSON object of ``siltstone clean``: the counts among the other keys, the discarded records as
        ``removed``, settings as {key: {value, source}}."""
        plain: dict[str, Any] = msgspec.to_builtins(replace(self, settings={}))
        plain |= plain.pop("counts")
        plain["removed"] = plain.pop("discarded")
        plain["seconds"] = round(self.seconds, 3)
        plain["settings"] = {
            name: {
                "value": list(one.value) if isinstance(one.value, tuple) else one.value,
                "source": one.source,
            }
            for name, one in self.settings.items()
        }
        return plain


def failures(results: list[LogResult]) -> list[LogResult]:
    """The results that make the command's exit status 1."""
    return [result for result in results if result.status in (FAILED, UNCLEANABLE)]


# The history of cleanings: ``siltstone-cleanings.jsonl`` in a log directory.
#
# Kafka's cleaner loses its statistics when the process ends. Here each result is a JSON object on a line, the
# newest last. A broker ignores files in the log directory::
#
#     {"began_ms": 1800000000000, "topic": "users", "partition": 0, "status": "cleaned", "reason": "",
#      "bytes_before": 5242880, "bytes_after": 1048576, "recopy_percent": 20.0, "seconds": 0.41,
#      "removed": {"superseded": 4096, "tombstones": 0, …}, …}
#
# Above ``MAX_BYTES`` the older half of the file is removed. The file is only shown to people, so it is not
# synced: a crash may leave a torn last line, which readers skip, and a writer ignores errors.

CLEANINGS_FILE = "siltstone-cleanings.jsonl"
MAX_BYTES = 1 << 20
_NOT_WRITTEN = ("directory", "settings")
_logger = logging.getLogger("siltstone.cleaner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """One log's cleaning: when it began (ms), and its result.

    Of an open log, records before and after are those of the cleaned segments only. ``settings`` of a result
    that was read from the file are empty.
    """

    began_ms: int
    result: LogResult

    @property
    def recopy_percent(self) -> float:
        """Bytes after over bytes before, in percent; 100 for an empty log."""
        before = self.result.bytes_before
        return 100 * self.result.bytes_after / before if before else 100.0

    def to_json(self) -> dict[str, object]:
        """The object of a line in the file."""
        shown = {name: value for name, value in self.result.to_json().items() if name not in _NOT_WRITTEN}
        return {"began_ms": self.began_ms, **shown, "recopy_percent": round(self.recopy_percent, 2)}


def read_cleanings(directory: Path) -> list[Cleaning]:
    """The history of a log directory, oldest first; empty without a file. Skips invalid lines. Raises
    OSError."""
    parsed = (_parse(line, directory) for line in _lines(directory))
    return [cleaning for cleaning in parsed if cleaning is not None]


def _lines(directory: Path) -> list[bytes]:
    """The complete lines of the file's last 2 * ``MAX_BYTES``, without line ends."""
    try:
        size = files.stat(directory / CLEANINGS_FILE).size
        with files.Reader(directory / CLEANINGS_FILE) as reader:
            raw = reader.read(max(size - 2 * MAX_BYTES, 0), 2 * MAX_BYTES)
    except FileNotFoundError:
        return []
    return raw.split(b"\n")[:-1]


def _parse(line: bytes, directory: Path) -> Cleaning | None:
    try:
        row: dict[str, Any] = json.loads(line)
        path = str(directory / str(TopicPartition(row["topic"], row["partition"])))
        counts = {**row, "discarded": row.get("removed", {})}
        result = {**row, "directory": path, "settings": {}, "counts": counts}
        return msgspec.convert({"began_ms": row["began_ms"], "result": result}, Cleaning)
    except (ValueError, KeyError, TypeError):
        return None


class History:
    """Writes cleanings to the history of their log directories. Thread-safe.

    A result other than cleaned is written once as long as its reason stays the same: an engine that does not
    start would fill the file.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[TopicPartition, str] = {}

    def keep(self, directory: Path, cleanings: Iterable[Cleaning]) -> None:
        """Append cleanings. Raises nothing: an OSError is logged as a warning."""
        with self._lock:
            new = [cleaning for cleaning in cleanings if self._is_news(cleaning)]
            if not new:
                return
            try:
                append_cleanings(directory, new)
            except OSError as error:
                _logger.warning(
                    "%s: the history of cleanings could not be written: %s; the logs are not affected",
                    directory / CLEANINGS_FILE,
                    error.strerror or error,
                )

    def _is_news(self, cleaning: Cleaning) -> bool:
        topic_partition = cleaning.result.topic_partition
        if cleaning.result.status == CLEANED:
            self._reasons.pop(topic_partition, None)
            return True
        before, self._reasons[topic_partition] = self._reasons.get(topic_partition), cleaning.result.reason
        return before != cleaning.result.reason


def append_cleanings(directory: Path, cleanings: Sequence[Cleaning]) -> None:
    """Append to a log directory's history; removes its older half when it is too large. Raises OSError."""
    path = directory / CLEANINGS_FILE
    added = b"".join(json.dumps(cleaning.to_json()).encode() + b"\n" for cleaning in cleanings)
    appender = files.Appender(path)
    with contextlib.closing(appender):
        if appender.size + len(added) <= MAX_BYTES:
            appender.write((b"\n" if _ends_amid_a_line(path, appender.size) else b"") + added)
            return
    _replace(path, [*_lines(directory), *added.splitlines()])


def _ends_amid_a_line(path: Path, size: int) -> bool:
    if not size:
        return False
    with files.Reader(path) as reader:
        return reader.read(size - 1, 1) != b"\n"


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    """Replace the file by the newest lines, up to half of ``MAX_BYTES``."""
    newest: list[bytes] = []
    free = MAX_BYTES // 2
    for line in reversed(lines):
        free -= len(line) + 1
        if free < 0:
            break
        newest.append(line + b"\n")
    files.replace(path, b"".join(reversed(newest)))
