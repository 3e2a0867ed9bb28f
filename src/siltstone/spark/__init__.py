"""Spark: the only package that imports pyspark.

``session`` starts Spark with the values of ``settings``; ``stores`` takes over a session's options of object
stores. ``executors`` finds out what the executors of a cluster can run and see, and ``shipping`` brings this
package to them. ``java``, ``class_archive``, ``daemon`` and ``forked_daemon`` make starts faster. ``jobs``,
``tasks``, ``rows`` and ``exchange`` run stages and carry rows between them.

``clean`` and ``compact`` are the engines of the cleaner and of side-by-side compaction; ``embedded`` starts
them for programs that open logs. ``verify`` runs the checks of that command. ``source`` is the data source
``format("siltstone")``; ``read`` and ``export`` are ``siltstone.read`` and ``siltstone.export``.
``internals`` holds all uses of PySpark beyond its public interface.
"""
