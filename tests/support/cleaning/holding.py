"""Cleaning a log of which nobody knows what is wrong with it, and what must hold of it all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siltstone.compaction.report import CLEANED, LogResult
from tests.support.cleaning import logs
from tests.support.cleaning.logs import WHERE

Records = dict[int, tuple[bytes | None, bytes | None, int]]


def records(partition: Path) -> Records:
    """Every record of a sound log by its offset: key, value, timestamp."""
    return {
        record.offset: (record.key, record.value, record.timestamp)
        for data in logs.logs_of(partition).values()
        for record in logs.records_in(data)
    }


def last_values(by_offset: Records) -> dict[bytes, tuple[int, bytes]]:
    """Key → the offset and value of its last record, of keys that have a value."""
    last = {key: (offset, value) for offset, (key, value, _) in sorted(by_offset.items()) if key is not None}
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


def end_offset(partition: Path) -> int:
    """The offset after the last batch; the active segment's base where that is empty."""
    base, data = max(logs.logs_of(partition).items())
    return max([base, *(header.last_offset + 1 for header, _ in logs.headers_of(data))])


def clean(path: Path, **options: Any) -> LogResult:
    """Clean the directory's log. Either it is as it was, and the result says why; or it is cleaned, and no
    last value is missing, every offset that remains reads the same, and the end is where it was."""
    partition = path / str(WHERE)
    before = logs.tree(partition)
    result = logs.run(path, **options)
    if result.status != CLEANED:
        assert logs.tree(partition) == before
        assert result.reason or result.status == "nothing_to_do", result
        assert "\n" not in result.reason
        return result
    copied = path.parent / f"{path.name}-before"
    for name, data in before.items():
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / name).write_bytes(data)
    was, now = records(copied), records(partition)
    assert now.items() <= was.items()
    assert last_values(now) == last_values(was)
    assert end_offset(partition) == end_offset(copied)
    return result
