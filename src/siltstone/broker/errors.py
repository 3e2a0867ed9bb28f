"""Kafka's error codes (``Errors``): which code and message a client gets for an exception."""

from __future__ import annotations

import enum
import logging

from siltstone.base.errors import (
    CorruptMessageError,
    CorruptRecordError,
    LogError,
    SiltstoneError,
    StorageError,
)

_logger = logging.getLogger("siltstone.broker")


class Code(enum.IntEnum):
    """Error codes of Kafka's protocol that handlers set themselves. Errors that a log raises, subclasses of
    ``LogError``, have theirs as ``error_code``."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    UNSUPPORTED_VERSION = 35
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


class RequestRefusedError(Exception):
    """Raised by a handler to refuse a request, or a part of it, with one of Kafka's codes."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def code_of(error: Exception) -> int:
    """Kafka's code of an error. An error of no known class is a bug: it is logged, and its code is
    UNKNOWN_SERVER_ERROR."""
    if isinstance(error, LogError):
        return error.error_code
    if isinstance(error, RequestRefusedError):
        return error.code
    if isinstance(error, CorruptRecordError):
        return CorruptMessageError.error_code
    if isinstance(error, OSError):
        return StorageError.error_code
    _logger.error("A request failed", exc_info=error)
    return Code.UNKNOWN_SERVER_ERROR


def message_of(error: Exception) -> str | None:
    """The message that goes to a client beside the code: the error's reason, which has no paths of this
    machine; None for any other error, such as an OSError, whose text may have one."""
    return error.reason if isinstance(error, (SiltstoneError, RequestRefusedError)) else None


def message_with_advice_of(error: Exception) -> str | None:
    """``message_of`` with the error's advice, for responses to changes of topics and settings, which tools
    show to their users."""
    message, advice = message_of(error), error.advice if isinstance(error, SiltstoneError) else None
    return f"{message}; {advice}" if message and advice else message
