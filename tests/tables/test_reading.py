"""A table has the records of a plain reader of the same log, however its splits are cut."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError, OffsetOutOfRangeError, SourceChangedError
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.tables import reading, splits
from siltstone.tables.arrow import schema, to_batches
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan, plan_stages, read_split
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.errors import raises_error
from tests.support.golden.sets import of_each_kind
from tests.support.golden_sets import case_names, legacy_names
from tests.support.log.views import random_segments, write_segments
from tests.support.records import twin
from tests.support.tables.tables import log_directory, offsets, rows, table_of
from tests.support.thoroughness import examples, few, share


def sequential_rows(directory: Path, **options: str) -> list[dict[str, object]]:
    """The records by the reader that reads a log from its start to its end."""
    with ReadOnlyLogs([directory]) as logs:
        tables = [
            pa.Table.from_batches(
                to_batches(logs[topic_partition], include_headers=True, **options),  # type: ignore[arg-type]
                schema(include_headers=True),
            )
            for topic_partition in logs
        ]
    return rows(pa.concat_tables(tables))


@pytest.fixture
def small_file_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits are cut at every batch."""
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)


@pytest.mark.random
@pytest.mark.usefixtures("small_file_splits")
@pytest.mark.parametrize(
    ("size", "isolation"),
    few(itertools.product(["900", "128m"], ["read_committed", "read_uncommitted"]), 0, 3),
)
def test_golden_logs_are_what_a_plain_reader_reads(golden: Path, isolation: str, size: str) -> None:
    for name in [*of_each_kind(legacy_names(golden)), *share(case_names(golden)[::9], 3), "txn"]:
        directory = golden / name / "before"
        with tempfile.TemporaryDirectory() as folder:
            partition = Path(folder) / "topic-0"
            shutil.copytree(directory, partition)
            table = table_of(partition, isolation=isolation, maxPartitionBytes=size, includeHeaders="true")
            table.validate(full=True)
            assert rows(table) == sequential_rows(partition, isolation=isolation), name


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([1, 90, 1 << 20]), st.data())
def test_any_range_in_any_splits_has_the_records_of_a_plain_reader(
    seed: int, count: int, size: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = write_segments(Path(folder) / "t-0", random_segments(random.Random(seed), count), 200)
        everything = sequential_rows(partition)
        with ReadOnlyLogs([partition]) as logs:
            first, behind = logs["t", 0].log_start_offset, logs["t", 0].log_end_offset
        start = data.draw(st.integers(first, behind))
        end = data.draw(st.integers(start, behind))
        more = {"minPartitions": str(data.draw(st.integers(1, 9)))} if data.draw(st.booleans()) else {}
        if data.draw(st.booleans()):
            more["maxRecordsPerPartition"] = str(data.draw(st.integers(1, 20)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(splits, "OPEN_COST_BYTES", 1)
            table = table_of(
                partition,
                startingOffsets=f'{{"t":{{"0":{start}}}}}',
                endingOffsets=f'{{"t":{{"0":{end}}}}}',
                maxPartitionBytes=str(size),
                includeHeaders="true",
                **more,
            )
        assert rows(table) == [row for row in everything if start <= row["offset"] < end]  # type: ignore[operator]


TIMES = ("timestampType", "offset", "topic", "timestamp", "partition")


@pytest.mark.random
def test_columns_without_key_and_value_are_the_same_when_only_these_are_decoded(golden: Path) -> None:
    for name in [*of_each_kind(legacy_names(golden)), *share(case_names(golden), 27), "txn"]:
        with tempfile.TemporaryDirectory() as folder:
            partition = Path(folder) / "topic-0"
            shutil.copytree(golden / name / "before", partition)
            table = table_of(partition, columns=",".join(TIMES), maxRecordsPerPartition="31")
            assert table.column_names == list(TIMES)
            assert rows(table) == [
                {time: row[time] for time in TIMES} for row in sequential_rows(partition)
            ], name


def test_invalid_values_do_not_fail_a_query_of_offsets(tmp_path: Path) -> None:
    record = bytearray(twin.record(0, 0, b"key", b"value"))
    record[-7] = 0x7E  # the value's size
    root = log_directory(tmp_path, {"t-0": {0: [twin.batch([bytes(record)])]}})
    assert offsets(root) == [0]
    with raises_error(CorruptRecordError, path=root / "t-0" / f"{0:020}.log", position=0):
        table_of(root, columns="value")


def test_a_split_is_small_and_picklable(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {0: [one(at, "k") for at in range(400)]}})
    (split,) = plan(ReadOptions.of({"path": str(root)}))
    assert pickle.loads(pickle.dumps(split)) == split
    assert len(pickle.dumps(split)) < 1000


@pytest.mark.usefixtures("small_file_splits")
def test_arrow_batches_have_a_maximum_of_rows_and_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Rec(offset=at, key=b"k", value=bytes(100)) for at in range(1000)]
    root = log_directory(tmp_path, {"t-0": {0: [batch(records, codec=twin.ZSTD)]}})
    for max_rows, max_bytes, expected in ((300, 1 << 20, 300), (1000, 12_000, 120)):
        monkeypatch.setattr(reading, "BATCH_ROWS", max_rows)
        monkeypatch.setattr(reading, "BATCH_BYTES", max_bytes)
        options = ReadOptions.of({"path": str(root)})
        sizes = [len(arrow_batch) for split in plan(options) for arrow_batch in read_split(split, options)]
        assert sum(sizes) == 1000 and expected // 2 < max(sizes) <= expected


def test_damage_is_an_error_with_file_and_position(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {0: [one(at, "k") for at in range(9)], 9: [one(9, "k")]}})
    path = root / "t-0" / f"{0:020}.log"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with raises_error(CorruptRecordError, path=path, position=4 * (len(raw) // 9)):
        table_of(root)


class TestWhatChangedSinceTheQueryWasPlanned:
    """A broker continues to write while Spark reads."""

    def planned(self, root: Path, **texts: str) -> tuple[ReadOptions, list[splits.TaskSplit]]:
        options = ReadOptions.of({"path": str(root), "columns": "offset", **texts})
        return options, plan(options)

    def logs(self, tmp_path: Path) -> Path:
        closed = [one(at, f"k{at % 3}", "v") for at in range(10)]
        return log_directory(tmp_path, {"t-0": {0: closed, 10: [one(at, "k0", "v") for at in range(10, 15)]}})

    def read(self, options: ReadOptions, planned: list[splits.TaskSplit]) -> list[int]:
        return [
            at
            for split in planned
            for arrow_batch in read_split(split, options)
            for at in arrow_batch["offset"].to_pylist()
        ]

    def replace(self, root: Path, retained: list[int]) -> None:
        """As the cleaner's swap does: another file of the same name."""
        write_segments(root / "new", {0: [one(at, f"k{at % 3}", "v") for at in retained]}, 100)
        for path in (root / "new").iterdir():
            path.rename(root / "t-0" / path.name)
        (root / "new").rmdir()

    def test_a_cleaned_segment_is_read_again_and_gaps_are_no_data_loss(self, tmp_path: Path) -> None:
        root = self.logs(tmp_path)
        options, planned = self.planned(root)
        self.replace(root, [7, 8, 9])
        assert self.read(options, planned) == [7, 8, 9, 10, 11, 12, 13, 14]

    def test_a_view_is_never_a_mixture(self, tmp_path: Path) -> None:
        root = self.logs(tmp_path)
        for view in ({"view": "latest"}, {"asOfOffset": "8"}):
            options, planned = self.planned(root, **view)
            self.replace(root, [7, 8])
            with raises_error(SourceChangedError, path=root / "t-0", advice="run the query again"):
                self.read(options, planned)

    def test_records_that_retention_deleted_are_data_loss(self, tmp_path: Path) -> None:
        root = self.logs(tmp_path)
        for loss, expected in (("true", None), ("false", [10, 11, 12, 13, 14])):
            options, planned = self.planned(root, failOnDataLoss=loss)
            for path in (root / "t-0").glob(f"{0:020}.*"):
                path.unlink()
            if expected is None:
                with raises_error(OffsetOutOfRangeError, path="t-0", advice="failOnDataLoss=false"):
                    self.read(options, planned)
                shutil.rmtree(root)
                self.logs(root)
            else:
                assert self.read(options, planned) == expected

    def test_a_grown_active_segment_ends_where_it_was_planned(self, tmp_path: Path) -> None:
        root = self.logs(tmp_path)
        options, planned = self.planned(root)
        with (root / "t-0" / f"{10:020}.log").open("ab") as file:
            file.write(one(15, "k", "v"))
        assert self.read(options, planned) == list(range(15))


def test_small_partitions_share_a_split(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {f"t-{number}": {0: [one(0, "k")]} for number in range(50)})
    options = ReadOptions.of({"path": str(root)})
    assert len(plan(options)) < 50
    assert table_of(root)["partition"].to_pylist() == list(range(50))
    assert len(plan(ReadOptions.of({"path": str(root), "minPartitions": "50"}))) == 50


def test_min_partitions_cuts_within_batches_if_there_are_too_few(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {0: [batch([Rec(offset=at, key=b"k") for at in range(10)])]}})
    assert len(plan(ReadOptions.of({"path": str(root), "minPartitions": "4"}))) == 4
    assert len(plan(ReadOptions.of({"path": str(root), "minPartitions": "40"}))) == 10
    assert offsets(root, minPartitions="4") == list(range(10))


@pytest.mark.parametrize("limit", [{"maxRecordsPerPartition": "10"}, {"minPartitions": "10"}])
@pytest.mark.parametrize("records_each", [1, 4])
@pytest.mark.parametrize("has_index", [True, False])
def test_splits_by_records_share_only_the_batch_that_they_cut(
    tmp_path: Path, limit: dict[str, str], records_each: int, has_index: bool
) -> None:
    batches = [
        batch([Rec(offset=first + k, key=b"k", value=bytes(100)) for k in range(records_each)])
        for first in range(0, 96, records_each)
    ]
    root = log_directory(tmp_path, {"t-0": {0: batches}})
    if not has_index:
        (root / "t-0" / f"{0:020}.index").unlink()
    file_splits = [
        file_split
        for split in plan(ReadOptions.of({"path": str(root), **limit}))
        for file_split in split.file_splits
    ]
    assert len(file_splits) in (10, 11)
    read_bytes = sum(file_split.end_position - file_split.position for file_split in file_splits)
    # A batch of one record counts as one that may begin below a cut (``splits._is_above``).
    assert read_bytes <= sum(map(len, batches)) + 10 * len(batches[0])
    assert offsets(root, **limit) == list(range(96))


@pytest.mark.parametrize("records_each", [1, 4])
@pytest.mark.parametrize("has_index", [True, False])
def test_gaps_between_batches_make_no_splits_by_records(
    tmp_path: Path, records_each: int, has_index: bool
) -> None:
    """A compacted log has far more offsets than records."""
    retained = [first + k for first in range(10**9, 10**10, 10**9) for k in range(records_each)]
    batches = [
        batch([Rec(offset=at, key=b"k") for at in retained[row : row + records_each]])
        for row in range(0, len(retained), records_each)
    ]
    segments = {0: batches[:2], 3 * 10**9: batches[2:4], 5 * 10**9: batches[4:6], 7 * 10**9: batches[6:]}
    root = log_directory(tmp_path, {"t-0": segments})
    if not has_index:
        for path in (root / "t-0").glob("*.index"):
            path.unlink()
    planned = plan(ReadOptions.of({"path": str(root), "maxRecordsPerPartition": "2"}))
    assert len(planned) <= 2 * len(batches)
    parts = [part for split in planned for part in split.file_splits]
    assert all(part.position < part.end_position and part.start < part.end for part in parts)
    assert offsets(root, maxRecordsPerPartition="2") == retained
    assert offsets(root, minPartitions="8") == retained


@pytest.mark.parametrize("has_index", [True, False])
def test_a_batch_that_claims_many_offsets_makes_no_more_splits_than_it_has_bytes(
    tmp_path: Path, has_index: bool
) -> None:
    """Each offset that the header claimed made a split; the batches before and after it are cut as ever."""
    ten = [[Rec(offset=first + at, key=b"k") for at in range(10)] for first in (0, 30_010)]
    forged = batch([Rec(offset=10, key=b"k")], last_offset=30_009)
    root = log_directory(tmp_path, {"t-0": {0: [batch(ten[0]), forged, batch(ten[1])]}})
    if not has_index:
        (root / "t-0" / f"{0:020}.index").unlink()
    planned = plan(ReadOptions.of({"path": str(root), "maxRecordsPerPartition": "2"}))
    assert len(planned) <= len(forged) + 12
    spans = [sum(part.end - part.start for part in split.file_splits) for split in planned]
    assert sum(span > 2 for span in spans) == 1
    assert offsets(root, maxRecordsPerPartition="2") == [*range(11), *range(30_010, 30_020)]


def test_a_damaged_batch_and_a_far_segment_make_few_splits(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {0: [one(0, "k"), one(1, "k")], 1 << 61: [one(1 << 61, "k")]}})
    path = root / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 8] = 0xFF  # the size of the second batch
    path.write_bytes(data)
    assert len(plan(ReadOptions.of({"path": str(root), "maxRecordsPerPartition": "1"}))) < 100
    with pytest.raises(CorruptRecordError):
        offsets(root, maxRecordsPerPartition="1")


