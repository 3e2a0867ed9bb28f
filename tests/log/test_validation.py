"""What may be appended, what it becomes, and with which of Kafka's errors the rest is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from siltstone.base.codec_table import CODECS
from siltstone.base.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
    RecordRefusedError,
    UnreadableBatchError,
)
from siltstone.base.records.check import Fault
from siltstone.base.records.control import end_transaction_marker
from siltstone.base.records.layout import Bytes
from siltstone.base.records.scan import ScanEnd
from siltstone.log import validation
from siltstone.log.validation import NAMED_RECORDS_MAX, Origin
from tests.support.cleaning.logs import Rec, records_in
from tests.support.errors import raises_error
from tests.support.log.appending import LARGE, append, assert_in_order, assert_refused
from tests.support.log.batches import TIME, array, edited, of_body, of_records, record, sent
from tests.support.records import twin

DAY = 86_400_000


# accepted


@pytest.mark.parametrize("count", [1, 3, LARGE])
def test_offsets_are_given_in_place(count: int) -> None:
    data = sent(count)
    before = data.tobytes()
    validated = append(data)
    assert validated.data is data
    assert (validated.first_offset, validated.last_offset) == (1000, 999 + count)
    assert (validated.record_count, validated.max_timestamp) == (count, TIME + count - 1)
    assert validated.offset_of_max_timestamp == 999 + count
    assert [int(validated.batches[name][0]) for name in ("base_offset", "leader_epoch")] == [1000, 7]
    assert_in_order(validated)
    after = data.tobytes()
    assert after[:8] == (1000).to_bytes(8, "big") and after[12:16] == (7).to_bytes(4, "big")
    assert after[8:12] + after[16:] == before[8:12] + before[16:]


def test_offsets_of_any_size() -> None:
    start = (1 << 62) + 3
    assert append(sent(2), next_offset=start).last_offset == start + 1


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_under_log_append_time_all_records_have_it(count: int, codec: int) -> None:
    data = sent(count, codec=codec, first_time=5)
    validated = append(data, now_ms=TIME + 9, message_timestamp_type="LogAppendTime")
    assert validated.max_timestamp == TIME + 9
    assert {stored.timestamp for stored in records_in(validated.data.tobytes())} == {TIME + 9}
    assert_in_order(validated)


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_wrong_largest_timestamp_is_put_right(count: int, codec: int) -> None:
    validated = append(edited(sent(count, codec=codec), 35, 12345, 8))
    assert validated.max_timestamp == TIME + count - 1
    assert int(validated.batches["max_timestamp"][0]) == TIME + count - 1
    assert_in_order(validated)


def test_records_without_a_time_pass() -> None:
    assert append(sent(1, first_time=-1), message_timestamp_before_max_ms=DAY).max_timestamp == -1


def test_keyless_records_pass_where_nothing_is_compacted() -> None:
    data = of_records([Rec(offset=0, key=None, timestamp=TIME)])
    assert append(data, policies=("delete",)).record_count == 1


def test_without_bounds_every_time_passes() -> None:
    largest = (1 << 63) - 1
    unbounded = {"message_timestamp_before_max_ms": largest, "message_timestamp_after_max_ms": largest}
    assert append(sent(1, first_time=largest), **unbounded).max_timestamp == largest


def test_times_at_the_bounds_pass() -> None:
    bounds = {"message_timestamp_before_max_ms": DAY, "message_timestamp_after_max_ms": 5}
    for moved in (-DAY, 5):
        assert append(sent(1), now_ms=TIME - moved, **bounds).record_count == 1


def test_coordinators_write_several_batches_and_markers() -> None:
    marker = end_transaction_marker(
        is_commit=True, producer_id=3, producer_epoch=0, coordinator_epoch=1, timestamp_ms=TIME
    )
    unnumbered = sent(2, producer_id=3, producer_epoch=0, transactional=True)
    data = np.concatenate((marker, unnumbered, sent(LARGE)))
    validated = append(data, origin=Origin.COORDINATOR)
    assert validated.batches["base_offset"].tolist() == [1000, 1001, 1003]
    assert (validated.last_offset, validated.record_count) == (1002 + LARGE, 3 + LARGE)
    assert_in_order(validated)


def test_many_batches_of_a_coordinator() -> None:
    data = np.concatenate([sent(1)] * 100)
    validated = append(data, origin=Origin.COORDINATOR)
    assert validated.batches["base_offset"].tolist() == list(range(1000, 1100))
    assert_in_order(validated)


# refused


def test_an_append_of_no_batch_or_of_several_is_refused() -> None:
    assert_refused(array(b""), InvalidRecordError, "no batch was sent")
    assert_refused(np.concatenate((sent(1), sent(1))), InvalidRecordError, validation.SECOND_BATCH)
    assert_refused(np.concatenate([sent(1)] * 5), InvalidRecordError, validation.SECOND_BATCH)
    assert_refused(array(b""), InvalidRecordError, "no batch was sent", origin=Origin.COORDINATOR)


SHORT = b"\0\0\0\x10" + b"\0\0\0\0\1" + bytes(11)
"""From the size of a batch of magic 1 on, which is too small for one."""
HEADERS: list[tuple[str, Callable[[], Bytes], Fault | ScanEnd]] = [
    ("base offset", lambda: edited(sent(1), 0, 5, 8), Fault.BASE_OFFSET),
    ("count 0", lambda: edited(sent(1), 57, 0, 4), Fault.COUNT),
    ("count -1", lambda: edited(sent(1), 57, -1, 4), ScanEnd.BAD_COUNT),
    ("count 2 of 3 offsets", lambda: edited(sent(3), 57, 2, 4), Fault.COUNT),
    ("last offset delta -1", lambda: edited(sent(1), 23, -1, 4), ScanEnd.BAD_COUNT),
    ("last offset delta 7", lambda: edited(sent(3), 23, 7, 4), Fault.COUNT),
    ("control", lambda: sent(1, control=True), Fault.CONTROL),
    (Fault.SEQUENCE, lambda: sent(1, producer_id=3, producer_epoch=0), Fault.SEQUENCE),
    ("producer id 0 without a sequence", lambda: sent(1, producer_id=0, producer_epoch=0), Fault.SEQUENCE),
    (
        "no epoch",
        lambda: sent(1, producer_id=3, base_sequence=0, transactional=True),
        Fault.EPOCH,
    ),
    ("transactional", lambda: sent(1, transactional=True), Fault.NO_PRODUCER),
    ("magic 0", lambda: array(twin.message(0, b"k", b"v" * 40, magic=0)), Fault.MAGIC),
    ("magic 1", lambda: array(twin.message(0, b"k", b"v" * 40, magic=1, timestamp=TIME)), Fault.MAGIC),
    ("short magic 1", lambda: array(edited(sent(1), 16, 1, 1).tobytes()[:8] + SHORT), Fault.MAGIC),
    ("size too large", lambda: edited(sent(1), 8, 1 << 30, 4), ScanEnd.TRUNCATED),
    ("cut", lambda: array(sent(1).tobytes()[:-1]), ScanEnd.TRUNCATED),
]


@pytest.mark.parametrize(
    ("data", "reason"), [case[1:] for case in HEADERS], ids=[case[0] for case in HEADERS]
)
@pytest.mark.parametrize("config", [{}, {"compression_type": "zstd"}])
def test_headers_that_are_refused(
    data: Callable[[], Bytes], reason: Fault | ScanEnd, config: dict[str, object]
) -> None:
    assert_refused(data(), InvalidRecordError, reason, **config)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("origin", list(Origin))
def test_an_unknown_codec_is_refused(codec: int, origin: Origin) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR, after the checksum and before the counts."""
    data = edited(edited(sent(1), 0, 1000, 8) if origin is Origin.REPLICATION else sent(1), 21, codec, 2)
    assert_refused(data, UnreadableBatchError, Fault.CODEC, origin=origin)
    assert UnreadableBatchError.error_code == -1 and UnreadableBatchError.code == "UNKNOWN_SERVER_ERROR"
    damaged = edited(data, 17, 1, 4, sealed=False)
    assert_refused(damaged, CorruptMessageError, Fault.CHECKSUM, origin=origin)
    if origin is Origin.CLIENT:
        assert_refused(edited(data, 57, 9, 4), UnreadableBatchError, Fault.CODEC)
        assert_refused(edited(data, 57, -1, 4), UnreadableBatchError, Fault.CODEC)
        assert_refused(edited(data, 0, 5, 8), InvalidRecordError, Fault.BASE_OFFSET)


