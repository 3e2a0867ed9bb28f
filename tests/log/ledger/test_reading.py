"""The compacted view: ledger to the horizon, then the originals, each once, whatever happens meanwhile."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base import files
from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import LedgerError, OffsetOutOfRangeError, UsageError
from siltstone.base.records.codecs import DECOMPRESSION_LIMIT_SETTING
from siltstone.base.records.control import end_transaction_marker
from siltstone.log.ledger import store as holding
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.reading import AtTime, LogReader
from siltstone.log.validation import Origin
from siltstone.runtime.embedded import Log
from tests.support.cleaning.logs import NOW, Rec
from tests.support.errors import raises_error
from tests.support.log import driving, plainly
from tests.support.log.model import Stored
from tests.support.thoroughness import examples, share

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=60)
Pairs = list[tuple[int, bytes | None]]


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """No test of this file is about crashes: nothing is synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_partition(tmp_path / "topic-0", SMALL, ManualClock(NOW))
    yield opened
    opened.close()


def append(log: PartitionLog, text: str, timestamp: int = NOW) -> None:
    """Records such as "a1 b2 a-": key a with value 1, …, key a deleted; "-3": without a key. A batch each."""
    for word in text.split():
        key, value = word[0].encode(), word[1:].encode()
        record = Stored(
            0, None if key == b"-" else key, None if value == b"-" else value, timestamp + log.log_end_offset
        )
        log.append(driving.client_batch([record]))


def read(reader: CompactedReader | LogReader) -> list[str]:
    return [shown(record) for record in reader.records()]


def shown(record: object) -> str:
    key, value = record.key or b"-", b"-" if record.value is None else record.value  # type: ignore[attr-defined]
    return f"{record.offset}:{(key + value).decode()}"  # type: ignore[attr-defined]


def view(log: PartitionLog, **options: object) -> list[str]:
    with log.reader(read_compacted=True, **options) as reader:  # type: ignore[arg-type, union-attr]
        return read(reader)


def test_a_view_is_the_ledger_to_the_horizon_and_then_the_originals(log: PartitionLog) -> None:
    append(log, "a1 b1 a2 c1 b- -9")
    plainly.compact(log)
    append(log, "a3 d1")
    assert view(log) == ["2:a2", "3:c1", "6:a3", "7:d1"]
    assert read(log.reader()) == "0:a1 1:b1 2:a2 3:c1 4:b- 5:-9 6:a3 7:d1".split()


def test_later_generations_hide_what_they_supersede(log: PartitionLog) -> None:
    append(log, "a1 b1 c1 d1 e1 f1 g1 h1")
    plainly.compact(log)
    append(log, "c2 g- i1")
    ledger = plainly.compact(log, name="bb")
    assert ledger is not None and len(ledger.runs) == 2
    append(log, "c3")
    assert view(log) == "0:a1 1:b1 3:d1 4:e1 5:f1 7:h1 8:c2 10:i1 11:c3".split()


def test_a_log_without_a_ledger_is_read_as_it_is(log: PartitionLog) -> None:
    append(log, "a1 a2")
    assert view(log) == ["0:a1", "1:a2"]
    assert not (log.directory / ".compacted").exists()


def test_a_reader_at_the_end_continues_with_what_is_appended(log: PartitionLog) -> None:
    append(log, "a1 b1 a2")
    plainly.compact(log)
    reader = log.reader(read_compacted=True)
    assert read(reader) == ["1:b1", "2:a2"]
    assert reader.poll() is None
    append(log, "c1")
    assert read(reader) == ["3:c1"]
    assert reader.offset == 4


# Going on after another reader


def continued(log: PartitionLog, offset: int, log_from: int) -> list[str]:
    with CompactedReader(log, offset, log_from=log_from) as reader:
        assert reader.log_from == log_from
        return read(reader)


@pytest.mark.parametrize("merge_runs", [False, True])
def test_a_newer_ledger_is_read_only_below_where_the_log_was_to_be_read(
    log: PartitionLog, merge_runs: bool
) -> None:
    append(log, "a1 b1 c1 d1")
    plainly.compact(log)
    append(log, "e1 b- f1 c2")
    plainly.compact(log, name="bb", merge_runs=merge_runs)
    append(log, "g1")
    # The ledger no longer has b's tombstone. Its batch of d, e and f spans offset 4.
    assert view(log) == "0:a1 3:d1 4:e1 6:f1 7:c2 8:g1".split()
    in_log = "4:e1 5:b- 6:f1 7:c2 8:g1".split()
    expected = ["0:a1", "3:d1", *in_log]
    for offset in range(9):
        assert continued(log, offset, 4) == [record for record in expected if int(record[0]) >= offset]


