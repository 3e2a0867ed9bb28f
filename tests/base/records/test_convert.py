"""Message sets become record batches, the very ones that Kafka 4.3's cleaner made; nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.errors import CorruptRecordError
from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.convert import NO_HORIZON, ConvertedBatches, convert_entries
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import CODEC_MASK, DELETE_HORIZON_BIT, BatchHeaders, Bytes, Flags, Int64
from siltstone.base.records.scan import ScanEnd, scan_batches
from tests.support.errors import raises_error
from tests.support.golden.listings import listed_segments
from tests.support.golden_sets import legacy_names
from tests.support.records import twin
from tests.support.records.arrays import array, complete_headers, decoded, records_of, scanned

Content = tuple[int, int, bytes | None, bytes | None]


def contents(records: list[twin.Record]) -> list[Content]:
    return [(record.offset, record.timestamp, record.key, record.value) for record in records]


def twin_contents(data: bytes) -> list[Content]:
    """The twin's reading, checksums looked at."""
    entries = list(twin.decode_log(data))
    assert all(entry.valid for entry in entries)
    return contents([record for entry in entries for record in entry.records])


def up_convert(window: Bytes, batches: BatchHeaders, path: str = "", origin: int = 0) -> Bytes:
    """Neighbouring batches as record batches: message sets converted, the others as they lie."""
    parts = [window[:0]]
    modern = batches["magic"] == 2
    for run in np.split(np.arange(len(batches)), np.flatnonzero(np.diff(modern)) + 1):
        entries = batches[run]
        if not len(run) or modern[run[0]]:
            parts += [
                window[at : at + size] for at, size in zip(entries["position"], entries["size"], strict=True)
            ]
        else:
            columns = decode_records(window, entries, path=path, origin=origin)
            parts.append(converted(entries, columns, path=path, origin=origin).data)
    return np.concatenate(parts)


def converted(
    entries: BatchHeaders,
    columns: RecordColumns,
    *,
    keep: Flags | None = None,
    horizon_ms: Int64 | None = None,
    path: str = "",
    origin: int = 0,
) -> ConvertedBatches:
    """By default all records stay, no batch has a delete horizon, and no empty batch stays."""
    return convert_entries(
        entries,
        columns,
        is_retained=np.ones(len(columns), np.bool_) if keep is None else keep,
        horizon_ms=np.full(len(entries), NO_HORIZON, np.int64) if horizon_ms is None else horizon_ms,
        keeps_empty=np.zeros(len(entries), np.bool_),
        path=path,
        origin=origin,
    )


def converted_log(data: bytes) -> bytes:
    """Up-converted, and sound by our own scanner and checksums: one batch for each, none of them old."""
    window, batches = scanned(data)
    out = up_convert(window, batches)
    scan = scan_batches(out)
    assert scan.outcome == ScanEnd.CLEAN
    assert len(scan.batches) == len(batches)
    assert (scan.batches["magic"] == 2).all()
    assert first_bad_checksum(out, scan.batches) is None
    return out.tobytes()


# against Kafka


@pytest.mark.parametrize("part", range(3))
def test_every_golden_segment_keeps_its_records(golden: Path, part: int) -> None:
    for name in legacy_names(golden)[part::3]:
        listing = golden / name / "records_before.jsonl"
        for file, segment in listed_segments(listing).items():
            out = converted_log((golden / name / "before" / file).read_bytes())
            want = contents([record for batch in segment.records for record in batch])
            assert contents(decoded(out)) == want, (name, file)
            assert twin_contents(out) == want, (name, file)


def kafkas_batches(path: Path) -> dict[int, tuple[Bytes, BatchHeaders]]:
    """What Kafka's cleaner left, by base offset: a batch's bytes and its header."""
    by_base_offset = {}
    for log in sorted(path.glob("*.log")):
        window, batches = scanned(log.read_bytes())
        for row in batches[(batches["magic"] == 2) & (batches["count"] > 0)]:
            start = int(row["position"])
            by_base_offset[int(row["base_offset"])] = scanned(
                window[start : start + int(row["size"])].tobytes()
            )
    return by_base_offset


def as_kafka_cleaned(
    entries: BatchHeaders, columns: RecordColumns, kafkas: dict[int, tuple[Bytes, BatchHeaders]]
) -> ConvertedBatches:
    """Our conversion of what stayed in Kafka's cleaning, with the horizons that it stamped."""
    stayed = np.concatenate([decode_records(*batch).offset for batch in kafkas.values()])
    keep = np.isin(columns.offset, stayed)
    horizon = np.full(len(entries), -1, np.int64)
    for row in np.unique(columns.batch[keep]).tolist():
        _, header = kafkas[int(columns.offset[keep & (columns.batch == row)][0])]
        if header["attributes"][0] & DELETE_HORIZON_BIT:
            horizon[row] = header["base_timestamp"][0]
    return converted(entries, columns, keep=keep, horizon_ms=horizon)


