"""Exports a table into a directory of Parquet files, which appears as a whole or not at all.

::

    .NAME.siltstone-export-RANDOM/        staging, beside the target
        part-00000-ATTEMPT.parquet        one for each split, written and synced by the task that reads it
        _SUCCESS                          made by the driver, if all files are as they were reported
    ─ rename ─► NAME/

    in a store, which has no rename:
    TARGET/_siltstone-export              claims the target for one export (If-None-Match)
    TARGET/_siltstone-export-RANDOM/…     the files, put by the tasks; readers skip names that begin with _
    ─ copied by the store ─► TARGET/part-…; then TARGET/_SUCCESS, which says that all of them are there

The engine calls ``begin``, then ``write_split`` in each task, and at the end ``commit`` or ``abandon``. A
file of a task attempt that was not reported is removed before the rename. An export whose process is killed
leaves its staging directory, which no reader takes for data, since its name begins with a dot. Killed between
the two renames of an overwrite, it leaves no target: the next export to that target first renames the earlier
one back (``.NAME.siltstone-export-RANDOM-replaced``).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.base import files
from siltstone.base.decoded_types import decoded_in_threads
from siltstone.base.errors import BusyError, EngineError, UsageError
from siltstone.tables.decoding import COLUMNS
from siltstone.tables.options import ReadOptions
from siltstone.tables.splits import TaskSplit, partition_directories
from siltstone.tables.table import plan, read_split, schema_of

MODES = ("error", "overwrite")
COMPRESSIONS = ("snappy", "none", "zstd", "lz4", "gzip")
SUCCESS = "_SUCCESS"
ROW_GROUP_BYTES = 64 << 20
"""About the bytes of columns in a row group: Spark and DuckDB read one in a task or thread."""
_DICTIONARIES = ["topic", "partition", "timestampType", "file", "codec"]
"""The columns whose values repeat. For the others a dictionary would be tried and given up."""
_STATISTICS = ["topic", "partition", "offset", "timestamp"]
"""The columns by whose smallest and largest values a reader skips row groups."""
_PART, _SUFFIX = "part-", ".parquet"
_STORE_STAGING = "_siltstone-export"
_REPLACED = "-replaced"
"""Ends the name of an earlier export from the first rename of an overwrite until it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A finished export: its directory, how many ``records`` and ``files`` were written, and their size in
    bytes. ``version``: that of the Delta or Iceberg table; if nothing was new, it is not a new one."""

    target: str
    records: int
    files: int
    size: int
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """The description of an export for its tasks: the table, its ``staging`` directory, the files'
    compression."""

    options: ReadOptions
    target: str
    staging: str
    compression: str
    overwrites: bool


@decoded_in_threads
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file that a task has written and synced."""

    name: str
    records: int
    size: int


def begin(
    options: ReadOptions, target: Path, *, output_format: str, mode: str, compression: str
) -> ExportPlan:
    """Make the staging directory. Raises UsageError for a target that may not be written, or for a column of
    a type that Parquet does not have; OSError."""
    if output_format != "parquet":
        advice = "pass 'parquet', 'delta' or 'iceberg'"
        raise UsageError(f"there is no export format {output_format!r}", advice=advice)
    for name, value, allowed in (("mode", mode, MODES), ("compression", compression, COMPRESSIONS)):
        if value not in allowed:
            raise UsageError(f"{name}={value!r} is not known", advice=f"pass {', '.join(allowed)}")
    writable(schema_of(options))
    if files.is_object(target):
        prefix = _begin_in_store(target, options, mode)
        return ExportPlan(
            options=options, target=str(target), staging=prefix, compression=compression, overwrites=False
        )
    target = target.absolute()
    overwrites = mode == "overwrite"
    _put_back_replaced(target)
    if _is_taken(target):
        _refuse_existing(target, overwrites)
    refuse_log_directories(target, options)
    files.make_directory(target.parent, parents=True)
    staging = target.with_name(f"{_staging_prefix(target)}{secrets.token_hex(8)}")
    files.make_directory(staging)
    return ExportPlan(
        options=options,
        target=str(target),
        staging=str(staging),
        compression=compression,
        overwrites=overwrites,
    )


