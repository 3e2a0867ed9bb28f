"""Spark: the only room that imports pyspark.

``session`` starts Spark and ships the package, ``jobs`` and ``exchange`` run stages, ``clean`` and
``compact`` are the engines, ``source`` is the data source, ``internals`` what is used of PySpark beyond its
interface.
"""
