"""Exports into Delta and Iceberg tables: the rows of the view, once, whatever happens to log and export."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mmh3
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    EngineError,
    OffsetOutOfRangeError,
    SourceChangedError,
    TableChangedError,
    UndecodableValueError,
    UsageError,
)
from siltstone.tables import table as st_table
from siltstone.tables.arguments import read_options
from siltstone.tables.lakes import buckets, export
from siltstone.tables.lakes.delta import DeltaLake
from siltstone.tables.lakes.iceberg import IcebergLake
from siltstone.tables.lakes.plan import LakePlan, plan_export
from siltstone.tables.lakes.table import LakeTable
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.golden_sets import REPOSITORY
from tests.support.tables.tables import log_directory, rows, table_of
from tests.support.thoroughness import THOROUGH, few

Records = Sequence[tuple[int, bytes | None, bytes | None]]
IDS = ("FvX_0uW9QJ2WKTgL7cWb0g", "A8sK_0uW9QJ2WKTgL7cWbA")
FORMS = ("delta", "iceberg")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# In every run: what became of the log once, since both forms read it by the same code; each two values of a
# race. The rest is long.
REPLACED = few(itertools.product(("truncated", "created", "epoch"), FORMS), 0, 3, 4)
REFUSED = few(itertools.product(("truncated", "created"), FORMS), 0, 3)
RACES = few(itertools.product(("log", "latest"), (False, True), FORMS), 0, 3, 5, 6)


class Log:
    """A log directory of the topic t that tests write anew, as a broker would have it later."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, partitions: Mapping[int, Records], *, cleaned: int = 0, topic_id: str = IDS[0]) -> None:
        """These records and no others; the cleaner has reached ``cleaned`` in each partition."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        log_directory(
            self.root,
            {
                f"t-{number}": {
                    part[0][0]: [batch([Rec(offset=at, key=key, value=value) for at, key, value in part])]
                    for part in parts(records)
                }
                for number, records in partitions.items()
            },
        )
        for number in partitions:
            (self.root / f"t-{number}" / "partition.metadata").write_text(
                f"version: 0\ntopic_id: {topic_id}\n"
            )
        lines = [f"t {number} {cleaned}\n" for number in partitions]
        (self.root / "cleaner-offset-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")

    def latest(self) -> list[dict[str, Any]]:
        return rows(table_of(self.root, view="latest"))


def parts(records: Records) -> list[Records]:
    """Records in segments of 20 offsets."""
    return [list(part) for _, part in itertools.groupby(records, lambda record: record[0] // 20)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "kafka")


def some(first: int, end: int, keys: int = 9) -> list[tuple[int, bytes | None, bytes | None]]:
    """Records of a few keys; every eleventh is a tombstone."""
    return [
        (at, b"k%d" % (at % keys), None if at % 11 == 0 else b"value %d" % at) for at in range(first, end)
    ]


def table_at(target: Path, form: str) -> pa.Table:
    if form == "delta":
        return DeltaTable(str(target)).to_pyarrow_table()
    return StaticTable.from_metadata(str(target)).scan().to_arrow()


def rows_at(target: Path, form: str, columns: pa.Schema | None = None) -> list[dict[str, Any]]:
    found = table_at(target, form)
    names = [name for name in found.schema.names if name != "bucket"]
    schema = columns or pa.schema([field for field in found.schema if field.name != "bucket"])
    found_rows = rows(found.select(names).cast(schema))
    for row in found_rows:  # pyiceberg reads a null list as an empty one
        row.update({"headers": row["headers"] or None} if "headers" in row else {})
    return found_rows


def data_files(target: Path) -> set[str]:
    return {path.name for path in (target / "data").glob("*.parquet")}


def present(target: Path, form: str) -> set[str]:
    """The files of the newest version."""
    if form == "delta":
        return {Path(uri).name for uri in DeltaTable(str(target)).file_uris()}
    return {
        Path(task.file.file_path).name for task in StaticTable.from_metadata(str(target)).scan().plan_files()
    }


def update(log: Log, target: Path, form: str, **arguments: Any) -> st.Export:
    return st.export(log.root, target, form, "t", **{"view": "latest", **arguments})


def test_a_table_has_a_row_for_each_key_and_follows_the_log(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 50), 1: some(0, 30)})
    target = tmp_path / "lake" / "t"
    first = update(log, target, form, buckets=4, include_headers=True)
    assert rows_at(target, form) == rows(table_of(log.root, view="latest", includeHeaders="true"))
    assert first.records == len(log.latest()) and first.target == str(target)
    again = update(log, target, form, include_headers=True)
    assert (again.version, again.records, again.files) == (first.version, 0, 0)
    before = present(target, form)
    # One key changes, and one is deleted: of partition 0 only their buckets are written again.
    records = [*some(0, 50), (50, b"k1", b"new"), (51, b"k2", None)]
    log.write({0: records, 1: some(0, 30)})
    second = update(log, target, form, include_headers=True)
    assert rows_at(target, form) == rows(table_of(log.root, view="latest", includeHeaders="true"))
    changed = {buckets_of(b"k1", 4), buckets_of(b"k2", 4)}
    assert second.files <= len(changed) and len(before - present(target, form)) == len(changed)
    assert second.version == (first.version or 0) + 1


def buckets_of(key: bytes, count: int) -> int:
    return int((mmh3.hash(key) & 0x7FFFFFFF) % count)


def test_buckets_are_those_of_icebergs_transform() -> None:
    draw = random.Random(7)
    keys = [draw.randbytes(size) for size in range(40) for _ in range(3)] + [b"", b"\xff" * 100]
    array = pa.array([b"skipped", *keys])[1:]
    for count in (1, 7, 1024):
        assert buckets.buckets_of_keys(array, count).tolist() == [buckets_of(key, count) for key in keys]
    assert len(buckets.buckets_of_keys(pa.array([], pa.binary()), 3)) == 0


@pytest.mark.random
@pytest.mark.parametrize("seed", [1])
def test_random_logs_cleaned_truncated_and_exported(log: Log, tmp_path: Path, form: str, seed: int) -> None:
    """After every export the table is the view; an export without news leaves the version as it is."""
    draw = random.Random(seed)
    records: list[tuple[int, bytes | None, bytes | None]] = some(0, 10)
    end, cleaned, topic_id, target = 10, 0, IDS[0], tmp_path / "t"
    for _ in range(10 if THOROUGH else 6):  # the first five have every action
        action = draw.choice(["append", "append", "append", "clean", "start", "create"])
        if action == "append":
            added = draw.randrange(1, 25)
            for at in range(end, end + added):
                value = None if draw.random() < 0.3 else b"%d" % draw.randrange(100)
                records.append((at, b"k%d" % draw.randrange(12), value))
            end += added
        elif action == "clean":  # all but the active segment, and tombstones are removed, too
            cleaned = end - 1
            last = {key: at for at, key, _ in records}
            records = [
                one for one in records if one[0] == end - 1 or (last[one[1]] == one[0] and one[2] is not None)
            ]
        elif action == "start":
            records = records[len(records) // 3 :]
        else:
            topic_id = IDS[topic_id == IDS[0]]
            end, cleaned = draw.randrange(1, 30), 0
            records = some(0, end)
        log.write({0: records}, cleaned=cleaned, topic_id=topic_id)
        made = update(log, target, form, buckets=3)
        assert rows_at(target, form) == log.latest(), action
        assert update(log, target, form).version == made.version
        assert present(target, form) <= data_files(target)


def test_a_deletion_whose_tombstone_was_cleaned_away_is_seen(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(1, 9, keys=20)})
    update(log, tmp_path / "t", form, buckets=8)
    before = present(tmp_path / "t", form)
    # k5 was deleted after the export, and then the tombstone was cleaned away.
    log.write({0: [one for one in some(1, 9, keys=20) if one[1] != b"k5"] + [(20, b"z", b"1")]}, cleaned=15)
    update(log, tmp_path / "t", form)
    assert rows_at(tmp_path / "t", form) == log.latest()
    # The log was read again, but only the buckets of k5 and z were written.
    assert len(before - present(tmp_path / "t", form)) <= 2


@pytest.mark.parametrize(("again", "form"), REPLACED)
def test_a_log_that_was_replaced_replaces_its_rows(log: Log, tmp_path: Path, form: str, again: str) -> None:
    def epochs(*pairs: tuple[int, int]) -> None:
        text = "".join(f"{epoch} {start}\n" for epoch, start in pairs)
        (log.root / "t-0" / "leader-epoch-checkpoint").write_text(f"0\n{len(pairs)}\n{text}")

    log.write({0: some(0, 40), 1: some(0, 10)})
    epochs((1, 0))
    update(log, tmp_path / "t", form, buckets=2)
    other = [(at, key, None if value is None else b"other") for at, key, value in some(0, 50)]
    if again == "truncated":
        log.write({0: other[:25], 1: some(0, 10)})
    elif again == "created":  # with one partition less: its rows go, too
        log.write({0: other}, topic_id=IDS[1])
    else:
        log.write({0: [*some(0, 30), *other[30:]], 1: some(0, 10)})
        epochs((1, 0), (2, 30))
    update(log, tmp_path / "t", form)
    assert rows_at(tmp_path / "t", form) == log.latest()


def test_a_high_watermark_that_is_behind_changes_nothing(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 40)})
    made = update(log, tmp_path / "t", form, buckets=2)
    (log.root / "replication-offset-checkpoint").write_text("0\n1\nt 0 30\n")
    assert update(log, tmp_path / "t", form).version == made.version
    assert st.export(log.root, tmp_path / "all", form, "t").records == 30


def test_all_records_are_appended_once(log: Log, tmp_path: Path, form: str) -> None:
    target = tmp_path / "t"
    log.write({0: some(0, 30)})
    made = update(log, target, form, view="log")
    assert update(log, target, form, view="log").version == made.version
    log.write({0: some(0, 45), 1: some(5, 9)})
    assert update(log, target, form, view="log").records == 19
    # Retention removes what was exported; the table keeps it.
    log.write({0: some(41, 50), 1: some(5, 9)})
    assert update(log, target, form, view="log").records == 5
    found = rows_at(target, form)
    assert [row["offset"] for row in found] == [*range(50), *range(5, 9)]
    assert {row["value"] for row in found[:10]} == {None, *(b"value %d" % at for at in range(1, 10))}
    log.write({0: some(60, 70)})
    with raises_error(OffsetOutOfRangeError, about="50 to 59", advice="failOnDataLoss=false"):
        update(log, target, form, view="log")
    assert update(log, target, form, view="log", fail_on_data_loss=False).records == 10


@pytest.mark.parametrize(("again", "form"), REFUSED)
def test_a_table_of_all_records_refuses_another_log(log: Log, tmp_path: Path, form: str, again: str) -> None:
    log.write({0: some(0, 30), 1: some(0, 5)})
    update(log, tmp_path / "t", form, view="log")
    if again == "truncated":
        log.write({0: some(0, 20), 1: some(0, 5)})
    else:
        log.write({0: some(0, 40)}, topic_id=IDS[1])
    with raises_error(SourceChangedError, path="t-0", about=again, advice="mode='overwrite'"):
        update(log, tmp_path / "t", form, view="log")
    assert len(rows_at(tmp_path / "t", form)) == 35
    made = update(log, tmp_path / "t", form, view="log", mode="overwrite")
    assert len(rows_at(tmp_path / "t", form)) == made.records == (25 if again == "truncated" else 40)
    assert update(log, tmp_path / "t", form, view="log").version == made.version


def test_overwriting_forgets_the_partitions_that_it_leaves_out(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 30), 1: some(0, 30)})
    for view in ("log", "latest"):
        target = tmp_path / view
        update(log, target, form, view=view)
        update(log, target, form, view=view, mode="overwrite", partitions=0)
        assert {row["partition"] for row in rows_at(target, form)} == {0}
        update(log, target, form, view=view)
        assert rows_at(target, form) == rows(table_of(log.root, view=view))


def without_ids(log: Log) -> None:
    for path in log.root.glob("t-*/partition.metadata"):
        path.unlink()


def test_ids_that_a_broker_gives_to_an_old_topic_remove_no_rows(log: Log, tmp_path: Path, form: str) -> None:
    records = {0: some(0, 30), 1: some(0, 30)}
    log.write(records)
    without_ids(log)
    update(log, tmp_path / "out", form)
    log.write(records)
    update(log, tmp_path / "out", form, partitions=0)
    assert rows_at(tmp_path / "out", form) == log.latest()
    update(log, tmp_path / "out", form)
    log.write(
        records, topic_id=IDS[1]
    )  # now both ids are known, and the rows of partition 1 are the old topic's
    update(log, tmp_path / "out", form, partitions=0)
    assert {row["partition"] for row in rows_at(tmp_path / "out", form)} == {0}


def test_a_table_of_all_records_goes_on_when_a_topic_gets_its_id(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 30)})
    without_ids(log)
    update(log, tmp_path / "out", form, view="log")
    log.write({0: some(0, 40)})
    assert update(log, tmp_path / "out", form, view="log").records == 10
    without_ids(log)  # a copy of the files: the table knows the id still
    assert update(log, tmp_path / "out", form, view="log").records == 0
    log.write({0: some(0, 50)}, topic_id=IDS[1])
    with pytest.raises(SourceChangedError):
        update(log, tmp_path / "out", form, view="log")


def opened(target: Path, form: str) -> LakeTable:
    return DeltaLake(target) if form == "delta" else IcebergLake(target)


def planned(log: Log, table: LakeTable, **options: Any) -> LakePlan:
    parsed = read_options(log.root, "t", None, {}, options)
    return plan_export(table, parsed, mode="update", compression="snappy", buckets=None)


@pytest.mark.parametrize(("view", "exists", "form"), RACES)
def test_of_two_exports_at_one_time_one_wins(
    log: Log, tmp_path: Path, form: str, view: str, exists: bool
) -> None:
    target = tmp_path / "t"
    log.write({0: some(0, 20)})
    if exists:
        update(log, target, form, view=view)
        log.write({0: some(0, 40)})
    slow = opened(target, form)
    plan_of_slow = planned(log, slow, view=view)
    update(log, target, form, view=view)
    kept = data_files(target)
    with raises_error(TableChangedError, path=target, about="meanwhile", advice="export again"):
        export.export_in_process(slow, plan_of_slow)
    assert data_files(target) == kept
    assert rows_at(target, form) == rows(table_of(log.root, view=view))
    update(log, target, form, view=view)
    assert rows_at(target, form) == rows(table_of(log.root, view=view))


@pytest.mark.random
def test_wherever_it_is_cut_off_the_table_is_whole(log: Log, tmp_path: Path, form: str) -> None:
    """File operations of ours fail in turn, of a first export and of a later one. The next export completes
    the table."""
    log.write({0: some(0, 20)})
    before = log.latest()
    shutil.copytree(log.root, tmp_path / "before")
    log.write({0: some(0, 30)})
    after = log.latest()
    for cut in itertools.count(0, 1 if THOROUGH else 19):
        target, exists = tmp_path / f"t{cut}", cut % 2 == 0
        if exists:
            st.export(tmp_path / "before", target, form, "t", view="latest", buckets=2)
        seen: list[object] = []

        def observe(operation: object, cut: int = cut, seen: list[object] = seen) -> None:
            seen.append(operation)
            if len(seen) == cut + 1:
                raise OSError(28, "No space left on device")

        with files.observe(observe):
            try:
                update(log, target, form, buckets=2)
            except OSError as error:
                assert error.errno == 28
        if (target / "_delta_log").exists() or (target / "metadata" / "version-hint.text").exists():
            assert rows_at(target, form) in (after, before)
        else:
            assert not exists
        if len(seen) <= cut:
            break
        update(log, target, form)
        assert rows_at(target, form) == after
    assert cut > 5


def test_what_failed_tasks_have_written_is_removed(
    log: Log, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write({0: some(0, 40), 1: some(0, 40)})
    target = tmp_path / "t"
    update(log, target, form, view="log", partitions=0)
    kept, version = data_files(target), opened(target, form).version
    damaged = log.root / "t-1" / f"{0:020}.log"
    damaged.write_bytes(damaged.read_bytes()[:100] + b"\xff" + damaged.read_bytes()[101:])
    with pytest.raises(CorruptFileError):
        update(log, target, form, view="log", max_partition_bytes="1k")
    assert data_files(target) == kept and opened(target, form).version == version
    table = opened(target, form)
    damaged.unlink()
    log.write({0: some(0, 60)})
    plan = planned(log, table, view="log")
    assert plan.options is not None
    written = [export.append_split(plan, 0, split) for split in st_table.plan(plan.options)]
    lost = export.ExportedFile(name="part-lost.parquet", records=1, size=1)
    with raises_error(EngineError, about="part-lost", advice="executors share"):
        export.finish(table, plan, [*filter(None, written), lost])
    assert written != [None] and data_files(target) == kept


def test_spilled_rows_and_small_pieces_make_the_same_table(
    log: Log, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write({0: some(0, 90, keys=40)})
    monkeypatch.setattr(buckets, "SPLIT_BYTES", 1)
    monkeypatch.setattr(export, "Spill", lambda: buckets.Spill(memory_bytes=2000))
    update(log, tmp_path / "t", form, buckets=3, max_partition_bytes="1k")
    assert rows_at(tmp_path / "t", form) == log.latest()


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"view": "compacted"}, "all of them or the last one"),
        ({"table": "batches", "view": "log"}, "all of them or the last one"),
        ({"keys": b"k"}, "brought up to date"),
        ({"offsets": (0, 5)}, "brought up to date"),
        ({"as_of": 7}, "brought up to date"),
        ({"starting_offsets": "earliest"}, "brought up to date"),
        ({"bad_batches": "quarantine", "view": "log"}, "brought up to date"),
        ({"tombstones": "keep"}, "none to keep"),
        ({"columns": ["key", "value"]}, "partition, offset"),
        ({"buckets": 0}, "buckets=0"),
        ({"buckets": 3, "view": "log"}, "view=log"),
        ({"mode": "error"}, "mode='error'"),
        ({"compression": "rar"}, "rar"),
    ],
    ids=str,
)
def test_arguments_that_a_table_cannot_have(
    log: Log, tmp_path: Path, arguments: dict[str, Any], about: str
) -> None:
    log.write({0: some(0, 5)})
    with raises_error(UsageError, about=about, advice=""):
        update(log, tmp_path / "t", "delta", **arguments)
    assert not (tmp_path / "t").exists()


def test_a_table_of_another_shape_is_refused(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 5)})
    target = tmp_path / "t"
    update(log, target, form, buckets=2)
    for arguments, about in (
        ({"view": "log"}, "view=latest"),
        ({"buckets": 3}, "2 buckets"),
        ({"include_headers": True}, "other columns"),
        ({"columns": ["key", "value", "partition", "offset"]}, "other columns"),
    ):
        with raises_error(UsageError, path=target, about=about, advice="export to another target"):
            update(log, target, form, **arguments)
    log_directory(log.root, {"u-0": {0: [batch([Rec(offset=0, key=b"k", value=b"v")])]}})
    with raises_error(UsageError, path=target, about="no export of the topic u"):
        st.export(log.root, target, form, "u", view="latest")
    with raises_error(UsageError, about="2 are selected: t, u"):
        st.export(log.root, tmp_path / "new", form, view="latest")
    with raises_error(UsageError, path=log.root / "t-0" / "x", about="no broker would start"):
        update(log, log.root / "t-0" / "x", form)
    with raises_error(UsageError, about="buckets", advice="'delta' or 'iceberg'"):
        st.export(log.root, tmp_path / "p", "parquet", buckets=3)


def test_other_directories_are_left_alone(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 5)})
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "data" / "data").mkdir(parents=True)
    (tmp_path / "data" / "data" / "mine.csv").touch()
    for name in ("file", "folder", "link", "data"):
        with raises_error(UsageError, path=tmp_path / name, about="the target", advice="another directory"):
            update(log, tmp_path / name, form)
    (tmp_path / "empty").mkdir()
    update(log, tmp_path / "empty", form)
    other = "iceberg" if form == "delta" else "delta"
    with raises_error(UsageError, path=tmp_path / "empty", about="other files"):
        update(log, tmp_path / "empty", other)


def test_an_empty_topic_is_an_empty_table(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: [(0, b"k", None)]})
    made = update(log, tmp_path / "t", form)
    assert made.records == 0 and made.version is not None
    assert rows_at(tmp_path / "t", form) == []
    assert update(log, tmp_path / "t", form).version == made.version
    log.write({0: [(0, b"k", None), (1, b"k", b"v")]})
    update(log, tmp_path / "t", form)
    assert [row["value"] for row in rows_at(tmp_path / "t", form)] == [b"v"]


def test_times_beyond_pythons_years_are_exported(log: Log, tmp_path: Path, form: str) -> None:
    log.write({})
    times = [-1, 0, (1 << 63) - 1, -(1 << 62), 1_700_000_000_001]
    records = [Rec(offset=at, key=b"%d" % at, value=b"v", timestamp=time) for at, time in enumerate(times)]
    log_directory(log.root, {"t-0": {0: [batch(records)]}})
    for view in ("log", "latest"):
        update(log, tmp_path / view, form, view=view)
        assert rows_at(tmp_path / view, form) == rows(table_of(log.root, view=view))


@pytest.mark.filterwarnings("ignore:Iceberg scan planning:polars.exceptions.PerformanceWarning")
def test_the_ordinary_tools_read_the_table(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: some(0, 40)})
    update(log, tmp_path / "t", form, buckets=4)
    expected = sorted(row["value"] for row in log.latest())
    if form == "delta":
        frame = pl.scan_delta(str(tmp_path / "t"))
        history = DeltaTable(str(tmp_path / "t")).history(1)[0]
        assert '"end": 40' in history["siltstone"]
    else:
        table = StaticTable.from_metadata(str(tmp_path / "t"))
        frame = pl.scan_iceberg(table)
        chosen = table.scan(row_filter=EqualTo("key", b"k7"))
        assert len(list(chosen.plan_files())) == 1  # the other buckets are skipped
        assert '"end": 40' in table.current_snapshot().summary["siltstone.exported"]  # type: ignore[index,union-attr]
    assert sorted(frame.select("value").collect()["value"].to_list()) == expected


def test_others_may_commit_in_between(log: Log, tmp_path: Path) -> None:
    """Delta's maintenance, checkpoints and a restore."""
    target = tmp_path / "t"
    for end in (10, 20, 30):
        log.write({0: some(0, end)})
        update(log, target, "delta", view="log")
    table = DeltaTable(str(target))
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    log.write({0: some(0, 40)})
    update(log, target, "delta", view="log")
    assert [row["offset"] for row in rows_at(target, "delta")] == [*range(40)]
    version = DeltaTable(str(target)).version()
    DeltaTable(str(target)).restore(version - 1)
    with raises_error(UsageError, path=target, about="restored", advice="mode='overwrite'"):
        update(log, target, "delta", view="log")
    update(log, target, "delta", view="log", mode="overwrite")
    assert [row["offset"] for row in rows_at(target, "delta")] == [*range(40)]


