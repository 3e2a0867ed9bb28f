"""Log directories as tables: what a data source over them is, without a data source.

::

    options = ReadOptions.of({"path": "/backup/kafka", "subscribe": "users", "view": "latest"})
    for split in plan(options):                       # small, picklable
        for batch in read_split(split, options):      # pyarrow.RecordBatch, the schema of schema_of(options)
            ...

``options`` (texts → checked values) · ``splits`` (which bytes of which files, cut for tasks) · ``views``
(``plan``, for every view) · ``reading`` (a split → Arrow batches) · ``arrow`` (columns → Arrow) ·
``forensics`` (batches and damage as rows) · ``file_tables`` · ``following`` (streams) · ``batching``,
``writing``, ``commit`` (writes) · ``table`` (which of them a query needs). No pyspark here: ``spark.source``
puts Spark's names on it.
"""

try:
    import pyarrow  # noqa: F401 - is it there?
except ImportError as error:
    raise ImportError(
        "tables need pyarrow, which is not installed: pip install 'siltstone[arrow]'", name="pyarrow"
    ) from error