def test_the_log_itself_continues_below_a_newer_horizon(log: PartitionLog) -> None:
    append(log, "a1 b1")
    reader = log.reader(read_compacted=True)
    assert read(reader) == ["0:a1", "1:b1"]
    assert (reader.offset, reader.log_from) == (2, 0)  # type: ignore[union-attr]
    append(log, "a- c1")
    plainly.compact(log)
    assert continued(log, 2, 0) == ["2:a-", "3:c1"]


def test_a_ledger_that_is_gone_leaves_the_log(log: PartitionLog) -> None:
    append(log, "a1 b1 a2 b2")
    plainly.compact(log)
    LedgerStore(log.directory).delete_cursor()
    assert continued(log, 1, 4) == ["1:b1", "2:a2", "3:b2"]


@pytest.mark.parametrize("offset", [1, 5])
def test_records_that_were_to_be_read_and_are_gone_are_an_error(log: PartitionLog, offset: int) -> None:
    append(log, "a1 b1 c1 d1")
    plainly.compact(log)
    append(log, "e1 b- f1 c2")
    plainly.compact(log, name="bb")
    log.delete_records(6)
    with raises_error(OffsetOutOfRangeError, about="deleted"):
        CompactedReader(log, offset, log_from=4)
    assert continued(log, 6, 4) == ["6:f1", "7:c2"]
    # Nothing holds retention back from what only this reader needs.
    reader = CompactedReader(log, 1, log_from=7, buffer_bytes=1)
    assert reader.poll() is not None and reader.is_in_ledger
    log.delete_records(8)
    with raises_error(OffsetOutOfRangeError, about="deleted"):
        read(reader)
    assert reader.offset == 7 and not reader.is_in_ledger


def test_deleted_originals_are_read_from_the_ledger(log: PartitionLog) -> None:
    append(log, "a1 b1 " + "c1 " * 20)
    plainly.compact(log)
    log.roll()
    append(log, "d1")
    log.delete_oldest_segments(lambda view: len(view.segments) - 1)
    assert log.log_start_offset == 22
    assert view(log) == ["0:a1", "1:b1", "21:c1", "22:d1"]
    assert read(log.reader()) == ["22:d1"]


def test_what_was_deleted_before_it_was_compacted_is_passed_over(log: PartitionLog) -> None:
    append(log, "a1 b1")
    plainly.compact(log)
    append(log, "c1 d1 e1")
    log.delete_records(4)
    assert view(log) == ["0:a1", "1:b1", "4:e1"]


# Where it starts


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", "1:b1 3:a2 4:c1 5:c2 6:d1"),
        ("latest", ""),
        (0, "1:b1 3:a2 4:c1 5:c2 6:d1"),
        (2, "3:a2 4:c1 5:c2 6:d1"),
        (4, "4:c1 5:c2 6:d1"),
        (5, "5:c2 6:d1"),
        (6, "6:d1"),
        (7, ""),
        (AtTime(0), "1:b1 3:a2 4:c1 5:c2 6:d1"),
        (AtTime(NOW + 2), "3:a2 4:c1 5:c2 6:d1"),
        (AtTime(NOW + 4), "4:c1 5:c2 6:d1"),
        (AtTime(NOW + 5), "5:c2 6:d1"),
        (AtTime(NOW + 6), "6:d1"),
        (AtTime(NOW + 7), ""),
    ],
)
def test_a_compacted_reader_starts_at_the_given_place(
    log: PartitionLog, start: object, expected: str
) -> None:
    append(log, "a1 b1 x- a2 c1")
    plainly.compact(log)
    append(log, "c2 d1")
    assert view(log, start=start) == expected.split()
    with log.reader(read_compacted=True) as reader:
        reader.poll()
        reader.seek(start)  # type: ignore[arg-type]
        assert read(reader) == expected.split()


def test_a_time_finds_no_hidden_record(log: PartitionLog) -> None:
    """The first record that is late enough is superseded, and the next one is too early."""
    append(log, "a1", NOW + 100)
    append(log, "b1 c1", NOW)
    plainly.compact(log)
    append(log, "a2 d1", NOW + 50)
    plainly.compact(log, name="bb")
    assert view(log) == ["1:b1", "2:c1", "3:a2", "4:d1"]
    assert view(log, start=AtTime(NOW + 40)) == ["3:a2", "4:d1"]


