"""A table, whatever it is of: its columns, its splits, and what is in one of them.

::

    table=records         reading, or forensics where a closer look is asked for
    table=consumerOffsets, transactionState        records again, decoded: file_tables
    table=batches, offsetIndex, checkpoints…       file_tables
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from siltstone.tables.file_tables import (
    DECODED_TABLES,
    FILE_TABLES,
    FilesSplit,
    decoded,
    decoded_schema,
    decoded_source,
    file_table_schema,
    plan_files,
    read_files,
)
from siltstone.tables.forensics import close_schema, is_close, plan_closely, read_closely
from siltstone.tables.options import ReadOptions
from siltstone.tables.reading import read_split, schema_of
from siltstone.tables.splits import EVERYTHING, Predicate, Split
from siltstone.tables.views import plan

AnySplit = Split | FilesSplit


def table_schema(options: ReadOptions) -> pa.Schema:
    """The table's columns. Raises UsageError for names that there are not."""
    if options.table in FILE_TABLES:
        return file_table_schema(options)
    if options.table in DECODED_TABLES:
        return decoded_schema(options)
    return close_schema(options) if is_close(options) else schema_of(options)


def plan_table(options: ReadOptions, predicate: Predicate = EVERYTHING) -> list[AnySplit]:
    """What tasks are to read; none where there is nothing. Raises what ``views.plan`` raises.

    A predicate speaks of records; of another table nothing is left out.
    """
    if options.table in FILE_TABLES:
        return list(plan_files(options))
    if options.table in DECODED_TABLES:
        return list(plan(decoded_source(options)))
    return list(plan_closely(options) if options.quarantine else plan(options, predicate))


def read_table(split: AnySplit, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """A split as Arrow batches of ``table_schema``. Raises what reading raises."""
    if isinstance(split, FilesSplit):
        return read_files(split, options)
    if options.table in DECODED_TABLES:
        return decoded(read_split(split, decoded_source(options)), options)
    return read_closely(split, options) if is_close(options) else read_split(split, options)
