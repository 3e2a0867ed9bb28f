"""``siltstone.read``: a log as a DataFrame, with options as Python values.

The session may be one of Spark Connect, so this module needs no Java and no ``SparkContext``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from siltstone.base.errors import EngineError, UsageError

OnePath = str | os.PathLike[str]


def read(
    spark: SparkSession,
    path: OnePath | Sequence[OnePath],
    topic: str | Sequence[str] | None = None,
    *,
    as_of: int | str | datetime | None = None,
    **options: Any,
) -> DataFrame:
    """The table of a log directory, or of one partition's: ``st.read(spark, "/backup/kafka", "users")``.

    ``path``: one, or all log.dirs of one broker. ``topic``: one or several, in a list or separated by commas;
    all by default. ``as_of``: an offset (int), or a time (ISO
    text or datetime, UTC where it has no zone). The other options are those of the data source, under their
    own names (``minPartitions``) or in snake case (``min_partitions``). Their values are Python's: ``True``,
    ``["key", "value"]``, ``{"users": {"0": 5}}``. For a wrong option Spark raises AnalysisException, with
    Siltstone's message; EngineError where the session's Python has no Siltstone. Raises UsageError.
    """
    paths = [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise UsageError("no log directory is passed", advice="pass a path, or all log.dirs of one broker")
    raw_options = {_camel_case(name): _text(value) for name, value in options.items() if value is not None}
    if topic is not None:
        raw_options["subscribe"] = _text(topic)
    if as_of is not None:
        raw_options["asOfOffset" if isinstance(as_of, int) else "asOfTimestamp"] = _text(as_of)
    reader = spark.read.format("siltstone").options(**raw_options)
    try:
        return reader.load(paths[0] if len(paths) == 1 else paths)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND":
            raise
        advice = f"set PYSPARK_PYTHON={sys.executable} before the session starts, or install siltstone there"
        raise EngineError("the Python of the session's workers has no Siltstone", advice=advice) from None


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def _text(value: Any) -> str:
    """A Python value as the text of an option."""
    if isinstance(value, bool | Mapping):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