@pytest.mark.parametrize(
    ("position", "value", "size", "reason"),
    [
        (16, 3, 1, ScanEnd.BAD_MAGIC),
        (16, -1, 1, ScanEnd.BAD_MAGIC),
        (8, 0, 4, ScanEnd.BAD_SIZE),
        (8, -1, 4, ScanEnd.BAD_SIZE),
        (8, 13, 4, ScanEnd.BAD_SIZE),
        (8, 48, 4, ScanEnd.BAD_SIZE),
    ],
)
@pytest.mark.parametrize("origin", [Origin.CLIENT, Origin.COORDINATOR])
def test_what_no_batch_looks_like_is_corrupt(
    position: int, value: int, size: int, reason: ScanEnd, origin: Origin
) -> None:
    data = edited(sent(1), position, value, size)[: 60 if value == 48 else None]
    assert_refused(data, CorruptMessageError, reason, origin=origin)


# bytes behind a producer's batch


def behind(data: Bytes, tail: bytes) -> Bytes:
    return array(data.tobytes() + tail)


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(
    "config", [{}, {"compression_type": "gzip"}, {"message_timestamp_type": "LogAppendTime"}]
)
@pytest.mark.parametrize("size", [1, 11, 13, 17, 60, None])
def test_a_cut_batch_behind_a_producers_is_left_out(
    count: int, codec: int, config: dict[str, object], size: int | None
) -> None:
    """Kafka accepts it, and what it stores is the one batch."""
    data, tail = sent(count, codec=codec), sent(LARGE).tobytes()[:size][: -1 if size is None else None]
    whole = behind(data, tail)
    validated, alone = append(whole, **config), append(data, **config)
    assert validated.data.tobytes() == alone.data.tobytes()
    assert (validated.trailing_bytes, alone.trailing_bytes) == (len(tail), 0)
    assert (validated.last_offset, validated.record_count) == (999 + count, count)
    assert whole[len(data.tobytes()) :].tobytes() == tail if not config else True
    assert_in_order(validated)