def check_as_kafkas(ours: bytes, theirs: bytes) -> None:
    """Plain ones byte for byte; compressed ones but for what each library makes of the same records."""
    if not ours[22] & CODEC_MASK:
        assert ours == theirs
        return
    size_and_checksum = (*range(8, 12), *range(17, 21))
    assert [ours[i] for i in range(61) if i not in size_and_checksum] == [
        theirs[i] for i in range(61) if i not in size_and_checksum
    ]
    assert decoded(ours) == decoded(theirs)


def test_converted_batches_are_kafkas_own(golden: Path) -> None:
    attributes_count: Counter[int] = Counter()
    for name in legacy_names(golden):
        kafkas = kafkas_batches(golden / name / "after_43")
        for log in sorted((golden / name / "before").glob("*.log")):
            window, batches = scanned(log.read_bytes())
            entries = batches[batches["magic"] < 2]
            conversion = as_kafka_cleaned(entries, decode_records(window, entries), kafkas)
            rescanned = scan_batches(conversion.data).batches
            for ours, reported in (
                (rescanned["last_offset"], conversion.last_offset),
                (rescanned["max_timestamp"], conversion.max_timestamp),
                (rescanned["size"], conversion.size),
            ):
                assert ours.tolist() == reported.tolist()
            for row in rescanned:
                start = int(row["position"])
                batch = conversion.data[start : start + int(row["size"])].tobytes()
                check_as_kafkas(batch, kafkas[int(row["base_offset"])][0].tobytes())
                attributes_count[int(row["attributes"])] += 1
    kinds = {0, *range(1, 4), DELETE_HORIZON_BIT, twin.LOG_APPEND, twin.LOG_APPEND | DELETE_HORIZON_BIT}
    assert kinds <= set(attributes_count), attributes_count
    assert attributes_count.total() > 400


# by hand


def headers(data: bytes) -> list[tuple[int, ...]]:
    """Base, last, count, attributes, base and largest timestamp of each batch."""
    batches = scanned(data)[1]
    names = ("base_offset", "last_offset", "count", "attributes", "base_timestamp", "max_timestamp")
    return [tuple(int(row[name]) for name in names) for row in batches]


def test_headers_of_every_kind_of_entry() -> None:
    relative = [twin.message(i, b"k", b"v", magic=1, timestamp=t) for i, t in ((0, 70), (2, 90), (5, 80))]
    log = [
        twin.message(0, b"k", None, magic=0),
        twin.message(1, None, b"v", magic=0, attributes=twin.LOG_APPEND),
        twin.wrapper(
            4, twin.message(3, b"a", b"", magic=0) + twin.message(4, b"", b"b", magic=0), 1, magic=0
        ),
        twin.message(6, b"k", b"v", magic=1, timestamp=60),
        twin.message(7, b"k", b"v", magic=1, timestamp=61, attributes=twin.LOG_APPEND),
        twin.wrapper(20, b"".join(relative), twin.SNAPPY, magic=1, timestamp=90),
        twin.wrapper(26, b"".join(relative), twin.LZ4, magic=1, timestamp=99, attributes=twin.LOG_APPEND),
    ]
    assert headers(converted_log(b"".join(log))) == [
        (0, 0, 1, 0, -1, -1),
        (1, 1, 1, 0, -1, -1),
        (3, 4, 2, twin.GZIP, -1, -1),
        (6, 6, 1, 0, 60, 60),
        (7, 7, 1, twin.LOG_APPEND, 61, 61),
        (15, 20, 3, twin.SNAPPY, 70, 90),
        (21, 26, 3, twin.LZ4 | twin.LOG_APPEND, 99, 99),
    ]
    assert twin_contents(converted_log(b"".join(log))) == twin_contents(b"".join(log))


def test_mixed_formats_keep_their_order_and_batches_their_bytes() -> None:
    new = [twin.batch([twin.record(0, 0, b"n", b"v" * 50)], base_offset=o, codec=o % 5) for o in (2, 3, 5, 8)]
    old = [twin.message(o, b"o", b"v", magic=o % 2) for o in (0, 1, 4, 6, 7)]
    log = b"".join([*old[:2], *new[:2], old[2], new[2], *old[3:], new[3]])
    out = converted_log(log)
    assert [record.offset for record in decoded(out)] == list(range(9))
    assert all(batch in out for batch in new)
    assert twin_contents(out) == twin_contents(log)


def test_entries_without_retained_records_are_left_out() -> None:
    inner = twin.message(0, b"k", b"1", magic=1, timestamp=5) + twin.message(
        1, b"k", b"2", magic=1, timestamp=4
    )
    log = (
        twin.message(0, b"k", b"0", magic=1)
        + twin.wrapper(2, inner, 1, magic=1)
        + twin.message(3, b"k", b"3", magic=0)
    )
    window, entries = scanned(log)
    columns = decode_records(window, entries)
    conversion = converted(entries, columns, keep=np.array([False, True, False, False]))
    assert (
        conversion.entry.tolist(),
        conversion.last_offset.tolist(),
        conversion.max_timestamp.tolist(),
    ) == ([1], [1], [5])
    assert headers(conversion.data.tobytes()) == [(1, 1, 1, twin.GZIP, 5, 5)]
    nothing = converted(entries, columns, keep=np.zeros(4, np.bool_))
    assert (len(nothing.data), len(nothing.entry)) == (0, 0)


