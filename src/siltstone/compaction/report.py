"""The results of cleanings: why records are discarded, why a log fails, a result for each log, and the
history of results on disk."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from siltstone.base import files
from siltstone.base.config import Setting
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import CorruptFileError, SiltstoneError
from siltstone.log.names import HasTopicPartition, TopicPartition


class Summable:
    """Base of dataclasses that add up: the report on a log is the sum of its tasks' reports.

    ``add`` adds field by field: numbers and lists are added, dictionaries key by key, and summable fields by
    their own ``add`` unless they are None. Of any other field (a name, a flag, a failure) the first value
    that is not empty stays. So a new figure of a report only needs a field.
    """

    __slots__ = ()

    def add(self, other: Self) -> None:
        """Add the report on another part to this one."""
        this: Any = self
        for name in [summed.name for summed in fields(this)]:
            value, added = getattr(self, name), getattr(other, name)
            if isinstance(value, Summable) and added is not None:
                value.add(added)
            elif isinstance(value, dict):
                for key, count in added.items():
                    value[key] = value[key] + count if key in value else count
            elif isinstance(value, int | float | list) and not isinstance(value, bool):
                setattr(self, name, value + added)
            else:
                setattr(self, name, value or added)


# The reasons for discarding a record.
#
# A reason's number here is its index in the kernels' counts; its field in ``Discarded`` is its name in the
# JSON (there ``removed``), the tables of ``clean`` and ``explain``, the history and the server's log
# messages. A new reason needs a number and a field, before ``expired``; ``rewrite`` and ``statistics``
# (``count_records``) have to count it, and ``commands.explaining`` describes it. ``verify`` checks
# cleanings by rules of its own, so it has a list of its own (``verify/findings``).

SUPERSEDED, TOMBSTONES, ABORTED, KEYLESS, MARKERS, EXPIRED = range(6)
"""The reasons' numbers, in the order of the fields of ``Discarded``."""
CLEANING_REASON_COUNT = EXPIRED
"""Reasons below this number are those of a cleaning; the others are those of retention, which removes whole
segments."""


@dataclass(slots=True, kw_only=True)
class Discarded(Summable):
    """How many records were discarded, by reason. A record has one reason: a tombstone that a later record
    supersedes is superseded."""

    superseded: int = 0
    """A later record has the same key."""
    tombstones: int = 0
    """The key was deleted, and the delete horizon has passed."""
    aborted: int = 0
    """The record's transaction was aborted."""
    keyless: int = 0
    """The record has no key. (Kafka's cleaner always discards it, Siltstone's only if
    ``RetentionRules.drop_keyless`` allows it.)"""
    markers: int = 0
    """A marker whose transaction has no records left, and whose delete horizon has passed."""
    expired: int = 0
    """Retention removed the segment, by time, size or the log start offset."""

    @classmethod
    def of(cls, counts: Iterable[int]) -> Discarded:
        """From counts in the order of the reasons' numbers; reasons without a count have 0."""
        return cls(**dict(zip(REASONS, map(int, counts), strict=False)))

    @property
    def counts(self) -> dict[str, int]:
        """Counts by reason, in order."""
        return asdict(self)

    def total(self) -> int:
        """The sum over all reasons."""
        return sum(self.counts.values())


REASONS: tuple[str, ...] = tuple(field.name for field in fields(Discarded))
"""The reasons' names, by number."""
CLEANING_REASONS = REASONS[:CLEANING_REASON_COUNT]
"""The names of the reasons for which a cleaning discards records: all but ``expired``."""


@dataclass(slots=True, kw_only=True)
class RecordCounts(Summable):
    """The counts of ``Rewriter``: the figures of one group, or of all groups of a log.

    ``records_read`` = ``records_retained`` + the records that the cleaning discarded. (Records that expired
    were not read.) The name of a field is its key in the JSON.
    """

    records_read: int = 0
    records_retained: int = 0
    discarded: Discarded = field(default_factory=Discarded)


# The statuses of a ``LogResult``.

CLEANED = "cleaned"
"""New segments were swapped in, or retention removed segments."""
NOTHING_TO_DO = "nothing_to_do"
"""The log has nothing below the first uncleanable offset that a cleaning could remove."""
NOT_ELIGIBLE = "not_eligible"
"""The log is not dirty enough (``min.cleanable.dirty.ratio``, ``max.compaction.lag.ms``)."""
SKIPPED = "skipped"
"""A rule excludes the log (it has records without a key, …), or the run stopped before the log was done."""
UNCLEANABLE = "uncleanable"
"""The log is damaged, or contradicts itself."""
FAILED = "failed"
"""An error that is not the log's: a full disk, a lost worker, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """The parts of an error as separate fields, for scripts: see ``SiltstoneError``. A part that the error
    does not have is None."""

    code: str
    path: str | None = None
    position: int | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """Why a log was not cleaned, whether that is an error or not: ``status`` and ``reason`` as in
    ``LogResult``.

    ``details``: the parts of the error that is the cause; None if the log was skipped, since a rule excludes
    it or the run was stopped.
    """

    status: str
    reason: str
    details: ErrorDetails | None = None


def failure_of(error: Exception) -> LogFailure:
    """The failure of a log that raised ``error``. A damaged log is uncleanable, any other one failed.

    The failure's code is that of a ``SiltstoneError``, for an OSError the name of its ``errno``, such as
    ``ENOSPC``, and for any other error Kafka's ``UNKNOWN_SERVER_ERROR``.
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
    """The first failure of some reports, None without one; each report has a ``failure``, which may be
    None."""
    return next((report.failure for report in reports if report.failure is not None), None)


