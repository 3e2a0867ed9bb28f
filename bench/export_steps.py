"""The processor seconds of an export to Parquet, step by step: what bounds it.

::

    read        the log's records become Arrow batches
    encode      the batches become Parquet pages in memory, not compressed
    compress    the same with Snappy, as in the export and in Spark's writer: the difference is Snappy's
    delta       the same with delta encoding of offsets and timestamps, and of lengths of keys and values

One input split, one thread, the best of ``--runs``. Printed for the whole log.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.generate import generate
from siltstone.commands.library import paths_of
from siltstone.tables.arguments import read_options
from siltstone.tables.export import column_settings, row_groups
from siltstone.tables.table import plan, read_split

OUT = Path(__file__).parent / "out"
_DELTA = "DELTA_BINARY_PACKED"
_LENGTHS = "DELTA_LENGTH_BYTE_ARRAY"


def main() -> None:
    """Measure, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    folder = OUT / f"export-{arguments.size_mb}"
    generate(folder, arguments.size_mb * 1_000_000, "none")
    options = read_options(paths_of(folder / "log"), None, None, {}, {})
    splits = list(plan(options))
    batches = list(read_split(splits[0], options))
    records = sum(len(batch) for split in splits for batch in read_split(split, options))
    of_log = records / sum(map(len, batches))

    print(f"{records:,} records, {len(splits)} splits")

    def report(step: str, function: Callable[[], object]) -> None:
        seconds = min(_processor_seconds(function) for _ in range(arguments.runs))
        print(f"{step:10} {seconds * of_log:6.2f} s")

    report("read", lambda: list(read_split(splits[0], options)))
    report("encode", lambda: _written(batches, compression="none"))
    report("compress", lambda: _written(batches, compression="snappy"))
    encodings = {"offset": _DELTA, "timestamp": _DELTA, "key": _LENGTHS, "value": _LENGTHS}
    report("delta", lambda: _written(batches, compression="snappy", column_encoding=encodings))


def _processor_seconds(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def _written(batches: list[pa.RecordBatch], **settings: Any) -> int:
    """The bytes of a Parquet file in memory, written as the export writes it."""
    sink, schema = pa.BufferOutputStream(), batches[0].schema
    with pq.ParquetWriter(sink, schema, **{**column_settings(schema), **settings}) as parquet:
        for group in row_groups(batches):
            parquet.write_table(pa.Table.from_batches(group), row_group_size=sum(map(len, group)))
    return len(sink.getvalue())


if __name__ == "__main__":
    main()
