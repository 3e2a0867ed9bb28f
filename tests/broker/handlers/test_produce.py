"""Produce: what is appended, what is refused and in which order, and who is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.records.layout import ATTRIBUTES_POSITION, CRC_POSITION, MAGIC_POSITION, Bytes
from siltstone.broker.handlers.produce import ADMIN_CLIENT_ID, produce
from siltstone.broker.request_context import CLOSE, NO_RESPONSE
from siltstone.broker.store import MANY_PARTITIONS
from siltstone.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from siltstone.log.partition import TRY_APPEND_BYTES_MAX
from siltstone.log.validation import Origin
from tests.support.broker import NOW, ServedBroker, frame, served
from tests.support.cleaning.logs import Rec
from tests.support.cleaning.transactional import marker
from tests.support.log.batches import TIME, array, edited, of_records, sent
from tests.support.log.managed import failing

KEYLESS = of_records(
    [Rec(offset=i, key=b"k" if i == 1 else None, value=b"v", timestamp=TIME) for i in range(3)]
)
LARGE = [Rec(offset=0, key=b"k", value=bytes(TRY_APPEND_BYTES_MAX), timestamp=TIME)]
BAD_CHECKSUM = edited(sent(), CRC_POSITION, 0, 4, sealed=False)


def request_of(
    *batches: Bytes | None,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    acks: int = 1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request with a batch for each partition from 0 on."""
    data = tuple(
        PartitionProduceData(index=row, records=None if batch is None else frame(batch))
        for row, batch in enumerate(batches)
    )
    topics = (TopicProduceData(name=topic, topic_id=topic_id, partition_data=data),)
    return ProduceRequest(transactional_id=transactional_id, acks=acks, topic_data=topics)


def answered(
    broker: ServedBroker, request: ProduceRequest, version: int = 11, client_id: str | None = "test"
) -> list[PartitionProduceResponse]:
    """The answers of the first topic's partitions."""
    answer = broker.call(produce, request, version, client_id)
    assert isinstance(answer, ProduceResponse)
    return list(answer.responses[0].partition_responses)


def code(broker: ServedBroker, batch: Bytes | None, version: int = 11, **options: object) -> int:
    """The error code of one batch; an error has no base offset."""
    (response,) = answered(broker, request_of(batch, **options), version)  # type: ignore[arg-type]
    assert (response.base_offset == -1) == (response.error_code != 0)
    return response.error_code


@pytest.mark.parametrize("acks", [1, -1])
def test_batches_are_appended_and_answered_with_their_offsets(broker: ServedBroker, acks: int) -> None:
    log = broker.log("t")
    for first, count in ((0, 3), (3, 2), (5, 1)):  # the first one in the pool: it writes the leader epoch
        (response,) = answered(broker, request_of(sent(count), acks=acks))
        assert response == PartitionProduceResponse(base_offset=first, log_start_offset=0)
    assert log.log_end_offset == 6


def test_the_log_writes_into_the_requests_bytes(broker: ServedBroker) -> None:
    log = broker.log("t", records=4)
    request = request_of(sent())
    broker.call(produce, request, 11)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert bytes(records) == log.read(4).batches()[0].tobytes()


def test_topics_by_id_are_answered_by_id(broker: ServedBroker) -> None:
    broker.log("t")
    topic_id = broker.broker.id_of_topic("t")
    answer = broker.call(produce, request_of(sent(), topic="", topic_id=topic_id), 13)
    assert answer.responses[0].topic_id == topic_id
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert code(broker, sent(), 13, topic_id=bytes(16)) == 100
    assert code(broker, sent(), 13, topic_id=b"0123456789abcdef") == 100
    assert code(broker, sent(), 13, topic="t") == 100  # a name does not count


def test_one_partitions_error_is_not_the_others(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 3)
    batches = (sent(2), BAD_CHECKSUM, sent(3, codec=4), sent())
    assert [response.error_code for response in answered(broker, request_of(*batches))] == [0, 2, 0, 3]
    assert [broker.manager["t", number].log_end_offset for number in range(3)] == [2, 0, 3]


