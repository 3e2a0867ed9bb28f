"""Delta Lake tables, by deltalake (delta-rs).

::

    _delta_log/00000000000000000000.json …    one file a version: its files added and removed, and
      txn        appId siltstone/TOPIC/buckets, siltstone/TOPIC/generation, and a number for each field of
                 ``LogProgress``: siltstone/TOPIC-PARTITION/GENERATION/FIELD. Delta keeps transactions in its
                 checkpoints, so no later commit loses them. An export that replaces all rows begins a new
                 generation: the fields of earlier ones are not read any more
      commitInfo siltstone: the same, to be read by people (``DESCRIBE HISTORY``); siltstoneCommit: a nonce,
                 by which an export recognises its own commit if the response of the store was lost

A commit may only make the version after the one that was read: with retries, delta-rs would take two exports
that append the same offsets for writers that do not touch each other. Tables with features that change which
rows a file has (deletion vectors, column mapping) are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.base import files
from siltstone.base.clock import LATEST_MS, SystemClock
from siltstone.base.errors import UsageError
from siltstone.tables.lakes.table import (
    BUCKET_COLUMN,
    Change,
    DataFile,
    LogProgress,
    TableShape,
    other_commit_error,
    read_footer,
)

try:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
except ImportError as error:
    raise ImportError(
        "Delta tables need deltalake, which is not installed: pip install 'siltstone[delta]'",
        name="deltalake",
    ) from error

_FIELDS = tuple(field.name for field in dataclasses.fields(LogProgress))
"""A number in a Delta table for each of these: see the module's drawing."""
_COMMITS_SEARCHED = 100
"""How many commits, from the newest back, are searched for a RESTORE since the last export."""
_PARTITION_COLUMNS = ["partition", BUCKET_COLUMN]
_FEATURES = frozenset({"timestampNtz"})
"""The reader features that an export supports: with these, a table has all rows of its files."""


class DeltaLake:
    """The Delta table in the directory ``root``, or the one that a first commit makes there."""

    def __init__(self, root: Path) -> None:
        """Raises UsageError for a table with features that are not known here, what deltalake raises."""
        self.root = root
        self._storage = files.options_for(root) if files.is_object(root) else None
        has_log = files.is_directory(root / "_delta_log", follow=False)
        self._table = self._opened() if has_log else None
        if self._table is not None:
            features = set(self._table.protocol().reader_features or ())
            # Reader version 2 has column mapping without naming it among the features.
            if features - _FEATURES or self._table.protocol().min_reader_version == 2:
                names = ", ".join(sorted(features - _FEATURES)) or "columnMapping"
                reason = f"another writer has given the table features that an export cannot keep: {names}"
                raise UsageError(reason, path=root, advice="export to another target")

    def _opened(self) -> DeltaTable | None:
        """The table; None if the folder of its log has no version yet."""
        # DeltaTable.is_deltatable would keep all threads of this process waiting for the store.
        try:
            with _store_errors(self.root):
                return DeltaTable(os.fspath(self.root), storage_options=self._storage)
        except TableNotFoundError:
            return None

    @property
    def version(self) -> int | None:
        """The version, None if there is no table yet."""
        return None if self._table is None else self._table.version()

    def buckets_of(self, topic: str) -> int | None:
        """The number of key buckets; None if the table is not an export of this topic."""
        return None if self._table is None else self._table.transaction_version(f"siltstone/{topic}/buckets")

    def columns(self) -> pa.Schema:
        """The table's columns, without the bucket."""
        assert self._table is not None
        fields = [
            field for field in pa.schema(self._table.schema().to_arrow()) if field.name != BUCKET_COLUMN
        ]
        return pa.schema(fields)

    def has_columns(self, columns: pa.Schema) -> bool:
        """Are these the table's columns?"""
        return bool(self.columns().equals(_as_in_delta(columns)))

    def progress(self, topic: str, partitions: Sequence[int]) -> dict[int, LogProgress]:
        """The progress of those of the partitions that are in the table."""
        if self._table is None:
            return {}
        generation, progress_of_logs = self._generation(topic), {}
        for number in partitions:
            ids = [_app_id(topic, number, generation, name) for name in _FIELDS]
            values = [value for value in map(self._table.transaction_version, ids) if value is not None]
            if len(values) == len(_FIELDS):
                progress_of_logs[number] = LogProgress(**dict(zip(_FIELDS, values, strict=True)))
        return progress_of_logs

    def _generation(self, topic: str) -> int:
        """The version that replaced all rows last, 0 if none did. Raises UsageError if the table was restored
        to an older version since the last export."""
        assert self._table is not None
        for commit in self._table.history(_COMMITS_SEARCHED):
            if "siltstone" in commit:
                break
            if commit.get("operation") == "RESTORE":
                reason = "the table was restored to an older version since the last export"
                advice = "export with mode='overwrite', which replaces all rows"
                raise UsageError(reason, path=self.root, advice=advice)
        return self._table.transaction_version(f"siltstone/{topic}/generation") or 0

    def data_files(self) -> list[DataFile]:
        """All files of this version."""
        assert self._table is not None
        rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(
                path=unquote(row["path"]),
                partition=row.get("partition.partition", -1),
                bucket=row.get(f"partition.{BUCKET_COLUMN}", -1),
                records=row["num_records"] or 0,
                size=row["size_bytes"],
            )
            for row in rows
        ]

    def file_schema(self, shape: TableShape) -> pa.Schema:
        """The columns of data files: all but those that the table is partitioned by, which are in a file's
        path. Raises UsageError."""
        columns = _as_in_delta(shape.columns)
        return pa.schema([field for field in columns if not shape.buckets or field.name != "partition"])

    def commit(self, shape: TableShape, change: Change) -> int:
        """Commit onto this version, and return the new one. Raises TableChangedError, DeltaError."""
        schema, partition_by = shape.columns, []
        if shape.buckets:
            schema, partition_by = schema.append(pa.field(BUCKET_COLUMN, pa.int32())), _PARTITION_COLUMNS
        now_ms, generation = SystemClock().now_ms(), 0
        if self._table is not None:
            generation = self._table.version() + 1 if change.replaces_all else self._generation(shape.topic)
        added = [_add_action(self.root, shape, file, now_ms) for file in change.added]
        nonce = secrets.token_hex(8)
        properties = CommitProperties(
            custom_metadata={"siltstone": json.dumps(_commit_info(shape, change)), "siltstoneCommit": nonce},
            max_commit_retries=0,
            app_transactions=list(_transactions(shape, change, generation)),
        )
        delta_schema = Schema.from_arrow(schema)
        version = 0 if self._table is None else self._table.version() + 1
        try:
            if self._table is None:
                with _store_errors(self.root):
                    create_table_with_add_actions(
                        os.fspath(self.root), delta_schema, added, "error", partition_by, shape.topic,
                        storage_options=self._storage, commit_properties=properties,
                    )  # fmt: skip
                return version
            removed = [_remove_action(shape, file, now_ms) for file in change.removed]
            with _store_errors(self.root):
                self._table.create_write_transaction(
                    [*added, *removed], "append", delta_schema, partition_by, commit_properties=properties
                )
            return version
        except DeltaError as error:
            is_made_by_another = version == 0 and "already exists" in str(error)
            if not isinstance(error, CommitFailedError) and not is_made_by_another:
                raise
            if self._has_own(version, nonce):
                return version
            raise other_commit_error(self.root) from None

    def _has_own(self, version: int, nonce: str) -> bool:
        """Is this version the commit that seems to have failed? If the store made it and the response was
        lost, it refuses the client's second attempt. Raises OSError."""
        if not files.is_object(self.root):
            return False
        return nonce.encode() in files.read_bytes(self.root / "_delta_log" / f"{version:020}.json")


