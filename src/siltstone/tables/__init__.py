"""Log directories as tables, without Spark: planned on one machine, read into Arrow on any.

::

    options = ReadOptions.of({"path": "/backup/kafka", "subscribe": "users", "view": "latest"})
    for split in plan(options):                       # small, picklable
        for batch in read_split(split, options):      # pyarrow.RecordBatch, the schema of schema_of(options)
            ...

``table`` (``schema_of``, ``plan``, ``read_split``) · ``options`` (texts become checked values) · ``splits``
(which bytes of which files each task reads) · ``reading`` (a split becomes Arrow batches, bad batches become
rows) · ``arrow`` (record columns become Arrow arrays) · ``decoding`` (typed columns) · ``file_tables``
(indexes, snapshots and checkpoints as rows) · ``latest`` (the last record of each key) · ``following``
(streams) · ``writing`` (rows become batches) · ``commit`` (appends them to logs, exactly once) · ``export``
(Parquet) · ``lakes`` (Delta, Iceberg). Nothing here imports pyspark: ``spark.source`` is Spark's data source.
"""

try:
    import pyarrow  # noqa: F401 - only to see if it is installed
except ImportError as error:
    raise ImportError(
        "tables need pyarrow, which is not installed: pip install 'siltstone[arrow]'", name="pyarrow"
    ) from error