def test_a_batch_behind_a_late_one_of_its_log_keeps_its_place(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    batches = [
        of_records(LARGE, producer_id=7, producer_epoch=0, base_sequence=0),
        sent(producer_id=7, producer_epoch=0, base_sequence=1),
    ]
    data = tuple(PartitionProduceData(index=0, records=frame(batch)) for batch in batches)
    request = ProduceRequest(acks=1, topic_data=(TopicProduceData(name="t", partition_data=data),))
    assert [response.base_offset for response in answered(broker, request)] == [1, 2]


ERRORS = {
    "an unknown topic": (3, sent(), {"topic": "other"}),
    "a bad name": (3, sent(), {"topic": "../t"}),
    "no records": (87, None, {}),
    "no batch": (87, array(b""), {}),
    "a part of a batch": (87, array(sent().tobytes()[:50]), {}),
    "two batches": (87, array(sent().tobytes() * 2), {}),
    "format v1": (87, edited(sent(), MAGIC_POSITION, 1, 1), {}),
    "other acks": (21, sent(), {"acks": 2}),
    "structure before acks": (87, array(b""), {"acks": 2}),
    "acks before the checksum": (21, BAD_CHECKSUM, {"acks": -2}),
    "an internal topic": (17, sent(), {"topic": "__consumer_offsets"}),
    "structure before the internal topic": (87, array(b""), {"topic": "__consumer_offsets"}),
    "the internal topic before the checksum": (17, BAD_CHECKSUM, {"topic": "__transaction_state"}),
    "the checksum": (2, BAD_CHECKSUM, {}),
    "the size": (10, sent(500), {}),
    "a time": (32, sent(first_time=1), {}),
    "a control batch": (87, array(marker(0, 7, commit=True)), {"transactional_id": None}),
}


@pytest.mark.parametrize(("expected", "batch", "options"), ERRORS.values(), ids=ERRORS)
def test_errors_have_kafkas_codes_in_kafkas_order(
    broker: ServedBroker, expected: int, batch: Bytes | None, options: dict[str, object]
) -> None:
    config = {"message.timestamp.before.max.ms": "1000000", "max.message.bytes": "10000"}
    for topic in ("t", "__consumer_offsets", "__transaction_state"):
        broker.manager.topics.create(topic, config=config)
    if expected == 87 and options == {"transactional_id": None}:
        expected = 53  # it is transactional, too
    assert code(broker, batch, **options) == expected
    assert broker.manager["t", 0].log_end_offset == 0


def test_zstd_needs_version_7(broker: ServedBroker) -> None:
    broker.log("t")
    assert [code(broker, sent(codec=4), version) for version in (3, 6, 7)] == [76, 76, 0]
    assert code(broker, sent(codec=4), 6, acks=5) == 76
    assert code(broker, array(sent(codec=4).tobytes() * 2), 6) == 76  # before a second batch is looked at
    assert code(broker, array(sent(codec=4).tobytes()[:-1]), 6) == 87


def test_an_unknown_codec_is_refused_with_the_start_of_its_version(broker: ServedBroker) -> None:
    """Kafka looks at it before the append as long as there are versions without zstd."""
    broker.log("t")
    batch = edited(sent(), ATTRIBUTES_POSITION, 7, 2)
    for version, start in ((5, -1), (6, -1), (7, 0)):
        (response,) = answered(broker, request_of(batch), version)
        assert (response.error_code, response.log_start_offset) == (-1, start)


def test_the_admin_client_may_write_to_internal_topics(broker: ServedBroker) -> None:
    broker.log("__consumer_offsets")
    (response,) = answered(broker, request_of(sent(), topic="__consumer_offsets"), client_id=ADMIN_CLIENT_ID)
    assert response.error_code == 0


def test_every_keyless_record_is_named(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", config={"cleanup.policy": "compact"})
    (response,) = answered(broker, request_of(KEYLESS))
    assert (response.error_code, response.log_start_offset) == (87, 0)
    assert [error.batch_index for error in response.record_errors] == [0, 2]
    assert all(error.batch_index_error_message for error in response.record_errors)
    assert response.error_message


def test_an_error_names_no_path_of_this_machine(broker: ServedBroker, tmp_path: Path) -> None:
    log = broker.log("t", records=1)
    with failing(log.directory, "write"):
        (response,) = answered(broker, request_of(sent()))
    assert response.error_code == 56
    assert str(tmp_path) not in (response.error_message or "")


def test_a_disk_that_fails_takes_its_directory_offline_at_once(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with served(one, other) as broker:
        logs = [broker.log("t"), broker.log("u")]
        assert [log.directory.parent for log in logs] == [one, other]
        for topic in ("t", "u", "t", "u"):
            assert code(broker, sent(), topic=topic) == 0
        with failing(one, "write"):
            assert code(broker, sent()) == 56
        broker.broker.close()  # waits for its threads
        assert [directory.path for directory in broker.manager.serving()] == [other]


@pytest.mark.parametrize(
    ("batch", "start"),
    [
        (sent(first_time=1), 2),
        (sent(producer_id=7, producer_epoch=0, base_sequence=9), 2),
        (BAD_CHECKSUM, -1),
    ],
    ids=["time", "sequence", "checksum"],
)
def test_the_log_start_offset_beside_an_error(broker: ServedBroker, batch: Bytes, start: int) -> None:
    broker.manager.topics.create("t", config={"message.timestamp.before.max.ms": "1000000"})
    log = broker.log("t", records=3)
    log.append(sent(producer_id=7, producer_epoch=0, base_sequence=0))
    log.delete_records(2)
    (response,) = answered(broker, request_of(batch))
    assert (response.base_offset, response.log_start_offset) == (-1, start)
    assert answered(broker, request_of(array(b"")))[0].log_start_offset == -1


def test_idempotent_producers(broker: ServedBroker) -> None:
    broker.log("t")

    def numbered(sequence: int, epoch: int = 0) -> tuple[int, int, int]:
        batch = sent(2, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        (response,) = answered(broker, request_of(batch))
        return response.error_code, response.base_offset, response.log_append_time_ms

    assert numbered(0) == (0, 0, -1)
    assert numbered(2) == (0, 2, -1)
    assert numbered(0) == (0, 0, TIME + 1)  # again: as it is stored, with its largest timestamp
    assert numbered(6) == (45, -1, -1)
    assert numbered(4, epoch=1) == (45, -1, -1)
    assert numbered(0, epoch=1) == (0, 4, -1)
    assert numbered(4) == (47, -1, -1)


def test_log_append_time_is_answered(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", config={"message.timestamp.type": "LogAppendTime"})
    for _ in range(2):
        assert answered(broker, request_of(sent()))[0].log_append_time_ms == NOW


TRANSACTIONAL = sent(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


def test_transactional_records_without_a_transactional_id_fail_the_request(broker: ServedBroker) -> None:
    broker.manager.topics.create("t", 2)
    responses = answered(broker, request_of(sent(), TRANSACTIONAL, acks=1))
    assert [response.error_code for response in responses] == [53, 53]
    assert broker.manager["t", 0].log_end_offset == 0


def test_a_transactional_id_is_unknown_for_transactional_batches_only(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    assert code(broker, TRANSACTIONAL, transactional_id="x") == 49
    assert code(broker, sent(), transactional_id="x") == 0


def test_a_batch_outside_of_its_producers_open_transaction_is_refused(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    log.append(TRANSACTIONAL.copy())
    assert code(broker, sent(producer_id=7, producer_epoch=0, base_sequence=1)) == 48
    log.append(array(marker(0, 7, commit=False)), origin=Origin.COORDINATOR)


def test_acks_0_are_not_answered(broker: ServedBroker) -> None:
    log = broker.log("t")
    for batch in (sent(), sent(), of_records(LARGE)):  # in the pool, at once, in the pool
        assert broker.call(produce, request_of(batch, acks=0), 11) is NO_RESPONSE
    assert log.log_end_offset == 3
    assert broker.call(produce, request_of(BAD_CHECKSUM, acks=0), 11) is CLOSE
    assert broker.call(produce, request_of(sent(), topic="other", acks=0), 11) is CLOSE


def test_a_full_disk_loses_nothing_and_the_log_continues(broker: ServedBroker) -> None:
    log = broker.log("t", records=1)
    with failing(log.directory, "write", error=28):
        assert code(broker, sent()) == 56
    assert code(broker, sent()) == 0
    assert log.log_end_offset == 2


def test_a_log_that_was_deleted_and_created_again_begins_at_0(broker: ServedBroker) -> None:
    broker.log("t", records=1)
    assert code(broker, sent()) == 0
    broker.manager.topics.delete("t")
    assert code(broker, sent()) == 3
    broker.manager.topics.create("t")
    assert answered(broker, request_of(sent()))[0].base_offset == 0


def test_a_log_of_a_directory_that_went_offline_refuses_batches(tmp_path: Path) -> None:
    with served(tmp_path / "logs") as broker:
        log = broker.log("t", records=1)
        broker.manager.directories[0].go_offline("its disk failed")
        assert not log.is_open
        assert code(broker, sent()) == 56


def test_many_partitions(broker: ServedBroker) -> None:
    """Of several batches for one log each keeps its place, whichever would be late."""
    log = broker.log("t", records=1)
    numbered = {"producer_id": 7, "producer_epoch": 0}
    batches = [sent(base_sequence=number, **numbered) for number in range(MANY_PARTITIONS + 2)]
    batches[3] = of_records(LARGE, base_sequence=3, **numbered)
    data = tuple(PartitionProduceData(index=0, records=frame(batch)) for batch in batches)
    request = ProduceRequest(acks=1, topic_data=(TopicProduceData(name="t", partition_data=data),))
    responses = answered(broker, request)
    assert [response.base_offset for response in responses] == list(range(1, MANY_PARTITIONS + 3))
    assert log.log_end_offset == MANY_PARTITIONS + 3


def test_a_request_without_topics_has_an_empty_response(broker: ServedBroker) -> None:
    assert broker.call(produce, ProduceRequest(acks=1), 9) == ProduceResponse()
    assert broker.call(produce, ProduceRequest(acks=0), 9) is NO_RESPONSE
