"""Directories that a real broker was started on after a stop, with and without damage: ours ends as it did.

Offsets and bytes of every file are Kafka's after its next start and stop, but for ``DIFFERENT``: what Kafka
does not notice there, or does not survive. ``leader-epoch-checkpoint`` is compared after what the broker did
once the log was loaded: it became leader.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from siltstone.base.config import LogConfig
from siltstone.base.errors import CorruptRecordError
from siltstone.log.checkpoints import LeaderEpochs
from siltstone.log.recovery.partition import RecoveredPartition, recover_partition
from tests.support import golden_sets
from tests.support.cleaning.logs import tree
from tests.support.errors import raises_error

CONFIG = LogConfig(index_interval_bytes=512, segment_index_bytes=4096)
NOW = 1_795_227_600_000
"""About when the broker was started on them: no producer had expired."""


class Different(NamedTuple):
    """Where ours is another outcome on purpose: the end offset, the files that differ (by ending), why."""

    end: int | None
    endings: tuple[str, ...]
    why: str


_LAST = (".log", ".index", ".timeindex", ".snapshot")
DIFFERENT = {
    "c_bitflip_last": Different(173, _LAST, "Kafka reads no data after a clean stop; ours reads the tail"),
    "c_index_garbage": Different(
        215, (".index", ".snapshot"), "Kafka believes the index and loses 13 records"
    ),
    "c_torn_batch": Different(183, _LAST, "Kafka falls back to the segment's base: 162"),
    "c_zero_tail": Different(177, (), "Kafka does not start"),
    "c_timeindex_deleted": Different(None, (".timeindex",), "Kafka makes empty ones"),
    "c_timeindex_truncated": Different(None, (".timeindex",), "Kafka leaves or cuts them"),
    "c_txnindex_torn": Different(None, (".txnindex",), "Kafka leaves them torn"),
    "u_badmagic": Different(243, _LAST, "the magic byte is outside the checksum: Kafka lets it pass"),
    "u_index_garbage": Different(None, ("36.index",), "below the recovery point Kafka does not look"),
    "u_timeindex_truncated": Different(
        None, ("45.timeindex",), "below the recovery point Kafka does not look"
    ),
}
REFUSED = {"u_offset_back": "base offset 185"}
NOTICED = {
    "u_bitflip_old": "00000000000000000000.log: byte 494: checksum does not match",
    "u_gap": "offsets 40 to 79 are missing",
    "u_bitflip_epoch": "decreases from 32 to 0 at offset 254",
}
"""What Kafka does not notice at all, and ours says."""

NAMES = """
    c_bitflip_last c_index_deleted c_index_garbage c_plain c_snapshot_deleted c_timeindex_deleted
    c_timeindex_truncated c_torn_batch c_txnindex_deleted c_txnindex_torn c_zero_tail u_badlen
    u_badmagic u_bitflip_crc u_bitflip_epoch u_bitflip_last u_bitflip_mid_r0 u_bitflip_old u_empty_last
    u_epoch_deleted u_gap u_garbage_tail u_index_deleted u_index_garbage u_offset_back u_plain
    u_plain_r0 u_shortlen u_snapshot_deleted u_snapshot_garbage u_stray_files u_timeindex_truncated
    u_torn_12 u_torn_batch u_torn_header u_txn u_txn_r0_nosnap u_zero_mid u_zero_tail
""".split()
SWAPS = """
    cs_1_cleaned cs_2_log_swap_rest_cleaned cs_3_swap cs_5_swap_all_deleted us_1_cleaned us_1b_cleaned_torn
    us_2_log_swap_rest_cleaned us_2b_index_swap_log_cleaned us_3_swap us_4_swap_first_deleted
    us_4b_swap_first_log_deleted us_4c_swap_last_deleted us_5_swap_all_deleted us_6_log_final_index_swap
    us_6b_log_swap_index_final us_7_final_deleted us_8_two_swaps_cleaned_left
""".split()


@pytest.fixture(scope="session")
def roots(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The root of each set, by its name."""
    stopped = golden_sets.unpack_recovery(tmp_path_factory.mktemp("golden-recovery"))
    return {
        name.removeprefix("recovery/"): root
        for root in (golden, stopped)
        for name in golden_sets.recovery_names(root)
    }


class Staged(NamedTuple):
    case: golden_sets.Case
    round: golden_sets.Round
    partition: Path

    def recover(
        self, *, check: bool = False, clean: bool | None = None, after: RecoveredPartition | None = None
    ) -> RecoveredPartition:
        points = self.round.checkpoints_before
        point = points["recovery-point-offset-checkpoint"] or 0
        return recover_partition(
            self.partition,
            had_clean_shutdown=self.round.clean_shutdown if clean is None else clean,
            recovery_point=after.log_end_offset if after else point,
            log_start_offset=points["log-start-offset-checkpoint"] or 0,
            config=CONFIG,
            now_ms=NOW,
            check=check,
        )


def stage(roots: dict[str, Path], name: str, destination: Path) -> Staged:
    case = golden_sets.load_case(roots[name], f"recovery/{name}")
    (round_,) = case.rounds
    directory = golden_sets.stage_round(case, round_, destination / "log")
    return Staged(case, round_, golden_sets.partition_directory(case, directory))