def test_a_stamped_batch_has_its_horizon_for_base_timestamp() -> None:
    window, entries = scanned(twin.message(9, b"k", None, magic=0) * 2)
    horizon = np.array([(1 << 62), -1], np.int64)
    conversion = converted(entries, decode_records(window, entries), horizon_ms=horizon)
    assert headers(conversion.data.tobytes()) == [
        (9, 9, 1, DELETE_HORIZON_BIT, 1 << 62, -1),
        (9, 9, 1, 0, -1, -1),
    ]
    assert [record.timestamp for record in decoded(conversion.data.tobytes())] == [-1, -1]


def test_records_may_be_larger_than_their_messages() -> None:
    """Large fields, the largest offset delta and a horizon far away: all their varints are long."""
    offsets, key, value = [0, 1 << 30, (1 << 31) - 1], bytes(1 << 13), bytes(1 << 20)
    inner = b"".join(twin.message(offset, key, value, magic=0) for offset in offsets)
    window, entries = scanned(twin.wrapper(offsets[-1], inner, twin.LZ4, magic=0))
    columns = decode_records(window, entries)
    conversion = converted(entries, columns, horizon_ms=np.array([1 << 62]))
    batch, header = scanned(conversion.data.tobytes())
    converted_columns = decode_records(batch, header)
    assert int(converted_columns.size.sum()) > len(inner)
    assert contents(records_of(converted_columns)) == [(offset, -1, key, value) for offset in offsets]


def test_offsets_too_far_apart_for_a_batch_are_refused_with_their_position() -> None:
    first = twin.message(0, b"k", b"v", magic=0)
    for last, fits in (((1 << 31) - 1, True), (1 << 31, False)):
        log = first + twin.wrapper(last, first + twin.message(last, b"k", b"v", magic=0), 1, magic=0)
        if fits:
            assert headers(converted_log(log))[1][:3] == (0, last, 2)
            continue
        with raises_error(CorruptRecordError, path="some.log", position=1000 + len(first), about="offsets"):
            up_convert(*scanned(log), path="some.log", origin=1000)


def test_headers_completed_after_decoding_equal_those_after_converting() -> None:
    inner = b"".join(twin.message(i, b"k", b"v", magic=1, timestamp=i) for i in range(5))
    window, entries = scanned(twin.wrapper(9, inner, twin.GZIP, magic=1) * 2)
    complete = complete_headers(entries, decode_records(window, entries))
    after_converting = scanned(up_convert(window, entries).tobytes())[1]
    for name in ("base_offset", "last_offset", "count", "leader_epoch", "producer_id", "base_sequence"):
        assert after_converting[name].tolist() == complete[name].tolist()


# any log

field = st.none() | st.binary(max_size=200)
times = st.integers(-1, (1 << 62))


@st.composite
def message_sets(draw: st.DrawFn) -> bytes:
    """Entries of both magics, plain and wrapped, offsets ascending with gaps."""
    log, offset = b"", 0
    for _ in range(draw(st.integers(1, 8))):
        magic = draw(st.integers(0, 1))
        attributes = draw(st.sampled_from((0, twin.LOG_APPEND))) if magic else 0
        gaps = draw(st.lists(st.integers(1, 300), min_size=1, max_size=6))
        offsets = [offset + sum(gaps[: i + 1]) for i in range(len(gaps))]
        offset = offsets[-1]
        codec = draw(st.integers(0, 3))
        if codec == 0:
            stamp = draw(times)
            log += twin.message(
                offset, draw(field), draw(field), magic=magic, timestamp=stamp, attributes=attributes
            )
            continue
        inner = b"".join(
            twin.message(
                o - (offsets[0] if magic else 0), draw(field), draw(field), magic=magic, timestamp=draw(times)
            )
            for o in offsets
        )
        log += twin.wrapper(offset, inner, codec, magic=magic, timestamp=draw(times), attributes=attributes)
    return log


@given(message_sets())
def test_any_message_set_has_the_same_records_as_batches(log: bytes) -> None:
    out = converted_log(log)
    assert twin_contents(out) == twin_contents(log) == contents(decoded(out))


@given(message_sets(), st.data())
def test_damaged_message_sets_are_refused_or_give_sound_batches(log: bytes, data: st.DataObject) -> None:
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log) - 1))
        damaged[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
    window = array(bytes(damaged))
    batches = scan_batches(window).batches
    batches = batches[: int(np.append(np.flatnonzero(batches["magic"] == 2), len(batches))[0])]
    try:
        out = up_convert(window, batches)
    except CorruptRecordError as error:
        assert 0 <= error.position < len(log)
        return
    scan = scan_batches(out)
    assert (scan.outcome, len(scan.batches)) == (ScanEnd.CLEAN, len(batches))
    assert first_bad_checksum(out, scan.batches) is None
    want = contents(records_of(decode_records(window, batches)))
    assert contents(records_of(decode_records(out, scan.batches))) == want
