"""Indexes, checkpoints, snapshots and coordinators' records as tables, against real brokers' listings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.errors import CorruptFileError
from siltstone.log.checkpoints import read_checkpoint
from siltstone.log.indexes import read_entries
from siltstone.log.names import REPLICATION_CHECKPOINT
from siltstone.log.producers import read_snapshot
from tests.support.cleaning.logs import Rec, batch, one, write_log
from tests.support.errors import raises_error
from tests.support.golden_sets import unpack_brokers
from tests.support.tables.tables import table_of

BROKERS = ("whole_28", "whole_39", "whole_43")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_brokers(tmp_path_factory.mktemp("brokers"))


@pytest.fixture
def directories(
    request: pytest.FixtureRequest, golden: Path, brokers: Path, stopped_broker: tuple[Path, Path]
) -> tuple[list[Path], dict[str, Any]]:
    """A stopped broker's log directories, and what Kafka said of them."""
    root = golden if request.param == "whole_43" else brokers
    case = json.loads((root / request.param / "case.json").read_text(encoding="utf-8"))
    if request.param == "whole_43":
        return list(stopped_broker), case
    return [brokers / request.param / "before" / "data"], case


@pytest.mark.parametrize("directories", BROKERS, indirect=True)
def test_committed_offsets_are_those_that_kafka_listed(
    directories: tuple[list[Path], dict[str, Any]],
) -> None:
    paths, case = directories
    rows = table_of(*paths, table="consumerOffsets", view="latest").to_pylist()
    listed = case["state_before"]["consumer_groups"]
    if isinstance(listed, dict):
        listed = [row for group in listed.values() for row in group]
    committed = {
        (row["group"], row["topic"], row["partition"]): row["offset"]
        for row in rows
        if row["type"] == "offset"
    }
    assert committed == {
        (row["group"], row["topic"], row["partition"]): row["current_offset"] for row in listed
    }
    assert all(row["undecodable"] is None and not row["isTombstone"] for row in rows)
    (joined,) = [row for row in rows if row["type"] == "group"]
    assert (joined["group"], joined["protocolType"]) == ("joined", "consumer")
    assert all(row["commitTimestamp"] is not None for row in rows if row["type"] == "offset")


@pytest.mark.parametrize("directories", ["whole_43"], indirect=True)
def test_deleted_groups_are_tombstones_in_the_log_of_commits(
    directories: tuple[list[Path], dict[str, Any]],
) -> None:
    paths, _ = directories
    rows = table_of(*paths, table="consumerOffsets").to_pylist()
    assert {"to-be-deleted", "warmup"} <= {row["group"] for row in rows if row["isTombstone"]}
    assert len(rows) > len({(row["logPartition"], row["logOffset"]) for row in rows}) - 1


@pytest.mark.parametrize("directories", BROKERS, indirect=True)
def test_transactional_ids_have_their_state(directories: tuple[list[Path], dict[str, Any]]) -> None:
    paths, _ = directories
    rows = table_of(*paths, table="transactionState", view="latest").to_pylist()
    assert rows
    states = {row["transactionalId"]: row["state"] for row in rows}
    assert set(states.values()) <= {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}
    for row in rows:
        assert row["producerId"] >= 0
        assert (row["state"] == "Ongoing") == bool(row["partitions"])


@pytest.mark.parametrize("directories", ["whole_39", "whole_43"], indirect=True)
def test_indexes_snapshots_and_epochs_have_a_row_for_each_entry(
    directories: tuple[list[Path], dict[str, Any]],
) -> None:
    paths, _ = directories
    for table, kind in (
        ("offsetIndex", "index"),
        ("timeIndex", "timeindex"),
        ("transactionIndex", "txnindex"),
    ):
        rows = table_of(*paths, table=table).to_pylist()
        assert len(rows) > 0
        for file in {row["file"] for row in rows}:
            entries = read_entries(Path(file).read_bytes(), kind, file)
            rows_of_file = [row for row in rows if row["file"] == file]
            assert len(rows_of_file) == len(entries)
            if kind == "index":
                base = int(Path(file).name[:20])
                assert [row["offset"] - base for row in rows_of_file] == entries["relative_offset"].tolist()
                assert [row["position"] for row in rows_of_file] == entries["position"].tolist()
    producers = table_of(*paths, table="producerSnapshots").to_pylist()
    expected = [
        (str(file), entry.producer_id, entry.last_sequence)
        for path in paths
        for file in path.glob("*-[0-9]/*.snapshot")
        if not file.parent.name.startswith("__cluster_metadata")
        for entry in read_snapshot(file.read_bytes(), str(file))
    ]
    reported = [(row["file"], row["producerId"], row["lastSequence"]) for row in producers]
    assert sorted(
        (file, producer, -1 if last is None else last) for file, producer, last in reported
    ) == sorted(expected)
    assert table_of(*paths, table="leaderEpochs").num_rows > 0