def writable(schema: pa.Schema) -> pa.Schema:
    """The schema. Raises UsageError if Parquet does not have one of its types, such as that of objects
    without fields: JSON values that are all ``{}``, or an empty message."""
    try:
        pq.ParquetWriter(io.BytesIO(), schema).close()
    except pa.ArrowNotImplementedError as error:
        reason = f"Parquet has no type for a column: {str(error).splitlines()[0]}"
        advice = "use other types in the schema of decode, or export the column without decode"
        raise UsageError(reason, advice=advice) from None
    return schema


def _staging_prefix(target: Path) -> str:
    return f".{target.name}.siltstone-export-"


def _is_taken(target: Path) -> bool:
    """Is there something of this name, even if it is a link to nothing?"""
    return files.is_link(target) or files.exists(target)


def _replaced_exports(target: Path) -> list[Path]:
    """The earlier exports that overwrites of ``target`` have renamed and not removed. Raises OSError."""
    prefix = _staging_prefix(target)
    names = [entry.name for entry in files.entries(target.parent) if entry.is_directory]
    return [target.parent / name for name in names if name.startswith(prefix) and name.endswith(_REPLACED)]


def _put_back_replaced(target: Path) -> None:
    """Rename the newest earlier export back if an overwrite was killed between its two renames."""
    if _is_taken(target) or not files.is_directory(target.parent):
        return
    replaced = _replaced_exports(target)
    if replaced:
        newest = max(replaced, key=lambda path: files.stat(path, follow=False).modified_ns)
        files.rename(newest, target)
        files.sync_directory(target.parent)


def _begin_in_store(target: Path, options: ReadOptions, mode: str) -> str:
    """The staging prefix of an export into a store. Raises UsageError, BusyError, OSError."""
    if mode == "overwrite":
        reason = "a store has no rename, with which all files would be replaced at once"
        raise UsageError(reason, path=target, advice="export to a new prefix")
    refuse_log_directories(target, options)
    if files.exists(target):
        raise _occupied_error(target)
    name = f"{_STORE_STAGING}-{secrets.token_hex(8)}"
    if not files.claim(target / _STORE_STAGING, name.encode()):
        raise BusyError("another export writes there", path=target, advice="wait for its end")
    try:  # another export may have begun and ended before the claim
        if any(below != _STORE_STAGING for below, _ in files.objects_below(target)):
            raise _occupied_error(target)
    except BaseException:
        with contextlib.suppress(OSError):
            files.delete_objects([target / _STORE_STAGING])
        raise
    return str(target / name)


def _occupied_error(target: Path) -> UsageError:
    advice = "pass another prefix; if an export was interrupted there, remove them"
    return UsageError("the target has objects already", path=target, advice=advice)


def _refuse_existing(target: Path, overwrites: bool) -> None:
    """Raises UsageError, unless the target is a whole export and this one ``overwrites`` it: anything else of
    that name would be lost."""
    if not overwrites:
        advice = "pass another directory, or mode='overwrite' to replace an export"
        raise UsageError("the target exists already", path=target, advice=advice)
    is_export = files.is_directory(target, follow=False) and all(
        entry.is_file and (entry.name == SUCCESS or is_part_name(entry.name))
        for entry in files.entries(target)
    )
    if not is_export or not files.exists(target / SUCCESS):
        reason = "the target has other files than those of a finished export"
        raise UsageError(reason, path=target, advice="pass another directory, or remove it yourself")


def refuse_log_directories(target: Path, options: ReadOptions) -> None:
    """Raises UsageError for a target inside a log directory: no broker would start with it."""
    partitions = partition_directories(options).values()
    if files.is_object(target):
        for path in partitions:
            if files.is_object(path) and files.is_below(target, path.parent):
                reason = f"the target is inside {path.parent}, and no broker would start with it"
                raise UsageError(reason, path=target, advice="pass a prefix elsewhere")
        return
    logs = {files.stat(place).device_and_inode for path in partitions for place in (path, path.parent)}
    for parent in files.resolved(target).parents:
        if files.exists(parent) and files.stat(parent).device_and_inode in logs:
            reason = f"the target is inside {parent}, and no broker would start with it"
            raise UsageError(reason, path=target, advice="pass a directory elsewhere")


