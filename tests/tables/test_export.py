"""Exports to Parquet: the rows of the table, all of them or no target at all."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.base import files
from siltstone.base.errors import CorruptRecordError, EngineError, UnknownTopicError, UsageError
from siltstone.tables import export as exporting
from siltstone.tables import reading, splits
from siltstone.tables.export import ExportedFile, begin, commit, write_split
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.tables.tables import log_directory, rows, table_of
from tests.support.thoroughness import THOROUGH


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two topics with nulls, headers and a record without a time."""

    def records(first: int) -> bytes:
        return batch(
            [
                Rec(
                    offset=at,
                    key=None if at % 7 == 0 else b"k%d" % (at % 5),
                    value=None if at % 4 == 0 else b"value %d" % at,
                    timestamp=1_700_000_000_000 + at,
                    headers=((b"h", None), (b"i", b"%d" % at)) if at % 3 == 0 else (),
                )
                for at in range(first, first + 50)
            ]
        )

    (tmp_path / "kafka").mkdir()
    segments = {0: [records(0)], 50: [records(50)]}
    return log_directory(tmp_path / "kafka", {"t-0": segments, "t-1": {0: [records(0)]}, "u-0": segments})


def read_back(target: Path) -> pa.Table:
    return pq.read_table(target, partitioning=None)


def left_beside(target: Path) -> list[str]:
    return sorted(entry.name for entry in files.entries(target.parent) if entry.name != "kafka")


@pytest.mark.parametrize("compression", exporting.COMPRESSIONS)
def test_the_rows_and_columns_are_the_tables(root: Path, tmp_path: Path, compression: str) -> None:
    target = tmp_path / "lake" / "t"
    made = siltstone.export(root, target, "parquet", "t", compression=compression, include_headers=True)
    found, expected = read_back(target), table_of(root, subscribe="t", includeHeaders="true")
    assert found.schema.equals(expected.schema)
    assert rows(found) == rows(expected)
    names = sorted(path.name for path in target.iterdir())
    assert names[0] == "_SUCCESS" and made.files == len(names) - 1
    assert made.records == 150 and made.target == str(target)
    assert made.size == sum(path.stat().st_size for path in target.iterdir())
    assert left_beside(target) == ["t"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"view": "latest", "tombstones": "keep"},
        {"keys": ["k1", b"k2"], "offsets": (10, 60), "partitions": 0},
        {"columns": ["offset", "timestamp"], "as_of": 30},
        {"table": "batches"},
        {"bad_batches": "quarantine"},
    ],
    ids=str,
)
def test_arguments_are_those_of_read(root: Path, tmp_path: Path, arguments: dict[str, object]) -> None:
    siltstone.export(root, tmp_path / "out", topic="t", **arguments)
    from siltstone.commands.export import read_options  # the same arguments, by their own way
    from siltstone.tables.table import read_split

    rows_of = {name: arguments[name] for name in ("keys", "offsets", "partitions") if name in arguments}
    others = {name: arguments[name] for name in arguments.keys() - rows_of.keys() - {"as_of"}}
    options = read_options(root, "t", arguments.get("as_of"), rows_of, others)  # type: ignore[arg-type]
    expected = [one for split in plan(options) for one in read_split(split, options)]
    found = read_back(tmp_path / "out")
    assert sorted(map(str, found.to_pylist())) == sorted(
        map(str, pa.Table.from_batches(expected).to_pylist())
    )
    assert len(found)


@pytest.mark.parametrize("value", [b"{}", b"[{}]"])
def test_objects_without_fields_are_refused_before_anything_is_written(tmp_path: Path, value: bytes) -> None:
    """Arrow's own error came out of the task, and Parquet files have no column of such a type."""
    (tmp_path / "kafka").mkdir()
    root = log_directory(tmp_path / "kafka", {"t-0": {0: [batch([Rec(offset=0, key=b"k", value=value)])]}})
    with raises_error(UsageError, about="Parquet has no type", advice="without decode"):
        siltstone.export(root, tmp_path / "out", topic="t", decode=siltstone.Json())
    assert left_beside(tmp_path / "out") == []


