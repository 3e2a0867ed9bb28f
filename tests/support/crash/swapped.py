"""What a reader sees of a partition whose segments were swapped, and which files it may have."""

from __future__ import annotations

from pathlib import Path

from siltstone.log.replacement import swap_leftovers
from tests.support.cleaning import logs

Table = dict[bytes, bytes]


def table(partition: Path) -> Table:
    """What a reader from the start ends with: the last value of each key, deleted ones left out."""
    last: dict[bytes, bytes | None] = {}
    following = 0
    for base, data in logs.logs_of(partition).items():
        assert base >= following, f"segment {base} overlaps the one before"
        for record in logs.records_in(data):
            assert record.offset >= following, f"offset {record.offset} is out of order"
            assert record.key is not None
            last[record.key], following = record.value, record.offset + 1
    return {key: value for key, value in last.items() if value is not None}


def check_names(partition: Path) -> None:
    """No leftovers, and each log has its indexes."""
    assert swap_leftovers(partition) == []
    bases = {path.stem for path in partition.glob("*.log")}
    assert {path.stem for path in partition.glob("*.index")} == bases
    assert {path.stem for path in partition.glob("*.timeindex")} == bases