# In a task.


class _Sink(io.RawIOBase):
    """A new file, as Arrow writes to it.

    An OSError is kept, and not raised into Arrow: Arrow formats the traceback of an error, and CPython may
    crash if several threads do so at the same time (``ast``, which formatting uses, has one counter for all
    threads)."""

    def __init__(self, writer: files.Writer) -> None:
        self._writer = writer
        self._error: OSError | None = None
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        self._size += size
        if self._error is None:
            try:
                self._writer.write(data)
            except OSError as error:
                self._error = error
        return size

    def tell(self) -> int:
        return self._size

    def raise_error(self) -> None:
        """Raises the first error of a write."""
        if self._error is not None:
            raise self._error


def write_split(export_plan: ExportPlan, number: int, split: TaskSplit) -> ExportedFile | None:
    """Write the rows of split ``number`` into a file of this attempt; None, and no file, if it has no rows.

    Raises what ``read_split`` raises, OSError."""
    batches = read_split(split, export_plan.options)
    first = next((batch for batch in batches if len(batch)), None)
    if first is None:
        return None
    return _write_file(export_plan, number, itertools.chain([first], batches))


def _write_file(export_plan: ExportPlan, number: int, batches: Iterable[pa.RecordBatch]) -> ExportedFile:
    path = Path(export_plan.staging) / part_name(number)
    return write_parquet(path, schema_of(export_plan.options), export_plan.compression, batches)


def part_name(number: int, run: str = "") -> str:
    """A new name for a file of task ``number``, of this attempt only. ``run``: begins the names of an export
    whose files are among those of others."""
    return f"{_PART}{run}{number:05d}-{secrets.token_hex(8)}{_SUFFIX}"


def is_part_name(name: str) -> bool:
    """Can it be one of ``part_name``?"""
    return name.startswith(_PART) and name.endswith(_SUFFIX)


def write_parquet(
    path: Path, schema: pa.Schema, compression: str, batches: Iterable[pa.RecordBatch]
) -> ExportedFile:
    """Write and sync a new Parquet file, or put it into a store. Raises what ``batches`` raises, OSError."""
    if files.is_object(path):
        with files.temporary_directory("siltstone-export-") as folder:
            written = write_parquet(Path(folder) / path.name, schema, compression, batches)
            files.put_file(Path(folder) / path.name, path)
            return written
    records = 0
    with files.Writer(path, permissions=0o666) as writer:
        sink, settings = _Sink(writer), column_settings(schema)
        with pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"), schema, compression=compression, **settings
        ) as parquet:
            for group in row_groups(batches):
                table = pa.Table.from_batches(group, schema)
                parquet.write_table(table, row_group_size=max(len(table), 1))
                records += len(table)
                sink.raise_error()
        sink.raise_error()
        files.inherit_owner(path)
        writer.sync()
        return ExportedFile(name=path.name, records=records, size=writer.size)


def column_settings(schema: pa.Schema) -> dict[str, Any]:
    """``ParquetWriter``'s arguments that say which columns have dictionaries and statistics."""
    return {
        "use_dictionary": _leaves(schema, _DICTIONARIES),
        "write_statistics": _leaves(schema, _STATISTICS),
    }