def test_sizes_are_of_the_batch_without_what_is_behind() -> None:
    data = sent(1)
    room = {"max_message_bytes": len(data), "segment_bytes": len(data)}
    assert append(behind(data, b"\1" * 500), **room).trailing_bytes == 500


@pytest.mark.parametrize("count", [1, LARGE])
def test_a_damaged_batch_is_refused_whatever_is_behind(count: int) -> None:
    data = behind(sent(count), b"\1\2\3")
    data[-5] ^= 1
    assert_refused(data, CorruptMessageError, Fault.CHECKSUM)


def test_bytes_behind_a_batch_that_begin_no_batch_are_refused() -> None:
    data = sent(1)
    for tail in (bytes(12), bytes(17), b"\xff" * 12, b"\xff" * 100):
        assert_refused(behind(data, tail), CorruptMessageError, ScanEnd.BAD_SIZE)
    assert_refused(
        behind(data, edited(data, 16, 3, 1).tobytes()[:-1]), CorruptMessageError, ScanEnd.BAD_MAGIC
    )


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_may_have_exactly_max_message_bytes(codec: int) -> None:
    data = sent(2, codec=codec)
    assert append(data.copy(), max_message_bytes=len(data)).record_count == 2
    assert_refused(
        data, MessageTooLargeError, f"max.message.bytes={len(data) - 1}", max_message_bytes=len(data) - 1
    )
    several = array(2 * data.tobytes())
    assert append(several, origin=Origin.COORDINATOR, max_message_bytes=len(data)).record_count == 4


def test_of_a_batch_with_a_wrong_count_the_size_is_refused_first() -> None:
    data = edited(sent(1), 57, -1, 4)
    assert_refused(data.copy(), InvalidRecordError, ScanEnd.BAD_COUNT, max_message_bytes=len(data))
    assert_refused(
        data, MessageTooLargeError, f"max.message.bytes={len(data) - 1}", max_message_bytes=len(data) - 1
    )


