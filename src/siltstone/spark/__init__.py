"""Spreading the cleaner's pieces with Spark: the only room that imports pyspark.

``session`` starts and ships, ``clean`` is the pipeline, ``rows`` what goes between its stages.
"""
