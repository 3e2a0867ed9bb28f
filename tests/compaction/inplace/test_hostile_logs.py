"""Logs that no broker writes, or hardly: refused as they are, or cleaned with nothing lost.

What held when the cleaner was tried with crafted directories, and is to hold on.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction.report import CLEANED, UNCLEANABLE
from siltstone.log.indexes import TRANSACTION_ENTRY
from tests.support.cleaning import holding, logs
from tests.support.cleaning.logs import (
    DAY,
    NOW,
    RECORD_TIME,
    WHERE,
    Rec,
    batch,
    one,
    write_log,
    write_segment,
)
from tests.support.log.batches import array, edited, of_body, record
from tests.support.records import twin

PLAIN = [one(0, "a"), one(1, "b"), one(2, "a"), one(3, "c")]


def a_log(path: Path, **options: object) -> Path:
    """Two closed segments and an active one."""
    return write_log(path, {0: PLAIN[:2], 2: [*PLAIN[2:], one(4, "b")], 5: [one(5, "z")]}, **options)  # type: ignore[arg-type]


# Segments


@pytest.mark.parametrize("overlapping", [1, 2, 3])
def test_segments_that_overlap_are_refused(tmp_path: Path, overlapping: int) -> None:
    """A segment whose offsets reach into the next one's."""
    first = [one(offset, f"k{offset}") for offset in range(2 + overlapping)]
    write_log(tmp_path / "log", {0: first, 2: [one(n, f"k{n}") for n in range(2, 6)], 6: [one(6, "z")]})
    result = holding.clean(tmp_path / "log")
    assert result.status == UNCLEANABLE and f"{0:020d}.log" in result.reason
    assert "out of order or outside" in result.reason


@pytest.mark.parametrize("second_name", ["hard link", "copy"])
@pytest.mark.parametrize("base", [1, 4])
def test_a_segment_under_two_names_is_refused(tmp_path: Path, base: int, second_name: str) -> None:
    partition = a_log(tmp_path / "log")
    for kind in ("log", "index", "timeindex"):
        source, target = (partition / f"{at:020d}.{kind}" for at in (0, base))
        if second_name == "copy":
            target.write_bytes(source.read_bytes())
        else:
            os.link(source, target)
    result = holding.clean(tmp_path / "log")
    assert result.status == UNCLEANABLE and "out of order or outside" in result.reason


