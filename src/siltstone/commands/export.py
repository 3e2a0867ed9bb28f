"""``st.export``: the table of log directories as a directory of Parquet files.

::

    st.export("/backup/kafka", "/lake/users", "parquet", "users", view="latest")
    st.export("/backup/kafka", "/lake/users", "parquet", "users", mode="overwrite", spark=session)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siltstone.tables.arguments import OnePath, Paths, RowKeywords, read_options
from siltstone.tables.export import Export, begin, export_in_process


def export(
    path: Paths,
    target: OnePath,
    format: str = "parquet",
    topic: str | Sequence[str] | None = None,
    *,
    mode: str = "error",
    compression: str = "snappy",
    spark: Any = None,
    **arguments: Any,
) -> Export:
    """Write a table into the directory ``target``, which appears when all of it is there.

    ``mode``: "error" refuses an existing target, "overwrite" replaces one that an export has made.
    ``compression``: "snappy", "none", "zstd", "lz4" or "gzip". ``spark``: the ``SparkSession`` whose tasks
    write, on storage that its executors share; without one, this process does, on all cores. The other
    arguments are those of ``st.read``. Raises UsageError, EngineError, and what reading raises; nothing is
    left then.
    """
    rows: RowKeywords = {
        "offsets": arguments.pop("offsets", None),
        "timestamps": arguments.pop("timestamps", None),
        "partitions": arguments.pop("partitions", None),
        "keys": arguments.pop("keys", None),
    }
    options = read_options(path, topic, arguments.pop("as_of", None), rows, arguments)
    plan = begin(options, Path(target), output_format=format, mode=mode, compression=compression)
    if spark is None:
        return export_in_process(plan)
    from siltstone.spark.export import export_on

    return export_on(spark, plan)