def test_the_offset_does_not_run_ahead_of_the_end(log: PartitionLog) -> None:
    append(log, "a1 b1 c1 d1 e1 f1 g1 h1")
    plainly.compact(log)
    reader = log.reader(end=3, read_compacted=True, buffer_bytes=1)
    read(reader)
    assert reader.offset == 3
    assert reader.poll() is None


def test_a_compacted_reader_ends_at_the_given_place(log: PartitionLog) -> None:
    append(log, "a1 b1 a2 c1 d1 e1 f1")
    plainly.compact(log)
    append(log, "g1 h1")
    assert [view(log, end=end) for end in (0, 1, 4, 7, 8)] == [
        [],
        [],
        ["1:b1", "2:a2", "3:c1"],
        "1:b1 2:a2 3:c1 4:d1 5:e1 6:f1".split(),
        "1:b1 2:a2 3:c1 4:d1 5:e1 6:f1 7:g1".split(),
    ]


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 25), st.sampled_from([1, 120, 1 << 20]), st.data())
def test_a_compacted_reader_returns_what_plain_lists_have(
    seed: int, count: int, size: int, data: st.DataObject
) -> None:
    """From any offset to any end, with any codec, after any number of compactions, merged or not."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        log = open_partition(Path(folder) / "topic-0", SMALL, ManualClock(NOW))
        originals: list[Rec] = []
        horizon, compacted = 0, []
        for number in range(count):
            records = [
                Stored(
                    0,
                    rng.choice([None, b"", b"a", b"b", b"c%d" % rng.randrange(30)]),
                    value,
                    rng.randrange(99),
                )
                for value in rng.choices([None, b"", b"v", b"long" * 20], k=rng.choice([1, 2, 5]))
            ]
            appended = log.append(driving.client_batch(records, codec=rng.randrange(5)))
            originals += [
                Rec(
                    offset=appended.first_offset + row,
                    key=record.key,
                    value=record.value,
                    timestamp=record.timestamp,
                )
                for row, record in enumerate(records)
            ]
            if rng.random() < 0.15:
                plainly.compact(log, name=str(number), merge_runs=rng.random() < 0.4, codec=rng.randrange(5))
                horizon, compacted = log.log_end_offset, plainly.compacted(originals)
        expected = compacted + [original for original in originals if original.offset >= horizon]
        start = data.draw(st.integers(0, log.log_end_offset))
        end = data.draw(st.none() | st.integers(start, log.log_end_offset + 3))
        with CompactedReader(log, start, end=end, buffer_bytes=size) as reader:
            returned = plainly.recs_of(reader)
        last = log.log_end_offset if end is None else end
        assert returned == [record for record in expected if start <= record.offset < last]
        log.close()


# Isolation


def test_only_the_tail_has_open_and_aborted_transactions(log: PartitionLog) -> None:
    def transactional(key: bytes, sequence: int) -> None:
        record = Stored(0, key, b"t", NOW)
        log.append(
            driving.client_batch(
                [record], producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
            )
        )

    append(log, "a1 b1")
    plainly.compact(log)
    transactional(b"x", 0)
    marker = end_transaction_marker(
        is_commit=False, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW
    )
    log.append(marker, origin=Origin.COORDINATOR)
    append(log, "a2")
    transactional(b"y", 1)
    assert view(log, isolation="read_committed") == ["0:a1", "1:b1", "4:a2"]
    assert view(log) == ["0:a1", "1:b1", "2:xt", "4:a2", "5:yt"]


# While ledgers are swapped and collected, and originals go


def held(log: PartitionLog) -> set[str]:
    return {path.name for path in (log.directory / ".compacted").iterdir()}


def many(log: PartitionLog, count: int = 20, value: str = "1") -> None:
    append(log, " ".join(f"{chr(97 + number)}{value}" for number in range(count)))


def test_a_reader_continues_in_the_ledger_it_began_with(log: PartitionLog) -> None:
    many(log)
    plainly.compact(log)
    with log.reader(read_compacted=True, buffer_bytes=1) as reader:
        first = [shown(record) for record in islice(reader.records(), 3)]
        for turn in "23":
            many(log, value=turn)
            plainly.compact(log, name=turn, merge_runs=True)
        assert {"ledger-0.json", "generation-0", "ledger-2.json"} <= held(log)
        assert "ledger-1.json" not in held(log)
        rest = plainly.recs_of(reader)
    offsets = [int(record.split(":")[0]) for record in first] + [record.offset for record in rest]
    assert offsets == list(range(60))
    LedgerStore(log.directory).delete_unused()
    assert held(log) == {"cursor.json", "ledger-2.json", "generation-2"}


def test_the_ledger_is_let_go_at_the_horizon_not_at_the_end(log: PartitionLog) -> None:
    many(log)
    plainly.compact(log)
    append(log, "a5 b5")
    reader = log.reader(read_compacted=True)
    assert LedgerStore(log.directory).first_needed_offset() == 20
    while reader.offset <= 20:
        reader.poll()
    plainly.compact(log, name="bb", merge_runs=True)
    assert held(log) == {"cursor.json", "ledger-1.json", "generation-1"}


def test_a_reader_at_the_end_of_an_idle_log_holds_nothing(log: PartitionLog) -> None:
    many(log)
    plainly.compact(log)
    reader = log.reader(read_compacted=True)
    read(reader)
    many(log, value="2")
    plainly.compact(log, name="bb", merge_runs=True)
    assert "ledger-0.json" not in held(log)
    assert len(read(reader)) == 20


def test_a_reader_without_references_releases_its_ledger(log: PartitionLog) -> None:
    many(log)
    plainly.compact(log)
    reader = log.reader(read_compacted=True)
    reader.poll()
    del reader
    many(log, value="2")
    plainly.compact(log, name="bb", merge_runs=True)
    assert "ledger-0.json" not in held(log)


def test_a_closed_reader_takes_up_the_ledger_that_is_current(log: PartitionLog) -> None:
    many(log, 4)
    plainly.compact(log)
    reader = log.reader(read_compacted=True, buffer_bytes=1)
    assert isinstance(reader, CompactedReader)
    assert len(reader.poll() or ()) == 3
    reader.close()
    append(log, "d2")
    plainly.compact(log, name="bb", merge_runs=True)
    assert "ledger-0.json" not in held(log)
    assert read(reader) == ["4:d2"]


def test_the_topic_may_be_deleted_under_a_reader(tmp_path: Path) -> None:
    log = open_partition(tmp_path / "topic-0", SMALL, ManualClock(NOW))
    many(log)
    plainly.compact(log)
    reader = log.reader(read_compacted=True, buffer_bytes=1)
    reader.poll()
    log.directory.rename(tmp_path / "topic-0.123-delete")
    for path in sorted((tmp_path / "topic-0.123-delete").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert [record.offset for record in reader.records()] == list(range(3, 20))


def test_originals_deleted_before_they_were_read_are_an_error_or_a_reset(log: PartitionLog) -> None:
    """Another program's retention: ours keeps originals as long as a reader holds the ledger."""
    many(log)
    plainly.compact(log)
    many(log, value="2")
    readers = {rule: log.reader(read_compacted=True, reset=rule) for rule in ("none", "earliest", "latest")}
    log.roll()
    log.delete_oldest_segments(lambda view: len(view.segments) - 1)
    append(log, "z9")
    with raises_error(OffsetOutOfRangeError, about="retention", advice="reset=earliest"):
        read(readers["none"])
    assert [record.offset for record in readers["earliest"].records()][-21:] == [*range(20), 40]
    assert readers["earliest"].resets == 1
    assert [record.offset for record in readers["latest"].records()] == list(range(20))
    assert readers["latest"].resets == 1


