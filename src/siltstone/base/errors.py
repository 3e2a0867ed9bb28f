"""Every error that Siltstone raises on purpose, as a tree.

::

    SiltstoneError
    ├── UsageError               wrong flags or values: the command line exits with 2
    ├── NotALogDirectoryError    the path is no Kafka log or partition directory
    ├── DirectoryLockedError     a live broker (or another Siltstone) holds the directory's ``.lock``
    ├── DirectoryRefusedError    the directory is not in a state in which it may be changed
    │   └── UnsafeFileError      a link, a device or another user's file has the name of one of Kafka's files
    ├── CorruptFileError         a checkpoint, index, snapshot or metadata file that makes no sense
    │   └── CorruptRecordError   a batch or record that makes no sense
    ├── LedgerError              a file of a compacted ledger is missing or damaged
    ├── CheckFailedError         a written segment, or a count, is wrong: nothing is swapped
    ├── SourceChangedError       a source segment has changed since the cleaning was planned
    ├── UndoStoppedError         an undo stopped half-way: the message says which originals are back
    ├── EngineError              Spark or Java is missing, or a job could not be run
    ├── CompactionFailedError    a side-by-side compaction failed: the ledger is as it was
    ├── CompactionInProgressError  a second side-by-side compaction while one runs
    ├── CleaningAbortedError     the cleaning of a log was aborted: nothing more is swapped
    └── LogError                 a call on a log that is refused, with Kafka's ``code`` and ``kafka_name``
        ├── OffsetOutOfRangeError               1
        ├── CorruptMessageError                 2
        ├── UnknownTopicError                   3
        ├── MessageTooLargeError               10
        ├── InvalidTopicError                  17
        ├── RecordListTooLargeError            18
        ├── TopicExistsError                   36
        ├── InvalidPartitionsError             37
        ├── InvalidConfigError                 40
        ├── PolicyViolationError               44
        ├── OutOfOrderSequenceError            45
        ├── InvalidProducerEpochError          47
        ├── InvalidTransactionStateError       48
        ├── TransactionCoordinatorFencedError  52
        ├── StorageError                       56
        └── RecordRefusedError   the contents of a batch are invalid: ``record_index``, ``record_errors``
            ├── InvalidTimestampError          32
            └── InvalidRecordError             87
                └── UnreadableBatchError       -1: Kafka answers as for a failure of its own

A bug is an ``AssertionError``; the environment's own errors stay ``OSError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class SiltstoneError(Exception):
    """The root: one line that says what is wrong, where, and what to do."""


class UsageError(SiltstoneError):
    """Wrong flags, settings or values."""


class NotALogDirectoryError(SiltstoneError):
    """The path is no Kafka log directory and no partition directory."""


class DirectoryLockedError(SiltstoneError):
    """Another process holds the log directory's ``.lock``."""


class DirectoryRefusedError(SiltstoneError):
    """The directory may not be changed as it is: the message says what to do first."""


class UnsafeFileError(DirectoryRefusedError):
    """A file in a partition directory has a name of Kafka's, but is no regular file, or not the directory
    owner's. Its log is neither read nor changed: without that file, records would be missing.
    """


class CorruptFileError(SiltstoneError):
    """A corrupt file: its bytes are not in its format.

    ``path`` is the file, ``position`` the byte at which the damage starts, ``reason`` what is wrong.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.path, self.position, self.reason)


class CorruptRecordError(CorruptFileError):
    """A corrupt batch or record."""


class LedgerError(SiltstoneError):
    """A file of a compacted ledger is missing or corrupt: ``path`` is the file, ``reason`` what is wrong.

    Nothing is read in its place, since the original segments that it covers may have been deleted.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path}: {reason}; bring it back from a backup, "
            "or compact anew from the originals that are left: siltstone compact-topic --reset"
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.path, self.reason)


class CheckFailedError(SiltstoneError):
    """A written segment, or a count of records, is wrong; nothing was swapped."""


class SourceChangedError(SiltstoneError):
    """The size, inode or modification time of a source segment has changed since the cleaning was planned."""


class UndoStoppedError(SiltstoneError):
    """Some originals were put back, others not; every log is whole, and another undo resumes."""


class EngineError(SiltstoneError):
    """Spark or Java is missing, or a job could not be run."""


class CompactionFailedError(SiltstoneError):
    """A side-by-side compaction failed; the ledger, where there was one, is as it was."""


