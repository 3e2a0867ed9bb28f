"""Iceberg tables in a directory, without a catalog, by pyiceberg.

::

    metadata/v1.metadata.json …      one file a version; a writer whose version is there already fails
    metadata/version-hint.text       the newest version's number; a reader looks for later ones from it on
    metadata/*.avro                  manifests

This is the layout of Iceberg's ``HadoopTables`` and ``HadoopCatalog``: Spark opens the table by its path,
DuckDB by ``iceberg_scan``, pyiceberg by ``StaticTable.from_metadata``, Polars by ``scan_iceberg``. The hard
link that creates the version's file (in a store, the conditional put) is the commit: of two exports only one
can create it.

The progress of the logs is in the summary of each snapshot that an export made. An export takes it from the
newest of these among the current snapshot and its ancestors, so a rollback of the table takes the progress
back, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.base import files
from siltstone.base.errors import CorruptFileError, UsageError
from siltstone.tables.lakes.table import (
    Change,
    DataFile,
    LogProgress,
    TableShape,
    other_commit_error,
    read_footer,
)
from siltstone.tables.options import directory_path

try:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.io import load_file_io
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        pyarrow_to_schema,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableResponse, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
    from pyiceberg.table.snapshots import Snapshot, ancestors_of
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.table.update import update_table_metadata
    from pyiceberg.transforms import BucketTransform, IdentityTransform
    from pyiceberg.typedef import Record

    from siltstone.tables.lakes.iceberg_files import StoreFiles
except ImportError as error:
    raise ImportError(
        "Iceberg tables need pyiceberg, which is not installed: pip install 'siltstone[iceberg]'",
        name="pyiceberg",
    ) from error

_METADATA, _HINT = "metadata", "version-hint.text"
_VERSION = re.compile(r"v(\d{1,9})\.metadata\.json", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_TOPIC, _BUCKETS, _EXPORTED = "siltstone.topic", "siltstone.buckets", "siltstone.exported"
"""Two properties of the table; and the property of a snapshot with the progress of the logs."""
_NO_BOUNDS = MetricsMode(MetricModeTypes.NONE)
"""For a column whose smallest and largest value go into no manifest."""
_FIELD_ID = "PARQUET:field_id"
_SMALL_TYPES = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


class IcebergLake:
    """The Iceberg table in the directory ``root``, or the one that a first commit makes there."""

    def __init__(self, root: Path) -> None:
        """Raises CorruptFileError, UsageError for a table that was moved."""
        self.root, self._metadata = root, None
        self._io = StoreFiles() if files.is_object(root) else load_file_io({}, os.fspath(root))
        self._version = _newest_version(root)
        self._files: dict[str, IcebergFile] = {}  # by path; ``data_files`` fills it, ``commit`` removes by it
        if self._version is not None:
            self._metadata = _read_metadata(_version_path(root, self._version))
            if directory_path(self._metadata.location) != os.fspath(root):
                reason = f"the table's files are named by its old place {self._metadata.location}"
                raise UsageError(reason, path=root, advice="move it back, or export to another target")

    @property
    def version(self) -> int | None:
        """The version, None if there is no table yet."""
        return self._version

    def buckets_of(self, topic: str) -> int | None:
        """The number of key buckets; None if the table is not an export of this topic."""
        properties = {} if self._metadata is None else self._metadata.properties
        buckets = properties.get(_BUCKETS, "")
        return int(buckets) if properties.get(_TOPIC) == topic and _NUMBER.fullmatch(buckets) else None

    def columns(self) -> pa.Schema:
        """The table's columns."""
        assert self._metadata is not None
        return _arrow_schema(self._metadata.schema())

    def has_columns(self, columns: pa.Schema) -> bool:
        """Are these the table's columns?"""
        return bool(self.columns().equals(_arrow_schema(_iceberg_schema(columns))))

    def progress(self, topic: str, partitions: Sequence[int]) -> dict[int, LogProgress]:
        """The progress of those of the partitions that are in the table. Raises UsageError if no snapshot has
        it."""
        known = self._all_progress()
        return {number: known[number] for number in partitions if number in known}

    def _all_progress(self) -> dict[int, LogProgress]:
        """The progress of all logs in the table: from the newest snapshot that an export made, among the
        current one and its ancestors. Raises UsageError, CorruptFileError."""
        current = None if self._metadata is None else self._metadata.current_snapshot()
        if current is None or self._metadata is None:
            return {}
        for snapshot in ancestors_of(current, self._metadata):
            text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(_EXPORTED)
            if text is not None:
                try:
                    return msgspec.json.decode(text, type=dict[int, LogProgress], strict=False)
                except (ValueError, RecursionError) as error:
                    place = os.fspath(_version_path(self.root, self._version or 0))
                    raise CorruptFileError(place, 0, f"{_EXPORTED} of a snapshot: {error}") from None
        reason = f"no snapshot of the table has {_EXPORTED} any more: those of exports have expired"
        raise UsageError(
            reason, path=self.root, advice="export with mode='overwrite', which replaces all rows"
        )

    def data_files(self) -> list[DataFile]:
        """All files of this version. Raises UsageError if it has delete files, which other writers make."""
        assert self._metadata is not None
        snapshot = self._metadata.current_snapshot()
        for manifest in () if snapshot is None else snapshot.manifests(self._io):
            if manifest.content == ManifestContent.DELETES or manifest.partition_spec_id != 0:
                reason = "another writer has given the table delete files, or another partitioning"
                raise UsageError(reason, path=self.root, advice="export to another target")
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                self._files[entry.data_file.file_path] = entry.data_file
        return [_data_file(file) for file in self._files.values()]

    def file_schema(self, shape: TableShape) -> pa.Schema:
        """The columns of data files, with Iceberg's ids. Raises UsageError."""
        self._metadata = self._metadata or _new_metadata(self.root, shape)
        return _arrow_schema(self._metadata.schema(), with_ids=True)

    def commit(self, shape: TableShape, change: Change) -> int:
        """Commit onto this version, and return the new one. Raises TableChangedError, OSError."""
        if not files.is_object(self.root):
            files.make_directory(self.root / _METADATA)
        metadata = self._metadata or _new_metadata(self.root, shape)
        version = (self._version or 0) + 1
        base = "" if self._version is None else os.fspath(_version_path(self.root, self._version))
        catalog = _DirectoryCatalog(self.root, version)
        table = Table(("siltstone", self.root.name), metadata, base, self._io, catalog)
        progress = {**({} if change.replaces_all else self._all_progress()), **change.progress}
        exported = {str(number): dataclasses.asdict(progress[number]) for number in sorted(progress)}
        transaction = Transaction(table)
        update = transaction.update_snapshot(snapshot_properties={_EXPORTED: json.dumps(exported)})
        with update.overwrite() if change.removed else update.fast_append() as snapshot:
            for file in change.removed:
                snapshot.delete_data_file(self._files[file.path])
            for file in change.added:
                snapshot.append_data_file(_iceberg_file(self.root, metadata, shape, file))
        transaction.commit_transaction()
        return version


