"""Log directories as tables: what a data source over them is, without a data source.

::

    options = ReadOptions.of({"path": "/backup/kafka", "subscribe": "users", "view": "latest"})
    for split in plan(options):                       # small, picklable
        for batch in read_split(split, options):      # pyarrow.RecordBatch, the schema of schema_of(options)
            ...

``options`` (texts → one checked value) · ``choice`` (which partitions, from where, up to where) · ``opened``
(the logs of the options' directories) · ``bounds`` (texts and times → offsets) · ``splits`` (planning) ·
``reading`` (a split → Arrow batches) · ``latest`` (which records are their keys' last). No pyspark here:
``spark.source`` puts Spark's names on it.
"""

try:
    import pyarrow  # noqa: F401 - is it there?
except ImportError as error:
    raise ImportError(
        "tables need pyarrow, which is not installed: pip install 'siltstone[arrow]'", name="pyarrow"
    ) from error
