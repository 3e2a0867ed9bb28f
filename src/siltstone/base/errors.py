"""Every error that Siltstone raises on purpose, as a tree.

::

    SiltstoneError
    ├── UsageError               wrong flags or values: the command line exits with 2
    │   ├── UnknownSettingError  no setting has this name
    │   ├── UnknownRecordError   a log has no record at an offset
    │   ├── TooManyKeysError     the view latest of a log would take more memory than it may have
    │   ├── UnknownKeywordError  (and TypeError) a keyword that a function does not have
    │   └── ReadOnlyError        (and AttributeError) a change of logs that are open for reading
    ├── NotALogDirectoryError    the path is no Kafka log or partition directory
    ├── DirectoryLockedError     a live broker (or another Siltstone) holds the directory's ``.lock``
    ├── DirectoryRefusedError    the directory is not in a state in which it may be changed
    │   └── UnsafeFileError      a link, a device or another user's file has the name of one of Kafka's files
    ├── CorruptFileError         a checkpoint, index, snapshot or metadata file is not in its format
    │   └── CorruptRecordError   a batch or record is not in Kafka's format
    ├── LedgerError              a file of a compacted ledger is missing or damaged
    ├── CheckFailedError         a written file, a count or the result of a cleaning is wrong
    ├── SourceChangedError       a file or log has changed since it was planned to be read
    ├── UndoStoppedError         an undo stopped half-way: the message says which originals were restored
    ├── EngineError              Spark or Java is missing, or a job could not be run
    ├── BrokerRefusedError       a running Kafka refuses a request
    ├── BrokerUnreachableError   a running Kafka does not answer
    ├── UndecodableValueError    a key or value is not in the format that ``decode`` was passed
    ├── TableChangedError        another writer has changed the table since an export into it began
    ├── CompactionFailedError    a side-by-side compaction failed: the ledger is unchanged
    ├── CompactionInProgressError  a second side-by-side compaction while one runs
    ├── BusyError                too much work at the same time, or other work on the target
    ├── UnknownJobError          no job has this id, or it was forgotten
    ├── JobCancelledError        the job was cancelled
    ├── ChangedMeanwhileError    what was to be changed is no longer what the caller has seen
    ├── NotAllowedError          the user's role does not allow it, or the server changes nothing
    ├── CleaningAbortedError     the cleaning of a log was aborted: nothing more is swapped
    └── LogError                 a refused call on a log, with Kafka's ``code`` and ``error_code``
        ├── OffsetOutOfRangeError               1
        ├── CorruptMessageError                 2
        ├── UnknownTopicError                   3
        ├── MessageTooLargeError               10
        ├── InvalidTopicError                  17
        ├── RecordListTooLargeError            18
        ├── TopicExistsError                   36
        ├── InvalidPartitionsError             37
        ├── InvalidConfigError                 40
        │   └── UnknownConfigError             40: no setting has this name
        ├── InvalidQuotaError                  42
        ├── PolicyViolationError               44
        ├── OutOfOrderSequenceError            45
        ├── InvalidProducerEpochError          47
        ├── InvalidTransactionStateError       48
        ├── TransactionCoordinatorFencedError  52
        ├── StorageError                       56
        ├── UnknownGroupError                  69
        └── RecordRefusedError   the contents of a batch are invalid: ``record_index``, ``record_errors``
            ├── InvalidTimestampError          32
            └── InvalidRecordError             87
                └── UnreadableBatchError       -1: Kafka answers as for a failure of its own

A bug is an ``AssertionError``; the environment's own errors stay ``OSError``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

_STORE = re.compile(r"^(s3a?|gs|abfss?|az|hdfs):/(?!/)")
"""The start of an object's path in a ``Path``, which has one slash only."""


_translations: list[Callable[[str], str]] = []
"""The functions that ``shown_path`` applies to a path."""


