"""Errors keep what they say across processes, and Kafka's numbers are Kafka's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from siltstone.base import errors
from siltstone.base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    LedgerError,
    LogError,
    RecordError,
    RecordRefusedError,
    UnknownConfigError,
    UnknownSettingError,
    UnreadableBatchError,
    UsageError,
)

KAFKA_CODES = {
    "OFFSET_OUT_OF_RANGE": 1,
    "CORRUPT_MESSAGE": 2,
    "UNKNOWN_TOPIC_OR_PARTITION": 3,
    "MESSAGE_TOO_LARGE": 10,
    "INVALID_TOPIC_EXCEPTION": 17,
    "RECORD_LIST_TOO_LARGE": 18,
    "INVALID_TIMESTAMP": 32,
    "TOPIC_ALREADY_EXISTS": 36,
    "INVALID_PARTITIONS": 37,
    "INVALID_CONFIG": 40,
    "INVALID_REQUEST": 42,
    "POLICY_VIOLATION": 44,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": 45,
    "INVALID_PRODUCER_EPOCH": 47,
    "INVALID_TXN_STATE": 48,
    "TRANSACTION_COORDINATOR_FENCED": 52,
    "KAFKA_STORAGE_ERROR": 56,
    "GROUP_ID_NOT_FOUND": 69,
    "INVALID_RECORD": 87,
}
LOG_ERRORS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, LogError) and value.error_code >= 0
]


def test_every_log_error_has_kafkas_number() -> None:
    assert {log_error.code: log_error.error_code for log_error in LOG_ERRORS} == KAFKA_CODES


@pytest.mark.parametrize("kind", LOG_ERRORS)
def test_log_errors_survive_pickling(kind: type[LogError]) -> None:
    error = pickle.loads(pickle.dumps(kind("no", path="topic-0", advice="do it again")))
    assert type(error) is kind
    assert str(error) == "topic-0: no; do it again"


def test_details_survive_pickling() -> None:
    why = RecordError(index=7, message="why")
    error = pickle.loads(pickle.dumps(InvalidRecordError("no key", 7, [why])))
    assert (str(error), error.record_index, error.record_errors) == ("no key", 7, (why,))
    damaged = pickle.loads(pickle.dumps(CorruptRecordError("x.log", 12, "bad size", advice="run")))
    assert (damaged.path, damaged.position, damaged.reason) == ("x.log", 12, "bad size")
    assert str(damaged) == "x.log: byte 12: bad size; run"
    refused = pickle.loads(pickle.dumps(UsageError("no such flag", path=Path("d"), advice="see --help")))
    assert (str(refused), refused.code) == ("d: no such flag; see --help", "USAGE")
    ledger = pickle.loads(pickle.dumps(LedgerError("cursor.json", "missing")))
    assert (ledger.path, ledger.reason) == ("cursor.json", "missing") and "--reset" in ledger.advice


def test_every_kind_of_error_has_a_code_of_its_own() -> None:
    kinds = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    shared = {UnreadableBatchError, LogError, RecordRefusedError, UnknownConfigError, UnknownSettingError}
    codes = [kind.code for kind in kinds if kind not in shared]
    assert len(codes) > 30 and len(set(codes)) == len(codes)


def test_the_drawing_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    named = [value for value in vars(errors) if value.endswith("Error")]
    assert len(named) > 20
    assert [name for name in named if name not in drawn] == []