@pytest.mark.parametrize("at", [0, 2])
def test_batches_whose_offsets_go_back_are_refused(tmp_path: Path, at: int) -> None:
    partition = a_log(tmp_path / "log")
    data = (partition / f"{at:020d}.log").read_bytes()
    (partition / f"{at:020d}.log").write_bytes(data + data[: len(data) // 2])
    assert holding.clean(tmp_path / "log").status == UNCLEANABLE


def test_gaps_of_a_hundred_billion_offsets_cost_nothing(tmp_path: Path) -> None:
    """What is between two records costs nothing: neither memory nor time goes by offsets."""
    far = 10**11
    segments = {
        0: [one(0, "a"), one(1, "b")],
        far: [one(far, "a"), one(far + 7, "c")],
        3 * far: [one(3 * far, "b"), one(3 * far + (1 << 31) - 2, "d")],
        9 * far: [one(9 * far, "z")],
    }
    partition = write_log(tmp_path / "log", segments)
    result = holding.clean(tmp_path / "log")
    assert (result.status, result.discarded.superseded) == (CLEANED, 2)
    assert logs.offsets(partition) == [far, far + 7, 3 * far, 3 * far + (1 << 31) - 2, 9 * far]
    assert len(logs.logs_of(partition)) == 4


# Batches


def forged() -> dict[str, bytes]:
    """Batches with right checksums whose fields make no sense: base offset 2, one offset each."""
    sound = array(one(2, "a"))
    body = record(key=twin.varint(1) + b"a")
    batches = {
        "count too large": edited(sound, 57, 2, 4),
        "count negative": edited(sound, 57, -1, 4),
        "count huge": edited(sound, 57, (1 << 31) - 1, 4),
        "last offset delta negative": edited(sound, 23, -1, 4),
        "codec 5": edited(sound, 21, 5, 2),
        "codec 7": edited(sound, 21, 7, 2),
        "codec is another": edited(sound, 21, 4, 2),
        "key length beyond the record": of_body(record(key=twin.varint(1000) + b"k")),
        "key length of 2 GiB": of_body(record(key=twin.varint((1 << 31) - 1) + b"k")),
        "key length of -2": of_body(record(key=twin.varint(-2))),
        "record length negative": of_body(record(size=twin.varint(-5))),
        "record length beyond the batch": of_body(record(size=twin.varint(1 << 20))),
        "varint without an end": of_body(record(size=b"\xff" * 9)),
        "varint of eleven bytes": of_body(record(delta=b"\xff" * 10 + b"\x01")),
        "bytes left over": of_body(body + b"\0\0"),
        "offset delta beyond the batch": of_body(record(delta=twin.varint(9))),
        "offset delta negative": of_body(record(delta=twin.varint(-3))),
    }
    return {name: struct.pack(">q", 2) + data.tobytes()[8:] for name, data in batches.items()}


@pytest.mark.parametrize("name", forged())
def test_batches_with_a_right_checksum_and_impossible_fields_are_refused(tmp_path: Path, name: str) -> None:
    partition = a_log(tmp_path / "log")
    write_anyhow(partition, 2, [forged()[name], one(3, "c"), one(4, "b")])
    before = logs.tree(partition)
    result = logs.run(tmp_path / "log")
    assert result.status == UNCLEANABLE and f"{2:020d}.log: byte 0:" in result.reason, result
    assert logs.tree(partition) == before


@pytest.mark.parametrize("size", [-1, 0, 13, 48, (1 << 31) - 1])
def test_batch_lengths_out_of_range_are_refused(tmp_path: Path, size: int) -> None:
    partition = a_log(tmp_path / "log")
    data = bytearray(one(2, "a"))
    data[8:12] = struct.pack(">i", size)
    write_anyhow(partition, 2, [bytes(data), one(3, "c"), one(4, "b")])
    result = holding.clean(tmp_path / "log")
    assert result.status == UNCLEANABLE and f"{2:020d}.log: byte 0" in result.reason


def write_anyhow(partition: Path, base: int, batches: list[bytes]) -> None:
    """A segment's log as it is; its indexes stay those of another."""
    (partition / f"{base:020d}.log").write_bytes(b"".join(batches))


def test_message_sets_after_record_batches_are_cleaned(tmp_path: Path) -> None:
    """A broker that was set back to an older format: v1, compressed or not, behind v2."""
    inner = b"".join(
        twin.message(n, b"k%d" % n, b"new", magic=1, timestamp=RECORD_TIME + n) for n in range(2)
    )
    old = [
        twin.message(4, b"b", b"old format", magic=1, timestamp=RECORD_TIME),
        twin.wrapper(6, inner, 1, magic=1, timestamp=RECORD_TIME + 1),
    ]
    partition = write_log(tmp_path / "log", {0: PLAIN, 4: [old[0], old[1], one(7, "k0")], 8: [one(8, "z")]})
    result = holding.clean(tmp_path / "log")
    assert (result.status, result.discarded.superseded) == (CLEANED, 3)
    assert logs.offsets(partition) == [2, 3, 4, 6, 7, 8]


def test_an_empty_key_is_a_key_and_a_null_key_is_keyless(tmp_path: Path) -> None:
    rows = [(0, b""), (1, None), (2, b"x"), (3, b""), (4, None), (5, b"\0")]
    batches = [batch([Rec(offset=offset, key=key)]) for offset, key in rows]
    partition = write_log(tmp_path / "log", {0: batches, 6: [one(6, "z")]})
    result = holding.clean(tmp_path / "log")
    assert (result.status, result.discarded.superseded, result.discarded.keyless) == (CLEANED, 1, 2)
    assert logs.offsets(partition) == [2, 3, 5, 6]


# What is left at the end


def test_the_end_offset_stays_when_every_record_is_removed(tmp_path: Path) -> None:
    """Tombstones whose time has passed and records without a key, up to the end; an empty active segment."""
    horizon = [one(2, "a", None, delete_horizon_ms=NOW - 1), one(3, "b", None, delete_horizon_ms=NOW - 1)]
    batches = [one(0, "a"), one(1, "b"), *horizon, one(4, None)]
    partition = write_log(tmp_path / "log", {0: batches[:2], 2: batches[2:], 5: []})
    result = holding.clean(tmp_path / "log")
    assert (result.status, result.records_after) == (CLEANED, 0)
    assert logs.offsets(partition) == [] and holding.end_offset(partition) == 5
    (empty, _), *_ = [header for data in logs.logs_of(partition).values() for header in logs.headers_of(data)]
    assert (empty.last_offset, empty.count) == (4, 0)
    assert holding.clean(tmp_path / "log", now_ms=NOW + 400 * DAY).status != UNCLEANABLE
    assert holding.end_offset(partition) == 5


def marker(offset: int, *, commit: bool) -> bytes:
    data = end_transaction_marker(
        is_commit=commit, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=RECORD_TIME
    )
    return struct.pack(">q", offset) + data.tobytes()[8:]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_transaction_aborted_in_the_active_segment_never_supersedes(tmp_path: Path, rounds: int) -> None:
    """Its data is cleaned, its marker and its index entry are in the active segment."""
    producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    first = [one(0, "a"), one(1, "a", "aborted", base_sequence=0, **producer)]
    second = [one(2, "b"), one(3, "b", "aborted", base_sequence=1, **producer)]
    partition = write_log(tmp_path / "log", {0: first, 2: second, 4: [marker(4, commit=False), one(5, "z")]})
    entry = np.array([(0, 7, 1, 4, 5)], TRANSACTION_ENTRY).tobytes()
    (partition / f"{4:020d}.txnindex").write_bytes(entry)
    for number in range(rounds):
        result = logs.run(tmp_path / "log", now_ms=NOW + number * 3 * DAY)
        assert result.status in (CLEANED, "nothing_to_do"), result
    records = holding.records(partition)
    assert {offset: value for offset, (key, value, _) in records.items() if key in (b"a", b"b")} == {
        0: b"value",
        2: b"value",
    }
    assert (partition / f"{4:020d}.txnindex").read_bytes() == entry
    assert holding.end_offset(partition) == 6


@pytest.mark.parametrize("now_ms", [0, 1, RECORD_TIME - DAY, RECORD_TIME])
def test_with_a_clock_before_the_records_no_tombstone_goes(tmp_path: Path, now_ms: int) -> None:
    """Nothing is old yet: no tombstone goes, none is stamped with a time that has passed already."""
    batches = [one(0, "a"), one(1, "b", None), one(2, "a"), one(3, "c", None, delete_horizon_ms=NOW)]
    partition = write_log(tmp_path / "log", {0: batches, 4: [one(4, "z")]})
    assert holding.clean(tmp_path / "log", now_ms=now_ms).status == CLEANED
    assert logs.offsets(partition) == [1, 2, 3, 4]
    stamped = [
        header for header, _ in logs.headers_of(logs.logs_of(partition)[0]) if header.attributes & 0x40
    ]
    assert [header.base_timestamp for header in stamped] == [now_ms + DAY, NOW]


# Indexes


def anywhere(seed: int) -> dict[str, Callable[[int], bytes]]:
    """Contents of an index; the size of its log is given."""
    rng = random.Random(seed)

    def entries(size: int) -> bytes:
        pairs = sorted((rng.randrange(1 << 31), rng.randrange(2 * size)) for _ in range(5))
        return b"".join(struct.pack(">ii", *pair) for pair in pairs)

    return {
        "entries that name any place": entries,
        "noise": lambda size: rng.randbytes(48),
        "noise of no whole entries": lambda size: rng.randbytes(53),
        "places that are negative": lambda size: struct.pack(">ii", 1, -1) * 3,
        "places beyond the file": lambda size: struct.pack(">ii", 1, size + 1000),
        "offsets that go back": lambda size: struct.pack(">iiii", 3, 100, 1, 200),
        "nothing": lambda size: b"",
        "zeros": lambda size: bytes(80),
    }


@pytest.mark.parametrize("name", anywhere(0))
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_wrong_indexes_change_no_result(tmp_path: Path, kind: str, name: str) -> None:
    """They are hints: the result is that of right ones, or the log is refused as it is."""
    batches = [one(n, f"k{n % 5}", "v" * 60) for n in range(60)]
    segments = {0: batches[:30], 30: batches[30:], 60: [one(60, "z")]}
    right = write_log(tmp_path / "right", segments, interval=200)
    wrong = write_log(tmp_path / "wrong", segments, interval=200)
    for seed, base in enumerate((0, 30)):
        size = (wrong / f"{base:020d}.log").stat().st_size
        (wrong / f"{base:020d}.{kind}").write_bytes(anywhere(seed)[name](size))
    config = {"index.interval.bytes": 200}
    assert logs.run(tmp_path / "right", config=config).status == CLEANED
    result = holding.clean(tmp_path / "wrong", config=config)
    if result.status == CLEANED:
        assert logs.tree(wrong) == logs.tree(right)
    assert result.status == CLEANED or name != "nothing"


# Checkpoints

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut in mid-line": lambda data: data[:-6],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "another version": lambda data: b"7" + data[1:],
    "a count that is off": lambda data: data.replace(b"\n1\n", b"\n9\n"),
    "a number that is none": lambda data: data.replace(b" 0 ", b" x "),
    "a negative offset": lambda data: b"0\n1\ntopic 0 -7\n",
    "an offset over 63 bits": lambda data: b"0\n1\ntopic 0 99999999999999999999\n",
    "an offset beyond the end": lambda data: b"0\n1\ntopic 0 4611686018427387904\n",
    "no text": lambda data: b"\xff\xfe\x00" + data,
}


@pytest.mark.parametrize("start", [6, 7, 1 << 62])
def test_a_log_start_above_the_end_takes_nothing(tmp_path: Path, start: int) -> None:
    """At the end it takes all closed segments, as DeleteRecords up to the end does."""
    partition = a_log(tmp_path / "log", log_start=start, high_watermark=1 << 62)
    before = logs.tree(partition)
    result = logs.run(tmp_path / "log")
    if start == 6:
        assert (result.status, logs.offsets(partition)) == (CLEANED, [5])
    else:
        assert result.status == UNCLEANABLE and f"log start of topic-0, {start}, is above" in result.reason
        assert logs.tree(partition) == before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["cleaner", "log-start", "replication", "recovery-point"])