def test_an_offset_below_the_view_is_for_the_reset_rule(log: PartitionLog) -> None:
    many(log, 10)
    log.delete_records(5)
    plainly.compact(log)
    with raises_error(OffsetOutOfRangeError, about="first offset is 5"):
        log.reader(2, read_compacted=True).poll()
    reader = log.reader(2, read_compacted=True, reset="earliest")
    assert [record.offset for record in reader.records()] == [5, 6, 7, 8, 9]
    with pytest.raises(OffsetOutOfRangeError):
        log.reader(11, read_compacted=True).poll()


def test_a_ledger_of_more_than_the_log_has_is_refused(log: PartitionLog) -> None:
    many(log, 10)
    plainly.compact(log)
    cursor = log.directory / ".compacted" / "cursor.json"
    original = cursor.read_bytes()
    log.truncate_to(8)
    cursor.write_bytes(original)
    with raises_error(
        LedgerError, path=cursor.with_name("ledger-0.json"), about="below 10, but the log ends at 8"
    ):
        log.reader(read_compacted=True)


def test_what_makes_no_sense_is_refused(log: PartitionLog) -> None:
    for wrong in ({"isolation": "x"}, {"reset": "x"}, {"buffer_bytes": 0}, {"start": "x"}):
        with pytest.raises(UsageError):
            log.reader(read_compacted=True, **wrong)  # type: ignore[arg-type]