def become_leader(staged: Staged, end: int) -> None:
    """What the broker did next: a clean stop hands the leadership over, a kill does not."""
    epochs = LeaderEpochs(staged.partition)
    if not staged.round.clean_shutdown:
        epochs.assign(0, end)
    epochs.assign(2, end)


def test_no_set_is_forgotten(roots: dict[str, Path]) -> None:
    assert sorted([*NAMES, *SWAPS]) == sorted(roots)
    assert len(roots) == 56


@pytest.mark.parametrize("name", [case for case in (*NAMES, *SWAPS) if case not in REFUSED])
def test_a_recovered_partition_ends_as_kafkas(roots: dict[str, Path], tmp_path: Path, name: str) -> None:
    staged = stage(roots, name, tmp_path)
    report = staged.recover(check=not staged.round.clean_shutdown)
    different = DIFFERENT.get(name)
    kafkas = staged.case.raw.get("log_end_offset")
    expected = kafkas if different is None or different.end is None else different.end
    assert report.log_end_offset == expected
    assert report.log_start_offset == 0
    if staged.round.after is None:
        assert name == "c_zero_tail"
        return
    become_leader(staged, report.log_end_offset)
    our_files, kafkas_files = tree(staged.partition), tree(staged.round.after)
    moved = report.log_end_offset != kafkas
    unlike = {file for file in {*our_files, *kafkas_files} if our_files.get(file) != kafkas_files.get(file)}
    unlike -= {"leader-epoch-checkpoint"} if moved else set()
    assert all(file.endswith(different.endings if different else ()) for file in unlike), unlike
    assert bool(unlike) == (different is not None)


@pytest.mark.parametrize("name", [case for case in (*NAMES, *SWAPS) if case not in REFUSED])
def test_a_second_start_changes_nothing(roots: dict[str, Path], tmp_path: Path, name: str) -> None:
    staged = stage(roots, name, tmp_path)
    first = staged.recover()
    before = tree(staged.partition)
    for clean in (True,) if staged.round.clean_shutdown else (False, True):  # a scan finds more than a look
        again = staged.recover(clean=clean, after=first)
        assert not again.changed
        assert again.log_end_offset == first.log_end_offset
        assert again.producers == first.producers
        assert again.segments == first.segments
    assert tree(staged.partition) == before


@pytest.mark.parametrize("name", REFUSED)
def test_offsets_that_go_back_are_refused(roots: dict[str, Path], tmp_path: Path, name: str) -> None:
    staged = stage(roots, name, tmp_path)
    logs = {path.name: path.read_bytes() for path in staged.partition.glob("*.log")}
    with raises_error(CorruptRecordError, position=3243, about=REFUSED[name]) as caught:
        staged.recover()
    assert Path(caught.value.path).name in logs
    assert {path.name: path.read_bytes() for path in staged.partition.glob("*.log")} == logs


@pytest.mark.parametrize("name", NOTICED)
def test_damage_that_kafka_does_not_notice_is_reported(
    roots: dict[str, Path], tmp_path: Path, name: str
) -> None:
    report = stage(roots, name, tmp_path).recover(check=True)
    assert any(NOTICED[name] in str(finding) for finding in (*report.damage, *report.notes))


def test_rebuilt_swapped_and_removed_files_are_reported(roots: dict[str, Path], tmp_path: Path) -> None:
    bases = (0, 43, 84, 118, 156, 202)
    report = stage(roots, "u_index_deleted", tmp_path / "a").recover()
    assert report.rebuilt_indexes == tuple(f"{base:020d}.index" for base in bases)
    assert report.truncated_bytes == 0 and report.finished_swaps == ()
    report = stage(roots, "cs_5_swap_all_deleted", tmp_path / "b").recover()
    assert report.finished_swaps == (f"{0:020d}.log",)
    assert len([name for name in report.removed_files if name.endswith(".deleted")]) >= 27
    report = stage(roots, "u_bitflip_mid_r0", tmp_path / "c").recover()
    assert report.log_end_offset == 48
    assert report.truncated_bytes > 6144 - 1054
    assert f"{165:020d}.log" in report.removed_files


@pytest.mark.parametrize("name", ["u_torn_batch", "us_3_swap", "c_zero_tail", "u_snapshot_deleted"])
def test_a_dry_run_reports_what_a_recovery_would_do_and_changes_nothing(
    roots: dict[str, Path], tmp_path: Path, name: str
) -> None:
    staged = stage(roots, name, tmp_path)
    before = tree(staged.partition)
    points = staged.round.checkpoints_before
    predicted = recover_partition(
        staged.partition,
        had_clean_shutdown=staged.round.clean_shutdown,
        recovery_point=points["recovery-point-offset-checkpoint"] or 0,
        log_start_offset=0,
        config=CONFIG,
        now_ms=NOW,
        dry_run=True,
    )
    assert tree(staged.partition) == before
    assert predicted.changed
    actual = staged.recover()
    assert (predicted.log_end_offset, predicted.truncated_bytes) == (
        actual.log_end_offset,
        actual.truncated_bytes,
    )
    assert predicted.finished_swaps == actual.finished_swaps
    shutil.rmtree(tmp_path)