@contextlib.contextmanager
def _store_errors(root: Path) -> Iterator[None]:
    """Raises a store's errors as ``OSError``, and DeltaErrors as they are (``files.store_errors`` would take
    them for the store's)."""
    if not files.is_object(root):
        yield
        return
    with files.store_errors(root):
        try:
            yield
        except DeltaError as error:
            failed = error
        else:
            return
    raise failed


def _as_in_delta(columns: pa.Schema) -> pa.Schema:
    """The columns with the types that a Delta table gives them. Raises UsageError."""
    try:
        return pa.schema(Schema.from_arrow(columns).to_arrow())
    except Exception as error:  # delta-rs raises errors of many kinds
        reason = f"Delta has no type for a column: {str(error).splitlines()[0]}"
        raise UsageError(reason, advice="use other types in the schema of decode") from None


def _app_id(topic: str, partition: int, generation: int, field: str) -> str:
    return f"siltstone/{topic}-{partition}/{generation}/{field}"


def _transactions(shape: TableShape, change: Change, generation: int) -> Iterator[Transaction]:
    yield Transaction(f"siltstone/{shape.topic}/buckets", shape.buckets)
    yield Transaction(f"siltstone/{shape.topic}/generation", generation)
    for partition, progress in change.progress.items():
        for name in _FIELDS:
            yield Transaction(_app_id(shape.topic, partition, generation, name), getattr(progress, name))


def _commit_info(shape: TableShape, change: Change) -> dict[str, object]:
    logs = {str(number): dataclasses.asdict(progress) for number, progress in change.progress.items()}
    return {"topic": shape.topic, "buckets": shape.buckets, "exported": logs}


def _partition_values(shape: TableShape, file: DataFile) -> dict[str, str | None]:
    return {"partition": str(file.partition), BUCKET_COLUMN: str(file.bucket)} if shape.buckets else {}


def _add_action(root: Path, shape: TableShape, file: DataFile, now_ms: int) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=_partition_values(shape, file),
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(_statistics(root / file.path, file)),
    )


def _remove_action(shape: TableShape, file: DataFile, now_ms: int) -> RemoveAction:
    return RemoveAction(file.path, True, now_ms, file.size, _partition_values(shape, file))


def _statistics(path: Path, file: DataFile) -> dict[str, object]:
    """Delta's statistics of a file: how many records, and the smallest and largest offset and time."""
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    bounds = _bounds(read_footer(path, file.size), ("offset", "timestamp"))
    if "offset" in bounds:
        least["offset"], most["offset"] = bounds["offset"]
    if "timestamp" in bounds:
        low, high = bounds["timestamp"]
        times = _iso_time(low, up=False), _iso_time(high, up=True)
        if None not in times:
            least["timestamp"], most["timestamp"] = times
    return {"numRecords": file.records, "minValues": least, "maxValues": most}


def _bounds(footer: pq.FileMetaData, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The smallest and the largest value of columns of 64-bit numbers, by the file's footer."""
    bounds: dict[str, tuple[int, int]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            values, name = column.statistics, column.path_in_schema
            if name in names and values is not None and values.has_min_max:
                low, high = bounds.get(name, (values.min_raw, values.max_raw))
                bounds[name] = min(low, values.min_raw), max(high, values.max_raw)
    return bounds


def _iso_time(microseconds: int, *, up: bool) -> str | None:
    """A time as Delta has it in statistics, in milliseconds: rounded ``up`` for an upper bound, down for a
    lower one. None beyond the years that it can have."""
    time_ms = -(-microseconds // 1000) if up else microseconds // 1000
    if not 0 <= time_ms <= LATEST_MS:
        return None
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
