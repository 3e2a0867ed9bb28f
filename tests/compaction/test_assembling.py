"""Groups that are cut into ranges, and the join of their pieces: what comes out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.config import INT_MAX
from siltstone.base.errors import CheckFailedError
from siltstone.compaction import work as splits
from siltstone.compaction.assembling import assemble_pieces, remove_pieces
from siltstone.compaction.engine import warm_up_work, with_ranges
from siltstone.compaction.staging import GroupReport, PieceReport, refuse_over_2_gib, rewrite_range
from siltstone.compaction.work import Group, GroupRange, LogWork, cut_groups, whole_groups
from siltstone.log.segments import list_segments
from tests.support.cleaning import logs
from tests.support.cleaning.lives import cut_at_every_batch
from tests.support.errors import raises_error

BATCHES, RECORDS = 12, 5
END = BATCHES * RECORDS
SOME = np.arange(0, END, 3, dtype=np.uint32)
ALL = np.arange(END, dtype=np.uint32)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogWork:
    """One group of two segments with six batches each, which is cut at every batch."""
    cut_at_every_batch(monkeypatch)
    batches = [
        logs.batch([logs.Rec(offset=first + i, key=b"key-%d" % (first + i)) for i in range(RECORDS)], codec=3)
        for first in range(0, END, RECORDS)
    ]
    middle = END // 2
    partition = logs.write_log(
        tmp_path, {0: batches[: BATCHES // 2], middle: batches[BATCHES // 2 :]}, interval=0
    )
    uncut = warm_up_work(partition, "staged")
    uncut = replace(uncut, staging=str(partition / ".siltstone" / "run"), end=END, has_space_for_pieces=True)
    files.make_directory(uncut.staging or "", parents=True)
    group = Group(index=0, first_segment=0, end_segment=2, base_offset=0, end_offset=END)
    rules = replace(uncut.rules, last_offset=END - 1)
    uncut = replace(uncut, segments=tuple(list_segments(partition)), groups=(group,), rules=rules)
    return with_ranges(uncut, [uncut.groups], 2)


def pieces(work: LogWork, retained: np.ndarray, attempt: str = "a") -> list[PieceReport]:
    """Every range, rewritten."""
    reports = []
    for part in work.ranges:
        in_range = (retained >= part.base_offset) & (retained < part.end_offset)
        report = rewrite_range(work, part, retained[in_range] - np.uint32(part.base_offset), attempt)
        assert report.failure is None and not report.groups
        reports += report.pieces
    return reports


def contents(report: GroupReport) -> dict[str, bytes]:
    assert report.failure is None, report.failure
    return {kind: Path(path).read_bytes() for kind, path in report.staged.items()}


def names(work: LogWork) -> set[str]:
    assert work.staging is not None
    return set(files.list_files(work.staging))


@pytest.mark.parametrize("retained", [SOME, ALL, ALL[:0], ALL[-1:], ALL[7:33]])
def test_the_joined_segment_is_the_one_that_one_task_writes(work: LogWork, retained: np.ndarray) -> None:
    assert len(work.ranges) == BATCHES
    (whole,) = whole_groups(work.segments, work.groups[:1])
    (expected,) = rewrite_range(work, whole, retained, "whole").groups
    joined = assemble_pieces(work, work.groups[0], list(reversed(pieces(work, retained))), "joined")
    assert contents(joined) == contents(expected)
    same = {"staged": {}, "identity": []}
    assert replace(joined, **same) == replace(expected, **same)
    assert joined.identity == list(files.stat(joined.staged["log"]).identity)


def test_pieces_of_repeated_tasks_are_removed_with_the_others(work: LogWork) -> None:
    pieces(work, SOME, "late")
    joined = assemble_pieces(work, work.groups[0], pieces(work, SOME), "joined")
    assert sum(name.endswith(".piece") for name in names(work)) == 2 * BATCHES
    remove_pieces(work)
    assert names(work) == {Path(path).name for path in joined.staged.values()}


def test_a_join_may_be_repeated(work: LogWork) -> None:
    reports = pieces(work, SOME)
    first, second = (
        assemble_pieces(work, work.groups[0], reports, attempt) for attempt in ("first", "second")
    )
    assert contents(first) == contents(second)
    assert not set(first.staged.values()) & set(second.staged.values())


def test_an_unchanged_piece_is_a_part_of_the_old_log(work: LogWork) -> None:
    reports = pieces(work, ALL[: END // 2])
    sources = [segment.path for segment in work.segments]
    assert [piece.path for piece in reports[: BATCHES // 2]] == [sources[0]] * (BATCHES // 2)
    assert not {piece.path for piece in reports[BATCHES // 2 :]} & set(sources)


def test_an_unchanged_segment_becomes_a_link(work: LogWork) -> None:
    group = replace(work.groups[0], end_segment=1, end_offset=END // 2)
    ranges = tuple(part for part in work.ranges if part.end_offset <= END // 2)
    work = replace(work, groups=(group,), cut_ranges=ranges)
    joined = assemble_pieces(work, group, pieces(work, ALL), "joined")
    assert joined.failure is None
    assert files.stat(joined.staged["log"]).inode == work.segments[0].inode
    elsewhere = Path(work.staging or "").parents[2] / "copy" / "topic-0" / ".siltstone" / "run"
    files.make_directory(elsewhere, parents=True)
    copied = replace(work, staging=str(elsewhere))
    joined = assemble_pieces(copied, group, pieces(copied, ALL), "joined")
    assert contents(joined)["log"] == Path(work.segments[0].path).read_bytes()
    assert files.stat(joined.staged["log"]).inode != work.segments[0].inode


def flip(reports: list[PieceReport]) -> None:
    path = Path(reports[4].path or "")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(reports: list[PieceReport]) -> None:
    path = Path(reports[4].path or "")
    path.write_bytes(path.read_bytes()[:-1])


def remove(reports: list[PieceReport]) -> None:
    Path(reports[4].path or "").unlink()


def exchange(reports: list[PieceReport]) -> None:
    reports[4].path, reports[5].path = reports[5].path, reports[4].path


def lose(reports: list[PieceReport]) -> None:
    reports.pop(4)


def send_twice(reports: list[PieceReport]) -> None:
    reports.append(reports[4])


def make_too_large(reports: list[PieceReport]) -> None:
    reports[4].group.size = INT_MAX


DAMAGE = {
    flip: "not the piece that was verified",
    truncate: "shorter than when it was verified",
    remove: "No such file",
    exchange: "",
    lose: "one piece for each range",
    send_twice: "one piece for each range",
    make_too_large: "2 GiB",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_pieces_that_differ_from_those_verified_fail_the_group(
    work: LogWork, damage: Callable[[list[PieceReport]], None]
) -> None:
    reports = pieces(work, SOME)
    damage(reports)
    before = names(work)
    joined = assemble_pieces(work, work.groups[0], reports, "joined")
    assert joined.failure is not None and DAMAGE[damage] in joined.failure.reason, joined.failure
    assert joined.staged == {} and names(work) == before


def test_a_new_segment_has_up_to_the_largest_position_of_an_index() -> None:
    """An index has positions of 32 bits with a sign."""
    refuse_over_2_gib((1 << 31) - 1, "/topic-0/0.log")
    with raises_error(CheckFailedError, path="/topic-0/0.log", advice="segment.bytes"):
        refuse_over_2_gib(1 << 31, "/topic-0/0.log")


def test_an_old_segment_that_changes_before_the_join_fails_the_group(work: LogWork) -> None:
    reports = pieces(work, ALL[: END // 2])
    with Path(work.segments[0].path).open("ab") as file:
        file.write(b"more")
    joined = assemble_pieces(work, work.groups[0], reports, "joined")
    assert joined.failure is not None and "has changed" in joined.failure.reason
    assert joined.staged == {}


def test_a_range_that_fails_fails_its_group(work: LogWork) -> None:
    part = work.ranges[3]
    beyond = np.array([part.end_offset - part.base_offset + 1], np.uint32)
    failed = rewrite_range(work, part, beyond, "b")
    assert failed.failure is not None and failed.pieces[0].group.staged == {}
    reports = pieces(work, SOME)
    reports[3] = failed.pieces[0]
    joined = assemble_pieces(work, work.groups[0], reports, "joined")
    assert joined.failure == failed.failure and joined.staged == {}


def test_tasks_are_numbered_from_0_over_all_waves(work: LogWork) -> None:
    assert sorted(part.task for part in work.ranges) == list(range(len(work.ranges)))


def tasks_of(ranges: list[GroupRange]) -> list[tuple[int, int]]:
    return [(part.group, part.task) for part in ranges]


def test_groups_are_cut_where_workers_would_wait(work: LogWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    segments, group = work.segments, work.groups[0]
    monkeypatch.setattr(splits, "MIN_SPLIT_BYTES", 1)
    monkeypatch.setattr(splits, "_NEAR_BOUNDARY_DIVISOR", 1 << 30)
    size = sum(segment.size for segment in segments)
    monkeypatch.setattr(splits, "MIN_CUT_BYTES", size + 1)
    assert cut_groups(segments, [group], 4) == whole_groups(segments, [group])
    monkeypatch.setattr(splits, "MIN_CUT_BYTES", size)
    assert tasks_of(cut_groups(segments, [group], 1)) == [(0, 0)]
    assert tasks_of(cut_groups(segments, [group], 4, 5)) == [(0, task) for task in range(12, 4, -1)]
    halves = [
        replace(group, end_segment=1, end_offset=END // 2),
        replace(group, index=1, first_segment=1, base_offset=END // 2),
    ]
    monkeypatch.setattr(splits, "MIN_CUT_BYTES", 1)
    assert tasks_of(cut_groups(segments, halves, 3)) == [(0, 0), (1, 1)]
    cut = cut_groups(segments, halves, 5)
    assert {part.group for part in cut} == {0, 1} and {part.task for part in cut} == set(range(9))
    assert [part.base_offset for part in cut] == sorted({part.base_offset for part in cut})


def test_only_groups_of_128_mib_are_worth_the_pieces(work: LogWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    halves, group = [replace(segment, size=64 << 20) for segment in work.segments], work.groups[0]
    assert len(cut_groups(halves, [group], 4)) == 2, "no index names a cut, so they are cut between segments"
    less = [halves[0], replace(halves[1], size=(64 << 20) - 1)]
    assert cut_groups(less, [group], 4) == whole_groups(less, [group])


def test_ranges_only_where_the_log_allows_it(work: LogWork) -> None:
    whole = replace(work, cut_ranges=())
    dry = replace(whole, staging=None, has_space_for_pieces=False)
    assert (
        with_ranges(whole, [whole.groups], 4).cut_ranges == with_ranges(dry, [dry.groups], 4).cut_ranges != ()
    )
    for change in ({"has_space_for_pieces": False}, {"may_cut_segments": False}, {"has_message_sets": True}):
        assert not with_ranges(replace(whole, **change), [whole.groups], 4).cut_ranges
