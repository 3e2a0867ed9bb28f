"""``siltstone.read``: a log as a DataFrame, with options as Python values.

The session may be one of Spark Connect, so this module needs no Java and no ``SparkContext``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    *,
    as_of: int | str | datetime | None = None,
    **options: Any,
) -> DataFrame:
    """The table of a log directory, or of one partition's: ``st.read(spark, "/backup/kafka", "users")``.

    ``topic``: one, or several separated by commas; all by default. ``as_of``: an offset (int), or a time (ISO
    text or datetime, UTC where it has no zone). The other options are those of the data source, under their
    own names (``minPartitions``) or in snake case (``min_partitions``). Their values are Python's: ``True``,
    ``["key", "value"]``, ``{"users": {"0": 5}}``. For a wrong option Spark raises AnalysisException, with
    Siltstone's message.
    """
    raw_options = {_camel_case(name): _text(value) for name, value in options.items() if value is not None}
    if topic is not None:
        raw_options["subscribe"] = topic
    if as_of is not None:
        raw_options["asOfOffset" if isinstance(as_of, int) else "asOfTimestamp"] = _text(as_of)
    return spark.read.format("siltstone").options(**raw_options).load(os.fspath(path))


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def _text(value: Any) -> str:
    """A Python value as the text of an option."""
    if isinstance(value, bool | Mapping):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
