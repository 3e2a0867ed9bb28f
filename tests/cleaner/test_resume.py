"""An interrupted run in waves is gone on with, if and only if the log and what is asked for are the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.base.errors import EngineError
from siltstone.compaction.inplace.cleaner import RunLimits
from siltstone.compaction.inplace.destination import CleanedCopy, InPlace, Nowhere
from siltstone.compaction.inplace.originals import Originals
from siltstone.compaction.report import CLEANED, FAILED, NOTHING_TO_DO, SKIPPED, LogResult
from siltstone.log.directory import LogDirectory
from tests.cleaner import logs, waves
from tests.cleaner.logs import DAY, NOW, one
from tests.cleaner.waves import CONFIG, GROUPS, STAGING, Counting, interrupt, outcome, resumed, run
from tests.golden_sets import write_checkpoint


@pytest.fixture
def log(tmp_path: Path) -> Path:
    waves.write(tmp_path / "log")
    return tmp_path / "log"


def facts(result: LogResult) -> LogResult:
    """A result but for when and how it came about."""
    return replace(result, directory="", seconds=0.0, notes=[], settings={})


def uninterrupted(tmp_path: Path, **given: object) -> tuple[LogResult, object]:
    """What one run over the whole log says and leaves."""
    waves.write(tmp_path / "whole")
    result = run(tmp_path / "whole", **given)  # type: ignore[arg-type]
    assert result.status == CLEANED and result.notes == []
    return facts(result), outcome(tmp_path / "whole")


@pytest.mark.parametrize("after", range(GROUPS + 1))
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_after_every_wave(tmp_path: Path, log: Path, after: int, stop: BaseException) -> None:
    wanted = uninterrupted(tmp_path)
    if after == GROUPS:
        after = GROUPS - 1
        interrupt(log, GROUPS - 2, stop)
        first = Counting(1, stop)
        with pytest.raises(type(stop)):
            run(log, engine=first)
        assert first.gathered == 0
    else:
        interrupt(log, after, stop)
    engine = Counting()
    result = run(log, engine=engine, name="3-last", now_ms=NOW + DAY // 2)
    assert resumed(result, after)
    assert (engine.gathered, engine.rewritten) == (0, GROUPS - after)
    assert (facts(result), outcome(log)) == wanted


def test_what_an_interrupt_leaves(log: Path) -> None:
    """The journal and the winners, and the log as a reader has to find it."""
    interrupt(log, 2)
    left = sorted(each.name for each in waves.journal_of(log).parent.iterdir())
    assert left == [*(each.name for each in waves.winners_of(log)), waves.journal_of(log).name]
    assert [int(each.name[:20]) for each in waves.winners_of(log)] == [0, 5, 8, 11]
    assert [each.offset for each in logs.records_in(logs.logs_of(log / "topic-0")[0])] == [2]


def test_groups_that_were_swapped_after_the_journal_was_written(log: Path, tmp_path: Path) -> None:
    """A crash between the last swap and the checkpoint: nothing is left to do but to move it."""
    wanted = uninterrupted(tmp_path)
    checkpoint = InPlace.finish

    def crash(self: InPlace, planned: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InPlace, "finish", crash)
        with pytest.raises(KeyboardInterrupt):
            run(log, name="1-first")
    assert InPlace.finish is checkpoint

    def no_engine() -> Counting:
        raise AssertionError("an engine was started")

    result = logs.run(log, config=CONFIG, engine=no_engine, destination=InPlace("2"), limits=waves.WAVES)
    assert resumed(result, GROUPS)
    assert (facts(result), outcome(log)) == wanted


def test_a_lost_engine_is_an_interruption(log: Path, tmp_path: Path) -> None:
    wanted = uninterrupted(tmp_path)
    lost = EngineError("the Spark job failed")
    lost.__cause__ = OSError()
    result = run(log, engine=Counting(3, lost), name="1-first")
    assert result.status == FAILED and result.bytes_after < result.bytes_before
    result = run(log)
    assert resumed(result, 3) and (facts(result), outcome(log)) == wanted


def test_stop_after(log: Path, tmp_path: Path) -> None:
    """The time is up at once, then while the first group is rewritten, then never."""
    wanted = uninterrupted(tmp_path)
    interrupt(log, 0)
    before = logs.tree(log)
    stopped = replace(waves.WAVES, stop_after_seconds=0.0)
    result = logs.run(log, config=CONFIG, destination=InPlace("2"), limits=stopped)
    assert result.status == SKIPPED and "--stop-after" in result.reason
    assert logs.tree(log) == before
    result = run(log)
    assert resumed(result, 0) and (facts(result), outcome(log)) == wanted


def test_what_a_run_fails_for_clears_everything_away(log: Path) -> None:
    interrupt(log, 2)
    last = max(logs.logs_of(log / "topic-0"))
    path = log / "topic-0" / f"{8:020d}.log"
    facts_before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts_before.st_mtime_ns, facts_before.st_mtime_ns))
    result = run(log)
    assert resumed(result, 2) and "checksum does not match" in result.reason
    assert not (log / STAGING).exists()
    assert last in logs.logs_of(log / "topic-0")


def test_room_is_asked_for_what_is_left(log: Path, tmp_path: Path) -> None:
    """Too little room: nothing is touched, and what can be gone on with stays."""
    interrupt(log, 3)
    before = logs.tree(log)
    little = replace(waves.WAVES, max_extra_bytes=1000)
    result = logs.run(log, config=CONFIG, destination=InPlace("2"), limits=little)
    assert result.status == FAILED and "--max-extra-bytes" in result.reason
    assert logs.tree(log) == before


def test_a_log_that_is_small_enough_has_no_journal(log: Path) -> None:
    engine = Counting()
    result = logs.run(log, config=CONFIG, engine=lambda: engine, limits=RunLimits(whole_log_bytes=0))
    assert result.status == CLEANED and (engine.gathered, engine.rewritten) == (0, 0)


def test_waves_hold_a_group_for_each_worker(log: Path) -> None:
    class Two(Counting):
        workers = 2
        sizes: list[int]

    engine = Two()
    engine.sizes = []
    before = engine.rewrite
    engine.rewrite = lambda work, groups, winners: (  # type: ignore[method-assign]
        engine.sizes.append(len(groups)),
        before(work, groups, winners),
    )[1]
    assert run(log, engine=engine).status == CLEANED
    assert engine.sizes == [2, 2, 1]


Change = Callable[[Path], dict[str, object] | None]


def _touch(path: Path) -> None:
    os.utime(path)


def _append(path: Path, offset: int) -> None:
    with path.open("ab") as file:
        file.write(one(offset, "new"))


def _replace(path: Path) -> None:
    """The same bytes and time, another file."""
    facts = path.stat()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(path.with_suffix(".old").read_bytes())
    os.utime(path, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
    path.with_suffix(".old").unlink()


def _partition(path: Path, base: int) -> Path:
    return path / "topic-0" / f"{base:020d}.log"


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _roll(path: Path) -> None:
    _partition(path, 15).touch()


def _checkpoint(name: str, offset: int) -> Callable[[Path], None]:
    return lambda path: write_checkpoint(path / f"{name}-offset-checkpoint", {("topic", 0): offset})


CHANGES: dict[str, tuple[Change, str]] = {
    "a setting": (lambda path: {"config": {"delete.retention.ms": 2 * DAY}}, "delete.retention.ms was"),
    "another setting": (lambda path: {"config": {"segment.bytes": 2}}, "segment.bytes was 1 and is 2"),
    "a flag": (lambda path: {"drop_keyless": False}, "--drop-keyless was True and is False"),
    "an earlier clock": (lambda path: {"now_ms": NOW - 1}, "its clock is ahead"),
    "long ago": (lambda path: {"now_ms": NOW + DAY + 1}, "longer ago than delete.retention.ms"),
    "the checkpoint": (_checkpoint("cleaner", 8), "dirty from offset 8"),
    "the log start": (_checkpoint("log-start", 1), "dirty from offset 1"),
    "the high watermark": (_checkpoint("replication", 12), "below offset 11"),
    "the lag": (lambda path: {"config": {"min.compaction.lag.ms": 10**12}}, "may be cleaned now"),
    "a segment to come": (lambda path: _touch(_partition(path, 8)), "the log was changed"),
    "a file in its place": (lambda path: _replace(_partition(path, 8)), "the log was changed"),
    "a segment that was swapped in": (lambda path: _touch(_partition(path, 0)), "the log was changed"),
    "its file": (lambda path: _replace(_partition(path, 0)), "the log was changed"),
    "a first segment that went": (lambda path: _partition(path, 0).unlink(), ""),
    "a segment that went": (lambda path: _partition(path, 8).unlink(), "the log was changed"),
    "the active segment": (lambda path: _append(_partition(path, 14), 15), "the log was changed"),
    "a new active segment": (_roll, "the log was changed"),
    "the journal": (lambda path: _damage(waves.journal_of(path)), "its journal is damaged"),
    "no journal": (lambda path: waves.journal_of(path).unlink(), ""),
    "winners": (lambda path: _damage(waves.winners_of(path)[-1]), "winners is damaged"),
    "winners that went": (lambda path: waves.winners_of(path)[-1].unlink(), "winners is damaged"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_run_begins_anew(log: Path, tmp_path: Path, name: str) -> None:
    """It ends as if there had been no journal, and says why."""
    change, reason = CHANGES[name]
    interrupt(log, 2)
    given = change(log) or {}
    bare = tmp_path / "bare" / "log"
    bare.parent.mkdir()
    shutil.copytree(log, bare)
    shutil.rmtree(bare / STAGING)
    engine = Counting()
    wanted, result = run(bare, **given), run(log, engine=engine, **given)  # type: ignore[arg-type]
    assert result.status in (CLEANED, wanted.status), result.reason
    assert (facts(result), outcome(log)) == (facts(wanted), outcome(bare))
    assert not any("resumed" in note for note in result.notes)
    if reason:
        assert any("did not go on with run 1-first" in each and reason in each for each in result.notes)
    assert engine.gathered == (result.status == CLEANED)


def test_winners_of_groups_that_are_done_may_be_anything(log: Path) -> None:
    interrupt(log, 2)
    _damage(waves.winners_of(log)[0])
    assert resumed(run(log), 2)


def test_a_run_that_ended_but_was_not_cleared_away(log: Path) -> None:
    """The checkpoint says that it is done: what it staged goes, whatever the journal says."""
    interrupt(log, 4)
    kept = log.parent / "kept"
    shutil.copytree(log / STAGING, kept)
    assert run(log).status == CLEANED
    shutil.copytree(kept, log / STAGING)
    after = logs.logs_of(log / "topic-0")
    result = run(log, name="3")
    assert result.status == NOTHING_TO_DO
    assert any("did not go on with run 1-first" in note for note in result.notes)
    assert logs.logs_of(log / "topic-0") == after and not (log / STAGING).exists()


def test_the_dirty_ratio_is_not_asked_again(log: Path) -> None:
    interrupt(log, 4)
    result = run(log, config={"min.cleanable.dirty.ratio": 0.99}, force=False)
    assert resumed(result, 4) and result.status == CLEANED


def test_a_log_that_is_left_alone_keeps_its_journal(log: Path) -> None:
    """Without a high watermark nothing is decided; the next run, which has one, goes on."""
    interrupt(log, 2)
    entry = (log / "replication-offset-checkpoint").read_text()
    (log / "replication-offset-checkpoint").unlink()
    before = logs.tree(log)
    assert run(log).status == SKIPPED
    assert logs.tree(log) == before
    (log / "replication-offset-checkpoint").write_text(entry)
    assert resumed(run(log), 2)


@pytest.mark.parametrize("way", ["dry run", "copy"])
def test_other_destinations_neither_go_on_nor_touch_anything(log: Path, tmp_path: Path, way: str) -> None:
    interrupt(log, 2)
    before = logs.tree(log)
    if way == "dry run":
        result = logs.run(log, config=CONFIG, destination=Nowhere(), limits=waves.WAVES)
    else:
        with LogDirectory.open(log, lock=False) as source:
            destination = CleanedCopy("2", source, tmp_path / "copy")
            result = logs.run(log, config=CONFIG, destination=destination, limits=waves.WAVES)
    assert result.status == CLEANED and result.notes == []
    assert {name: data for name, data in logs.tree(log).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def test_with_kept_originals_a_log_is_cleaned_anew(log: Path, tmp_path: Path) -> None:
    interrupt(log, 2)
    (tmp_path / "keep").mkdir()
    engine = Counting()
    destination = InPlace("2", Originals(tmp_path / "keep" / "2"))
    result = logs.run(log, config=CONFIG, engine=lambda: engine, destination=destination, limits=waves.WAVES)
    assert result.status == CLEANED and engine.gathered == 0
    assert any("--keep-originals" in note for note in result.notes)
    assert not (log / STAGING).exists()


def test_staged_files_and_other_runs_go(log: Path) -> None:
    interrupt(log, 2)
    folder = waves.journal_of(log).parent
    for stray in (folder / f"{5:020d}.dead.log", folder / "journal.json.tmp", folder / "9.winners"):
        stray.write_bytes(b"half a file")
    other = log / STAGING / "0-before"
    (other / "deep").mkdir(parents=True)
    (log / STAGING / "a-file").touch()
    with pytest.raises(KeyboardInterrupt):
        run(log, engine=Counting(0, KeyboardInterrupt()))
    assert sorted(each.name for each in (log / STAGING).iterdir()) == ["1-first"]
    assert sorted(folder.iterdir()) == [*waves.winners_of(log), waves.journal_of(log)]
    assert len(waves.winners_of(log)) == 4
    assert resumed(run(log), 2)