def _leaves(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The paths in Parquet of the named columns, and of all columns that are decoded: those keep Parquet's
    defaults, dictionaries and statistics."""
    is_decoded = [field.name in COLUMNS and not pa.types.is_binary(field.type) for field in schema]
    chosen = [
        field for field, decoded in zip(schema, is_decoded, strict=True) if decoded or field.name in names
    ]
    return [path for field in chosen for path in _leaf_paths(field.name, field.type)]


def _leaf_paths(path: str, column_type: pa.DataType) -> Iterator[str]:
    """The paths of the columns that Parquet stores for a column: one for each primitive type in its type."""
    if pa.types.is_struct(column_type):
        for field in column_type:
            yield from _leaf_paths(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(column_type):
        yield from _leaf_paths(f"{path}.list.element", column_type.value_type)
    elif pa.types.is_map(column_type):
        yield from _leaf_paths(f"{path}.key_value.key", column_type.key_type)
        yield from _leaf_paths(f"{path}.key_value.value", column_type.item_type)
    else:
        yield path


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches together, of about ``ROW_GROUP_BYTES``."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


# After the tasks.


def commit(export_plan: ExportPlan, written: Sequence[ExportedFile]) -> Export:
    """Make the files visible as the target. An export without rows has one file, with the schema.

    Raises EngineError if a file is not as it was reported; UsageError if the target exists by now; OSError.
    """
    staging, target = Path(export_plan.staging), Path(export_plan.target)
    written = written or [_write_file(export_plan, 0, ())]
    _check_written(export_plan, written)
    if files.is_object(target):
        _publish_in_store(export_plan, written)
    else:
        in_staging = files.list_files(staging)
        for name in in_staging.keys() - {file.name for file in written}:
            files.unlink(staging / name)
        files.write_new(staging / SUCCESS, b"")
        files.sync_directory(staging)
        _replace_target(staging, target, export_plan.overwrites)
    return Export(
        target=export_plan.target,
        records=sum(file.records for file in written),
        files=len(written),
        size=sum(file.size for file in written),
    )


def _check_written(export_plan: ExportPlan, written: Sequence[ExportedFile]) -> None:
    """Raises EngineError if a file is not as it was reported."""
    in_staging = files.list_files(export_plan.staging)
    for file in written:
        if file.name not in in_staging or in_staging[file.name].size != file.size:
            raise EngineError(
                f"a task has written {file.name}, which is not here as it was reported",
                path=export_plan.staging,
                advice="export to storage that all executors share",
            )


def _publish_in_store(export_plan: ExportPlan, written: Sequence[ExportedFile]) -> None:
    """Let the store copy the files to their names, then put ``_SUCCESS``, which says that all are there."""
    staging, target = Path(export_plan.staging), Path(export_plan.target)
    in_threads(lambda file: files.copy_object(staging / file.name, target / file.name, file.size), written)
    files.put_own(target / SUCCESS, b"")
    abandon(export_plan)  # removes the staged files and the claim: with ``_SUCCESS`` the target's files stay


def _replace_target(staging: Path, target: Path, overwrites: bool) -> None:
    """Rename the files to the target, durably. ``overwrites``: in place of an earlier export. An error or
    Ctrl-C in between puts an earlier export back; if the process is killed there, the next export does
    (``_put_back_replaced``)."""
    old = staging.with_name(f"{staging.name}{_REPLACED}")
    try:
        if _is_taken(target):
            _refuse_existing(target, overwrites)
            files.rename(target, old)
        files.rename(staging, target)
    except BaseException:
        if files.exists(old) and not files.exists(target):
            files.rename(old, target)
        raise
    files.sync_directory(target.parent)
    for replaced in _replaced_exports(target) if overwrites else ():
        with contextlib.suppress(FileNotFoundError):  # another overwrite has removed it
            files.remove_tree(replaced)


def abandon(export_plan: ExportPlan) -> None:
    """Remove what was staged. Raises no OSError, since the caller raises the error that ended the export."""
    with contextlib.suppress(OSError):
        if not files.is_object(export_plan.target):
            return files.remove_tree(export_plan.staging)
        staging, target = Path(export_plan.staging), Path(export_plan.target)
        files.delete_objects([staging / name for name, _ in files.objects_below(staging)])
        if not files.exists(target / SUCCESS):
            parts = [name for name, _ in files.objects_below(target) if is_part_name(name)]
            files.delete_objects([target / name for name in parts])
        files.delete_objects([target / _STORE_STAGING])
    return None


Item = TypeVar("Item")
Done = TypeVar("Done")


def in_threads(function: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
    """The results for all items, on all cores. The first error is raised, and no further item begins then."""
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(items)))) as pool:
        tasks = [pool.submit(function, item) for item in items]
        try:
            return [task.result() for task in tasks]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def export_in_process(export_plan: ExportPlan) -> Export:
    """Plan, read and write in this process, on all cores. Raises what these raise; nothing is left then."""
    try:
        splits = list(enumerate(plan(export_plan.options)))
        written = in_threads(lambda task: write_split(export_plan, *task), splits)
        return commit(export_plan, [file for file in written if file is not None])
    except BaseException:
        abandon(export_plan)
        raise
