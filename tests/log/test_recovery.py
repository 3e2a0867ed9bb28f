"""`recover_partition`: what a start makes of a directory; the real broker's cases are in tests/golden."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import HEADER
from siltstone.base.records.scan import scan_batches
from siltstone.compaction.report import CLEANED, UNCLEANABLE
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.log.producers import ProducerStates, read_snapshot, write_snapshot
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from siltstone.log.recovery.scan import apply_batches, state_changing_rows
from siltstone.log.segments import list_segments
from tests.support.cleaning.logs import Rec, batch, logs_of, one, run, tree, write_log
from tests.support.cleaning.transactional import a_log, write_index
from tests.support.errors import raises_error

CONFIG = LogConfig(index_interval_bytes=100)
NOW = 1_700_000_001_000


def write(path: Path, count: int = 30, per_segment: int = 10, **shape: Any) -> Path:
    """Segments of ``per_segment`` one-record batches each."""
    batches = {
        base: [one(base + i, f"k{base + i}", "v" * 40, **shape) for i in range(per_segment)]
        for base in range(0, count, per_segment)
    }
    return write_log(path, batches, interval=100)


def recover(
    partition: Path, *, clean: bool = False, point: int = 0, start: int = 0, **options: Any
) -> RecoveredPartition:
    config = options.pop("config", CONFIG)
    return recover_partition(
        partition,
        had_clean_shutdown=clean,
        recovery_point=point,
        log_start_offset=start,
        config=config,
        now_ms=NOW,
        **options,
    )


def settled(path: Path, **shape: Any) -> Path:
    """The log that ``write`` makes, as a clean stop leaves it."""
    partition = write(path, **shape)
    recover(partition)
    return partition


def name(base: int, kind: str) -> str:
    return f"{base:020d}.{kind}"


def test_a_clean_log_is_not_changed(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    before = tree(partition)
    operations: list[files.Operation] = []
    with files.observe(operations.append):
        recovered = recover(partition, clean=True, point=30)
    assert operations == []
    assert tree(partition) == before
    assert (recovered.log_start_offset, recovered.log_end_offset) == (0, 30)
    assert recovered.segments == tuple(list_segments(partition))
    assert not recovered.changed


def test_a_clean_log_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = settled(tmp_path, count=4000, per_segment=2000)
    read = []
    read_slice = files.read_slice
    monkeypatch.setattr(
        files, "read_slice", lambda *arguments: read.append(arguments[2]) or read_slice(*arguments)
    )
    monkeypatch.setattr(files, "Reader", None)
    assert recover(partition, clean=True).log_end_offset == 4000
    assert sum(read) < 70_000 < (partition / name(2000, "log")).stat().st_size


def test_an_empty_directory_gets_a_segment_at_the_log_start(tmp_path: Path) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    recovered = recover(partition, start=7)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (7, 7)
    assert sorted(tree(partition)) == [name(7, "index"), name(7, "log"), name(7, "timeindex")]
    assert [segment.base_offset for segment in recovered.segments] == [7]


def test_an_end_below_the_log_start_starts_empty_there(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    for clean in (False, True):
        recovered = recover(partition, clean=clean, start=1000)
        assert (recovered.log_start_offset, recovered.log_end_offset) == (1000, 1000)
        assert logs_of(partition) == {1000: b""}
        assert not list(partition.glob("*.snapshot"))
    assert not recovered.changed


def test_a_log_start_above_the_active_base_keeps_all_segments(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n5 22\n")
    recovered = recover(partition, point=30, start=25)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (25, 30)
    assert LeaderEpochs(partition).entries == ((5, 25),)
    assert [path.name for path in partition.glob("*.snapshot")] == [name(30, "snapshot")]
    assert len(recovered.segments) == 3


def test_the_recovery_point_bounds_what_is_scanned(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    log = partition / name(0, "log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    assert recover(partition, point=15).log_end_offset == 30
    recovered = recover(partition, point=15, check=True)
    assert recovered.log_end_offset == 30 and log.read_bytes() == data
    assert [(Path(damage.path), damage.position) for damage in recovered.damage] == [(log, 0)]
    assert recover(partition, point=9).log_end_offset == 0


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["gone", "short", "zeros", "nonsense"])
def test_indexes_are_built_again_below_the_recovery_point(
    tmp_path: Path, kind: str, clean: bool, damage: str
) -> None:
    partition = settled(tmp_path)
    before = tree(partition)
    path = partition / name(10, kind)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"short": data[:-5], "zeros": data + bytes(48), "nonsense": b"\xf3" * len(data)}[damage]
        )
    recovered = recover(partition, clean=clean, point=30)
    assert recovered.rebuilt_indexes == (name(10, kind),)
    assert recovered.truncated_bytes == 0
    assert tree(partition) == before


def test_an_index_whose_entries_do_not_ascend_is_built_again_after_a_crash(tmp_path: Path) -> None:
    """The last entry is right, and a start after a clean stop reads the last one only."""
    partition = settled(tmp_path)
    before, path = tree(partition), partition / name(10, "index")
    data = path.read_bytes()
    assert len(data) >= 3 * 8
    path.write_bytes(data[8:16] + data[:8] + data[16:])
    assert recover(partition, clean=True, point=30).rebuilt_indexes == ()
    assert recover(partition, point=30).rebuilt_indexes == (name(10, "index"),)
    assert tree(partition) == before


def test_an_index_that_lies_is_found_by_a_check(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    before = tree(partition)
    path = partition / name(10, "index")
    data = bytearray(path.read_bytes())
    data[7] += 1
    path.write_bytes(data)
    assert recover(partition, point=30).rebuilt_indexes == ()
    assert recover(partition, clean=True, point=30, check=True).rebuilt_indexes == (name(10, "index"),)
    assert tree(partition) == before


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_an_index_is_built_again_and_the_abort_index_stays(tmp_path: Path, kind: str, check: bool) -> None:
    partition = aborting(tmp_path)
    before = tree(partition)
    assert before[name(10, "txnindex")]
    path = partition / name(10, kind)
    path.write_bytes(path.read_bytes()[:-1])
    recovered = recover(partition, point=30, check=check)
    assert recovered.rebuilt_indexes == (name(10, kind),)
    assert tree(partition) == before


@pytest.mark.parametrize("leftover", [b"", None])
def test_an_abort_that_no_index_names_is_found_by_a_check(tmp_path: Path, leftover: bytes | None) -> None:
    partition = aborting(tmp_path)
    before, path = tree(partition), partition / name(10, "txnindex")
    path.unlink()
    if leftover is not None:
        path.write_bytes(leftover)
    assert recover(partition, clean=True, point=30).rebuilt_indexes == ()
    assert recover(partition, clean=True, point=30, check=True).rebuilt_indexes == (name(10, "txnindex"),)
    assert tree(partition) == before


def test_an_abort_index_may_say_more_than_the_log(tmp_path: Path) -> None:
    """Cleaning takes an aborted transaction's data before its entry."""
    partition = aborting(tmp_path)
    log, path = partition / name(30, "log"), partition / name(30, "txnindex")
    log.write_bytes(marker(30, commit=False, producer_id=99) + one(31, "k"))
    path.write_bytes(np.array([(0, 99, 11, 30, 31)], TRANSACTION_ENTRY).tobytes())
    recover(partition)
    path.write_bytes(np.array([(0, 99, 11, 30, 31)], TRANSACTION_ENTRY).tobytes())
    before = tree(partition)
    assert recover(partition, clean=True, point=30, check=True).rebuilt_indexes == ()
    assert tree(partition) == before