def test_a_second_whole_batch_is_refused_whatever_it_is() -> None:
    short_v2 = bytes(8) + b"\0\0\0\x0e" + b"\0\0\0\0\2" + bytes(9)
    for tail in (sent(1).tobytes(), edited(sent(1), 57, -1, 4).tobytes(), short_v2):
        assert_refused(behind(sent(1), tail), InvalidRecordError, validation.SECOND_BATCH)


def test_what_coordinators_write_is_whole() -> None:
    """Coordinators send several batches: a cut one would be lost without an error."""
    for tail in (b"\0", sent(1).tobytes()[:-1]):
        assert_refused(
            behind(sent(1), tail), InvalidRecordError, ScanEnd.TRUNCATED, origin=Origin.COORDINATOR
        )


# what only a log gives


@pytest.mark.parametrize("count", [1, 3, LARGE])
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("compression", ["producer", "uncompressed", "zstd"])
@pytest.mark.parametrize("bits", [0x08, 0x40, 0x48])
def test_bits_that_only_the_log_gives_are_taken_off(
    count: int, codec: int, compression: str, bits: int
) -> None:
    """The records keep their own times, and the largest of them is the header's."""
    data = sent(count, codec=codec, producer_id=3, producer_epoch=0, base_sequence=0)
    data = edited(data, 21, codec | bits, 2)
    if bits & 0x08:
        data = edited(data, 35, TIME + DAY, 8)
    validated = append(data, compression_type=compression, message_timestamp_after_max_ms=count)
    assert not int(validated.batches["attributes"][0]) & 0x48
    assert validated.max_timestamp == TIME + count - 1
    assert [stored.timestamp for stored in records_in(validated.data.tobytes())] == [
        TIME + i for i in range(count)
    ]
    assert_in_order(validated)


def test_what_a_rewritten_header_keeps() -> None:
    """Kafka keeps bits it does not know only where it has no reason to write the attributes."""
    odd = edited(sent(1), 21, 0x4000 | 0x80, 2)
    assert int(append(odd.copy()).batches["attributes"][0]) == 0x4080
    assert int(append(edited(odd, 35, 5, 8)).batches["attributes"][0]) == 0
    validated = append(odd.copy(), message_timestamp_type="LogAppendTime")
    assert int(validated.batches["attributes"][0]) == 8
    assert_in_order(validated)


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("count", [3, LARGE])
def test_log_append_time_that_cannot_be_taken_off_is_refused(count: int, codec: int) -> None:
    """Where the topic sets the append time, and where the header has none: for every record, as in Kafka."""
    data = sent(count, codec=codec, log_append=True)
    error = refused(data, message_timestamp_type="LogAppendTime")
    assert type(error) is InvalidTimestampError and error.record_index == 0
    assert [record_error.index for record_error in error.record_errors] == list(range(count))
    assert {record_error.message for record_error in error.record_errors} == {validation.CLAIMS_APPEND_TIME}
    error = refused(edited(data, 35, -1, 8))
    assert type(error) is InvalidTimestampError and len(error.record_errors) == count


@pytest.mark.parametrize("codec", [0, 4])
def test_the_times_that_are_checked_are_those_that_are_stored(codec: int) -> None:
    """Kafka looks at the header's, so that one bit would lead around the bounds."""
    bounds = {"message_timestamp_before_max_ms": DAY, "message_timestamp_after_max_ms": DAY}
    old = edited(sent(1, codec=codec, first_time=TIME - 2 * DAY, log_append=True), 35, TIME, 8)
    assert_refused(old, InvalidTimestampError, "record 0 has a timestamp", 0, **bounds)
    late = edited(sent(1, codec=codec, log_append=True), 35, TIME + 2 * DAY, 8)
    assert append(late, **bounds).max_timestamp == TIME


def test_a_producer_without_an_epoch_may_append_but_not_end_transactions() -> None:
    data = sent(1, producer_id=3, base_sequence=0)
    assert int(append(data).batches["producer_epoch"][0]) == -1
    with_epoch = sent(1, producer_id=3, producer_epoch=0, base_sequence=0)
    assert append(with_epoch).record_count == 1
    marker = end_transaction_marker(
        is_commit=True, producer_id=3, producer_epoch=-1, coordinator_epoch=1, timestamp_ms=TIME
    )
    assert_refused(marker, InvalidRecordError, Fault.EPOCH, origin=Origin.COORDINATOR)