class _DirectoryCatalog(NoopCatalog):
    """The catalog that pyiceberg commits to: makes the metadata file of ``version``, the table's newest."""

    def __init__(self, root: Path, version: int) -> None:
        super().__init__("siltstone")
        self._root, self._version = root, version

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Make the version's file. Raises TableChangedError if there is one, OSError."""
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, False, table.metadata_location or None)
        path = _version_path(self._root, self._version)
        text = metadata.model_dump_json(exclude_none=True).encode()
        if not files.is_object(path):
            snapshot = metadata.current_snapshot()
            if snapshot is not None:
                _sync_manifests(snapshot, table.io)
            self._link(path, text)
        elif not files.put_own(path, text):
            raise other_commit_error(self._root)
        _write_hint(self._root, self._version)
        return CommitTableResponse.model_validate(
            {"metadata": metadata, "metadata-location": os.fspath(path)}
        )

    def _link(self, path: Path, text: bytes) -> None:
        """Make the file, durably, if there is none of its name. Raises TableChangedError, OSError."""
        staged = path.with_name(f"{secrets.token_hex(8)}.new")
        files.write_new(staged, text)
        try:
            files.inherit_owner(staged)
            files.link(staged, path)
        except FileExistsError:
            raise other_commit_error(self._root) from None
        finally:
            with contextlib.suppress(OSError):
                files.unlink(staged)
        files.sync_directory(path.parent)


def _sync_manifests(snapshot: Snapshot, io: Any) -> None:
    """Bring the snapshot's own manifests to disk: the metadata that names them is durable, too."""
    own = [
        manifest.manifest_path
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
    ]
    files.sync_files([snapshot.manifest_list, *own])


def _version_path(root: Path, version: int) -> Path:
    return root / _METADATA / f"v{version}.metadata.json"


def _newest_version(root: Path) -> int | None:
    """The newest version, None without any. A hint that is behind, since an export was killed, is renewed."""
    if not files.is_directory(root / _METADATA, follow=False):
        return None
    names = (_VERSION.fullmatch(name) for name in files.list_files(root / _METADATA))
    newest = max((int(match[1]) for match in names if match), default=None)
    if newest is not None:
        with contextlib.suppress(FileNotFoundError):
            if files.read_bytes(root / _METADATA / _HINT, limit=32).strip() == b"%d" % newest:
                return newest
        _write_hint(root, newest)
    return newest