@decoded_in_threads
@dataclass(slots=True, kw_only=True)
class LogResult(HasTopicPartition):
    """The result of one log. The names of its fields are keys in the JSON.

    ``directory``: the partition's. ``status``: cleaned, nothing_to_do, not_eligible, skipped, uncleanable or
    failed; ``reason``: why, empty only for cleaned. ``failure``: the details of the error that is the cause,
    None without one. ``first_dirty_offset``: where the dirty section began; ``cleaned_end_offset``: the end
    of the cleaned range. ``bytes_before``, ``bytes_after``: of all ``.log`` files of the log.
    ``records_before``, ``records_after``: of the whole log, but of an open one only of the cleaned segments.
    Offsets and records are None if the log was not read. ``segments_before``, ``segments_after``: how many
    segments it has; ``notes``: remarks for the user.

    ``counts``: of the groups that were swapped in, with the records that retention removed. ``groups``: how
    many segment groups were planned. ``dirty_ratio``: before the cleaning, None if the log was not planned.
    ``distinct_dirty_keys``: of the dirty section, None if it was not read. ``kafka_passes``: how many times
    Kafka's cleaner would have to clean the log, since its offset map holds only so many keys.
    ``checkpoint_reset``: the new cleaner checkpoint, if the old one was outside the log, else None.
    ``seconds``: the time of the work. ``settings``: the settings in force, by key.
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
    def discarded(self) -> Discarded:
        """The records that the cleaning and retention discarded."""
        return self.counts.discarded

    @property
    def is_partly_cleaned(self) -> bool:
        """Were some groups swapped in before the log failed or the run stopped?"""
        changed = self.discarded.total() > 0 or self.segments_after != self.segments_before
        return changed and self.status != CLEANED

    @property
    def has_changed(self) -> bool:
        """Was the log cleaned, or a part of it?"""
        return self.status == CLEANED or self.is_partly_cleaned

    def set_status(self, status: str, reason: str) -> LogResult:
        """Set a status that has no error as its cause, and the reason; returns this result."""
        return self.set_failure(LogFailure(status=status, reason=reason))

    def set_failure(self, failure: LogFailure) -> LogResult:
        """Set status, reason and the error's details; returns this result."""
        self.status, self.reason, self.failure = failure.status, failure.reason, failure.details
        return self

    def to_json(self) -> dict[str, object]:
        """The JSON object of ``siltstone clean``. The fields of ``counts`` are among the other keys;
        discarded records have the key ``removed``, and settings are {key: {value, source}}."""
        plain: dict[str, Any] = msgspec.to_builtins(replace(self, settings={}))
        plain |= plain.pop("counts")
        plain["removed"] = plain.pop("discarded")
        plain["seconds"] = round(self.seconds, 3)
        plain["settings"] = {
            name: {
                "value": list(setting.value) if isinstance(setting.value, tuple) else setting.value,
                "source": setting.source,
            }
            for name, setting in self.settings.items()
        }
        return plain


def failures(results: Iterable[LogResult]) -> list[LogResult]:
    """The results of logs that failed or are uncleanable: with one of these ``clean`` exits with status 1."""
    return [result for result in results if result.status in (FAILED, UNCLEANABLE)]


# The history of cleanings: ``siltstone-cleanings.jsonl`` in a log directory.
#
# Kafka's cleaner loses its statistics when the process ends. Here the result of each cleaning, and each new
# reason why a log failed, is a JSON object on a line, the newest last. A broker ignores files in the log
# directory::
#
#     {"began_ms": 1800000000000, "topic": "users", "partition": 0, "status": "cleaned", "reason": "",
#      "bytes_before": 5242880, "bytes_after": 1048576, "recopy_percent": 20.0, "seconds": 0.41,
#      "removed": {"superseded": 4096, "tombstones": 0, …}, …}
#
# Above ``HISTORY_BYTES_MAX`` the older half of the file is removed, but for lines that name folders with
# kept originals, which an erasure searches. The file is not synced: a crash may leave an incomplete last
# line, which readers skip. An error in writing it is only logged.

