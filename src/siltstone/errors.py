"""Every error that Siltstone raises on purpose.

::

    SiltstoneError
    ├── UsageError               wrong flags or values: the command line exits with 2
    ├── NotALogDirectoryError    the path is no Kafka log or partition directory
    ├── DirectoryLockedError     a live broker (or another Siltstone) holds the directory's ``.lock``
    ├── DirectoryRefusedError    the directory is not in a state in which it may be changed
    ├── CorruptFileError         a checkpoint, index, snapshot or metadata file that makes no sense
    │   └── CorruptRecordError   a batch or record that makes no sense
    ├── CheckFailedError         what was written is not what was promised: nothing is swapped
    ├── SourceChangedError       a source segment is not the file that was planned with
    └── EngineError              Spark or Java is missing, or a job could not be run

A bug is an ``AssertionError``; the environment's own errors stay ``OSError``.
"""

from __future__ import annotations


class SiltstoneError(Exception):
    """The root: one line that says what is wrong, where, and what to do."""


class UsageError(SiltstoneError):
    """Wrong flags or values."""


class NotALogDirectoryError(SiltstoneError):
    """The path is no Kafka log directory and no partition directory."""


class DirectoryLockedError(SiltstoneError):
    """Another process holds the log directory's ``.lock``."""


class DirectoryRefusedError(SiltstoneError):
    """The directory may not be changed as it is: the message says what to do first."""


class CorruptFileError(SiltstoneError):
    """Bytes of a file that make no sense.

    ``path`` is the file, ``position`` the byte at which the trouble starts, ``reason`` what is wrong.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.path, self.position, self.reason)


class CorruptRecordError(CorruptFileError):
    """A batch or a record that makes no sense."""


class CheckFailedError(SiltstoneError):
    """A written segment or a count does not hold; nothing was swapped."""


class SourceChangedError(SiltstoneError):
    """A source segment's size, inode or modification time is not what was planned with."""


class EngineError(SiltstoneError):
    """Spark or Java is missing, or a job could not be run."""
