"""What a cleaned log has otherwise than it should, in words that a failing test can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path

from siltstone.compaction.report import LogResult
from tests.support.cleaning.naive import CODEC, Batch, Segment, read_partition
from tests.support.cleaning.oracle import Expected

MAX = 12


def assert_cleaned(expected: Expected, partition: Path, result: LogResult, log_start: int = 0) -> None:
    """A cleaned partition holds what the oracle expects, and the report tells of it.

    New segments that lie below ``log_start`` altogether are gone, as in Kafka.
    """
    end = max(expected.first_dirty, expected.end)
    assert (result.first_dirty_offset, result.cleaned_end_offset) == (expected.first_dirty, end)
    after = read_partition(partition)
    going = below(log_start, [*expected.segments, *(base for base in after if base >= expected.end)])
    expired = sum(batch.count for base in going for batch in expected.segments[base].batches)
    remaining = {base: new for base, new in expected.segments.items() if base not in going}
    problems = differences(
        replace(expected, segments=remaining), {base: after[base] for base in after if base < expected.end}
    )
    assert not problems, "\n".join(["", *problems])
    counts = asdict(result.discarded)
    assert counts == {reason: expected.removed[reason] for reason in counts} | {"expired": expired}


def below(log_start: int, bases: Sequence[int]) -> list[int]:
    """The segments that hold nothing at or above the log start; the last one always stays."""
    return [base for base, following in pairwise(bases) if following <= log_start]


def differences(expected: Expected, actual: Mapping[int, Segment]) -> list[str]:
    """One line each, at most ``MAX``; empty when the segments are as expected."""
    lines: list[str] = []
    if list(expected.segments) != list(actual):
        lines.append(f"segments: expected {list(expected.segments)}, found {list(actual)}")
    for base in sorted({*expected.segments} & {*actual}):
        new, segment = expected.segments[base], actual[base]
        lines += _batches(base, new.batches, segment.batches)
        if new.aborted != list(segment.aborted):
            lines.append(f"{base}.txnindex: expected {new.aborted}, found {list(segment.aborted)}")
    return lines[:MAX]


def _batches(base: int, expected: Sequence[Batch], actual: Sequence[Batch]) -> list[str]:
    expected_at, actual_at = (
        {batch.base_offset: batch for batch in batches} for batches in (expected, actual)
    )
    lines = [f"segment {base}: missing {short(expected_at[at])}" for at in expected_at if at not in actual_at]
    lines += [
        f"segment {base}: unexpected {short(actual_at[at])}" for at in actual_at if at not in expected_at
    ]
    if len(actual_at) != len(actual) or list(actual_at) != sorted(actual_at):
        lines.append(f"segment {base}: batches out of order")
    for at in expected_at:
        if at in actual_at:
            lines += [
                f"segment {base}, batch {at}: {line}" for line in _fields(expected_at[at], actual_at[at])
            ]
    return lines


def _fields(expected: Batch, actual: Batch) -> list[str]:
    lines = [
        f"{field.name}: expected {getattr(expected, field.name)}, found {getattr(actual, field.name)}"
        for field in fields(Batch)
        if field.compare and getattr(expected, field.name) != getattr(actual, field.name)
    ]
    if not lines and expected.raw is not None and expected.raw != actual.raw:
        lines.append("same fields, but its bytes were to be copied")
    return lines


def short(batch: Batch) -> str:
    """A batch in a line."""
    kind = "marker" if batch.control else "batch"
    kind = f"transactional {kind}" if batch.transactional and not batch.control else kind
    records = ", ".join(
        f"{record.offset}:{record.key!r}={(record.value or b'')[:8]!r}" for record in batch.records
    )
    return (
        f"{kind} [{batch.base_offset}, {batch.last_offset}] v{batch.magic} codec {batch.attributes & CODEC} "
        f"attributes {batch.attributes:#x} producer {batch.producer_id}/{batch.producer_epoch} "
        f"horizon {batch.horizon} ({records})"
    )