# records that are refused


def refused(data: Bytes, **options: object) -> RecordRefusedError:
    before = data.tobytes()
    with pytest.raises(RecordRefusedError) as caught:
        append(data, **options)  # type: ignore[arg-type]
    assert data.tobytes() == before
    return caught.value


def one_byte_longer() -> bytes:
    """A record that is right but for a byte after its key, which its size does not count."""
    body = b"\0\0\0" + twin.varint(1) + b"k" + twin.varint(63) + twin.varint(30) + b"v" * 30 + b"\0"
    return twin.varint(len(body) - 1) + body


BODIES: list[tuple[str, bytes, Fault, int | None]] = [
    ("record size negative", record(size=twin.varint(-5)), Fault.RECORD_SIZE, 0),
    ("record size too large", record(size=twin.varint(999)), Fault.RECORD_SIZE, 0),
    ("record size too small", record(size=twin.varint(7)), Fault.VARINT, 0),
    ("over-long size", record(size=b"\x80\x80\x80\x80\x80\x01"), Fault.VARINT, 0),
    ("over-long offset delta", record(delta=b"\x80\x80\x80\x80\x80\x00"), Fault.VARINT, 0),
    ("key size below null", record(key=twin.varint(-2)), Fault.NEGATIVE_SIZE, 0),
    ("a byte behind the key that the size leaves out", one_byte_longer(), Fault.RECORD_END, 0),
    ("key size too large", record(key=twin.varint(1 << 30) + b"k"), Fault.RECORD_END, 0),
    ("bytes behind the headers", record(tail=b"\0"), Fault.RECORD_END, 0),
    ("bytes behind the last record", record() + b"\0", Fault.TRAILING_BYTES, None),
    ("an offset that is not the first", record(delta=b"\2"), Fault.RECORD_OFFSETS, 0),
    ("nothing", b"", Fault.VARINT, 0),
]


@pytest.mark.parametrize("codec", [0, 1, 3])
@pytest.mark.parametrize(
    ("body", "reason", "index"), [case[1:] for case in BODIES], ids=[c[0] for c in BODIES]
)
def test_records_that_are_refused(body: bytes, reason: Fault, index: int | None, codec: int) -> None:
    assert_refused(of_body(body, codec=codec), InvalidRecordError, reason, index)


def test_the_record_that_is_at_fault_is_named() -> None:
    good = record() + record(delta=twin.varint(1))
    assert_refused(
        of_body(good + record(delta=twin.varint(1)), 3), InvalidRecordError, Fault.RECORD_OFFSETS, 2
    )
    assert_refused(
        of_body(good + record(delta=twin.varint(3)), 3), InvalidRecordError, Fault.RECORD_OFFSETS, 2
    )


@pytest.mark.parametrize("count", [1, LARGE])
def test_a_checksum_that_does_not_match_is_refused(count: int) -> None:
    for position in (17, 21, 30, 57, 62, -1):
        data = sent(count)
        data[position] ^= 0x10
        assert_refused(data, CorruptMessageError, Fault.CHECKSUM)


def test_a_checksum_comes_before_what_is_inside() -> None:
    data = sent(1)
    data[57:61] = 255
    assert_refused(data, CorruptMessageError, Fault.CHECKSUM)


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(("count", "first"), [(1, 0), (3, 0), (3, 2), (LARGE, 2)])
def test_a_record_without_a_key_in_a_compacted_topic(count: int, first: int, codec: int) -> None:
    records = [Rec(offset=i, key=b"" if i < first else None, timestamp=TIME) for i in range(count)]
    assert_refused(
        of_records(records, codec=codec),
        InvalidRecordError,
        f"record {first} has no key",
        first,
        policies=("delete", "compact"),
    )


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("count", [3, LARGE])
def test_every_record_without_a_key_is_named(count: int, codec: int) -> None:
    records = [Rec(offset=i, key=None if i % 2 else b"k", timestamp=TIME) for i in range(count)]
    error = refused(of_records(records, codec=codec), policies=("compact",))
    assert type(error) is InvalidRecordError and error.record_index == 1
    assert error.record_errors == tuple(
        RecordError(index=i, message=validation.NO_KEY) for i in range(1, count, 2)
    )
    assert f"({count // 2} of {count} records are refused)" in str(error)