def test_an_abort_index_stays_where_its_segment_is_damaged(tmp_path: Path) -> None:
    partition = aborting(tmp_path)
    log = partition / name(10, "log")
    log.write_bytes(log.read_bytes()[:-1])
    (partition / name(10, "index")).unlink()
    (partition / name(10, "timeindex")).write_bytes(bytes(12))
    before = (partition / name(10, "txnindex")).read_bytes()
    recovered = recover(partition, point=30, check=True)
    assert recovered.damage and (partition / name(10, "txnindex")).read_bytes() == before


def test_preallocated_indexes_are_trimmed(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    before = tree(partition)
    for kind, size in (("index", 4096), ("timeindex", 4092)):
        path = partition / name(20, kind)
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    recovered = recover(partition, point=20)
    assert recovered.changed and recovered.rebuilt_indexes == ()
    assert tree(partition) == before


def test_files_without_a_log_go_and_unknown_ones_stay(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    strays = [name(77, "index"), name(77, "timeindex"), name(3, "snapshot"), name(99, "snapshot")]
    strays += [name(0, "log.deleted"), name(10, "index.tmp"), "leader-epoch-checkpoint.tmp"]
    strangers = ["notes.txt", "00000000000000000000.checkpoint", "backup.log.tmp"]
    for stray in (*strays, *strangers):
        (partition / stray).write_bytes(b"")
    (partition / "folder").mkdir()
    recovered = recover(partition, clean=True)
    assert sorted(recovered.removed_files) == sorted(strays)
    assert {path.name for path in partition.iterdir()} >= {*strangers, "folder"}


def test_base_offsets_that_decrease_are_refused(tmp_path: Path) -> None:
    partition = write_log(tmp_path, {0: [one(0, "a"), one(5, "b"), one(4, "c"), one(6, "d")]})
    size = len(one(0, "a"))
    before = tree(partition)
    topic_partition = {"path": partition / name(0, "log"), "position": 2 * size}
    with raises_error(
        CorruptRecordError, **topic_partition, about="base offset 4 is not above 5", advice="replica"
    ):
        recover(partition)
    assert tree(partition) == before


@pytest.mark.parametrize(("missing", "base"), [(8, 0), (7, 0x2C), (6, 300)])
def test_a_base_offset_whose_front_was_never_written_is_a_torn_write(
    tmp_path: Path, missing: int, base: int
) -> None:
    torn = bytearray(one(65836, "b"))  # 0x1012C
    torn[:missing] = bytes(missing)
    assert int.from_bytes(torn[:8], "big") == base
    sound = one(65835, "a")
    partition = write_log(tmp_path, {65835: [sound, bytes(torn), one(65837, "c")]})
    recovered = recover(partition)
    assert recovered.log_end_offset == 65836
    assert (partition / name(65835, "log")).read_bytes() == sound


def test_offsets_beyond_the_next_segment_are_refused(tmp_path: Path) -> None:
    partition = write_log(tmp_path, {0: [one(0, "a"), one(11, "b")], 10: [one(10, "c")]})
    log, position = partition / name(0, "log"), len(one(0, "a"))
    with raises_error(CorruptRecordError, path=log, position=position, about="offset 11"):
        recover(partition)


def test_offsets_over_two_thousand_million_above_the_base_are_refused(tmp_path: Path) -> None:
    partition = write_log(tmp_path, {0: [one(0, "a")]})
    far = bytearray(one(0, "b"))
    far[:8] = ((1 << 31) + 5).to_bytes(8, "big")
    with (partition / name(0, "log")).open("ab") as log:
        log.write(far)
    with raises_error(CorruptRecordError, position=len(one(0, "a")), about=f"offset {(1 << 31) + 5}"):
        recover(partition)


def test_later_segments_go_with_the_damage(tmp_path: Path) -> None:
    partition = settled(tmp_path)
    sizes = {base: len(data) for base, data in logs_of(partition).items()}
    log = partition / name(10, "log")
    with log.open("r+b") as file:
        file.truncate(sizes[10] - 3)
    recovered = recover(partition, point=5)
    assert recovered.log_end_offset == 19
    batch_size = len(one(19, "k19", "v" * 40))
    assert recovered.truncated_bytes == batch_size - 3 + sizes[20]
    assert list(logs_of(partition)) == [0, 10]
    assert "truncated at" in recovered.notes[0] and str(log) in recovered.notes[0]


def test_a_scan_finds_epochs_and_forgets_those_beyond_the_end(tmp_path: Path) -> None:
    batches = [one(0, "a", leader_epoch=2), one(1, "b", leader_epoch=2), one(2, "c", leader_epoch=6)]
    partition = write_log(tmp_path, {0: batches})
    recover(partition)
    assert LeaderEpochs(partition).entries == ((2, 0), (6, 2))
    (partition / "leader-epoch-checkpoint").write_text("0\n3\n2 0\n6 2\n9 3\n")
    recover(partition)
    assert LeaderEpochs(partition).entries == ((2, 0), (6, 2))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [b"\xff\0nonsense", b"", b"0\n2\n6 0\n"])
def test_a_damaged_epoch_file_is_made_again_from_all_batches(
    tmp_path: Path, clean: bool, damage: bytes
) -> None:
    batches = {
        base: [one(base + i, "k", leader_epoch=(2 * (base + i) + 11) // 12) for i in range(10)]
        for base in (0, 10, 20)
    }
    partition, path = write_log(tmp_path, batches), tmp_path / "topic-0" / "leader-epoch-checkpoint"
    recover(partition)
    expected = path.read_bytes()
    assert LeaderEpochs(partition).entries == ((0, 0), (1, 1), (2, 7), (3, 13), (4, 19), (5, 25))
    path.write_bytes(damage)
    dry = recover(partition, clean=clean, point=30, dry_run=True)
    assert dry.changed and "leader-epoch-checkpoint" in dry.notes[0] and path.read_bytes() == damage
    # A crash before the file is written leaves the damaged one, and the next start does all of it.
    recovered = recover(partition, clean=clean, point=30)
    assert recovered.notes == dry.notes and "leader-epoch-checkpoint" not in recovered.removed_files
    assert path.read_bytes() == expected
    assert recover(partition, clean=clean, point=30).notes == ()


def test_a_damaged_epoch_file_is_made_again_of_a_log_without_batches_too(tmp_path: Path) -> None:
    partition = tmp_path / "topic-0"
    partition.mkdir()
    (partition / "leader-epoch-checkpoint").write_bytes(b"nonsense")
    recover(partition, start=7)
    assert LeaderEpochs(partition).entries == ()


def test_a_damaged_epoch_file_is_made_again_up_to_the_damage_of_a_segment(tmp_path: Path) -> None:
    partition = settled(tmp_path, leader_epoch=4)
    (partition / name(10, "log")).write_bytes(b"damaged")
    (partition / "leader-epoch-checkpoint").write_bytes(b"nonsense")
    recover(partition, clean=True)
    assert LeaderEpochs(partition).entries == ((4, 0),)


def test_message_sets_are_recovered_too(golden: Path, tmp_path: Path) -> None:
    partition = tmp_path / "topic-0"
    shutil.copytree(golden / "legacy" / "v1_mixed" / "before", partition)
    before = logs_of(partition)
    end = recover(partition).log_end_offset
    assert logs_of(partition) == before
    last = partition / name(max(before), "log")
    last.write_bytes(before[max(before)][:-1])
    assert recover(partition).log_end_offset < end


# Producers


def marker(offset: int, *, commit: bool, producer_id: int = 9, producer_epoch: int = 1) -> bytes:
    batch_bytes = bytearray(
        end_transaction_marker(
            is_commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=1,
            timestamp_ms=NOW,
        ).tobytes()
    )
    HEADER.pack_into(batch_bytes, 0, *(offset, *HEADER.unpack_from(batch_bytes)[1:]))
    return bytes(batch_bytes)


def aborting(path: Path) -> Path:
    """Three segments, each with an aborted transaction, as a clean stop leaves them."""
    batches = {}
    for base in (0, 10, 20):
        shape = {"producer_id": 9, "producer_epoch": 1, "transactional": True}
        data = [one(base + i, "k", "v" * 40, base_sequence=base + i, **shape) for i in range(9)]
        batches[base] = [*data, marker(base + 9, commit=False)]
    partition = write_log(path, batches, interval=100)
    recover(partition)
    return partition


def producers_of(partition: Path, base: int) -> dict[int, tuple[int, int]]:
    entries = read_snapshot((partition / name(base, "snapshot")).read_bytes())
    return {entry.producer_id: (entry.last_sequence, entry.last_offset) for entry in entries}


def idempotent(path: Path) -> Path:
    """Three segments of one producer's batches."""
    batches = {
        base: [
            one(base + i, "k", "v", producer_id=9, producer_epoch=1, base_sequence=base + i)
            for i in range(10)
        ]
        for base in (0, 10, 20)
    }
    return write_log(path, batches, interval=100)


def test_snapshots_are_taken_where_a_start_reads_them(tmp_path: Path) -> None:
    partition = idempotent(tmp_path)
    recovered = recover(partition, point=20)
    bases = sorted(int(path.stem) for path in partition.glob("*.snapshot"))
    assert bases == [10, 20, 30]
    assert producers_of(partition, 10) == {9: (9, 9)}
    assert producers_of(partition, 30) == {9: (29, 29)}
    assert [producer.last_sequence for producer in recovered.producers] == [29]


def test_a_snapshot_that_does_not_read_makes_way_for_the_one_before(tmp_path: Path) -> None:
    partition = idempotent(tmp_path)
    recover(partition)
    (partition / name(30, "snapshot")).write_bytes(b"nonsense")
    recovered = recover(partition, clean=True)
    assert recovered.removed_files == (name(30, "snapshot"),)
    assert producers_of(partition, 30) == {9: (29, 29)}


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    partition = idempotent(tmp_path)
    recover(partition)
    assert [producer.producer_id for producer in recover(partition, clean=True).producers] == [9]
    config = LogConfig(producer_id_expiration_ms=500)
    assert recover(partition, clean=True, config=config).producers == ()


def test_an_error_of_a_marker_keeps_its_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CorruptRecordError("log", 7, "the marker is damaged", advice="restore the log")

    partition = write(tmp_path / "topic-0")
    monkeypatch.setattr("siltstone.log.recovery.scan.apply_batches", refuse)
    with pytest.raises(CorruptRecordError) as caught:
        recover(partition)
    assert (caught.value.position, caught.value.advice) == (7, "restore the log")


def test_only_state_changing_rows_have_to_be_applied() -> None:
    rng = np.random.default_rng(5)
    data = bytearray()
    for offset in range(300):
        producer, epoch = int(rng.integers(3)), offset // 100
        if rng.random() < 0.15:
            commit = bool(rng.integers(2))
            appended = marker(offset, commit=commit, producer_id=producer, producer_epoch=epoch)
        else:
            transactional = producer == 2
            shape = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": offset}
            appended = batch([Rec(offset=offset, key=b"k")], transactional=transactional, **shape)
        data += appended
    array = np.frombuffer(data, np.uint8)
    batches = scan_batches(array).batches
    whole, fewer = ProducerStates(), ProducerStates()
    aborted = whole.update(batches, array)
    assert apply_batches(fewer, batches, array) == aborted
    assert fewer.snapshot() == whole.snapshot()
    assert len(state_changing_rows(batches)) < len(batches)


@pytest.mark.parametrize(("start", "known"), [(0, {7, 8}), (3, {7, 8}), (5, {7, 8}), (6, {8}), (9, {8})])
def test_a_producer_is_known_by_a_batch_in_which_the_log_starts(
    tmp_path: Path, start: int, known: set[int]
) -> None:
    """As where a broker reads the segment from the log start on (``UnifiedLog.rebuildProducerState``). The
    snapshot of a clean stop is beyond the end: the log was cut into a batch before."""
    batches = [
        batch(
            [Rec(offset=base + i, key=b"k", value=b"v", timestamp=NOW) for i in range(6)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        for base, producer_id in ((0, 7), (6, 8))
    ]
    partition = write_log(tmp_path, {0: batches})
    (partition / name(14, "snapshot")).write_bytes(write_snapshot([]))
    recovered = recover(partition, clean=True, point=12, start=start)
    assert {entry.producer_id for entry in recovered.producers} == known


@pytest.mark.parametrize(
    ("base", "entry"),
    [
        (7, (4, 0, 7, 6)),  # a COMMIT in it
        (7, (4, 4, 7, 6)),  # begins too late
        (10, (4, 8, 10, 10)),  # ends where no marker is
        (10, (6, 8, 11, 10)),  # another producer's
        (13, (6, 13, 15, 10)),  # overlaps with the next one's
        (19, (6, 15, 18, 19)),  # not in the segment of its marker, which is another producer's
    ],
)
def test_a_check_builds_transaction_indexes_that_the_markers_contradict(
    tmp_path: Path, base: int, entry: tuple[int, int, int, int]
) -> None:
    """Then the log is cleaned as it would have been."""
    forged, sound = (a_log(tmp_path / folder) for folder in ("forged", "sound"))
    write_index(forged, base, entry)
    assert run(tmp_path / "forged").status == UNCLEANABLE
    assert recover(forged, clean=True, check=True).rebuilt_indexes == (name(base, "txnindex"),)
    assert recover(forged, clean=True, check=True).rebuilt_indexes == ()
    assert indexes_of(forged) == indexes_of(sound)
    assert run(tmp_path / "forged").status == run(tmp_path / "sound").status == CLEANED
    assert logs_of(forged) == logs_of(sound)


def indexes_of(partition: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(partition).items() if name.endswith(".txnindex")}


def test_a_check_finds_an_index_entry_that_names_a_batch_in_a_value(tmp_path: Path) -> None:
    """A search for an offset uses such an entry, as in Kafka: only reading the log shows that it is wrong."""
    inner = one(5, "k", "inner")
    outer = batch([Rec(offset=4, key=b"k", value=b"x" * 40 + inner + b"x" * 40)])
    before = [one(offset, "k", "v" * 40) for offset in range(4)]
    partition = write_log(tmp_path, {0: [*before, outer, one(5, "k"), one(6, "k")], 7: [one(7, "k")]})
    recover(partition)
    index = partition / name(0, "index")
    data, position = index.read_bytes(), b"".join([*before, outer]).index(inner)
    index.write_bytes(np.array([5, position], ">i4").tobytes())
    assert recover(partition, clean=True, check=True).rebuilt_indexes == (index.name,)
    assert index.read_bytes() == data


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_of_more_records_than_bytes_is_no_damage(tmp_path: Path, codec: int) -> None:
    """Small records that are alike take less than a byte each in zstd; nothing of such a log is cut off."""
    many = [Rec(offset=10 + number, key=b"k", value=b"") for number in range(20_000)]
    large = batch(many, codec=codec)
    assert codec != 4 or len(large) < len(many)
    partition = write_log(tmp_path, {0: [one(0, "k"), large, one(30_000, "k")]})
    before = logs_of(partition)
    recovered = recover(partition)
    assert (recovered.truncated_bytes, recovered.damage, recovered.log_end_offset) == (0, (), 30_001)
    assert logs_of(partition) == before