def show_paths_with(translation: Callable[[str], str]) -> None:
    """Let ``shown_path`` apply ``translation`` to its paths. It replaces paths that only the program itself
    uses (``joined:/…``), also within a longer text."""
    _translations.append(translation)


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as it is shown: that of an object store with both slashes after its scheme."""
    text = os.fspath(path)
    for translation in _translations:
        text = translation(text)
    return with_both_slashes(text)


def with_both_slashes(text: str) -> str:
    """The path of an object as its address: a ``Path`` keeps only one of the slashes after the scheme."""
    return _STORE.sub(r"\1://", text)


class SiltstoneError(Exception):
    """The root of all errors. ``str()`` is one line: ``path: byte POSITION: reason; advice``, without the
    parts that are None.

    ``code``: a stable name of the kind of error, for scripts and tests; Kafka's name where Kafka has one.
    ``reason``: what is wrong. ``path``: the file, directory or log concerned, or the flag or the line of a
    settings file that holds a bad value. ``position``: the byte in the file at which the damage starts.
    ``advice``: what to do; ``usual_advice`` of the class if none is passed. Errors cross processes: all of
    this survives pickling.
    """

    code: ClassVar[str] = "SILTSTONE"
    usual_advice: ClassVar[str | None] = None

    def __init_subclass__(cls, code: str | None = None, advice: str | None = None) -> None:
        """Sets ``code`` and ``usual_advice`` of a class; without them it has those of its parent."""
        cls.code = code or cls.code
        cls.usual_advice = advice or cls.usual_advice

    def __init__(
        self,
        reason: str,
        *,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else shown_path(path)
        self.position = position
        self.advice = self.usual_advice if advice is None else advice

    def __str__(self) -> str:
        place = (self.path, None if self.position is None else f"byte {self.position}", self.reason)
        line = ": ".join(part for part in place if part is not None)
        return f"{line}; {self.advice}" if self.advice else line


class UsageError(SiltstoneError, code="USAGE"):
    """Wrong flags, settings or values."""


class UnknownSettingError(UsageError):
    """No setting has this name."""


class UnknownRecordError(
    UsageError,
    code="UNKNOWN_RECORD",
    advice="it is not written yet, or a cleaning or retention has removed it",
):
    """The log has no record at this offset."""


class TooManyKeysError(
    UsageError,
    code="TOO_MANY_KEYS",
    advice="clean the log first: below its cleaner checkpoint a key takes no memory; or search for the key",
):
    """The keys above a log's cleaner checkpoint take more memory than the view *latest* (the last record of
    each key) may have."""


class UnknownKeywordError(UsageError, TypeError, code="UNKNOWN_KEYWORD"):
    """A call with a keyword argument that the function does not have. It is a TypeError too, since Python
    raises that for such a call."""


class ReadOnlyError(
    UsageError,
    AttributeError,
    code="READ_ONLY",
    advice="open them with mode='a', which locks the directory",
):
    """A method that changes logs was called on logs that are open for reading. It is an AttributeError too,
    so ``hasattr`` says that they have no such method."""


class NotALogDirectoryError(
    SiltstoneError, code="NOT_A_LOG_DIRECTORY", advice="name an entry of log.dirs, or a partition's directory"
):
    """The path is no Kafka log directory and no partition directory."""


class DirectoryLockedError(
    SiltstoneError,
    code="DIRECTORY_LOCKED",
    advice="stop the broker or wait for the other run, and try again; explain, verify, dump, consume, "
    "clean --watch and all commands that list work meanwhile",
):
    """Another process holds the log directory's ``.lock``."""


class DirectoryRefusedError(SiltstoneError, code="DIRECTORY_REFUSED"):
    """The directory is in a state in which it may not be changed. The message says what to do first."""


class UnsafeFileError(DirectoryRefusedError, code="UNSAFE_FILE"):
    """A file in a partition directory has the name of one of Kafka's files, but is not a regular file, or
    does not belong to the directory's owner. Its log is neither read nor changed: without that file records
    would be missing.
    """


class CorruptFileError(SiltstoneError, code="CORRUPT_FILE"):
    """A corrupt file: its bytes are not in its format. Path and position are always there."""

    path: str
    position: int

    def __init__(self, path: str, position: int, reason: str, *, advice: str | None = None) -> None:
        super().__init__(reason, path=path, position=position, advice=advice)
        self.args = (path, position, reason)  # what pickle calls the class with


class CorruptRecordError(CorruptFileError, code="CORRUPT_RECORD"):
    """A batch or record of the file is corrupt; a handler of CorruptFileError catches it, too."""