@pytest.mark.parametrize("codec", [0, 4])
def test_every_record_is_named_with_its_reason(codec: int) -> None:
    """A record without a key is named as keyless, whatever its time; other times decide the error."""
    times = (TIME, TIME + DAY, TIME + DAY, TIME - DAY, TIME)
    keys = (None, None, b"k", b"k", b"k")
    records = [Rec(offset=i, key=keys[i], timestamp=times[i]) for i in range(5)]
    options = {"policies": ("compact",), "message_timestamp_before_max_ms": 5}
    error = refused(of_records(records, codec=codec), **options)
    assert type(error) is InvalidTimestampError and error.record_index == 2
    assert [
        (record_error.index, record_error.message.split()[1]) for record_error in error.record_errors
    ] == [
        (0, "no"),
        (1, "no"),
        (2, "a"),
        (3, "a"),
    ]
    error = refused(of_records(records[:2], codec=codec), **options)
    assert type(error) is InvalidRecordError and error.record_index == 0
    assert [record_error.index for record_error in error.record_errors] == [0, 1]


def test_no_more_than_a_bound_of_refused_records_are_named() -> None:
    count = NAMED_RECORDS_MAX + 7
    error = refused(
        of_records([Rec(offset=i, key=None, timestamp=TIME) for i in range(count)], codec=4),
        policies=("compact",),
    )
    assert [record_error.index for record_error in error.record_errors] == list(range(NAMED_RECORDS_MAX))
    assert f"({count} of {count} records are refused)" in str(error)


def test_a_compressed_batch_may_have_more_records_than_bytes() -> None:
    body = b"".join(record(delta=twin.varint(i)) for i in range(9000))
    data = of_body(body, 9000, 4)
    assert len(data) < 9000
    assert append(data).record_count == 9000
    assert_refused(of_body(record(), 1 << 22, 4), InvalidRecordError, Fault.VARINT, 1)


def test_a_batch_that_makes_no_sense_names_no_records() -> None:
    assert refused(of_body(record() + record(), 2)).record_errors == ()


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("moved", [-DAY - 1, 3_600_001])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_timestamp_out_of_bounds_is_refused(moved: int, codec: int, wrong: int) -> None:
    records = [Rec(offset=i, key=b"k", timestamp=TIME + (moved if i == wrong else 0)) for i in range(3)]
    assert_refused(
        of_records(records, codec=codec),
        InvalidTimestampError,
        f"record {wrong} has a timestamp outside",
        wrong,
        message_timestamp_before_max_ms=DAY,
    )


def test_a_timestamp_names_the_error_where_there_are_both() -> None:
    records = [Rec(offset=0, key=None, timestamp=TIME), Rec(offset=1, key=b"k", timestamp=TIME + DAY)]
    assert_refused(of_records(records), InvalidTimestampError, "record 1", 1, policies=("compact",))