def test_damaged_checkpoints_cost_no_value(tmp_path: Path, which: str, damage: str) -> None:
    a_log(tmp_path / "log", checkpoint=0, high_watermark=6, log_start=0)
    path = tmp_path / "log" / f"{which}-offset-checkpoint"
    before = path.read_bytes() if path.exists() else b"0\n1\ntopic 0 0\n"
    path.write_bytes(DAMAGES[damage](before))
    damaged = path.read_bytes()
    result = holding.clean(tmp_path / "log")
    if result.status != CLEANED:
        assert path.read_bytes() == damaged or which == "cleaner"
    if result.status == UNCLEANABLE:
        assert path.name in result.reason
    if which == "log-start" and damage in ("an offset beyond the end", "an offset over 63 bits"):
        assert result.status == UNCLEANABLE  # it would take every segment but the active one
    assert WHERE.topic in path.read_text("latin-1") or path.read_bytes() == damaged


def test_holding_clean_would_notice_a_lost_value(tmp_path: Path) -> None:
    """``holding.clean`` itself: a record that is gone, one that changed, an end that moved."""
    partition = a_log(tmp_path / "log")
    records = holding.records(partition)
    assert holding.last_values(records)[b"a"] == (2, b"value") and holding.end_offset(partition) == 6
    write_segment(partition, 2, b"".join([one(3, "c"), one(4, "b")]))
    assert holding.last_values(holding.records(partition)) != holding.last_values(records)
