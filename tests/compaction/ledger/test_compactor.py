"""What a compaction refuses, leaves alone and reads, and what it does when files are not as they were."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CheckFailedError,
    CompactionFailedError,
    LedgerError,
    SiltstoneError,
    SourceChangedError,
    UsageError,
)
from siltstone.compaction.ledger import work as sources_module
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.ledger.work import CompactionReport, CompactionSettings, CompactionWork
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import COMPACTED
from siltstone.log.partition import PartitionLog
from tests.support.cleaning.logs import NOW, WHERE, Rec, batch, write_log
from tests.support.errors import raises_error
from tests.support.ledger.driving import How, compact, compact_and_check, in_ledger, opened
from tests.support.ledger.oracle import Model
from tests.support.log.batches import of_records
from tests.support.log.driving import open_log
from tests.support.records import twin
from tests.support.thoroughness import share


def a_log(folder: Path, **config: object) -> PartitionLog:
    directory = folder / str(WHERE)
    directory.mkdir(parents=True, exist_ok=True)
    return open_log(directory, LogConfig(**config), ManualClock(NOW)).log  # type: ignore[arg-type]


def put(log: PartitionLog, *pairs: tuple[str | None, str | None], time: int = NOW, codec: int = 0) -> None:
    records = [
        Rec(
            offset=number,
            key=None if key is None else key.encode(),
            value=None if value is None else value.encode(),
            timestamp=time,
        )
        for number, (key, value) in enumerate(pairs)
    ]
    log.append(of_records(records, codec=codec))


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted((directory / COMPACTED).rglob("*"))
        if path.is_file()
    }


def test_nothing_new_is_a_success_at_once(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    first = compact(log, Model())
    assert (first.changed, first.ledger_id, first.entries) == (False, None, 0)
    put(log, ("a", "1"))
    compacted = compact(log, Model())
    before = tree(log.directory)
    again = compact(log, Model())
    assert not again.changed and again.ledger_id == compacted.ledger_id == 0
    assert (again.horizon, again.entries, again.size) == (
        compacted.horizon,
        compacted.entries,
        compacted.size,
    )
    assert tree(log.directory) == before


def test_originals_are_never_touched(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    for number in range(5):
        put(log, (f"{number % 2}", "x"), ("a", f"{number}"))
        log.roll()
    before = {path.name: path.read_bytes() for path in log.directory.glob("*.*") if path.is_file()}
    compact_and_check(log, model)
    assert {path.name: path.read_bytes() for path in log.directory.glob("*.*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"order": "time"}, "compact-topic --reset"),
        ({"retain_null_key": True}, "compact-topic --reset"),
        ({"order": "size"}, "time"),
    ],
)
def test_another_order_than_the_ledgers_is_refused(
    tmp_path: Path, options: dict[str, object], advice: str
) -> None:
    log = a_log(tmp_path)
    put(log, ("a", "1"), (None, "1"))
    compactor = TwoPhaseCompactor(InProcessCompactionEngine(), clock=ManualClock(NOW))
    compactor.compact(log)
    put(log, ("b", "1"))
    before = tree(log.directory)
    with raises_error(UsageError, advice=advice):
        compactor.compact(log, **options)  # type: ignore[arg-type]
    assert tree(log.directory) == before


def test_a_ledger_beyond_the_logs_end_is_refused(tmp_path: Path) -> None:
    log, shorter = a_log(tmp_path / "log"), a_log(tmp_path / "shorter")
    put(log, ("a", "1"), ("b", "1"))
    compact(log, Model())
    put(shorter, ("a", "1"))
    shutil.copytree(log.directory / COMPACTED, shorter.directory / COMPACTED)
    with raises_error(CompactionFailedError, path=str(WHERE), about="2", advice="compact-topic --reset"):
        compact(shorter, Model())


def test_the_end_is_the_high_watermark(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    for number in range(6):
        put(log, ("a", f"{number}"), ("b", f"{number}"))
    log.set_high_watermark(7)  # in the middle of a batch
    assert compact_and_check(log, model).horizon == 7
    log.set_high_watermark(None)
    assert compact_and_check(log, model).horizon == 12


def test_new_records_are_read_from_where_they_begin_in_their_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = a_log(tmp_path, index_interval_bytes=0), Model()
    for number in range(200):
        put(log, (f"{number}", "x" * 50))
    compact_and_check(log, model)
    put(log, ("new", "1"))
    linked = []
    link = sources_module.link_sources
    monkeypatch.setattr(
        "siltstone.compaction.ledger.compactor.link_sources",
        lambda *arguments: linked.append(tail := link(*arguments)) or tail,
    )
    result = compact_and_check(log, model)
    (source,) = linked[0].sources
    assert source.start > source.size * 0.9 and result.read_records == 1


def test_old_formats_are_compacted_too(tmp_path: Path) -> None:
    old = [
        twin.message(0, b"a", b"1", magic=0),
        twin.message(1, b"b", b"2", magic=1, timestamp=70),
        twin.wrapper(
            4,
            b"".join(twin.message(i, b"k%d" % i, b"v", magic=1, timestamp=80 + i) for i in range(3)),
            twin.GZIP,
            magic=1,
            timestamp=82,
        ),
        twin.message(5, b"a", None, magic=1, timestamp=90),
        twin.message(6, b"k1", b"", magic=1, timestamp=91),
        twin.message(7, b"k2", b"w", magic=1, timestamp=92),
    ]
    modern = [batch([Rec(offset=8, key=b"b", value=b"3")]), batch([Rec(offset=9, key=b"c")])]
    write_log(tmp_path, {0: old[:2], 2: [*old[2:], modern[0]], 9: modern[1:]})
    log, model = opened(tmp_path), Model()
    compact(log, model)
    by_key = {
        record.key: (record.offset, record.value, record.timestamp) for record in in_ledger(log.directory)
    }
    assert by_key[b"k0"] == (2, b"v", 80) and by_key[b"k2"] == (7, b"w", 92) and by_key[b"b"][0] == 8
    assert set(by_key) == {b"b", b"k0", b"k2", b"c"}


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, ("", "1"), ("a", "1"), ("", "2"))
    compact_and_check(log, Model())
    assert [(record.offset, record.key) for record in in_ledger(log.directory)] == [(1, b"a"), (2, b"")]


def test_new_records_that_only_delete_add_no_run(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    put(log, *((f"{number}", "x") for number in range(50)))
    compact_and_check(log, model)
    put(log, ("3", None), ("7", ""))
    result = compact_and_check(log, model)
    ledger = LedgerStore(log.directory).current()
    assert ledger is not None and len(ledger.runs) == 1
    assert (result.removed.tombstones, result.replaced_entries, result.entries) == (2, 2, 48)
    assert ledger.runs[0].end_offset == ledger.horizon == 52


def test_runs_that_are_not_merged_are_not_written_again(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    put(log, *((f"{number}", "x" * 100) for number in range(500)))
    compact_and_check(log, model)
    first = log.directory / COMPACTED / "generation-0"
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.iterdir()}
    for run in range(4):
        put(log, (f"{run}", "new"), (f"new-{run}", "1"))
        compact_and_check(log, model)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.iterdir()} == before


@pytest.mark.parametrize("buckets", [2, 3])
def test_runs_are_merged_bucket_by_bucket(tmp_path: Path, buckets: int) -> None:
    log, model = a_log(tmp_path), Model()
    for value in ("1", "2"):
        put(log, *((f"{number}-{value}", value) for number in range(20)), ("in both", value))
        compact_and_check(log, model, How(buckets=buckets))
    ledger = LedgerStore(log.directory).current()
    assert ledger is not None and len(ledger.runs) == 1


def damaged_keys(directory: Path) -> None:
    path = directory / COMPACTED / "generation-0" / "keys"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damaged_source(directory: Path) -> None:
    path = max(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [damaged_keys, damaged_source])
@pytest.mark.parametrize("spread", [False, True])
def test_damage_ends_a_compaction_with_the_ledger_as_it_was(
    tmp_path: Path, damage: Callable[[Path], None], spread: bool
) -> None:
    log = a_log(tmp_path)
    put(log, ("a", "1"), ("b", "1"))
    compact(log, Model())
    log.roll()
    put(log, ("a", "2"))
    damage(log.directory)
    before = tree(log.directory)
    with pytest.raises((CompactionFailedError, LedgerError)):
        compact(log, Model(), How(spread=spread))
    assert tree(log.directory) == before


class Losing(InProcessCompactionEngine):
    """An engine between whose tasks something gets lost."""

    def __init__(self, lose: Callable[[CompactionReport], object]) -> None:
        super().__init__()
        self._lose = lose

    def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
        report = super().compact(work, in_one_task)
        self._lose(report)
        return report


@pytest.mark.parametrize(
    "lose",
    [
        lambda report: report.written.popitem(),
        lambda report: report.add(CompactionReport(written=report.written)),
        lambda report: report.key_index_parts.pop(),
        lambda report: setattr(report, "merged_entries", report.merged_entries - 1),
        lambda report: setattr(report.extracted, "records", report.extracted.records + 1),
        lambda report: report.retained.update({0: 1}),
        lambda report: setattr(report, "deleted_keys", 3),
    ],
)
def test_counts_that_differ_end_a_compaction_without_a_commit(
    tmp_path: Path, lose: Callable[[CompactionReport], object]
) -> None:
    log = a_log(tmp_path)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    with pytest.raises(CheckFailedError):
        compact(log, Model(), How(engine=lambda _: Losing(lose)))
    assert tree(log.directory) == {}


def test_a_segment_that_is_written_wrongly_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    put(log, ("a", "1"), ("b", "1"))
    write = files.Writer.write

    def flip(self: files.Writer, data: object) -> None:
        if self.path.endswith(".log"):
            flipped = np.frombuffer(bytearray(memoryview(data).cast("B")), np.uint8)  # type: ignore[arg-type]
            flipped[70] ^= 1
            data = flipped.data
        write(self, data)

    monkeypatch.setattr(files.Writer, "write", flip)
    with pytest.raises(SiltstoneError):
        compact(log, Model())
    assert tree(log.directory) == {}


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, ("a", "1"), ("b", "1"))
    compact(log, Model())
    put(log, ("a", "2"))
    before, steps = tree(log.directory), []
    with files.observe(steps.append):
        compact(log, Model())
    for step in share(range(len(steps)), 5):
        _fails_at(tmp_path / f"{step}", step, before)


def _fails_at(folder: Path, step: int, before: dict[str, bytes]) -> None:
    """The same run, whose step number ``step`` finds no room."""
    log = a_log(folder)
    put(log, ("a", "1"), ("b", "1"))
    compact(log, Model())
    put(log, ("a", "2"))
    number = 0

    def fail(operation: files.Operation) -> None:
        nonlocal number
        number += 1
        if number == step + 1 and operation[0] in ("create", "write", "mkdir", "link"):
            raise OSError(errno.ENOSPC, "no space left", operation[1])

    try:
        with files.observe(fail):
            result = compact(log, Model())
    except (OSError, SiltstoneError):
        assert len(in_ledger(log.directory)) == 2
        assert not list((log.directory / COMPACTED).glob("run-*"))
        result = compact(log, Model())
    assert result.changed and result.entries == 2
    assert [record.value for record in in_ledger(log.directory)] == [b"1", b"2"]


def test_without_hard_links_segments_are_read_by_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(files, "link", refuse)
    log, model = a_log(tmp_path), Model()
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    assert compact_and_check(log, model).entries == 2


def test_a_segment_that_is_swapped_while_it_is_linked_is_linked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = a_log(tmp_path), Model()
    put(log, ("a", "1"), ("b", "1"))
    log.roll()
    put(log, ("a", "2"))
    link, calls = files.link, []

    def swapped_once(source: Path, target: Path) -> None:
        if not calls:
            replacement = tmp_path / "other"
            replacement.write_bytes(b"another segment's bytes")
            source = replacement
        calls.append(source)
        link(source, target)

    monkeypatch.setattr(files, "link", swapped_once)
    assert compact_and_check(log, model).entries == 2
    assert len(calls) == 3


def test_segments_that_change_again_and_again_end_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_source(source: Path, target: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "renamed", str(source))

    monkeypatch.setattr(files, "link", lose_source)
    log = a_log(tmp_path)
    put(log, ("a", "1"))
    with raises_error(SourceChangedError, path=str(WHERE), advice="run again"):
        compact(log, Model())
    assert tree(log.directory) == {}


def test_segments_deleted_during_a_compaction_stay_readable(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    for number in range(4):
        put(log, (f"{number}", "1"), ("a", f"{number}"))
        log.roll()

    class Deleting(InProcessCompactionEngine):
        def compact(self, work: CompactionWork, in_one_task: bool) -> CompactionReport:
            for path in log.delete_oldest_segments(3):
                path.unlink()
            return super().compact(work, in_one_task)

    compact(log, model, How(engine=lambda _: Deleting()))
    assert [record.key for record in in_ledger(log.directory)] == [b"0", b"1", b"2", b"3", b"a"]


def test_keys_are_hashed_under_the_ledgers_own_key(tmp_path: Path) -> None:
    keys = set()
    for number in range(2):
        log, model = a_log(tmp_path / str(number)), Model()
        for value in "123":
            put(log, ("a", value), ("b", value))
            compact_and_check(log, model)
        ledger = LedgerStore(log.directory).current()
        assert ledger is not None
        keys.add(ledger.hash_key)
    assert len(keys) == 2


def test_new_segments_are_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    log, model = a_log(tmp_path), Model()
    for start in range(0, 120, 10):
        value = np.random.default_rng(start).bytes(5000).hex()
        put(log, *((f"{number}", value) for number in range(start, start + 10)))
    compact_and_check(log, model, How(settings=CompactionSettings(segment_bytes=200_000)))
    ledger = LedgerStore(log.directory).current()
    assert ledger is not None
    sizes = [segment.size for segment in ledger.runs[0].segments]
    assert len(sizes) > 4 and max(sizes) <= 200_000


def test_what_lies_below_the_start_in_a_message_set_is_not_compacted(tmp_path: Path) -> None:
    """A compressed message set is stored under its last message's offset: its first ones may be below."""
    inner = b"".join(twin.message(i, b"k%d" % i, b"v", magic=1, timestamp=80 + i) for i in range(4))
    entries = [twin.wrapper(3, inner, twin.GZIP, magic=1)]
    partition = write_log(tmp_path, {0: entries, 4: [batch([Rec(offset=4, key=b"c")])]}, log_start=2)
    compact(opened(tmp_path), Model())
    assert [record.offset for record in in_ledger(partition)] == [2, 3, 4]


def test_new_segments_are_by_default_like_those_of_a_log() -> None:
    settings, config = CompactionSettings(), LogConfig()
    assert (settings.segment_bytes, settings.index_interval, settings.index_bytes) == (
        config.segment_bytes,
        config.index_interval_bytes,
        config.segment_index_bytes,
    )