def test_an_export_without_rows_has_the_columns(root: Path, tmp_path: Path) -> None:
    made = siltstone.export(root, tmp_path / "none", "parquet", "u", keys=b"nobody")
    assert (made.records, made.files) == (0, 1)
    assert read_back(tmp_path / "none").schema.equals(table_of(root).schema)


def test_row_groups_have_a_size(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(reading, "BATCH_ROWS", 25)
    siltstone.export(root, tmp_path / "out", "parquet", "t", partitions=1)
    (path,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(path).num_row_groups == 2
    group = pq.ParquetFile(path).metadata.row_group(1)
    by_name = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert (by_name["offset"].statistics.min, by_name["offset"].statistics.max) == (25, 49)


def test_an_existing_target_is_refused(root: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "directory", tmp_path / "file", tmp_path / "link", tmp_path / "broken"):
        if target.name == "directory":
            target.mkdir()
        elif target.name == "file":
            target.touch()
        else:
            target.symlink_to(tmp_path / ("directory" if target.name == "link" else "nothing"))
        with raises_error(UsageError, path=target, about="exists", advice="mode='overwrite'"):
            siltstone.export(root, target)
    assert left_beside(tmp_path / "file") == ["broken", "directory", "file", "link"]


def test_overwriting_replaces_an_export_and_nothing_else(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    siltstone.export(root, target, "parquet", "t")
    siltstone.export(root, target, "parquet", "u", mode="overwrite")
    assert set(read_back(target)["topic"].to_pylist()) == {"u"}
    assert left_beside(target) == ["out"]
    (target / "notes.txt").write_text("mine")
    with raises_error(UsageError, path=target, about="other files", advice="remove it yourself"):
        siltstone.export(root, target, mode="overwrite")
    (target / "notes.txt").unlink()
    (target / "_SUCCESS").unlink()
    with raises_error(UsageError, path=target, about="other files"):
        siltstone.export(root, target, mode="overwrite")
    link = tmp_path / "link"
    link.symlink_to(target)
    with raises_error(UsageError, path=link, about="other files"):
        siltstone.export(root, link, mode="overwrite")
    assert len(read_back(target)) == 100


@pytest.mark.parametrize("inside", ["out", "t-0/out", "t-0/deep/out"])
def test_a_target_inside_a_log_directory_is_refused(root: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "alias").symlink_to(root)
    for place in (root, tmp_path / "alias"):
        with raises_error(UsageError, path=place / inside, about="no broker would start", advice="elsewhere"):
            siltstone.export(root / "t-0", place / inside)


@pytest.mark.parametrize(
    ("arguments", "about"),
    [({"format": "csv"}, "csv"), ({"mode": "append"}, "append"), ({"compression": "brotli"}, "brotli")],
)
def test_unknown_words_are_refused(root: Path, tmp_path: Path, arguments: dict[str, str], about: str) -> None:
    with raises_error(UsageError, about=about, advice="pass"):
        siltstone.export(root, tmp_path / "out", **arguments)
    with raises_error(UnknownTopicError):
        siltstone.export(root, tmp_path / "out", topic="nobody")
    assert left_beside(tmp_path / "out") == []


def test_nothing_is_left_of_an_export_that_fails(root: Path, tmp_path: Path) -> None:
    damaged = root / "t-0" / f"{0:020}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:100] + b"\xff" + data[101:])
    with pytest.raises(CorruptRecordError):
        siltstone.export(root, tmp_path / "out", "parquet", "t")
    assert left_beside(tmp_path / "out") == []


def test_files_without_a_report_are_not_in_the_target(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)
    options = ReadOptions.of({"path": str(root), "maxPartitionBytes": "1k"})
    prepared = begin(options, tmp_path / "out", output_format="parquet", mode="error", compression="snappy")
    attempts = []
    for number, split in enumerate(plan(options)):
        attempts.append([write_split(prepared, number, split) for _ in range(2)])
    commit(prepared, [second for _, second in attempts if second is not None])
    assert len(attempts) > 2 and rows(read_back(tmp_path / "out")) == rows(table_of(root))


def test_a_file_that_is_not_as_reported_fails_the_export(root: Path, tmp_path: Path) -> None:
    options = ReadOptions.of({"path": str(root)})
    prepared = begin(options, tmp_path / "out", output_format="parquet", mode="error", compression="snappy")
    written = write_split(prepared, 0, plan(options)[0])
    assert written is not None
    for wrong in (
        ExportedFile(name="part-00001-x.parquet", records=1, size=1),
        ExportedFile(name=written.name, records=written.records, size=written.size + 1),
    ):
        with raises_error(EngineError, path=prepared.staging, advice="executors share"):
            commit(prepared, [written, wrong])
    assert not (tmp_path / "out").exists()


def test_the_files_permissions_are_those_of_the_umask(root: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        siltstone.export(root, tmp_path / "out")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").glob("*.parquet")} == {0o640}


@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_while_an_export_is_replaced_leaves_the_earlier_one(
    root: Path, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename, seen = tmp_path / "out", files.rename, list[object]()
    siltstone.export(root, target, "parquet", "u")

    def interrupted(source: Path, name: Path) -> None:
        """Before the first rename, or after it and before the second one."""
        seen.append(source)
        if len(seen) == count:
            raise KeyboardInterrupt
        rename(source, name)

    monkeypatch.setattr(files, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        siltstone.export(root, target, "parquet", "t", mode="overwrite")
    assert set(read_back(target)["topic"].to_pylist()) == {"u"}
    assert left_beside(target) == ["out"]


class _Killed(BaseException):
    """Stands for SIGKILL: after it no file operation succeeds, so nothing is put in order."""


def _overwrite_until(root: Path, target: Path, count: int) -> None:
    """Overwrite an export in a process that is killed when it has renamed ``count`` times."""
    renames: list[object] = []

    def observe(operation: tuple[str, str, str]) -> None:
        if len(renames) == count:
            raise _Killed
        renames.extend([operation] if operation[0] == "rename" else [])

    with files.observe(observe), pytest.raises(_Killed):
        siltstone.export(root, target, "parquet", "t", mode="overwrite")


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_the_next_export_puts_back_what_one_killed_between_its_renames_has_hidden(
    root: Path, tmp_path: Path, mode: str
) -> None:
    target = tmp_path / "out"
    siltstone.export(root, target, "parquet", "u")
    _overwrite_until(root, target, 1)
    assert not target.exists()
    if mode == "error":
        with raises_error(UsageError, path=target, about="exists already"):
            siltstone.export(root, target, "parquet", "t")
    else:
        with pytest.raises(UnknownTopicError):
            siltstone.export(root, target, "parquet", "nowhere", mode=mode)
    assert set(read_back(target)["topic"].to_pylist()) == {"u"}
    siltstone.export(root, target, "parquet", "t", mode="overwrite")
    assert set(read_back(target)["topic"].to_pylist()) == {"t"}


def test_the_next_overwrite_removes_what_one_killed_after_its_renames_has_left(
    root: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    siltstone.export(root, target, "parquet", "u")
    _overwrite_until(root, target, 2)
    assert set(read_back(target)["topic"].to_pylist()) == {"t"} and len(left_beside(target)) == 2
    siltstone.export(root, target, "parquet", "u", mode="overwrite")
    assert left_beside(target) == ["out"]


@pytest.mark.parametrize("overwrites", [False, True])
def test_whenever_it_is_cut_off_the_target_is_whole_or_the_old_one(
    root: Path, tmp_path: Path, overwrites: bool
) -> None:
    """Each file operation fails in turn. If the second rename of an overwrite fails, the first is undone."""
    for cut in itertools.count(0, 1 if THOROUGH else 5):
        target = tmp_path / f"out-{cut}"
        if overwrites:
            siltstone.export(root, target, "parquet", "u")
        seen: list[object] = []

        def observe(operation: object, cut: int = cut, seen: list[object] = seen) -> None:
            seen.append(operation)
            if len(seen) == cut + 1:
                raise OSError(28, "No space left on device")

        is_cut = True
        with files.observe(observe):
            try:
                siltstone.export(root, target, "parquet", "t", mode="overwrite" if overwrites else "error")
                is_cut = False
            except OSError as error:
                assert error.errno == 28
        if target.exists():
            assert (target / "_SUCCESS").exists()
            assert len(read_back(target)) in ((100, 150) if overwrites else (150,))
        else:
            assert not overwrites and is_cut
        if len(seen) <= cut:
            break
    assert cut > 8
