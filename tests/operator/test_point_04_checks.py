"""4. Every group is verified before its swap; if a check fails, nothing of the log is swapped."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from siltstone.base import files
from siltstone.commands import clean as app
from siltstone.compaction import engine as engine_module
from siltstone.compaction.engine import InProcessEngine
from siltstone.compaction.rewrite import Offsets
from siltstone.compaction.staging import GroupReport, LogReport, RetainedFile
from siltstone.compaction.work import Extracted, GroupRange, LogWork
from tests.support.operator.staged import SMALL_WAVES, Staged, listing, no_leftovers, stage
from tests.support.thoroughness import in_turn

Change = Callable[[LogReport], None]


@pytest.fixture
def staged(golden: Path, tmp_path: Path) -> Staged:
    return stage(golden, "basic_zipf_ts", tmp_path / "data")


class Tampering(InProcessEngine):
    """What the engine hands back is changed on its way."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change

    def clean_whole(self, works: Sequence[LogWork]) -> Iterator[LogReport]:
        for report in super().clean_whole(works):
            self._change(report)
            yield report

    def rewrite(self, work: LogWork, retained: Sequence[RetainedFile]) -> list[GroupReport]:
        wave = LogReport(name=work.name, extracted=Extracted(), groups=super().rewrite(work, retained))
        self._change(wave)
        return wave.groups


def nothing_swapped(staged: Staged, engine: InProcessEngine, *words: str) -> None:
    """The log is reported as failed, in one line with these words, and is byte for byte what it was."""
    before = listing(staged.directory)
    (result,) = app.clean(staged.request, engine=lambda request, progress: engine).results
    assert (result.status, "\n" in result.reason) == ("failed", False)
    for word in words:
        assert word in result.reason
    assert (result.bytes_after, result.segments_after) == (result.bytes_before, result.segments_before)
    assert listing(staged.directory) == before
    no_leftovers(staged.directory)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, position: int) -> None:
    path.write_bytes(path.read_bytes()[:position])


def swap_bytes_of_two_batches(path: Path, position: int) -> None:
    data = path.read_bytes()
    size = 12 + int.from_bytes(data[8:12], "big")
    path.write_bytes(data[size:] + data[:size])


DAMAGES = [(flip, 0), (flip, 5), (flip, -1), (cut, -1), (cut, 0)]


@pytest.mark.parametrize(
    ("kind", "damage", "position", "group"),
    # In every run each damage of each kind of file, in one group or the other.
    in_turn(
        [
            (kind, *damage_and_position)
            for kind in ("log", "index", "timeindex")
            for damage_and_position in DAMAGES
        ],
        (3, 5),
    ),
)
def test_a_staged_file_that_is_damaged_is_not_swapped_in(
    staged: Staged, kind: str, damage: Callable[[Path, int], None], position: int, group: int
) -> None:
    """The damage is done before the last file of the group is synced: the read-back comes right after it."""
    synced: list[str] = []
    hit: list[Path] = []

    def watch(operation: files.Operation) -> None:
        verb, path, _ = operation
        if verb == "fsync" and ".siltstone" in path and path.endswith(".timeindex"):
            synced.append(path)
            target = Path(path).with_suffix(f".{kind}")
            if len(synced) == group + 1 and target.stat().st_size:
                hit.append(target)
                damage(target, position)

    before = listing(staged.directory)
    with files.observe(watch):
        (result,) = app.clean(staged.request, engine=lambda request, progress: InProcessEngine()).results
    assert hit
    assert result.status in ("failed", "uncleanable")
    assert str(hit[0]) in result.reason or hit[0].name in result.reason
    assert listing(staged.directory) == before
    no_leftovers(staged.directory)


def test_batches_in_another_order_are_not_swapped_in(staged: Staged) -> None:
    def watch(operation: files.Operation) -> None:
        verb, path, _ = operation
        if verb == "fsync" and ".siltstone" in path and path.endswith(".timeindex"):
            swap_bytes_of_two_batches(Path(path).with_suffix(".log"), 0)

    before = listing(staged.directory)
    with files.observe(watch):
        (result,) = app.clean(staged.request, engine=lambda request, progress: InProcessEngine()).results
    assert result.status in ("failed", "uncleanable") and "out of order" in result.reason
    assert listing(staged.directory) == before


def change_retained(
    monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[GroupRange, Offsets], Offsets]
) -> None:
    """One group's task gets other retained offsets than were merged."""
    rewrite = engine_module.rewrite_range

    def changed(work: LogWork, group: GroupRange, retained: Offsets, *more: Any, **named: Any) -> LogReport:
        offsets = change(group, retained) if group.group == number else retained
        return rewrite(work, group, offsets, *more, **named)

    monkeypatch.setattr(engine_module, "rewrite_range", changed)


def lose_a_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """One offset of one group's retained offsets never reaches the rewriting task."""
    change_retained(monkeypatch, 2, lambda group, retained: retained[1:])


def lose_a_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    """All retained offsets of one group never reach it."""
    change_retained(monkeypatch, 2, lambda group, retained: retained[:0])


@pytest.mark.parametrize("loss", [lose_a_winner, lose_a_blob])
def test_retained_offsets_that_get_lost_are_noticed(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, loss: Callable[[pytest.MonkeyPatch], None]
) -> None:
    loss(monkeypatch)
    nothing_swapped(staged, InProcessEngine(), "offsets of segment group 2", "the group was not swapped")


def test_a_retained_offset_without_a_record_is_noticed(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inventing(group: GroupRange, retained: Offsets) -> Offsets:
        odd = retained.copy()
        odd[0] = group.end_offset - group.base_offset + 5
        return odd

    change_retained(monkeypatch, 0, inventing)
    nothing_swapped(staged, InProcessEngine())


def one_winner_more(report: LogReport) -> None:
    report.retained_counts[0] += 1


def one_record_more(report: LogReport) -> None:
    report.extracted.records += 1


def one_record_less_in_a_group(report: LogReport) -> None:
    report.groups[1].counts.records_read -= 1


def a_group_is_missing(report: LogReport) -> None:
    report.groups.pop(3)


def a_group_twice(report: LogReport) -> None:
    report.groups.insert(0, dataclasses.replace(report.groups[0]))


@pytest.mark.parametrize(
    "change",
    [one_winner_more, one_record_more, one_record_less_in_a_group, a_group_is_missing, a_group_twice],
)
def test_a_wrong_count_is_noticed(staged: Staged, change: Change) -> None:
    nothing_swapped(staged, Tampering(change), "basic_zipf_ts-0")


def test_a_failed_check_in_a_later_wave_leaves_the_log_whole(staged: Staged, tmp_path: Path) -> None:
    """What was swapped was checked; the checkpoint does not move, so that the next run does it all."""
    waves = 0

    def change(report: LogReport) -> None:
        nonlocal waves
        waves += 1
        if waves == 3:
            report.groups[0].retained_count += 1

    (result,) = app.clean(
        staged.asking(max_extra_bytes=SMALL_WAVES), engine=lambda request, progress: Tampering(change)
    ).results
    assert (result.status, waves) == ("failed", 3)
    assert staged.checkpoint() is None
    no_leftovers(staged.directory)
    assert staged.clean_one().status == "cleaned"


def test_a_staged_file_that_grew_after_its_check_is_not_swapped_in(staged: Staged) -> None:
    def change(report: LogReport) -> None:
        with Path(report.groups[0].staged["log"]).open("ab") as file:
            file.write(b"more")

    nothing_swapped(staged, Tampering(change), "bytes, but its task reported")