# Damage


def snapshot(folder: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("codec", [0, 3])
def test_no_damaged_byte_gives_other_records(log: PartitionLog, codec: int) -> None:
    """An error names the damaged file, or the same is read, which is so for ``keys`` alone."""
    many(log, 7)
    plainly.compact(log, codec=codec)
    append(log, "a2 e- z1")
    plainly.compact(log, name="bb", codec=codec)
    expected, missed = view(log), set()
    for path, data in snapshot(log.directory / ".compacted").items():
        for at in share(range(0, len(data), 13 if path.suffix == ".json" else 1), 5):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            try:
                assert view(log) == expected
                missed.add(path.name)
            except LedgerError as error:
                assert error.path == str(path)
        path.write_bytes(data)
    assert missed == {"keys"}
    assert view(log) == expected


@pytest.mark.parametrize("start", [3, 11])
def test_no_damaged_byte_gives_other_records_to_a_reader_that_starts_amid(
    log: PartitionLog, start: int
) -> None:
    many(log, 12)
    plainly.compact(log)
    expected = view(log, start=start)
    for path, data in snapshot(log.directory / ".compacted" / "generation-0").items():
        for at in share(range(len(data)), 5):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
            try:
                assert view(log, start=start) == expected
            except LedgerError as error:
                assert error.path == str(path)
        path.write_bytes(data)


def test_a_batch_over_the_limit_is_refused_with_the_advice_to_raise_it(log: PartitionLog) -> None:
    many(log, 12, value="1" * 500)
    plainly.compact(log, codec=1)
    with log.reader(read_compacted=True, limit=64) as reader, pytest.raises(LedgerError) as raised:
        reader.poll()
    assert DECOMPRESSION_LIMIT_SETTING in str(raised.value.advice)


def test_records_before_the_damaged_segment_are_given(log: PartitionLog) -> None:
    many(log, 12)
    plainly.compact(log)
    path = log.directory / ".compacted" / "generation-0" / "00000000000000000006.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    reader = log.reader(read_compacted=True)
    offsets = []
    with raises_error(LedgerError, path=path):
        for record in reader.records():
            offsets.append(record.offset)
    assert offsets == [0, 1, 2, 3, 4, 5]


# By other doors


def test_the_checksum_of_a_segment_is_computed_while_the_one_before_it_is_read(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(log, 18)
    plainly.compact(log)
    thread_names: dict[str, str] = {}
    real = holding.file_checksum

    def summing(reader: files.Reader, over: threading.Event | None = None) -> int:
        if reader.path.endswith(".log"):
            assert reader.path not in thread_names, "once each"
            thread_names[reader.path] = threading.current_thread().name
        return real(reader, over)

    monkeypatch.setattr(holding, "file_checksum", summing)
    assert len(view(log)) == 18
    first, *others = thread_names.values()
    assert first == threading.current_thread().name
    assert len(others) >= 2 and all(other.startswith("ledger") for other in others)


def test_a_reader_that_is_closed_does_not_wait_for_the_checksum_of_the_next_segment(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(log, 12)
    plainly.compact(log)
    begun, real = threading.Event(), holding.file_checksum

    def summing(reader: files.Reader, over: threading.Event | None = None) -> int:
        if over is not None:
            begun.set()
            assert over.wait(60), "nobody says that it is over"
        return real(reader, over)

    monkeypatch.setattr(holding, "file_checksum", summing)
    others = set(threading.enumerate())  # those of readers that a test before left open, too
    reader = log.reader(read_compacted=True)
    assert reader.poll() is not None
    assert begun.wait(60)
    reader.close()
    assert set(threading.enumerate()) <= others


def test_a_log_opened_for_reading_has_the_view_too(tmp_path: Path) -> None:
    with Log(tmp_path / "topic-0", upkeep=False) as log:
        for value in (b"1", b"2"):
            log.append(value, key=b"a")
        plainly.compact(log.log)
        log.append(b"3", key=b"b")
        with log.reader(read_compacted=True) as reader:
            assert read(reader) == ["1:a2", "2:b3"]
        assert read(log.reader()) == ["0:a1", "1:a2", "2:b3"]
    with ReadOnlyLogs([tmp_path]) as logs:
        with logs["topic", 0].reader(read_compacted=True) as reader:
            assert read(reader) == ["1:a2", "2:b3"]
        assert read(logs["topic", 0].reader()) == ["0:a1", "1:a2", "2:b3"]
