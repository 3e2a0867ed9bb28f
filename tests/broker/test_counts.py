"""What is counted of requests and topics, and where answers have their errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from siltstone.broker.counts import BOUNDS_MS, ApiCounts, Counts, codes_in
from siltstone.broker.handlers.produce import produce
from siltstone.broker.wire.apis import APIS, PRODUCE
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.wire.test_messages import random_message
from tests.support.broker import ServedBroker, frame
from tests.support.log.batches import sent


def test_times_are_counted_up_to_their_bounds_and_quantiles_lie_between() -> None:
    counts = ApiCounts()
    assert counts.quantile_ms(0.5) is None
    for milliseconds in (*BOUNDS_MS, 31_000.0):
        counts.answered(10, 20, milliseconds / 1000)
    assert counts.buckets == [1] * (len(BOUNDS_MS) + 1)
    assert (counts.count, counts.request_bytes, counts.response_bytes) == (19, 190, 380)
    assert counts.quantile_ms(1.0) == 30_000  # the last bound, as Prometheus has it
    counts.buckets = [0, 0, 4, 4, *[0] * 15]
    assert [counts.quantile_ms(share) for share in (0.25, 0.5, 0.75, 1.0)] == [0.175, 0.25, 0.375, 0.5]


def every_code(message: object) -> Iterator[int]:
    """All fields ``error_code``, by looking at everything."""
    if isinstance(message, Message):
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name == "error_code":
                yield value
            yield from every_code(value)
    elif isinstance(message, tuple):
        for part in message:
            yield from every_code(part)


def test_no_error_of_any_answer_is_overlooked() -> None:
    chance, code_count = random.Random(1), 0
    for api in APIS.values():
        for _ in range(5):
            answer = random_message(api.response, api.max_version, chance)
            codes = sorted(every_code(answer))
            assert sorted(codes_in(answer)) == codes, api.name
            code_count += len(codes)
    assert code_count > 100


def request_of(*batches: memoryview | None, acks: int = 1, topic: str = "t") -> ProduceRequest:
    partitions = tuple(PartitionProduceData(index=0, records=batch) for batch in batches)
    return ProduceRequest(acks=acks, topic_data=(TopicProduceData(name=topic, partition_data=partitions),))


@pytest.mark.parametrize("acks", [0, 1])
def test_batches_are_counted_whether_they_are_answered_or_not(broker: ServedBroker, acks: int) -> None:
    broker.log("t")
    batch, damaged, counts = sent(3), sent(1), broker.broker.counts
    damaged[-1] ^= 1
    broker.call(produce, request_of(frame(batch), frame(damaged), None, acks=acks), 9)
    for figures in (counts.of_topic["t"], counts.of_all):
        assert (figures.produces, figures.failed_produces) == (3, 2)
        assert (figures.messages_in, figures.bytes_in) == (3, len(batch))
    assert counts.errors == {(PRODUCE, 2): 1, (PRODUCE, 87): 1}


def test_a_topic_that_does_not_exist_has_no_counts_of_its_own(broker: ServedBroker) -> None:
    counts = broker.broker.counts
    broker.call(produce, request_of(frame(sent(1)), topic="missing"), 9)
    assert counts.of_topic == {}
    assert (counts.of_all.failed_produces, counts.errors) == (1, {(PRODUCE, 3): 1})


def test_topics_that_are_gone_are_forgotten_and_sums_stay() -> None:
    counts = Counts()
    for name in ("goes", "stays"):
        counts.appended(name, 1, 10)
    counts.forget_all_but(["stays", "other"])
    assert list(counts.of_topic) == ["stays"]
    assert counts.of_all.bytes_in == 20


def test_counts_of_several_threads_are_all_there() -> None:
    counts = Counts()

    def count() -> None:
        for _ in range(2_000):
            counts.appended("t", 1, 2)
            counts.refused(PRODUCE, (3, 0))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counts.of_all.messages_in, counts.of_topic["t"].bytes_in) == (8_000, 16_000)
    assert counts.errors == {(PRODUCE, 3): 8_000}
