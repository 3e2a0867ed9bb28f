"""What a peer could send: the reader refuses it before it allocates, and raises one error."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from siltstone.broker.wire import codec
from siltstone.broker.wire.apis import APIS
from siltstone.broker.wire.codec import ELEMENTS_MAX, MalformedRequestError
from siltstone.broker.wire.headers import read_header
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.wire.test_messages import CASES, joined, random_message

HUGE_VARINT = b"\xff\xff\xff\xff\x0f"
HUGE_INT32 = b"\x7f\xff\xff\xff"


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, HUGE_INT32),
        (9, HUGE_VARINT),
        (9, b"\x02" + HUGE_VARINT),
        (9, b"\x01\x01\x01\x01" + HUGE_VARINT),
        (9, b"\x01\x01\x01\x01\x01\x63" + HUGE_VARINT),
        (9, b"\xff\xff\xff\xff\xff\x01"),
        (1, b""),
        (1, b"\x00\x00\x00\x01\x7f\xff"),
        (1, b"\x00\x00\x00\x01\x80\x00"),
        (12, b"\x02" + bytes(16) + b"\x00"),
    ],
    ids=[
        "array",
        "compact array",
        "string",
        "tags",
        "tag",
        "long varint",
        "nothing",
        "int16 size",
        "null name",
        "a structure that ends before its tags",
    ],
)
def test_a_length_that_is_not_there_is_refused_before_anything_is_allocated(
    version: int, body: bytes
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequestError):
            codec.read(MetadataRequest, version, memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_elements_are_counted_over_the_whole_message() -> None:
    # 400 topics of 300 partitions: each array is small.
    names = tuple(MetadataRequestTopic(name="") for _ in range(ELEMENTS_MAX))
    data = joined(MetadataRequest(topics=names), 9)
    assert len(codec.read(MetadataRequest, 9, memoryview(data)).topics or ()) == ELEMENTS_MAX
    data = joined(MetadataRequest(topics=(*names, names[0])), 9)
    with pytest.raises(MalformedRequestError, match="elements"):
        codec.read(MetadataRequest, 9, memoryview(data))
    topic = TopicProduceData(name="a", partition_data=(PartitionProduceData(records=None),) * 1_000)
    data = joined(ProduceRequest(topic_data=(topic,) * 100), 9)
    with pytest.raises(MalformedRequestError, match="elements"):
        codec.read(ProduceRequest, 9, memoryview(data))


def test_unknown_tags_and_bytes_behind_the_body_are_ignored() -> None:
    data = joined(MetadataRequest(topics=None), 9)
    assert data[-1] == 0
    tagged = data[:-1] + b"\x02\x07\x01x\x63\x03abc" + b"behind"
    assert codec.read(MetadataRequest, 9, memoryview(tagged)) == MetadataRequest(topics=None)


def test_text_that_is_not_utf_8_is_read_as_java_reads_it() -> None:
    read = codec.read(MetadataRequest, 1, memoryview(b"\x00\x00\x00\x01\x00\x02\xffa"))
    assert read.topics == (MetadataRequestTopic(name="�a"),)


def test_records_are_a_view_of_the_frame() -> None:
    topic = TopicProduceData(name="a", partition_data=(PartitionProduceData(records=b"batches"),))
    frame = bytearray(joined(ProduceRequest(topic_data=(topic,)), 9))
    records = codec.read(ProduceRequest, 9, memoryview(frame)).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[:1] = b"B"
    assert b"Batches" in frame


def test_every_truncation_and_mutation_of_every_message_is_read_or_refused() -> None:
    tried = refused = 0
    for api, version in CASES:
        chance = random.Random(f"{api.name} {version}")
        data = joined(random_message(api.request, version, chance), version)[:2_000]
        damaged = [bytearray(data[:size]) for size in range(0, len(data), max(1, len(data) // 40))]
        for _ in range(100):
            mutated = bytearray(data)
            for _ in range(chance.randint(1, 4) if data else 0):
                mutated[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            damaged.append(mutated)
        for body in damaged:
            tried += 1
            try:
                codec.read(api.request, version, memoryview(body))
            except MalformedRequestError:
                refused += 1
    assert tried > 10_000
    assert tried // 4 < refused < tried


def test_a_header_that_is_cut_or_hostile_is_refused() -> None:
    metadata = next(key for key, api in APIS.items() if api.name == "Metadata")
    start = metadata.to_bytes(2, "big") + b"\x00\x09" + bytes(4)
    for frame in (
        b"",
        start,
        start + b"\x00",
        start + b"\x7f\xffabc",
        start + b"\x00\x01a",
        start + b"\xff\xff\x01\x01",
        start + b"\xff\xff" + HUGE_VARINT,
    ):
        with pytest.raises(MalformedRequestError):
            read_header(memoryview(frame))
    unknown = read_header(memoryview(b"\x27\x0f\x00\x00" + bytes(4) + b"\xff\xff"))
    assert (unknown.api_key, unknown.body) == (9999, 10)
