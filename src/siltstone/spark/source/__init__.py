"""Siltstone as a data source of Spark: thin names over ``siltstone.tables``.

``data_source`` is what Spark instantiates, ``batch`` the reader of a query, ``filters`` what Spark says that
it will filter. Spark finds it by the top-level module ``pyspark_siltstone``.
"""
