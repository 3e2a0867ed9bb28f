"""Requests with bytes that are wrong: flipped, cut off, inserted, appended."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tests.support.broker_twin import schemas
from tests.support.broker_twin.scenes import APIS
from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.side import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_TOPIC_PARTITIONS,
    LIST_CONFIG_RESOURCES,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from tests.support.broker_twin.wire import Connection, answer_of, header

TOPIC: Final = "mutated"
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFF)
_PARTITIONS = [{"partition_index": 0, "timestamp": -1}, {"partition_index": 1, "timestamp": 5}]
_EPOCH = {"partition": 0, "leader_epoch": 0}
_SETTINGS = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["retention.ms"]}
REQUESTS: Final[Mapping[int, Message]] = {
    API_VERSIONS: {"client_software_name": "ab", "client_software_version": "1"},
    METADATA: {"topics": [{"name": TOPIC, "topic_id": bytes(16)}], "allow_auto_topic_creation": False},
    LIST_OFFSETS: {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": _PARTITIONS}]},
    OFFSET_FOR_LEADER_EPOCH: {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [_EPOCH]}]},
    DESCRIBE_CONFIGS: {"resources": [_SETTINGS], "include_synonyms": True},
    DESCRIBE_CLUSTER: {},
    DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [{"name": TOPIC}],
        "cursor": {"topic_name": TOPIC, "partition_index": 1},
    },
    DESCRIBE_LOG_DIRS: {"topics": [{"topic": TOPIC, "partitions": [0]}]},
    LIST_PARTITION_REASSIGNMENTS: {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
    LIST_CONFIG_RESOURCES: {"resource_types": [2]},
}
"""Requests that change nothing, whatever becomes of them."""


class Mutated(NamedTuple):
    """A frame without its length, and what it was."""

    key: int
    version: int
    frame: bytes


def mutated(seed: int, count: int) -> Iterator[Mutated]:
    """So many frames."""
    rng = random.Random(seed)
    scenes = [scene for scene in APIS if scene.key in REQUESTS]
    for _ in range(count):
        scene = rng.choice(scenes)
        version = rng.choice(scene.versions)
        layout = schemas.schema(scene.key, version, "request")
        start = header(scene.key, version, 7, "cl", flexible=layout.flexible)
        frame = bytearray(start + schemas.encode(layout, REQUESTS[scene.key]))
        yield Mutated(scene.key, version, bytes(_mutate(rng, frame)))


def _mutate(rng: random.Random, frame: bytearray) -> bytearray:
    """Change what stands behind the key and the version."""
    kind = rng.choice(("flip", "flip", "flip", "cut", "append", "insert"))
    if kind == "cut":
        return frame[: rng.randrange(8, len(frame) + 1)]
    if kind == "append":
        return frame + rng.randbytes(rng.randrange(1, 9))
    if kind == "insert":
        place = rng.randrange(8, len(frame) + 1)
        return frame[:place] + rng.randbytes(rng.randrange(1, 4)) + frame[place:]
    for _ in range(rng.choice((1, 1, 2))):
        frame[rng.randrange(4, len(frame))] = rng.choice((*_BYTES, rng.randrange(256)))
    return frame


def outcome(bootstrap: str, sent: Mutated) -> str:
    """The end of the connection, or the codes of the answer."""
    with Connection(bootstrap) as connection:
        connection.send_frame(sent.frame)
        answer = connection.receive_frame()
    if answer is None:
        return "closed"
    return f"codes {sorted(_codes(answer_of(sent.key, sent.version, answer)))}"


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        if "error_code" in value:
            yield value["error_code"]
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from _codes(element)