class LedgerError(
    SiltstoneError,
    code="CORRUPT_LEDGER",
    advice="restore it from a backup, or rebuild the ledger from the records that are still in the log: "
    "siltstone compact-topic --reset",
):
    """A file of a compacted ledger is missing or corrupt.

    Nothing is read in its place, since the original segments that it covers may have been deleted.
    """

    path: str

    def __init__(self, path: str, reason: str, *, advice: str | None = None) -> None:
        super().__init__(reason, path=path, advice=advice)
        self.args = (path, reason)  # what pickle calls the class with


class CheckFailedError(
    SiltstoneError, code="CHECK_FAILED", advice="run the command again; if it fails again, report this error"
):
    """A check failed: of a staged file or a count (that file is not swapped in), of a new ledger (the cursor
    has not moved), or of a whole cleaning by ``verify``."""


class SourceChangedError(SiltstoneError, code="SOURCE_CHANGED", advice="run the command again"):
    """A file or log is not as it was when its reading was planned: another size, inode or modification time
    of a segment, or a file that was truncated meanwhile."""


class UndoStoppedError(SiltstoneError, code="UNDO_STOPPED"):
    """Some original segments were restored, others not. Every log is whole, and another ``siltstone undo``
    restores the rest."""


class EngineError(
    SiltstoneError, code="ENGINE", advice="look for the cause in Spark's log, and run the command again"
):
    """Spark or Java is missing, or a job could not be run."""


class BrokerRefusedError(SiltstoneError, code="BROKER_REFUSED", advice="nothing was changed by this request"):
    """A running Kafka refuses a request."""


class BrokerUnreachableError(
    SiltstoneError,
    code="BROKER_UNREACHABLE",
    advice="look at --bootstrap-server, --command-config and the broker",
):
    """A running Kafka does not answer. If the request was for a change, the change may have been made or
    not."""


class UndecodableValueError(SiltstoneError, code="UNDECODABLE_VALUE"):
    """A record's key or value is not in the format that ``decode`` was passed. The path is the partition, and
    the reason has the offset."""


class TableChangedError(
    SiltstoneError, code="TABLE_CHANGED", advice="export again, onto the table as it is now"
):
    """Another export or writer has committed to the Delta or Iceberg table since this export began."""


class CompactionFailedError(SiltstoneError, code="COMPACTION_FAILED"):
    """A side-by-side compaction failed. The compacted ledger is unchanged; if the log had none, it has
    none."""


class CompactionInProgressError(
    SiltstoneError, code="COMPACTION_IN_PROGRESS", advice="wait until it has ended"
):
    """A side-by-side compaction of the log is already running (Pulsar answers 409)."""


class CleaningAbortedError(SiltstoneError, code="CLEANING_ABORTED"):
    """The cleaning was aborted: the log is truncated, deleted or paused, or its disk has failed (Kafka's
    ``LogCleaningAbortedException``)."""


# Errors of a server (``siltstone serve``). Backups and exports raise BusyError, too.


class BusyError(SiltstoneError, code="BUSY", advice="try again when some of the work has ended"):
    """A limit on work at the same time is reached, the server is stopping, or another job, backup or export
    works on the same target."""


class UnknownJobError(SiltstoneError, code="UNKNOWN_JOB", advice="list the jobs"):
    """No job has this id, or it is so old that it was forgotten."""


class JobCancelledError(SiltstoneError, code="JOB_CANCELLED"):
    """The job was cancelled."""


class ChangedMeanwhileError(
    SiltstoneError,
    code="CHANGED_MEANWHILE",
    advice="read it again, and repeat the change if it is still wanted",
):
    """The object of a change is no longer as the caller has read it (HTTP's 412)."""


class NotAllowedError(SiltstoneError, code="NOT_ALLOWED"):
    """The user's role does not allow it, or the server changes nothing."""


# Calls on a log that are refused.


class LogError(SiltstoneError, code="UNKNOWN_SERVER_ERROR"):
    """A call on a log that is refused, with Kafka's error for it.

    ``code`` is the name in Kafka's ``Errors``, ``error_code`` the number that Kafka's protocol has for it.
    """

    error_code: ClassVar[int] = -1

    def __init_subclass__(
        cls, code: str | None = None, advice: str | None = None, error_code: int | None = None
    ) -> None:
        """Sets ``code``, ``usual_advice`` and ``error_code``; without them a class has its parent's."""
        super().__init_subclass__(code=code, advice=advice)
        cls.error_code = cls.error_code if error_code is None else error_code


