"""``st.export``: the table of log directories as Parquet files, or as a Delta or Iceberg table.

::

    st.export("/backup/kafka", "/lake/users", "parquet", "users", view="latest")
    st.export("/backup/kafka", "/lake/users", "delta", "users", view="latest")    # again: only what is new
    st.export("/backup/kafka", "/lake/users", "parquet", "users", mode="overwrite", spark=session)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.commands.engines import use_stores
from siltstone.tables.arguments import OnePath, Paths, RowKeywords, read_options
from siltstone.tables.export import Export, begin, export_in_process
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import with_inferred_types

if TYPE_CHECKING:
    from siltstone.tables.lakes.table import LakeTable


def export(
    path: Paths,
    target: OnePath,
    format: str = "parquet",
    topic: str | Sequence[str] | None = None,
    *,
    mode: str | None = None,
    compression: str = "snappy",
    buckets: int | None = None,
    decode: Any = None,
    spark: Any = None,
    storage_options: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Export:
    """Write a table into the directory ``target``; readers see all of it, or what was there before.

    ``format``: "parquet" makes a directory of files, and ``mode`` "error" (default) refuses an existing one,
    "overwrite" replaces one that an export has made. "delta" and "iceberg" make a table, or bring it up to
    date (``mode`` "update", the default; "overwrite" replaces all its rows): ``view="log"`` appends new
    records, ``view="latest"`` has a row for each key; the rows of each partition are divided into so many
    ``buckets`` by the hash of the key. ``compression``: "snappy", "none", "zstd", "lz4" or "gzip".
    ``decode``: as in ``st.read``. ``spark``: the ``SparkSession`` whose tasks write, to a store or to storage
    that its executors share; without one, this process does, on all cores. ``storage_options``: of the object
    stores that ``path`` and ``target`` are in. The other arguments are those of ``st.read``. Raises
    UsageError, EngineError, TableChangedError, and what reading raises; nothing has changed then.
    """
    use_stores(storage_options)  # before the first path of a store is read
    row_filter = cast(RowKeywords, {name: arguments.pop(name, None) for name in RowKeywords.__annotations__})
    as_of = arguments.pop("as_of", None)
    options = read_options(path, topic, as_of, row_filter, arguments).with_decoders(decode)
    if format in ("delta", "iceberg"):
        table = _open_lake(files.absolute(Path(target)), format)
        return _export_to_lake(table, options, mode or "update", compression, buckets, spark)
    if buckets is not None:
        advice = "leave buckets out, or export to 'delta' or 'iceberg'"
        raise UsageError("buckets are of Delta and Iceberg tables", advice=advice)
    plan = begin(
        with_inferred_types(options),
        Path(target),
        output_format=format,
        mode=mode or "error",
        compression=compression,
    )
    if spark is None:
        return export_in_process(plan)
    from siltstone.spark.export import export_on

    return export_on(spark, plan)


def _open_lake(root: Path, format: str) -> LakeTable:
    """The table of the format. Raises ImportError, which names the extra that is missing."""
    if format == "delta":
        from siltstone.tables.lakes.delta import DeltaLake

        return DeltaLake(root)
    from siltstone.tables.lakes.iceberg import IcebergLake

    return IcebergLake(root)


def _export_to_lake(
    table: LakeTable, options: ReadOptions, mode: str, compression: str, buckets: int | None, spark: Any
) -> Export:
    from siltstone.tables.lakes import export as lake_export
    from siltstone.tables.lakes.plan import plan_export

    options = with_inferred_types(options, None if table.version is None else table.columns())
    plan = plan_export(table, options, mode=mode, compression=compression, buckets=buckets)
    if spark is None:
        return lake_export.export_in_process(table, plan)
    from siltstone.spark.export import export_lake_on

    return export_lake_on(spark, table, plan)