def test_features_of_delta_that_hide_rows_are_refused(log: Log, tmp_path: Path) -> None:
    log.write({0: some(0, 10)})
    update(log, tmp_path / "t", "delta")
    log_file = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    log_file.write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
        '"writerFeatures":["deletionVectors"]}}\n'
    )
    with raises_error(UsageError, path=tmp_path / "t", about="deletionVectors", advice="another target"):
        update(log, tmp_path / "t", "delta")


def test_metadata_of_iceberg_that_is_behind_damaged_or_moved(log: Log, tmp_path: Path) -> None:
    target = tmp_path / "t"
    for end in (10, 20):
        log.write({0: some(0, end)})
        update(log, target, "iceberg")
    hint = target / "metadata" / "version-hint.text"
    for text in ("1", ""):  # the process was killed between the commit and the hint
        hint.write_text(text)
        assert update(log, target, "iceberg").version == 2
        assert hint.read_text() == "2" and rows_at(target, "iceberg") == log.latest()
    target.rename(tmp_path / "moved")
    with raises_error(UsageError, path=tmp_path / "moved", about="old place", advice="move it back"):
        update(log, tmp_path / "moved", "iceberg")
    (tmp_path / "moved").rename(target)
    newest = target / "metadata" / "v2.metadata.json"
    text = newest.read_text()
    newest.write_text(text.replace('\\"topic_id\\"', '\\"other\\"'))
    with raises_error(CorruptFileError, path=newest, about="siltstone.exported"):
        update(log, target, "iceberg")
    for exported in ("[" * 100_000, '{\\"0\\": 1'):
        newest.write_text(re.sub(r'("siltstone.exported": ?)"(\\.|[^"])*"', rf'\1"{exported}"', text))
        with raises_error(CorruptFileError, path=newest, about="siltstone.exported"):
            update(log, target, "iceberg")
    newest.write_text(re.sub(r'("siltstone.buckets": ?)"\d+"', rf'\1"{"9" * 5000}"', text))
    with raises_error(UsageError, path=target, about="no export of the topic"):
        update(log, target, "iceberg")
    newest.write_text(text.replace("siltstone.exported", "gone"))
    with raises_error(UsageError, path=target, about="expired", advice="mode='overwrite'"):
        update(log, target, "iceberg")
    newest.write_text(text[:-9])
    with raises_error(CorruptFileError, path=newest, about="not Iceberg's metadata"):
        update(log, target, "iceberg")