def _write_hint(root: Path, version: int) -> None:
    # Of two writers the slower one may put back an older number: readers look for later versions from it on.
    if files.is_object(root):
        return files.put_hint(root / _METADATA / _HINT, b"%d" % version)
    staged = root / _METADATA / f"{secrets.token_hex(8)}.new"
    files.write_new(staged, b"%d" % version)
    files.inherit_owner(staged)
    files.rename(staged, root / _METADATA / _HINT)
    return None


def _read_metadata(path: Path) -> TableMetadata:
    try:
        return TableMetadataUtil.parse_raw(files.read_bytes(path).decode())
    except (ValidationError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CorruptFileError(os.fspath(path), 0, f"not Iceberg's metadata: {reason}") from None


def _new_metadata(root: Path, shape: TableShape) -> TableMetadata:
    """The metadata of a table that its first commit makes, partitioned by partition and key bucket if it has
    buckets."""
    schema = _iceberg_schema(shape.columns)
    spec = PartitionSpec()
    if shape.buckets:
        key = "keyBytes" if "keyBytes" in shape.columns.names else "key"
        spec = PartitionSpec(  # Iceberg's ids of partition fields begin at 1000
            PartitionField(
                schema.find_field("partition").field_id, 1000, IdentityTransform(), name="partition"
            ),
            PartitionField(
                schema.find_field(key).field_id, 1001, BucketTransform(shape.buckets), name=f"{key}_bucket"
            ),
        )
    properties = {_TOPIC: shape.topic, _BUCKETS: str(shape.buckets)}
    return new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, os.fspath(root), properties)


# Schemas: pyiceberg makes large types of Arrow, whose offsets take twice the bytes.


def _rebuilt(field: pa.Field, rebuild: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """``rebuild`` applied to all fields within a field, and then to the field."""
    dtype = field.type
    if pa.types.is_struct(dtype):
        dtype = pa.struct([_rebuilt(child, rebuild) for child in dtype])
    elif pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        dtype = pa.list_(_rebuilt(dtype.value_field, rebuild))
    elif pa.types.is_map(dtype):
        dtype = pa.map_(_rebuilt(dtype.key_field, rebuild), _rebuilt(dtype.item_field, rebuild))
    return rebuild(field.with_type(dtype))


def _arrow_schema(schema: Schema, *, with_ids: bool = False) -> pa.Schema:
    """Iceberg's schema as Arrow's, without large types. ``with_ids``: the fields' metadata has Iceberg's
    ids."""
    large = schema_to_pyarrow(schema, include_field_ids=with_ids)
    small = [
        _rebuilt(field, lambda one: one.with_type(_SMALL_TYPES.get(one.type, one.type))) for field in large
    ]
    return pa.schema(small)


def _iceberg_schema(columns: pa.Schema) -> Schema:
    """The columns as Iceberg's, with ids. Raises UsageError."""
    ids = itertools.count(1)
    numbered = [
        _rebuilt(field, lambda one: one.with_metadata({_FIELD_ID: str(next(ids))})) for field in columns
    ]
    try:
        return pyarrow_to_schema(pa.schema(numbered))
    except Exception as error:  # pyiceberg raises errors of many kinds
        reason = f"Iceberg has no type for a column: {str(error).splitlines()[0]}"
        raise UsageError(reason, advice="use other types in the schema of decode") from None


# Data files.


def _data_file(file: IcebergFile) -> DataFile:
    partition, bucket = (file.partition[0], file.partition[1]) if len(file.partition) else (-1, -1)
    return DataFile(
        path=file.file_path,
        partition=partition,
        bucket=bucket,
        records=file.record_count,
        size=file.file_size_in_bytes,
    )


def _iceberg_file(root: Path, metadata: TableMetadata, shape: TableShape, file: DataFile) -> IcebergFile:
    """The entry of a new file in a manifest, with the statistics of the file's footer."""
    path, schema = root / file.path, metadata.schema()
    footer = read_footer(path, file.size)
    ids = parquet_path_to_id_mapping(schema)
    wanted = compute_statistics_plan(schema, metadata.properties)
    for column in range(footer.num_columns):
        field_id = ids[footer.schema.column(column).path]
        if not _has_bounds(footer, column):
            wanted[field_id] = dataclasses.replace(wanted[field_id], mode=_NO_BOUNDS)
    statistics = data_file_statistics_from_parquet_metadata(footer, wanted, ids)
    return IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=os.fspath(path),
        file_format=FileFormat.PARQUET,
        partition=Record(file.partition, file.bucket) if shape.buckets else Record(),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _has_bounds(footer: pq.FileMetaData, column: int) -> bool:
    """Has the column the smallest and largest value of each row group, and can Python represent them? (Its
    times end with the year 9999.)"""
    try:
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(column)
            if not chunk.is_stats_set:
                return False
            _ = chunk.statistics.min, chunk.statistics.max
    except (OverflowError, ValueError, pa.ArrowException):
        return False
    return True
