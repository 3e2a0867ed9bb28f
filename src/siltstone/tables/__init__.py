"""Log directories as tables, without Spark: planned on one machine, read into Arrow on any.

::

    options = ReadOptions.of({"path": "/backup/kafka", "subscribe": "users", "view": "latest"})
    for split in plan(options):                       # small, picklable
        for batch in read_split(split, options):      # pyarrow.RecordBatch, the schema of schema_of(options)
            ...

``table`` (``schema_of``, ``plan``, ``read_split``) · ``options`` (texts → checked values) · ``splits`` (which
bytes of which files, cut for tasks) · ``reading`` (a split → Arrow batches, damage as rows) · ``arrow``
(columns → Arrow) · ``file_tables`` · ``following`` (streams) · ``writing``, ``commit``. Nothing here
imports pyspark: ``spark.source`` is the data source.
"""

try:
    import pyarrow  # noqa: F401 - only to see if it is installed
except ImportError as error:
    raise ImportError(
        "tables need pyarrow, which is not installed: pip install 'siltstone[arrow]'", name="pyarrow"
    ) from error