def test_decoded_columns_and_keys(log: Log, tmp_path: Path, form: str) -> None:
    """Keys are compared by their bytes, in a column of their own where they are decoded."""
    log.write({0: [(0, b'{"id":1}', b'{"n":1,"tags":["x"]}'), (1, b'{"id":2}', b'{"n":null}')]})
    decode = {
        "key": st.Json(),
        "value": st.Json(schema=pa.schema({"n": pa.int64(), "tags": pa.list_(pa.string())})),
    }
    target = tmp_path / "t"
    update(log, target, form, decode=decode)
    log.write({0: [(2, b'{"id":1}', b'{"n":3}'), (3, b'{"id":2}', None)]}, cleaned=2)
    update(log, target, form, decode=decode)
    (row,) = table_at(target, form).to_pylist()
    assert row["key"] == {"id": 1} and row["keyBytes"] == b'{"id":1}'
    assert row["value"] == {"n": 3, "tags": None} and row["offset"] == 2
    log.write({0: [(2, b'{"id":1}', b'{"n":3}'), (4, b'{"id":7}', b"{")]}, cleaned=4)
    with raises_error(UndecodableValueError, path="t-0", about="offset 4: the value"):
        update(log, target, form, decode=decode)
    assert table_at(target, form).num_rows == 1
    with raises_error(UsageError, path=target, about="other columns"):
        update(log, target, form)
    all_records = tmp_path / "all"
    log.write({0: [(0, b"1", b'{"n":1}'), (1, None, None)]})
    update(log, all_records, form, view="log", decode=st.Json())
    log.write({0: [(0, b"1", b'{"n":1}'), (1, None, None), (2, b"k", b'{"n":2,"other":1}')]})
    update(log, all_records, form, view="log", decode=st.Json())
    assert [row["value"] for row in rows_at(all_records, form)] == [{"n": 1}, None, {"n": 2}]