@pytest.mark.parametrize("directories", ["whole_43"], indirect=True)
def test_checkpoints_have_a_row_for_each_file_and_partition(
    directories: tuple[list[Path], dict[str, Any]],
) -> None:
    paths, _ = directories
    rows = table_of(*paths, table="checkpoints").to_pylist()
    for path in paths:
        marks = read_checkpoint(path / REPLICATION_CHECKPOINT)
        file = str(path / REPLICATION_CHECKPOINT)
        offsets = {(row["topic"], row["partition"]): row["offset"] for row in rows if row["file"] == file}
        assert offsets == {
            (topic_partition.topic, topic_partition.partition): offset
            for topic_partition, offset in marks.items()
        }
    only = table_of(*paths, table="checkpoints", subscribe="users").to_pylist()
    assert {row["topic"] for row in only} == {"users"}


@pytest.mark.parametrize("directories", ["whole_43"], indirect=True)
def test_batches_has_a_row_for_each_batch_control_batches_too(
    directories: tuple[list[Path], dict[str, Any]],
) -> None:
    paths, _ = directories
    table = table_of(*paths, table="batches", subscribe="orders")
    rows = table.to_pylist()
    assert {row["isControl"] for row in rows} == {True, False}
    assert all(row["crcValid"] for row in rows)
    sizes = {row["file"]: row["position"] + row["size"] for row in rows}
    assert sizes == {file: Path(file).stat().st_size for file in sizes}


@pytest.mark.parametrize("directories", ["whole_43"], indirect=True)
def test_a_damaged_index_is_an_error_or_with_quarantine_a_row(
    directories: tuple[list[Path], dict[str, Any]], tmp_path: Path
) -> None:
    paths, _ = directories
    shutil.copytree(paths[0] / "users-0", tmp_path / "users-0")
    index = max((tmp_path / "users-0").glob("*.timeindex"), key=lambda file: file.stat().st_size)
    index.write_bytes(index.read_bytes() + b"123")
    with raises_error(CorruptFileError, path=index):
        table_of(tmp_path / "users-0", table="timeIndex")
    rows = table_of(tmp_path / "users-0", table="timeIndex", badBatches="quarantine").to_pylist()
    assert [row["file"] for row in rows if row["badBatch"] is not None] == [str(index)]
    assert len([row for row in rows if row["badBatch"] is None]) > 0


def test_times_out_of_arrows_range_are_the_nearest_in_it(tmp_path: Path) -> None:
    """As the delete horizon of tombstones that are kept for ever; a negative one is none."""
    longest = (1 << 63) - 1
    forever = batch([Rec(offset=0, key=b"a", value=None, timestamp=longest)], delete_horizon_ms=longest)
    wrapped = batch([Rec(offset=1, key=b"a", timestamp=5)], delete_horizon_ms=-5)
    write_log(tmp_path, {0: [forever, wrapped], 2: [one(2, "b")]}, high_watermark=3)
    table = table_of(tmp_path, table="batches")
    maximum = longest // 1000 * 1000
    assert table.column("deleteHorizon").cast("int64").to_pylist() == [maximum, None, None]
    assert table.column("maxTimestamp").cast("int64").to_pylist()[:2] == [maximum, 5000]
    assert table_of(tmp_path, table="timeIndex").column("timestamp").cast("int64").to_pylist()[0] == maximum
