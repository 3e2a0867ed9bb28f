"""Spark: the only package that imports pyspark.

``session`` starts Spark with the values of ``settings``; ``shipping`` brings this package to executors, of
which ``executors`` knows more; ``java``, ``class_archive``, ``daemon`` and ``forked_daemon`` make starts
faster. ``jobs``, ``tasks``, ``rows`` and ``exchange`` run stages and carry rows between them. ``clean`` and
``compact`` are the engines of the cleaner and of side-by-side compaction; ``explain`` and ``verify`` run
those commands; ``embedded`` serves programs. ``source`` is the data source, ``read`` its Python function.
``internals`` holds all uses of PySpark beyond its public interface.
"""