@pytest.mark.usefixtures("small_file_splits")
def test_a_segment_without_an_offset_index_is_cut_at_batches_too(tmp_path: Path) -> None:
    batches = [
        batch([Rec(offset=first + k, key=b"k", value=bytes(100)) for k in range(4)])
        for first in range(0, 96, 4)
    ]
    root = log_directory(tmp_path, {"t-0": {0: batches}})
    (root / "t-0" / f"{0:020}.index").unlink()
    limit = {"maxPartitionBytes": str(4 * len(batches[0]))}
    file_splits = [
        file_split
        for split in plan(ReadOptions.of({"path": str(root), **limit}))
        for file_split in split.file_splits
    ]
    assert [file_split.end_position - file_split.position for file_split in file_splits] == [
        4 * len(batches[0])
    ] * 6
    assert offsets(root, **limit) == list(range(96))


def test_an_empty_log_is_an_empty_table(tmp_path: Path) -> None:
    root = log_directory(tmp_path, {"t-0": {7: []}})
    assert rows(table_of(root)) == [] and rows(table_of(root, view="latest")) == []


def test_no_record_is_lost_if_the_offset_index_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits are cut elsewhere then, or not at all; bits of the index are flipped one by one."""
    monkeypatch.setattr("siltstone.tables.splits.OPEN_COST_BYTES", 0)
    batches = [
        batch([Rec(offset=at, key=b"k", value=bytes(60)) for at in (o, o + 1)]) for o in range(0, 24, 2)
    ]
    root = log_directory(tmp_path, {"topic-0": {0: batches, 24: [batch([Rec(offset=24, key=b"k")])]}})
    index = root / "topic-0" / f"{0:020}.index"
    data = index.read_bytes()
    for bit in share(range(0, 8 * len(data), 3), 5):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        index.write_bytes(flipped)
        assert offsets(root, minPartitions="6") == list(range(25)), bit


def test_a_split_for_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "OPEN_COST_BYTES", 1)
    root = log_directory(tmp_path, {"t-0": {0: [one(at, "k") for at in range(400)]}})
    options = ReadOptions.of({"path": str(root)})
    assert [len(plan_stages(options, parallelism=parallelism).splits) for parallelism in (1, 3, 8)] == [
        1,
        3,
        8,
    ]
