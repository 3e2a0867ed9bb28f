"""Registers the data source: Spark imports every top-level module whose name begins with ``pyspark_``.

``DefaultSource`` makes ``spark.read.format("siltstone")`` work without a registration.
"""

from __future__ import annotations

from siltstone.spark.source import SiltstoneSource


class DefaultSource(SiltstoneSource):
    """The data source, under the class name that Spark looks for in such a module."""


__all__ = ["DefaultSource"]
