"""Frames of requests, and what a hostile or broken client makes of them.

::

    frames_of     requests of every API and version: some that make sense (``sensible``), and a random one
    systematic    each frame cut at every byte; every length field, and all else, set to the extremes
    random_change bytes changed, removed, doubled, put in; tags; a piece of another frame
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from siltstone.broker.wire.api import Api
from siltstone.broker.wire.apis import APIS, PRODUCE
from siltstone.broker.wire.fields import Message
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.wire.test_messages import random_message
from tests.support.log.batches import sent
from tests.support.wire_client import request_frame

TOPIC = "t"
EXTREMES = (
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",  # 2^31 - 1 as a varint
    b"\xff\xff\xff\xff\x0f",  # 2^32 - 1
    b"\x80\x80\x80\x80\x80\x80",  # a varint without an end
    b"\x00",
)
"""What a length, a count or a number is set to."""
TAGS = (
    b"\x01\x63\x03abc",  # an unknown one, which is skipped
    b"\x01\x00\x00",
    b"\x02\x63\x00\x63\x00",
    b"\x01\xff\xff\xff\xff\x0f\x00",
    b"\x01\x63\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
)
"""Tagged fields: fair ones, and counts and sizes that are not there."""
_CHANGED_MAX = 100
"""Every byte so far is changed; what follows is a batch's records or more of the same."""


def sensible(topic_id: bytes) -> list[Message]:
    """Requests that get far: of a topic that exists."""
    batch = bytes(sent(3))
    data = (PartitionProduceData(index=0, records=batch),)
    partitions = (FetchPartition(partition=0, partition_max_bytes=1 << 20),)
    return [
        *(
            ProduceRequest(
                acks=acks,
                timeout_ms=1_000,
                topic_data=(TopicProduceData(name=TOPIC, topic_id=topic_id, partition_data=data),),
            )
            for acks in (-1, 0)
        ),
        FetchRequest(
            min_bytes=1,
            topics=(FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=partitions),),
            max_wait_ms=9,
        ),
        ListOffsetsRequest(
            topics=(ListOffsetsTopic(name=TOPIC, partitions=(ListOffsetsPartition(timestamp=-1),)),)
        ),
        MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=TOPIC),)),
    ]


def frames_of(keys: Sequence[int], topic_id: bytes) -> list[bytes]:
    """Frames, without their lengths, of all versions of these APIs."""
    chance = random.Random("frames")
    by_api: dict[str, list[Message]] = {}
    for request in sensible(topic_id):
        by_api.setdefault(type(request).__name__, []).append(request)
    frames = []
    for api in (APIS[key] for key in keys):
        for version in range(api.min_version, api.max_version + 1):
            requests = [*by_api.get(api.request.__name__, []), _random_request(api, version, chance)]
            frames += [request_frame(request, version)[4:] for request in requests]
    return frames


def _random_request(api: Api, version: int, chance: random.Random) -> Message:
    while True:
        request = random_message(api.request, version, chance)
        if len(request_frame(request, version)) < (4_000 if api.key == PRODUCE else 1_000):
            return request


def systematic(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Each frame cut at every byte, and with every extreme at every byte; none of them twice."""
    for frame in frames:
        yielded = set[bytes]()
        for position in range(min(len(frame), _CHANGED_MAX)):
            changed = (frame[:position] + extreme + frame[position + len(extreme) :] for extreme in EXTREMES)
            for hostile in (frame[:position], *changed):
                if hostile not in yielded:
                    yielded.add(hostile)
                    yield hostile


def random_change(frames: Sequence[bytes], chance: random.Random) -> bytes:
    """A frame with one to four changes."""
    frame = bytearray(chance.choice(frames))
    for _ in range(chance.randint(1, 4)):
        at, kind = chance.randrange(len(frame) + 1), chance.randrange(7)
        if kind == 0:
            frame[at : at + 1] = chance.randbytes(1)
        elif kind == 1:
            frame[at : at + 5] = chance.choice(EXTREMES)
        elif kind == 2:
            frame[at:at] = chance.choice(TAGS)
        elif kind == 3:
            del frame[at : at + chance.randint(1, 20)]
        elif kind == 4:
            frame[at:at] = frame[at : at + chance.randint(1, 50)]
        elif kind == 5:
            donor = chance.choice(frames)
            frame[at:] = donor[min(at, len(donor)) :]
        else:
            frame[at:at] = chance.randbytes(chance.randint(1, 8))
    return bytes(frame)