def test_types_that_a_format_does_not_have_are_refused(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: [(0, b"k", b'"2026-01-01T00:00:00Z"')]})
    bad = pa.duration("s") if form == "delta" else pa.timestamp("ns")
    with raises_error(UsageError, about="has no", advice="type"):
        update(log, tmp_path / "t", form, decode=st.Json(schema=bad))
    assert not (tmp_path / "t").exists()


def test_objects_without_fields_are_refused(log: Log, tmp_path: Path, form: str) -> None:
    log.write({0: [(0, b"k", b"{}")]})
    with raises_error(UsageError, about="has no type", advice="schema of decode"):
        update(log, tmp_path / "t", form, decode=st.Json())
    assert not (tmp_path / "t").exists()


def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    """Those of the sections on tables and on typed columns in docs/tables.md."""
    page = (REPOSITORY / "docs" / "tables.md").read_text()
    _, _, sections = page.partition("## Delta and Iceberg tables")
    sections, _, _ = sections.partition("## DuckDB and Polars")
    blocks = re.findall(r"^```python\n(.*?)^```$", sections, re.DOTALL | re.MULTILINE)
    users = [Rec(offset=at, key=b'"k%d"' % (at % 3), value=b'{"name":"a","age":%d}' % at) for at in range(9)]
    events = [Rec(offset=at, key=None, value=b"%d" % at) for at in range(5)]
    log_directory(tmp_path / "kafka", {"users-0": {0: [batch(users)]}, "events-0": {0: [batch(events)]}})
    program = "import siltstone as st\n" + "".join(blocks)
    program = program.replace("/backup/kafka", str(tmp_path / "kafka")).replace(
        "/lake", str(tmp_path / "lake")
    )
    names: dict[str, Any] = {}
    exec(compile(program, "docs/tables.md", "exec"), names)
    assert len(blocks) == 2 and names["made"].records == 3
    assert len(rows_at(tmp_path / "lake" / "events", "iceberg")) == 5
    assert pq.read_table(tmp_path / "lake" / "typed")["value"].type.field("age").type == pa.int32()
    assert pq.read_table(tmp_path / "lake" / "inferred")["value"].type.field("age").type == pa.int64()
