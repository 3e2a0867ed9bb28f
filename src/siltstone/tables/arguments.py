"""The arguments of ``siltstone.read`` and ``siltstone.export``: Python's values become ``ReadOptions``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from numbers import Integral
from typing import Any, TypedDict

from siltstone.base.errors import UsageError
from siltstone.tables.options import ReadOptions, RowFilter, directory_path, time_ms

OnePath = str | os.PathLike[str]
Paths = OnePath | Sequence[OnePath]
Time = int | str | datetime
"""Milliseconds since 1970, ISO 8601 text or a datetime; UTC if it names no time zone."""
AsOf = int | str | datetime
"""An offset, or a time as ISO 8601 text or a datetime. (``Time`` takes a number as milliseconds.)"""


class RowKeywords(TypedDict, total=False):
    """The arguments that choose records. ``offsets`` and ``timestamps``: (start, end), the start inclusive
    and the end exclusive; None: no bound. ``partitions``, ``keys``: one or many; a key as text is encoded as
    UTF-8."""

    offsets: tuple[int | None, int | None] | None
    timestamps: tuple[Time | None, Time | None] | None
    partitions: int | Iterable[int] | None
    keys: bytes | str | Iterable[bytes | str] | None


def read_options(
    path: Paths,
    topic: str | Sequence[str] | None,
    as_of: AsOf | None,
    rows: RowKeywords,
    other_options: Mapping[str, Any],
) -> ReadOptions:
    """The options of a batch query. ``other_options``: options of the table by their names in ``OPTIONS``, or
    by those names in snake case. Raises UsageError."""
    directories = [path] if isinstance(path, str | os.PathLike) else path
    paths = [os.fspath(directory) for directory in directories]
    if not paths:
        raise UsageError("no log directory is passed", advice="pass a path, or all log.dirs of one broker")
    texts = {_camel_case(name): _text(value) for name, value in other_options.items() if value is not None}
    if topic is not None:
        texts["subscribe"] = _text(topic)
    if as_of is not None:
        texts["asOfOffset" if isinstance(as_of, Integral) else "asOfTimestamp"] = _text(as_of)
    options = ReadOptions.of({**texts, "path": paths[0]})
    return replace(options, paths=tuple(map(directory_path, paths))).with_rows(row_filter(rows))


def row_filter(rows: RowKeywords) -> RowFilter:
    """The filter that the arguments describe. Raises UsageError."""
    start, end = _bounds("offsets", rows.get("offsets"))
    if not all(offset is None or _is_whole_number(offset) for offset in (start, end)):
        raise UsageError(f"offsets={rows['offsets']!r}: not offsets", advice="pass whole numbers >= 0")
    start_time, end_time = _bounds("timestamps", rows.get("timestamps"))
    partitions: Any = rows.get("partitions")
    if partitions is not None:
        partitions = [partitions] if isinstance(partitions, Integral) else list(partitions)
        if not partitions or not all(map(_is_whole_number, partitions)):
            advice = "pass a partition's number, or several in a list"
            raise UsageError(f"partitions={rows['partitions']!r}: not numbers >= 0", advice=advice)
    return RowFilter(
        partitions=None if partitions is None else frozenset(map(int, partitions)),
        start_offset=None if start is None else int(start),
        end_offset=None if end is None else int(end),
        start_ms=_milliseconds(start_time),
        end_ms=_milliseconds(end_time),
        keys=_key_bytes(rows.get("keys")),
    )


def _is_whole_number(value: object) -> bool:
    """Is it a whole number, Python's or numpy's, and at least 0?"""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _bounds(name: str, bounds: Any) -> tuple[Any, Any]:
    """(start, end) of an argument, None for no bound. ``name``: the argument's. Raises UsageError."""
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        advice = f"pass a pair such as {name}=(start, end), or None in place of a bound"
        raise UsageError(f"{name}={bounds!r}: not a start and an end", advice=advice)
    return bounds[0], bounds[1]


def _milliseconds(time: Time | None) -> int | None:
    try:
        return None if time is None else time_ms(_text(time))
    except UsageError as error:
        raise UsageError(f"timestamps: {time!r}: {error.reason}", advice=error.advice) from None


def _key_bytes(keys: bytes | str | Iterable[bytes | str] | None) -> tuple[bytes, ...] | None:
    """The keys as bytes, each once, sorted; None for no filter. Raises UsageError."""
    if keys is None:
        return None
    key_list = [keys] if isinstance(keys, bytes | str) else list(keys)
    if not all(isinstance(key, bytes | str) for key in key_list):
        raise UsageError("keys: a key is neither bytes nor text", advice="pass bytes, or text for UTF-8")
    try:
        return tuple(sorted({key.encode() if isinstance(key, str) else key for key in key_list}))
    except UnicodeEncodeError as error:
        raise UsageError(f"keys: {error.object!r} cannot be encoded as UTF-8", advice="pass bytes") from None


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def _text(value: Any) -> str:
    """A Python value as the text of an option, as Spark passes options."""
    if isinstance(value, bool | Mapping):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
