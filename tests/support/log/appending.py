"""Appends to no log: what would be written, and what is refused without a trace."""

from __future__ import annotations

from dataclasses import replace

from siltstone.base.config import LogConfig
from siltstone.base.errors import LogError, RecordRefusedError
from siltstone.base.records.check import Fault
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.layout import BATCH, Bytes
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches
from siltstone.log.validation import FAULT_REASON, Origin, ValidatedBatches, validate_and_assign
from tests.support.errors import raises_error
from tests.support.log.batches import TIME

LARGE = 200
"""Records that make a batch too large for the one-call way."""


def append(
    data: Bytes,
    *,
    next_offset: int = 1000,
    now_ms: int = TIME,
    origin: Origin = Origin.CLIENT,
    **config: object,
) -> ValidatedBatches:
    return validate_and_assign(
        data,
        config=replace(LogConfig(), **config),  # type: ignore[arg-type]
        next_offset=next_offset,
        now_ms=now_ms,
        leader_epoch=7,
        origin=origin,
    )


def assert_refused(
    data: Bytes,
    kind: type[LogError],
    about: str | Fault | ScanEnd,
    index: int | None = None,
    **options: object,
) -> None:
    """The batch is refused with this error, at this record, and its bytes are as they were.

    ``about``: the fault, how the scan ended, or a name that reason or advice contain.
    """
    before = data.tobytes()
    with raises_error(kind) as caught:
        append(data, **options)  # type: ignore[arg-type]
    assert data.tobytes() == before
    error = caught.value
    if isinstance(about, str):
        assert about in f"{error.reason}; {error.advice}"
    else:
        assert error.reason == (FAULT_REASON[about] if isinstance(about, Fault) else SCAN_REASON[about])
        assert error.position is not None
    if isinstance(error, RecordRefusedError):
        assert error.record_index == index


def assert_in_order(validated: ValidatedBatches) -> None:
    """The rows say what the bytes say, checksums hold."""
    scan = scan_batches(validated.data)
    assert scan.outcome == ScanEnd.CLEAN
    assert scan.batches.tolist() == validated.batches.tolist()
    assert validated.batches.dtype == BATCH
    assert first_bad_checksum(validated.data, validated.batches) is None