def test_a_batch_over_a_size_limit_is_refused() -> None:
    data = sent(LARGE)
    small = {"max_message_bytes": len(data) - 1}
    assert_refused(data, MessageTooLargeError, f"max.message.bytes={len(data) - 1}", **small)
    assert_refused(sent(1), MessageTooLargeError, "max.message.bytes=10", max_message_bytes=10)
    assert_refused(data, RecordListTooLargeError, "segment.bytes=1000", segment_bytes=1000)
    assert append(data, max_message_bytes=len(data), segment_bytes=len(data)).record_count == LARGE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_decompresses_to_too_much_is_refused(codec: int) -> None:
    data = of_records([Rec(offset=0, key=b"k", value=bytes(1 << 20), timestamp=TIME)], codec=codec)
    assert_refused(
        data, MessageTooLargeError, "max.decompressed.message.bytes", max_decompressed_message_bytes=1 << 20
    )
    assert append(data, max_decompressed_message_bytes=1 << 21).record_count == 1


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_compressed_batch_of_many_small_records(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of the cleaner; decompressed records may have more bytes than are stored."""
    many = [Rec(offset=number, key=b"k", value=b"", timestamp=TIME) for number in range(20_000)]
    data = of_records(many, codec=codec)
    assert append(data.copy()).record_count == len(many)
    monkeypatch.setattr(validation, "max_records", lambda limit: len(many) - 1)
    assert_refused(
        data,
        MessageTooLargeError,
        "more than 19999 records; send smaller batches, or raise max.decompressed.message.bytes",
    )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_bytes_that_make_no_sense(codec: int) -> None:
    data = edited(of_body(b"this is not compressed"), 21, codec, 2)
    assert_refused(data, UnreadableBatchError, CODECS[codec].name)


# replicated


def replicated(*bases: int) -> Bytes:
    return np.concatenate([edited(sent(3), 0, base, 8) for base in bases])


def test_replicated_batches_keep_their_offsets() -> None:
    data = edited(replicated(1000, 1005, 2000), 12, 3, 4, sealed=False)
    before = data.tobytes()
    validated = append(data, origin=Origin.REPLICATION, max_message_bytes=10)
    assert validated.data is data and data.tobytes() == before
    assert (validated.first_offset, validated.last_offset, validated.record_count) == (1000, 2002, 9)
    assert validated.offset_of_max_timestamp == 1002
    assert_in_order(validated)


def test_a_cut_batch_at_the_end_is_left_out() -> None:
    data = replicated(1000, 1003)
    validated = append(data[:-1], origin=Origin.REPLICATION)
    assert validated.last_offset == 1002
    assert_in_order(validated)
    assert_refused(data[:50], InvalidRecordError, "no complete batch was fetched", origin=Origin.REPLICATION)


@pytest.mark.parametrize("bases", [(999,), (1000, 1002), (1005, 1000)])
def test_replicated_offsets_ascend_from_the_logs_end(bases: tuple[int, ...]) -> None:
    assert_refused(replicated(*bases), InvalidRecordError, Fault.OFFSETS, origin=Origin.REPLICATION)


def test_damaged_replicated_batches_are_refused() -> None:
    for position in (17, 62, -1):
        data = replicated(1000, 1003)
        data[position] ^= 1
        assert_refused(data, CorruptMessageError, Fault.CHECKSUM, origin=Origin.REPLICATION)
    data = edited(replicated(1000), 16, 9, 1, sealed=False)
    assert_refused(data, CorruptMessageError, ScanEnd.BAD_MAGIC, origin=Origin.REPLICATION)
    assert_refused(
        replicated(1000), RecordListTooLargeError, "segment.bytes", origin=Origin.REPLICATION, segment_bytes=9
    )


def test_replicated_message_sets_are_taken() -> None:
    data = array(
        twin.message(1000, b"k", b"v", magic=0) + twin.message(1001, b"k", b"v", magic=1, timestamp=TIME)
    )
    validated = append(data, origin=Origin.REPLICATION)
    assert (validated.last_offset, validated.record_count, validated.max_timestamp) == (1001, 2, TIME)
    data[-1] ^= 1
    assert_refused(data, CorruptMessageError, Fault.CHECKSUM, origin=Origin.REPLICATION)


def test_many_replicated_batches() -> None:
    data = np.concatenate([edited(sent(1), 0, 1000 + i, 8, sealed=False) for i in range(3000)])
    validated = append(data, origin=Origin.REPLICATION)
    assert len(validated.batches) == 3000 and validated.last_offset == 3999


def test_a_wrong_checksum_is_placed_behind_a_right_message_set() -> None:
    first = twin.message(1000, b"k", b"v", magic=0)
    data = array(first + twin.message(1001, b"k", b"v", magic=1, timestamp=TIME))
    data[-1] ^= 1
    with raises_error(CorruptMessageError, position=len(first)):
        append(data, origin=Origin.REPLICATION)


def test_a_record_that_ends_before_its_headers_is_refused() -> None:
    body = b"\0\0\0" + twin.varint(1) + b"k" + twin.varint(30) + b"v" * 30 + twin.varint(1)
    with raises_error(InvalidRecordError):
        append(of_body(twin.varint(len(body)) + body))
