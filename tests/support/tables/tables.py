"""Log directories for the tests of tables, and a table's rows in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import NO_FILTERS, PushedFilters
from siltstone.tables.table import plan, read_split, schema_of
from tests.support.log.views import write_segments


def log_directory(root: Path, partitions: Mapping[str, Mapping[int, Sequence[bytes]]]) -> Path:
    """A log directory with these partitions: segments by base offset, as a stopped broker leaves it."""
    for name, segments in partitions.items():
        write_segments(root / name, dict(segments), 100)
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    return root


def table_of(*paths: Path, filters: PushedFilters = NO_FILTERS, **options: str) -> pa.Table:
    """The whole table over some directories: the rows of every split, in their order."""
    parsed = ReadOptions.of({"paths": json.dumps([str(path) for path in paths]), **options})
    batches = [batch for split in plan(parsed, filters) for batch in read_split(split, parsed)]
    return pa.Table.from_batches(batches, schema_of(parsed))


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in order of partition and offset, with times as ms."""
    at = table.schema.get_field_index("timestamp")
    if at >= 0:
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    return table.sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    ).to_pylist()


def offsets(root: Path, filters: PushedFilters = NO_FILTERS, **options: str) -> list[int]:
    """The offsets of a table's records, in the order of its splits."""
    return table_of(root, filters=filters, columns="offset", **options)["offset"].to_pylist()