class OffsetOutOfRangeError(LogError, code="OFFSET_OUT_OF_RANGE", error_code=1):
    """The offset is below the log's start or above its end."""


class CorruptMessageError(LogError, code="CORRUPT_MESSAGE", error_code=2):
    """A batch whose checksum or size is wrong."""


class UnknownTopicError(
    LogError, code="UNKNOWN_TOPIC_OR_PARTITION", error_code=3, advice="siltstone topics --list shows all"
):
    """There is no such topic or partition in these directories."""


class MessageTooLargeError(LogError, code="MESSAGE_TOO_LARGE", error_code=10):
    """A batch over ``max.message.bytes``."""


class InvalidTopicError(LogError, code="INVALID_TOPIC_EXCEPTION", error_code=17):
    """A topic name that Kafka does not allow."""


class RecordListTooLargeError(LogError, code="RECORD_LIST_TOO_LARGE", error_code=18):
    """More bytes in one append than ``segment.bytes``."""


class TopicExistsError(LogError, code="TOPIC_ALREADY_EXISTS", error_code=36):
    """A topic of that name exists."""


class InvalidPartitionsError(LogError, code="INVALID_PARTITIONS", error_code=37):
    """A number of partitions that is not possible."""


class InvalidConfigError(LogError, code="INVALID_CONFIG", error_code=40):
    """A setting that is unknown or out of bounds."""


class UnknownConfigError(InvalidConfigError):
    """No setting has this name."""


class InvalidQuotaError(LogError, code="INVALID_REQUEST", error_code=42):
    """An invalid quota: of an unknown kind, for an entity that cannot have it, or with a bad value."""


class PolicyViolationError(LogError, code="POLICY_VIOLATION", error_code=44):
    """The topic's policy does not allow the operation."""


class OutOfOrderSequenceError(LogError, code="OUT_OF_ORDER_SEQUENCE_NUMBER", error_code=45):
    """A producer's sequence number is not the next one."""


class InvalidProducerEpochError(LogError, code="INVALID_PRODUCER_EPOCH", error_code=47):
    """A newer instance of the producer has taken over."""


class InvalidTransactionStateError(LogError, code="INVALID_TXN_STATE", error_code=48):
    """A batch that does not fit the producer's transaction."""


class TransactionCoordinatorFencedError(LogError, code="TRANSACTION_COORDINATOR_FENCED", error_code=52):
    """A marker of a coordinator that has been replaced."""


class StorageError(LogError, code="KAFKA_STORAGE_ERROR", error_code=56):
    """The log directory is offline after an I/O error."""


class UnknownGroupError(
    LogError, code="GROUP_ID_NOT_FOUND", error_code=69, advice="siltstone groups DIR --list shows all"
):
    """There is no such consumer group in these directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """A record that the topic rejects: its index in the batch, from 0 on, and why."""

    index: int
    message: str


class RecordRefusedError(LogError):
    """A batch that is rejected because of its contents.

    ``record_index``: the first invalid record, counted from 0; None where no single record is at fault.
    ``record_errors``: every record that the topic rejects (no key, a timestamp out of bounds) by its index,
    at most 10,000 of them, as ``record_errors`` of a Produce response (version 8 and later); empty for a
    corrupt batch, as in Kafka.
    """

    def __init__(
        self,
        reason: str,
        record_index: int | None = None,
        record_errors: Sequence[RecordError] = (),
        *,
        path: str | os.PathLike[str] | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(reason, path=path, advice=advice)
        self.args = (reason, record_index, tuple(record_errors))  # what pickle calls the class with
        self.record_index = record_index
        self.record_errors = tuple(record_errors)


class InvalidTimestampError(RecordRefusedError, code="INVALID_TIMESTAMP", error_code=32):
    """A timestamp further from the clock than ``message.timestamp.{before,after}.max.ms`` allow."""


class InvalidRecordError(RecordRefusedError, code="INVALID_RECORD", error_code=87):
    """A batch or record that Kafka's format or the topic does not allow."""


class UnreadableBatchError(InvalidRecordError, code="UNKNOWN_SERVER_ERROR", error_code=-1):
    """A batch that cannot be decompressed: an unknown codec, or corrupt bytes.

    The batch is at fault, but Kafka answers UNKNOWN_SERVER_ERROR, and so does Siltstone.
    """
