"""Logs as Arrow tables, without Spark: ``to_batches`` and ``to_arrow``.

::

    table = to_arrow(log, view="latest", columns=["key", "value"])

The only room beside ``spark`` that needs pyarrow: ``pip install 'siltstone[arrow]'``. ``buffers`` makes
Arrow's buffers out of spans, ``batches`` is what people call, ``latest`` finds the last record of each key.
"""

try:
    import pyarrow  # noqa: F401 - is it there?
except ImportError as error:
    raise ImportError(
        "Arrow tables need pyarrow, which is not installed: pip install 'siltstone[arrow]'", name="pyarrow"
    ) from error

from siltstone.arrow.batches import COLUMNS, TopicLog, schema, to_arrow, to_batches

__all__ = ["COLUMNS", "TopicLog", "schema", "to_arrow", "to_batches"]
