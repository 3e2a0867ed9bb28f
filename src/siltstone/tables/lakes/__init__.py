"""A topic as a Delta or Iceberg table, which exports bring up to date.

::

    table's commit: offsets of each log ─ plan ─► what each log has new, or that it is read again
    view=log      new records ─────────────────────────────────────► new files            ─┐
    view=latest   last record of each key ─ by bucket ─► merge with the bucket's old files ─┴─► one commit

    ROOT/data/part-00000-RANDOM.parquet     written and synced by tasks; in no version before the commit
    ROOT/_delta_log, ROOT/metadata          the table's versions

``plan`` (what is new) · ``buckets`` (rows by key bucket, merged) · ``table`` (what the formats share) ·
``delta``, ``iceberg`` (the formats; each needs its own library) · ``export`` (in this process; on Spark:
``spark.export``).

A commit has the files and the offsets together, and is made only if the table still has the version that the
export began with. So a repeated export finds nothing new, a killed one leaves files that no version has, and
of two exports at the same time the one that commits second fails.
"""