CLEANINGS_FILE = "siltstone-cleanings.jsonl"
HISTORY_BYTES_MAX = 1 << 20
_FIELDS_NOT_WRITTEN = ("directory", "settings")
"""Keys of a result that a line of the file leaves out: the partition's directory follows from where the
file is, and settings are long."""


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """One log's cleaning: when it began (ms since the epoch), and its result. ``kept_originals``: the folder
    with the originals that ``clean --keep-originals`` kept of the log, None without one.

    Of a log that a server has open, records before and after are only those of the cleaned segments. A
    result that was read from the file has no ``settings``.
    """

    began_ms: int
    result: LogResult
    kept_originals: str | None = None

    @property
    def recopy_percent(self) -> float:
        """Bytes after the cleaning in percent of those before (Kafka's ``cleaner-recopy-percent``); 100 for
        an empty log."""
        before = self.result.bytes_before
        return 100 * self.result.bytes_after / before if before else 100.0

    @property
    def keep_folder(self) -> Path | None:
        """The folder KEEP of ``kept_originals`` (KEEP/RUN/topic-N), None without one."""
        return None if self.kept_originals is None else Path(self.kept_originals).parent.parent

    def to_json(self) -> dict[str, object]:
        """The object of a line in the file."""
        written = {
            key: value for key, value in self.result.to_json().items() if key not in _FIELDS_NOT_WRITTEN
        }
        kept = {} if self.kept_originals is None else {"kept_originals": self.kept_originals}
        return {"began_ms": self.began_ms, **written, "recopy_percent": round(self.recopy_percent, 2), **kept}


def read_cleanings(directory: Path) -> list[Cleaning]:
    """The history of a log directory, oldest first; empty without a file. Skips lines that are not the JSON
    of a cleaning. Raises OSError."""
    parsed = (_parse(line, directory) for line in _lines(directory))
    return [cleaning for cleaning in parsed if cleaning is not None]


def _lines(directory: Path) -> list[bytes]:
    """The complete lines of the file's last 2 * ``HISTORY_BYTES_MAX`` bytes, without line ends; the first may
    be cut off."""
    try:
        size = files.stat(directory / CLEANINGS_FILE).size
        with files.Reader(directory / CLEANINGS_FILE) as reader:
            raw = reader.read(max(size - 2 * HISTORY_BYTES_MAX, 0), 2 * HISTORY_BYTES_MAX)
    except FileNotFoundError:
        return []
    return raw.split(b"\n")[:-1]


def _parse(line: bytes, directory: Path) -> Cleaning | None:
    """The cleaning of a line, None if the line has none."""
    try:
        row: dict[str, Any] = json.loads(line)
        path = str(directory / str(TopicPartition(row["topic"], row["partition"])))
        # ``to_json`` backwards. Keys of the row that a class does not have are ignored.
        counts = {**row, "discarded": row.get("removed", {})}
        result = {**row, "directory": path, "settings": {}, "counts": counts}
        kept = row.get("kept_originals")
        return msgspec.convert(
            {"began_ms": row["began_ms"], "result": result, "kept_originals": kept}, Cleaning
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def append_cleanings(directory: Path, cleanings: Sequence[Cleaning]) -> None:
    """Append to a log directory's history; removes its older half when it is too large
    (``_replace_by_newest``). Raises OSError."""
    path = directory / CLEANINGS_FILE
    added = b"".join(json.dumps(cleaning.to_json()).encode() + b"\n" for cleaning in cleanings)
    appender = files.Appender(path)
    with contextlib.closing(appender):
        if appender.size + len(added) <= HISTORY_BYTES_MAX:
            appender.write((b"\n" if ends_within_line(path, appender.size) else b"") + added)
            return
    _replace_by_newest(path, [*_lines(directory), *added.splitlines()])


def ends_within_line(path: Path, size: int) -> bool:
    """Did a crash leave an incomplete last line? ``size``: of the file."""
    if not size:
        return False
    with files.Reader(path) as reader:
        return reader.read(size - 1, 1) != b"\n"


def _replace_by_newest(path: Path, lines: Sequence[bytes]) -> None:
    """Replace the file by the newest of ``lines``, up to half of ``HISTORY_BYTES_MAX``, after those of the
    others that ``_naming_originals`` chooses."""
    newest: list[bytes] = []
    free = HISTORY_BYTES_MAX // 2
    for line in reversed(lines):
        free -= len(line) + 1
        if free < 0:
            break
        newest.append(line + b"\n")
    older = _naming_originals(lines[: len(lines) - len(newest)], path.parent)
    files.replace(path, b"".join([*older, *reversed(newest)]))


def _naming_originals(lines: Sequence[bytes], directory: Path) -> list[bytes]:
    """Of lines that have to go, the newest one for each folder KEEP that is still there, with line ends: what
    was kept in KEEP has to be found by an erasure. At most a quarter of ``HISTORY_BYTES_MAX``."""
    chosen = dict[Path, bytes]()
    free = HISTORY_BYTES_MAX // 4
    for line in reversed(lines):
        cleaning = _parse(line, directory) if b'"kept_originals"' in line else None
        keep = None if cleaning is None else cleaning.keep_folder
        if keep is None or keep in chosen or not files.exists(keep):
            continue
        free -= len(line) + 1
        if free < 0:
            break
        chosen[keep] = line + b"\n"
    return list(reversed(chosen.values()))
