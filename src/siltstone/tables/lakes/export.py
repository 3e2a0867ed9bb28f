"""Carries out an export into a table, in this process; ``spark.export`` runs the same steps in tasks.

::

    begin ─► LakePlan ─► tasks: append_split, or new_rows and merge_bucket ─► finish: one commit
                                                                          └─► abandon: files removed
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Container, Sequence
from pathlib import Path

from siltstone.base import files
from siltstone.base.errors import EngineError, TableChangedError
from siltstone.tables.export import Export, ExportedFile, in_threads, part_name, write_parquet
from siltstone.tables.lakes.buckets import (
    Spill,
    WrittenBucket,
    encode_rows,
    merge_bucket,
    new_rows,
    with_file_types,
)
from siltstone.tables.lakes.plan import LakePlan, removed_files
from siltstone.tables.lakes.table import DATA, Change, DataFile, LakeTable
from siltstone.tables.splits import TaskSplit
from siltstone.tables.table import plan, read_split


def begin(lake_plan: LakePlan) -> None:
    """Make the folder of data files. A store has no folders: there a trial object shows whether it refuses a
    second put of a key. Raises OSError, also for a store that does not refuse it: two exports could then both
    commit."""
    folder = Path(lake_plan.root) / DATA
    if not files.is_object(folder):
        return files.make_directory(folder, parents=True)
    trial = folder / f"{lake_plan.run}.nonce"
    files.claim(trial, b"")
    files.delete_objects([trial])
    return None


def append_split(lake_plan: LakePlan, number: int, split: TaskSplit) -> ExportedFile | None:
    """``view=log``: write the rows of a split into a file; None, and no file, if it has no rows.

    Raises what ``read_split`` raises, OSError."""
    assert lake_plan.options is not None
    batches = (
        with_file_types(lake_plan, {name: batch.column(name) for name in lake_plan.file_schema.names})
        for batch in read_split(split, lake_plan.options)
        if len(batch)
    )
    first = next(batches, None)
    if first is None:
        return None
    path = Path(lake_plan.root) / DATA / part_name(number, lake_plan.run)
    return write_parquet(
        path, lake_plan.file_schema, lake_plan.compression, itertools.chain([first], batches)
    )


def finish(table: LakeTable, lake_plan: LakePlan, written: Sequence[ExportedFile | WrittenBucket]) -> Export:
    """Commit what the tasks have written, if anything has changed.

    Raises EngineError if a file is not as it was reported; TableChangedError, OSError, what the format's
    library raises."""
    buckets = [report for report in written if isinstance(report, WrittenBucket)]
    added = [_data_file(report) for report in written if isinstance(report, ExportedFile)]
    added += [_data_file(bucket.file, bucket) for bucket in buckets if bucket.file is not None]
    try:
        _check_files(lake_plan, added)
        _remove_files(lake_plan, kept={Path(file.path).name for file in added})
    except BaseException:
        abandon(lake_plan)
        raise
    removed = removed_files(
        lake_plan,
        changed={(bucket.partition, bucket.bucket) for bucket in buckets if bucket.is_changed},
        seen={(bucket.partition, bucket.bucket) for bucket in buckets},
    )
    version = table.version
    if added or removed or lake_plan.progress or version is None:
        if not files.is_object(lake_plan.root):
            files.sync_directory(Path(lake_plan.root) / DATA)
        try:
            version = table.commit(
                lake_plan.shape,
                Change(
                    added=added,
                    removed=removed,
                    progress=lake_plan.progress,
                    replaces_all=lake_plan.replaces_all,
                ),
            )
        except TableChangedError:
            abandon(lake_plan)
            raise
        # After another error the commit may nevertheless be there: its files stay.
    return Export(
        target=lake_plan.root,
        records=sum(file.records for file in added),
        files=len(added),
        size=sum(file.size for file in added),
        version=version,
    )


def _data_file(file: ExportedFile, bucket: WrittenBucket | None = None) -> DataFile:
    return DataFile(
        path=f"{DATA}/{file.name}",
        partition=-1 if bucket is None else bucket.partition,
        bucket=-1 if bucket is None else bucket.bucket,
        records=file.records,
        size=file.size,
    )


def _check_files(lake_plan: LakePlan, added: Sequence[DataFile]) -> None:
    """Raises EngineError if a file is not as it was reported."""
    present = files.list_files(Path(lake_plan.root) / DATA) if added else {}
    for file in added:
        name = Path(file.path).name
        if name not in present or present[name].size != file.size:
            reason = f"a task has written {name}, which is not here as it was reported"
            raise EngineError(
                reason, path=lake_plan.root, advice="export to storage that all executors share"
            )


def _remove_files(lake_plan: LakePlan, kept: Container[str] = ()) -> None:
    """Remove this run's files except the ``kept`` ones, which were reported; the others are of task attempts
    that failed or came late."""
    folder = Path(lake_plan.root) / DATA
    if not files.exists(folder):
        return
    names = [name for name in files.list_files(folder) if name.startswith(f"part-{lake_plan.run}")]
    left = [folder / name for name in names if name not in kept]
    if files.is_object(folder):
        return files.delete_objects(left)
    for path in left:
        files.unlink(path)


def abandon(lake_plan: LakePlan) -> None:
    """Remove what was written, before a commit. Raises no OSError, since the caller raises the error that
    ended the export."""
    with contextlib.suppress(OSError):
        _remove_files(lake_plan)


def export_in_process(table: LakeTable, lake_plan: LakePlan) -> Export:
    """Plan, read, write and commit in this process, on all cores. Raises what these raise."""
    begin(lake_plan)
    try:
        splits = [] if lake_plan.options is None else plan(lake_plan.options)
        written = _append(lake_plan, splits) if not lake_plan.shape.buckets else _merge(lake_plan, splits)
    except BaseException:
        abandon(lake_plan)
        raise
    return finish(table, lake_plan, written)


def _append(lake_plan: LakePlan, splits: Sequence[TaskSplit]) -> list[ExportedFile]:
    """``view=log``: write a file for each split, in threads."""
    tasks = enumerate(splits)
    written = in_threads(lambda task: append_split(lake_plan, *task), list(tasks))
    return [file for file in written if file is not None]


def _merge(lake_plan: LakePlan, splits: Sequence[TaskSplit]) -> list[WrittenBucket]:
    """``view=latest``: distribute the new rows to their buckets, then merge the buckets, both in threads."""
    with contextlib.closing(Spill()) as spill:

        def extract(split: TaskSplit) -> None:
            for target, rows in new_rows(lake_plan, [split]):
                spill.add(target, encode_rows(rows))

        in_threads(extract, splits)
        return in_threads(lambda target: merge_bucket(lake_plan, target, spill.take(target)), spill.targets())
