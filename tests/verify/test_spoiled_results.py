"""Sound results of Kafka's cleaner, each spoiled in one way: every spoiling is found, whatever the seed."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from siltstone.base import files
from siltstone.base.errors import CorruptFileError
from siltstone.log.indexes import TRANSACTION_ENTRY
from siltstone.verify.checking import CheckedLogs, check_in_process, verify
from siltstone.verify.findings import PROBLEM_KINDS
from siltstone.verify.pairs import LogPair, open_sides
from tests.support import golden_sets
from tests.support.thoroughness import few
from tests.support.verify.editing import Spoiler
from tests.support.verify.spoilings import SPOILINGS, Spoiling, lose_an_empty_segments_neighbour
from tests.support.verify.staging import stage_pair

SEEDS = few([(1,), (2,), (3,)], 0)


@pytest.fixture(scope="module")
def sound() -> set[tuple[str, int]]:
    """Sets and rounds that are known to pass while they are not spoiled."""
    return set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "spoiling", SPOILINGS, ids=lambda spoiling: f"{spoiling.spoil.__name__}-{spoiling.case}"
)
def test_a_spoiled_result_is_found(
    golden: Path,
    cleaned: Path,
    tmp_path: Path,
    spoiling: Spoiling,
    seed: int,
    sound: set[tuple[str, int]],
) -> None:
    case = golden_sets.load_case(cleaned if "/" in spoiling.case else golden, spoiling.case)
    pair = stage_pair(case, case.rounds[spoiling.round], tmp_path)
    if (spoiling.case, spoiling.round) not in sound:
        assert pair.verdict().is_sound
        sound.add((spoiling.case, spoiling.round))
    spoiling.spoil(Spoiler(pair=pair, random=random.Random(seed)))
    verdict = pair.verdict()
    assert spoiling.found & verdict.found.keys(), (
        verdict.found,
        [str(problem) for problem in verdict.problems],
    )


def test_the_loss_of_the_last_batch_names_no_producer(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    lose_an_empty_segments_neighbour(Spoiler(pair=pair, random=random.Random(1)))
    (problem,) = [problem for problem in pair.verdict().problems if problem.kind == "last_batch_lost"]
    assert problem.offset is not None and "producer" not in problem.detail


def test_a_log_that_is_gone_and_one_that_is_new_are_found(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    (pair.before / "more-0").mkdir()
    shutil.copy(pair.original / f"{0:020}.log", pair.before / "more-0")
    (pair.after / "most-0").mkdir()
    report = verify([pair.before], [pair.after], check_in_process, lambda _: pair.settings)
    kinds = {f"{log.topic}-{log.partition}": set(log.found) for log in report.logs}
    assert kinds == {"basic-0": set(), "more-0": {"log_missing"}, "most-0": {"log_unknown"}}


def test_damage_in_before_is_the_only_problem(golden: Path, tmp_path: Path) -> None:
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    path = pair.original / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert set(pair.verdict().found) == {"before_damaged"}


@pytest.mark.parametrize(
    ("name", "kind"), [("leader-epoch-checkpoint", "leader_epochs"), ("partition.metadata", "topic_id")]
)
def test_other_files_of_after_that_are_damaged_are_the_only_problem(
    golden: Path, tmp_path: Path, name: str, kind: str
) -> None:
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    (pair.partition / name).write_bytes(b"\xff garbage")
    verdict = pair.verdict()
    assert set(verdict.found) == {kind}
    assert verdict.records_after and verdict.problems[0].path == str(pair.partition / name)


@pytest.mark.parametrize(
    ("side", "ending", "kind"),
    [
        ("after", ".log", "unreadable"),
        ("after", ".index", "index"),
        ("after", ".timeindex", "time_index"),
        ("after", ".snapshot", "snapshot"),
        ("after", ".txnindex", "aborted_entry"),
        ("before", ".log", "before_damaged"),
        ("before", ".snapshot", "before_damaged"),
        ("before", ".txnindex", "before_damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem_of_its_log_and_side(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, ending: str, kind: str
) -> None:
    case = golden_sets.load_case(golden, "txn")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    real, folder = files.open_regular, str(getattr(pair, side))

    def fail(path: files.PathLike, *more: Any, **named: Any) -> int:
        if str(path).startswith(folder) and str(path).endswith(ending):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *more, **named)

    monkeypatch.setattr(files, "open_regular", fail)
    verdict = pair.verdict()
    assert set(verdict.found) == {kind}
    for problem in verdict.problems:
        assert problem.detail == "Input/output error" and str(problem.path).endswith(ending)


def test_a_read_that_fails_names_the_segment(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system's error has no path: the file is open."""
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    real, bad = files.Reader.read_into, str(pair.partition / f"{0:020}.log")

    def fail(reader: files.Reader, buffer: npt.NDArray[np.uint8], position: int) -> int:
        if reader.path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return real(reader, buffer, position)

    monkeypatch.setattr(files.Reader, "read_into", fail)
    (problem,) = pair.verdict().problems
    assert (problem.kind, problem.path) == ("unreadable", bad)


def test_a_segment_of_after_that_changes_during_the_check_is_a_problem_of_after(
    golden: Path, tmp_path: Path
) -> None:
    case = golden_sets.load_case(golden, "basic")
    pair = stage_pair(case, case.rounds[0], tmp_path)

    def changed(pairs: Sequence[LogPair]) -> CheckedLogs:
        os.utime(pairs[0].after[0].path, (1, 1))
        return check_in_process(pairs)

    assert set(pair.verdict(changed).found) == {"unreadable"}


@pytest.mark.parametrize(
    "change", [("first_offset", -7), ("first_offset", 2), ("last_offset", 1), ("last_offset", -1)]
)
def test_markers_that_contradict_the_transaction_index_of_before_are_damage(
    golden: Path, tmp_path: Path, change: tuple[str, int]
) -> None:
    """Then it is not known what was aborted, so nothing of the cleaning can be checked."""
    case = golden_sets.load_case(golden, "txn")
    pair = stage_pair(case, case.rounds[0], tmp_path)
    path = pair.original / f"{154:020}.txnindex"
    entries = np.fromfile(path, TRANSACTION_ENTRY)
    entries[change[0]][1] += change[1]
    path.write_bytes(entries.tobytes())
    assert set(pair.verdict().found) == {"before_damaged"}


def test_there_are_twenty_ways_to_spoil_and_nearly_every_kind_of_problem_is_found() -> None:
    assert len({spoiling.spoil for spoiling in SPOILINGS}) >= 20
    met = {kind for spoiling in SPOILINGS for kind in spoiling.found}
    assert met <= PROBLEM_KINDS.keys()
    apart = {"unchecked", "unsafe_file", "log_missing", "log_unknown", "before_damaged", "not_converted"}
    apart |= {"lost_unkeyed"}
    assert PROBLEM_KINDS.keys() - met <= apart


@pytest.mark.parametrize("content", ["{}", '{"more": ' + "[" * 100_000], ids=["empty", "deep"])
def test_a_forged_list_of_kept_originals_is_refused(content: str, tmp_path: Path) -> None:
    after, run = tmp_path / "logs" / "users-0", tmp_path / "keep" / "run"
    for folder in (after, run / "users-0"):
        folder.mkdir(parents=True)
        (folder / "00000000000000000000.log").touch()
    (run / "users-0" / "undo.json").write_text(content)
    with pytest.raises(CorruptFileError, match="is not a list of kept originals"):
        open_sides([run], [after.parent])