class CompactionInProgressError(SiltstoneError):
    """A side-by-side compaction of the log is already running (Pulsar answers 409)."""


class CleaningAbortedError(SiltstoneError):
    """The cleaning was aborted: the log is truncated, deleted or paused, or its disk has failed (Kafka's
    ``LogCleaningAbortedException``)."""


class LogError(SiltstoneError):
    """A call on a log that is refused as Kafka refuses it.

    ``code`` is the number that Kafka's protocol has for it, ``kafka_name`` the name in its ``Errors``.
    """

    code: ClassVar[int] = -1
    kafka_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"

    def __init_subclass__(cls, code: int | None = None, kafka_name: str = "") -> None:
        """Sets ``code`` and ``kafka_name`` of a class; without them it has those of its parent."""
        if code is not None:
            cls.code, cls.kafka_name = code, kafka_name


class OffsetOutOfRangeError(LogError, code=1, kafka_name="OFFSET_OUT_OF_RANGE"):
    """The offset is below the log's start or above its end."""


class CorruptMessageError(LogError, code=2, kafka_name="CORRUPT_MESSAGE"):
    """A batch whose checksum or size is wrong."""


class UnknownTopicError(LogError, code=3, kafka_name="UNKNOWN_TOPIC_OR_PARTITION"):
    """There is no such topic or partition in these directories."""


class MessageTooLargeError(LogError, code=10, kafka_name="MESSAGE_TOO_LARGE"):
    """A batch over ``max.message.bytes``."""


class InvalidTopicError(LogError, code=17, kafka_name="INVALID_TOPIC_EXCEPTION"):
    """A topic name that Kafka does not allow."""


class RecordListTooLargeError(LogError, code=18, kafka_name="RECORD_LIST_TOO_LARGE"):
    """More bytes in one append than ``segment.bytes``."""


class TopicExistsError(LogError, code=36, kafka_name="TOPIC_ALREADY_EXISTS"):
    """A topic of that name exists."""


class InvalidPartitionsError(LogError, code=37, kafka_name="INVALID_PARTITIONS"):
    """A number of partitions that is not possible."""


class InvalidConfigError(LogError, code=40, kafka_name="INVALID_CONFIG"):
    """A setting that is unknown or out of bounds."""


class PolicyViolationError(LogError, code=44, kafka_name="POLICY_VIOLATION"):
    """The topic's policy does not allow the operation."""


class OutOfOrderSequenceError(LogError, code=45, kafka_name="OUT_OF_ORDER_SEQUENCE_NUMBER"):
    """A producer's sequence number is not the next one."""


class InvalidProducerEpochError(LogError, code=47, kafka_name="INVALID_PRODUCER_EPOCH"):
    """A newer instance of the producer has taken over."""


class InvalidTransactionStateError(LogError, code=48, kafka_name="INVALID_TXN_STATE"):
    """A batch that does not fit the producer's transaction."""


class TransactionCoordinatorFencedError(LogError, code=52, kafka_name="TRANSACTION_COORDINATOR_FENCED"):
    """A marker of a coordinator that has been replaced."""


class StorageError(LogError, code=56, kafka_name="KAFKA_STORAGE_ERROR"):
    """The log directory is offline after an I/O error."""


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
        self, message: str, record_index: int | None = None, record_errors: Sequence[RecordError] = ()
    ) -> None:
        super().__init__(message)
        self.record_index = record_index
        self.record_errors = tuple(record_errors)

    def __reduce__(self) -> tuple[type, tuple[str, int | None, tuple[RecordError, ...]]]:
        return type(self), (str(self), self.record_index, self.record_errors)


class InvalidTimestampError(RecordRefusedError, code=32, kafka_name="INVALID_TIMESTAMP"):
    """A timestamp further from the clock than ``message.timestamp.{before,after}.max.ms`` allow."""


class InvalidRecordError(RecordRefusedError, code=87, kafka_name="INVALID_RECORD"):
    """A batch or record that Kafka's format or the topic does not allow."""


class UnreadableBatchError(InvalidRecordError, code=-1, kafka_name="UNKNOWN_SERVER_ERROR"):
    """A batch that cannot be decompressed: an unknown codec, or corrupt bytes.

    The batch is at fault, but Kafka answers UNKNOWN_SERVER_ERROR, and so does Siltstone.
    """
